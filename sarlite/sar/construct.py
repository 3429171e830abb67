"""How graphs are made: from edges, from a CSR, from a rank's own rows, and by dividing a whole graph. Methods of `Graph`."""

from typing import TYPE_CHECKING, Any

import numpy as np

from sarlite.comm import Solo, agree, together, wrap
from sarlite.errors import ConfigError, DataError, raise_together
from sarlite.graph import edges as edge_lists
from sarlite.graph import order as orders
from sarlite.graph import partition
from sarlite.graph.part import InEdges
from sarlite.profile import Profile
from sarlite.sar import plan, schedule
from sarlite.tape.engine import as_array

if TYPE_CHECKING:
    from sarlite.sar.graph import Graph


def from_edges(cls: Any, src: Any, dst: Any, n_nodes: int | None = None, *, n_src: int | None = None, n_dst: int | None = None,
               undirected: bool = False, self_loops: bool = False, deduplicate: bool = False) -> "Graph":
    """Make a whole graph from an edge list.

    Parameters
    ----------
    src, dst : (n_edges,) int array, or anything with `__array__` or `__dlpack__`
        Edge e goes from src[e] to dst[e]; edge values follow this order.
    n_nodes : int, optional
        By default one more than the largest index.
    n_src, n_dst : int, optional
        Given both, the graph is bipartite: sources are numbered 0 .. n_src, destinations, other nodes, 0 .. n_dst.
    undirected, self_loops, deduplicate : bool
        Add each edge's reverse, add the self loops that miss, keep one of equal edges.
        Edges are then numbered anew, in order of (dst, src). The first two are not for bipartite graphs.

    Returns
    -------
    Graph

    Raises
    ------
    ConfigError
        n_nodes beside n_src and n_dst, one of these alone, or a reverse or self loop asked of a bipartite graph.
    DataError
        An index out of range, or src and dst of different lengths.
    """
    src, dst = as_array(src), as_array(dst)
    changes = dict(undirected=undirected, self_loops=self_loops, deduplicate=deduplicate)
    if (n_src is None) != (n_dst is None) or (n_src is not None and n_nodes is not None):
        raise ConfigError("give n_nodes, or both n_src and n_dst for a bipartite graph")
    if n_src is not None:
        return _bipartite(cls, src, dst, n_src, n_dst, **changes)
    if n_nodes is None:
        n_nodes = int(max(src.max(initial=-1), dst.max(initial=-1))) + 1
    indptr, indices, edge_index = edge_lists.csr_by_dst(src, dst, n_nodes, **changes, edge_index=True)
    return _whole(cls, indptr, indices, None if any(changes.values()) else edge_index)


def _bipartite(cls, src, dst, n_src, n_dst, undirected, self_loops, deduplicate):
    if undirected or self_loops:
        raise ConfigError("a bipartite graph has neither reverse edges nor self loops; src and dst are other nodes")
    for name, ids, n in (("src", src, n_src), ("dst", dst, n_dst)):
        if ids.size and ids.dtype.kind in "iu" and (ids.min() < 0 or ids.max() >= n):
            at = int(np.argmax((ids < 0) | (ids >= n)))
            raise DataError(f"{name}: node id {ids[at]} at position {at} is outside 0 <= id < {n}")
    indptr, indices, edge_index = edge_lists.csr_by_dst(src, dst, max(n_src, n_dst), deduplicate=deduplicate, edge_index=True)
    return _whole(cls, indptr[: n_dst + 1], indices, None if deduplicate else edge_index, n_src)


def from_csr(cls: Any, indptr: Any, indices: Any = None, *, edge_index: Any = None, n_src: int | None = None) -> "Graph":
    """Make a whole graph from a CSR by destination: row i lists the sources of i's in-edges.

    Parameters
    ----------
    indptr, indices : (n_dst + 1,) and (n_edges,) int arrays, or one SciPy sparse array or matrix alone
        Of a SciPy array a, a[i, j] is the edge from j to i. Borrowed.
    edge_index : (n_edges,) int array, optional
        Each entry's index into edge values, each once; by default its position.
    n_src : int, optional
        Given, the graph is bipartite: sources are numbered 0 .. n_src. A SciPy array that is not square is.

    Returns
    -------
    Graph

    Raises
    ------
    DataError
        An index out of range, or an indptr that does not ascend.
    """
    if indices is None:
        matrix = indptr.tocsr()
        if matrix.shape[0] != matrix.shape[1] and n_src is None:
            n_src = matrix.shape[1]
        indptr, indices = matrix.indptr, matrix.indices
    indptr, indices = as_array(indptr).astype(np.int64, copy=False), as_array(indices)
    if edge_index is not None:
        edge_index = as_array(edge_index)
        if edge_index.dtype.kind not in "iu" or not np.array_equal(np.sort(edge_index), np.arange(len(indices))):
            raise DataError(f"edge_index: expected each of 0..{len(indices) - 1} once, one an edge")
    return _whole(cls, indptr, indices, edge_index, n_src)


def _whole(cls, indptr, indices, edge_index, n_src=None):
    if edge_index is not None and np.array_equal(edge_index, np.arange(len(edge_index))):
        edge_index = None
    return _make(cls, Solo(), InEdges(indptr, indices, edge_index), None, None, None, n_src)


def from_part(cls: Any, comm: Any, indptr: Any, indices: Any, *, node_ids: Any = None, src_ids: Any = None, n_src: int | None = None,
              edge_ids: Any = None, added_loops: Any = None, mode: str = "sar", prefetch: int = 1) -> "Graph":
    """Make this rank's part of a graph from its own rows. Collective.

    Rank p owns the row numbers after those of the ranks before it, as many as it has destination rows. Nothing here is O(n_nodes).

    Parameters
    ----------
    comm : Communicator, or an mpi4py communicator
    indptr, indices : (n_local + 1,) int64, (n_edges,) int
        In-edges of the local nodes; indices are row numbers of sources in the whole graph.
    node_ids : (n_local,) int64, optional
        Global ids of the local rows, which name them in dropout, ties and results; by default their row numbers.
    src_ids, n_src : (n_src,) int64 and int, optional
        Of a bipartite graph: global ids of the sources that this rank owns, numbered likewise by rank, and how many; n_src alone is
        enough where ids are row numbers.
    edge_ids : (n_edges,) int64, optional
        Global ids of the local in-edges, for edge values; -1 for an added loop.
    added_loops : (n_local,) bool, optional
        Whether a row's self loop was added to the data.
    mode : {"sar", "sa", "oneshot"}
    prefetch : int
        Peers' rows to fetch ahead, by a thread; 0 fetches when the rows are used.

    Returns
    -------
    Graph

    Raises
    ------
    ConfigError, DataError
        On every rank together.
    """
    comm = wrap(comm)
    schedule.check_mode(comm, mode, prefetch)
    indptr, indices = as_array(indptr).astype(np.int64, copy=False), as_array(indices)
    error = next(filter(None, (_find_ids_error(name, ids, n) for name, ids, n in (
        ("node_ids", node_ids, len(indptr) - 1), ("src_ids", src_ids, n_src), ("edge_ids", edge_ids, len(indices))))), None)
    raise_together(comm, error)
    if src_ids is not None and n_src is None:
        n_src = len(src_ids)
    edges = InEdges(indptr, indices, None, None if added_loops is None else as_array(added_loops))
    return _make(cls, comm, edges, node_ids, src_ids, edge_ids, n_src, mode, prefetch)


def _find_ids_error(name, ids, n):
    if ids is None or (getattr(ids, "ndim", 0) == 1 and ids.dtype.kind in "iu" and n in (None, len(ids))):
        return None
    return DataError(f"{name}: expected {n} integers, found shape {np.shape(ids)}, dtype {getattr(ids, 'dtype', type(ids).__name__)}")


def _make(cls, comm, edges, node_ids, src_ids, edge_ids, n_src, mode="sar", prefetch=1):
    """Exchange what ranks need of each other, and make the Graph. Collective."""
    n_dst, bipartite = edges.n_dst, n_src is not None
    facts = comm.allgather((n_dst, bipartite, node_ids is None, src_ids is None, edge_ids is None, mode, prefetch))
    if any(fact[1:] != facts[0][1:] for fact in facts):
        raise ConfigError("ranks disagree on what makes their graph: n_src, node_ids, src_ids, edge_ids given or not, mode, prefetch: "
                          f"{[fact[1:] for fact in facts]}")
    first, n_nodes = sum(fact[0] for fact in facts[: comm.rank]), sum(fact[0] for fact in facts)
    dst_ids = np.arange(first, first + n_dst) if node_ids is None else np.asarray(node_ids, np.int64)
    given = src_ids if bipartite else node_ids
    exchange = plan.build(comm, [edges], given, n_src if bipartite else n_dst)
    edges = exchange.cuts[0].edges
    if edge_ids is not None and edges.numbers is not None:  # rows were put in order
        edge_ids, edges = np.asarray(edge_ids)[edges.numbers], edges._replace(numbers=None)
        exchange = exchange._replace(cuts=[exchange.cuts[0]._replace(edges=edges)])
    profile = Profile()
    made = schedule.make(comm, exchange, mode, prefetch, profile)
    return cls(comm, made, profile, n_nodes=n_nodes, dst_ids=dst_ids, src_ids=exchange.src_ids[comm.rank] if bipartite else dst_ids,
               edge_ids=edge_ids, in_degrees=np.diff(edges.indptr), added_loops=edges.added_loops, bipartite=bipartite)


def shard(graph: "Graph", comm: Any, parts: Any = "metis", *, src_parts: Any = None, order: Any = None, mode: str = "sar",
          prefetch: int = 1, seed: int = 0) -> "Graph":
    """Return this rank's part of a whole graph that every rank holds. Collective.

    Parameters
    ----------
    comm : Communicator, or an mpi4py communicator
    parts : {"metis", "random", "contiguous"} or (n_nodes,) int array
        How to divide the nodes, of a bipartite graph the destinations; computed on rank 0.
    src_parts : as `parts`, optional
        Of a bipartite graph, how to divide the sources; by default as `parts`, which must then name a method.
    order : {"metis"} or (n_nodes,) int array, optional
        A permutation of the nodes: each part's rows stand in this order; computed on rank 0. By default ids ascend. Not for
        bipartite graphs.

    Returns
    -------
    Graph
        Its rows are those of `node_ids`; of a bipartite graph `dst_ids` and `src_ids`.

    Raises
    ------
    ConfigError, DataError
        On every rank: an unknown method; parts or an order that do not fit the graph, or differ between ranks.
    """
    if graph.comm.size > 1:
        raise ConfigError("only a whole graph can be sharded")
    comm = wrap(comm)
    edges = graph.in_edges()
    agree(comm, tuple(given if isinstance(given, str) else type(given).__name__ for given in (parts, src_parts, order)), "parts and order")
    if graph.bipartite:
        if order is not None:
            raise ConfigError("order: a bipartite graph's rows stand in the order of their ids")
        parts, src_parts = _bipartite_parts(comm, edges, graph.n_src, parts, src_parts, seed)
    elif src_parts is not None:
        raise ConfigError("src_parts: only a bipartite graph has sources of their own")
    else:
        parts = _parts(comm, parts, graph.n_dst, "parts", lambda method: partition.partition(*edges[:2], comm.size, method, seed=seed))
    if order is None:
        own = np.flatnonzero(parts == comm.rank)
    else:
        order = _order(comm, edges, order, seed)
        own = order[parts[order] == comm.rank]
    new_number = _row_numbers(comm, parts if src_parts is None else src_parts, order)
    lengths = np.diff(edges.indptr)[own]
    indptr = np.concatenate([[0], np.cumsum(lengths)])
    where = np.repeat(edges.indptr[own] - indptr[:-1], lengths) + np.arange(indptr[-1])
    src_ids = None if src_parts is None else np.flatnonzero(src_parts == comm.rank)
    return from_part(type(graph), comm, indptr, new_number[edges.indices[where]], node_ids=own, src_ids=src_ids,
                     edge_ids=where if edges.numbers is None else edges.numbers[where].astype(np.int64),
                     added_loops=None if edges.added_loops is None else edges.added_loops[own], mode=mode, prefetch=prefetch)


def _parts(comm, parts, n, name, divide):
    """The part of each of n nodes, the same on every rank."""
    if isinstance(parts, str):
        method = parts
        parts = _on_root(comm, lambda: divide(method))
    parts = together(comm, lambda: partition.check_parts(as_array(parts), n, comm.size, "shard"))
    agree(comm, parts, name)
    return parts


def _bipartite_parts(comm, edges, n_src, parts, src_parts, seed):
    """Divide both sides; METIS divides the graph of all nodes, sources after destinations."""
    n_dst, both = edges.n_dst, parts if src_parts is None else src_parts
    if not isinstance(both, str):
        if src_parts is None:
            raise ConfigError("src_parts: a bipartite graph's sources need a division too")
    if all(isinstance(given, str) and given == "metis" for given in (parts, both)):
        whole = np.concatenate([edges.indptr, np.full(n_src, edges.indptr[-1])]), edges.indices.astype(np.int64) + n_dst
        found = _on_root(comm, lambda: partition.partition(*whole, comm.size, "metis", seed=seed))
        parts, both = found[:n_dst], found[n_dst:]
    sides = []
    for name, given, n in (("parts", parts, n_dst), ("src_parts", both, n_src)):
        def divide(method, n=n):
            if method == "metis":
                raise ConfigError("metis divides both sides of a bipartite graph or none")
            return partition.partition(np.zeros(n + 1, np.int64), np.zeros(0, np.int64), comm.size, method, seed=seed)
        sides.append(_parts(comm, given, n, name, divide))
    return sides


def _order(comm, edges, order, seed):
    if isinstance(order, str):
        orders.check_method(order)
        method = order
        order = _on_root(comm, lambda: orders.order(*edges[:2], method, seed=seed))
    order = together(comm, lambda: orders.check_order(as_array(order), edges.n_dst, "shard"))
    agree(comm, order, "order")
    return order


def _row_numbers(comm, parts, order):
    """The row number of each node: by part, and in a part by the order or the id."""
    by_part = np.argsort(parts, kind="stable") if order is None else order[np.argsort(parts[order], kind="stable")]
    numbers = np.empty(len(parts), np.int32 if len(parts) < 2**31 else np.int64)
    numbers[by_part] = np.arange(len(parts))
    return numbers


def _on_root(comm, action):
    """Run `action` on rank 0 and return its result on every rank; whatever it raises is raised on every rank. Collective."""
    return comm.bcast(together(comm, lambda: action() if comm.rank == 0 else None))
