"""Clusters of nodes that share neighbours, by label propagation over streams of the edges: for an order of good
locality."""

import numpy as np

from sarlite.structure.fennel import blocks

PASSES = 6
"""How often the edges are read at most. A pass that moves less than a hundredth of the nodes is the last one."""
_STILL = 1e-2
_LOW = np.uint64(2**32 - 1)


def clusters(edges, most, *, tell=lambda text: None):
    """Assign every node to the cluster of most of its in-neighbours, unless the cluster has `most` nodes already.

    Every node begins as a cluster of its own. Nodes are taken by the thousand, as `fennel.fennel` takes them. Where
    more of them want a cluster than it has room for, the first ones enter. A hash, another one each pass, chooses among
    clusters with equally many in-neighbours.

    Parameters
    ----------
    edges : fennel.ReadableEdges
    most : int
    tell : callable
        tell(text) is called as each stream begins.

    Returns
    -------
    (n_nodes,) uint32
        The cluster of each node, named by one of the nodes that it began with: the names have gaps.

    Notes
    -----
    Memory: 8 bytes a node, and about 150 MiB for a block of a million edges. Source: Raghavan, Albert and Kumara 2007,
    "Near linear time algorithm to detect community structures in large-scale networks"; sizes bounded as by Meyerhenke,
    Sanders and Schulz 2014, "Partitioning complex networks via size-constrained clustering".
    """
    labels, sizes = np.arange(edges.n_nodes, dtype=np.uint32), np.ones(edges.n_nodes, np.int32)
    for turn in range(PASSES):
        tell(f"stream {turn + 1}")
        moved = sum(_place(labels, sizes, most, turn, *block) for block in blocks(edges, 1))
        if moved <= _STILL * edges.n_nodes:
            break
    return labels


def _place(labels, sizes, most, turn, first, last, degrees, sources):
    """Assign the nodes of a block again; return the number of nodes that moved."""
    own = labels[first:last].astype(np.int64)
    best = _wanted(labels, sizes, most, turn, own, degrees, sources)
    moving = np.flatnonzero(best != own)
    by_target = moving[np.argsort(best[moving], kind="stable")]
    targets = best[by_target]
    entering = by_target[np.arange(targets.size) - np.searchsorted(targets, targets) < most - sizes[targets]]
    np.subtract.at(sizes, own[entering], 1)
    np.add.at(sizes, best[entering], 1)
    labels[first + entering] = best[entering]
    return entering.size


def _wanted(labels, sizes, most, turn, own, degrees, sources):
    """Return for each node the cluster with room that contains most of its in-neighbours.

    It is the node's own cluster if no other cluster has room.
    """
    keys = np.repeat(np.arange(own.size, dtype=np.uint64) << np.uint64(32), degrees) | labels[sources]
    keys.sort()
    begins = np.flatnonzero(np.diff(keys, prepend=keys[:1] ^ np.uint64(1)) != 0)
    counts = np.diff(begins, append=keys.size)
    row, label = (keys[begins] >> np.uint64(32)).astype(np.int64), (keys[begins] & _LOW).astype(np.int64)
    stays = label == own[row]
    luck = ((label * 2654435761 + turn * 40503) & 0xFFFF) / 2**17  # below 0.5
    score = np.where(stays | (sizes[label] < most), counts + 0.5 * stays + luck, -1)
    order = np.lexsort((score, row))
    top = order[np.flatnonzero(np.diff(row[order], append=-1) != 0)]
    top = top[score[top] > 0]
    best = own.copy()
    best[row[top]] = label[top]
    return best
