"""Partitions, which assign nodes to parts, one part for each rank, and measures of the cost of a partition."""

from collections.abc import Sequence

import numpy as np

from sarlite.errors import ConfigError, check_int
from sarlite.structure import balance as balancing
from sarlite.structure import validation
from sarlite.structure.fennel import EdgesInMemory, fennel
from sarlite.structure.metis import Symmetric, check_room
from sarlite.structure.renumber import edges_in_order, sequence
from sarlite.types import Array, ArrayLike, JsonDict

METHODS = ("metis", "fennel", "random", "contiguous")
BALANCED = ("metis", "fennel")
"""Methods that can balance other counts than the nodes."""
MOST_PARTS = 1 << 24


def partition(indptr: Array, indices: Array, n_parts: int, method: str = "metis", *, train_mask: Array | None = None,
              balance: str | Sequence[str] | None = None, seed: int = 0,
              types: Sequence[int] | Array | None = None) -> Array:
    """Return each node's part, (n_nodes,) int32 in 0 .. n_parts - 1, for the CSR of a graph's in-edges. `balance` names the counts
    to balance (None: a default); types[k] is the first node of type k, if nodes of several types are balanced by type.

    Parameters
    ----------
    indptr : (n_nodes + 1,) integer array
    indices : (n_edges,) integer array
        CSR of the in-edges.
    n_parts : int
        Number of parts; it may exceed the number of nodes. Parts are empty only then.
    method : {"metis", "fennel", "random", "contiguous"}
        "metis" cuts few edges and balances the counts in `balance`. "fennel" takes less time and memory, and cuts more
        edges. "random" and "contiguous" give each part equally many nodes, at random or by ranges of node ids.
    train_mask : (n_nodes,) bool, optional
        Training nodes, for the count "train".
    balance : str or sequence of str, optional
        Counts that "metis" and "fennel" balance: some of "nodes", "edges" (by destination) and "train" (training
        nodes), such as "nodes,edges,train". By default nodes and training nodes, and also edges if the standard
        deviation of the in-degrees is above their mean.
    seed : int
        Seed of the method; 0 or more.
    types : (n_types + 1,) int, optional
        Nodes types[k] .. types[k + 1] - 1 are of one type. "random" and "contiguous" divide each type. "metis" and
        "fennel" divide all nodes together, and balance the nodes of each type; "metis" also balances the training nodes
        of each type.

    Returns
    -------
    (n_nodes,) int32
        Part of each node, 0 <= part < n_parts.

    Raises
    ------
    ConfigError
        The method or `balance` is unknown, `n_parts` is out of range, the seed is negative, or METIS is not installed
        or fails.

    Notes
    -----
    METIS balances one weight for each node (`balance.weights`). Afterwards nodes are moved and swapped, those first that
    cost the fewest cut edges. If possible, no part then has more than 1.05 times the mean number of nodes, or 1.1 times
    the mean number of training nodes. The limit for nodes of one type is `balance.TYPE_SLACK` times the mean.
    METIS divides a large graph in a child process; see `structure.metis`.

    Memory: "metis" 4 bytes for each edge of the graph, 8 bytes for each edge of the symmetric graph, and about 50 bytes
    for each edge in METIS itself; "fennel" 4 bytes for each node and 96 MiB; other methods 12 bytes for each node.

    References
    ----------
    Karypis and Kumar 1998, "A fast and high quality multilevel scheme for partitioning irregular graphs".

    Examples
    --------
    >>> import numpy as np
    >>> indptr, indices = np.array([0, 1, 2, 3, 4]), np.array([3, 0, 1, 2])
    >>> partition(indptr, indices, 2, "contiguous").tolist()
    [0, 0, 1, 1]
    """
    n_nodes = indptr.size - 1
    if method not in METHODS:
        raise ConfigError(f"method: {method!r} is not one of {', '.join(METHODS)}")
    if not 1 <= n_parts <= MOST_PARTS:
        raise ConfigError(f"n_parts: {n_parts} is outside 1 <= n_parts <= {MOST_PARTS}")
    check_int("seed", seed)
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
    if graph.adjncy.size == 0:  # the graph has only self loops
        return partition(indptr, indices, n_parts, "contiguous", types=types)
    balance = balancing.chosen(balance, degrees)
    train = None if train_mask is None or "train" not in balance else np.asarray(train_mask)
    parts = balancing.fill_empty(graph.divide(n_parts, seed, balancing.weights(degrees, balance)), n_parts)
    if types is not None:
        return _even_types(graph, parts, n_parts, types, "nodes" in balance, train)
    if "edges" in balance and "nodes" in balance:
        parts = balancing.even_nodes(graph.xadj, graph.adjncy, parts, n_parts, degrees)
    return parts if train is None else balancing.swap_training(graph.xadj, graph.adjncy, parts, n_parts, train)


def _evenly(n_nodes: int, n_parts: int, method: str, seed: int) -> Array:
    """Divide the nodes into parts whose sizes differ by at most 1, and return the part of each node: consecutive ranges of ids, or
    for `method` "random" a random choice seeded by `seed`.
    """
    blocks = (np.arange(n_nodes) * n_parts // max(n_nodes, 1)).astype(np.int32)
    return np.random.Generator(np.random.PCG64(seed)).permutation(blocks) if method == "random" else blocks


def _even_types(graph: Symmetric, parts: Array, n_parts: int, types: Sequence[int] | Array, balance_nodes: bool,
                train: Array | None) -> Array:
    """Even out over the parts the training nodes (mask `train`) of each node type and, if `balance_nodes`, the other nodes of each
    type, by moves of nodes. types[k] is the first node of type k; `parts` is changed in place and returned.
    """
    n_types = len(types) - 1
    kinds = np.repeat(np.arange(n_types), np.diff(types))
    even = kinds if balance_nodes else np.full(parts.size, -1)  # group of nodes that a node is balanced with; -1 for none
    if train is not None:
        even = np.where(train, n_types + kinds, even)
    for kind in range(int(even.max(initial=-1)) + 1):
        balancing.even_group(graph.xadj, graph.adjncy, parts, n_parts, np.flatnonzero(even == kind))
    return parts


def check_parts(parts: ArrayLike, n_nodes: int, n_parts: int, source: str) -> Array:
    """Return `parts` as (n_nodes,) int32, or raise a DataError that names `source` and the first bad value."""
    return validation.integers(f"{source}: parts", parts, length=n_nodes, stop=n_parts, what="part",
                          entry="node {at} has part {value},").astype(np.int32)


def report(indptr: Array, indices: Array, parts: ArrayLike, n_parts: int, train_mask: ArrayLike | None = None) -> JsonDict:
    """Return measures of the partition `parts` (each node's part) of a graph's in-edges, a dict that JSON can represent: cut edges,
    halo rows, each part's numbers of nodes, edges and training nodes, and their imbalance.

    Parameters
    ----------
    indptr, indices : CSR of the in-edges
    parts : (n_nodes,) int
        Part of each node.
    n_parts : int
    train_mask : (n_nodes,) bool, optional

    Notes
    -----
    Memory: 13 bytes for each node, and a piece of the edges.
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
    """Counter of edges, cut edges and halo rows of each part of a partition. Edges are added part after part.

    Parameters
    ----------
    offsets : (n_parts + 1,) int
        Part q has the source rows offsets[q] .. offsets[q + 1] - 1.
    tiles : bool
        True to count for each pair of parts too.

    Attributes
    ----------
    edges, cut, halo_rows : (n_parts,) int64
        For each part the number of its in-edges, of in-edges whose source is in another part, and of the distinct
        sources of the latter.
    tiles, halo_tiles : (n_parts, n_parts) int64, or None
        At [p][q] the number of edges from part q to part p, and of the distinct rows of q that p needs.
    """

    def __init__(self, offsets, tiles=False):
        self.offsets, n_parts = offsets, len(offsets) - 1
        self.edges, self.cut, self.halo_rows = (np.zeros(n_parts, np.int64) for _ in range(3))
        self.tiles, self.halo_tiles = (np.zeros((n_parts, n_parts), np.int64) if tiles else None for _ in range(2))
        self._seen = np.zeros(int(offsets[-1]), bool)

    def add(self, part: int, sources: Array) -> None:
        """Count edges into part number `part`, given the row numbers of their `sources`: all edges, cut edges (from other parts),
        and rows of other parts that are needed.
        """
        remote = sources[(sources < self.offsets[part]) | (sources >= self.offsets[part + 1])]
        self._seen[remote] = True
        self.edges[part] += sources.size
        self.cut[part] += remote.size
        if self.tiles is not None:
            self.tiles[part] += rows_by_part(self.offsets, sources)

    def close(self, part: int) -> None:
        """Store the number of halo rows of part number `part` after all of its in-edges were added; the next part can then be added."""
        self.halo_rows[part] = np.count_nonzero(self._seen)
        if self.tiles is not None:
            self.halo_tiles[part] = [np.count_nonzero(rows) for rows in np.split(self._seen, self.offsets[1:-1])]
        self._seen[:] = False


def rows_by_part(offsets: Array, rows: Array) -> Array:
    """Return how many of the row numbers `rows` belong to each part; part q has rows offsets[q] .. offsets[q + 1] - 1."""
    return np.bincount(np.searchsorted(offsets, rows, side="right") - 1, minlength=len(offsets) - 1)


def measures(*, cut_edges: int, **counts: Array) -> JsonDict:
    """Return the measures of a partition, a dict for JSON: each of `counts` (such as nodes=, edges=, an entry for each part), its
    imbalance, which is the maximum over the mean, and the number and share of cut edges.

    Parameters
    ----------
    cut_edges : int
        Number of edges between different parts.
    **counts : (n_parts,) int
        Some of nodes, edges, train_nodes and halo_rows of each part. Edges count by destination; halo rows are distinct
        sources in other parts.

    Returns
    -------
    dict
        Values that JSON can represent: "n_parts"; each of the counts, a list of int; "imbalance", a dict with the
        maximum over the mean of each count, 1.0 if all are 0; "cut_edges"; and "cut_share".
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
