"""Reproducible sums, with the same bits for any order, threads and instruction set; elementary functions.

A grid is a number m = 1.5 * 2^k: (v + m) - m is v rounded to a multiple of 2^(k-52), and sums of such multiples are
exact in float64 if m is large enough (`native/exact.inc.h`). Sums of float32 values have one level. Sums of float64
values have two levels (`levels`): the second level sums the remainders of the first. The caller chooses the grids.

Source: Demmel and Nguyen, "Parallel reproducible summation" (2015).
"""

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from sarlite.errors import ShapeError
from sarlite.kernels.attention import EdgeDropout, backward_fields, forward_fields
from sarlite.kernels.native import (
    FLOATS,
    call,
    check,
    check_apart,
    check_rows,
    lib,
    row_width,
    suffix_of,
    team,
    threads,
)
from sarlite.kernels.sparse import sum_fields
from sarlite.types import Array, ArrayDType

REDUCTIONS = {"largest": 0, "squares": 1, "sum": 2}
FUNCTIONS = {"exp": 0, "log": 1, "expm1_negative": 2}


def levels(dtype: npt.DTypeLike) -> int:
    """Return the number of float64 numbers ("levels") that store one exact sum of values of `dtype`: 1 for float32, 2 for float64.

    It is 1 for float32 and 2 for float64.
    """
    return 1 if np.dtype(dtype) == np.float32 else 2


def exact_largest(x: Array, scale: Array | None = None) -> Array:
    """Return the largest finite |scale[r] * x[r,f]| of each column f, (F,) float64; 0 for a column without finite values. `scale` None
    stands for 1.

    Parameters
    ----------
    x : (n, F) float32 or float64
    scale : (n,), x's dtype, optional
    """
    n, n_feat = check("x", x, dtype=FLOATS, shape=(None, None)).shape
    check("scale", scale, dtype=x.dtype, shape=(n,), optional=True)
    out, n_threads = np.empty(n_feat), team(x.size)
    call(f"sar_exact_largest_{FLOATS[x.dtype]}", out, np.empty((n_threads, n_feat)), x, scale, n_threads, n, n_feat)
    return out


def exact_squares(x: Array, inverse: Array) -> Array:
    """Return, for each column f, an integer that is at least 2^20 * sum_r (x[r,f] * inverse[f])^2, as (F,) float64. `inverse` holds a
    factor of each column that brings its values into [-1, 1].

    Integers can be summed over ranks exactly. The bound exceeds the value by at most 2 n.

    Parameters
    ----------
    x : (n, F) float32 or float64
    inverse : (F,) float64
        |x[r,f]| * inverse[f] must be at most 1.
    """
    n, n_feat = check("x", x, dtype=FLOATS, shape=(None, None)).shape
    check("inverse", inverse, dtype=np.float64, shape=(n_feat,))
    out, n_threads = np.empty(n_feat), team(x.size)
    call(f"sar_exact_squares_{FLOATS[x.dtype]}", out, np.empty((n_threads, n_feat)), x, inverse, n_threads, n, n_feat)
    return out


def exact_centred(x: Array, centre: Array, scale: Array, y: Array | None, reduction: str, by: Array | None = None) -> Array:
    """Reduce each column of v = (x - centre) * scale * y, or of v = ((x - centre) * scale)^2 if `y` is None. `reduction` "largest"
    returns the largest |v|, and "squares" an integer of at least 2^20 * sum of (v * by)^2, each (F,). "sum" returns the exact sums
    of v, (2, F), after rounding to multiples that `by` defines.

    The reduced matrix v = (x - centre) * scale * y is never in memory, only one row at a time.

    Parameters
    ----------
    x : (n, F) float32 or float64
    centre, scale : (F,) float64
    y : (n, F), x's dtype, optional
    reduction : {"largest", "squares", "sum"}
        What is returned: the results of `exact_largest` or of `exact_squares` for v, or the exact sums of the columns.
    by : (F,) or (2, F) float64, optional
        For "squares" the argument `inverse` of `exact_squares`; for "sum" the grid.

    Returns
    -------
    (F,) float64; for "sum" (2, F), the two levels

    Notes
    -----
    O(n F) time; 16 * threads * F bytes.
    """
    n, n_feat = check("x", x, dtype=FLOATS, shape=(None, None)).shape
    for name, a in (("centre", centre), ("scale", scale)):
        check(name, a, dtype=np.float64, shape=(n_feat,))
    check("y", y, dtype=x.dtype, shape=x.shape, optional=True)
    row = (2, n_feat) if reduction == "sum" else (n_feat,)
    if reduction != "largest":
        check("by", by, dtype=np.float64, shape=row)
    out, n_threads = np.empty(row), team(x.size)
    call(f"sar_exact_centred_{FLOATS[x.dtype]}", out, np.empty((n_threads, 2, n_feat)), x, centre, scale, y, by,
         REDUCTIONS[reduction], n_threads, n, n_feat)
    return out


def exact_gemm_backward(a: Array, g: Array, of_a: Array, of_g: Array, step: float) -> Array:
    """Return a.T @ g as exact sums, (levels, m, n), whose bits do not depend on the order of the rows. Each sum is stored as one
    float64 number for float32, and two for float64 (levels). The terms of element (p, q) are rounded to multiples of a power of
    two, which of_a[p] * of_g[q] sets; the second number sums the remainders, rounded to multiples `step` times as large.

    Parameters
    ----------
    a, g : (k, m), (k, n) float32 or float64
    of_a, of_g : (m,), (n,) float64
        Factors of the grid: powers of two in `of_a`, and 1.5 times powers of two in `of_g`. Every partial sum must be
        below a third of their product.
    step : float
        Ratio of the grid of the second level to that of the first.

    Returns
    -------
    (levels, m, n) float64

    Notes
    -----
    O(k m n) time; 8 * threads * ((levels + 1) m n + 128 (m + n)) bytes.
    """
    k, m = check("a", a, dtype=FLOATS, shape=(None, None)).shape
    n = check("g", g, dtype=a.dtype, shape=(k, None)).shape[1]
    check("of_a", of_a, dtype=np.float64, shape=(m,))
    check("of_g", of_g, dtype=np.float64, shape=(n,))
    out, n_threads = np.empty((levels(a.dtype), m, n)), team(m * n * k)
    rows, columns = m + lib.SAR_EXACT_PAD, n + lib.SAR_EXACT_PAD
    workspace = np.empty(n_threads * ((len(out) + 1) * rows * columns + lib.SAR_EXACT_DEPTH * (rows + columns)))
    kernel = f"sar_exact_gemm_backward_{FLOATS[a.dtype]}"
    call(kernel, out, workspace, a, g, of_a, of_g, float(step), n_threads, m, n, k)
    return out


def exact_whole(sums: Array, out: Array, scale: Array | None = None) -> None:
    """Round exact sums once to the dtype of `out`: overwrite `out` with `scale` times the sums (None: 1). Each sum in `sums` is
    stored as one or two float64 numbers to add.

    Parameters
    ----------
    sums : (n, levels, ...) float64
        Sums on a grid.
    out : (n, ...) float32 or float64
    scale : (n,) or (n, H) float64, optional
        Factor of each row, or of each row and head, where the heads are the second axis of `out`.
    """
    check("out", out, dtype=FLOATS, out=True)
    check("sums", sums, dtype=np.float64, shape=(len(out), levels(out.dtype), *out.shape[1:]))
    n_heads = 1 if scale is None or scale.ndim == 1 else out.shape[1]
    if scale is not None:
        check("scale", scale, dtype=np.float64, shape=(len(out), n_heads)[: scale.ndim])
    call(f"sar_exact_whole_{FLOATS[out.dtype]}", out, sums, scale, len(out), n_heads, row_width(out) // max(n_heads, 1))


def exact_function(name: str, x: Array) -> Array:
    """Return the function `name` ("exp", "log" or "expm1_negative") of each value of x, with the same bits on every processor.

    The error is at most 2 units in the last place. "expm1_negative" is exp(x) - 1 for x <= 0.
    """
    check("x", x, dtype=FLOATS)
    out = np.empty_like(x)
    call(f"sar_exact_function_{FLOATS[x.dtype]}", out, x, FUNCTIONS[name], x.size)
    return out


def exact_spmm(indptr: Array, indices: Array | None, x: Array, out: Array, grid: Array, *, rows: Array | None = None,
               eid: Array | None = None, weight: Array | None = None, src_scale: Array | None = None,
               scale: Array | None = None, accumulate: bool = True) -> None:
    """Compute A @ x like `spmm`, where A is a CSR, with the same bits for any order of edges; terms are rounded to multiples that
    `grid` defines. An `out` of shape (n_out, levels, ...) gets the exact sums, each in one or two float64 numbers (levels); an
    `out` of shape (n_out, ...) gets the sums rounded once, times `scale`.

    Parameters
    ----------
    indptr, indices, x, rows, eid, weight, src_scale, accumulate
        See `spmm`.
    out : (n_out, levels, ...) float64, or (n_out, ...), x's dtype
        With levels, the sums on the grid. Without levels, the CSR must hold all edges of its rows, and `out` gets
        `scale` times the sums, rounded once.
    grid : (levels, ...) float64
    scale : (n_out,) float64, optional
        Factor of each rounded sum.
    """
    check_rows("x", x)
    outputs = _sums_or_rounded(x.dtype, None, out=(out, x.shape[1:]))
    check_apart(out, x=x, weight=weight)
    check("grid", grid, dtype=np.float64, shape=(levels(x.dtype), *x.shape[1:]))
    check("scale", scale, dtype=np.float64, shape=(len(out),), optional=True)
    fields, suffix = sum_fields(indptr, indices, rows, x, len(out), eid, weight, src_scale)
    call(f"sar_exact_spmm_forward_{suffix}", *outputs, grid, scale, {**fields, "weight": weight}, accumulate)


def exact_attend(indptr: Array, indices: Array, z: Array, src: Array, dst: Array, m: Array, l: Array,  # noqa: E741
                 acc: Array, grid_l: Array, grid: Array, *, slope: float, rows: Array | None = None,
                 dropout: EdgeDropout | None = None) -> None:
    """Add a CSR's edges to the softmax sums `l` and `acc` of attention, as `attend` does, but with the same bits for any order of edges.
    Terms are rounded to multiples of powers of two that `grid_l` and `grid` define; axis 1 of `l` and `acc` has the float64 numbers
    (levels) that store each sum. m must hold each row's largest score, unless `l` and `acc` lack this axis: then m is computed, and both
    get rounded results.

    ``l += exp(s - m)``; ``acc += mask / (1-p) exp(s - m) z[j]``.

    Parameters
    ----------
    indptr, indices, z, src, dst, slope, rows, dropout
        See `attend`.
    m : (n_out, H), z's dtype
        Largest score of each row and head. If `l` and `acc` have no levels, it is computed here for the rows of the CSR.
    l : (n_out, levels, H) float64, or (n_out, H), z's dtype
        With levels, accumulates. Without levels, the CSR must hold all edges of its rows, and l gets 1 / l, rounded
        once.
    acc : (n_out, levels, H, D) float64, or (n_out, H, D), z's dtype
        With levels, accumulates. Without levels, the rows of the CSR get acc / l, rounded once.
    grid_l, grid : (levels, H), (levels, H, D) float64
        Grids of l and acc.
    """
    check("z", z, dtype=FLOATS)
    fields = forward_fields(indptr, indices, rows, z, src, dst, slope, dropout)
    n_heads, n_feat, n = src.shape[1], z.shape[2], levels(z.dtype)
    check("m", m, dtype=z.dtype, shape=dst.shape, out=True)
    check("grid_l", grid_l, dtype=np.float64, shape=(n, n_heads))
    check("grid", grid, dtype=np.float64, shape=(n, n_heads, n_feat))
    sums = _sums_or_rounded(z.dtype, len(dst), l=(l, (n_heads,)), acc=(acc, (n_heads, n_feat)))
    call(f"sar_exact_attend_forward_{suffix_of(z.dtype, indices.dtype)}", *sums, grid_l, grid, m, dst, fields)


def exact_attend_backward(t_indptr: Array, t_indices: Array, z: Array, src: Array, ends: Array, g: Array, dz: Array,
                          dsrc: Array, sums: Array, grid_z: Array, grid_s: Array, *, slope: float,
                          dropout: EdgeDropout | None = None) -> None:
    """Compute attention's gradients as `attend_backward` does, with the same bits for any order of edges. They are added to dz,
    dsrc and `sums`, which has a part of the destination scores' gradient for each thread. Terms are rounded to multiples that
    `grid_z` (for dz) and `grid_s` define.

    The transposed CSR lists the edges by source.

    Parameters
    ----------
    t_indptr, t_indices, z, src, ends, g, slope, dropout
        See `attend_backward`.
    dz, dsrc : (n_src, levels, H or 1, D), (n_src, levels, H) float64, or (n_src, H or 1, D), (n_src, H), z's dtype
        With levels, accumulate. Without levels, the block must hold all edges of the sources, and dz and dsrc are
        overwritten by the sums, rounded once.
    sums : (threads, n_dst, levels, H) float64
        Accumulates each thread's part of ddst.
    grid_z, grid_s : (levels, H or 1, D), (levels, H) float64
        Grids of dz, and of dsrc and ddst.
    """
    check("z", z, dtype=FLOATS)
    fields, n_threads = backward_fields(t_indptr, t_indices, z, src, ends, g, slope, dropout)
    n_src, n_heads, n_dst, n = len(z), src.shape[1], len(ends), levels(z.dtype)
    check("grid_z", grid_z, dtype=np.float64, shape=(n, *z.shape[1:]))
    check("grid_s", grid_s, dtype=np.float64, shape=(n, n_heads))
    check("sums", sums, dtype=np.float64, shape=(None, n_dst, n, n_heads), out=True)
    outputs = _sums_or_rounded(z.dtype, n_src, dz=(dz, z.shape[1:]), dsrc=(dsrc, (n_heads,)))
    if not len(sums):
        raise ShapeError("sums must have some rows; got 0")
    kernel = f"sar_exact_attend_backward_{suffix_of(z.dtype, t_indices.dtype)}"
    call(kernel, *outputs, sums, grid_z, grid_s, ends, g, fields, min(n_threads, len(sums)), n_dst)


def _sums_or_rounded(dtype: ArrayDType, n_rows: int | None, **outputs: tuple[Array, tuple[int, ...]]) -> tuple[Any, ...]:
    """Check the output arrays of a kernel, {name: (array, shape of one row)}, with `n_rows` rows each (None: any number), and
    return them as a flat tuple of the C function's arguments: the arrays if they are rounded sums; the arrays if they are exact
    sums; a workspace. The number of axes tells rounded from exact sums; the arguments for the other kind are None.

    Parameters
    ----------
    dtype : dtype
        Dtype of the values.
    n_rows : int or None
    outputs : (array, shape of a row)
        Each array is either sums on a grid, (n_rows, levels, ...) float64, or rounded sums, (n_rows, ...) of `dtype`.
        The arguments for the other kind are None.
    """
    first, row = next(iter(outputs.values()))
    rounded = first.ndim == 1 + len(row)
    for name, (array, row) in outputs.items():
        between = () if rounded else (levels(dtype),)
        check(name, array, dtype=dtype if rounded else np.float64, shape=(n_rows, *between, *row), out=True)
    arrays, none = [array for array, _ in outputs.values()], [None] * len(outputs)
    if not rounded:
        return *arrays, *none, None
    width = sum(math.prod(row) for _, row in outputs.values())
    return *none, *arrays, np.empty((threads(), levels(dtype), width))
