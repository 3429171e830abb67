"""Orders of rows that place nodes with common neighbours close together, so that gathered rows are still in the cache."""

from collections.abc import Callable

import numpy as np

from sarlite.errors import ConfigError
from sarlite.structure import validation
from sarlite.structure.cluster import clusters
from sarlite.structure.edges import index_dtype
from sarlite.structure.fennel import EdgesInMemory, ReadableEdges
from sarlite.structure.partition import partition
from sarlite.structure.renumber import edges_in_order
from sarlite.types import Array, ArrayLike

METHODS = ("metis", "cluster")


def cluster_size(n_nodes: int) -> int:
    """Return the default number of nodes of a cluster: 1,000, but at most an eighth of the graph's `n_nodes`.

    1,000 rows of 256 float32 features are a mebibyte. Sizes from 250 to 2,000 nodes make no measurable difference.
    """
    return min(1000, max(1, n_nodes // 8))


def order(indptr: Array, indices: Array, method: str = "metis", *, seed: int = 0,
          cluster_nodes: int | None = None) -> Array:
    """Return a permutation of a graph's nodes (entry i is the node at position i), so that nodes with common neighbours are close
    together. Nodes are listed cluster after cluster of about `cluster_nodes` nodes (None: `cluster_size`).

    The graph is divided into clusters. The order lists the nodes cluster after cluster, and by ascending ids within a
    cluster. METIS numbers clusters by repeated bisection, so consecutive clusters are near each other. One order of the
    whole graph serves any number of parts, because the nodes of a part keep their relative order.

    Parameters
    ----------
    indptr : (n_nodes + 1,) integer array
    indices : (n_edges,) integer array
        CSR of the in-edges.
    method : {"metis", "cluster"}
        "cluster" finds clusters by label propagation, in less time and memory, and numbers them at random.
    seed : int
        Seed of "metis"; "cluster" uses none.
    cluster_nodes : int, optional
        Approximate number of nodes of a cluster with "metis", largest number with "cluster"; by default `cluster_size`.

    Returns
    -------
    (n_nodes,) int32, or int64 if int32 is too small for the node ids
        Permutation: entry i is the node at position i.

    Raises
    ------
    ConfigError
        The method is unknown, the seed is negative, or METIS is not installed or fails.

    Notes
    -----
    Memory and time: for "metis" see `partition.partition`, with one part for each cluster; for "cluster" see
    `by_cluster`.
    """
    check_method(method)
    n_nodes = indptr.size - 1
    if method == "cluster":
        return by_cluster(EdgesInMemory(indptr, indices), cluster_nodes=cluster_nodes)
    n_clusters = max(1, n_nodes // (cluster_nodes or cluster_size(n_nodes)))
    cluster_of = partition(indptr, indices, n_clusters, method, balance="nodes", seed=seed)
    return np.argsort(cluster_of, kind="stable").astype(index_dtype(n_nodes))


def by_cluster(edges: ReadableEdges, tell: Callable[[str], object] = lambda text: None,
               cluster_nodes: int | None = None) -> Array:
    """Return the nodes sorted by cluster, a permutation whose entry i is the node at position i. Clusters are found by label
    propagation and have at most `cluster_nodes` nodes (None: `cluster_size`). tell(text) is called at the start of each pass.

    Parameters
    ----------
    edges : fennel.ReadableEdges
    tell : callable
        Function of a text, called at the start of each pass over the edges.
    cluster_nodes : int, optional
        Largest number of nodes of a cluster; by default `cluster_size`.

    Notes
    -----
    Memory: 24 bytes for each node, and a block of edges.
    """
    cluster_of = clusters(edges, cluster_nodes or cluster_size(edges.n_nodes), tell=tell)
    return np.argsort(cluster_of, kind="stable").astype(index_dtype(edges.n_nodes))


def check_method(method: str) -> None:
    """Raise a ConfigError unless `method` is "metis" or "cluster", the methods of `order`."""
    if method not in METHODS:
        raise ConfigError(f"order: {method!r} is not one of {', '.join(METHODS)}")


def check_order(order: ArrayLike, n_nodes: int, source: str) -> Array:
    """Return `order` as an array, or raise a DataError that names `source` unless it is a permutation of the nodes."""
    return validation.permutation(f"{source}: order", order, n_nodes, what="node", entry="place {at} has node {value},")


def near_share(indptr: Array, indices: Array, order: ArrayLike | None = None, near: int | None = None) -> float:
    """Return the share of edges, 0 to 1, whose two ends are less than `near` positions apart (None: `cluster_size`), if the nodes
    stand in the permutation `order` (None: by id).

    Parameters
    ----------
    indptr, indices : CSR of the in-edges
    order : (n_nodes,) int, optional
        Node at each position; by default ids ascend.
    near : int, optional
        By default `cluster_size`.

    Notes
    -----
    Memory: 16 bytes for each node, and a piece of the edges.
    """
    n_near, rows = 0, np.arange(indptr.size - 1) if order is None else np.asarray(order)
    near = near or cluster_size(rows.size)
    for first, last, _, sources in edges_in_order(indptr, indices, rows):
        dst = np.repeat(np.arange(first, last), np.diff(indptr)[rows[first:last]])
        n_near += np.count_nonzero(np.abs(dst - sources) < near)
    return n_near / indices.size if indices.size else 0.0
