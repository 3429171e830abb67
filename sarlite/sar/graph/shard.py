"""A whole graph divided among ranks. A method of `Graph`."""

from typing import TYPE_CHECKING, Any

import numpy as np

from sarlite.comm import agree, together, wrap
from sarlite.errors import ConfigError
from sarlite.graph import order as orders
from sarlite.graph import partition
from sarlite.sar.graph.construct import from_part, outside

if TYPE_CHECKING:
    from sarlite.sar.graph.graph import Graph


def shard(graph: "Graph", comm: Any, parts: Any = "metis", *, src_parts: Any = None, order: Any = None, mode: str = "sar",
          prefetch: int = 1, backward: str | None = None, columns: int = 1, seed: int = 0) -> "Graph":
    """Return this rank's part of a whole graph that every rank holds. Collective.

    Parameters
    ----------
    comm : Communicator, or an mpi4py communicator
    parts : {"metis", "fennel", "random", "contiguous"} or (n_nodes,) int array
        How to divide the nodes, of a bipartite graph the destinations; computed on rank 0.
    src_parts : as `parts`, optional
        Of a bipartite graph, how to divide the sources; by default as `parts`, which must then name a method.
    order : {"metis", "cluster"} or (n_nodes,) int array, optional
        A permutation of the nodes: each part's rows stand in this order; computed on rank 0. By default ids ascend. Not for
        bipartite graphs.
    mode, prefetch, backward, columns
        As `Graph.from_part` has them.

    Returns
    -------
    Graph
        Its rows are those of `node_ids`; of a bipartite graph `dst_ids` and `src_ids`.

    Raises
    ------
    ConfigError, DataError
        On every rank: an unknown method; parts or an order that do not fit the graph; a graph, parts or an order that differ between
        ranks, of which each hashes its own.
    """
    if graph.comm.size > 1:
        raise ConfigError("only a whole graph can be sharded")
    comm = wrap(comm)
    edges = graph.in_edges()
    if comm.size > 1:
        agree(comm, (edges, graph.n_src), "graph")
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
    edge_ids = where if edges.numbers is None else edges.numbers[where].astype(np.int64)
    made = from_part(type(graph), comm, indptr, new_number[edges.indices[where]], node_ids=own, src_ids=src_ids, edge_ids=edge_ids,
                     added_loops=None if edges.added_loops is None else edges.added_loops[own], mode=mode, prefetch=prefetch,
                     backward=backward, columns=columns)
    values = [None if array is None else array[made.edge_ids] for array in (graph.edge_weight, graph.edge_features)]
    return made if all(array is None for array in values) else made.with_edge_values(*values)


def _parts(comm, parts, n, name, divide):
    """The part of each of n nodes, the same on every rank."""
    if isinstance(parts, str):
        method = parts
        parts = on_root(comm, lambda: divide(method))
    parts = together(comm, lambda: partition.check_parts(outside(name, parts), n, comm.size, "shard"))
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
        found = on_root(comm, lambda: partition.partition(*whole, comm.size, "metis", balance="nodes", seed=seed))
        parts, both = found[:n_dst], found[n_dst:]
    sides = []
    for name, given, n in (("parts", parts, n_dst), ("src_parts", both, n_src)):
        def divide(method, n=n):
            if method in partition.BALANCED:
                raise ConfigError("metis divides both sides of a bipartite graph or none" if method == "metis" else
                                  f"{method} divides no bipartite graph")
            return partition.partition(np.zeros(n + 1, np.int64), np.zeros(0, np.int64), comm.size, method, seed=seed)
        sides.append(_parts(comm, given, n, name, divide))
    return sides


def _order(comm, edges, order, seed):
    if isinstance(order, str):
        orders.check_method(order)
        method = order
        order = on_root(comm, lambda: orders.order(*edges[:2], method, seed=seed))
    order = together(comm, lambda: orders.check_order(outside("order", order), edges.n_dst, "shard"))
    agree(comm, order, "order")
    return order


def _row_numbers(comm, parts, order):
    """The row number of each node: by part, and in a part by the order or the id."""
    by_part = np.argsort(parts, kind="stable") if order is None else order[np.argsort(parts[order], kind="stable")]
    numbers = np.empty(len(parts), np.int32 if len(parts) < 2**31 else np.int64)
    numbers[by_part] = np.arange(len(parts))
    return numbers


def on_root(comm, action):
    """Run `action` on rank 0 and return its result on every rank; whatever it raises is raised on every rank. Collective."""
    return comm.bcast(together(comm, lambda: action() if comm.rank == 0 else None))
