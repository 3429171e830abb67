"""Dense products."""

import numpy as np

from sarlite.kernels.native import FLOATS, INDEXES, call, check, check_apart, check_range, ffi, lib, team, threads


def gemm(a, b, out, *, trans_b=False, accumulate=False, rows=None, fused=False):
    """Overwrite ``out = a @ b``, or a @ b.T with `trans_b`; add it with `accumulate`.

    Parameters
    ----------
    a : (m, k) float32 or float64; with `rows` (any, k)
        The rows of a, and of `out`, may be apart, as in a slice of a larger array.
    b : (k, n), a's dtype, or (n, k) with `trans_b`
    out : (m, n), a's dtype
    trans_b, accumulate : bool
    rows : (m,) int32 or int64, optional
        The rows of a that are multiplied, in this order: ``a[rows] @ b``, without a copy of all of them.
    fused : bool
        Whether each product is added in one rounding also on a processor that has no such instruction, where that is
        slow.

    Raises
    ------
    ShapeError
        Naming the argument; also for a row that a does not have.

    Notes
    -----
    O(m n k) time, and a copy of b, whose n is rounded up to a multiple of 32; with `rows` copies of 126 rows a thread.
    A row of the result depends on the same row of a, and on b, alone: neither on threads nor on the other rows, and
    with `fused` not on the instruction set: a value is a sum of sums of 256 products in ascending order. Source:
    Goto and van de Geijn 2008. """
    rows, (m, k) = _matrix(a, rows)
    n = check("b", b, dtype=a.dtype, shape=(None, None)).shape[0 if trans_b else 1]
    check("b", b, shape=(n, k) if trans_b else (k, n))
    check("out", out, dtype=a.dtype, shape=(m, n), out=True, rows_apart=True)
    check_apart(out, a=a, b=b)
    taken = 0 if rows is None else threads() * lib.SAR_GEMM_BLOCK * k
    workspace = _aligned(k * _whole(n) + taken, a.dtype)
    call(f"sar_gemm_forward_{FLOATS[a.dtype]}", *_at(out), workspace, *_at(a), rows, b, trans_b, accumulate,
         fused, m, n, k)


def gemm_backward(a, g, out, *, rows=None):
    """Overwrite ``out = a.T @ g``, the gradient of b in a @ b.

    Parameters
    ----------
    a, g : (k, m), (k, n) float32 or float64; with `rows` a is (any, m)
        Rows may be apart, as in `gemm`.
    out : (m, n), a's dtype
    rows : (k,) int32 or int64, optional
        The rows of a that were multiplied: ``out = a[rows].T @ g``.

    Raises
    ------
    ShapeError
        Naming the argument; also for a row that a does not have.

    Notes
    -----
    O(m n k) time. Each thread sums its share of the rows, which takes threads * (2 m * n + 40,448) values of memory,
    with `rows` 256 m more a thread. The shares are added in thread order: the same bits for the same number of threads.
    """
    rows, (k, m) = _matrix(a, rows)
    n = check("g", g, dtype=a.dtype, shape=(k, None), rows_apart=True).shape[1]
    check("out", out, dtype=a.dtype, shape=(m, n), out=True)
    check_apart(out, a=a, g=g)
    n_threads = team(m * n * k)
    taken = 0 if rows is None else lib.SAR_GEMM_DEPTH * m
    workspace = _aligned(n_threads * (lib.SAR_GEMM_OWN + 2 * _whole(m * n) + taken), a.dtype)
    call(f"sar_gemm_backward_{FLOATS[a.dtype]}", out, workspace, *_at(a), rows, *_at(g), n_threads, m, n, k)


def _matrix(a, rows):
    """Check a matrix and the numbers of its rows; return the numbers as int64, and the shape of a[rows]."""
    n, width = check("a", a, dtype=FLOATS, shape=(None, None), rows_apart=True).shape
    if rows is None:
        return None, (n, width)
    check("rows", rows, dtype=INDEXES, shape=(None,))
    check_range("rows", rows, n)
    return rows.astype(np.int64, copy=False), (len(rows), width)


def _at(a):
    """Return the address of a matrix and the distance between its rows, in values."""
    return ffi.cast("void *", a.ctypes.data), a.strides[0] // a.itemsize if len(a) > 1 else a.shape[1]


def _whole(n):
    return -(-n // lib.SAR_GEMM_COLUMNS) * lib.SAR_GEMM_COLUMNS


def _aligned(n, dtype):
    """Return an uninitialized array of n values that begins at a cache line."""
    memory = np.empty(n * dtype.itemsize + 63, np.uint8)
    begin = -memory.ctypes.data % 64
    return memory[begin : begin + n * dtype.itemsize].view(dtype)
