"""HeteroGraph: nodes of several types and relations between them. What leaves one type is fed by one fetch."""

import copy
from collections.abc import Mapping
from functools import partial
from typing import Any, NamedTuple, cast

import numpy as np

from sarlite import kernels
from sarlite.comm import Communicator, Solo, agree, together, wrap
from sarlite.errors import ConfigError, raise_together
from sarlite.graph.part import InEdges
from sarlite.profile import Counted, Profile
from sarlite.sar.graph import construct, frames
from sarlite.sar.graph.graph import Graph
from sarlite.sar.graph.layer_graph import LayerGraph
from sarlite.sar.graph.node_type import NodeType
from sarlite.sar.graph.relational import Relation, RelationalLayer
from sarlite.sar.graph.shard import own_relations
from sarlite.sar.graph.weights import EdgeValues, checked
from sarlite.sar.operators.evaluation import Evaluation, Sizes
from sarlite.sar.schedule import needs, schedule
from sarlite.sar.schedule.pieces import Plan
from sarlite.sar.schedule.schedule import Options, Schedule
from sarlite.sar.schedule.state import CommState, Kept
from sarlite.types import Array


class Fetch(NamedTuple):
    """What one fetch of a node type's rows serves; `n_halo` are the rows that all ranks fetch."""

    schedule: Schedule
    n_halo: int
    graphs: list[Graph]


class HeteroGraph(RelationalLayer):
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
    kept : Kept
        What aggregations have found together and the next ones use: exchanges, evaluations, sums of constant rows.
    names : dict of str to (n,) array
        What the caller calls the nodes of each type, of the whole graph, where `from_pandas` made it; else empty.
    edge_values : dict of relation to EdgeValues
        What `with_edge_values` gave, of some relations.
    """

    def __init__(self, comm: Communicator, in_edges: Mapping[Relation, InEdges], node_ids: Mapping[str, Array],
                 edge_ids: Mapping[Relation, Array], options: Options, profile: Profile | None = None) -> None:
        self.profile, self.options, self._comm = profile or Profile(), options, comm
        self.comm = cast(Communicator, Counted(comm, self.profile))
        self.node_types, self.relations = tuple(node_ids), tuple(in_edges)
        self.node_ids, self._edge_ids, self._edges = dict(node_ids), dict(edge_ids), dict(in_edges)
        counts = comm.allreduce(np.array([len(ids) for ids in node_ids.values()], np.int64))
        self.n_nodes = dict(zip(node_ids, map(int, counts)))
        self.in_degrees = {relation: np.diff(edges.indptr) for relation, edges in in_edges.items()}
        counts = comm.allreduce(np.array([len(edges.indices) for edges in in_edges.values()], np.int64))
        self.n_edges = dict(zip(in_edges, map(int, counts)))
        self.kept = Kept(CommState.of(comm))
        self.names: dict[str, Array] = {}
        self.edge_values: dict[Relation, EdgeValues] = {}

    @property
    def ids(self) -> dict[str, Array]:
        """What the caller calls this rank's rows of each type; without names their `node_ids`."""
        return {name: self.names[name][rows] if self.names else rows for name, rows in self.node_ids.items()}

    @classmethod
    def from_edges(cls, edges: Mapping[Relation, tuple[Any, Any]], n_nodes: Mapping[str, int], *, comm: Any = None,
                   parts: Any = "metis", mode: str = "sar", prefetch: int = 1, backward: str | None = None,
                   seed: int = 0, rows: str = "float32",
                   peers_at_once: int | None = None) -> "HeteroGraph":
        """Make a graph from edge lists, or this rank's part of one that every rank holds. Collective.

        Parameters
        ----------
        edges : dict of (source type, name, destination type) to (src, dst)
            Edge e of a relation goes from node src[e] of its source type to dst[e] of its destination type: (n_edges,)
            int arrays, or what has `__array__` or `__dlpack__`. In the same order on every rank.
        n_nodes : dict of str to int
            The nodes of each type; a type may be in no relation.
        comm : Communicator, or an mpi4py communicator, optional
            Without it the graph is whole.
        parts : {"metis", "fennel", "random", "contiguous"}, or dict of str to (n,) int array, "random" or "contiguous"
            How to divide the nodes: METIS and Fennel divide those of all types together, the others each type; or a
            division for each type.
        mode, prefetch, backward, rows, peers_at_once
            As `Graph.from_part` has them. With backward "fetch" each relation is a graph of its own: rows that several
            relations need travel once for each of them. By default gradients are pushed, with narrow
            rows too. With these weights of `fn.linear` are by default never inside the message.
        seed : int
            Of the division.

        Raises
        ------
        ConfigError, DataError
            On every rank: a relation is no triple or names an unknown type, an id is out of range, parts that do not
            fit, an unknown mode; edges that differ between ranks, of which each hashes its own.
        """
        comm = Solo() if comm is None else wrap(comm)
        options = Options(mode, prefetch, backward, rows, peers_at_once)
        options.check(comm)
        edges, n_nodes = together(comm, lambda: construct.checked_edges(edges, n_nodes))
        if comm.size > 1:
            agree(comm, ([*edges], [*n_nodes.items()], [*edges.values()]), "edges and n_nodes")
        return cls(comm, *own_relations(comm, edges, n_nodes, parts, seed), options)

    from_pandas = classmethod(frames.from_tables)

    @classmethod
    def from_part(cls, comm: Any, edges: Mapping[Relation, tuple[Any, Any]], node_ids: Mapping[str, Any], *,
                  edge_ids: Mapping[Relation, Any] | None = None, mode: str = "sar", prefetch: int = 1,
                  backward: str | None = None, rows: str = "float32",
                  peers_at_once: int | None = None) -> "HeteroGraph":
        """Make this rank's part of a graph from its own rows and their in-edges. Collective.

        Of each type rank p owns the row numbers after those of the ranks before it. Nothing here is O(n_nodes).

        Parameters
        ----------
        comm : Communicator, or an mpi4py communicator
        edges : dict of (source type, name, destination type) to (indptr, indices)
            CSR of the in-edges of this rank's rows of the destination type: (n_dst + 1,) int64, and the sources' row
            numbers in the whole graph, ascending in each row. The same relations in the same order on every rank.
        node_ids : dict of str to (n,) int64
            Global ids of this rank's rows of every type, also one that is in no relation.
        edge_ids : dict of relation to (n_edges,) int64, optional
            Global ids of these edges, in the order of a rank's edge values; by default their places on this rank.
        mode, prefetch, backward, rows, peers_at_once
            As of `from_edges`.

        Raises
        ------
        ConfigError, DataError
            On every rank: what `from_edges` refuses, edges that are no CSR of these rows, ids that are negative or
            given to two rows of a type, or types and relations that differ by rank.
        """
        comm = wrap(comm)
        options = Options(mode, prefetch, backward, rows, peers_at_once)
        options.check(comm)
        in_edges, ids, places = together(comm, lambda: construct.checked_part(edges, node_ids, edge_ids))
        agree(comm, ([*in_edges], [*ids]), "relations and node types")
        for name, own in ids.items():
            construct.check_distinct(comm, f"node_ids[{name!r}]", own)
        made = cls(comm, in_edges, ids, places, options)
        together(comm, lambda: construct.check_sources(in_edges, made.n_nodes))
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

    def of(self, *node_types: str) -> NodeType:
        """Return the nodes of one type, or of several, each once."""
        for name in node_types:
            if name not in self.n_nodes:
                raise ConfigError(f"node type {name!r} is not one of {', '.join(self.node_types)}")
        if not node_types or len({*node_types}) < len(node_types):
            raise ConfigError(f"node types {node_types}, but each must be there once")
        return NodeType(self, *node_types)

    def in_edges(self, relation: Relation) -> InEdges:
        """Return this part's edges of a relation; their indices are row numbers of sources in the whole graph."""
        return self._edges[relation]

    def keeping(self, kept: Mapping[Relation, Array]) -> "HeteroGraph":
        """Return the graph with some edges of relations, and all of others. Collective.

        The edges that stay are told by a mask each in the order of `in_edges`.
        """
        edges, ids, numbers = dict(self._edges), self.edge_ids, dict[Relation, Array]()
        for relation, mask in kept.items():
            edges[relation], numbers[relation] = edges[relation].some(mask)
            ids[relation] = ids[relation][numbers[relation]]
        made = HeteroGraph(self._comm, edges, self.node_ids, ids, self.options, self.profile)
        made.names = self.names
        weights, features = ({relation: values[numbers.get(relation, slice(None))]
                              for relation, own in self.edge_values.items() if (values := own[k]) is not None}
                             for k in (0, 1))
        return made.with_edge_values(weights, features) if self.edge_values else made

    def with_edge_values(self, weights: Mapping[Relation, Any] | None = None,
                         features: Mapping[Relation, Any] | None = None) -> "HeteroGraph":
        """Return this graph with weights and features on the edges of some relations, or without those it has.

        Collective. Within a relation sums count weights as `Graph.with_edge_values` says, degrees being the relation's.

        Parameters
        ----------
        weights : dict of relation to (n_edges,) array of numbers, optional
            One a local in-edge: of a part `weights[graph.edge_ids[relation]]`. The same relations on every rank.
        features : dict of relation to (n_edges, n_edge_features) array of numbers, optional
            Rows likewise, for messages: `graph.edge_values[relation].features`.

        Returns
        -------
        HeteroGraph
            It finds its exchanges anew. Its batches and message-flow graphs have their edges' values.

        Raises
        ------
        ConfigError, ShapeError, DataError
            On every rank together: an unknown relation; what `Graph.with_edge_values` refuses, naming the relation.
        """
        weights, features = weights or {}, features or {}
        wanted = [relation for relation in self.relations if relation in weights or relation in features]
        unknown = [relation for relation in (*weights, *features) if relation not in self.relations]
        raise_together(self.comm, ConfigError(f"edge values: relation {unknown[0]!r} is none of this graph: "
                                              f"{', '.join(map(str, self.relations))}") if unknown else None)
        agree(self.comm, (wanted, [*weights], [*features]), "relations of edge values")
        made = copy.copy(self)
        made.kept, made.edge_values = Kept(self.kept.state), {
            relation: checked(self.comm, weights.get(relation), features.get(relation),
                              partial(self._ids_of, relation), len(self._edges[relation].indices), f" of {relation}")
            for relation in wanted}
        return made

    def _ids_of(self, relation):
        return self.edge_ids[relation]

    def into(self, node_types: Any) -> tuple[Relation, ...]:
        """Return the relations whose destination type is one of these."""
        return tuple(relation for relation in self.relations if relation[2] in node_types)

    def exchange(self, chosen: Any) -> tuple[Plan, int]:
        """Return the plan of relations out of one type that are aggregated together, and the rows that all ranks fetch.

        Collective.
        """
        fetch = self._fetch(chosen)
        return fetch.schedule.plan, fetch.n_halo

    @property
    def exchanges(self) -> dict[tuple[Relation, ...], tuple[Plan, int]]:
        """What `exchange` returns, of those found so far."""
        return {chosen: (fetch.schedule.plan, fetch.n_halo) for chosen, fetch in self._fetches().items()}

    def prepare(self, chosen: Any) -> list[Plan]:
        """Find what an aggregation over these relations will exchange now, not in its first call. Collective.

        Returns
        -------
        list of Plan
            One a source type.
        """
        return [self.exchange(group)[0] for group in self._grouped(chosen)]

    @property
    def evaluations(self) -> list[Evaluation]:
        return list(dict.fromkeys(self._noted().values()))

    # ---- what is exchanged

    def by_source(self, chosen: Any) -> list[list[LayerGraph]]:
        return [list(self._fetch(group).graphs) for group in self._grouped(chosen)]

    def out_of(self, node_type: str) -> list[Graph]:
        """Return the graphs of the relations out of a type, fetch by fetch. Collective at first."""
        chosen = [relation for relation in self.relations if relation[0] == node_type]
        return [graph for group in self._grouped(chosen) for graph in self._fetch(group).graphs]

    def _grouped(self, chosen):
        """Relations in the graph's order, a list for each fetch: of a source type, or where they are apart of one."""
        groups: dict[Any, list[Relation]] = {}
        for relation in self.relations:
            if relation in chosen:
                groups.setdefault(relation if self.options.apart else relation[0], []).append(relation)
        return list(groups.values())

    def _fetch(self, chosen):
        """What is exchanged for some relations out of one type. Collective at the first call."""
        key, found = tuple(chosen), self._fetches()
        if key not in found:
            with self.kept.state.together():
                found[key] = kernels.outside_buffers(self._found, key)
        return found[key]

    def _fetches(self) -> dict[tuple[Relation, ...], Fetch]:
        return self.kept.get("fetches", dict)

    def _noted(self):
        return self.kept.get("evaluations", dict[Any, Evaluation])

    def _found(self, chosen):
        graphs, n_halo = self._made(chosen)
        n_fetched = max(sum(self.n_edges[relation] for relation in chosen), 1)
        for graph, relation in zip(graphs, chosen):
            source, _, to = graph.relation = relation
            n_src, n_dst, n_edges = self.n_nodes[source], self.n_nodes[to], self.n_edges[relation]
            graph._all_sizes = Sizes(n_src, n_dst, n_edges, n_halo * n_edges // n_fetched, n_dst)
            graph._edge_ids, graph.noted = self._edge_ids.get(relation), self._noted()
            graph.edge_weight, graph.edge_features, graph._negative = self.edge_values.get(relation, EdgeValues())
        return Fetch(graphs[0].schedule, n_halo, graphs)

    def _made(self, chosen):
        """The graphs of some relations out of one type, and the rows that all ranks fetch for these. Collective."""
        agree(self._comm, chosen, f"relations out of {chosen[0][0]!r} that are aggregated together")
        graphs = self._apart(*chosen) if self.options.apart else self._together(chosen)
        return graphs, int(self._comm.allreduce(np.array([graphs[0].n_halo], np.int64))[0])

    def _together(self, chosen):
        """The graphs of relations whose rows one fetch brings, whose blocks have all their edges. Collective."""
        ids = self.node_ids[chosen[0][0]]
        found = needs.find(self._comm, [self._edges[relation] for relation in chosen], ids, len(ids))
        made, graphs = schedule.make(self._comm, found, self.options, self.profile), []
        for place, (source, _, to) in enumerate(chosen):
            graphs.append(Graph(self._comm, made, self.profile, Kept(self.kept.state), options=self.options,
                                n_nodes=self.n_nodes[to], dst_ids=self.node_ids[to], src_ids=self.node_ids[source],
                                edge_ids=None, in_degrees=self.in_degrees[chosen[place]], bipartite=True))
            graphs[-1].place = place
        return graphs

    def _apart(self, relation):
        """The graph of a relation that has fetches of its own. Collective."""
        to, own = self.node_ids[relation[2]], self.node_ids[relation[0]]
        return [construct.make(Graph, self._comm, self._edges[relation], to, own, None, len(own), self.options,
                               self.profile)]

    def forget(self) -> None:
        """Free what aggregations found of their exchanges; the next one finds it anew. The same on every rank."""
        self._fetches().clear()

    def wide(self) -> "HeteroGraph":
        """As of `Graph`; it finds its exchanges anew."""
        if self.options.rows == "float32":
            return self
        made = copy.copy(self)
        made.options, made.kept = self.options._replace(rows="float32"), Kept(self.kept.state)
        return made

    def use(self, mode: str) -> None:
        """Aggregate in another mode from here on. The same on every rank."""
        if mode != self.options.mode:
            self.options = self.options._replace(mode=mode)
            self.forget()

    def recover(self) -> None:
        """Make the graphs of the communicator usable again after an aggregation that failed. Collective.

        What they kept, as exchanges and sums of constant rows, is found anew.
        """
        self.kept.state.recover()
