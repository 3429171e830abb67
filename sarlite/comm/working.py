"""Progress reports for work without steps to count: processor time that is not spent waiting for other ranks."""

import contextlib
import os
import sys
import sysconfig
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

INTERVAL_SECONDS = 0.25
_LEAST_SECONDS = 0.001
_COMM = str(Path(__file__).parent) + os.sep
_PYTHON, _PACKAGES = (sysconfig.get_path(name) + os.sep for name in ("stdlib", "purelib"))


@contextlib.contextmanager
def working(tick: Callable[[], object], interval: float = INTERVAL_SECONDS) -> Iterator[None]:
    """Return a context that calls `tick`, which reports progress, every `interval` seconds if this thread or a child process has
    computed since the last call. Waiting for other ranks does not count.

    Use it for reading, dividing and partitioning, which have no steps to count. One rank may take an hour for them,
    while the other ranks wait.

    Parameters
    ----------
    tick : callable () -> object
        Reports progress; usually `Watchdog.tick`.
    interval : float
        Time in seconds between two checks.

    Notes
    -----
    A second thread checks whether this thread has used processor time since the last check. A blocked thread uses none.
    MPI uses processor time while it waits, so time in functions of `sarlite.comm` does not count. Child processes are
    seen on Linux only.
    """
    ended, meter = threading.Event(), _Meter(threading.get_ident())

    def watch():
        while not ended.wait(interval):
            if meter.has_moved():
                tick()

    thread = threading.Thread(target=watch, name="sarlite-working", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


class _Meter:
    """Meter of the processor time that a thread, with the id `ident`, and the child processes of this process use. It tells if they have
    computed since the last query.
    """

    def __init__(self, ident):
        clock = getattr(time, "pthread_getcpuclockid", None)  # not on macOS, where the process's clock is used
        self._ident, self._clock = ident, clock(ident) if clock else time.CLOCK_PROCESS_CPUTIME_ID
        self._thread_seconds, self._children = time.clock_gettime(self._clock), _children_seconds()

    def has_moved(self):
        """Return True if the thread or a child used processor time since the last call, and the thread does not wait for other ranks."""
        thread_seconds, children = time.clock_gettime(self._clock), _children_seconds()
        moved = thread_seconds - self._thread_seconds > _LEAST_SECONDS or children > self._children
        self._thread_seconds, self._children = thread_seconds, children
        return moved and not self._waits()

    def _waits(self):
        """Return True if the thread is in a function of `sarlite.comm`, or has ended."""
        frame = sys._current_frames().get(self._ident)
        while frame is not None and _is_standard_library(frame.f_code.co_filename):  # such as contextlib, threading
            frame = frame.f_back
        return frame is None or frame.f_code.co_filename.startswith(_COMM)


def _is_standard_library(path):
    return path.startswith(_PYTHON) and not path.startswith(_PACKAGES)


def _children_seconds():
    """Return the processor time that running child processes have used, in seconds."""
    total = 0
    for task in Path("/proc/self/task").glob("*/children"):
        with contextlib.suppress(OSError):
            for pid in task.read_text().split():
                total += _seconds(pid)
    return total / os.sysconf("SC_CLK_TCK")


def _seconds(pid):
    with contextlib.suppress(OSError):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return sum(map(int, fields[11:15]))  # user and system time of the process and of its ended children
    return 0
