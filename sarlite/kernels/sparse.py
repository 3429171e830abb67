"""Kernels over the edges of a CSR: sums, dot products, maxima; and the transpose."""

import numpy as np

from sarlite.errors import ShapeError
from sarlite.kernels.bfloat16 import widen
from sarlite.kernels.native import (
    FLOATS,
    INDEXES,
    ROWS,
    call,
    check,
    check_apart,
    check_csr,
    check_csr_rows,
    check_per_edge,
    check_rows,
    index_dtype,
    row_width,
    suffix_of,
    wide,
)


def sum_fields(indptr, indices, rows, x, n_out, eid, edge_rows, src_scale=None, names=("out", "weight")):
    """Check what sums over edges have in common; return the fields of sar_sum and the kernel's suffix.

    x and the rows of the destinations, n_out, are checked before. `names` are those of the destinations' rows and of
    `edge_rows`.
    """
    n_dst, end = check_csr(indptr, indices, x)
    index, dtype = index_dtype(indices, eid, rows, n_edges=end), wide(x.dtype)
    dst_name, edge_name = names
    check_csr_rows(rows, n_dst, n_out, index, dst_name)
    check_per_edge("eid", eid, index, end)
    if src_scale is not None:
        check("src_scale", src_scale, dtype=dtype, shape=(len(x),))
    n_heads = 1
    if edge_rows is not None:
        check(edge_name, edge_rows, dtype=dtype, out=edge_name == "out")
        n_heads = edge_rows.shape[1] if edge_rows.ndim == 2 else 1
        fits = edge_rows.ndim == 1 or (edge_rows.ndim == 2 and x.ndim > 1 and n_heads == x.shape[1])
        if not fits or (eid is None and len(edge_rows) < end):
            raise ShapeError(f"{edge_name} must be (n,) or (n, H) with x (n_src, H, ...), a row for each edge; "
                             f"got shape {edge_rows.shape}, dtype {edge_rows.dtype}, x {x.shape}")
    n_feat = row_width(x) // n_heads if n_heads else 0
    csr = {"indptr": indptr, "indices": indices, "rows": rows, "eid": eid, "n_rows": n_dst}
    fields = {"csr": csr, "x": x, "src_scale": src_scale, "n_src": len(x), "n_heads": n_heads, "n_feat": n_feat}
    return fields, suffix_of(x.dtype, index)


def spmm(indptr, indices, x, out, *, rows=None, eid=None, weight=None, src_scale=None, dst_scale=None, accumulate=True):
    """Add the weighted sum of each row's neighbours.

    ``out[r,h,:] += dst_scale[r] * sum_{e in row i} weight[eid[e],h] * src_scale[c] * x[c,h,:]`` with ``r = rows[i]``,
    or i when `rows` is None, and ``c = indices[e]``, or e when `indices` is None (a segment sum over edges).

    Parameters
    ----------
    indptr : (n_dst + 1,) int64
    indices : (n_edges,) int32 or int64, or None
    x : (n_src, ...) float32, float64, or uint16 as bfloat16, of which all other values are float32
        Any trailing shape; (n_src, H, ...) with a weight per head.
    out : (n_out, ...), x's dtype, or float32 of bfloat16, and trailing shape
        Accumulates; without `accumulate` the rows that the CSR has are overwritten.
    rows : (n_dst,), indices' dtype, optional
        Row of `out` of each row of the CSR, each at most once; default: the same row, and n_out is n_dst.
    eid : (n_edges,), indices' dtype, optional
        Row of `weight` of each edge; default: the edge's position.
    weight : (n,) or (n, H), x's dtype, optional
        One per edge, or one per edge and head. Default 1, as for the scales.
    src_scale, dst_scale : (n_src,), (n_out,), x's dtype, optional

    Notes
    -----
    O(n_edges * F) time, no memory. One thread sums a row, so the result does not depend on the number of threads. The
    gradient of x is the same call on the transpose with the scales exchanged. SAR Eq. 1 and 2.
    """
    check_rows("x", x, dtype=ROWS)
    check("out", out, dtype=wide(x.dtype), shape=(None, *x.shape[1:]), out=True)
    fields, suffix = sum_fields(indptr, indices, rows, x, len(out), eid, weight, src_scale)
    if dst_scale is not None:
        check("dst_scale", dst_scale, dtype=out.dtype, shape=(len(out),))
    check_apart(out, x=x, weight=weight, src_scale=src_scale, dst_scale=dst_scale)
    call(f"sar_spmm_forward_{suffix}", out, {**fields, "weight": weight, "dst_scale": dst_scale}, accumulate)


def edge_dot(indptr, indices, g, x, out, *, rows=None, eid=None, dst_scale=None):
    """Add, for each edge, the dot product of its two rows: the gradient of spmm's weights (SDDMM).

    ``out[eid[e],h] += dst_scale[r] * sum_d g[r,h,d] * x[c,h,d]`` with ``r = rows[i]``, or i when `rows` is None, and
    ``c = indices[e]``, or e when `indices` is None.

    Parameters
    ----------
    indptr, indices, rows, eid, dst_scale
        As for spmm, with g in the place of its out; the values of `eid` are unique.
    g : (n_out, ...), x's dtype and trailing shape
    x : (n_src, ...) float32, float64, or uint16 as bfloat16
    out : (n,) or (n, H), x's dtype, or float32 of bfloat16
        Accumulates.

    Notes
    -----
    O(n_edges * F) time, no memory.
    """
    if out is None:
        raise ShapeError("out must be a NumPy array, got NoneType")
    check_rows("x", x, dtype=ROWS)
    check("g", g, dtype=x.dtype, shape=(None, *x.shape[1:]))
    fields, suffix = sum_fields(indptr, indices, rows, x, len(g), eid, out, names=("g", "out"))
    if dst_scale is not None:
        check("dst_scale", dst_scale, dtype=wide(x.dtype), shape=(len(g),))
    check_apart(out, g=g, x=x, dst_scale=dst_scale)
    call(f"sar_edge_dot_forward_{suffix}", out, g, {**fields, "dst_scale": dst_scale})


def extremum(indptr, indices, x, out, arg, *, sign, rows=None, offset=0, label=None, order=None):
    """Update a running maximum or minimum of each row's neighbours, with its argument.

    For edge e of row i with ``r = indices[e]`` (or e when `indices` is None) the candidate is ``(x[r,f], label)``,
    where label is ``label[e]`` if given, else ``offset + r``. With ``t = rows[i]`` (or i when `rows` is None), the
    candidate replaces ``(out[t,f], arg[t,f])`` when ``arg[t,f] < 0``, when the candidate's value is better, or when the
    values are equal and ``order[candidate] < order[arg]``. A NaN wins over any number and stays.

    Parameters
    ----------
    indptr : (n_dst + 1,) int64
    indices : (n_edges,) int32 or int64, or None
    x : (n_src, ...) float32, float64, or uint16 as bfloat16
    out : (n_out, ...), x's dtype, or float32 of bfloat16, and trailing shape
        Updated. The caller makes it; where arg is -1 the value does not matter.
    arg : indices' dtype, out's shape
        Updated. -1: no candidate yet.
    sign : {1, -1}
        1 for the maximum, -1 for the minimum.
    rows : (n_dst,), indices' dtype, optional
        As for spmm.
    offset : int
        Label of x's first row.
    label : (n_edges,), indices' dtype, optional
    order : (n_labels,) int64, optional
        Rank of each label at ties; default: the label itself.

    Raises
    ------
    ShapeError
        Naming the argument; also for a label that is negative or outside `order`.

    Notes
    -----
    O(n_edges * F) time. How the edges are split into blocks or ordered does not change the result.
    """
    x = widen(x)
    check_rows("x", x)
    n_dst, end = check_csr(indptr, indices, x)
    check("out", out, dtype=x.dtype, shape=(None, *x.shape[1:]), out=True)
    check("arg", arg, dtype=INDEXES, shape=out.shape, out=True)
    index = index_dtype(indices, arg, n_edges=end)
    check("arg", arg, dtype=index)
    check_csr_rows(rows, n_dst, len(out), index)
    check_per_edge("label", label, index, end)
    if label is None and (offset < 0 or offset + len(x) - 1 > np.iinfo(index).max):
        raise ShapeError(f"offset must keep labels within {index}, got {offset} with {len(x)} rows")
    check("order", order, dtype=np.int64, shape=(None,), optional=True)
    if sign not in (1, -1):
        raise ShapeError(f"sign must be 1 or -1, got {sign}")
    check_apart(out, x=x)
    csr = {"indptr": indptr, "indices": indices, "rows": rows, "n_rows": n_dst}
    labels = {"label": label, "order": order, "offset": int(offset), "n_order": 0 if order is None else len(order)}
    call(f"sar_extremum_forward_{FLOATS[x.dtype]}_{INDEXES[index]}", out, arg, csr, labels, x, int(sign), row_width(x))


def extremum_backward(g, arg, dx, offset=0, long=None):
    """Add each gradient to the row that its value came from: ``dx[arg[i,f] - offset, f] += g[i,f]``.

    Parameters
    ----------
    g : (n_dst, ...) float32 or float64
    arg : g's shape, int32 or int64
        Labels from `extremum`. Labels outside ``offset .. offset + n_src`` (other blocks', and -1) are passed over.
    dx : (n_src, ...), g's dtype and trailing shape
        Accumulates.
    offset : int
        Label of dx's first row.
    long : (n,) int, optional
        Rows of dx that very many gradients may go to: each is summed in float64.

    Notes
    -----
    O(n_dst * F) time, parallel over columns, the same result for any number of threads; 8 n F bytes for `long`.
    """
    check_rows("g", g)
    check("arg", arg, dtype=INDEXES, shape=g.shape)
    check("dx", dx, dtype=g.dtype, shape=(None, *g.shape[1:]), out=True)
    check_apart(dx, g=g)
    kernel = f"sar_extremum_backward_{FLOATS[g.dtype]}_{INDEXES[arg.dtype]}"
    place, sums = None, None
    if long is not None and len(long):
        place, sums = np.full(len(dx), -1, arg.dtype), np.zeros((len(long), *dx.shape[1:]))
        place[long] = np.arange(len(long))
    call(kernel, dx, sums, g, arg, place, int(offset), len(g), len(dx), row_width(g))
    if sums is not None:
        dx[long] += sums.astype(dx.dtype)


def transpose(indptr, indices, n_src, *, rows=None, position=True):
    """Transpose a CSR.

    Parameters
    ----------
    indptr : (n_dst + 1,) int64
        From 0 on.
    indices : (n_edges,) int32 or int64
    n_src : int
        Number of columns.
    rows : (n_dst,), indices' dtype, optional
        The name of each row of the CSR in `t_indices`; by default its position.
    position : bool
        Whether to return `perm`.

    Returns
    -------
    t_indptr : (n_src + 1,) int64
    t_indices : (n_edges,), indices' dtype
        Destinations, in the order of the CSR's rows: ascending in each row where `rows` ascend.
    perm : (n_edges,), indices' dtype, or None
        Position in `indices` of each edge of the transpose; ascending in each row.

    Raises
    ------
    ShapeError
        Naming the argument; also when an entry of `indices` is outside 0 .. n_src.

    Notes
    -----
    O(n_edges + n_src + n_dst) time and no memory beside the results. A stable counting sort, whose result is the same
    for any number of threads. """
    n_dst, n_edges = check_csr(indptr, check("indices", indices, dtype=INDEXES))
    if indptr[0] != 0 or n_edges != len(indices):
        found = f"got shape {indices.shape}, dtype {indices.dtype}"
        raise ShapeError(f"indices must hold just the edges of indptr, {n_edges}; {found}")
    check_csr_rows(rows, n_dst, n_dst, indices.dtype)
    if max(n_dst if rows is None else 0, n_edges if position else 0) > np.iinfo(indices.dtype).max:
        raise ShapeError(f"indices must have dtype int64 for {n_dst} rows and {n_edges} edges; "
                         f"got dtype {indices.dtype}")
    t_indptr, t_indices = np.empty(n_src + 1, np.int64), np.empty(n_edges, indices.dtype)
    perm = np.empty(n_edges, indices.dtype) if position else None
    try:
        call(f"sar_transpose_{INDEXES[indices.dtype]}", t_indptr, t_indices, perm, indptr, indices, rows, n_dst, n_src)
    except ShapeError:  # which does not know the argument
        found = f"got {indices.min()} .. {indices.max()}, shape {indices.shape}"
        raise ShapeError(f"indices must lie in 0 .. {n_src}; {found}") from None
    return t_indptr, t_indices, perm
