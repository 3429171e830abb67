"""Access to the compiled module, with the checks of arguments that precede a call."""

import math
import os
import threading
from typing import Any

import numpy as np

from sarlite.errors import ConfigError, ShapeError, lacks_memory
from sarlite.loading import default_environment

SPIN_COUNT = 3000
"""Turns of the loop in which an OpenMP thread waits before it sleeps, on a quiet machine: 0.07 ms and more.

libgomp's own number is 300,000, which is no faster (`benchmarks/busy.py`).
"""


def spin_count(running: int | None, n_cores: int) -> int:
    """Return how many turns a waiting thread spins: `SPIN_COUNT` on a quiet machine, 0 on a busy one.

    A spinning thread keeps the core from the thread that it waits for, where other programs run. Sleeping at once makes
    short kernels slower on a quiet machine.

    Parameters
    ----------
    running : int, optional
        Number of threads on the machine that run or want to run, this thread included; None if it is unknown.
    n_cores : int
    """
    return 0 if running is None or running > n_cores else SPIN_COUNT


def _running():
    """Return the number of threads that run or want to run now; None where the system does not say."""
    try:
        with open("/proc/loadavg") as file:
            return int(file.read().split()[3].partition("/")[0])
    except (OSError, ValueError, IndexError):
        return None


try:
    with default_environment(GOMP_SPINCOUNT=spin_count(_running(), os.cpu_count() or 1), unless=("OMP_WAIT_POLICY",)):
        from sarlite._native import ffi, lib
except ImportError as error:
    cause = "is missing; build it with: pip install -e ."
    cause = "cannot be loaded: there is no memory for it" if lacks_memory(error) else cause
    raise ImportError(f"the compiled module sarlite._native {cause} ({error})") from error

MAX_THREADS = 1024
"""More threads than any machine has. OpenMP ends the process where it cannot start the threads."""
FLOATS = {np.dtype(np.float32): "f32", np.dtype(np.float64): "f64"}
INDEXES = {np.dtype(np.int32): "i32", np.dtype(np.int64): "i64"}
BFLOAT16 = np.dtype(np.uint16)  # NumPy has none: the bits
ROWS = {**FLOATS, BFLOAT16: "bf16"}  # of rows that edges gather
LINE = np.dtype([("made", np.int64), ("halo", np.int32), ("older", np.int32), ("newer", np.int32), ("end", np.int32)])
_C_ARRAYS = {
    np.dtype(np.float32): "float[]",
    np.dtype(np.float64): "double[]",
    np.dtype(np.int32): "int32_t[]",
    np.dtype(np.int64): "int64_t[]",
    BFLOAT16: "uint16_t[]",
    np.dtype(np.uint32): "uint32_t[]",
    np.dtype(np.uint64): "uint64_t[]",
    np.dtype(np.uint8): "uint8_t[]",
    np.dtype(np.int8): "int8_t[]",
    LINE: "struct sar_line[]",
}
_STATUS = {
    lib.SAR_INDEX_OUT_OF_BOUNDS: "index has an entry outside 0 .. number of rows",
    lib.SAR_LABEL_OUT_OF_BOUNDS: "label has an entry that is negative or outside order",
    lib.SAR_DEGREE_TOO_LARGE: "indptr has a row of 2^32 - 1 edges or more",
}
_ISAS = {"portable": lib.SAR_PORTABLE, "avx2": lib.SAR_AVX2, "avx512": lib.SAR_AVX512}  # in ascending order
_functions: dict[str, Any] = {}  # each kernel's version for the instruction set in use, by the kernel's name


def instruction_sets() -> tuple[str, ...]:
    """Return the instruction sets, widest last, for which this build has kernels and which this processor runs."""
    built = (name for name in _ISAS if hasattr(lib, f"sar_spmm_forward_f32_i32_{name}"))
    return tuple(name for name in built if lib.sar_can_run(_ISAS[name]))


def instruction_set() -> str:
    """Return the name of the instruction set in use: "portable", "avx2" or "avx512".

    Until `set_instruction_set` is called it is the widest, or what SARLITE_ISA says; a ConfigError where there is no
    such one.
    """
    name = _functions.get("name")
    if name is None:
        set_instruction_set(name := os.environ.get("SARLITE_ISA") or instruction_sets()[-1])
    return name


def set_instruction_set(name: str) -> None:
    """Use the kernels of one instruction set, in the whole process. All give the same bits.

    Parameters
    ----------
    name : str
        One of `instruction_sets()`.

    Raises
    ------
    ConfigError
        The build or the processor does not have it.
    """
    if name not in instruction_sets():
        raise ConfigError(f"instruction set {name!r} (SARLITE_ISA) is not one of {', '.join(instruction_sets())}")
    _functions.clear()
    _functions["name"] = name


def call(kernel, *args):
    """Call a kernel. An array becomes a pointer, None NULL, a dict a pointer to a struct, a status an exception."""
    function = _functions.get(kernel)
    if function is None:
        function = _functions[kernel] = getattr(lib, f"{kernel}_{instruction_set()}", None) or getattr(lib, kernel)
    status = function(*[ffi.NULL if a is None else struct(a) if isinstance(a, dict) else _value(a) for a in args])
    if status != lib.SAR_OK:
        raise ShapeError(f"{kernel}: {_STATUS[status]}")


def struct(fields):
    """Return a dict as a C struct that `call` accepts, to be used in several calls.

    Fields go by their names in C; missing ones are NULL or 0.
    """
    return [_value(fields)]


def _value(a):
    """Return the cffi value for an argument; the value keeps the argument alive."""
    if isinstance(a, np.ndarray):
        return ffi.from_buffer(_C_ARRAYS[a.dtype], a)
    if isinstance(a, dict):
        return {name: _value(field) for name, field in a.items() if field is not None}
    return a


def check(name, a, *, dtype=None, shape=None, out=False, rows_apart=False, optional=False):
    """Check one array, and return it.

    `dtype` is a dtype, or a table of the allowed ones. None in `shape` allows any length. With `rows_apart` the rows of
    a matrix need not follow each other. An array that is `optional` may be None. """
    if optional and a is None:
        return None
    if not isinstance(a, np.ndarray):
        raise ShapeError(f"{name} must be a NumPy array, got {type(a).__name__}")
    if isinstance(dtype, dict):
        if a.dtype not in dtype:
            known = ' or '.join(str(d) for d in dtype if d != BFLOAT16)  # which no caller makes by hand
            raise ShapeError(f"{name} must have dtype {known}; {_got(a)}")
    elif dtype is not None and a.dtype != dtype:
        raise ShapeError(f"{name} must have dtype {np.dtype(dtype)}; {_got(a)}")
    if shape is not None and a.shape != shape and not _fits(a.shape, shape):
        raise ShapeError(f"{name} must have shape {str(shape).replace('None', 'any')}; {_got(a)}")
    if not (a.flags.c_contiguous or (rows_apart and _has_rows(a))):
        raise ShapeError(f"{name} must be C-contiguous; {_got(a)}, strides {a.strides}")
    if out and not a.flags.writeable:
        raise ShapeError(f"{name} must be writeable; {_got(a)}")
    return a


def _has_rows(a):
    """Return True if each row of a matrix is contiguous and begins after the end of the previous row."""
    row, value = a.strides
    one = a.shape[1] == 1  # value, whose stride may be any
    return (value == a.itemsize or one) and row % a.itemsize == 0 and row >= a.shape[1] * a.itemsize


def _fits(found, shape):
    if len(found) != len(shape):
        return False
    for n, m in zip(found, shape):
        if m is not None and n != m:
            return False
    return True


def _got(a):
    return f"got shape {a.shape}, dtype {a.dtype}"


def check_rows(name, a, n=None, *, dtype=FLOATS, out=False):
    """Check an array of rows, with any trailing shape."""
    check(name, a, dtype=dtype, out=out)
    if a.ndim == 0 or (n is not None and len(a) != n):
        raise ShapeError(f"{name} must have {'rows' if n is None else f'{n} rows'}; {_got(a)}")
    return a


def row_width(a):
    """Number of elements of one row."""
    return math.prod(a.shape[1:])


def check_csr(indptr, indices, x=None, names=("indptr", "indices")):
    """Check a CSR; return (n_dst, end of the edges). Without `indices` each edge has a row of `x`."""
    check(names[0], indptr, dtype=np.int64, shape=(None,))
    if len(indptr) == 0 or indptr[0] < 0 or indptr[-1] < indptr[0]:
        raise ShapeError(f"{names[0]} must be offsets, one more than rows; {_got(indptr)}")
    end = int(indptr[-1])
    check_per_edge(names[1], indices, INDEXES, end, names[0])
    if indices is None and len(x) < end:
        raise ShapeError(f"x must have a row for each of the {end} edges; {_got(x)}")
    return len(indptr) - 1, end


def check_per_edge(name, a, dtype, end, offsets="indptr"):
    """Check an array that has a value for each edge, where it is given."""
    if a is not None and len(check(name, a, dtype=dtype, shape=(None,))) < end:
        raise ShapeError(f"{name} must have at least {end} edges ({offsets}[-1]); {_got(a)}")


def check_csr_rows(rows, n_rows, n_out, index, out_name="out"):
    """Check the output row of each CSR row.

    Without `rows` the CSR must have a row for each of the `n_out` output rows.
    """
    if rows is not None:
        check("rows", rows, dtype=index, shape=(n_rows,))
    elif n_out != n_rows:
        raise ShapeError(f"{out_name} must have {n_rows} rows, or rows be given; got {n_out} rows")


def check_range(name, a, n):
    """Check that all integers of an array are in 0 .. n, without n."""
    if len(a) and not 0 <= a.min() <= a.max() < n:
        raise ShapeError(f"{name} must lie in 0 .. {n}; got {a.min()} .. {a.max()}")


def check_apart(out, /, **inputs):
    """Check that an output shares memory with no input; inputs that are None are skipped."""
    for name, a in inputs.items():
        if a is not None and np.may_share_memory(out, a):
            raise ShapeError(f"{name} must not share memory with the output; {_got(a)}")


def wide(dtype):
    """Return the dtype for sums of rows of `dtype`: float32 for bfloat16, else `dtype`."""
    return np.dtype(np.float32) if dtype == BFLOAT16 else dtype


def suffix_of(dtype, index):
    """Return the suffix of a kernel over edges by the dtype of its rows and of its indices."""
    if dtype == BFLOAT16 and index != np.int32:
        raise ShapeError(f"indices must have dtype int32 with rows of bfloat16; got dtype {index}")
    return f"{ROWS[dtype]}_{INDEXES[index]}"


def index_dtype(*arrays, n_edges):
    """dtype of the first index array given; when there is none the smaller that counts the edges."""
    return next((a.dtype for a in arrays if a is not None), np.dtype(np.int32 if n_edges < 1 << 31 else np.int64))


def key64(key):
    return int(key) & 0xFFFFFFFFFFFFFFFF


def probability(p):
    if not 0 <= p < 1:
        raise ShapeError(f"p must be in [0, 1), got {p}")
    return float(p)


def threads() -> int:
    """Return the number of OpenMP threads of the calling thread's kernels (1 without OpenMP)."""
    return lib.sar_threads()


def team(work):
    """Return the number of threads for a kernel with one private sum per thread: 1 if there is little work."""
    return threads() if work > 32768 else 1


def set_threads(n: int) -> None:
    """Set the number of OpenMP threads of the calling thread's kernels.

    Parameters
    ----------
    n : int
        From 1 to `MAX_THREADS`.
    """
    if not 1 <= n <= MAX_THREADS:
        raise ShapeError(f"n must be from 1 to {MAX_THREADS}, got {n}")
    if n > most_threads():
        raise ConfigError(f"{n} threads: OpenMP's did not survive the fork that made this process, so its kernels use "
                          'one thread; start processes by "spawn", or call the kernels in another thread')
    call("sar_set_threads", int(n))


def most_threads() -> int:
    """Return how many threads this thread's kernels may use: 1 in a process that was forked after a kernel ran."""
    return 1 if threading.get_ident() == _forked.get("thread") else MAX_THREADS


_forked: dict[str, int] = {}


def _after_fork():
    """Use one thread in a forked child: OpenMP's threads are gone, and the thread that had them would wait for ever."""
    if _functions.keys() - {"name", "sar_set_threads"}:  # some kernel has run
        _forked["thread"] = threading.get_ident()
        lib.sar_set_threads(1)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
