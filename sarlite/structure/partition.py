"""Partitions, the assignment of nodes to ranks: METIS, Fennel, random, contiguous or user-defined.

The module also measures the cost of a partition.
"""

import numpy as np

from sarlite.errors import ConfigError
from sarlite.structure import balance as balancing
from sarlite.structure import validation
from sarlite.structure.fennel import EdgesInMemory, fennel
from sarlite.structure.metis import Symmetric, check_room
from sarlite.structure.renumber import edges_in_order, sequence

METHODS = ("metis", "fennel", "random", "contiguous")
BALANCED = ("metis", "fennel")
"""Methods that can make parts even by other counts than the nodes."""
MOST_PARTS = 1 << 24


def partition(indptr, indices, n_parts, method="metis", *, train_mask=None, balance=None, seed=0, types=None):
    """Assign every node to a part.

    Parameters
    ----------
    indptr : (n_nodes + 1,) integer array, borrowed
    indices : (n_edges,) integer array, borrowed
    n_parts : int
        May exceed the number of nodes; some parts are empty then, and only then.
    method : {"metis", "fennel", "random", "contiguous"}
        "metis" cuts few edges and makes parts even by `balance`. "fennel" takes less time and memory, and cuts some
        more edges. "random" and "contiguous" make the nodes even exactly, by a permutation or by ranges of node ids.
    train_mask : (n_nodes,) bool, optional
        Used by "metis" and "fennel" alone.
    balance : str or sequence, optional
        Used by "metis" and "fennel" alone: some of "nodes", "edges" (by destination) and "train" (training nodes),
        "nodes,edges,train" as one word. By default nodes and training nodes, and edges too where the in-degrees'
        standard deviation is above their mean. pymetis balances one weight a node: 1, or with "edges" a mix of the
        in-degree and a little for the node. Then light nodes are moved until no part has more than 1.05 times its share
        of the nodes. Training nodes are swapped against others until no part has more than 1.1 times its share of them,
        rounded up. Nodes that cost the fewest cut edges go first.
    seed : int
        The same arguments give the same parts.
    types : (n_types + 1,) int, optional
        The nodes types[k] .. types[k + 1] are of one type. "random" and "contiguous" divide each type. "metis" and
        "fennel" divide all nodes together, and make nodes of each type even. "metis" makes training nodes of each type
        even too: it leaves no part more than `balance.TYPE_SLACK` times its share, rounded up, where that can be.

    Returns
    -------
    (n_nodes,) int32
        0 <= part < n_parts.

    Raises
    ------
    ConfigError
        Unknown method or balance, `n_parts` below 1, a negative seed, or METIS is not there or fails.

    Notes
    -----
    METIS divides a large graph in a process of its own; see `graph.metis`.
    Memory of "metis": 4 bytes an edge of the graph, 8 bytes an edge of the symmetric graph, and what METIS takes, about
    50 bytes an edge. Of "fennel": 4 bytes a node and 96 MiB. Of the others: 12 bytes a node.
    Source: Karypis and Kumar 1998, "A fast and high quality multilevel scheme for partitioning irregular graphs".
    """
    n_nodes = indptr.size - 1
    if method not in METHODS:
        raise ConfigError(f"method: {method!r} is none of {', '.join(METHODS)}")
    if not 1 <= n_parts <= MOST_PARTS:
        raise ConfigError(f"n_parts: {n_parts} is outside 1 <= n_parts <= {MOST_PARTS}")
    if seed < 0:
        raise ConfigError(f"seed: {seed} is below 0")
    balancing.check(balance)
    if method in BALANCED and (n_parts == 1 or n_nodes <= n_parts or indices.size == 0):
        method = "contiguous"
    if method not in BALANCED:
        ends = (0, n_nodes) if types is None else types
        return np.concatenate([_evenly(last - first, n_parts, method, seed) for first, last in zip(ends, ends[1:])])
    if method == "fennel":
        edges = EdgesInMemory(indptr, indices)
        return fennel(edges, n_parts, train=train_mask, balance=balance, types=types, seed=seed)
    check_room(n_nodes, indices.size)
    graph, degrees = Symmetric(indptr, indices), np.diff(indptr)
    if graph.adjncy.size == 0:  # self loops alone
        return partition(indptr, indices, n_parts, "contiguous", types=types)
    balance = balancing.chosen(balance, degrees)
    train = None if train_mask is None or "train" not in balance else np.asarray(train_mask)
    parts = balancing.fill_empty(graph.divide(n_parts, seed, balancing.weights(degrees, balance)), n_parts)
    if types is not None:
        return _even_types(graph, parts, n_parts, types, "nodes" in balance, train)
    if "edges" in balance and "nodes" in balance:
        parts = balancing.even_nodes(graph.xadj, graph.adjncy, parts, n_parts, degrees)
    return parts if train is None else balancing.swap_training(graph.xadj, graph.adjncy, parts, n_parts, train)


def _evenly(n_nodes, n_parts, method, seed):
    blocks = (np.arange(n_nodes) * n_parts // max(n_nodes, 1)).astype(np.int32)
    return np.random.Generator(np.random.PCG64(seed)).permutation(blocks) if method == "random" else blocks


def _even_types(graph, parts, n_parts, types, nodes_too, train):
    """Move the nodes that cut the fewest edges until each type's nodes, and training nodes, are about even."""
    n_types = len(types) - 1
    kinds = np.repeat(np.arange(n_types), np.diff(types))
    even = kinds if nodes_too else np.full(parts.size, -1)  # what a node is counted among, if it is
    if train is not None:
        even = np.where(train, n_types + kinds, even)
    for kind in range(int(even.max(initial=-1)) + 1):
        balancing.even_kind(graph.xadj, graph.adjncy, parts, n_parts, np.flatnonzero(even == kind))
    return parts


def check_parts(parts, n_nodes, n_parts, source):
    """Return `parts` as (n_nodes,) int32, or raise a DataError that names `source` and the first bad value."""
    return validation.integers(f"{source}: parts", parts, length=n_nodes, stop=n_parts, what="part",
                          entry="node {at} has part {value},").astype(np.int32)


def report(indptr, indices, parts, n_parts, train_mask=None):
    """Measure a partition.

    Returns
    -------
    dict
        As `measures` says.

    Notes
    -----
    Memory: 13 bytes a node, and a piece of the edges.
    """
    parts = np.asarray(parts)
    train = np.zeros(parts.size, bool) if train_mask is None else np.asarray(train_mask)
    rows, offsets = sequence(parts, n_parts)
    tally = Tally(offsets)
    for first, last, _, sources in edges_in_order(indptr, indices, rows, offsets):
        part = int(np.searchsorted(offsets, first, side="right")) - 1
        tally.add(part, sources)
        if last == offsets[part + 1]:
            tally.close(part)
    return measures(nodes=np.diff(offsets), edges=tally.edges, train_nodes=np.bincount(parts[train], minlength=n_parts),
                    halo_rows=tally.halo_rows, cut_edges=int(tally.cut.sum()))


class Tally:
    """Counts what a partition costs from the edges out of one type's rows, part after part, with a bitmap of the rows.

    Parameters
    ----------
    offsets : (n_parts + 1,) int
        Part q holds the rows offsets[q] .. offsets[q + 1].
    tiles : bool
        Count by pair of parts too.

    Attributes
    ----------
    edges, cut, halo_rows : (n_parts,) int64
        Of each part: edges into it, those of another part's sources, and the distinct sources of these.
    tiles, halo_tiles : (n_parts, n_parts) int64, or None
        At [p][q]: edges from part q's rows to part p's, and the distinct rows of q that p needs.
    """

    def __init__(self, offsets, tiles=False):
        self.offsets, n_parts = offsets, len(offsets) - 1
        self.edges, self.cut, self.halo_rows = (np.zeros(n_parts, np.int64) for _ in range(3))
        self.tiles, self.halo_tiles = (np.zeros((n_parts, n_parts), np.int64) if tiles else None for _ in range(2))
        self._seen = np.zeros(int(offsets[-1]), bool)

    def add(self, part, sources):
        """Count edges into a part; `sources` are row numbers."""
        remote = sources[(sources < self.offsets[part]) | (sources >= self.offsets[part + 1])]
        self._seen[remote] = True
        self.edges[part] += sources.size
        self.cut[part] += remote.size
        if self.tiles is not None:
            self.tiles[part] += rows_by_part(self.offsets, sources)

    def close(self, part):
        """Finish a part after all its edges were added."""
        self.halo_rows[part] = np.count_nonzero(self._seen)
        if self.tiles is not None:
            self.halo_tiles[part] = [np.count_nonzero(own) for own in np.split(self._seen, self.offsets[1:-1])]
        self._seen[:] = False


def rows_by_part(offsets, rows):
    """Return the number of the rows in each part."""
    return np.bincount(np.searchsorted(offsets, rows, side="right") - 1, minlength=len(offsets) - 1)


def measures(*, cut_edges, **counts):
    """Return the measures of a partition from its counts.

    Parameters
    ----------
    cut_edges : int
        Edges whose source is in another part than their destination.
    nodes, edges, train_nodes, halo_rows : (n_parts,) int
        Of each part, any of these. Edges count by destination; halo rows are distinct remote sources.

    Returns
    -------
    dict
        "n_parts"; the counts as lists of int; "imbalance", the maximum over the mean of each count, 1.0 where all are
        0; "cut_edges" and "cut_share". JSON can hold it.
    """
    counts = {name: np.asarray(count) for name, count in counts.items()}
    return {
        "n_parts": len(counts["nodes"]),
        **{name: count.tolist() for name, count in counts.items()},
        "imbalance": {name: _imbalance(count) for name, count in counts.items()},
        "cut_edges": int(cut_edges),
        "cut_share": float(cut_edges / max(int(counts["edges"].sum()), 1)),
    }


def _imbalance(count):
    return float(count.max() / count.mean()) if count.any() else 1.0
