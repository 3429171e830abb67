"""MKL's sum over neighbours, a sparse times dense product, as a process that `peers.py` runs in an environment with numpy and mkl.

    python peers_mkl.py mkl spmm GRAPH.npz --threads 2 --repeats 3 --width 64

Prints a line of JSON, as `peers.py` describes. MKL inspects the matrix before it is timed. MKL is made for Intel's
processors; on others it may take slower code.
"""

import argparse
import ctypes
import json
import statistics
import sys
import time
from pathlib import Path

import numpy as np

NO_TRANSPOSE, ROW_MAJOR, GENERAL = 10, 101, 20
ALIGNMENT = 64
CALLS = 1000
"""Number of products that MKL is told to expect, so that a longer inspection pays."""


class Description(ctypes.Structure):
    """C struct `matrix_descr` of MKL: the type of a sparse matrix."""

    _fields_ = (("type", ctypes.c_int), ("mode", ctypes.c_int), ("diag", ctypes.c_int))


def aligned(n_rows, width):
    """Return a float32 array of zeros, (n_rows, width), whose first element starts a cache line."""
    memory = np.zeros(4 * n_rows * width + ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % ALIGNMENT
    return memory[start : start + 4 * n_rows * width].view(np.float32).reshape(n_rows, width)


def checked(name, status):
    """Raise SystemExit if `status`, returned by MKL's function `name`, is an error."""
    if status:
        raise SystemExit(f"{name} returned status {status}")


def product(indptr, indices, width):
    """Return (function that computes out = A x, x, out): A has a 1 for each edge of the CSR graph, x is random, (n_nodes, width)."""
    mkl = ctypes.CDLL(next(map(str, Path(sys.prefix, "lib").glob("libmkl_rt.so*"))), mode=ctypes.RTLD_GLOBAL)
    n_nodes, values = len(indptr) - 1, np.ones(len(indices), np.float32)
    x, out = aligned(n_nodes, width), aligned(n_nodes, width)
    x[:] = np.random.default_rng(0).standard_normal(x.shape, dtype=np.float32)
    matrix, general = ctypes.c_void_p(), Description(GENERAL, 0, 0)
    starts, ends, columns, ones = (ctypes.c_void_p(array.ctypes.data) for array in (indptr, indptr[1:], indices, values))
    checked("create_csr", mkl.mkl_sparse_s_create_csr(ctypes.byref(matrix), 0, n_nodes, n_nodes, starts, ends, columns, ones))
    checked("set_mm_hint", mkl.mkl_sparse_set_mm_hint(matrix, NO_TRANSPOSE, general, ROW_MAJOR, width, CALLS))
    checked("optimize", mkl.mkl_sparse_optimize(matrix))

    def run(held=(indptr, indices, values)):  # MKL reads the arrays of the CSR, which must live on
        checked("mm", mkl.mkl_sparse_s_mm(NO_TRANSPOSE, ctypes.c_float(1), matrix, general, ROW_MAJOR,
                                          ctypes.c_void_p(x.ctypes.data), width, width, ctypes.c_float(0),
                                          ctypes.c_void_p(out.ctypes.data), width))

    return run, x, out


def peak():
    """Return the process's largest resident memory since the start or the last reset, in MiB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM"))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("library", choices=("mkl",))
    parser.add_argument("case", choices=("spmm",))
    parser.add_argument("graph")
    for name, default in (("width", 256), ("threads", 2), ("repeats", 3)):
        parser.add_argument(f"--{name}", type=int, default=default)
    args = parser.parse_args()
    arrays = np.load(args.graph)
    indptr, indices = arrays["indptr"].astype(np.int32), arrays["indices"].astype(np.int32)
    run, x, out = product(indptr, indices, args.width)
    Path("/proc/self/clear_refs").write_text("5")  # resets the peak
    before, times = peak(), []
    for _ in range(args.repeats + 1):
        begin = time.perf_counter()
        run()
        times.append(1e3 * (time.perf_counter() - begin))
    times = times[1:]  # the first run warms up
    row = int(np.argmax(np.diff(indptr)))
    if not np.allclose(out[row], x[indices[indptr[row] : indptr[row + 1]]].sum(0), atol=1e-2):
        raise SystemExit(f"the sum of node {row} is wrong")
    print(json.dumps({"ms": statistics.median(times), "ms_min": min(times), "ms_max": max(times),
                      "peak_mib": peak() - before}))


if __name__ == "__main__":
    main()
