"""HeteroGraph: nodes of several types, and relations (edge types) between them; NodeType: the nodes of some types."""

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
from sarlite.graph.relation_fetches import HeteroParts, RelationFetch, build_relations, make_fetch
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
    """A rank's part of a heterogeneous graph: nodes of several types, and the in-edges of each relation.

    On one rank the part is the whole graph. Make one with `from_edges`, `from_pandas` or `from_part`, not with the
    constructor. One fetch of a node type's rows serves all relations out of the type.

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
        Number of in-edges of each of this rank's destination rows.
    edge_ids : dict of relation to (n_edges,) int64
        Index of each of this rank's edges in the relation's edge list.
    evaluations : list of Evaluation
        Evaluation orders that were chosen for the weights of `fn.linear`, with their costs.
    comm : Communicator
    profile : Profile
    memo : Memo
        Results that the ranks computed together: exchanges, evaluation orders, sums of constant rows.
    options : Options
        Mode, prefetch depth and row format of the exchanges.
    names : dict of str to (n,) array
        The caller's names of the nodes of each type, of all ranks, if `from_pandas` made the graph; else empty.
    edge_values : dict of relation to EdgeValues
        Weights and features from `with_edge_values`, of the relations that have any.

    Examples
    --------
    >>> from sarlite import HeteroGraph
    >>> from sarlite.comm import threads
    >>> edges = {("author", "writes", "paper"): ([0, 1, 1], [0, 0, 1])}
    >>> HeteroGraph.from_edges(edges, {"author": 2, "paper": 2})
    HeteroGraph(2 author, 2 paper; 1 relations, 3 edges)

    Two ranks as threads, each with half of the nodes of each type:

    >>> parts = {"author": [0, 1], "paper": [0, 1]}
    >>> threads.run(2, lambda comm: HeteroGraph.from_edges(edges, {"author": 2, "paper": 2}, comm=comm, parts=parts))[0]
    HeteroGraph(1 author, 1 paper; 1 relations, 2 edges, part 0 of 2, mode sar)
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

    def __reduce__(self) -> tuple[object, ...]:
        check_whole(self)
        facts = self._parts._replace(edge_values=self.edge_values)._asdict()
        return _unpickled, ({name: value for name, value in facts.items() if name not in ("comm", "profile")},)

    # ---- constructors

    @classmethod
    def from_edges(cls, edges: Mapping[Relation, tuple[ArrayLike, ArrayLike]], n_nodes: Mapping[str, int], *, comm: CommLike | None = None,
                   parts: TypedParts = "metis", mode: str | Mode = "sar", prefetch: int | None = None, backward: str | None = None,
                   seed: int = 0, row_dtype: str = "float32", peers_at_once: int | None = None) -> "HeteroGraph":
        """Make a graph from {relation: (src, dst)} and the number of nodes of each type. With `comm`, return this rank's part:
        `parts` names a partitioner, or maps a type to each node's rank. Options from `mode` on control the exchange of rows.
        Collective.

        Parameters
        ----------
        edges : dict of (source type, name, destination type) to (src, dst)
            Two (n_edges,) int arrays for each relation, or anything with `__array__` or `__dlpack__`: edge e goes from
            node src[e] of the source type to node dst[e] of the destination type. Every rank passes all edges, in the
            same order.
        n_nodes : dict of str to int
            Number of nodes of each type, including types that are in no relation.
        comm : Communicator, or an mpi4py communicator, optional
            Ranks that divide the graph; by default the graph is not divided.
        parts : {"metis", "fennel", "random", "contiguous"}, or dict of str to (n,) int array, "random" or "contiguous"
            Partitioner, or by node type the rank of each node or a partitioner. METIS and Fennel divide the nodes of
            all types together; "random" and "contiguous" divide the nodes of each type.
        mode : {"sar", "sa", "oneshot", "broadcast"}, or Mode
            Order in which remote rows are fetched and used.
        prefetch, backward
            See `schedule.schedule.Options`. With backward "fetch" each relation has its own fetch, so a row that
            several relations need travels once for each of them. By default gradients are pushed.
        seed : int
            Seed of the partitioner.
        row_dtype, peers_at_once
            See `schedule.schedule.Options`. With rounded rows the weights of `fn.linear` are by default applied after
            the sum, not inside the message.

        Returns
        -------
        HeteroGraph

        Raises
        ------
        ConfigError, DataError
            On every rank: a relation is no triple or names an unknown type, an id is out of range, `parts` does not fit
            the graph, or the mode is unknown. The edges differ between ranks, which the ranks find out by comparing
            hashes.

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
    def from_pandas(cls, edges: Mapping[Relation, object], src: str = "src", dst: str = "dst", *,
                    nodes: Mapping[str, object] | None = None, id: str = "id", on_unknown: str = "refuse",
                    comm: CommLike | None = None, parts: TypedParts = "metis", mode: str | Mode = "sar",
                    prefetch: int | None = None, backward: str | None = None, seed: int = 0, row_dtype: str = "float32",
                    peers_at_once: int | None = None) -> "HeteroGraph":
        """Make a graph from {relation: table of edges}, with node ids in columns `src` and `dst`, and {type: table of nodes}, with
        ids in column `id` (None: nodes are the edges' ends). The arguments from `comm` on are as in `from_edges`. Collective.

        The ids are strings or integers.

        Parameters
        ----------
        edges : dict of (source type, name, destination type) to table
            Tables as in `Graph.from_pandas`. Edge values are not read: `edge_ids` index the rows of a relation's table.
        src, dst : str
            Names of the columns with the ids of each edge's source and destination.
        nodes : dict of str to table, optional
            One row for each node of a type, in the order of the graph's rows. The nodes of a type without a table are
            the ids in its edges, in ascending order.
        id : str
            Name of the column of these tables with the nodes' ids.
        on_unknown : {"refuse", "drop"}
            What happens to an edge with an end that is not in the table of the end's type.
        comm, parts, mode, prefetch, backward, seed, row_dtype, peers_at_once
            See `from_edges`.

        Returns
        -------
        HeteroGraph
            Graph whose `ids` are the nodes' ids, by type.

        Raises
        ------
        ConfigError, DataError
            See `from_edges` and `Graph.from_pandas`.

        Examples
        --------
        >>> from sarlite import HeteroGraph
        >>> likes = {"src": ["ann", "bob"], "dst": ["tea", "tea"]}
        >>> graph = HeteroGraph.from_pandas({("person", "likes", "drink"): likes})
        >>> {name: ids.tolist() for name, ids in graph.ids.items()}
        {'person': ['ann', 'bob'], 'drink': ['tea']}
        """
        comm = Solo() if comm is None else wrap(comm)
        tables = nodes or {}
        lists, names = together(comm, lambda: frames.tables_reader().read_relations(edges, src, dst, tables, id, on_unknown))
        n_nodes = {name: len(ids) for name, ids in names.items()}
        graph = cls.from_edges(lists, n_nodes, comm=comm, parts=parts, mode=mode, prefetch=prefetch, backward=backward,
                               seed=seed, row_dtype=row_dtype, peers_at_once=peers_at_once)
        return cls(graph._parts._replace(names=names))

    @classmethod
    def from_part(cls, comm: CommLike, edges: Mapping[Relation, tuple[ArrayLike, ArrayLike]], node_ids: Mapping[str, ArrayLike], *,
                  edge_ids: Mapping[Relation, ArrayLike] | None = None, mode: str | Mode = "sar", prefetch: int | None = None,
                  backward: str | None = None, row_dtype: str = "float32",
                  peers_at_once: int | None = None) -> "HeteroGraph":
        """Make this rank's part of a graph from {relation: CSR of its nodes' in-edges}, whose indices are row numbers counted over
        all ranks, and the ids of its nodes and edges. Options from `mode` on control the exchange of rows. Collective.

        Row numbers count the nodes of a type on all ranks, rank after rank. No rank holds an array of n_nodes entries.

        Parameters
        ----------
        comm : Communicator, or an mpi4py communicator
        edges : dict of (source type, name, destination type) to (indptr, indices)
            CSR of the in-edges of this rank's rows of the destination type: indptr is (n_dst + 1,) int64, and indices
            are row numbers of sources, ascending in each row. Every rank has the same relations in the same order.
        node_ids : dict of str to (n,) int64
            Global ids of this rank's rows of each type, including types that are in no relation.
        edge_ids : dict of relation to (n_edges,) int64, optional
            Global ids of these edges, by which edge values are indexed; by default their positions on this rank.
        mode, prefetch, backward, row_dtype, peers_at_once
            See `from_edges`.

        Raises
        ------
        ConfigError, DataError
            On every rank: an error of `from_edges`; edges are no CSR of this rank's rows; an id is negative, or two
            rows of a type have the same id; node types or relations differ between ranks.

        Examples
        --------
        Two ranks as threads. Each rank owns one author and one paper, which the other rank's author wrote.

        >>> from sarlite import HeteroGraph
        >>> from sarlite.comm import threads
        >>> def part(comm):
        ...     edges = {("author", "writes", "paper"): ([0, 1], [1 - comm.rank])}
        ...     return HeteroGraph.from_part(comm, edges, {"author": [comm.rank], "paper": [comm.rank]})
        >>> threads.run(2, part)[1]
        HeteroGraph(1 author, 1 paper; 1 relations, 1 edges, part 1 of 2, mode sar)
        """
        comm = wrap(comm)
        options = Options(mode, prefetch, backward, row_dtype, peers_at_once)
        options.check(comm)
        in_edges, ids, explicit_ids = together(comm, lambda: array_checks.check_part_relations(edges, node_ids, edge_ids))
        agree(comm, ([*in_edges], [*ids]), "relations and node types")
        for name, ids_of_type in ids.items():
            array_checks.check_distinct(comm, f"node_ids[{name!r}]", ids_of_type)
        parts = build_relations(comm, options, in_edges, ids, explicit_ids)
        together(comm, lambda: array_checks.check_sources(in_edges, parts.n_nodes))
        return cls(parts)

    def subgraph(self, masks: Mapping[Relation, Array]) -> "HeteroGraph":
        """Return the graph of all nodes with the edges where the relation's mask in `masks` is True, and their edge values; a
        relation without a mask keeps all edges. Collective.

        Parameters
        ----------
        masks : dict of relation to (n_edges,) bool
            True for each edge that remains, in the order of `in_edges`. A relation without a mask keeps all edges.

        Returns
        -------
        HeteroGraph

        Examples
        --------
        >>> import numpy as np
        >>> from sarlite import HeteroGraph
        >>> graph = HeteroGraph.from_edges({("author", "writes", "paper"): ([0, 1], [0, 2])}, {"author": 2, "paper": 3})
        >>> graph.subgraph({("author", "writes", "paper"): np.array([True, False])})
        HeteroGraph(2 author, 3 paper; 1 relations, 1 edges)
        """
        parts, index = self._parts, dict[Relation, Array]()
        in_edges, edge_ids = dict(parts.in_edges), self.edge_ids
        for relation, mask in masks.items():
            in_edges[relation], index[relation] = in_edges[relation].some(mask)
            edge_ids[relation] = edge_ids[relation][index[relation]]
        graph = build_relations(parts.comm, parts.options, in_edges, parts.node_ids, edge_ids, parts.profile)
        graph = graph._replace(names=parts.names)
        if self.edge_values:
            subsets = {relation: edge_values.subset(index.get(relation, slice(None)))
                       for relation, edge_values in self.edge_values.items()}
            values: list[Any] = [{relation: arrays[kind] for relation, arrays in subsets.items()
                                  if arrays[kind] is not None} for kind in range(3)]
            graph = graph.with_values(*values)
        return HeteroGraph(graph)

    def with_edge_values(self, weights: Mapping[Relation, ArrayLike] | None = None,
                         features: Mapping[Relation, ArrayLike] | None = None,
                         times: Mapping[Relation, ArrayLike] | None = None) -> "HeteroGraph":
        """Return a copy of this graph with edge values {relation: array}: weights, features and times of the local in-edges. A
        relation that is in none of the dicts has no values of that kind, also if this graph has some. Collective.

        Sums within a relation multiply by the weights as `Graph.with_edge_values` says; degrees are sums of the
        relation's weights.

        Parameters
        ----------
        weights : dict of relation to (n_edges,) array of numbers, optional
            Weights of the local in-edges; for a part these are `weights[graph.edge_ids[relation]]`. Every rank passes
            the same relations.
        features : dict of relation to (n_edges, n_edge_features) array of numbers, optional
            Features of the local in-edges, which messages read as `graph.edge_values[relation].features`.
        times : dict of relation to (n_edges,) array of whole numbers or dates, optional
            Times of the local in-edges, for `minibatch.Temporal`. Dates become nanoseconds since 1970.

        Returns
        -------
        HeteroGraph
            Graph whose exchanges are built again when they are next needed. Its batches and message-flow graphs have
            the edge values too.

        Raises
        ------
        ConfigError, ShapeError, DataError
            On every rank: a relation is unknown, or an error of `Graph.with_edge_values`, which names the relation.

        Examples
        --------
        >>> from sarlite import HeteroGraph
        >>> writes = ("author", "writes", "paper")
        >>> graph = HeteroGraph.from_edges({writes: ([0, 1], [0, 0])}, {"author": 2, "paper": 1})
        >>> graph.with_edge_values({writes: [0.5, 2.0]}).edge_values[writes].weight.tolist()
        [0.5, 2.0]
        """
        every = weights, features, times = weights or {}, features or {}, times or {}
        wanted = [relation for relation in self.relations if any(relation in values for values in every)]
        unknown = [relation for values in every for relation in values if relation not in self.relations]
        raise_together(self.comm, ConfigError(f"edge values: relation {unknown[0]!r} is not a relation of this graph: "
                                              f"{', '.join(map(str, self.relations))}") if unknown else None)
        agree(self.comm, (wanted, *map(list, every)), "relations of edge values")
        return HeteroGraph(self._parts.with_values(weights, features, times))

    def full_precision(self) -> "HeteroGraph":
        """Return this graph with row_dtype "float32", so that rows are exchanged without rounding; if its row_dtype is another, the
        copy builds its own exchanges.
        """
        if self.options.row_dtype == "float32":
            return self
        return HeteroGraph(self._parts._replace(options=self.options._replace(row_dtype="float32")))

    # ---- nodes and edges

    @property
    def ids(self) -> dict[str, Array]:
        """{node type: ids of this rank's rows}: the ids that the caller gave, such as strings, or `node_ids` if the caller gave none."""
        return {name: self.names[name][rows] if self.names else rows for name, rows in self.node_ids.items()}

    @property
    def edge_ids(self) -> dict[Relation, Array]:
        return {relation: self._parts.ids_of(relation) for relation in self.relations}

    def of(self, *node_types: str) -> "NodeType":
        """Return a NodeType: the nodes of the named types as one set, which stands for a graph in a `Trainer` and in a model.

        Parameters
        ----------
        *node_types : str
            Names of the types; the rows of the first type come first.

        Returns
        -------
        NodeType

        Raises
        ------
        ConfigError
            A type is unknown, no type is named, or a type is named twice.

        Examples
        --------
        >>> from sarlite import HeteroGraph
        >>> graph = HeteroGraph.from_edges({("author", "writes", "paper"): ([0, 1], [0, 2])}, {"author": 2, "paper": 3})
        >>> graph.of("paper"), graph.of("author", "paper")
        (NodeType('paper', 3 of 3 rows), NodeType('author+paper', 5 of 5 rows))
        """
        for name in node_types:
            if name not in self.n_nodes:
                raise ConfigError(f"node type {name!r} is not one of {', '.join(self.node_types)}")
        if not node_types or len({*node_types}) < len(node_types):
            raise ConfigError(f"node types {node_types}: name at least one type, and each type once")
        return NodeType(self, *node_types)

    def in_edges(self, relation: Relation) -> InEdges:
        """Return the in-edges of this rank's nodes in one relation as a CSR; indices are row numbers of sources, counted over all ranks."""
        return self._parts.in_edges[relation]

    def into(self, node_types: Collection[str]) -> tuple[Relation, ...]:
        """Return the relations whose destination type is one of `node_types`."""
        return tuple(relation for relation in self.relations if relation[2] in node_types)

    def schedule_of(self, needs: Needs) -> Schedule:
        """Return a Schedule, which exchanges rows in this graph's mode, for edges other than the graph's own between the same
        nodes. `needs` has these edges and lists the rows of other ranks that they need. Collective.
        """
        options = self.options._replace(row_dtype="float32")
        return schedule.make(self._parts.comm, needs, options, self.profile)

    # ---- exchanges

    @property
    def evaluations(self) -> list[Evaluation]:
        return list(dict.fromkeys(self._evaluation_log.values()))

    @property
    def exchanges(self) -> dict[tuple[Relation, ...], tuple[Plan, int]]:
        """Exchanges of rows built so far, as {relations: (plan, n_halo)}. The key is a tuple of the relations that share one fetch
        of source rows; `plan` is the plan of this fetch, and `n_halo` its number of halo rows (rows of other ranks), summed over
        all ranks.
        """
        return {relations: (fetch.schedule.plan, fetch.n_halo) for relations, fetch in self._fetches.items()}

    def prepare(self, chosen: Collection[Relation]) -> list[Plan]:
        """Build the exchanges of rows that an aggregation over the relations in `chosen` uses, unless they exist; return a list
        with the plan of each exchange. Collective.

        Returns
        -------
        list of Plan
            One plan for each fetch.
        """
        return [fetch.schedule.plan for fetch in self._fetches_of(chosen)]

    def by_source(self, chosen: Collection[Relation]) -> list[dict[Relation, LayerGraph]]:
        """Return the graphs of the relations in `chosen` as a list of dicts {relation: graph}, a dict for each exchange: the
        relations in a dict share one fetch of source rows. The first call is collective.
        """
        return [dict(fetch.graphs) for fetch in self._fetches_of(chosen)]

    def out_of(self, node_type: str) -> list[Graph]:
        """Return a list with the graph of each relation whose source type is `node_type`. The first call is collective."""
        chosen = [relation for relation in self.relations if relation[0] == node_type]
        return [graph for fetch in self._fetches_of(chosen) for graph in fetch.graphs.values()]

    def forget(self) -> None:
        """Free the memory of the exchanges; the next aggregation builds them again. Every rank must call `forget`."""
        self._fetches.clear()

    def _fetches_of(self, chosen: Collection[Relation]) -> list[RelationFetch]:
        """Return a RelationFetch for each set of relations in `chosen` that share one fetch of source rows: all relations out of
        one node type, or with `options.separate` each relation alone. The first call is collective.
        """
        groups: dict[Relation | str, list[Relation]] = {}
        for relation in self.relations:
            if relation in chosen:
                groups.setdefault(relation if self.options.separate else relation[0], []).append(relation)
        return [self._fetch(tuple(group)) for group in groups.values()]

    def _fetch(self, relations: tuple[Relation, ...]) -> RelationFetch:
        fetches = self._fetches
        if relations not in fetches:
            with self.memo.state.together():
                fetches[relations] = kernels.outside_buffers(make_fetch, self._parts, relations, self._evaluation_log)
        return fetches[relations]

    @property
    def _fetches(self) -> dict[tuple[Relation, ...], RelationFetch]:
        return self.memo.get("fetches", dict)

    @property
    def _evaluation_log(self) -> EvaluationLog:
        return self.memo.get("evaluations", dict)


def _unpickled(facts: dict[str, Any]) -> HeteroGraph:
    """Rebuild an undivided graph from what `HeteroGraph.__reduce__` pickled: `facts` are fields of HeteroParts, {name: value}."""
    return HeteroGraph(HeteroParts(comm=Solo(), profile=Profile(), **facts))


class NodeType(Unchanging):
    """Nodes of one type or of several types of a `HeteroGraph`, as one set of rows, type after type. A trainer, an activation or a
    norm uses it in place of a graph.

    A NodeType stands for a graph in a `Trainer`, in `nn.Activation` and in `nn.BatchNorm`. The rows of several types
    stand one type after the other, and ids count the nodes in the same order.

    Parameters
    ----------
    graph : HeteroGraph
    *node_types : str

    Attributes
    ----------
    graph : HeteroGraph
    node_types : tuple of str
    node_type : str
        Names of the types, joined by "+".
    first : dict of str to int
        Id of each type's first node.
    n_nodes : int
        Number of nodes of these types, of all ranks.
    n_src, n_dst : int
        Number of rows of this rank.
    src_ids, dst_ids, node_ids : (n_dst,) int64
        Global ids of the local rows; three names of one array.
    comm, profile, memo
        Attributes of `graph`.
    part_rows : None
        None, because the first layer reads all rows of the part. A `Batch` has the numbers of some rows here.

    Examples
    --------
    >>> from sarlite import HeteroGraph
    >>> graph = HeteroGraph.from_edges({("author", "writes", "paper"): ([0, 1], [0, 2])}, {"author": 2, "paper": 3})
    >>> both = graph.of("author", "paper")
    >>> both.first, both.node_ids.tolist()
    ({'author': 0, 'paper': 2}, [0, 1, 2, 3, 4])
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

    def __reduce__(self) -> tuple[object, ...]:
        return NodeType, (self.graph, *self.node_types)

    @property
    def options(self) -> Options:
        """Options of the graph: mode, prefetch depth and row format of the exchanges."""
        return self.graph.options

    @property
    def mode(self) -> Mode:
        """Mode of the exchanges: the order of fetching and using remote rows; see `schedule.modes`."""
        return self.graph.options.mode_value

    @property
    def n_edges(self) -> int:
        """Number of this rank's in-edges, summed over all relations of the graph."""
        return sum(len(self.graph.in_edges(relation).indices) for relation in self.graph.relations)

    @property
    def n_halo(self) -> int:
        """Number of halo rows (rows of other ranks that this rank needs) that have one of these node types. The first call is
        collective.
        """
        graphs = [self.graph.out_of(name) for name in self.graph.node_types]
        return sum(out_of_type[0].n_halo for out_of_type in graphs if out_of_type)

    def layers(self, n: int) -> list[RelationalLayer]:
        """Return a list with the graph that each of `n` layers computes on: the `HeteroGraph`, n times."""
        return [self.graph] * n

    def select(self, h: Mapping[str, Tensor]) -> Tensor:
        """Return the rows of this set's types as one tensor, (n_dst, ...), type after type, from `h`, {node type: rows}."""
        return h[self.node_type] if len(self.node_types) == 1 else ops.concat([h[name] for name in self.node_types])

    def schedule_of(self, needs: Needs) -> Schedule:
        """Return a Schedule, which exchanges rows in the graph's mode, for edges other than the graph's own between its nodes.
        `needs` has these edges and lists the rows of other ranks that they need. Collective.
        """
        return self.graph.schedule_of(needs)
