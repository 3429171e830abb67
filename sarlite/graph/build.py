"""Functions that build the data of a Graph, `GraphParts`, from an edge list, a CSR, a matrix, or one rank's rows."""

from typing import NamedTuple, cast

import numpy as np

from sarlite.comm import CommLike, Communicator, Solo, together, wrap
from sarlite.errors import ConfigError
from sarlite.graph.array_checks import Relation, check_array, check_csr, check_distinct
from sarlite.graph.weights import EdgeValues
from sarlite.operators.layer_contract import EvaluationLog
from sarlite.profile import Profile
from sarlite.schedule import needs, schedule
from sarlite.schedule.schedule import Options, Schedule
from sarlite.structure import edges as edge_lists
from sarlite.structure import interop, validation
from sarlite.structure.part_edges_csr import InEdges
from sarlite.types import Array, ArrayLike

DEFAULT = Options()


class GraphParts(NamedTuple):
    """All data that a `Graph` is built from: schedule, ids, degrees and edge values of one rank's part.

    Attributes
    ----------
    comm : Communicator
    schedule : Schedule
    profile : Profile
    options : Options
    n_nodes : int
        Number of destination nodes of the whole graph.
    dst_ids, src_ids : (n_dst,), (n_src,) int64
        Global ids of the local rows; the same array, unless the graph is bipartite.
    edge_ids : (n_edges,) int64, or None
        Global ids of the local in-edges; None if they are 0, 1, 2, ...
    in_degrees : (n_dst,) int64
    added_loops : (n_dst,) bool, or None
        True for each row whose self loop was added to the data.
    bipartite : bool
    ambiguous_edge_count : int
        Number of edges that `from_edges` added, if it dropped as many; else 0. See `LayerGraph`.
    names : (n_nodes,) array, or None
        The caller's names of the nodes of the whole graph.
    edge_values : EdgeValues
        Weights and features of the local in-edges.
    relation : (str, str, str), or None
        The relation of a `HeteroGraph`.
    relation_index : int
        Index of the relation among those that one fetch serves.
    exchanged_sizes : tuple of int, or None
        Numbers of rows and edges of all ranks, an `evaluation.Sizes`; None if the ranks did not count them.
    evaluation_log : EvaluationLog, or None
        Log of the chosen evaluation orders, which the relations of a `HeteroGraph` share.
    """

    comm: Communicator
    schedule: Schedule
    profile: Profile
    options: Options
    n_nodes: int
    dst_ids: Array
    src_ids: Array
    edge_ids: Array | None
    in_degrees: Array
    added_loops: Array | None = None
    bipartite: bool = False
    ambiguous_edge_count: int = 0
    names: Array | None = None
    edge_values: EdgeValues = EdgeValues()
    relation: Relation | None = None
    relation_index: int = 0
    exchanged_sizes: tuple[int, ...] | None = None
    evaluation_log: EvaluationLog | None = None


# ---- whole graphs


def build_from_edges(src: ArrayLike, dst: ArrayLike, n_nodes: int | None = None, *, n_src: int | None = None,
                     n_dst: int | None = None, undirected: bool = False, self_loops: bool = False,
                     deduplicate: bool = False) -> GraphParts:
    """Return the GraphParts (all data that a `Graph` is built from) of a whole graph with edges src[k] -> dst[k] between `n_nodes`
    nodes (None: the largest number + 1). `n_src` and `n_dst` instead make it bipartite. `undirected` adds reversed edges,
    `self_loops` adds self loops, `deduplicate` drops equal edges.
    """
    sources, to = check_array("src", src), check_array("dst", dst)
    if (n_src is None) != (n_dst is None) or (n_src is not None and n_nodes is not None):
        raise ConfigError("n_nodes is missing: pass n_nodes, or both n_src and n_dst for a bipartite graph")
    if n_src is not None:
        if undirected or self_loops:
            raise ConfigError("a bipartite graph has neither reverse edges nor self loops; src and dst are other nodes")
        n_src, n_dst = validation.count("n_src", n_src), validation.count("n_dst", n_dst)
        sources, to = edge_lists.checked_ends(sources, to, n_src, n_dst)
        n_nodes = max(n_src, n_dst)
    elif n_nodes is None:
        sources, to = edge_lists.checked_ends(sources, to, validation.MOST_NODES, validation.MOST_NODES)
        n_nodes = int(max(sources.max(initial=-1), to.max(initial=-1))) + 1
    indptr, indices, origin = edge_lists.csr_by_dst(sources, to, n_nodes, undirected=undirected, self_loops=self_loops,
                                                    deduplicate=deduplicate, edge_index=True)
    if n_dst is not None:
        indptr = indptr[: n_dst + 1]
    added_loops = None
    if self_loops:
        added_loops = np.zeros(n_nodes, bool)
        added_loops[indices[(origin < 0) & (indices == edge_lists.destinations(indptr))]] = True
    parts = _build_whole(indptr, indices, _edge_index(origin, len(sources)), n_src, added_loops)
    n_added = int(np.count_nonzero(origin < 0))
    return parts._replace(ambiguous_edge_count=n_added if len(origin) == len(sources) else 0)


def _edge_index(caller_index: Array, n_caller_edges: int) -> Array:
    """Return each edge's index into the edge values, (n_edges,). `caller_index` has the edge's position in the caller's list of
    `n_caller_edges` edges, or a negative number for an edge that was added. The caller's edges that were not dropped come first, in
    their order; added edges follow.

    Parameters
    ----------
    caller_index : (n_edges,) int array
        Index of each edge in the caller's edge list; negative for an added edge.
    n_caller_edges : int
        Length of the caller's edge list.
    """
    from_caller = caller_index >= 0
    if len(caller_index) == n_caller_edges and from_caller.all():
        return caller_index
    remains = np.zeros(n_caller_edges, bool)
    remains[caller_index[from_caller]] = True
    index = np.empty_like(caller_index)
    index[from_caller] = (np.cumsum(remains) - 1)[caller_index[from_caller]]
    index[~from_caller] = np.arange(np.count_nonzero(remains), len(caller_index))
    return index


def build_from_csr(indptr: object, indices: ArrayLike | None = None, *, edge_index: ArrayLike | None = None,
                   n_src: int | None = None) -> GraphParts:
    """Return the GraphParts (all data that a `Graph` is built from) from a CSR whose row v lists the sources of node v; `indptr`
    may also be a sparse matrix. Entry k has the edge values at edge_index[k] (None: k). `n_src` makes the graph bipartite with that
    many sources.
    """
    if indices is None:
        entries = interop.entries(indptr, "from_csr")
        interop.refuse_weights(entries.values, "from_csr", "Graph.from_scipy(matrix)")
        return _build_from_entries(entries, edge_index, n_src)
    starts, sources = check_csr(cast(ArrayLike, indptr), indices)
    index = None if edge_index is None else validation.permutation(
        "edge_index", check_array("edge_index", edge_index), len(sources))
    return _build_whole(starts, sources, index, n_src)


def build_from_scipy(matrix: object, n_src: int | None = None) -> tuple[GraphParts, Array]:
    """Return (GraphParts, edge weights) from a sparse `matrix`: first all data of a graph with an edge j -> i for each stored entry
    a[i, j]; then the values of these entries. `n_src` makes the graph bipartite with that many sources.
    """
    entries = interop.entries(matrix, "from_scipy")
    parts = _build_from_entries(entries, None, n_src)
    return parts, validation.weights("from_scipy", entries.values, len(entries.columns))


def build_from_networkx(graph: object, weight: str | None = None) -> tuple[GraphParts, Array]:
    """Return (GraphParts, edge weights) from a networkx graph: first all data of an undivided `Graph`; then the weight of each
    edge. `weight` names the edge attribute with the weights; if it is None, the weights are 1, and an attribute "weight" other than
    1 is refused.
    """
    src, dst, weights, names = interop.networkx_edges(graph, "weight" if weight is None else weight)
    if weight is None:
        interop.refuse_weights(weights, "from_networkx", "Graph.from_networkx(graph, weight='weight')")
    return build_from_edges(src, dst, len(names))._replace(names=names), weights


def _build_from_entries(entries: interop.Entries, edge_index: ArrayLike | None, n_src: int | None) -> GraphParts:
    n_dst, n_columns = entries.shape
    if n_src is None and n_dst != n_columns:
        n_src = n_columns
    if entries.indptr is not None:
        return build_from_csr(entries.indptr, entries.columns, edge_index=edge_index, n_src=n_src)
    if edge_index is not None:
        raise ConfigError("edge_index goes only with indptr and indices; "
                          "the edges of a matrix are numbered as matrix.tocoo() has them")
    assert entries.rows is not None  # only a CSR has none
    if n_src is None:
        return build_from_edges(entries.columns, entries.rows, n_dst)
    return build_from_edges(entries.columns, entries.rows, n_src=n_src, n_dst=n_dst)


def _build_whole(indptr: Array, indices: Array, edge_index: Array | None, n_src: int | None,
                 added_loops: Array | None = None) -> GraphParts:
    n_src = None if n_src is None else validation.count("n_src", n_src)
    if edge_index is not None and np.array_equal(edge_index, np.arange(len(edge_index))):
        edge_index = None
    return build_part(Solo(), InEdges(indptr, indices, edge_index, added_loops), n_src=n_src)


# ---- parts of a graph


def build_from_rows(comm: CommLike, options: Options, indptr: ArrayLike, indices: ArrayLike, *, node_ids: ArrayLike | None,
                    src_ids: ArrayLike | None, n_src: int | None, edge_ids: ArrayLike | None,
                    added_loops: ArrayLike | None) -> GraphParts:
    """Return the GraphParts (all data that a `Graph` is built from) of this rank's part. `indptr` and `indices` are the CSR of the
    in-edges of its nodes; indices are row numbers counted over all ranks. Optional ids name the part's nodes, sources and edges;
    `added_loops` is True for each node whose self loop was added to the data. Collective: the ranks first check the arguments
    together.
    """
    comm = wrap(comm)
    options.check(comm)

    def check() -> tuple[InEdges, dict[str, Array | None]]:
        starts, sources = check_csr(indptr, indices)
        ids: dict[str, Array | None] = {}
        for name, argument, n, start in (("node_ids", node_ids, max(len(starts) - 1, 0), 0),
                                         ("src_ids", src_ids, n_src, 0), ("edge_ids", edge_ids, len(sources), -1)):
            array = None if argument is None else check_array(name, argument)
            ids[name] = None if array is None else validation.integers(name, array, length=n, start=start)
        loops = None if added_loops is None else validation.bools(
            "added_loops", check_array("added_loops", added_loops), len(starts) - 1)
        return InEdges(starts, sources, None, loops), ids

    edges, ids = together(comm, check)
    sources = ids["src_ids"]
    if sources is not None and n_src is None:
        n_src = len(sources)
    return build_part(comm, edges, n_src=n_src, options=options, node_ids=ids["node_ids"], src_ids=sources,
                      edge_ids=ids["edge_ids"])


def build_part(comm: Communicator, edges: InEdges, *, node_ids: Array | None = None, src_ids: Array | None = None,
               edge_ids: Array | None = None, n_src: int | None = None, options: Options = DEFAULT,
               profile: Profile | None = None, sorted_by_id: bool = False) -> GraphParts:
    """Plan the exchange of rows between ranks; return the GraphParts (all data of a `Graph`) of this rank's part, which has the
    in-edges `edges`. Optional ids name its nodes, its sources if the graph is bipartite (`n_src` of them), and its edges.
    `sorted_by_id`: edge values stand in the order of the edge ids, if these are 0 .. n - 1 on this rank. Collective.

    Parameters
    ----------
    comm : Communicator
    edges : InEdges
        In-edges of the local rows; sources are row numbers of the whole graph.
    node_ids, src_ids, edge_ids, n_src
        See `Graph.from_part`.
    options : Options
    profile : Profile, optional
        Counters that the graph shares with another graph; by default new counters.
    sorted_by_id : bool
        True if the edge ids are distinct and may be sorted: a rank whose ids are a permutation of 0, 1, 2, ... then
        takes edge values in the order of the ids.
    """
    n_dst, bipartite = edges.n_dst, n_src is not None
    facts = comm.allgather((n_dst, n_src, bipartite, node_ids is None, src_ids is None, edge_ids is None,
                            options.compared))
    if any(fact[2:] != facts[0][2:] for fact in facts):
        raise ConfigError("arguments of a graph differ between ranks: n_src, node_ids, src_ids, edge_ids given or not, "
                          f"{', '.join(Options._fields)}: {[(*fact[2:-1], *fact[-1]) for fact in facts]}")
    for name, ids in (("node_ids", node_ids), ("src_ids", src_ids)):
        if ids is not None:
            check_distinct(comm, name, ids)
    profile = Profile() if profile is None else profile
    dst_ids = _global_ids(comm.rank, [fact[0] for fact in facts], node_ids)
    source_ids = _global_ids(comm.rank, [fact[1] or 0 for fact in facts], src_ids) if bipartite else dst_ids
    sources = (src_ids, n_src) if bipartite else (node_ids, n_dst)
    halo_needs = needs.find(comm, [edges], *sources)
    edges = halo_needs.cuts[0].edges
    if edge_ids is not None and edges.numbers is not None:  # `needs.find` sorted the sources of the rows
        edge_ids, edges = np.asarray(edge_ids)[edges.numbers], edges._replace(numbers=None)
    if sorted_by_id and edge_ids is not None:
        edges, edge_ids = sort_by_id(edges, edge_ids)
    halo_needs = halo_needs._replace(cuts=[halo_needs.cuts[0]._replace(edges=edges)])
    return GraphParts(comm, schedule.make(comm, halo_needs, options, profile, dst_ids), profile, options,
                      n_nodes=sum(fact[0] for fact in facts), dst_ids=dst_ids, src_ids=source_ids, edge_ids=edge_ids,
                      in_degrees=np.diff(edges.indptr), added_loops=edges.added_loops, bipartite=bipartite)


def sort_by_id(edges: InEdges, ids: Array) -> tuple[InEdges, Array | None]:
    """Make the CSR `edges` read edge values that are stored in the order of edge ids, if possible, so that no array of ids is needed. If
    `ids`, the id of each edge, is a permutation of 0 .. n - 1, return (new_edges, None): edge k of `new_edges` reads the value at position
    ids[k]; otherwise return (edges, ids) unchanged.
    """
    if len(ids) and ids.max() != len(ids) - 1:
        return edges, ids
    return (edges if (np.diff(ids) == 1).all() else edges._replace(numbers=ids)), None


def _global_ids(rank: int, counts: list[int], ids: Array | None) -> Array:
    """Return the global ids of this rank's rows: `ids`, or if None, consecutive row numbers, where rank p has counts[p] rows."""
    first = sum(counts[:rank])
    return np.arange(first, first + counts[rank]) if ids is None else np.asarray(ids, np.int64)
