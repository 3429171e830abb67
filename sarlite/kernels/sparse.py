"""Kernels over the edges of a CSR: sums, dot products, maxima; and the transpose."""

from typing import Any

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
from sarlite.types import Array


def sum_fields(indptr: Array, indices: Array | None, rows: Array | None, x: Array, n_out: int, eid: Array | None,
               edge_rows: Array | None, src_scale: Array | None = None,
               names: tuple[str, str] = ("out", "weight")) -> tuple[dict[str, Any], str]:
    """Check the arguments of `spmm` or `edge_dot`, and return (fields of the C struct sar_sum as a dict, suffix of the kernel's
    name). `n_out` is the number of destination rows. `edge_rows` is the array that has a row for each edge: the weights of `spmm`
    (None: no weights), or the output of `edge_dot`.

    Parameters
    ----------
    indptr, indices, rows, x, eid, src_scale
        See `spmm`. x is checked before.
    n_out : int
        Number of rows of the destinations' array, which is checked before.
    edge_rows : (n,) or (n, H) array, or None
        Array with a value for each edge: the weights of `spmm`, or the output of `edge_dot`.
    names : (str, str)
        Names of the destinations' array and of `edge_rows` in error messages.
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


def spmm(indptr: Array, indices: Array | None, x: Array, out: Array, *, rows: Array | None = None,
         eid: Array | None = None, weight: Array | None = None, src_scale: Array | None = None,
         dst_scale: Array | None = None, accumulate: bool = True) -> None:
    """Add to `out` the product A @ x, where A is a CSR whose row i is added to out[rows[i]] (None: out[i]); accumulate=False overwrites
    these rows instead. Edge e of A has the value weight[eid[e]], times src_scale of its source, times dst_scale of its destination; a
    factor that is None is 1.

    ``out[r,h,:] += dst_scale[r] * sum_{e in row i} weight[eid[e],h] * src_scale[c] * x[c,h,:]``. Here ``r = rows[i]``,
    or ``r = i`` if `rows` is None. The source is ``c = indices[e]``, or ``c = e`` if `indices` is None, for a segment
    sum over rows of edges.

    Parameters
    ----------
    indptr : (n_dst + 1,) int64
    indices : (n_edges,) int32 or int64, or None
    x : (n_src, ...) float32, float64, or uint16 as bfloat16
        Source rows of any shape; (n_src, H, ...) with a weight for each head. With bfloat16 the other values are
        float32.
    out : (n_out, ...), x's dtype, or float32 with bfloat16
        Rows in the shape of x's rows; accumulated. If `accumulate` is False, the rows that the CSR has are overwritten.
    rows : (n_dst,), indices' dtype, optional
        Row of `out` for each row of the CSR, each at most once; by default row i for row i, with n_out = n_dst.
    eid : (n_edges,), indices' dtype, optional
        Row of `weight` for each edge; by default the edge's position.
    weight : (n,) or (n, H), x's dtype, optional
        Weight of each edge, or of each edge and head; by default 1.
    src_scale, dst_scale : (n_src,), (n_out,), x's dtype, optional
        Factors of the source rows and of the sums; by default 1.
    accumulate : bool

    Notes
    -----
    O(n_edges * F) time, no memory. One thread computes a row, so the result does not depend on the number of threads.
    The gradient of x is the same call on the transpose, with the scales exchanged.

    References
    ----------
    SAR Eq. 1 and 2.

    Examples
    --------
    >>> out = np.zeros((2, 1))
    >>> spmm(np.array([0, 1, 3]), np.array([0, 0, 1]), np.array([[1.0], [2.0]]), out)
    >>> out.tolist()
    [[1.0], [3.0]]
    """
    check_rows("x", x, dtype=ROWS)
    check("out", out, dtype=wide(x.dtype), shape=(None, *x.shape[1:]), out=True)
    fields, suffix = sum_fields(indptr, indices, rows, x, len(out), eid, weight, src_scale)
    if dst_scale is not None:
        check("dst_scale", dst_scale, dtype=out.dtype, shape=(len(out),))
    check_apart(out, x=x, weight=weight, src_scale=src_scale, dst_scale=dst_scale)
    call(f"sar_spmm_forward_{suffix}", out, {**fields, "weight": weight, "dst_scale": dst_scale}, accumulate)


def edge_dot(indptr: Array, indices: Array | None, g: Array, x: Array, out: Array, *, rows: Array | None = None,
             eid: Array | None = None, dst_scale: Array | None = None) -> None:
    """Add to out[eid[e]], for each edge e of a CSR, the dot product of the edge's source row in x and destination row in g. The
    product is multiplied by dst_scale of the destination. This is the gradient of the weights of `spmm`.

    ``out[eid[e],h] += dst_scale[r] * sum_d g[r,h,d] * x[c,h,d]``, with r and c as in `spmm`.

    Parameters
    ----------
    indptr, indices, rows, eid, dst_scale
        See `spmm`, with g in place of `out`. The values of `eid` must be distinct.
    g : (n_out, ...), x's dtype
        Rows of the destinations, in the shape of x's rows.
    x : (n_src, ...) float32, float64, or uint16 as bfloat16
        Rows of the sources.
    out : (n,) or (n, H), x's dtype, or float32 with bfloat16
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


def extremum(indptr: Array, indices: Array | None, x: Array, out: Array, arg: Array, *, sign: int,
             rows: Array | None = None, offset: int = 0, label: Array | None = None, order: Array | None = None) -> None:
    """Update `out`, each row's maximum (`sign` 1) or minimum (-1) of the source rows x over the edges of a CSR, and `arg`, the
    label of the edge that the value comes from. An edge's label is label[e], or if `label` is None, its source plus `offset`. Ties
    go to the label that comes first in `order`.

    Edge e of row i is a candidate ``(x[c,f], label)`` for ``(out[r,f], arg[r,f])``, with r and c as in `spmm`. Its
    label is ``label[e]`` if given, else ``offset + c``. The candidate replaces the old pair if ``arg[r,f] < 0``, if its
    value is better, or if the values are equal and ``order[label] < order[arg[r,f]]``. NaN is better than any number.

    Parameters
    ----------
    indptr : (n_dst + 1,) int64
    indices : (n_edges,) int32 or int64, or None
    x : (n_src, ...) float32, float64, or uint16 as bfloat16
    out : (n_out, ...), x's dtype, or float32 with bfloat16
        Rows in the shape of x's rows; updated. Values where arg is -1 are ignored.
    arg : indices' dtype, out's shape
        Label of the current extremum, or -1 before any candidate; updated.
    sign : {1, -1}
        1 for the maximum, -1 for the minimum.
    rows : (n_dst,), indices' dtype, optional
        See `spmm`.
    offset : int
        Label of x's first row.
    label : (n_edges,), indices' dtype, optional
        Label of each edge.
    order : (n_labels,) int64, optional
        Priority of each label at ties, where the smallest wins; by default the label itself.

    Raises
    ------
    ShapeError
        An argument is wrong, or a label is negative or outside `order`.

    Notes
    -----
    O(n_edges * F) time. The result does not depend on the order of the edges or on their division into blocks.
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
    if order is not None:
        fits = order.min(initial=0) >= 0 and order.max(initial=0) <= np.iinfo(index).max
        order = (order if fits else np.unique(order, return_inverse=True)[1]).astype(index, copy=False)
    csr = {"indptr": indptr, "indices": indices, "rows": rows, "n_rows": n_dst}
    labels = {"label": label, "order": order, "offset": int(offset), "n_order": 0 if order is None else len(order)}
    call(f"sar_extremum_forward_{FLOATS[x.dtype]}_{INDEXES[index]}", out, arg, csr, labels, x, int(sign), row_width(x))


def extremum_backward(g: Array, arg: Array, dx: Array, offset: int = 0, long: Array | None = None) -> None:
    """Add each gradient g[i,f] of an extremum to the value of x that it came from: ``dx[arg[i,f] - offset, f] += g[i,f]``. The rows of
    dx in `long` get many gradients, so they are summed in float64.

    Parameters
    ----------
    g : (n_dst, ...) float32 or float64
        Gradient of the extrema.
    arg : g's shape, int32 or int64
        Labels from `extremum`. Labels outside of [offset, offset + n_src), of other blocks or -1, are skipped.
    dx : (n_src, ...), g's dtype
        Gradient of a block's rows, in the shape of g's rows; accumulated.
    offset : int
        Label of dx's first row.
    long : (n,) int, optional
        Rows of dx that may receive very many values, which are summed in float64.

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


def transpose(indptr: Array, indices: Array, n_src: int, *, rows: Array | None = None,
              position: bool = True) -> tuple[Array, Array, Array | None]:
    """Return the transpose of a CSR with `n_src` columns, its edges by source, as (t_indptr, t_indices, perm). Entry k of the
    transpose is edge perm[k] of the CSR; perm is None unless `position`. `rows` are the destination numbers of the CSR's rows
    (None: row i is destination i).

    Parameters
    ----------
    indptr : (n_dst + 1,) int64
        Starts with 0.
    indices : (n_edges,) int32 or int64
    n_src : int
        Number of columns.
    rows : (n_dst,), indices' dtype, optional
        Destination row for each row of the CSR, which `t_indices` hold; by default row i for row i.
    position : bool
        True to return `perm`.

    Returns
    -------
    t_indptr : (n_src + 1,) int64
    t_indices : (n_edges,), indices' dtype
        Destinations, in the order of the CSR's rows, so that they ascend in each row if `rows` ascend.
    perm : (n_edges,), indices' dtype, or None
        Position in `indices` of each edge of the transpose; ascending in each row.

    Raises
    ------
    ShapeError
        An argument is wrong, or a column is not in [0, n_src).

    Notes
    -----
    O(n_edges + n_src + n_dst) time, and no memory beside the results. A stable counting sort: the result is the same
    for any number of threads.

    Examples
    --------
    >>> transpose(np.array([0, 1, 3]), np.array([0, 0, 1]), 2)
    (array([0, 2, 3]), array([0, 1, 1]), array([0, 1, 2]))
    """
    n_dst, n_edges = check_csr(indptr, check("indices", indices, dtype=INDEXES))
    if indptr[0] != 0 or n_edges != len(indices):
        raise ShapeError(f"indices must hold just the edges of indptr, {n_edges}; "
                         f"got shape {indices.shape}, dtype {indices.dtype}")
    check_csr_rows(rows, n_dst, n_dst, indices.dtype)
    if max(n_dst if rows is None else 0, n_edges if position else 0) > np.iinfo(indices.dtype).max:
        raise ShapeError(f"indices must have dtype int64 for {n_dst} rows and {n_edges} edges; "
                         f"got dtype {indices.dtype}")
    t_indptr, t_indices = np.empty(n_src + 1, np.int64), np.empty(n_edges, indices.dtype)
    perm = np.empty(n_edges, indices.dtype) if position else None
    try:
        call(f"sar_transpose_{INDEXES[indices.dtype]}", t_indptr, t_indices, perm, indptr, indices, rows, n_dst, n_src)
    except ShapeError:  # the kernel's error does not name the argument
        raise ShapeError(f"indices must lie in 0 .. {n_src}; got {indices.min()} .. {indices.max()}, "
                         f"shape {indices.shape}") from None
    return t_indptr, t_indices, perm
