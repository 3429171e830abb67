"""An edge list held in memory, turned into CSR by destination."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from sarlite import kernels
from sarlite.errors import DataError
from sarlite.structure import validation
from sarlite.types import Array, ArrayLike, DType

CHUNK = 1 << 20
"""Number of edges that are processed at a time, to keep temporary arrays small."""


def csr_by_dst(src: ArrayLike, dst: ArrayLike, n_nodes: int, *, undirected: bool = False, self_loops: bool = False,
               deduplicate: bool = False, edge_index: bool = False, chunk: int = CHUNK) -> Any:
    """Return the CSR (indptr, sources), with a row for each destination, of edges src[k] -> dst[k]. `undirected` and `self_loops`
    add edges, `deduplicate` drops equal edges. With `edge_index` the third result is the k of each entry, -1 for an added edge.

    Parameters
    ----------
    src, dst : (n_edges,) integer arrays
        Edge e goes from src[e] to dst[e].
    n_nodes : int
    undirected : bool
        True to add the reverse of every edge, and then to drop all but one of equal edges.
    self_loops : bool
        True to add the self loops that are missing.
    deduplicate : bool
        True to drop all but the first of equal edges.
    edge_index : bool
        True to return the array `edge_index` too.
    chunk : int
        Number of edges that are processed at a time; the result does not depend on it.

    Returns
    -------
    indptr : (n_nodes + 1,) int64
    indices : (n,) int32, or int64 if int32 is too small for the node ids
    edge_index : (n,) int64
        Only if asked for: position in `src` and `dst` of the edge at each CSR position; -1 for an edge that was added.
        Equal edges stand in the order of their positions.

    Raises
    ------
    DataError
        The lengths disagree, a dtype is not an integer one, or a node id is outside 0 <= id < n_nodes.

    Notes
    -----
    Peak memory in bytes for each input edge, with the result and without the inputs (measured, int32 result): 13; 25
    with `undirected`; 32 with `edge_index`; 64 with both. Time: one sort of 64-bit numbers; with `edge_index` two counting sorts.

    Examples
    --------
    >>> import numpy as np
    >>> indptr, indices = csr_by_dst(np.array([2, 0, 0]), np.array([1, 1, 2]), 3)
    >>> indptr.tolist(), indices.tolist()
    ([0, 0, 2, 3], [0, 2, 0])
    """
    n_nodes = validation.count("n_nodes", n_nodes)
    src, dst = checked_ends(src, dst, n_nodes, n_nodes)
    loops = _missing_loops(src, dst, n_nodes) if self_loops else np.empty(0, np.int64)
    once = deduplicate or undirected
    if edge_index:
        return _csr_with_origin(src, dst, loops, n_nodes, undirected, once)
    keys = np.empty(src.size * (1 + undirected) + loops.size, np.uint64)
    bits = id_bits(n_nodes)
    _pack(dst, src, bits, keys[: src.size], chunk)
    if undirected:
        _pack(src, dst, bits, keys[src.size : 2 * src.size], chunk)
    _pack(loops, loops, bits, keys[keys.size - loops.size :], chunk)
    keys.sort()
    return _decode(_first_of_equal(keys, chunk) if once else keys, n_nodes, bits, chunk)


def add_self_loops(indptr: Array, indices: Array, first_row: int) -> tuple[Array, Array, Array]:
    """Add the missing self loops to a CSR of in-edges, whose rows have the row numbers `first_row`, `first_row` + 1, ... Return
    (indptr, indices, mask of the rows that got a loop).

    Parameters
    ----------
    indptr, indices : (n_rows + 1,) int64, (n_edges,) int
        CSR of the in-edges of rows `first_row`, `first_row` + 1, ...; indices are row numbers of the sources, ascending
        in each row.
    first_row : int
        Row number of the first of these rows in the whole graph.

    Returns
    -------
    indptr, indices
        CSR with a self loop in each row.
    added : (n_rows,) bool
        True for each row whose self loop was added.
    """
    n_rows = indptr.size - 1
    added, before = np.empty(n_rows, bool), np.empty(n_rows, np.int64)
    for low, high in row_chunks(indptr, CHUNK):
        rows = destinations(indptr[low : high + 1])
        away = indices[indptr[low] : indptr[high]] - (rows + (first_row + low))
        before[low:high] = np.bincount(rows[away < 0], minlength=high - low)
        added[low:high] = np.bincount(rows[away == 0], minlength=high - low) == 0
    missing = np.flatnonzero(added)
    indices = np.insert(indices, indptr[missing] + before[missing], (missing + first_row).astype(indices.dtype))
    return indptr + np.concatenate([[0], np.cumsum(added)]), indices, added


def with_added_loops(values: Array, indptr: Array, indices: Array, added: Array, first_row: int, fill: Any) -> Array:
    """Return edge `values` with `fill` inserted for each self loop that `add_self_loops` added. `indptr`, `indices` and `added`
    (mask of rows with a new loop) are what `add_self_loops` returned, and `first_row` is the argument that it got.

    Parameters
    ----------
    values : (n_edges, ...) array
        Values of the edges before self loops were added.
    indptr, indices, added, first_row
        Results and argument of `add_self_loops`.
    fill : scalar or array
    """
    pieces = [np.empty(0, np.int64)]
    for low, high in row_chunks(indptr, CHUNK):
        rows = destinations(indptr[low : high + 1])
        loops = indices[indptr[low] : indptr[high]] == rows + (first_row + low)
        pieces.append(np.flatnonzero(loops & added[low:high][rows]) + indptr[low])
    places = np.concatenate(pieces)
    return np.insert(values, places - np.arange(places.size), fill, axis=0)


def row_chunks(indptr: Array, most: int, cuts: ArrayLike = ()) -> Iterator[tuple[int, int]]:
    """Yield (first, last), consecutive ranges of CSR rows first .. last - 1. A range has at most `most` rows and at most `most`
    edges, unless it is a single row. A range also starts at each row number in `cuts`.
    """
    stops = np.union1d(np.asarray(cuts, np.int64), [indptr.size - 1])
    first = 0
    while first < indptr.size - 1:
        last = int(np.searchsorted(indptr, indptr[first] + most, side="right")) - 1
        stop = int(stops[np.searchsorted(stops, first, side="right")])
        last = min(max(last, first + 1), first + most, stop)
        yield first, last
        first = last


def chunk_edges(n_nodes: int) -> int:
    """Return how many edges and rows may be sorted at once as packed 64-bit integers (row, source, position), if source ids are
    below `n_nodes`: at most 2^20, so that the three numbers fit.
    """
    return 1 << min(20, (62 - id_bits(n_nodes)) // 2)


def ascending(lengths: Array, columns: Array, n_nodes: int) -> Array:
    """Return the permutation, (n_edges,) int64, that sorts the numbers `columns` (0 .. n_nodes - 1) within each CSR row; equal
    numbers keep their order. Row i has lengths[i] entries.

    Parameters
    ----------
    lengths : (n_rows,) int
        Number of columns of each row; the rows follow each other in `columns`.
    columns : (n_edges,) int
        Column numbers, at least 0 and below `n_nodes`.

    Returns
    -------
    (n_edges,) int64
    """
    places = int(columns.size).bit_length()
    bits = places + id_bits(n_nodes)
    if bits + len(lengths).bit_length() > 64:
        return np.lexsort((columns, np.repeat(np.arange(len(lengths)), lengths)))
    keys = np.repeat(np.arange(len(lengths), dtype=np.uint64) << np.uint64(bits), lengths)
    keys |= columns.astype(np.uint64) << np.uint64(places)
    keys |= np.arange(columns.size, dtype=np.uint64)
    keys.sort()  # of numbers, which is several times as fast as a stable argsort
    keys &= np.uint64((1 << places) - 1)
    return keys.view(np.int64)


def id_bits(n_nodes: int) -> int:
    """Return the number of bits of the largest node id, `n_nodes` - 1; at least 1."""
    return max(1, int(n_nodes - 1).bit_length())


def index_dtype(n: int) -> np.dtype[Any]:
    """Return the dtype for integers 0 .. n - 1: int32, or int64 if int32 is too small."""
    return np.dtype(np.int32 if n <= 2**31 else np.int64)


def destinations(indptr: Array, dtype: DType = np.int64) -> Array:
    """Return the destination of every edge of a CSR graph, in edge order: (n_edges,) of `dtype`."""
    return np.repeat(np.arange(indptr.size - 1, dtype=dtype), np.diff(indptr))


def is_symmetric(indptr: Array, indices: Array) -> bool:
    """Return True if each edge of a CSR graph occurs as often as its reverse. Memory: 24 bytes per edge."""
    n_nodes, dst = indptr.size - 1, destinations(indptr)
    forward = dst * n_nodes + indices
    forward.sort()
    backward = np.asarray(indices, np.int64) * n_nodes + dst
    backward.sort()
    return bool(np.array_equal(forward, backward))


def checked_ends(src: ArrayLike, dst: ArrayLike, n_src: int, n_dst: int) -> tuple[Array, Array]:
    """Return (src, dst) as integer arrays; raise a DataError that names the first bad value unless 0 <= src < n_src and 0 <= dst <
    n_dst.
    """
    ends = []
    for name, ids, n in (("src", src, n_src), ("dst", dst, n_dst)):
        ends.append(validation.integers(name, ids, stop=n, entry="node id {value} at position {at} is"))
    if ends[0].size != ends[1].size:
        raise DataError(f"src and dst: lengths disagree, {ends[0].size} and {ends[1].size}")
    return ends[0], ends[1]


def _missing_loops(src: Array, dst: Array, n_nodes: int) -> Array:
    """Return the nodes without a self loop among the edges src[k] -> dst[k], ascending."""
    missing = np.ones(n_nodes, bool)
    missing[src[src == dst]] = False
    return np.flatnonzero(missing)


def _pack(high: Array, low: Array, bits: int, out: Array, chunk: int) -> None:
    """Write high * 2^bits + low, elementwise, to the uint64 array `out`, `chunk` entries at a time."""
    for at in range(0, out.size, chunk):
        piece = out[at : at + chunk]
        piece[...] = high[at : at + chunk]
        piece <<= np.uint64(bits)
        piece |= low[at : at + chunk].astype(np.uint64)


def _first_of_equal(keys: Array, chunk: int) -> Array:
    """Move the distinct values of the sorted array `keys` to its front, in place and `chunk` keys at a time; return the view of
    `keys` that holds them.
    """
    n_distinct, before = 0, None
    for at in range(0, keys.size, chunk):
        piece = keys[at : at + chunk]
        first = np.ones(piece.size, bool)
        np.not_equal(piece[1:], piece[:-1], out=first[1:])
        first[0] = before is None or piece[0] != before
        before, chosen = piece[-1], piece[first]
        keys[n_distinct : n_distinct + chosen.size] = chosen
        n_distinct += chosen.size
    return keys[:n_distinct]


def _decode(keys: Array, n_nodes: int, bits: int, chunk: int) -> tuple[Array, Array]:
    """Return the CSR (indptr, indices) of edges given as sorted integers `keys`, each row * 2^bits + column with row < n_nodes.
    `chunk` keys are decoded at a time.
    """
    bounds = np.arange(n_nodes + 1, dtype=np.uint64) << np.uint64(bits)
    indptr = np.searchsorted(keys, bounds).astype(np.int64)
    indices = np.empty(keys.size, index_dtype(n_nodes))
    for at in range(0, keys.size, chunk):
        indices[at : at + chunk] = keys[at : at + chunk] & np.uint64((1 << bits) - 1)
    return indptr, indices


def _csr_with_origin(src: Array, dst: Array, loops: Array, n_nodes: int, undirected: bool,
                     drop_equal: bool) -> tuple[Array, Array, Array]:
    """Return (indptr, indices, origin) of the CSR, ascending in each row, of the edges src[k] -> dst[k], of the reverse of each if
    `undirected`, and of a self loop at each node of `loops`. Entry k is edge origin[k], or an added edge, -1. `drop_equal` keeps the
    first of equal edges.

    Two stable counting sorts, by source and then by destination.
    """
    dtype = index_dtype(max(n_nodes, src.size * (1 + undirected) + loops.size))
    rows, columns = (np.concatenate([*ends[: 1 + undirected], loops], dtype=dtype, casting="unsafe")
                     for ends in ((dst, src), (src, dst)))
    one_each = np.arange(rows.size + 1)  # row pointers of a CSR with one edge in each row
    by_column = kernels.transpose(one_each, columns, n_nodes, position=False)[1]
    rows = np.take(rows, by_column)
    indptr, origin, _ = kernels.transpose(one_each, rows, n_nodes, rows=by_column, position=False)
    del one_each, by_column, rows
    origin = origin.astype(np.int64, copy=False)
    indices = columns[origin].astype(index_dtype(n_nodes), copy=False)
    del columns
    if drop_equal:
        is_first = np.ones(indices.size, bool)
        np.not_equal(indices[1:], indices[:-1], out=is_first[1:])
        is_first[indptr[:-1][np.diff(indptr) > 0]] = True
        indptr -= np.searchsorted(np.flatnonzero(~is_first), indptr)  # the number of dropped edges before each row
        indices, origin = indices[is_first], origin[is_first]
    origin[origin >= src.size] = -1
    return indptr, indices, origin
