"""A pool of memory for arrays: the memory of freed arrays is used again for new arrays."""

import contextvars
import ctypes
import weakref

import numpy as np

from sarlite.errors import SarliteError
from sarlite.kernels.native import ffi, lib

_SET_HANDLER = 304  # the place of PyDataMem_SetHandler in NumPy's C interface, fixed since 1.22


def _set_handler():
    """Return NumPy's PyDataMem_SetHandler: capsule -> the capsule before, for this context (NEP 49)."""
    from_capsule = ctypes.pythonapi.PyCapsule_GetPointer
    from_capsule.restype, from_capsule.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    table = ctypes.cast(from_capsule(np._core.multiarray._ARRAY_API, None), ctypes.POINTER(ctypes.c_void_p))
    return ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.py_object)(table[_SET_HANDLER])


def _capsule(handler, end):
    """NumPy's capsule of a handler. Arrays and contexts hold it.

    After the last of them the C function `end` frees the handler.
    """
    make = ctypes.pythonapi.PyCapsule_New
    make.restype, make.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
    address, destructor = (int(ffi.cast("uintptr_t", p)) for p in (handler, ffi.addressof(lib, end)))
    return make(address, _NAME, destructor)


_NAME = b"mem_handler"  # NumPy's; a capsule borrows it
_set = _set_handler()
# What this context has entered: pairs of handlers, of the Buffers and the one before; the innermost last.
_entered: contextvars.ContextVar[tuple] = contextvars.ContextVar("entered", default=())


def outside_buffers(function, *args, **options):
    """Call a function without any active `Buffers`.

    It is meant for arrays that outlive a step and would leave gaps between the step's arrays.
    """
    return contextvars.Context().run(function, *args, **options)


class Buffers:
    """While entered, new arrays of this context start at a cache line, and large ones reuse the memory of freed ones::

        buffers = Buffers()
        with buffers:
            ...                     # any NumPy code; arrays may outlive the block and the buffers

    A training step makes arrays of the same sizes in every epoch. After the first epoch it takes no fresh memory, so
    that the system has no pages to clear. Large arrays (256 KiB) stand in one range of addresses, each in the first
    free place that is large enough.

    Notes
    -----
    Local to the context (`contextvars`): a new thread starts outside, a copied context inside. Several threads may be
    inside at once. Memory: the most that was in use at once and some gaps, kept until `trim` or the end of the object.
    Arrays and contexts that outlive the object stay valid. The range is as long as the machine's memory, but only pages
    that are touched take memory. Where the system refuses so many addresses (`ulimit -v`), large arrays are `malloc`'s.
    Source: NumPy's NEP 49. MG-GCN, too, reuses its buffers across layers and passes.
    """

    def __init__(self) -> None:
        self._buffers = lib.sar_buffers_open()
        if not self._buffers:
            raise MemoryError("no memory for the table of buffers")
        self._handler = _capsule(self._buffers, "sar_buffers_end")
        closing = weakref.finalize(self, lib.sar_buffers_close, self._buffers)  # runs while `_handler` is still there
        closing.atexit = False

    def __enter__(self) -> "Buffers":
        _entered.set((*_entered.get(), (self._handler, _set(self._handler))))
        return self

    def __exit__(self, *error: object) -> None:
        *outer, (entered, before) = _entered.get() or [(None, None)]
        if entered is not self._handler:
            raise SarliteError("Buffers must be left in the context that entered them, the last entered first")
        _entered.set(tuple(outer))
        _set(before)

    def trim(self) -> None:
        """Return unused memory to the system."""
        lib.sar_buffers_trim(self._buffers)

    @property
    def n_fresh(self) -> int:
        """Number of times that a large array (256 KiB or more) took new memory from the system."""
        return lib.sar_buffers_fresh(self._buffers)

    @property
    def n_bytes(self) -> int:
        """Size of all large arrays in bytes, in use and free."""
        return lib.sar_buffers_bytes(self._buffers)

