"""Progress of work without countable steps: processor time that is not spent waiting for other ranks."""

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
    """Call `tick` as long as this thread, or a child of the process, computes.

    Reading, dividing and partitioning have no steps to count, and one rank may do them for an hour while the others
    wait.

    Parameters
    ----------
    tick : callable
        A watchdog's.
    interval : float
        Seconds between two looks.

    Notes
    -----
    A thread looks whether this thread has taken processor time since its last look. A thread that is blocked takes
    none. MPI takes processor time while it waits, so nothing counts while this thread is in a function of
    `sarlite.comm`. Children are seen on Linux alone. """
    over, meter = threading.Event(), _Meter(threading.get_ident())

    def watch():
        while not over.wait(interval):
            if meter.has_moved():
                tick()

    thread = threading.Thread(target=watch, name="sarlite-working", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


class _Meter:
    """The processor time of one thread and of the process's children."""

    def __init__(self, ident):
        clock = getattr(time, "pthread_getcpuclockid", None)  # without it, as on macOS, the whole process's
        self._ident, self._clock = ident, clock(ident) if clock else time.CLOCK_PROCESS_CPUTIME_ID
        self._own, self._children = time.clock_gettime(self._clock), _children_seconds()

    def has_moved(self):
        own, children = time.clock_gettime(self._clock), _children_seconds()
        moved = own - self._own > _LEAST_SECONDS or children > self._children
        self._own, self._children = own, children
        return moved and not self._waits()

    def _waits(self):
        frame = sys._current_frames().get(self._ident)
        while frame is not None and _of_python(frame.f_code.co_filename):  # contextlib, threading
            frame = frame.f_back
        return frame is None or frame.f_code.co_filename.startswith(_COMM)


def _of_python(path):
    return path.startswith(_PYTHON) and not path.startswith(_PACKAGES)


def _children_seconds():
    """Return the processor time of running child processes, in seconds."""
    total = 0
    for task in Path("/proc/self/task").glob("*/children"):
        with contextlib.suppress(OSError):
            for pid in task.read_text().split():
                total += _seconds(pid)
    return total / os.sysconf("SC_CLK_TCK")


def _seconds(pid):
    with contextlib.suppress(OSError):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return sum(map(int, fields[11:15]))  # its own, in user and system mode, and that of its ended children
    return 0
