"""Dense products on the kernels' threads, by SciPy's BLAS."""

import ctypes
import threading
from functools import cache

import numpy as np

from sarlite.errors import ShapeError
from sarlite.kernels.native import FLOATS, call, check, check_apart, ffi, threads

_MOST = 2**31 - 1  # the BLAS counts in 32 bits


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
    O(m n k) time, no memory beside the BLAS's own. Each of the kernels' threads calls SciPy's BLAS for its rows of `out`. Meanwhile
    that library is set to one thread, for the whole process; afterwards it has as many as before.
    """
    m, k = _matrix("a", a).shape
    n = _matrix("b", b, a.dtype).shape[0 if trans_b else 1]
    check("b", b, shape=(n, k) if trans_b else (k, n))
    check("out", out, dtype=a.dtype, shape=(m, n), out=True)
    check_apart(out, a=a, b=b)
    with _one_thread:
        call(f"sar_gemm_forward_{FLOATS[a.dtype]}", out, a, b, _blas(a.dtype), trans_b, accumulate, m, n, k)


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
    O(m n k) time, as `gemm`; each thread sums its share of the rows, so threads * m * n values of memory. They are added in
    thread order: the same bits for the same number of threads.
    """
    k, m = _matrix("a", a).shape
    check("g", _matrix("g", g, a.dtype), shape=(k, None))
    n = g.shape[1]
    check("out", out, dtype=a.dtype, shape=(m, n), out=True)
    check_apart(out, a=a, g=g)
    n_threads = threads() if m * n * k > 32768 else 1
    workspace = np.empty((n_threads, m, n), a.dtype)
    with _one_thread:
        call(f"sar_gemm_backward_{FLOATS[a.dtype]}", out, workspace, a, g, _blas(a.dtype), n_threads, m, n, k)


def _matrix(name, a, dtype=FLOATS):
    check(name, a, dtype=dtype, shape=(None, None))
    if max(a.shape) > _MOST:
        raise ShapeError(f"{name} must have less than 2^31 rows and columns; got shape {a.shape}")
    return a


@cache
def _blas(dtype):
    """The address of SciPy's sgemm or dgemm."""
    from scipy.linalg import cython_blas

    capsule = cython_blas.__pyx_capi__["sgemm" if dtype == np.float32 else "dgemm"]
    name, pointer = ctypes.pythonapi.PyCapsule_GetName, ctypes.pythonapi.PyCapsule_GetPointer
    name.restype, name.argtypes = ctypes.c_char_p, [ctypes.py_object]
    pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    return ffi.cast("void *", pointer(capsule, name(capsule)))


class _OneThread:
    """Entered, SciPy's BLAS has one thread; the last of those inside at once gives back what it had before the first."""

    def __init__(self):
        self.lock, self.libraries, self.n_inside, self.before = threading.Lock(), None, 0, []

    def __enter__(self):
        with self.lock:
            self.libraries = _libraries() if self.libraries is None else self.libraries
            self.n_inside += 1
            if self.n_inside == 1:
                self.before = [(library, n) for library in self.libraries if (n := library.get_num_threads()) != 1]
                for library, _ in self.before:
                    library.set_num_threads(1)

    def __exit__(self, *error):
        with self.lock:
            self.n_inside -= 1
            if not self.n_inside:
                for library, n in self.before:
                    library.set_num_threads(n)


def _libraries():
    """The BLAS libraries whose threads the products of this file must set."""
    from scipy.linalg import cython_blas  # noqa: F401 (loads it)
    from threadpoolctl import ThreadpoolController

    found = ThreadpoolController().select(user_api="blas").lib_controllers
    own = [library for library in found if "scipy" in library.filepath.rpartition("/")[0]] or found  # none: it shares NumPy's
    # One that runs on OpenMP has one thread inside of the kernels' teams, and its number is the kernels' own.
    return [library for library in own if getattr(library, "threading_layer", None) != "openmp"]


_one_thread = _OneThread()
