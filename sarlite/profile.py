"""Counters: bytes sent by phase, remote buffers held at once, resident memory."""

import ctypes
import threading
import weakref
from collections import Counter
from contextlib import contextmanager


class Profile:
    """What one rank counts while it runs.

    Attributes
    ----------
    sent_bytes, received_bytes : Counter
        Bytes by phase: "forward_fetch", "backward_fetch", "backward_push", "allreduce", "evaluation", "setup".
    live_remote_buffers, peak_remote_buffers : int
        Buffers of peers' rows held now, and at most at once.
    on_progress : callable or None
        Called at every exchange; the command line's watchdog listens.
    """

    def __init__(self):
        self._lock = threading.RLock()  # a finalizer may run while the lock is held
        self.on_progress = self._phase = None
        self.live_remote_buffers = 0
        self.reset()

    def reset(self):
        """Forget the bytes, and let the peak be what is live now."""
        self.sent_bytes, self.received_bytes = Counter(), Counter()
        self.peak_remote_buffers = self.live_remote_buffers

    def count(self, phase, sent=0, received=0):
        if self.on_progress is not None:
            self.on_progress()
        with self._lock:
            self.sent_bytes[self._phase or phase] += sent
            self.received_bytes[self._phase or phase] += received

    @contextmanager
    def phase(self, name):
        """Count everything inside under `name`."""
        self._phase, before = name, self._phase
        try:
            yield
        finally:
            self._phase = before

    def hold(self, buffer, n=1):
        """Count `buffer` as `n` remote buffers until it is really freed, views and all."""
        self._change(n)
        weakref.finalize(buffer, self._change, -n).atexit = False

    def _change(self, n):
        with self._lock:
            self.live_remote_buffers += n
            self.peak_remote_buffers = max(self.peak_remote_buffers, self.live_remote_buffers)


class Counted:
    """A communicator whose reductions and gathered arrays are counted in a Profile; a rank counts what it contributes."""

    def __init__(self, comm, profile):
        self._comm, self._profile = comm, profile
        self.rank, self.size, self.threaded = comm.rank, comm.size, comm.threaded

    def __getattr__(self, name):
        return getattr(self._comm, name)

    def allreduce(self, array, op="sum"):
        self._profile.count("allreduce", array.nbytes if self.size > 1 else 0)
        return self._comm.allreduce(array, op)

    def allgather(self, value):
        items = value if isinstance(value, tuple) else (value,)
        self._profile.count("allgather", sum(getattr(item, "nbytes", 0) for item in items) if self.size > 1 else 0)
        return self._comm.allgather(value)


def _trim():
    """Give freed memory back, so that what is used again counts again (glibc only)."""
    try:
        ctypes.CDLL(None).malloc_trim(0)
    except (AttributeError, OSError):
        pass


def _status(field):
    try:
        with open("/proc/self/status") as file:
            return next(int(line.split()[1]) * 1024 for line in file if line.startswith(field))
    except (OSError, StopIteration):
        import resource
        import sys

        scale = 1 if sys.platform == "darwin" else 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * scale


class Memory:
    """Peak resident memory of this process above the moment of construction, in bytes."""

    def __init__(self):
        _trim()
        try:
            with open("/proc/self/clear_refs", "w") as file:
                file.write("5")  # resets the kernel's high-water mark
        except OSError:
            pass
        self.base = _status("VmRSS")

    def peak(self):
        return max(0, _status("VmHWM") - self.base)
