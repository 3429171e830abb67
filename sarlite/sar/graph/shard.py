"""Whole graphs divided among ranks: a graph of one relation, and the edge lists of several."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from sarlite.comm import agree, together, wrap
from sarlite.errors import ConfigError
from sarlite.graph import edges as edge_lists
from sarlite.graph import order as orders
from sarlite.graph import partition, typed
from sarlite.graph.part import InEdges
from sarlite.sar.graph.construct import in_order_of_ids, make, outside
from sarlite.sar.schedule.schedule import Options
from sarlite.types import Array

if TYPE_CHECKING:
    from sarlite.sar.graph.graph import Graph


def shard(graph: "Graph", comm: Any, parts: Any = "metis", *, src_parts: Any = None, order: Any = None,
          mode: str = "sar", prefetch: int = 1, backward: str | None = None, rows: str = "float32",
          peers_at_once: int | None = None, seed: int = 0) -> "Graph":
    """Return this rank's part of a whole graph that every rank holds. Collective.

    Parameters
    ----------
    comm : Communicator, or an mpi4py communicator
    parts : {"metis", "fennel", "random", "contiguous"} or (n_nodes,) int array
        How to divide the nodes, of a bipartite graph the destinations; computed on rank 0.
    src_parts : as `parts`, optional
        Of a bipartite graph, how to divide the sources; by default as `parts`, which must then name a method.
    order : {"metis", "cluster"} or (n_nodes,) int array, optional
        A permutation of the nodes: each part's rows stand in this order; computed on rank 0. By default ids ascend. Not
        for bipartite graphs.
    mode, prefetch, backward, rows, peers_at_once
        As `Graph.from_part` has them.

    Returns
    -------
    Graph
        Its rows are those of `node_ids`; of a bipartite graph `dst_ids` and `src_ids`.

    Raises
    ------
    ConfigError, DataError
        On every rank: an unknown method; parts or an order that do not fit the graph; a graph, parts or an order that
        differ between ranks, of which each hashes its own.
    """
    if graph.comm.size > 1:
        raise ConfigError("only a whole graph can be sharded")
    comm, options = wrap(comm), Options(mode, prefetch, backward, rows, peers_at_once)
    options.check(comm)
    edges = graph.in_edges()
    if comm.size > 1:
        agree(comm, (edges, graph.n_src), "graph")
    agree(comm, tuple(map(_kind, (parts, src_parts, order))), "parts and order")
    if graph.bipartite:
        if order is not None:
            raise ConfigError("order: a bipartite graph's rows stand in the order of their ids")
        parts, src_parts = _bipartite_parts(comm, edges, graph.n_src, parts, src_parts, seed)
    elif src_parts is not None:
        raise ConfigError("src_parts: only a bipartite graph has sources of their own")
    else:
        parts = _division(comm, parts, graph.n_dst, "parts", "shard",
                          lambda method: partition.partition(*edges[:2], comm.size, method, seed=seed))
    if order is None:
        own = np.flatnonzero(parts == comm.rank)
    else:
        order = _order(comm, edges, order, seed)
        own = order[parts[order] == comm.rank]
    new_number = _row_numbers(parts if src_parts is None else src_parts, order)
    lengths = np.diff(edges.indptr)[own]
    indptr = np.concatenate([[0], np.cumsum(lengths)])
    where = np.repeat(edges.indptr[own] - indptr[:-1], lengths) + np.arange(indptr[-1])
    src_ids = None if src_parts is None else np.flatnonzero(src_parts == comm.rank)
    edge_ids = where if edges.numbers is None else edges.numbers[where].astype(np.int64)
    loops = None if edges.added_loops is None else edges.added_loops[own]
    part = InEdges(indptr, new_number[edges.indices[where]], added_loops=loops)
    made = make(type(graph), comm, part, own, src_ids, edge_ids, None if src_ids is None else len(src_ids), options,
                by_id=True)
    made.mistakable, made.names = graph.mistakable, graph.names
    values = [None if array is None else array[made.edge_ids] for array in (graph.edge_weight, graph.edge_features)]
    return made if all(array is None for array in values) else made.with_edge_values(*values)


def _bipartite_parts(comm, edges, n_src, parts, src_parts, seed):
    """Divide both sides; METIS divides the graph of all nodes, sources after destinations."""
    n_dst, both = edges.n_dst, parts if src_parts is None else src_parts
    if not isinstance(both, str) and src_parts is None:
        raise ConfigError("src_parts: a bipartite graph's sources need a division too")
    if all(isinstance(given, str) and given == "metis" for given in (parts, both)):
        whole = np.concatenate([edges.indptr, np.full(n_src, edges.indptr[-1])]), edges.indices.astype(np.int64) + n_dst
        found = _on_root(comm, lambda: partition.partition(*whole, comm.size, "metis", balance="nodes", seed=seed))
        parts, both = found[:n_dst], found[n_dst:]
    refused = {"metis": "metis divides both sides of a bipartite graph or none",
               "fennel": "fennel divides no bipartite graph"}
    return [_division(comm, given, n, name, "shard", _by_number(comm, n, seed, refused))
            for name, given, n in (("parts", parts, n_dst), ("src_parts", both, n_src))]


def _order(comm, edges, order, seed):
    if isinstance(order, str):
        orders.check_method(order)
        method = order
        order = _on_root(comm, lambda: orders.order(*edges[:2], method, seed=seed))
    order = together(comm, lambda: orders.check_order(outside("order", order), edges.n_dst, "shard"))
    agree(comm, order, "order")
    return order


# ---- edge lists of several relations


def own_relations(comm: Any, edges: Mapping[Any, Any], n_nodes: Mapping[str, int], parts: Any,
                  seed: int) -> tuple[dict[Any, InEdges], dict[str, Any], dict[Any, Any]]:
    """Divide the nodes of each type. Collective.

    Returns
    -------
    in_edges : dict of relation to InEdges
        This rank's.
    own : dict of str to (n,) int64
        The ids of this rank's rows of each type.
    edge_ids : dict of relation to (n_edges,) int64
        Where each of this rank's edges stood; not where they count up.
    """
    parts = _typed_parts(comm, edges, n_nodes, parts, seed)
    own = {name: np.flatnonzero(found == comm.rank) for name, found in parts.items()}
    rows = {name: _row_numbers(found) for name, found in parts.items()}
    in_edges: dict[Any, InEdges] = {}
    edge_ids: dict[Any, Array] = {}
    for relation, (src, dst) in edges.items():
        source, _, to = relation
        mine = np.flatnonzero(parts[to][dst] == comm.rank)
        local = rows[to][dst[mine]] - (rows[to][own[to][0]] if len(own[to]) else 0)
        n = max(len(rows[source]), len(own[to]), 1)
        indptr, indices, order = edge_lists.csr_by_dst(rows[source][src[mine]], local, n, edge_index=True)
        part = InEdges(indptr[: len(own[to]) + 1], indices)
        in_edges[relation], found = in_order_of_ids(part, mine[order])
        edge_ids |= {} if found is None else {relation: found}
    return in_edges, own, edge_ids


def _typed_parts(comm, edges, n_nodes, parts, seed):
    """The part of each node, by type."""
    if comm.size == 1:
        return {name: np.zeros(n, np.int32) for name, n in n_nodes.items()}
    by_type = isinstance(parts, Mapping)
    agree(comm, {str(name): _kind(found) for name, found in parts.items()} if by_type else _kind(parts), "parts")
    if isinstance(parts, str) and parts in partition.BALANCED:
        found = _on_root(comm, lambda: _divided_together(comm.size, edges, n_nodes, parts, seed))
        return dict(zip(n_nodes, np.split(found, np.cumsum([*n_nodes.values()])[:-1])))
    if not isinstance(parts, str) and (not isinstance(parts, Mapping) or set(parts) != set(n_nodes)):
        raise ConfigError(f"parts: a method, or a dict with a division for each of {', '.join(n_nodes)}")
    refused = {method: f"{method} divides the nodes of all types together, or none" for method in partition.BALANCED}
    return {name: _division(comm, parts if isinstance(parts, str) else parts[name], n, f"parts of {name!r}", repr(name),
                            _by_number(comm, n, seed, refused)) for name, n in n_nodes.items()}


def _divided_together(n_parts, edges, n_nodes, method, seed):
    found = typed.divide(typed.join(edges, n_nodes), n_parts, method, balance="nodes", seed=seed)
    return np.concatenate([*found.values()])


# ---- divisions


def _division(comm, parts, n, name, source, divide):
    """The part of each of n nodes, the same on every rank; of a method what `divide(method)` finds on rank 0.

    `name` and `source` are what errors tell.
    """
    if isinstance(parts, str):
        method = parts
        parts = _on_root(comm, lambda: divide(method))
    parts = together(comm, lambda: partition.check_parts(outside(name, parts), n, comm.size, source))
    agree(comm, parts, name)
    return parts


def _by_number(comm, n, seed, refused):
    """What divides n nodes by a method that sees no edges; `refused` has errors by method."""
    def divide(method):
        if method in refused:
            raise ConfigError(refused[method])
        return partition.partition(np.zeros(n + 1, np.int64), np.zeros(0, np.int64), comm.size, method, seed=seed)

    return divide


def _row_numbers(parts, order=None):
    """The row number of each node: by part, and in a part by the order or the id."""
    by_part = np.argsort(parts, kind="stable") if order is None else order[np.argsort(parts[order], kind="stable")]
    numbers = np.empty(len(parts), edge_lists.index_dtype(len(parts)))
    numbers[by_part] = np.arange(len(parts))
    return numbers


def _on_root(comm, action):
    """Run `action` on rank 0 and return its result on every rank, or raise there what it raises. Collective."""
    return comm.bcast(together(comm, lambda: action() if comm.rank == 0 else None))


def _kind(given):
    """What ranks must agree on before they look at values: a method's name, or a type's."""
    return given if isinstance(given, str) else type(given).__name__
