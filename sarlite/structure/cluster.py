"""Clusters of nodes that share neighbours, by label propagation over streamed edges, so that gathered rows stay in cache."""

from collections.abc import Callable

import numpy as np

from sarlite.structure.fennel import ReadableEdges, blocks
from sarlite.types import Array

PASSES = 6
"""Largest number of passes over the edges. A pass that moves less than a hundredth of the nodes is the last pass."""
_STILL = 1e-2
_LOW = np.uint64(2**32 - 1)


def clusters(edges: ReadableEdges, most: int, *, tell: Callable[[str], object] = lambda text: None) -> Array:
    """Return each node's cluster, (n_nodes,), found by label propagation: in passes over the edges each node moves to the cluster
    of most of its in-neighbours. Clusters have at most `most` nodes. tell(text) is called at the start of each pass.

    Every node starts as a cluster of one node. Nodes are processed in blocks of some thousand, as in `fennel.fennel`.
    If more nodes of a block want a cluster than it has room for, the first of them enter. A tie between clusters is
    broken by a hash, which differs in each pass.

    Parameters
    ----------
    edges : fennel.ReadableEdges
    most : int
        Largest number of nodes of a cluster.
    tell : callable
        Function of a text, called at the start of each pass.

    Returns
    -------
    (n_nodes,) uint32
        Cluster of each node. The name of a cluster is one of the nodes, so the names are not consecutive.

    Notes
    -----
    Memory: 8 bytes for each node, and about 150 MiB for a block of a million edges.

    References
    ----------
    Raghavan, Albert and Kumara 2007, "Near linear time algorithm to detect community structures in large-scale
    networks"; the bound of the sizes is from Meyerhenke, Sanders and Schulz 2014, "Partitioning complex networks via
    size-constrained clustering".
    """
    labels, sizes = np.arange(edges.n_nodes, dtype=np.uint32), np.ones(edges.n_nodes, np.int32)
    for pass_index in range(PASSES):
        tell(f"stream {pass_index + 1}")
        moved = sum(_move_nodes(labels, sizes, most, pass_index, *block) for block in blocks(edges, 1))
        if moved <= _STILL * edges.n_nodes:
            break
    return labels


def _move_nodes(cluster_of: Array, cluster_sizes: Array, most_nodes: int, pass_index: int, first: int, last: int, degrees: Array,
           sources: Array) -> int:
    """Move each of the nodes first .. last - 1 to the cluster of most of its in-neighbours, while that cluster has fewer than
    `most_nodes` nodes; return how many moved. `sources` lists the in-neighbours node after node, `degrees` how many each node has.
    `cluster_of` and `cluster_sizes` are changed in place; `pass_index` is hashed to break ties.
    """
    current = cluster_of[first:last].astype(np.int64)
    best = _majority_clusters(cluster_of, cluster_sizes, most_nodes, pass_index, current, degrees, sources)
    moving = np.flatnonzero(best != current)
    by_target = moving[np.argsort(best[moving], kind="stable")]
    targets = best[by_target]
    entering = by_target[np.arange(targets.size) - np.searchsorted(targets, targets) < most_nodes - cluster_sizes[targets]]
    np.subtract.at(cluster_sizes, current[entering], 1)
    np.add.at(cluster_sizes, best[entering], 1)
    cluster_of[first + entering] = best[entering]
    return entering.size


def _majority_clusters(cluster_of: Array, cluster_sizes: Array, most_nodes: int, pass_index: int, current: Array, degrees: Array,
            sources: Array) -> Array:
    """Return, for nodes in the clusters `current`, the cluster of most of each node's in-neighbours. `sources` lists the
    in-neighbours node after node, `degrees` how many each node has. A cluster of `most_nodes` nodes admits no other node; a hash
    with `pass_index` breaks ties.
    """
    keys = np.repeat(np.arange(current.size, dtype=np.uint64) << np.uint64(32), degrees) | cluster_of[sources]
    keys.sort()
    begins = np.flatnonzero(np.diff(keys, prepend=keys[:1] ^ np.uint64(1)) != 0)
    counts = np.diff(begins, append=keys.size)
    row, label = (keys[begins] >> np.uint64(32)).astype(np.int64), (keys[begins] & _LOW).astype(np.int64)
    stays = label == current[row]
    luck = ((label * 2654435761 + pass_index * 40503) & 0xFFFF) / 2**17  # below 0.5
    score = np.where(stays | (cluster_sizes[label] < most_nodes), counts + 0.5 * stays + luck, -1)
    order = np.lexsort((score, row))
    top = order[np.flatnonzero(np.diff(row[order], append=-1) != 0)]
    top = top[score[top] > 0]
    best = current.copy()
    best[row[top]] = label[top]
    return best
