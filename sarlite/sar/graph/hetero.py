"""HeteroGraph: nodes of several types and relations between them. What leaves one type is one bundle, fed by one fetch."""

from collections.abc import Mapping
from typing import Any, cast

import numpy as np

from sarlite import kernels
from sarlite.comm import Communicator, Solo, agree, together, wrap
from sarlite.errors import ConfigError, ShapeError
from sarlite.graph.part import InEdges
from sarlite.profile import Counted, Profile
from sarlite.sar.graph import typed_edges
from sarlite.sar.graph.view import View
from sarlite.sar.operators import fn, joint, relations
from sarlite.sar.operators.evaluation import EVALUATIONS, Evaluation, Sizes, evaluate
from sarlite.sar.schedule import needs, schedule
from sarlite.sar.schedule.pieces import Plan
from sarlite.sar.schedule.schedule import Options
from sarlite.tape import Tensor
from sarlite.tape.tensor_map import TensorMap
from sarlite.types import Array

Relation = tuple[str, str, str]  # (source type, name, destination type)


class NodeType:
    """The nodes of one type, as what stands between aggregations sees them: `nn.Activation`, `nn.BatchNorm`, a `Trainer`.

    Attributes
    ----------
    graph : HeteroGraph
    node_type : str
    n_nodes : int
        Of all ranks.
    n_src, n_dst : int
        Rows of this rank.
    src_ids, dst_ids, node_ids : (n_dst,) int64
        One array: global ids of the local rows.
    comm, profile
        The graph's.
    """

    def __init__(self, graph: "HeteroGraph", node_type: str) -> None:
        self.graph, self.node_type, self.n_nodes = graph, node_type, graph.n_nodes[node_type]
        self.node_ids = self.src_ids = self.dst_ids = graph.node_ids[node_type]
        self.n_src = self.n_dst = len(self.node_ids)
        self.comm, self.profile = graph.comm, graph.profile

    def __repr__(self) -> str:
        return f"NodeType({self.node_type!r}, {self.n_dst} of {self.n_nodes} rows)"


class HeteroGraph:
    """One part of a heterogeneous graph, or a whole one. Make one with `from_edges` or `from_part`.

    Attributes
    ----------
    node_types : tuple of str
    relations : tuple of (source type, name, destination type)
    n_nodes : dict of str to int
        Nodes of each type, of all ranks.
    n_edges : dict of relation to int
        Edges of each relation, of all ranks.
    node_ids : dict of str to (n,) int64
        Global ids of this rank's rows of each type: each type counts from 0.
    in_degrees : dict of relation to (n_dst,) int64
    edge_ids : dict of relation to (n_edges,) int64
        Where each of this rank's edges stood among the relation's. Made at each use where they count up.
    evaluations : list of Evaluation
        What was chosen for the weights of `fn.linear` so far, with what either way costs.
    comm : Communicator
    profile : Profile
    """

    def __init__(self, comm: Communicator, in_edges: Mapping[Relation, InEdges], node_ids: Mapping[str, Array],
                 edge_ids: Mapping[Relation, Array], options: Options) -> None:
        self.profile, self.options, self._comm = Profile(), options, comm
        self.comm = cast(Communicator, Counted(comm, self.profile))
        self.node_types, self.relations = tuple(node_ids), tuple(in_edges)
        self.node_ids, self._edge_ids, self._edges = dict(node_ids), dict(edge_ids), dict(in_edges)
        counts = comm.allreduce(np.array([len(ids) for ids in node_ids.values()], np.int64))
        self.n_nodes = dict(zip(node_ids, map(int, counts)))
        self.in_degrees = {relation: np.diff(edges.indptr) for relation, edges in in_edges.items()}
        counts = comm.allreduce(np.array([len(edges.indices) for edges in in_edges.values()], np.int64))
        self.n_edges = dict(zip(in_edges, map(int, counts)))
        self._schedules: dict[tuple[Relation, ...], tuple[Any, int]] = {}
        self._evaluations: dict[tuple[Any, ...], Evaluation] = {}
        self.view_arrays: dict[tuple[tuple[Relation, ...], int], dict[str, Any]] = {}  # of a relation in a schedule, what `View` keeps
        self._kept = TensorMap()  # constant Tensor -> {(relation, reducer): its aggregation}

    @classmethod
    def from_edges(cls, edges: Mapping[Relation, tuple[Any, Any]], n_nodes: Mapping[str, int], *, comm: Any = None, parts: Any = "metis",
                   mode: str = "sar", prefetch: int = 1, seed: int = 0) -> "HeteroGraph":
        """Make a graph from edge lists, or this rank's part of one that every rank holds. Collective.

        Parameters
        ----------
        edges : dict of (source type, name, destination type) to (src, dst)
            Edge e of a relation goes from node src[e] of its source type to dst[e] of its destination type: (n_edges,) int arrays,
            or what has `__array__` or `__dlpack__`. In the same order on every rank.
        n_nodes : dict of str to int
            The nodes of each type; a type may be in no relation.
        comm : Communicator, or an mpi4py communicator, optional
            Without it the graph is whole.
        parts : {"metis", "fennel", "random", "contiguous"}, or dict of str to (n,) int array, "random" or "contiguous"
            How to divide the nodes: METIS and Fennel divide those of all types together, the others each type; or a division for each type.
        mode, prefetch
            As `Graph.from_part` has them.
        seed : int
            Of the division.

        Raises
        ------
        ConfigError, DataError
            On every rank: a relation is no triple or names an unknown type, an id is out of range, parts that do not fit, an unknown mode;
            edges that differ between ranks, of which each hashes its own.
        """
        comm = Solo() if comm is None else wrap(comm)
        options = Options(mode, prefetch)
        options.check(comm)
        edges, n_nodes = together(comm, lambda: typed_edges.checked(edges, n_nodes))
        if comm.size > 1:
            agree(comm, ([*edges], [*n_nodes.items()], [*edges.values()]), "edges and n_nodes")
        parts = typed_edges.divide(comm, edges, n_nodes, parts, seed)
        own = {name: np.flatnonzero(found == comm.rank) for name, found in parts.items()}
        rows = {name: typed_edges.row_numbers(found) for name, found in parts.items()}
        in_edges, edge_ids = {}, {}
        for relation, (src, dst) in edges.items():
            in_edges[relation], edge_ids[relation] = typed_edges.own_edges(relation, src, dst, parts, own, rows, comm.rank)
        return cls(comm, in_edges, own, edge_ids, options)

    @classmethod
    def from_part(cls, comm: Any, edges: Mapping[Relation, tuple[Any, Any]], node_ids: Mapping[str, Any], *,
                  edge_ids: Mapping[Relation, Any] | None = None, mode: str = "sar", prefetch: int = 1) -> "HeteroGraph":
        """Make this rank's part of a graph from its own rows and their in-edges. Collective.

        Of each type rank p owns the row numbers after those of the ranks before it. Nothing here is O(n_nodes).

        Parameters
        ----------
        comm : Communicator, or an mpi4py communicator
        edges : dict of (source type, name, destination type) to (indptr, indices)
            CSR of the in-edges of this rank's rows of the destination type: (n_dst + 1,) int64, and the sources' row numbers in the whole
            graph, ascending in each row. The same relations in the same order on every rank.
        node_ids : dict of str to (n,) int64
            Global ids of this rank's rows of every type, also one that is in no relation.
        edge_ids : dict of relation to (n_edges,) int64, optional
            Global ids of these edges, in the order of a rank's edge values; by default their places on this rank.
        mode, prefetch
            As of `from_edges`.

        Raises
        ------
        ConfigError, DataError
            On every rank: what `from_edges` refuses, edges that are no CSR of these rows, or types and relations that differ by rank.
        """
        comm = wrap(comm)
        options = Options(mode, prefetch)
        options.check(comm)
        in_edges, ids, places = together(comm, lambda: typed_edges.own_part(edges, node_ids, edge_ids))
        agree(comm, ([*in_edges], [*ids]), "relations and node types")
        made = cls(comm, in_edges, ids, places, options)
        together(comm, lambda: typed_edges.check_part(in_edges, made.n_nodes))
        return made

    def __repr__(self) -> str:
        share = f", part {self.comm.rank} of {self.comm.size}, mode {self.options.mode}" if self.comm.size > 1 else ""
        types = ", ".join(f"{len(ids)} {name}" for name, ids in self.node_ids.items())
        n_edges = sum(len(edges.indices) for edges in self._edges.values())
        return f"HeteroGraph({types}; {len(self.relations)} relations, {n_edges} edges{share})"

    @property
    def edge_ids(self) -> dict[Relation, Array]:
        return {relation: np.arange(len(edges.indices)) if relation not in self._edge_ids else self._edge_ids[relation]
                for relation, edges in self._edges.items()}

    def of(self, node_type: str) -> NodeType:
        """Return the nodes of one type."""
        if node_type not in self.n_nodes:
            raise ConfigError(f"node type {node_type!r} is not one of {', '.join(self.node_types)}")
        return NodeType(self, node_type)

    def into(self, node_types: Any) -> tuple[Relation, ...]:
        """Return the relations whose destination type is one of these."""
        return tuple(relation for relation in self.relations if relation[2] in node_types)

    def exchange(self, chosen: Any) -> tuple[Plan, int]:
        """Return the plan of relations out of one type that are aggregated together, and the rows that all ranks fetch. Collective."""
        made, n_halo = self._schedule(chosen)
        return made.plan, n_halo

    @property
    def exchanges(self) -> dict[tuple[Relation, ...], tuple[Plan, int]]:
        """What `exchange` returns, of those found so far."""
        return {chosen: (made.plan, n_halo) for chosen, (made, n_halo) in self._schedules.items()}

    def prepare(self, chosen: Any) -> list[Plan]:
        """Find now what an aggregation over these relations will exchange, not in its first call; return the plan of each source type.

        Collective.
        """
        groups: dict[str, list[Relation]] = {}
        for relation in self.relations:
            if relation in chosen:
                groups.setdefault(relation[0], []).append(relation)
        return [self.exchange(group)[0] for group in groups.values()]

    @property
    def evaluations(self) -> list[Evaluation]:
        return list(self._evaluations.values())

    # ---- aggregation

    def aggregate(self, messages: Mapping[Relation, Any], reducer: str, *, own: Mapping[str, tuple[Tensor, Tensor]] | None = None,
                  evaluation: str | None = None) -> dict[str, Tensor]:
        """Return by destination type out_i = sum over relations r of reduce over in-edges (j, i) of r of messages[r]. Collective.

        Parameters
        ----------
        messages : dict of relation to fn.copy_src(x), fn.linear(x, weight), fn.mul_edge(x, weight), fn.attend(...), fn.attend_linear(...) \
                or fn.message(function, src, dst, edge)
            Source rows are those of the relation's source type, in the order of `node_ids`. Others' relations are left out. The same
            relations on every rank.
        reducer : {"sum", "mean", "sym", "max", "min", "softmax"}
            As of `Graph.aggregate`, within each relation: "sum", "mean" and "sym" of copy_src and linear, "max" and "min" of copy_src,
            these but "sym" of mul_edge, "sum" of attend and attend_linear, all but "sym" of a function. "sym" divides by the square
            roots of the degree into i and of that out of j, both in the relation.
        own : dict of str to (x, weight), optional
            x W is added to the sums of a type, (n_dst, n_in) by (n_in, n_out): what a layer makes of the destinations' own rows.
        evaluation : {"inside", "first"}, optional
            Of the weights of `fn.linear`: inside the message, or aggregated first and transformed after; equal to rounding. By default
            for each relation what costs fewer bytes: see `sar.evaluation.evaluate`, and `evaluations` for what was chosen.

        Returns
        -------
        dict of str to Tensor (n_dst, ...)
            0 where a node has no edges.

        Raises
        ------
        ConfigError, ShapeError
            An unknown relation, a message that does not go with the reducer, an input that does not fit; sums and products that are added
            up have one float dtype.

        Notes
        -----
        One fetch for each source type serves all its relations here: the rows that any of them needs travel once, and once again in
        backward where an operator needs them (case 2: a weight inside, attention). A tensor that several messages have travels once.
        The sum or mean of a constant tensor's rows is kept, as of `Graph.aggregate`. The first call for a set of relations out of a type
        finds what is to be exchanged. Source: SAR appendix A, Eq. 4.
        """
        self._check_own(own or {})
        sums: dict[str, Tensor] = {}
        pairs, parts = [(to, x, weight) for to, (x, weight) in (own or {}).items()], []
        for chosen in self._by_source(messages, reducer, evaluation):
            made, members, outputs, weights = self._members(chosen, messages, reducer, evaluation)
            if all(isinstance(key, str) and member.shape for _, key, member, _ in members):
                parts.append((made, [member[:3] for member in members]))
            else:
                outputs |= self._apart(made, members, reducer)
            pairs += [(relation[2], outputs.pop(relation), weight) for relation, weight in weights.items()]
            _add(sums, outputs)
        parts = [part for part in parts if part[1]]
        return _add(sums, joint.add_up(parts, pairs) if parts or pairs else {})

    def _check_own(self, own):
        for to, (x, weight) in own.items():
            n_dst = self.of(to).n_dst
            if x.ndim != 2 or weight.ndim != 2 or x.shape != (n_dst, len(weight)):
                raise ShapeError(f"own[{to!r}]: x {x.shape} and weight {weight.shape} are not ({n_dst}, n_in) and (n_in, n_out)")

    def _by_source(self, messages, reducer, evaluation):
        """The relations asked for, in the graph's order, a list a source type."""
        if evaluation not in (None, *EVALUATIONS):
            raise ConfigError(f"evaluation {evaluation!r} is not one of {', '.join(EVALUATIONS)}")
        for relation, message in messages.items():
            if relation not in self._edges:
                raise ConfigError(f"relation {relation!r} is none of this graph: {', '.join(map(str, self.relations))}")
            if (type(message), reducer) not in relations.MEMBERS:
                what = "a function stands in fn.message(...) and" if callable(message) else f"message {type(message).__name__}"
                raise ConfigError(f"relation {relation!r}: {what} does not go with reducer {reducer!r}")
        chosen: dict[str, list[Relation]] = {}
        for relation in self.relations:
            if relation in messages:
                chosen.setdefault(relation[0], []).append(relation)
        return list(chosen.values())

    def _members(self, chosen, messages, reducer, evaluation):
        """Of the relations out of one type: their schedule, (place, destination type or relation, Member, where its sum is kept or None),
        the sums that are kept already by relation, and the weights that sums by relation still want."""
        made, n_halo = self._schedule(chosen)
        views = {relation: View(self, chosen, place, made) for place, relation in enumerate(chosen)}
        first = self._aggregated_first(chosen, views, messages, n_halo, evaluation)
        weights = {relation: weight for relation, (_, weight) in first.items()}
        outputs, members = {}, []
        for place, relation in enumerate(chosen):
            message = fn.copy_src(first[relation][0]) if relation in first else messages[relation]
            member = relations.MEMBERS[type(message), reducer](views[relation], message, reducer)
            constant = isinstance(message, fn.CopySrc) and reducer in relations.SUMS and member.fetched[0].constant
            kept = self._kept.setdefault(member.fetched[0], {}) if constant else {}
            if (relation, reducer) in kept:
                outputs[relation] = kept[relation, reducer]
            else:
                members.append((place, relation if constant or relation in first else relation[2], member, kept if constant else None))
        return made, members, outputs, weights

    def _apart(self, made, members, reducer):
        """The outputs of members whose sums are not all to be added up."""
        outputs = relations.aggregate_members(made, [member[:3] for member in members])
        for _, key, _, kept in members:
            if kept is not None:
                outputs[key] = kept[key, reducer] = Tensor(outputs[key].data, constant=True)
        return outputs

    def _aggregated_first(self, chosen, views, messages, n_halo, forced):
        """(x, weight) of each `fn.linear` that is aggregated first."""
        found, n_edges = {}, max(sum(self.n_edges[relation] for relation in chosen), 1)
        for relation in chosen:
            if not isinstance(messages[relation], fn.Linear):
                continue
            x, weight = relations.linear_inputs(views[relation], messages[relation])
            key = relation, *weight.shape, x.constant, forced
            if key not in self._evaluations:
                edges = self.n_edges[relation]
                sizes = Sizes(self.n_nodes[relation[0]], self.n_nodes[relation[2]], edges, n_halo * edges // n_edges)
                self._evaluations[key] = evaluate(relation, sizes, *weight.shape, x.dtype.itemsize, constant=x.constant,
                                                            forced=forced)
            if self._evaluations[key].name == "first":
                found[relation] = x, weight
        return found

    def _schedule(self, chosen):
        """The schedule of some relations out of one type, and the rows that all ranks fetch for it. Collective at the first call."""
        key = tuple(chosen)
        if key not in self._schedules:
            self._schedules[key] = kernels.unbuffered(self._made, key)
        return self._schedules[key]

    def _made(self, chosen):
        ids = self.node_ids[chosen[0][0]]
        exchange = needs.find(self._comm, [self._edges[relation] for relation in chosen], ids, len(ids))
        made = schedule.make(self._comm, exchange, self.options, self.profile)
        return made, int(self._comm.allreduce(np.array([made.plan.n_halo], np.int64))[0])

    def forget(self) -> None:
        """Free what aggregations found of their exchanges; the next of a set of relations finds it anew. The same on every rank."""
        self._schedules.clear()
        self.view_arrays.clear()

    def use(self, mode: str) -> None:
        """Aggregate in another mode from here on. The same on every rank."""
        if mode != self.options.mode:
            self.options = self.options._replace(mode=mode)
            self.forget()

    def recover(self) -> None:
        """Make the graph usable again after an aggregation that failed. Collective."""
        for made, _ in self._schedules.values():
            made.transport.recover()


def _add(sums, outputs):
    """Add outputs by destination type or relation to the sums by type, which are returned."""
    for key, out in outputs.items():
        to = key if isinstance(key, str) else key[2]
        sums[to] = sums[to] + out if to in sums else out
    return sums
