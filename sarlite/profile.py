"""Communicated bytes, peers' rows in memory and a timeline, recorded for each rank; and measures of a process's memory."""

import ctypes
import os
import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from fractions import Fraction
from typing import Any, Protocol, TypeVar

import numpy.typing as npt

Array = npt.NDArray[Any]
T = TypeVar("T")


class Profile:
    """Counters of one rank's communication: bytes by phase, and the number of peers whose rows are in memory at the same time.

    Attributes
    ----------
    sent_bytes, received_bytes : Counter
        Bytes by phase: "forward_fetch", "forward_push", "backward_fetch", "backward_push", "allreduce", "alltoall",
        "gather", "broadcast", "allgather", "push_rows", "evaluation", "setup".
    sent_to : Counter
        Bytes of rows and gradients by (phase, peer).
    live_remote_buffers, peak_remote_buffers : int or Fraction
        Number of peers whose rows are held now; largest number since `reset`. A buffer with a part of a peer's rows
        counts as this fraction.
    on_progress : callable, or None
        Called at every exchange, for the watchdog of the command line.
    trace : Trace, or None
        Timeline that spans are recorded in; without a trace no spans are recorded.

    Examples
    --------
    >>> profile = Profile()
    >>> with profile.phase("setup"):
    ...     profile.count("allreduce", sent=80)
    >>> dict(profile.sent_bytes)
    {'setup': 80}
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()  # a finalizer may run while the lock is held
        self.on_progress: Callable[[], None] | None = None
        self.trace: Trace | None = None
        self._phase: str | None = None  # phase of every thread that has started no phase itself
        self._thread_phase, self._thread = threading.local(), threading.get_ident()
        self.live_remote_buffers: int | Fraction = 0
        self.reset()

    def reset(self) -> None:
        """Set the byte counters to 0, and the peak number of peers whose rows are held to the current number."""
        self.sent_bytes: Counter[str] = Counter()
        self.received_bytes: Counter[str] = Counter()
        self.sent_to: Counter[tuple[str, int]] = Counter()
        self.peak_remote_buffers = self.live_remote_buffers

    def count(self, phase: str, sent: int = 0, received: int = 0, to: Iterable[int] = ()) -> None:
        """Add `sent` and `received` bytes to the counters of the phase `phase` or, within a context of `Profile.phase`, of that
        context's phase. The peers `to` get equal shares of the sent bytes.

        Parameters
        ----------
        phase : str
        sent, received : int
            Numbers of bytes.
        to : iterable of int
            Peers that get equal shares of the sent bytes.
        """
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
        """Return a context in whose body all bytes are counted under the phase `name`.

        On the thread that made the profile the context applies to all threads. On another thread it applies only to
        that thread, so that sampling ahead does not change the phase of a training step.
        """
        holder = self if threading.get_ident() == self._thread else self._thread_phase
        before = getattr(holder, "_phase", None)
        holder._phase = name
        try:
            yield
        finally:
            holder._phase = before

    def _within(self):
        return getattr(self._thread_phase, "_phase", None) or self._phase

    def span(self, name: str, track: str = "compute", **args: object) -> "Span":
        """Start an interval called `name` in the row `track` of the timeline, and return a context that ends the interval. `args`
        are values that the timeline shows with the interval.

        Parameters
        ----------
        name, track : str
            Name of the span; row of the timeline that shows it.
        **args : object
            Further values that the timeline shows with the span.
        """
        return _NO_SPAN if self.trace is None else Span(self.trace, name, track, args)

    def hold(self, buffer: object, n: int | Fraction = 1) -> None:
        """Count `buffer`, an array with the rows of `n` peers, as held in memory until the array and all its views are freed. `n` is a
        fraction if the array has a part of a peer's rows.
        """
        self._change(n)
        weakref.finalize(buffer, self._change, -n).atexit = False

    def _change(self, n):
        with self._lock:
            self.live_remote_buffers += n
            self.peak_remote_buffers = max(self.peak_remote_buffers, self.live_remote_buffers)


class Trace:
    """Timeline of one rank: named intervals of time, ordered by their ends.

    Attributes
    ----------
    spans : list of (name, track, begin, end, args)
        Spans of all threads in the order of their ends; times in nanoseconds since the trace was made. On the track
        "compute" args has the processor time of the thread too, "processor_ms".
    """

    def __init__(self) -> None:
        self.spans: list[tuple[str, str, int, int, dict[str, object] | None]] = []
        self._origin = time.perf_counter_ns()

    def now(self) -> int:
        """Return the number of nanoseconds since the trace was made."""
        return time.perf_counter_ns() - self._origin


class Span:
    """Interval of a timeline, from the construction of this object to the end of its context, or to a call of `end`.

    Any thread may call `end`. Without a trace nothing is recorded.
    """

    def __init__(self, trace: Trace | None, name: str = "", track: str = "",
                 args: dict[str, object] | None = None) -> None:
        self._trace, self._words, self._begin = trace, (name, track, args), trace.now() if trace else 0
        self._processor = time.thread_time() if trace and track == "compute" else None

    def __enter__(self) -> "Span":
        return self

    def __exit__(self, *error: object) -> None:
        self.end()

    def end(self) -> None:
        """End the interval, and add it to the timeline."""
        if self._trace is not None:
            name, track, args = self._words
            if self._processor is not None and args is not None:
                args["processor_ms"] = round(1e3 * (time.thread_time() - self._processor), 3)
            self._trace.spans.append((name, track, self._begin, self._trace.now(), args))


_NO_SPAN = Span(None)


class Collectives(Protocol):
    """Protocol of the communicator that `Counted` wraps: the collective operations whose bytes it counts."""

    rank: int
    size: int
    threaded: bool

    def channel(self, name: str) -> "Collectives": ...
    def alltoall(self, arrays: list[Array]) -> list[Array]: ...
    def gather(self, array: Array, root: int = 0) -> list[Array] | None: ...
    def broadcast(self, array: Array, root: int) -> Array: ...
    def start_broadcast(self, array: Array, root: int) -> object: ...
    def start_allreduce(self, array: Array, op: str = "sum") -> object: ...
    def allreduce(self, array: Array, op: str = "sum") -> Array: ...
    def allgather(self, value: T) -> list[T]: ...


class Counted:
    """Communicator that counts the bytes of its collective operations in a Profile.

    A rank counts the bytes that it contributes: for an alltoall the bytes that it sends to other ranks, for a broadcast
    the bytes of the root's array once. All other operations are those of `comm`.

    Parameters
    ----------
    comm : Communicator
    profile : Profile
    track : str
        Track of the timeline for the spans of the operations. Channels named "sample..." use the track "sample".
    """

    def __init__(self, comm: Collectives, profile: Profile, track: str = "compute") -> None:
        self._comm, self._profile, self._track = comm, profile, track
        self.rank, self.size, self.threaded = comm.rank, comm.size, comm.threaded

    def __getattr__(self, name: str) -> Any:
        return getattr(self._comm, name)

    def channel(self, name: str) -> "Counted":
        """Return the communicator's independent channel `name`, as a Counted too, so that its bytes are counted."""
        return Counted(self._comm.channel(name), self._profile, "sample" if name.startswith("sample") else self._track)

    def alltoall(self, arrays: list[Array]) -> list[Array]:
        sent = sum(array.nbytes for rank, array in enumerate(arrays) if rank != self.rank)
        with self._profile.span("alltoall", self._track, bytes=sent):
            parts = self._comm.alltoall(arrays)
        received = sum(part.nbytes for rank, part in enumerate(parts) if rank != self.rank)
        self._profile.count("alltoall", sent, received)
        return parts

    def gather(self, array: Array, root: int = 0) -> list[Array] | None:
        with self._profile.span("gather", self._track, bytes=array.nbytes):
            parts = self._comm.gather(array, root)
        received = sum(part.nbytes for rank, part in enumerate(parts or ()) if rank != self.rank)
        self._profile.count("gather", 0 if self.rank == root else array.nbytes, received)
        return parts

    def broadcast(self, array: Array, root: int) -> Array:
        sent, received = (array.nbytes, 0) if self.rank == root else (0, array.nbytes)
        self._profile.count("broadcast", *((sent, received) if self.size > 1 else ()))
        with self._profile.span("broadcast", self._track, bytes=array.nbytes):
            return self._comm.broadcast(array, root)

    def start_broadcast(self, array: Array, root: int) -> object:
        sent, received = (array.nbytes, 0) if self.rank == root else (0, array.nbytes)
        self._profile.count("broadcast", *((sent, received) if self.size > 1 else ()))
        return self._comm.start_broadcast(array, root)

    def start_allreduce(self, array: Array, op: str = "sum") -> object:
        self._profile.count("allreduce", array.nbytes if self.size > 1 else 0)
        return self._comm.start_allreduce(array, op)

    def allreduce(self, array: Array, op: str = "sum") -> Array:
        self._profile.count("allreduce", array.nbytes if self.size > 1 else 0)
        with self._profile.span("allreduce", self._track, bytes=array.nbytes):
            return self._comm.allreduce(array, op)

    def allgather(self, value: T) -> list[T]:
        items = value if isinstance(value, tuple) else (value,)
        n_bytes = sum(getattr(item, "nbytes", 0) for item in items)
        self._profile.count("allgather", n_bytes if self.size > 1 else 0)
        with self._profile.span("allgather", self._track, bytes=n_bytes):
            return self._comm.allgather(value)


def uncounted(comm: Any) -> Any:
    """Return the communicator inside `comm` if `comm` is a Counted, else `comm` itself. Code that counts its bytes itself must not
    count them twice.
    """
    return comm._comm if isinstance(comm, Counted) else comm


def trim() -> None:
    """Return freed memory to the operating system, so that resident memory is memory in use (glibc only)."""
    try:
        ctypes.CDLL(None).malloc_trim(0)
    except (AttributeError, OSError):
        pass


def _status(field: str) -> int:
    """Return the number in the line `field`, such as "VmRSS", of /proc/self/status, in bytes. Systems without this file give the largest
    resident memory so far.
    """
    try:
        with open("/proc/self/status") as file:
            return next(int(line.split()[1]) * 1024 for line in file if line.startswith(field))
    except (OSError, StopIteration):
        import resource
        import sys

        scale = 1 if sys.platform == "darwin" else 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * scale


def resident() -> int:
    """Return the resident memory of this process in bytes."""
    return _status("VmRSS")


def free_memory() -> float:
    """Return the number of bytes that this process can still allocate; inf if no limit is known.

    It is the least of the free memory of the machine, the limit of the container and the limit of the address space.
    """
    return min(_machine_room(), _container_room(), _address_room())


def memory_limit() -> float:
    """Return the smaller of the machine's memory and the container's limit, in bytes; inf if neither is known."""
    limits = [float("inf")]
    with suppress(OSError, ValueError, AttributeError):
        limits.append(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    for name in ("memory.max", "memory/memory.limit_in_bytes"):
        with suppress(OSError, ValueError):  # no such group, or "max"
            limits.append(int(_group_file(name)))
    return min(limits)


def _machine_room():
    """Return the available memory of the machine in bytes; all of its memory on systems without /proc; inf if neither is known."""
    with suppress(OSError, ValueError, StopIteration), open("/proc/meminfo") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith("MemAvailable"))
    with suppress(OSError, ValueError, AttributeError):
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return float("inf")


def _container_room():
    """Return the number of bytes that this process's control group (cgroup) may still use; memory of cached files counts as free.
    inf if the group has no limit.
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
    """Return the text of the file `name` of the control groups, under /sys/fs/cgroup."""
    with open(f"/sys/fs/cgroup/{name}") as file:
        return file.read()


def _address_room():
    """Return how many bytes this process's address space may still grow (ulimit -v); inf without a limit."""
    with suppress(ImportError, OSError, ValueError):
        import resource

        limit = resource.getrlimit(resource.RLIMIT_AS)[0]
        if limit != resource.RLIM_INFINITY:
            return max(0, limit - _status("VmSize"))
    return float("inf")


class Memory:
    """Meter of the growth of this process's resident memory since the meter was made, in bytes: the growth now and the largest
    growth so far.
    """

    def __init__(self) -> None:
        trim()
        try:
            with open("/proc/self/clear_refs", "w") as file:
                file.write("5")  # resets the high-water mark of resident memory
        except OSError:
            pass
        self.base = _status("VmRSS")

    def now(self) -> int:
        """Return the growth of resident memory since the meter was made, in bytes, after freed memory has gone back to the system."""
        trim()
        return max(0, resident() - self.base)

    def peak(self) -> int:
        """Return the largest growth of resident memory since the meter was made, in bytes."""
        return max(0, _status("VmHWM") - self.base)
