"""Counters: bytes sent by phase, remote buffers held at once, resident memory. And the timeline of a rank."""

import ctypes
import os
import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from fractions import Fraction
from typing import Any

import numpy.typing as npt


class Profile:
    """Counters and spans of one rank.

    Attributes
    ----------
    sent_bytes, received_bytes : Counter
        Bytes by phase: "forward_fetch", "forward_push", "backward_fetch", "backward_push", "allreduce", "alltoall",
        "gather", "broadcast", "allgather", "push_rows", "evaluation", "setup".
    sent_to : Counter
        Bytes of rows and gradients by (phase, peer).
    live_remote_buffers, peak_remote_buffers : int or Fraction
        Peers whose rows are held now, and the most that were held at once. A part of a peer's rows counts as a part.
    on_progress : callable or None
        Called at every exchange; the command line's watchdog listens.
    trace : Trace or None
        Gets the spans; without a trace no spans are recorded.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()  # a finalizer may run while the lock is held
        self.on_progress: Callable[[], None] | None = None
        self.trace: Trace | None = None
        self._phase: str | None = None  # of all threads but those that have begun one of their own
        self._own, self._thread = threading.local(), threading.get_ident()
        self.live_remote_buffers: int | Fraction = 0
        self.reset()

    def reset(self) -> None:
        """Forget the bytes, and let the peak be the number of live buffers."""
        self.sent_bytes: Counter[str] = Counter()
        self.received_bytes: Counter[str] = Counter()
        self.sent_to: Counter[tuple[str, int]] = Counter()
        self.peak_remote_buffers = self.live_remote_buffers

    def count(self, phase: str, sent: int = 0, received: int = 0, to: Iterable[int] = ()) -> None:
        """Count bytes under a phase; those that are sent go in equal shares `to` these peers."""
        if self.on_progress is not None:
            self.on_progress()
        with self._lock:
            counted = self._within() or phase
            self.sent_bytes[counted] += sent
            self.received_bytes[counted] += received
            peers = tuple(to)
            for peer in peers:
                self.sent_to[counted, peer] += sent // len(peers)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Return a context that counts all bytes under `name`.

        On the profile's own thread it applies to all threads; on another thread only to that thread, so that sampling
        ahead does not change the phase of a step.
        """
        holder = self if threading.get_ident() == self._thread else self._own
        before = getattr(holder, "_phase", None)
        holder._phase = name
        try:
            yield
        finally:
            holder._phase = before

    def _within(self):
        return getattr(self._own, "_phase", None) or self._phase

    def span(self, name: str, track: str = "compute", **args: Any) -> "Span":
        """Start a span of the timeline and return it: a context. `args` are shown to a reader of the timeline."""
        return _NO_SPAN if self.trace is None else Span(self.trace, name, track, args)

    def hold(self, buffer: Any, n: int | Fraction = 1) -> None:
        """Count `buffer` as the rows of `n` peers until its memory is freed, after its last view."""
        self._change(n)
        weakref.finalize(buffer, self._change, -n).atexit = False

    def _change(self, n):
        with self._lock:
            self.live_remote_buffers += n
            self.peak_remote_buffers = max(self.peak_remote_buffers, self.live_remote_buffers)


class Trace:
    """One rank's timeline.

    Attributes
    ----------
    spans : list of (name, track, begin, end, args)
        In the order in which they ended; times in nanoseconds since the trace was made. Any thread may add to it. On
        the track `compute` the args say the thread's processor time too, "processor_ms".
    """

    def __init__(self) -> None:
        self.spans: list[tuple[str, str, int, int, dict[str, Any] | None]] = []
        self._origin = time.perf_counter_ns()

    def now(self) -> int:
        """Nanoseconds since the trace was made."""
        return time.perf_counter_ns() - self._origin


class Span:
    """The time from the making of this object to the end of the context, or to `end`, which any thread may call."""

    def __init__(self, trace: Trace | None, name: str = "", track: str = "",
                 args: dict[str, Any] | None = None) -> None:
        self._trace, self._words, self._begin = trace, (name, track, args), trace.now() if trace else 0
        self._processor = time.thread_time() if trace and track == "compute" else None

    def __enter__(self) -> "Span":
        return self

    def __exit__(self, *error: object) -> None:
        self.end()

    def end(self) -> None:
        if self._trace is not None:
            name, track, args = self._words
            if self._processor is not None and args is not None:
                args["processor_ms"] = round(1e3 * (time.thread_time() - self._processor), 3)
            self._trace.spans.append((name, track, self._begin, self._trace.now(), args))


_NO_SPAN = Span(None)


class Counted:
    """A communicator that counts the bytes of its collectives of arrays, also on its channels, in a Profile.

    A rank counts the bytes that it contributes: for an alltoall the bytes that it sends to others, for a broadcast the
    root's array once. Spans of a channel "sample", which a separate thread may use, are on the track "sample".
    """

    def __init__(self, comm: Any, profile: Profile, track: str = "compute") -> None:
        self._comm, self._profile, self._track = comm, profile, track
        self.rank, self.size, self.threaded = comm.rank, comm.size, comm.threaded

    def __getattr__(self, name: str) -> Any:
        return getattr(self._comm, name)

    def channel(self, name: str) -> "Counted":
        return Counted(self._comm.channel(name), self._profile, "sample" if name.startswith("sample") else self._track)

    def alltoall(self, arrays: list[npt.NDArray[Any]]) -> list[npt.NDArray[Any]]:
        sent = sum(array.nbytes for rank, array in enumerate(arrays) if rank != self.rank)
        with self._profile.span("alltoall", self._track, bytes=sent):
            found = self._comm.alltoall(arrays)
        received = sum(array.nbytes for rank, array in enumerate(found) if rank != self.rank)
        self._profile.count("alltoall", sent, received)
        return found

    def gather(self, array: npt.NDArray[Any], root: int = 0) -> list[npt.NDArray[Any]] | None:
        with self._profile.span("gather", self._track, bytes=array.nbytes):
            found = self._comm.gather(array, root)
        received = sum(part.nbytes for rank, part in enumerate(found or ()) if rank != self.rank)
        self._profile.count("gather", 0 if self.rank == root else array.nbytes, received)
        return found

    def broadcast(self, array: npt.NDArray[Any], root: int) -> None:
        sent, received = (array.nbytes, 0) if self.rank == root else (0, array.nbytes)
        self._profile.count("broadcast", *((sent, received) if self.size > 1 else ()))
        with self._profile.span("broadcast", self._track, bytes=array.nbytes):
            return self._comm.broadcast(array, root)

    def start_broadcast(self, array: npt.NDArray[Any], root: int) -> Any:
        sent, received = (array.nbytes, 0) if self.rank == root else (0, array.nbytes)
        self._profile.count("broadcast", *((sent, received) if self.size > 1 else ()))
        return self._comm.start_broadcast(array, root)

    def start_allreduce(self, array: npt.NDArray[Any], op: str = "sum") -> Any:
        self._profile.count("allreduce", array.nbytes if self.size > 1 else 0)
        return self._comm.start_allreduce(array, op)

    def allreduce(self, array: npt.NDArray[Any], op: str = "sum") -> npt.NDArray[Any]:
        self._profile.count("allreduce", array.nbytes if self.size > 1 else 0)
        with self._profile.span("allreduce", self._track, bytes=array.nbytes):
            return self._comm.allreduce(array, op)

    def allgather(self, value: Any) -> list[Any]:
        items = value if isinstance(value, tuple) else (value,)
        n_bytes = sum(getattr(item, "nbytes", 0) for item in items)
        self._profile.count("allgather", n_bytes if self.size > 1 else 0)
        with self._profile.span("allgather", self._track, bytes=n_bytes):
            return self._comm.allgather(value)


def uncounted(comm: Any) -> Any:
    """Return the communicator inside a Counted, for a thread that counts its bytes itself."""
    return comm._comm if isinstance(comm, Counted) else comm


def trim() -> None:
    """Give freed memory back to the system, so that memory that is used again counts again (glibc only)."""
    try:
        ctypes.CDLL(None).malloc_trim(0)
    except (AttributeError, OSError):
        pass


def _status(field: str) -> int:
    try:
        with open("/proc/self/status") as file:
            return next(int(line.split()[1]) * 1024 for line in file if line.startswith(field))
    except (OSError, StopIteration):
        import resource
        import sys

        scale = 1 if sys.platform == "darwin" else 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * scale


def resident() -> int:
    """Return this process's resident memory in bytes."""
    return _status("VmRSS")


def free_memory() -> float:
    """Return how many bytes this process can still take.

    The machine, the container and the limit on addresses bound it; inf where none of them does.
    """
    return min(_machine_room(), _container_room(), _address_room())


def memory_limit() -> float:
    """Return how many bytes all processes of the machine or container may have together; inf where nothing tells."""
    found = [float("inf")]
    with suppress(OSError, ValueError, AttributeError):
        found.append(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    for name in ("memory.max", "memory/memory.limit_in_bytes"):
        with suppress(OSError, ValueError):  # no such group, or "max"
            found.append(int(_group_file(name)))
    return min(found)


def _machine_room():
    with suppress(OSError, ValueError, StopIteration), open("/proc/meminfo") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith("MemAvailable"))
    with suppress(OSError, ValueError, AttributeError):
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return float("inf")


def _container_room():
    """The control group's limit less the used memory that cannot be dropped.

    Files that were read count as used there.
    """
    version_2 = "memory.max", "memory.current", "inactive_file"
    version_1 = "memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes", "total_inactive_file"
    for limit, used, cache in (version_2, version_1):
        with suppress(OSError, ValueError):  # no such group, or "max"
            most, now = (int(_group_file(name)) for name in (limit, used))
            lines = _group_file(os.path.join(os.path.dirname(limit), "memory.stat")).splitlines()
            stat = dict(line.split() for line in lines)
            return max(0, most - now + int(stat.get(cache, 0)))
    return float("inf")


def _group_file(name):
    with open(f"/sys/fs/cgroup/{name}") as file:
        return file.read()


def _address_room():
    with suppress(ImportError, OSError, ValueError):
        import resource

        limit = resource.getrlimit(resource.RLIMIT_AS)[0]
        if limit != resource.RLIM_INFINITY:
            return max(0, limit - _status("VmSize"))
    return float("inf")


class Memory:
    """Peak resident memory of this process above the moment of construction, in bytes."""

    def __init__(self) -> None:
        trim()
        try:
            with open("/proc/self/clear_refs", "w") as file:
                file.write("5")  # resets the kernel's high-water mark
        except OSError:
            pass
        self.base = _status("VmRSS")

    def now(self) -> int:
        """Return the resident memory above the base, without memory that is free."""
        trim()
        return max(0, resident() - self.base)

    def peak(self) -> int:
        """Return the highest resident memory above the base so far."""
        return max(0, _status("VmHWM") - self.base)
