"""In which order a rank's rows stand: nodes that share neighbours together, so that rows gathered for one are in the cache for the next."""

import numpy as np

from sarlite.errors import ConfigError, DataError
from sarlite.graph.edges import destinations
from sarlite.graph.partition import partition

METHODS = ("metis",)
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
    method : {"metis"}
    seed : int
        The same arguments give the same order.

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
    Memory and time are those of `partition` into n_nodes / 1000 parts: about 50 bytes an edge.
    Source: Karypis and Kumar 1998, as for `partition`.
    """
    check_method(method)
    n_nodes = indptr.size - 1
    clusters = partition(indptr, indices, max(1, n_nodes // CLUSTER_NODES), method, seed=seed)
    return np.argsort(clusters, kind="stable").astype(np.int32 if n_nodes <= 2**31 else np.int64)


def check_method(method):
    """Raise a ConfigError unless `order` knows the method."""
    if method not in METHODS:
        raise ConfigError(f"order: {method!r} is none of {', '.join(METHODS)}")


def check_order(order, n_nodes, source):
    """Return `order` as an array, or raise a DataError that names `source` unless it is a permutation of the nodes."""
    order = np.asarray(order)
    if order.dtype.kind not in "iu":
        raise DataError(f"{source}: order: expected an integer dtype, found {order.dtype}")
    if order.shape != (n_nodes,):
        raise DataError(f"{source}: order: expected shape ({n_nodes},), one node a place, found {order.shape}")
    bad = (order < 0) | (order >= n_nodes)
    if bad.any():
        at = int(np.argmax(bad))
        raise DataError(f"{source}: order: place {at} has node {order[at]}, outside 0 <= node < {n_nodes}")
    missing = np.bincount(order.astype(np.int64, copy=False), minlength=n_nodes) == 0
    if missing.any():
        raise DataError(f"{source}: order: node {int(np.argmax(missing))} has no place")
    return order


def near_share(indptr, indices, order=None):
    """Return the share of edges whose ends are less than `CLUSTER_NODES` places apart: in an order, or that of the ids.

    Memory: 24 bytes an edge.
    """
    src, dst = np.asarray(indices), destinations(indptr)
    if order is not None:
        place = np.empty(indptr.size - 1, np.int64)
        place[order] = np.arange(place.size)
        src, dst = place[src], place[dst]
    return float((np.abs(dst - src) < CLUSTER_NODES).mean()) if src.size else 0.0
