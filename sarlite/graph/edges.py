"""An edge list held in memory, turned into CSR by destination."""

import numpy as np

from sarlite.errors import DataError

_CHUNK = 1 << 22  # edges at a time where a full-size temporary would cost memory


def csr_by_dst(src, dst, n_nodes, *, undirected=False, self_loops=False, deduplicate=False, edge_index=False):
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
    Peak memory beyond the inputs, the result included, in bytes an input edge (measured, int32 result): 20; 40 with
    `undirected`; with `edge_index` 28, and 66 with both. Time: one sort.
    """
    src, dst = _checked(src, dst, n_nodes)
    keys = dst.astype(np.int64)
    keys *= n_nodes
    keys += src
    if undirected:
        keys = np.concatenate((keys, src.astype(np.int64) * n_nodes + dst))
    if self_loops:
        keys = np.concatenate((keys, _missing_loops(src, dst, n_nodes)))
    order = None
    if edge_index:
        order = np.argsort(keys, kind="stable")
        keys = keys[order]
        order[order >= src.size] = -1
    else:
        keys.sort()
    if deduplicate or undirected:
        keys, order = _first_of_equal(keys, order)
    indptr, indices = _decode(keys, n_nodes)
    return (indptr, indices, order) if edge_index else (indptr, indices)


def add_self_loops(indptr, indices, node_ids):
    """Return (indptr, indices) of some rows with the self loops that miss, each at the end of its row.

    Parameters
    ----------
    indptr, indices : (n_rows + 1,) int64, (n_edges,) int
        The rows of `node_ids`; indices are global ids. Borrowed.
    node_ids : (n_rows,) int64
    """
    here = np.zeros(len(node_ids), bool)
    rows = destinations(indptr)
    here[rows[indices == node_ids[rows]]] = True
    missing = np.flatnonzero(~here)
    indices = np.insert(indices, indptr[missing + 1], node_ids[missing].astype(indices.dtype))
    return indptr + np.concatenate([[0], np.cumsum(~here)]), indices


def destinations(indptr, dtype=np.int64):
    """Return the destination of every edge of a CSR graph, in edge order: (n_edges,) of `dtype`."""
    return np.repeat(np.arange(indptr.size - 1, dtype=dtype), np.diff(indptr))


def is_symmetric(indptr, indices):
    """Tell whether every edge's reverse is an edge too, as often. Memory: 24 bytes an edge."""
    n_nodes, dst = indptr.size - 1, destinations(indptr)
    forward = dst * n_nodes + indices
    forward.sort()
    backward = np.asarray(indices, np.int64) * n_nodes + dst
    backward.sort()
    return bool(np.array_equal(forward, backward))


def _checked(src, dst, n_nodes):
    """Return both ends as arrays, or raise for the first value that cannot be a node."""
    src, dst = np.asarray(src), np.asarray(dst)
    if n_nodes < 0 or n_nodes > 3_000_000_000:
        raise DataError(f"n_nodes: {n_nodes} is outside 0 <= n_nodes <= 3000000000")
    for name, ids in (("src", src), ("dst", dst)):
        if ids.ndim != 1:
            raise DataError(f"{name}: expected one dimension, found shape {ids.shape}")
        if ids.dtype.kind not in "iu":
            raise DataError(f"{name}: expected an integer dtype, found {ids.dtype}")
    if src.size != dst.size:
        raise DataError(f"src and dst: lengths disagree, {src.size} and {dst.size}")
    for name, ids in (("src", src), ("dst", dst)):
        if ids.size and (ids.min() < 0 or ids.max() >= n_nodes):
            at = int(np.argmax((ids < 0) | (ids >= n_nodes)))
            raise DataError(f"{name}: node id {ids[at]} at position {at} is outside 0 <= id < {n_nodes}")
    if src.dtype == np.uint64 or dst.dtype == np.uint64:  # NumPy would turn uint64 with int64 into float64
        src, dst = src.astype(np.int64), dst.astype(np.int64)
    return src, dst


def _missing_loops(src, dst, n_nodes):
    missing = np.ones(n_nodes, bool)
    missing[src[src == dst]] = False
    return np.flatnonzero(missing) * (n_nodes + 1)


def _first_of_equal(keys, order):
    first = np.ones(keys.size, bool)
    np.not_equal(keys[1:], keys[:-1], out=first[1:])
    return keys[first], None if order is None else order[first]


def _decode(keys, n_nodes):
    """Split sorted keys `dst * n_nodes + src` into CSR."""
    indptr = np.searchsorted(keys, np.arange(n_nodes + 1, dtype=np.int64) * n_nodes).astype(np.int64)
    indices = np.empty(keys.size, np.int32 if n_nodes <= 2**31 else np.int64)
    for at in range(0, keys.size, _CHUNK):
        indices[at : at + _CHUNK] = keys[at : at + _CHUNK] % n_nodes
    return indptr, indices
