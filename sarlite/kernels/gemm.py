"""Dense products."""

import numpy as np

from sarlite.kernels.native import FLOATS, call, check, check_apart, lib, threads


def gemm(a, b, out, *, trans_b=False, accumulate=False):
    """Overwrite ``out = a @ b``, or a @ b.T with `trans_b`; add it with `accumulate`.

    Parameters
    ----------
    a : (m, k) float32 or float64
    b : (k, n), a's dtype, or (n, k) with `trans_b`
    out : (m, n), a's dtype
    trans_b, accumulate : bool

    Raises
    ------
    ShapeError
        Naming the argument.

    Notes
    -----
    O(m n k) time, and a copy of b, whose n is rounded up to a multiple of 32. A row of the result depends on the same row of a, and on b,
    alone: neither on threads nor on the other rows.
    Source: Goto and van de Geijn 2008.
    """
    m, k = check("a", a, dtype=FLOATS, shape=(None, None)).shape
    n = check("b", b, dtype=a.dtype, shape=(None, None)).shape[0 if trans_b else 1]
    check("b", b, shape=(n, k) if trans_b else (k, n))
    check("out", out, dtype=a.dtype, shape=(m, n), out=True)
    check_apart(out, a=a, b=b)
    call(f"sar_gemm_forward_{FLOATS[a.dtype]}", out, _lines(k * _whole(n), a.dtype), a, b, trans_b, accumulate, m, n, k)


def gemm_backward(a, g, out):
    """Overwrite ``out = a.T @ g``, the gradient of b in a @ b.

    Parameters
    ----------
    a, g : (k, m), (k, n) float32 or float64
    out : (m, n), a's dtype

    Raises
    ------
    ShapeError
        Naming the argument.

    Notes
    -----
    O(m n k) time; each thread sums its share of the rows, so threads * (m * n + 40,448) values of memory. They are added in
    thread order: the same bits for the same number of threads.
    """
    k, m = check("a", a, dtype=FLOATS, shape=(None, None)).shape
    n = check("g", g, dtype=a.dtype, shape=(k, None)).shape[1]
    check("out", out, dtype=a.dtype, shape=(m, n), out=True)
    check_apart(out, a=a, g=g)
    n_threads = threads() if m * n * k > 32768 else 1
    workspace = _lines(n_threads * (lib.SAR_GEMM_OWN + _whole(m * n)), a.dtype)
    call(f"sar_gemm_backward_{FLOATS[a.dtype]}", out, workspace, a, g, n_threads, m, n, k)


def _whole(n):
    return -(-n // lib.SAR_GEMM_COLUMNS) * lib.SAR_GEMM_COLUMNS


def _lines(n, dtype):
    """n values, not set, from the start of a cache line on."""
    memory = np.empty(n * dtype.itemsize + 63, np.uint8)
    begin = -memory.ctypes.data % 64
    return memory[begin : begin + n * dtype.itemsize].view(dtype)
