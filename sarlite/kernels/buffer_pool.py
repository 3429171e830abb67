"""A pool of memory for arrays: the memory of freed arrays is used again for new arrays."""

import contextvars
import ctypes
import weakref
from typing import Any

import numpy as np

from sarlite.errors import SarliteError
from sarlite.kernels.native import ffi, lib

_SET_HANDLER = 304  # index of PyDataMem_SetHandler in the table of NumPy's C API, fixed since 1.22


def _set_handler():
    """Return NumPy's function PyDataMem_SetHandler, which sets this context's allocator (NEP 49). It takes a capsule of the new
    allocator and returns the capsule of the previous one.
    """
    from_capsule = ctypes.pythonapi.PyCapsule_GetPointer
    from_capsule.restype, from_capsule.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    table = ctypes.cast(from_capsule(np._core.multiarray._ARRAY_API, None), ctypes.POINTER(ctypes.c_void_p))
    return ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.py_object)(table[_SET_HANDLER])


def _capsule(handler: Any, destructor_name: str) -> object:
    """Wrap the allocator `handler` in a PyCapsule, an object with a reference count, to which NumPy's arrays hold references. When
    the last reference is gone, the C function with the name `destructor_name` frees the allocator.
    """
    make = ctypes.pythonapi.PyCapsule_New
    make.restype, make.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
    address, destructor = (int(ffi.cast("uintptr_t", p)) for p in (handler, ffi.addressof(lib, destructor_name)))
    return make(address, _NAME, destructor)


_NAME = b"mem_handler"  # name of NumPy's capsules; a global, because a capsule does not copy its name
_set = _set_handler()
# The Buffers that this context has entered, the innermost last: pairs (handler of the Buffers, previous handler).
_entered: contextvars.ContextVar[tuple] = contextvars.ContextVar("entered", default=())


def outside_buffers(function, *args, **options):
    """Return function(*args, **options), whose new arrays take no memory from a pool (`Buffers`) that is active in the caller.

    Use it for arrays that outlive a training step. In the buffers they would leave gaps between the step's arrays.
    """
    return contextvars.Context().run(function, *args, **options)


class Buffers:
    """Context inside which new NumPy arrays reuse the memory of freed arrays.

    A training step allocates arrays of the same sizes in every epoch. After the first epoch the step needs no new
    memory from the system, which would have to clear the pages. Large arrays (256 KiB or more) are placed in one range
    of addresses, each in the first free block that is large enough. All arrays start at a cache line.

    Notes
    -----
    The context is local to the current context of `contextvars`: a new thread starts outside, and a copied context
    inside. Several threads may be inside at the same time. Memory: the largest amount that was in use at one time, and
    some gaps, until `trim` is called or the object is freed. Arrays that outlive the object stay valid. The address
    range is as long as the machine's memory, but only touched pages take memory. If the system refuses so many
    addresses (`ulimit -v`), `malloc` provides large arrays.

    References
    ----------
    NumPy Enhancement Proposal 49. MG-GCN also reuses its buffers for all layers and passes.

    Examples
    --------
    >>> buffers = Buffers()
    >>> for step in range(3):
    ...     with buffers:
    ...         x = np.zeros(1 << 20)
    ...     del x
    >>> buffers.n_fresh
    1
    """

    def __init__(self) -> None:
        self._buffers = lib.sar_buffers_open()
        if not self._buffers:
            raise MemoryError("no memory for the table of buffers")
        self._handler = _capsule(self._buffers, "sar_buffers_end")
        closing = weakref.finalize(self, lib.sar_buffers_close, self._buffers)  # runs before `_handler` is freed
        closing.atexit = False

    def __enter__(self) -> "Buffers":
        _entered.set((*_entered.get(), (self._handler, _set(self._handler))))
        return self

    def __exit__(self, *error: object) -> None:
        *outer, (entered, before) = _entered.get() or [(None, None)]
        if entered is not self._handler:
            raise SarliteError("Buffers: leave each `with Buffers()` block in the context that entered it, the last entered first")
        _entered.set(tuple(outer))
        _set(before)

    def trim(self) -> None:
        """Return the memory of free blocks to the operating system."""
        lib.sar_buffers_trim(self._buffers)

    @property
    def n_fresh(self) -> int:
        """Number of times that a large array (256 KiB or more) took new memory from the system."""
        return lib.sar_buffers_fresh(self._buffers)

    @property
    def n_bytes(self) -> int:
        """Number of bytes of all blocks for large arrays, in use and free."""
        return lib.sar_buffers_bytes(self._buffers)

