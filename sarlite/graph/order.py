"""In which order a rank's rows stand: nodes that share neighbours together, so that rows gathered for one are in the cache for the next."""

import numpy as np

from sarlite.errors import ConfigError
from sarlite.graph import validation
from sarlite.graph.cluster import clusters
from sarlite.graph.edges import index_dtype
from sarlite.graph.fennel import EdgesInMemory
from sarlite.graph.partition import partition
from sarlite.graph.renumber import edges_in_order

METHODS = ("metis", "cluster")
CLUSTER_NODES = 1000
"""Nodes of a cluster: a mebibyte of 256 float32 features. From 250 to 2000 made no difference that could be measured."""


def order(indptr, indices, method="metis", *, seed=0):
    """Return the nodes of a graph in an order with good locality.

    METIS divides the graph into clusters of about `CLUSTER_NODES` nodes; the clusters follow each other as METIS numbers
    them, by repeated bisection, and ids ascend within one. The order is of the whole graph and serves any number of parts:
    the nodes of a part stand in it as far as the part has them.

    Parameters
    ----------
    indptr : (n_nodes + 1,) integer array, borrowed
    indices : (n_edges,) integer array, borrowed
    method : {"metis", "cluster"}
        "cluster" makes the clusters by label propagation, in less time and memory, and numbers them at random.
    seed : int
        Used by "metis" alone. The same arguments give the same order.

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
    Memory and time of "metis" are those of `partition` into n_nodes / 1000 parts; of "cluster" see `by_cluster`.
    Source: Karypis and Kumar 1998, as for `partition`.
    """
    check_method(method)
    n_nodes = indptr.size - 1
    if method == "cluster":
        return by_cluster(EdgesInMemory(indptr, indices))
    found = partition(indptr, indices, max(1, n_nodes // CLUSTER_NODES), method, balance="nodes", seed=seed)
    return np.argsort(found, kind="stable").astype(index_dtype(n_nodes))


def by_cluster(edges, tell=lambda text: None):
    """Return the nodes of a graph, a `fennel.ReadableEdges`, by cluster of at most `CLUSTER_NODES`; memory: 24 bytes a node, and a block."""
    return np.argsort(clusters(edges, CLUSTER_NODES, tell=tell), kind="stable").astype(index_dtype(edges.n_nodes))


def check_method(method):
    """Raise a ConfigError unless `order` knows the method."""
    if method not in METHODS:
        raise ConfigError(f"order: {method!r} is none of {', '.join(METHODS)}")


def check_order(order, n_nodes, source):
    """Return `order` as an array, or raise a DataError that names `source` unless it is a permutation of the nodes."""
    return validation.permutation(f"{source}: order", order, n_nodes, what="node", entry="place {at} has node {value},")


def near_share(indptr, indices, order=None):
    """Return the share of edges whose ends are less than `CLUSTER_NODES` places apart: in an order, or that of the ids.

    Memory: 16 bytes a node, and a piece of the edges.
    """
    near, rows = 0, np.arange(indptr.size - 1) if order is None else np.asarray(order)
    for first, last, _, sources in edges_in_order(indptr, indices, rows):
        dst = np.repeat(np.arange(first, last), np.diff(indptr)[rows[first:last]])
        near += np.count_nonzero(np.abs(dst - sources) < CLUSTER_NODES)
    return near / indices.size if indices.size else 0.0
