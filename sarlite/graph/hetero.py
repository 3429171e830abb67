"""HeteroGraph: nodes of several types and relations between them, and NodeType: the nodes of one type."""

from collections.abc import Collection, Mapping
from typing import Any, cast

import numpy as np

from sarlite import kernels
from sarlite.comm import CommLike, Communicator, Solo, agree, together, wrap
from sarlite.errors import ConfigError, raise_together
from sarlite.graph import array_checks, frames
from sarlite.graph.array_checks import Relation, TypedParts
from sarlite.graph.graph import Graph
from sarlite.graph.layer_graph import LayerGraph
from sarlite.graph.relation_fetches import Fetch, HeteroParts, build_relations, make_fetch
from sarlite.graph.relational_layer import RelationalLayer
from sarlite.graph.shard import divide_relations
from sarlite.graph.shared_state import SharedState, Unchanging, check_whole
from sarlite.operators.layer_contract import Evaluation, EvaluationLog
from sarlite.profile import Counted, Profile
from sarlite.schedule import schedule
from sarlite.schedule.communicator_state import CommState
from sarlite.schedule.modes import Mode
from sarlite.schedule.needs import Needs
from sarlite.schedule.pieces import Plan
from sarlite.schedule.schedule import Options, Schedule
from sarlite.structure.part_edges_csr import InEdges
from sarlite.tape import Tensor, ops
from sarlite.types import Array, ArrayLike


class HeteroGraph(SharedState, RelationalLayer):
    """One part of a heterogeneous graph, or a whole one. Make one with `from_edges`, `from_pandas` or `from_part`.

    The relations out of a node type are fed by one fetch of the type's rows.

    Parameters
    ----------
    parts : HeteroParts

    Attributes
    ----------
    node_types : tuple of str
    relations : tuple of (source type, name, destination type)
    n_nodes : dict of str to int
        Number of nodes of each type, of all ranks.
    n_edges : dict of relation to int
        Number of edges of each relation, of all ranks.
    node_ids : dict of str to (n,) int64
        Global ids of this rank's rows of each type; the ids of each type start at 0.
    in_degrees : dict of relation to (n_dst,) int64
    edge_ids : dict of relation to (n_edges,) int64
        Index of each of this rank's edges in the relation's edge list. Ids 0, 1, 2, ... are made at each access.
    evaluations : list of Evaluation
        The chosen evaluation orders of the weights of `fn.linear`, with their costs.
    comm : Communicator
    profile : Profile
    memo : Memo
        Results that the ranks computed together: exchanges, evaluations, sums of constant rows.
    options : Options
    names : dict of str to (n,) array
        The caller's names of the nodes of each type, of all ranks, if `from_pandas` made the graph; else empty.
    edge_values : dict of relation to EdgeValues
        Values of some relations' edges from `with_edge_values`.
    """

    def __init__(self, parts: HeteroParts) -> None:
        comm = cast(Communicator, Counted(parts.comm, parts.profile))
        super().__init__(comm, parts.profile, CommState.of(parts.comm))
        self._parts, self.options = parts, parts.options
        self.node_types, self.relations = tuple(parts.node_ids), tuple(parts.in_edges)
        self.node_ids, self.n_nodes, self.n_edges = dict(parts.node_ids), dict(parts.n_nodes), dict(parts.n_edges)
        self.in_degrees = dict(parts.in_degrees)
        self.names, self.edge_values = dict(parts.names), dict(parts.edge_values)

    def __repr__(self) -> str:
        share = f", part {self.comm.rank} of {self.comm.size}, mode {self.options.mode}" if self.comm.size > 1 else ""
        types = ", ".join(f"{len(ids)} {name}" for name, ids in self.node_ids.items())
        n_edges = sum(len(edges.indices) for edges in self._parts.in_edges.values())
        return f"HeteroGraph({types}; {len(self.relations)} relations, {n_edges} edges{share})"

    def __reduce__(self) -> tuple[Any, ...]:
        check_whole(self)
        facts = self._parts._replace(edge_values=self.edge_values)._asdict()
        return _whole, ({name: value for name, value in facts.items() if name not in ("comm", "profile")},)

    # ---- constructors

    @classmethod
    def from_edges(cls, edges: Mapping[Relation, tuple[ArrayLike, ArrayLike]], n_nodes: Mapping[str, int], *, comm: CommLike | None = None,
                   parts: TypedParts = "metis", mode: str | Mode = "sar", prefetch: int = 1, backward: str | None = None,
                   seed: int = 0, row_dtype: str = "float32", peers_at_once: int | None = None) -> "HeteroGraph":
        """Make a graph from edge lists, or this rank's part of a graph that every rank holds. Collective.

        Parameters
        ----------
        edges : dict of (source type, name, destination type) to (src, dst)
            Edge e of a relation goes from node src[e] of its source type to node dst[e] of its destination type:
            (n_edges,) int arrays, or anything with `__array__` or `__dlpack__`. In the same order on every rank.
        n_nodes : dict of str to int
            Number of nodes of each type, with types that are in no relation.
        comm : Communicator, or an mpi4py communicator, optional
            By default the graph is whole.
        parts : {"metis", "fennel", "random", "contiguous"}, or dict of str to (n,) int array, "random" or "contiguous"
            How to divide the nodes. METIS and Fennel divide the nodes of all types together; the other methods divide
            each type. A dict has the division of each type.
        mode, prefetch, backward, row_dtype, peers_at_once
            See `schedule.schedule.Options`. With backward "fetch" each relation has a fetch of its own, and a
            row that several relations need travels once for each. By default gradients are pushed, also with bfloat16
            rows, whose weights of `fn.linear` are by default never inside the message.
        seed : int
            Seed of the method that divides.

        Raises
        ------
        ConfigError, DataError
            On every rank: a relation that is no triple or names an unknown type, an id out of range, parts that do not
            fit, an unknown mode, or edges that differ between ranks. Each rank hashes its own edges.

        Examples
        --------
        >>> from sarlite import HeteroGraph
        >>> HeteroGraph.from_edges({("author", "writes", "paper"): ([0, 1, 1], [0, 0, 1])}, {"author": 2, "paper": 2})
        HeteroGraph(2 author, 2 paper; 1 relations, 3 edges)
        """
        comm = Solo() if comm is None else wrap(comm)
        options = Options(mode, prefetch, backward, row_dtype, peers_at_once)
        options.check(comm)
        edges, n_nodes = together(comm, lambda: array_checks.check_edge_lists(edges, n_nodes))
        if comm.size > 1:
            agree(comm, ([*edges], [*n_nodes.items()], [*edges.values()]), "edges and n_nodes")
        return cls(build_relations(comm, options, *divide_relations(comm, edges, n_nodes, parts, seed)))

    @classmethod
    def from_pandas(cls, edges: Mapping[Relation, Any], src: str = "src", dst: str = "dst", *,
                    nodes: Mapping[str, Any] | None = None, id: str = "id", comm: CommLike | None = None, parts: TypedParts = "metis",
                    mode: str | Mode = "sar", prefetch: int = 1, backward: str | None = None, seed: int = 0,
                    row_dtype: str = "float32", peers_at_once: int | None = None) -> "HeteroGraph":
        """Make a graph from one table of edges per relation, whose nodes have words or integers as ids. Collective.

        Parameters
        ----------
        edges : dict of (source type, name, destination type) to table
            As of `Graph.from_pandas`. Edge values are not read: `edge_ids` index the rows of a relation's table.
        src, dst : str
            Columns with the ids of each edge's source and destination.
        nodes : dict of str to table, optional
            Nodes of some types, in order. The nodes of other types are the ids of their edges in ascending order.
        id : str
            Column of these tables with the nodes' ids.
        comm, parts, mode, prefetch, backward, seed, row_dtype, peers_at_once
            As of `from_edges`.

        Returns
        -------
        HeteroGraph
            Its `ids` are the nodes' ids, by type.

        Raises
        ------
        ConfigError, DataError
            As `from_edges` and `Graph.from_pandas`.
        """
        comm = Solo() if comm is None else wrap(comm)
        lists, names = together(comm, lambda: frames.read_relations(edges, src, dst, nodes or {}, id))
        n_nodes = {name: len(ids) for name, ids in names.items()}
        graph = cls.from_edges(lists, n_nodes, comm=comm, parts=parts, mode=mode, prefetch=prefetch, backward=backward,
                               seed=seed, row_dtype=row_dtype, peers_at_once=peers_at_once)
        return cls(graph._parts._replace(names=names))

    @classmethod
    def from_part(cls, comm: CommLike, edges: Mapping[Relation, tuple[ArrayLike, ArrayLike]], node_ids: Mapping[str, ArrayLike], *,
                  edge_ids: Mapping[Relation, ArrayLike] | None = None, mode: str | Mode = "sar", prefetch: int = 1,
                  backward: str | None = None, row_dtype: str = "float32",
                  peers_at_once: int | None = None) -> "HeteroGraph":
        """Make this rank's part of a graph from its own rows and their in-edges. Collective.

        Rank p owns the row numbers of each type after those of the ranks before it. No array has n_nodes entries.

        Parameters
        ----------
        comm : Communicator, or an mpi4py communicator
        edges : dict of (source type, name, destination type) to (indptr, indices)
            CSR of the in-edges of this rank's rows of the destination type: (n_dst + 1,) int64, and the sources' row
            numbers in the whole graph, ascending in each row. The same relations in the same order on every rank.
        node_ids : dict of str to (n,) int64
            Global ids of this rank's rows of every type, with types that are in no relation.
        edge_ids : dict of relation to (n_edges,) int64, optional
            Global ids of these edges, in the order of a rank's edge values; by default their positions on this rank.
        mode, prefetch, backward, row_dtype, peers_at_once
            As of `from_edges`.

        Raises
        ------
        ConfigError, DataError
            On every rank: as `from_edges`; edges that are no CSR of these rows; ids that are negative or given to two
            rows of a type; types or relations that differ between ranks.
        """
        comm = wrap(comm)
        options = Options(mode, prefetch, backward, row_dtype, peers_at_once)
        options.check(comm)
        in_edges, ids, given_ids = together(comm, lambda: array_checks.check_own_relations(edges, node_ids, edge_ids))
        agree(comm, ([*in_edges], [*ids]), "relations and node types")
        for name, own in ids.items():
            array_checks.check_distinct(comm, f"node_ids[{name!r}]", own)
        parts = build_relations(comm, options, in_edges, ids, given_ids)
        together(comm, lambda: array_checks.check_sources(in_edges, parts.n_nodes))
        return cls(parts)

    def subgraph(self, masks: Mapping[Relation, Array]) -> "HeteroGraph":
        """Return the graph with some edges of the relations of `masks`, and all edges of the others. Collective.

        A mask is (n_edges,) bool, True for each edge that remains, in the order of `in_edges`.
        """
        parts, index = self._parts, dict[Relation, Array]()
        in_edges, edge_ids = dict(parts.in_edges), self.edge_ids
        for relation, mask in masks.items():
            in_edges[relation], index[relation] = in_edges[relation].some(mask)
            edge_ids[relation] = edge_ids[relation][index[relation]]
        graph = build_relations(parts.comm, parts.options, in_edges, parts.node_ids, edge_ids, parts.profile)
        graph = graph._replace(names=parts.names)
        if self.edge_values:
            pairs = {relation: values.subset(index.get(relation, slice(None)))
                     for relation, values in self.edge_values.items()}
            weights = {relation: weight for relation, (weight, _) in pairs.items() if weight is not None}
            features = {relation: of_edges for relation, (_, of_edges) in pairs.items() if of_edges is not None}
            graph = graph.with_values(weights, features)
        return HeteroGraph(graph)

    def with_edge_values(self, weights: Mapping[Relation, ArrayLike] | None = None,
                         features: Mapping[Relation, ArrayLike] | None = None) -> "HeteroGraph":
        """Return this graph with weights and features on the edges of some relations, or without values. Collective.

        Sums within a relation count weights as `Graph.with_edge_values` says; degrees are those of the relation.

        Parameters
        ----------
        weights : dict of relation to (n_edges,) array of numbers, optional
            Weights of the local in-edges: of a part `weights[graph.edge_ids[relation]]`. The same relations on every
            rank.
        features : dict of relation to (n_edges, n_edge_features) array of numbers, optional
            Features of the local in-edges, for messages: `graph.edge_values[relation].features`.

        Returns
        -------
        HeteroGraph
            It makes its exchanges anew. Its batches and message-flow graphs have the edge values.

        Raises
        ------
        ConfigError, ShapeError, DataError
            On every rank: an unknown relation, or as `Graph.with_edge_values`, naming the relation.
        """
        weights, features = weights or {}, features or {}
        wanted = [relation for relation in self.relations if relation in weights or relation in features]
        unknown = [relation for relation in (*weights, *features) if relation not in self.relations]
        raise_together(self.comm, ConfigError(f"edge values: relation {unknown[0]!r} is none of this graph: "
                                              f"{', '.join(map(str, self.relations))}") if unknown else None)
        agree(self.comm, (wanted, [*weights], [*features]), "relations of edge values")
        return HeteroGraph(self._parts.with_values(weights, features))

    def full_precision(self) -> "HeteroGraph":
        """Return the graph whose rows are stored and sent as float32; it makes its exchanges anew."""
        if self.options.row_dtype == "float32":
            return self
        return HeteroGraph(self._parts._replace(options=self.options._replace(row_dtype="float32")))

    # ---- nodes and edges

    @property
    def ids(self) -> dict[str, Array]:
        """The caller's names of this rank's rows of each type; `node_ids` if the nodes have no names."""
        return {name: self.names[name][rows] if self.names else rows for name, rows in self.node_ids.items()}

    @property
    def edge_ids(self) -> dict[Relation, Array]:
        return {relation: self._parts.ids_of(relation) for relation in self.relations}

    def of(self, *node_types: str) -> "NodeType":
        """Return the nodes of one type, or of several different types."""
        for name in node_types:
            if name not in self.n_nodes:
                raise ConfigError(f"node type {name!r} is not one of {', '.join(self.node_types)}")
        if not node_types or len({*node_types}) < len(node_types):
            raise ConfigError(f"node types {node_types}, but each must be there once")
        return NodeType(self, *node_types)

    def in_edges(self, relation: Relation) -> InEdges:
        """Return this part's edges of a relation; their indices are row numbers of sources in the whole graph."""
        return self._parts.in_edges[relation]

    def into(self, node_types: Collection[str]) -> tuple[Relation, ...]:
        """Return the relations whose destination type is one of `node_types`."""
        return tuple(relation for relation in self.relations if relation[2] in node_types)

    def schedule_of(self, needs: Needs) -> Schedule:
        """Return a schedule of other edges between the graph's rows, in its mode, with float32 rows. Collective."""
        options = self.options._replace(row_dtype="float32")
        return schedule.make(self._parts.comm, needs, options, self.profile)

    # ---- exchanges

    @property
    def evaluations(self) -> list[Evaluation]:
        return list(dict.fromkeys(self._evaluation_log.values()))

    @property
    def exchanges(self) -> dict[tuple[Relation, ...], tuple[Plan, int]]:
        """The plan and the number of rows that all ranks fetch, for each set of relations aggregated so far."""
        return {relations: (fetch.schedule.plan, fetch.n_halo) for relations, fetch in self._fetches.items()}

    def prepare(self, chosen: Collection[Relation]) -> list[Plan]:
        """Build the exchanges of an aggregation over some relations before its first call. Collective.

        Returns
        -------
        list of Plan
            One plan a source type.
        """
        return [fetch.schedule.plan for fetch in self._fetches_of(chosen)]

    def by_source(self, chosen: Collection[Relation]) -> list[dict[Relation, LayerGraph]]:
        return [dict(fetch.graphs) for fetch in self._fetches_of(chosen)]

    def out_of(self, node_type: str) -> list[Graph]:
        """Return the graphs of the relations out of a type, fetch by fetch. The first call is collective."""
        chosen = [relation for relation in self.relations if relation[0] == node_type]
        return [graph for fetch in self._fetches_of(chosen) for graph in fetch.graphs.values()]

    def forget(self) -> None:
        """Free the exchanges; the next aggregation builds them again. To be called on every rank."""
        self._fetches.clear()

    def _fetches_of(self, chosen: Collection[Relation]) -> list[Fetch]:
        """Return a fetch for each source type of some relations, or for each relation. Collective at the first call."""
        groups: dict[Relation | str, list[Relation]] = {}
        for relation in self.relations:
            if relation in chosen:
                groups.setdefault(relation if self.options.separate else relation[0], []).append(relation)
        return [self._fetch(tuple(group)) for group in groups.values()]

    def _fetch(self, relations: tuple[Relation, ...]) -> Fetch:
        fetches = self._fetches
        if relations not in fetches:
            with self.memo.state.together():
                fetches[relations] = kernels.outside_buffers(make_fetch, self._parts, relations, self._evaluation_log)
        return fetches[relations]

    @property
    def _fetches(self) -> dict[tuple[Relation, ...], Fetch]:
        return self.memo.get("fetches", dict)

    @property
    def _evaluation_log(self) -> EvaluationLog:
        return self.memo.get("evaluations", dict)


def _whole(facts):
    """Return a whole graph that was pickled."""
    return HeteroGraph(HeteroParts(comm=Solo(), profile=Profile(), **facts))


class NodeType(Unchanging):
    """The nodes of one type or of several types; `nn.Activation`, `nn.BatchNorm` and a `Trainer` use it like a graph.

    The rows and ids of several types follow each other type by type, as at the ends of a relation's links.

    Attributes
    ----------
    graph : HeteroGraph
    node_types : tuple of str
    node_type : str
        The types, joined by "+".
    first : dict of str to int
        Number of each type's first node among `n_nodes`.
    n_nodes : int
        Number of nodes of all ranks.
    n_src, n_dst : int
        Number of rows of this rank.
    src_ids, dst_ids, node_ids : (n_dst,) int64
        One array: global ids of the local rows.
    comm, profile, memo
        Those of the graph.
    part_rows : None
        The rows of the part that the first layer reads, as of a `Batch`; None for all rows.
    """

    part_rows = None

    def __init__(self, graph: HeteroGraph, *node_types: str) -> None:
        self.graph, self.node_types, self.node_type = graph, node_types, "+".join(node_types)
        ends = np.cumsum([graph.n_nodes[name] for name in node_types]).tolist()
        self.first, self.n_nodes = dict(zip(node_types, [0, *ends])), ends[-1]
        ids = [graph.node_ids[name] for name in node_types]
        self.node_ids = self.src_ids = self.dst_ids = ids[0] if len(ids) == 1 else np.concatenate(
            [of_type + first for of_type, first in zip(ids, self.first.values())])
        self.n_src = self.n_dst = len(self.node_ids)
        self.comm, self.profile, self.memo = graph.comm, graph.profile, graph.memo

    def __repr__(self) -> str:
        return f"NodeType({self.node_type!r}, {self.n_dst} of {self.n_nodes} rows)"

    def __reduce__(self) -> tuple[Any, ...]:
        return NodeType, (self.graph, *self.node_types)

    @property
    def options(self) -> Options:
        """Options of the graph."""
        return self.graph.options

    @property
    def mode(self) -> Mode:
        """How rows travel; see `schedule.modes`."""
        return self.graph.options.mode_value

    @property
    def n_edges(self) -> int:
        """Number of this rank's in-edges of all relations."""
        return sum(len(self.graph.in_edges(relation).indices) for relation in self.graph.relations)

    @property
    def n_halo(self) -> int:
        """Number of peers' rows of all types that this rank needs. The first call is collective."""
        graphs = [self.graph.out_of(name) for name in self.graph.node_types]
        return sum(out_of_type[0].n_halo for out_of_type in graphs if out_of_type)

    def layers(self, n: int) -> list[RelationalLayer]:
        """Return the graphs that `n` layers compute on: the `HeteroGraph`, n times."""
        return [self.graph] * n

    def select(self, h: Mapping[str, Tensor]) -> Tensor:
        """Return the rows of the types, (n_dst, ...), from rows by type."""
        return h[self.node_type] if len(self.node_types) == 1 else ops.concat([h[name] for name in self.node_types])

    def schedule_of(self, needs: Needs) -> Schedule:
        """Return a schedule of other edges between the graph's rows, in its mode, with float32 rows. Collective."""
        return self.graph.schedule_of(needs)
