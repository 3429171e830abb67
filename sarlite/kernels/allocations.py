"""What NumPy allocates, in order; and the addresses that `Buffers` would give to it."""

import weakref
from bisect import bisect_left
from contextlib import contextmanager

from sarlite.kernels import buffers
from sarlite.kernels.native import ffi, lib
from sarlite.profile import huge_page

_LINE, _LARGE = 64, 1 << 18  # of native/buffers.c


class Recorder:
    """While entered, notes each array that NumPy makes in this context, and when its memory is freed. Stands in for `Buffers`.

    Attributes
    ----------
    events : list
        ("new", number, bytes) and ("free", number), in order; whoever records may put marks of its own between them. Of an array made
        within `beside()` there is a fourth item, True: it has its place in other `Buffers` than the rest.

    Notes
    -----
    Events are kept: for small runs. One object is entered by one thread. What stays of one, as long as its arrays and copies of its
    context do, is its handler, some 300 bytes.
    """

    def __init__(self):
        self._recorder, self._events, self._before = lib.sar_recorder_open(), [], []
        if not self._recorder:
            raise MemoryError("no memory for notes of arrays")
        self._handler = buffers._capsule(self._recorder, "sar_recorder_end")
        weakref.finalize(self, lib.sar_recorder_close, self._recorder).atexit = False  # runs while `_handler` is still there

    def __enter__(self):
        self._before.append(buffers._set(self._handler))
        return self

    def __exit__(self, *error):
        buffers._set(self._before.pop())

    @property
    def events(self):
        n = lib.sar_recorder_count(self._recorder)
        if n < 0:
            raise MemoryError("no memory for notes of arrays")
        found = ffi.new("int64_t[]", 2 * n)  # no array, which would be noted
        found = ffi.unpack(found, 2 * lib.sar_recorder_take(self._recorder, found, n)) if n else []
        self._events += [("free", number) if size < 0 else ("new", number, size) for number, size in zip(found[::2], found[1::2])]
        return self._events

    @contextmanager
    def beside(self):
        """While entered, arrays are noted as made in other `Buffers`."""
        with self:
            first = len(self.events)
            try:
                yield
            finally:
                self._events[first:] = [(*event, True) if event[0] == "new" else event for event in self.events[first:]]


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
        """The memory that the range takes, in whole huge pages where the system gives them, and the most of the small arrays."""
        return -(-self.top // huge_page()) * huge_page() + self.peak_small

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
