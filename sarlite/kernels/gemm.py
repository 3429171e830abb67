"""Dense matrix products."""

from typing import Any

import numpy as np

from sarlite.kernels.native import FLOATS, INDEXES, call, check, check_apart, check_range, ffi, lib, team, threads
from sarlite.types import Array, ArrayDType


def gemm(a: Array, b: Array, out: Array, *, trans_b: bool = False, accumulate: bool = False, rows: Array | None = None,
         fused: bool = False) -> None:
    """Compute ``out = a @ b``, or ``out += a @ b`` with `accumulate`; a[rows] replaces a if `rows` is not None, and b.T replaces b with
    `trans_b`. `fused` rounds each multiply-add once, on every processor.

    Parameters
    ----------
    a : (m, k) float32 or float64; with `rows` (any, k)
        The rows of a, and of `out`, need not be contiguous in memory, as in a slice of a larger array.
    b : (k, n), a's dtype, or (n, k) with `trans_b`
    out : (m, n), a's dtype
    trans_b : bool
        True for ``a @ b.T``.
    accumulate : bool
        True to add the product to `out`.
    rows : (m,) int32 or int64, optional
        Row numbers for the product ``a[rows] @ b``, which is computed without a copy of ``a[rows]``.
    fused : bool
        True to round each multiply-add once, even on a processor without such an instruction, where this is slow. Then
        the result does not depend on the instruction set.

    Raises
    ------
    ShapeError
        An argument is wrong, or a row number is out of range.

    Notes
    -----
    O(m n k) time. Memory: a copy of b with n rounded up to a multiple of 32; with `rows`, copies of 126 rows for each
    thread. A row of the result depends only on the same row of a and on b, not on the number of threads or on other
    rows: each value is a sum of sums of 256 products in ascending order.

    References
    ----------
    Goto and van de Geijn 2008.

    Examples
    --------
    >>> out = np.empty((1, 1))
    >>> gemm(np.array([[1.0, 2.0]]), np.array([[3.0], [4.0]]), out)
    >>> out
    array([[11.]])
    """
    rows, (m, k) = _matrix(a, rows)
    n = check("b", b, dtype=a.dtype, shape=(None, None)).shape[0 if trans_b else 1]
    check("b", b, shape=(n, k) if trans_b else (k, n))
    check("out", out, dtype=a.dtype, shape=(m, n), out=True, rows_apart=True)
    check_apart(out, a=a, b=b)
    taken = 0 if rows is None else threads() * lib.SAR_GEMM_BLOCK * k
    workspace = _aligned(k * _round_up(n) + taken, a.dtype)
    call(f"sar_gemm_forward_{FLOATS[a.dtype]}", *_at(out), workspace, *_at(a), rows, b, trans_b, accumulate,
         fused, m, n, k)


def gemm_backward(a: Array, g: Array, out: Array, *, rows: Array | None = None) -> None:
    """Overwrite ``out = a[rows].T @ g``, the gradient of b in the product a[rows] @ b, where `g` is the gradient of the product. `rows`
    None stands for all rows.

    Parameters
    ----------
    a, g : (k, m), (k, n) float32 or float64; with `rows` a is (any, m)
        Rows need not be contiguous in memory, as in `gemm`.
    out : (m, n), a's dtype
    rows : (k,) int32 or int64, optional
        Row numbers for ``out = a[rows].T @ g``.

    Raises
    ------
    ShapeError
        An argument is wrong, or a row number is out of range.

    Notes
    -----
    O(m n k) time. Each thread sums over its share of the rows. Memory: 2 m n + 40,448 values for each thread; with
    `rows`, 256 m more. The shares are added in thread order, so the result is the same for the same number of threads.
    """
    rows, (k, m) = _matrix(a, rows)
    n = check("g", g, dtype=a.dtype, shape=(k, None), rows_apart=True).shape[1]
    check("out", out, dtype=a.dtype, shape=(m, n), out=True)
    check_apart(out, a=a, g=g)
    n_threads = team(m * n * k)
    taken = 0 if rows is None else lib.SAR_GEMM_DEPTH * m
    workspace = _aligned(n_threads * (lib.SAR_GEMM_OWN + 2 * _round_up(m * n) + taken), a.dtype)
    call(f"sar_gemm_backward_{FLOATS[a.dtype]}", out, workspace, *_at(a), rows, *_at(g), n_threads, m, n, k)


def _matrix(a: Array, rows: Array | None) -> tuple[Array | None, tuple[int, int]]:
    """Check a matrix and its row numbers `rows` (None for all rows); return (row numbers as int64 or None, shape of a[rows])."""
    n, width = check("a", a, dtype=FLOATS, shape=(None, None), rows_apart=True).shape
    if rows is None:
        return None, (n, width)
    check("rows", rows, dtype=INDEXES, shape=(None,))
    check_range("rows", rows, n)
    return rows.astype(np.int64, copy=False), (len(rows), width)


def _at(a: Array) -> tuple[Any, int]:
    """Return the address of a matrix and its leading dimension: the distance between rows, in values."""
    return ffi.cast("void *", a.ctypes.data), a.strides[0] // a.itemsize if len(a) > 1 else a.shape[1]


def _round_up(n: int) -> int:
    """Return n rounded up to a multiple of the number of columns in a tile of the gemm kernels."""
    return -(-n // lib.SAR_GEMM_COLUMNS) * lib.SAR_GEMM_COLUMNS


def _aligned(n: int, dtype: ArrayDType) -> Array:
    """Return an uninitialized array of n values that begins at a cache line."""
    memory = np.empty(n * dtype.itemsize + 63, np.uint8)
    begin = -memory.ctypes.data % 64
    return memory[begin : begin + n * dtype.itemsize].view(dtype)
