"""Functions that divide among ranks a graph that every rank holds: a plain graph, or the edge lists of several relations."""

from collections.abc import Callable, Mapping
from typing import NamedTuple, TypeVar

import numpy as np

from sarlite.comm import Communicator, agree, together
from sarlite.errors import ConfigError
from sarlite.graph.array_checks import Relation, RelationArrays, TypedParts, check_array
from sarlite.graph.build import sort_by_id
from sarlite.structure import edges as edge_lists
from sarlite.structure import order as orders
from sarlite.structure import partition, typed
from sarlite.structure.part_edges_csr import InEdges
from sarlite.types import Array, ArrayLike

T = TypeVar("T")


class DividedPart(NamedTuple):
    """In-edges and global ids of one rank's part of a divided graph.

    Attributes
    ----------
    edges : InEdges
        In-edges of the part's rows.
    node_ids : (n_dst,) int64
        Global ids of the part's rows.
    src_ids : (n_src,) int64, or None
        Global ids of the part's sources, if the graph is bipartite.
    edge_ids : (n_edges,) int64
        Global ids of the in-edges.
    """

    edges: InEdges
    node_ids: Array
    src_ids: Array | None
    edge_ids: Array


def divide_graph(comm: Communicator, edges: InEdges, n_src: int, bipartite: bool, parts: str | ArrayLike,
                 src_parts: str | ArrayLike | None, order: str | ArrayLike | None, seed: int) -> DividedPart:
    """Divide the graph with the in-edges `edges`, which every rank holds, and return this rank's part. `parts` is each node's rank
    or a method's name; `src_parts` is the same for sources of a bipartite graph, and `order` orders each part's rows. Collective.

    Parameters
    ----------
    comm : Communicator
    edges : InEdges
        In-edges of all nodes.
    n_src : int
        Number of source nodes.
    bipartite : bool
    parts, src_parts, order, seed
        See `Graph.shard`.
    """
    if comm.size > 1:
        agree(comm, (edges, n_src), "graph")
    agree(comm, tuple(map(_kind, (parts, src_parts, order))), "parts and order")
    if bipartite:
        if order is not None:
            raise ConfigError("order: not available for a bipartite graph, whose rows are ordered by id")
        owners, src_owners = _bipartite_parts(comm, edges, n_src, parts, src_parts, seed)
    elif src_parts is not None:
        raise ConfigError("src_parts: only for a bipartite graph, whose sources are other nodes than its destinations")
    else:
        src_owners = owners = _division(comm, parts, edges.n_dst, "parts", "shard",
                                        lambda method: partition.partition(*edges[:2], comm.size, method, seed=seed))
    permutation = None if order is None else _order(comm, edges, order, seed)
    if permutation is None:
        node_ids = np.flatnonzero(owners == comm.rank)
    else:
        node_ids = permutation[owners[permutation] == comm.rank]
    new_number = _row_numbers(src_owners, permutation)
    lengths = np.diff(edges.indptr)[node_ids]
    indptr = np.concatenate([[0], np.cumsum(lengths)])
    where = np.repeat(edges.indptr[node_ids] - indptr[:-1], lengths) + np.arange(indptr[-1])
    edge_ids = where if edges.numbers is None else edges.numbers[where].astype(np.int64)
    loops = None if edges.added_loops is None else edges.added_loops[node_ids]
    return DividedPart(InEdges(indptr, new_number[edges.indices[where]], added_loops=loops), node_ids,
                   np.flatnonzero(src_owners == comm.rank) if bipartite else None, edge_ids)


def _bipartite_parts(comm: Communicator, edges: InEdges, n_src: int, parts: str | ArrayLike,
                     src_parts: str | ArrayLike | None, seed: int) -> list[Array]:
    """Return [MPI rank of each destination, MPI rank of each source]. `parts` and `src_parts` are arrays of ranks or names of
    methods; METIS divides both together, as one graph whose sources follow the destinations. Collective.
    """
    n_dst, both = edges.n_dst, parts if src_parts is None else src_parts
    if not isinstance(both, str) and src_parts is None:
        raise ConfigError("src_parts is missing: the sources of a bipartite graph need a division, too")
    if all(isinstance(method, str) and method == "metis" for method in (parts, both)):
        whole = np.concatenate([edges.indptr, np.full(n_src, edges.indptr[-1])]), edges.indices.astype(np.int64) + n_dst
        owners = _on_root(comm, lambda: partition.partition(*whole, comm.size, "metis", balance="nodes", seed=seed))
        parts, both = owners[:n_dst], owners[n_dst:]
    refused = {"metis": "metis divides both sides of a bipartite graph or none",
               "fennel": "fennel divides no bipartite graph"}
    return [_division(comm, division, n, name, "shard", _without_edges(comm, n, seed, refused))
            for name, division, n in (("parts", parts, n_dst), ("src_parts", both, n_src))]


def _order(comm: Communicator, edges: InEdges, order: str | ArrayLike, seed: int) -> Array:
    """Return `order` as a checked permutation of the rows; if it names a method, rank 0 computes the permutation. Collective."""
    if isinstance(order, str):
        orders.check_method(order)
        method = order
        order = _on_root(comm, lambda: orders.order(*edges[:2], method, seed=seed))
    order = together(comm, lambda: orders.check_order(check_array("order", order), edges.n_dst, "shard"))
    agree(comm, order, "order")
    return order


# ---- edge lists of several relations


def divide_relations(comm: Communicator, edges: Mapping[Relation, tuple[Array, Array]], n_nodes: Mapping[str, int],
                     parts: TypedParts, seed: int) -> RelationArrays:
    """Divide the nodes of each type among the ranks by `parts`, a method's name or {type: rank of each node}; return this rank's
    ({relation: in-edges}, {type: node ids}, {relation: edge ids}). Collective.

    Returns
    -------
    in_edges : dict of relation to InEdges
    node_ids : dict of str to (n,) int64
        Ids of this rank's rows of each type.
    edge_ids : dict of relation to (n_edges,) int64
        Index of each of this rank's edges in the relation's edge list. A relation whose indices are 0, 1, 2, ... has no
        entry.
    """
    owners = _typed_parts(comm, edges, n_nodes, parts, seed)
    node_ids = {name: np.flatnonzero(ranks == comm.rank) for name, ranks in owners.items()}
    row_numbers = {name: _row_numbers(ranks) for name, ranks in owners.items()}
    in_edges: dict[Relation, InEdges] = {}
    edge_ids: dict[Relation, Array] = {}
    for relation, (src, dst) in edges.items():
        source, _, to = relation
        local_edges, n_dst = np.flatnonzero(owners[to][dst] == comm.rank), len(node_ids[to])
        local_dst = row_numbers[to][dst[local_edges]] - (row_numbers[to][node_ids[to][0]] if n_dst else 0)
        n_rows = max(len(row_numbers[source]), n_dst, 1)
        indptr, indices, order = edge_lists.csr_by_dst(row_numbers[source][src[local_edges]], local_dst, n_rows,
                                                       edge_index=True)
        in_edges[relation], ids = sort_by_id(InEdges(indptr[: n_dst + 1], indices), local_edges[order])
        edge_ids |= {} if ids is None else {relation: ids}
    return in_edges, node_ids, edge_ids


def _typed_parts(comm: Communicator, edges: Mapping[Relation, tuple[Array, Array]], n_nodes: Mapping[str, int],
                 parts: TypedParts, seed: int) -> dict[str, Array]:
    """Return {node type: MPI rank of each node}. `parts` is the name of a method, or maps each type to a method's name or to these
    ranks. Collective.
    """
    if comm.size == 1:
        return {name: np.zeros(n, np.int32) for name, n in n_nodes.items()}
    by_type = {str(name): _kind(of_type) for name, of_type in parts.items()} if isinstance(parts, Mapping) else _kind(parts)
    agree(comm, by_type, "parts")
    if isinstance(parts, str) and parts in partition.BALANCED:
        owners = _on_root(comm, lambda: _divide_together(comm.size, edges, n_nodes, parts, seed))
        return dict(zip(n_nodes, np.split(owners, np.cumsum([*n_nodes.values()])[:-1])))
    if not isinstance(parts, str) and (not isinstance(parts, Mapping) or set(parts) != set(n_nodes)):
        raise ConfigError(f"parts must be a method, or a dict with a division for each of {', '.join(n_nodes)}")
    refused = {method: f"{method} divides the nodes of all types together, or none" for method in partition.BALANCED}
    return {name: _division(comm, parts if isinstance(parts, str) else parts[name], n, f"parts of {name!r}", repr(name),
                            _without_edges(comm, n, seed, refused)) for name, n in n_nodes.items()}


def _divide_together(n_parts: int, edges: Mapping[Relation, tuple[Array, Array]], n_nodes: Mapping[str, int],
                     method: str, seed: int) -> Array:
    """Divide the nodes of all types as one graph by the named `method`; return the MPI rank of each node in one array, type after type."""
    owners = typed.divide(typed.join(edges, n_nodes), n_parts, method, balance="nodes", seed=seed)
    return np.concatenate([*owners.values()])


# ---- divisions


def _division(comm: Communicator, parts: str | ArrayLike, n_nodes: int, argument_name: str, error_prefix: str,
              divide: Callable[[str], Array]) -> Array:
    """Return each node's MPI rank, (n_nodes,): the array `parts`, checked, or if it names a method, the result of divide(parts) on
    rank 0. Errors name `argument_name` or start with `error_prefix`. Collective.
    """
    if isinstance(parts, str):
        method = parts
        parts = _on_root(comm, lambda: divide(method))
    parts = together(comm, lambda: partition.check_parts(check_array(argument_name, parts), n_nodes, comm.size, error_prefix))
    agree(comm, parts, argument_name)
    return parts


def _without_edges(comm: Communicator, n_nodes: int, seed: int, refused: Mapping[str, str]) -> Callable[[str], Array]:
    """Return a function divide(method) that divides `n_nodes` nodes without regard to edges. It raises an error for a method in
    `refused`, {method: error message}.
    """
    def divide(method):
        if method in refused:
            raise ConfigError(refused[method])
        return partition.partition(np.zeros(n_nodes + 1, np.int64), np.zeros(0, np.int64), comm.size, method, seed=seed)

    return divide


def _row_numbers(parts: Array, order: Array | None = None) -> Array:
    """Return the row number of each node, counted rank after rank, where parts[i] is the rank of node i. The rows of a rank stand
    as in the permutation `order` (None: by id).
    """
    by_part = np.argsort(parts, kind="stable") if order is None else order[np.argsort(parts[order], kind="stable")]
    numbers = np.empty(len(parts), edge_lists.index_dtype(len(parts)))
    numbers[by_part] = np.arange(len(parts))
    return numbers


def _on_root(comm: Communicator, action: Callable[[], T]) -> T:
    """Run `action` on rank 0; return its result, or raise its error, on every rank. Collective."""
    return comm.bcast(together(comm, lambda: action() if comm.rank == 0 else None))


def _kind(parts: object) -> str:
    """Return `parts` if it is a string, the name of a method; else the name of its Python type. Ranks compare this text first,
    because values of different types cannot be compared.
    """
    return parts if isinstance(parts, str) else type(parts).__name__
