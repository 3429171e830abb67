"""Order of a rank's rows that places nodes with common neighbours close together.

So rows that were gathered for one node are in the cache for the next.
"""

import numpy as np

from sarlite.errors import ConfigError
from sarlite.structure import validation
from sarlite.structure.cluster import clusters
from sarlite.structure.edges import index_dtype
from sarlite.structure.fennel import EdgesInMemory
from sarlite.structure.partition import partition
from sarlite.structure.renumber import edges_in_order

METHODS = ("metis", "cluster")


def cluster_size(n_nodes):
    """Return about how many nodes a cluster has: 1,000, a mebibyte of 256 float32 features; in a small graph an eighth.

    From 250 to 2,000 nodes made no measurable difference.
    """
    return min(1000, max(1, n_nodes // 8))


def order(indptr, indices, method="metis", *, seed=0, cluster_nodes=None):
    """Return the nodes of a graph in an order with good locality.

    METIS divides the graph into clusters. The clusters follow each other as METIS numbers them, by repeated bisection,
    and ids ascend within a cluster. The order of the whole graph serves any number of parts: the nodes of a part stand
    in it as they stand in the whole.

    Parameters
    ----------
    indptr : (n_nodes + 1,) integer array, borrowed
    indices : (n_edges,) integer array, borrowed
    method : {"metis", "cluster"}
        "cluster" makes the clusters by label propagation, in less time and memory, and numbers them at random.
    seed : int
        Used by "metis" alone. The same arguments give the same order.
    cluster_nodes : int, optional
        About how many nodes a cluster has with "metis", and the most with "cluster"; by default `cluster_size`.

    Returns
    -------
    (n_nodes,) int32, or int64 where a node id needs it
        A permutation: entry i is the node at place i.

    Raises
    ------
    ConfigError
        Unknown method, a negative seed, or METIS is not there or fails.

    Notes
    -----
    Memory and time: for "metis" as for `partition` with one part a cluster; for "cluster" see `by_cluster`.
    Source: Karypis and Kumar 1998, as for `partition`.
    """
    check_method(method)
    n_nodes = indptr.size - 1
    if method == "cluster":
        return by_cluster(EdgesInMemory(indptr, indices), cluster_nodes=cluster_nodes)
    n_clusters = max(1, n_nodes // (cluster_nodes or cluster_size(n_nodes)))
    found = partition(indptr, indices, n_clusters, method, balance="nodes", seed=seed)
    return np.argsort(found, kind="stable").astype(index_dtype(n_nodes))


def by_cluster(edges, tell=lambda text: None, cluster_nodes=None):
    """Return the nodes of a graph, given as `fennel.ReadableEdges`, cluster by cluster.

    A cluster has at most `cluster_nodes` nodes, by default `cluster_size`. Memory: 24 bytes a node, and a block of
    edges. """
    found = clusters(edges, cluster_nodes or cluster_size(edges.n_nodes), tell=tell)
    return np.argsort(found, kind="stable").astype(index_dtype(edges.n_nodes))


def check_method(method):
    """Raise a ConfigError unless `order` knows the method."""
    if method not in METHODS:
        raise ConfigError(f"order: {method!r} is none of {', '.join(METHODS)}")


def check_order(order, n_nodes, source):
    """Return `order` as an array, or raise a DataError that names `source` unless it is a permutation of the nodes."""
    return validation.permutation(f"{source}: order", order, n_nodes, what="node", entry="place {at} has node {value},")


def near_share(indptr, indices, order=None, near=None):
    """Return the share of edges whose ends are less than `near` places apart in an order, by default the ids' order.

    `near` is `cluster_size` where it is not given. Memory: 16 bytes a node, and a piece of the edges.
    """
    n_near, rows = 0, np.arange(indptr.size - 1) if order is None else np.asarray(order)
    near = near or cluster_size(rows.size)
    for first, last, _, sources in edges_in_order(indptr, indices, rows):
        dst = np.repeat(np.arange(first, last), np.diff(indptr)[rows[first:last]])
        n_near += np.count_nonzero(np.abs(dst - sources) < near)
    return n_near / indices.size if indices.size else 0.0
