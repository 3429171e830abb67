"""Which rank owns which node: METIS, random and contiguous partitions, a user's own, and what a partition costs."""

import warnings

import numpy as np

from sarlite import kernels
from sarlite.errors import ConfigError, DataError, needs, reading
from sarlite.graph.edges import chunk_edges, id_bits, row_chunks
from sarlite.graph.renumber import edges_in_order, sequence

_TRAIN_SLACK = 1.1
METHODS = ("metis", "random", "contiguous")


def partition(indptr, indices, n_parts, method="metis", *, train_mask=None, seed=0):
    """Assign every node to a part.

    Parameters
    ----------
    indptr : (n_nodes + 1,) integer array, borrowed
    indices : (n_edges,) integer array, borrowed
    n_parts : int
        May exceed the number of nodes; some parts are empty then, and only then.
    method : {"metis", "random", "contiguous"}
        "metis" cuts few edges and balances nodes plus training nodes; "random" and "contiguous" balance the nodes exactly,
        by a permutation or by ranges of node ids.
    train_mask : (n_nodes,) bool, optional
        Used by "metis" alone. pymetis balances one weight a node, and one weight for nodes and training nodes balances only
        their sum; so METIS balances the nodes, and then training nodes are swapped against others, those that cost the
        fewest cut edges first, until no part has more than 1.1 times its share (rounded up) of the training nodes.
    seed : int
        The same arguments give the same parts.

    Returns
    -------
    (n_nodes,) int32
        0 <= part < n_parts.

    Raises
    ------
    ConfigError
        Unknown method, `n_parts` below 1, a negative seed, or METIS is not there or fails.

    Notes
    -----
    Memory of "metis": of the graph, 4 bytes an edge, 8 more an edge of the symmetric graph, and what METIS takes, about 50; the
    others 12 bytes a node.
    Source: Karypis and Kumar 1998, "A fast and high quality multilevel scheme for partitioning irregular graphs".
    """
    n_nodes = indptr.size - 1
    if method not in METHODS:
        raise ConfigError(f"method: {method!r} is none of {', '.join(METHODS)}")
    if n_parts < 1:
        raise ConfigError(f"n_parts: {n_parts} is below 1")
    if seed < 0:
        raise ConfigError(f"seed: {seed} is below 0")
    blocks = (np.arange(n_nodes) * n_parts // max(n_nodes, 1)).astype(np.int32)
    if method == "random":
        return np.random.Generator(np.random.PCG64(seed)).permutation(blocks)
    if method == "contiguous" or n_parts == 1 or n_nodes <= n_parts:
        return blocks
    indptr, indices = _symmetric(indptr, indices)
    if indices.size == 0:
        return blocks
    parts = _fill_empty(_metis(indptr, indices, n_parts, seed), n_parts)
    return parts if train_mask is None else _balance(indptr, indices, parts, n_parts, np.asarray(train_mask))


def check_parts(parts, n_nodes, n_parts, source):
    """Return `parts` as (n_nodes,) int32, or raise a DataError that names `source` and the first bad value."""
    with reading(source, "parts"):
        parts = np.asarray(parts)
    if parts.dtype.kind not in "iu":
        raise DataError(f"{source}: parts: expected an integer dtype, found {parts.dtype}")
    if parts.shape != (n_nodes,):
        raise DataError(f"{source}: parts: expected shape ({n_nodes},), one part a node, found {parts.shape}")
    bad = (parts < 0) | (parts >= n_parts)
    if bad.any():
        at = int(np.argmax(bad))
        raise DataError(f"{source}: parts: node {at} has part {parts[at]}, outside 0 <= part < {n_parts}")
    return parts.astype(np.int32)


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
        tally.add(first, last, sources)
    return tally.measures(np.bincount(parts[train], minlength=n_parts))


class Tally:
    """Counts what a partition costs from its edges, part after part, with one bitmap of the nodes.

    Parameters
    ----------
    offsets : (n_parts + 1,) int
        Part p holds the rows offsets[p] .. offsets[p + 1].
    """

    def __init__(self, offsets):
        self.offsets, n_parts = offsets, len(offsets) - 1
        self.edges, self.cut, self.halo_rows = (np.zeros(n_parts, np.int64) for _ in range(3))
        self._seen, self._part = np.zeros(int(offsets[-1]), bool), None

    def add(self, first, last, sources):
        """Count the edges of rows first .. last, which are all of one part; `sources` are row numbers."""
        part = int(np.searchsorted(self.offsets, first, side="right")) - 1
        if part != self._part:
            self._next(part)
        remote = sources[(sources < self.offsets[part]) | (sources >= self.offsets[part + 1])]
        self._seen[remote] = True
        self.edges[part] += sources.size
        self.cut[part] += remote.size

    def measures(self, train_nodes):
        """Return what `measures` makes of the counts."""
        self._next(None)
        nodes = np.diff(self.offsets)
        return measures(nodes=nodes, edges=self.edges, train_nodes=train_nodes, halo_rows=self.halo_rows, cut_edges=int(self.cut.sum()))

    def _next(self, part):
        if self._part is not None:
            self.halo_rows[self._part] = np.count_nonzero(self._seen)
            self._seen[:] = False
        self._part = part


def measures(*, cut_edges, **counts):
    """Put what was counted together.

    Parameters
    ----------
    cut_edges : int
        Edges whose source is in another part than their destination.
    nodes, edges, train_nodes, halo_rows : (n_parts,) int
        Of each part; edges by destination, halo rows are distinct remote sources. Any of them.

    Returns
    -------
    dict
        "n_parts"; the counts as lists of int; "imbalance": of each maximum over mean, 1.0 where all are 0; "cut_edges" and
        "cut_share". JSON can hold it.
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


def _index():
    """The integers that this pymetis takes without a copy."""
    pymetis = needs("pymetis", "method 'metis'")
    return np.dtype(pymetis.zero_copy_dtype() if hasattr(pymetis, "zero_copy_dtype") else np.int32)


def _symmetric(indptr, indices):
    """METIS's graph: between two nodes with an edge one each way, no self loops, every row ascending.

    The transpose says whether the graph is symmetric already, as most are; then its own rows are METIS's. Memory that is reserved
    for edges that turn out to be equal is never touched.
    """
    n_nodes, index = indptr.size - 1, _index()
    indptr, indices = np.ascontiguousarray(indptr, np.int64), np.ascontiguousarray(indices)
    if indices.dtype.name not in ("int32", "int64"):
        indices = indices.astype(np.int64)
    reverse = kernels.transpose(indptr, indices, n_nodes, position=False)[:2]
    same = np.array_equal(indptr, reverse[0]) and np.array_equal(indices, reverse[1])
    both = ((indptr, indices),) if same else ((indptr, indices), reverse)
    xadj, adjncy = np.zeros(n_nodes + 1, index), np.empty(indices.size * len(both), index)
    bits, filled = np.uint64(id_bits(n_nodes)), 0
    for low, high in row_chunks(indptr, chunk_edges(n_nodes)):
        keys = np.concatenate([_keys(*graph, low, high, bits) for graph in both])
        if not same:
            keys.sort()
        rows, columns = (keys >> bits).view(np.int64), (keys & ((np.uint64(1) << bits) - np.uint64(1))).view(np.int64)
        keep = columns != rows + low
        keep[1:] &= keys[1:] != keys[:-1]
        columns = columns[keep]
        xadj[low + 1 : high + 1] = np.bincount(rows[keep], minlength=high - low)
        adjncy[filled : filled + columns.size] = columns
        filled += columns.size
    np.cumsum(xadj, out=xadj)
    return xadj, adjncy[:filled]


def _keys(indptr, indices, low, high, bits):
    keys = np.repeat(np.arange(high - low, dtype=np.uint64) << bits, np.diff(indptr[low : high + 1]))
    keys |= indices[indptr[low] : indptr[high]].astype(np.uint64)
    return keys


def _metis(indptr, indices, n_parts, seed):
    index = _index()
    if indices.size > np.iinfo(index).max:
        raise ConfigError(f"method: this pymetis has {index} indices, too small for {indices.size} edges; bring parts in a file")
    pymetis = needs("pymetis", "method 'metis'")
    xadj, adjncy = indptr.astype(index, copy=False), indices.astype(index, copy=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # xadj= and adjncy=: the form that old and new pymetis take without a copy
        try:
            _, parts = pymetis.part_graph(n_parts, xadj=xadj, adjncy=adjncy, options=pymetis.Options(seed=seed % 2**31))
        except RuntimeError as error:
            raise ConfigError(f"method: METIS failed for {indptr.size - 1} nodes and {n_parts} parts: {error}") from error
    return np.array(parts, np.int32)


def _balance(indptr, indices, parts, n_parts, train):
    """Swap training nodes of parts that have too many against other nodes of parts that have too few."""
    n_train = np.count_nonzero(train)
    most = int(np.ceil(_TRAIN_SLACK * n_train / n_parts))
    for _ in range(4 * n_parts):
        counts = np.bincount(parts[train], minlength=n_parts)
        giver = int(np.argmax(counts))
        if counts[giver] <= most:
            break
        others = np.bincount(parts[~train], minlength=n_parts)
        taker = int(np.argmin(np.where(others > 0, counts, n_train)))
        n_swaps = min(counts[giver] - most, most - counts[taker], others[taker])
        if n_swaps <= 0:
            break
        there = _cheapest(indptr, indices, parts, train & (parts == giver), giver, taker, n_swaps)
        back = _cheapest(indptr, indices, parts, ~train & (parts == taker), taker, giver, n_swaps)
        parts[there], parts[back] = taker, giver
    return parts


def _cheapest(indptr, indices, parts, candidates, home, away, count):
    """Return the `count` candidates that move from `home` to `away` at the least cost in cut edges."""
    nodes = np.flatnonzero(candidates)
    lengths = indptr[nodes + 1] - indptr[nodes]
    owner = np.repeat(np.arange(nodes.size), lengths)
    first = np.cumsum(lengths) - lengths
    near = parts[indices[np.arange(owner.size) - first[owner] + indptr[nodes][owner]]]
    cost = np.bincount(owner[near == home], minlength=nodes.size) - np.bincount(owner[near == away], minlength=nodes.size)
    return nodes[np.argsort(cost, kind="stable")[:count]]


def _fill_empty(parts, n_parts):
    """Give each empty part one node of the part that is largest at that time; there are at least as many nodes as parts."""
    sizes = np.bincount(parts, minlength=n_parts)
    for empty in np.flatnonzero(sizes == 0):
        giver = int(np.argmax(sizes))
        parts[np.flatnonzero(parts == giver)[-1]] = empty
        sizes[giver] -= 1
        sizes[empty] = 1
    return parts
