"""Access to the compiled module: calls of kernels, checks of their arguments, instruction sets and threads."""

import math
import os
import threading
from collections.abc import Callable
from typing import Any

import numpy as np

from sarlite.errors import ConfigError, ShapeError, lacks_memory
from sarlite.loading import default_environment
from sarlite.types import Array, ArrayDType

SPIN_COUNT = 3000
"""Number of turns that an OpenMP thread spins before it sleeps on a quiet machine, about 0.07 ms.

The default of libgomp is 300,000, which is no faster (`benchmarks/busy.py`).
"""


def spin_count(running: int | None, n_cores: int) -> int:
    """Return how often a waiting OpenMP thread spins: `SPIN_COUNT` turns if at most `n_cores` threads are `running`, else 0. `running`
    None means unknown.

    On a busy machine a spinning thread takes the core from the thread that it waits for. On a quiet machine short
    kernels are slower if threads sleep at once.

    Parameters
    ----------
    running : int, optional
        Number of runnable threads on the machine, including this thread; None if it is unknown.
    n_cores : int
        Number of cores of the machine.

    Examples
    --------
    >>> spin_count(1, 4), spin_count(9, 4)
    (3000, 0)
    """
    return 0 if running is None or running > n_cores else SPIN_COUNT


def _running():
    """Return the number of runnable threads on the machine; None if the system does not report it."""
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
"""Largest number of threads. OpenMP ends the process if it cannot start as many threads as requested."""
FLOATS: dict[ArrayDType, str] = {np.dtype(np.float32): "f32", np.dtype(np.float64): "f64"}
INDEXES: dict[ArrayDType, str] = {np.dtype(np.int32): "i32", np.dtype(np.int64): "i64"}
BFLOAT16: ArrayDType = np.dtype(np.uint16)  # holds the bits, because NumPy has no bfloat16
ROWS: dict[ArrayDType, str] = {**FLOATS, BFLOAT16: "bf16"}  # dtypes of rows that edges gather
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
_in_use: dict[str, str] = {}  # "name": name of the instruction set in use; empty before the first call
_functions: dict[str, Callable[..., int]] = {}  # version of each kernel for the instruction set in use, by name


def instruction_sets() -> tuple[str, ...]:
    """Return the instruction sets that this build has kernels for and that this processor supports, widest last."""
    built = (name for name in _ISAS if hasattr(lib, f"sar_spmm_forward_f32_i32_{name}"))
    return tuple(name for name in built if lib.sar_can_run(_ISAS[name]))


def instruction_set() -> str:
    """Return the name of the instruction set in use: "portable", "avx2" or "avx512".

    Until `set_instruction_set` is called, it is the value of SARLITE_ISA, or else the widest instruction set.

    Raises
    ------
    ConfigError
        The instruction set that SARLITE_ISA names is not supported.
    """
    name = _in_use.get("name")
    if name is None:
        set_instruction_set(name := os.environ.get("SARLITE_ISA") or instruction_sets()[-1])
    return name


def set_instruction_set(name: str) -> None:
    """Select the kernels of one instruction set, such as "avx2" (see `instruction_sets`), for the whole process. All give the same
    bits.

    Parameters
    ----------
    name : str
        One of `instruction_sets()`.

    Raises
    ------
    ConfigError
        The build or the processor does not support the instruction set.
    """
    if name not in instruction_sets():
        raise ConfigError(f"instruction set {name!r} (SARLITE_ISA) is not one of {', '.join(instruction_sets())}")
    _functions.clear()
    _in_use["name"] = name


def call(kernel: str, *args: Any) -> None:
    """Call the C kernel with the name `kernel`, in the version for the instruction set in use.

    Arrays are passed as pointers, None as NULL, and dicts as pointers to structs. An error status of the kernel raises
    a ShapeError.
    """
    function = _functions.get(kernel)
    if function is None:
        function = _functions[kernel] = getattr(lib, f"{kernel}_{instruction_set()}", None) or getattr(lib, kernel)
    status = function(*[ffi.NULL if a is None else struct(a) if isinstance(a, dict) else _value(a) for a in args])
    if status != lib.SAR_OK:
        raise ShapeError(f"{kernel}: {_STATUS[status]}")


def struct(fields: dict[str, Any]) -> list[Any]:
    """Build a C struct from {field name: value} and return it, ready to pass to `call`, which calls a C kernel. A struct that is
    built once can be passed to several calls.

    Keys are the names of the fields in C. Missing fields are NULL or 0.
    """
    return [_value(fields)]


def _value(a):
    """Convert a kernel's argument, an array, a dict or a number, to a value for cffi; the value keeps the argument alive."""
    if isinstance(a, np.ndarray):
        return ffi.from_buffer(_C_ARRAYS[a.dtype], a)
    if isinstance(a, dict):
        return {name: _value(field) for name, field in a.items() if field is not None}
    return a


def check(name: str, a: Any, *, dtype: Any = None, shape: tuple[int | None, ...] | None = None, out: bool = False,
          rows_apart: bool = False, optional: bool = False) -> Any:
    """Return the argument `a` after checks that it is a C-ordered array of this dtype and shape; errors call it `name`. With `out`
    it must be writable, with `rows_apart` only each row must be contiguous, and with `optional` it may be None.

    Parameters
    ----------
    name : str
        Name of the argument in error messages.
    a : array
    dtype : dtype, or dict with the allowed dtypes as keys, optional
    shape : tuple of int or None, optional
        None allows any length of an axis.
    out : bool
        True if the array must be writable.
    rows_apart : bool
        True if the rows of a matrix need not be contiguous in memory.
    optional : bool
        True if the array may be None.

    Raises
    ------
    ShapeError
        The array does not fit.
    """
    if optional and a is None:
        return None
    if not isinstance(a, np.ndarray):
        raise ShapeError(f"{name} must be a NumPy array, got {type(a).__name__}")
    if isinstance(dtype, dict):
        if a.dtype not in dtype:
            allowed = ' or '.join(str(d) for d in dtype if d != BFLOAT16)  # users do not create bfloat16 arrays
            raise ShapeError(f"{name} must have dtype {allowed}; {_got(a)}")
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
    single_column = a.shape[1] == 1  # then the stride of values does not matter
    return (value == a.itemsize or single_column) and row % a.itemsize == 0 and row >= a.shape[1] * a.itemsize


def _fits(actual: tuple[int, ...], shape: tuple[int | None, ...]) -> bool:
    """Return True if the shape `actual` matches the pattern `shape`, where None stands for any length."""
    if len(actual) != len(shape):
        return False
    for n, m in zip(actual, shape):
        if m is not None and n != m:
            return False
    return True


def _got(a):
    return f"got shape {a.shape}, dtype {a.dtype}"


def check_rows(name: str, a: Any, n: int | None = None, *, dtype: Any = FLOATS, out: bool = False) -> Any:
    """Return the array `a` after a check that it has n rows of any shape (None: any number) and the dtype; with `out` it must be
    writable. Errors call it `name`.
    """
    check(name, a, dtype=dtype, out=out)
    if a.ndim == 0 or (n is not None and len(a) != n):
        raise ShapeError(f"{name} must have {'rows' if n is None else f'{n} rows'}; {_got(a)}")
    return a


def row_width(a: Array) -> int:
    """Return the number of values of one row of an array (n, ...)."""
    return math.prod(a.shape[1:])


def check_csr(indptr: Array, indices: Array | None, x: Any = None,
              names: tuple[str, str] = ("indptr", "indices")) -> tuple[int, int]:
    """Raise a ShapeError unless `indptr` and `indices` form a CSR; return (number of rows, number of edges). `indices` may be None if
    edge e reads row e of `x`, so that x needs a row for each edge. `names` are the names of both arrays in errors.
    """
    check(names[0], indptr, dtype=np.int64, shape=(None,))
    if len(indptr) == 0 or indptr[0] < 0 or indptr[-1] < indptr[0]:
        raise ShapeError(f"{names[0]} must be offsets, one more than rows; {_got(indptr)}")
    end = int(indptr[-1])
    check_per_edge(names[1], indices, INDEXES, end, names[0])
    if indices is None and len(x) < end:
        raise ShapeError(f"x must have a row for each of the {end} edges; {_got(x)}")
    return len(indptr) - 1, end


def check_per_edge(name: str, a: Array | None, dtype: Any, n_edges: int, offsets_name: str = "indptr") -> None:
    """Raise a ShapeError unless `a` is None, or an array of `dtype` with at least one value for each of `n_edges` edges. The error
    calls the array `name`, and the array that counts the edges `offsets_name`.
    """
    if a is not None and len(check(name, a, dtype=dtype, shape=(None,))) < n_edges:
        raise ShapeError(f"{name} must have at least {n_edges} edges ({offsets_name}[-1]); {_got(a)}")


def check_csr_rows(rows: Array | None, n_rows: int, n_out: int, index_dtype: ArrayDType, out_name: str = "out") -> None:
    """Raise a ShapeError unless `rows` is an (n_rows,) array of `index_dtype`, whose entry k is the index of the output row of CSR row k.
    None is allowed if `n_out`, the number of output rows, equals `n_rows`. The error message calls the output `out_name`.
    """
    if rows is not None:
        check("rows", rows, dtype=index_dtype, shape=(n_rows,))
    elif n_out != n_rows:
        raise ShapeError(f"{out_name} must have {n_rows} rows, or rows be given; got {n_out} rows")


def check_range(name: str, a: Array, n: int) -> None:
    """Raise a ShapeError unless all integers of the array `a`, which the message calls `name`, are in [0, n)."""
    if len(a) and not 0 <= a.min() <= a.max() < n:
        raise ShapeError(f"{name} must lie in 0 .. {n}; got {a.min()} .. {a.max()}")


def check_apart(out: Array, /, **inputs: Array | None) -> None:
    """Raise a ShapeError if the output `out` shares memory with one of the inputs; inputs that are None are skipped."""
    for name, a in inputs.items():
        if a is not None and np.may_share_memory(out, a):
            raise ShapeError(f"{name} must not share memory with the output; {_got(a)}")


def wide(dtype: ArrayDType) -> ArrayDType:
    """Return the dtype for sums of rows of `dtype`: float32 for bfloat16, else `dtype`."""
    return np.dtype(np.float32) if dtype == BFLOAT16 else dtype


def suffix_of(dtype: ArrayDType, index: ArrayDType) -> str:
    """Return the suffix, such as "f32_i64", in the name of a kernel over edges, for rows of `dtype` and indices of dtype `index`.

    Examples
    --------
    >>> suffix_of(np.dtype(np.float32), np.dtype(np.int64))
    'f32_i64'
    """
    if dtype == BFLOAT16 and index != np.int32:
        raise ShapeError(f"indices must have dtype int32 with rows of bfloat16; got dtype {index}")
    return f"{ROWS[dtype]}_{INDEXES[index]}"


def index_dtype(*arrays: Array | None, n_edges: int) -> ArrayDType:
    """Return the dtype of the first array that is not None; if all are None, int32 if it can count `n_edges` edges, else int64."""
    return next((a.dtype for a in arrays if a is not None), np.dtype(np.int32 if n_edges < 1 << 31 else np.int64))


def key64(key: int) -> int:
    """Reduce an integer key modulo 2^64, to pass it to C as an unsigned integer."""
    return int(key) & 0xFFFFFFFFFFFFFFFF


def probability(p: float) -> float:
    """Return p as a float; raise a ShapeError unless it is in [0, 1)."""
    if not 0 <= p < 1:
        raise ShapeError(f"p must be in [0, 1), got {p}")
    return float(p)


def threads() -> int:
    """Return the number of OpenMP threads that kernels use when this thread calls them; 1 without OpenMP."""
    return lib.sar_threads()


def team(work: int) -> int:
    """Return the number of threads for a kernel whose threads each have a copy of the sums: one thread if `work`, the number of
    multiply-adds, is at most 32,768, else all threads.
    """
    return threads() if work > 32768 else 1


def set_threads(n: int) -> None:
    """Set the number of OpenMP threads that kernels use when this thread calls them.

    Parameters
    ----------
    n : int
        From 1 to `MAX_THREADS`.

    Raises
    ------
    ShapeError
        `n` is out of range.
    ConfigError
        `n` is above 1 in a process that was forked after a kernel ran.
    """
    if not 1 <= n <= MAX_THREADS:
        raise ShapeError(f"n must be from 1 to {MAX_THREADS}, got {n}")
    if n > most_threads():
        raise ConfigError(f"{n} threads: this process was forked, and OpenMP's threads do not survive a fork, so kernels use "
                          'one thread; start processes by "spawn", or call the kernels in another thread')
    call("sar_set_threads", int(n))


def most_threads() -> int:
    """Return the largest number of threads for `set_threads`: 1 in a process that was forked after a kernel ran."""
    return 1 if threading.get_ident() == _forked.get("thread") else MAX_THREADS


_forked: dict[str, int] = {}


def _after_fork():
    """Make kernels use one thread in a forked child, where OpenMP's other threads do not exist but would be waited for."""
    if _functions.keys() - {"sar_set_threads"}:  # a kernel has run
        _forked["thread"] = threading.get_ident()
        lib.sar_set_threads(1)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
