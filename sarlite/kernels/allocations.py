"""What NumPy allocates, in order; and the addresses that `Buffers` would give to it."""

import ctypes
import itertools
import weakref
from bisect import bisect_left
from contextlib import contextmanager

from sarlite.kernels import buffers

_LINE, _LARGE = 64, 1 << 18  # of native/buffers.c
_MALLOC = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)
_CALLOC = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t)
_REALLOC = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)
_FREE = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)


class _Allocator(ctypes.Structure):
    _fields_ = [("context", ctypes.c_void_p), ("malloc", _MALLOC), ("calloc", _CALLOC), ("realloc", _REALLOC), ("free", _FREE)]


class _Handler(ctypes.Structure):
    """NumPy's PyDataMem_Handler (NEP 49)."""

    _fields_ = [("name", ctypes.c_char * 127), ("version", ctypes.c_uint8), ("allocator", _Allocator)]


class Recorder:
    """While entered, notes each array that NumPy makes in this context, and when its memory is freed. Stands in for `Buffers`.

    Attributes
    ----------
    events : list
        ("new", number, bytes) and ("free", number), in order; whoever records may put marks of its own between them. Of an array made
        within `beside()` there is a fourth item, True: it has its place in other `Buffers` than the rest.

    Notes
    -----
    Every allocation calls Python: for small runs. One object is entered by one thread. What stays of one is its handler, some 200 bytes.
    """

    def __init__(self):
        self.events, self._numbers, self._count, self._before, self._beside = [], {}, 0, [], ()
        self._handler = _Handler(b"sarlite recorder", 1, _Allocator(next(_COUNTER), *_CALLBACKS))
        _HANDLERS.append(self._handler)
        _RECORDERS[self._handler.allocator.context] = self

    def __enter__(self):
        make = ctypes.pythonapi.PyCapsule_New
        make.restype, make.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
        self._before.append(buffers._set(make(ctypes.addressof(self._handler), buffers._NAME, None)))
        return self

    def __exit__(self, *error):
        buffers._set(self._before.pop())

    @contextmanager
    def beside(self):
        """While entered, arrays are noted as made in other `Buffers`."""
        with self:
            self._beside = (True,)
            try:
                yield
            finally:
                self._beside = ()

    def made(self, address, size):
        """Note an array's memory."""
        self._numbers[address] = self._count
        self.events.append(("new", self._count, size, *self._beside))
        self._count += 1

    def freed(self, number):
        if number is not None:
            self.events.append(("free", number))

    def taken(self, address):
        """Forget an address; return the number of its array, None where it is none of this recorder's."""
        return self._numbers.pop(address, None)


_HANDLERS: list = []  # arrays that outlive a recorder free through its handler
_RECORDERS: weakref.WeakValueDictionary = weakref.WeakValueDictionary()  # by their handler's context
_COUNTER = itertools.count(1)
_C = ctypes.CDLL(None)
_C.malloc.restype = _C.calloc.restype = _C.realloc.restype = ctypes.c_void_p
_C.malloc.argtypes, _C.calloc.argtypes = (ctypes.c_size_t,), (ctypes.c_size_t, ctypes.c_size_t)
_C.realloc.argtypes, _C.free.argtypes = (ctypes.c_void_p, ctypes.c_size_t), (ctypes.c_void_p,)


def _malloc(context, size):
    return _noted(_RECORDERS.get(context), _C.malloc(size), size)


def _calloc(context, n, size):
    return _noted(_RECORDERS.get(context), _C.calloc(n, size), n * size)


def _realloc(context, block, size):
    recorder = _RECORDERS.get(context)
    number = None if recorder is None else recorder.taken(block)
    address = _noted(recorder, _C.realloc(block, size), size)
    if recorder is not None:
        recorder.freed(number)
    return address


def _free(context, block, size):
    recorder = _RECORDERS.get(context)
    if recorder is not None:
        recorder.freed(recorder.taken(block))
    _C.free(block)


def _noted(recorder, address, size):
    if recorder is not None:
        recorder.made(address, size)
    return address


_CALLBACKS = _MALLOC(_malloc), _CALLOC(_calloc), _REALLOC(_realloc), _FREE(_free)


class Places:
    """The addresses that `Buffers` gives to arrays of these sizes, by its own rule: the first free place that is large enough.

    Attributes
    ----------
    top : int
        Length of the range so far, in bytes: what large arrays touch, in use and free.
    small, peak_small : int
        Bytes of arrays that are `malloc`'s, now and at most.
    in_use, peak_in_use : int
        Bytes of large arrays, now and at most.
    """

    def __init__(self):
        self.top = self.small = self.peak_small = self.in_use = self.peak_in_use = 0
        self._starts, self._sizes, self._held = [], [], {}  # of free places, by address

    @property
    def peak(self):
        return self.top + self.peak_small

    def new(self, key, n_bytes):
        """Place an array; `key` names it."""
        size = (int(n_bytes) + 2 * _LINE - 1) // _LINE * _LINE
        start = self._take(size) if size > _LARGE else None
        self._held[key] = start, size
        if start is None:
            self.small += size
            self.peak_small = max(self.peak_small, self.small)
        else:
            self.in_use += size
            self.peak_in_use = max(self.peak_in_use, self.in_use)

    def free(self, key):
        """Free an array; one that was freed before is nothing."""
        start, size = self._held.pop(key, (None, 0))
        if start is None:
            self.small -= size
            return
        self.in_use -= size
        k = bisect_left(self._starts, start)
        if k < len(self._starts) and start + size == self._starts[k]:
            size += self._sizes[k]
            del self._starts[k], self._sizes[k]
        if k and self._starts[k - 1] + self._sizes[k - 1] == start:
            self._sizes[k - 1] += size
        else:
            self._starts.insert(k, start)
            self._sizes.insert(k, size)

    def _take(self, size):
        for k, (start, there) in enumerate(zip(self._starts, self._sizes)):
            if there > size:
                self._starts[k], self._sizes[k] = start + size, there - size
                return start
            if there == size or start + there == self.top:
                del self._starts[k], self._sizes[k]
                self.top = max(self.top, start + size)
                return start
        self.top += size
        return self.top - size
