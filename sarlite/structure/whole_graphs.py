"""Partition of a set of graphs: each graph is assigned to one part as a whole."""

import heapq

import numpy as np

from sarlite.errors import ConfigError, DataError
from sarlite.structure.partition import BALANCED, METHODS, partition
from sarlite.types import Array

GRAPH = "graph"
"""Name of the node type whose nodes are the graphs of a set, in files."""


def divide(graph_of: Array, degrees: Array, n_graphs: int, n_parts: int, method: str = "metis", seed: int = 0) -> Array:
    """Return the part of each graph of a set, (n_graphs,) int32, chosen by the named `method`. Node i, of in-degree degrees[i],
    belongs to graph graph_of[i].

    Parameters
    ----------
    graph_of : (n_nodes,) int
        Number of the graph that each node belongs to.
    degrees : (n_nodes,) int
        In-degree of each node.
    n_graphs, n_parts : int
    method : {"metis", "fennel", "random", "contiguous"}
        "metis" and "fennel" have no edges to cut here. Both assign the graphs in descending order of size, each to the
        part with the fewest nodes and edges so far. The other methods divide graphs as `partition.partition` divides
        nodes.
    seed : int
        Seed of "random".

    Returns
    -------
    (n_graphs,) int32
        Part of each graph.

    Raises
    ------
    ConfigError
        The method is unknown.

    Examples
    --------
    >>> import numpy as np
    >>> divide(np.array([0, 0, 0, 1, 1, 2]), np.ones(6, int), n_graphs=3, n_parts=2).tolist()
    [0, 1, 1]
    """
    if method not in METHODS:
        raise ConfigError(f"method: {method!r} is not one of {', '.join(METHODS)}")
    if method not in BALANCED:
        return partition(np.zeros(n_graphs + 1, np.int64), np.zeros(0, np.int64), n_parts, method, seed=seed)
    weights = np.bincount(graph_of, degrees + 1.0, n_graphs)
    parts, heap = np.zeros(n_graphs, np.int32), [(0.0, part) for part in range(n_parts)]
    for graph in np.argsort(-weights, kind="stable").tolist():
        load, part = heap[0]
        parts[graph] = part
        heapq.heapreplace(heap, (load + weights[graph], part))
    return parts


def check_within(graph_of: Array, src: Array, dst: Array) -> None:
    """Raise a DataError if an edge src[k] -> dst[k] joins nodes of two different graphs; the error names the first of these edges.
    Node i is in graph graph_of[i].

    Parameters
    ----------
    graph_of : (n_nodes,) int
        Number of the graph that each node belongs to.
    src, dst : (n_edges,) int
    """
    odd = np.flatnonzero(graph_of[src] != graph_of[dst])
    if len(odd):
        one, other = int(src[odd[0]]), int(dst[odd[0]])
        raise DataError(f"edge ({one}, {other}) leads from graph {graph_of[one]} to graph {graph_of[other]}: the "
                        "graphs of a set have no edges between them")
