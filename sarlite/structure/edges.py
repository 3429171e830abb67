"""An edge list held in memory, turned into CSR by destination."""

import numpy as np

from sarlite.errors import DataError
from sarlite.structure import validation

CHUNK = 1 << 20
"""Edges at a time where a full-size temporary would cost memory."""


def csr_by_dst(src, dst, n_nodes, *, undirected=False, self_loops=False, deduplicate=False, edge_index=False,
               chunk=CHUNK):
    """Sort edges into CSR: row i holds, ascending, the sources of the edges that end in node i.

    Parameters
    ----------
    src, dst : (n_edges,) integer arrays, borrowed
    n_nodes : int
    undirected : bool
        Add the reverse of every edge, then keep each edge once; a self loop stays one edge.
    self_loops : bool
        Add the self loops that are missing.
    deduplicate : bool
        Keep the first of equal edges.
    edge_index : bool
        Return `edge_index` too.
    chunk : int
        Edges at a time; the result does not depend on it.

    Returns
    -------
    indptr : (n_nodes + 1,) int64
    indices : (edges kept,) int32, or int64 where a node id needs it
    edge_index : (edges kept,) int64, only if asked for
        For every CSR position the position of its edge in `src` and `dst`; -1 for an edge that was added.
        Equal edges keep the order in which they came.

    Raises
    ------
    DataError
        The lengths disagree, a dtype is not an integer one, or a node id is outside 0 <= id < n_nodes.

    Notes
    -----
    Peak memory beyond the inputs, the result included, in bytes an input edge (measured, int32 result): 14; 26 with
    `undirected`; with `edge_index` 20, and 43 with both.
    Time: one sort of 64-bit numbers; with `edge_index` two.
    """
    n_nodes = validation.count("n_nodes", n_nodes)
    src, dst = checked_ends(src, dst, n_nodes, n_nodes)
    loops = _missing_loops(src, dst, n_nodes) if self_loops else np.empty(0, np.int64)
    once = deduplicate or undirected
    if edge_index:
        indptr, origin = _grouped(_all_edges(dst, src, loops, undirected), n_nodes)
        return _csr_with_origin(indptr, _all_edges(src, dst, loops, undirected), origin, src.size, once, chunk)
    keys = np.empty(src.size * (1 + undirected) + loops.size, np.uint64)
    bits = id_bits(n_nodes)
    _pack(dst, src, bits, keys[: src.size], chunk)
    if undirected:
        _pack(src, dst, bits, keys[src.size : 2 * src.size], chunk)
    _pack(loops, loops, bits, keys[keys.size - loops.size :], chunk)
    keys.sort()
    return _decode(_first_of_equal(keys, chunk) if once else keys, n_nodes, bits, chunk)


def add_self_loops(indptr, indices, first_row):
    """Insert the missing self loops, each at its position among the ascending sources.

    Parameters
    ----------
    indptr, indices : (n_rows + 1,) int64, (n_edges,) int
        Rows `first_row`, `first_row` + 1, ... of a graph. `indices` are the row numbers of the sources, ascending in
        each row. Borrowed.
    first_row : int

    Returns
    -------
    indptr, indices
        Rows that each have their own number among their sources.
    added : (n_rows,) bool
        Whether the row's self loop was added.
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


def with_added_loops(values, indptr, indices, added, first_row, fill):
    """Extend edge values to the edges that `add_self_loops` returned, with `fill` for each added loop."""
    places = []
    for low, high in row_chunks(indptr, CHUNK):
        rows = destinations(indptr[low : high + 1])
        own = indices[indptr[low] : indptr[high]] == rows + (first_row + low)
        places.append(np.flatnonzero(own & added[low:high][rows]) + indptr[low])
    places = np.concatenate([np.empty(0, np.int64), *places])
    return np.insert(values, places - np.arange(places.size), fill, axis=0)


def row_chunks(indptr, most, cuts=()):
    """Yield ranges (first, last) of a CSR's rows, of at most `most` edges and rows, or of one row.

    No range reaches across a row of `cuts`.
    """
    stops = np.union1d(np.asarray(cuts, np.int64), [indptr.size - 1])
    first = 0
    while first < indptr.size - 1:
        last = int(np.searchsorted(indptr, indptr[first] + most, side="right")) - 1
        stop = int(stops[np.searchsorted(stops, first, side="right")])
        last = min(max(last, first + 1), first + most, stop)
        yield first, last
        first = last


def chunk_edges(n_nodes):
    """Return a number of edges, and of rows, that `ascending` sorts fast."""
    return 1 << min(20, (62 - id_bits(n_nodes)) // 2)


def ascending(lengths, columns, n_nodes):
    """Return the stable permutation that sorts the columns of each row.

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


def id_bits(n_nodes):
    """Return the number of bits of a node id."""
    return max(1, int(n_nodes - 1).bit_length())


def index_dtype(n):
    """Return the dtype for numbers below `n`: int32, or int64 if int32 is too small."""
    return np.dtype(np.int32 if n <= 2**31 else np.int64)


def destinations(indptr, dtype=np.int64):
    """Return the destination of every edge of a CSR graph, in edge order: (n_edges,) of `dtype`."""
    return np.repeat(np.arange(indptr.size - 1, dtype=dtype), np.diff(indptr))


def is_symmetric(indptr, indices):
    """Return True if each edge occurs as often as its reverse. Memory: 24 bytes per edge."""
    n_nodes, dst = indptr.size - 1, destinations(indptr)
    forward = dst * n_nodes + indices
    forward.sort()
    backward = np.asarray(indices, np.int64) * n_nodes + dst
    backward.sort()
    return bool(np.array_equal(forward, backward))


def checked_ends(src, dst, n_src, n_dst):
    """Return both ends of edges as integers, or raise a DataError for the first value that cannot be a node."""
    ends = []
    for name, ids, n in (("src", src, n_src), ("dst", dst, n_dst)):
        ends.append(validation.integers(name, ids, stop=n, entry="node id {value} at position {at} is"))
    if ends[0].size != ends[1].size:
        raise DataError(f"src and dst: lengths disagree, {ends[0].size} and {ends[1].size}")
    return ends


def _missing_loops(src, dst, n_nodes):
    missing = np.ones(n_nodes, bool)
    missing[src[src == dst]] = False
    return np.flatnonzero(missing)


def _pack(high, low, bits, out, chunk):
    """Fill `out` with high * 2^bits + low."""
    for at in range(0, out.size, chunk):
        piece = out[at : at + chunk]
        piece[...] = high[at : at + chunk]
        piece <<= np.uint64(bits)
        piece |= low[at : at + chunk].astype(np.uint64)


def _first_of_equal(keys, chunk):
    """Move the first of equal keys to the front, and return these first ones."""
    kept, before = 0, None
    for at in range(0, keys.size, chunk):
        piece = keys[at : at + chunk]
        first = np.ones(piece.size, bool)
        np.not_equal(piece[1:], piece[:-1], out=first[1:])
        first[0] = before is None or piece[0] != before
        before, chosen = piece[-1], piece[first]
        keys[kept : kept + chosen.size] = chosen
        kept += chosen.size
    return keys[:kept]


def _decode(keys, n_nodes, bits, chunk):
    """Split sorted keys into CSR."""
    bounds = np.arange(n_nodes + 1, dtype=np.uint64) << np.uint64(bits)
    indptr = np.searchsorted(keys, bounds).astype(np.int64)
    indices = np.empty(keys.size, index_dtype(n_nodes))
    for at in range(0, keys.size, chunk):
        indices[at : at + chunk] = keys[at : at + chunk] & np.uint64((1 << bits) - 1)
    return indptr, indices


def _all_edges(one, other, loops, undirected):
    """Return one end of all edges: given edges, their reverses, and added self loops."""
    return np.concatenate([one, other, loops] if undirected else [one, loops], dtype=np.uint32, casting="unsafe")


def _grouped(rows, n_nodes, key_bits=64):
    """Return the CSR's indptr, and the positions of the edges row by row, ascending in each: a stable argsort.

    Row and position are sorted as one number, where this fits `key_bits`.
    """
    indptr = np.concatenate(([0], np.cumsum(np.bincount(rows, minlength=n_nodes))))
    places = max(1, int(rows.size).bit_length())
    if id_bits(n_nodes) + places > key_bits:
        return indptr, np.argsort(rows, kind="stable")
    keys = np.empty(rows.size, np.uint64)
    _pack(rows, np.arange(rows.size, dtype=index_dtype(rows.size)), places, keys, CHUNK)
    keys.sort()
    keys &= np.uint64((1 << places) - 1)
    return indptr, keys.view(np.int64)


def _csr_with_origin(indptr, columns, origin, n_given, once, chunk):
    """Sort each row of the edges at `origin`, in pieces that fit the cache; `once` keeps the first of equal edges."""
    n_nodes, filled = indptr.size - 1, 0
    indices, kept = np.empty(columns.size, index_dtype(n_nodes)), np.diff(indptr)
    for low, high in row_chunks(indptr, min(chunk, chunk_edges(n_nodes))):
        here, lengths = slice(indptr[low], indptr[high]), kept[low:high]
        sources = columns[origin[here]]
        order = ascending(lengths, sources, n_nodes)
        sources, edges = sources[order], origin[here][order]
        if once:
            first = np.ones(sources.size, bool)
            np.not_equal(sources[1:], sources[:-1], out=first[1:])
            first[(indptr[low:high] - indptr[low])[lengths > 0]] = True
            kept[low:high] = np.diff(np.concatenate(([0], np.cumsum(first)))[indptr[low : high + 1] - indptr[low]])
            sources, edges = sources[first], edges[first]
        there = slice(filled, filled := filled + sources.size)
        indices[there], origin[there] = sources, np.where(edges < n_given, edges, -1)
    return np.concatenate(([0], np.cumsum(kept))), indices[:filled].copy() if once else indices, origin[:filled]
