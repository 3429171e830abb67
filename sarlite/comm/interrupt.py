"""Signals that ask a run to end: a user's Ctrl-C, a cluster's preemption, a terminal that closes."""

import contextlib
import math
import os
import signal
import threading
import time
from collections.abc import Iterator

from sarlite.errors import SIGNALS, Interrupted

SAME_SECONDS = 1.0
"""Signals that follow each other within this time in seconds count as one, because launchers send several."""


class Interrupts:
    """Handler of SIGINT, SIGTERM and SIGHUP: it raises Interrupted in the main thread. Inside `postponed()` it only records the first
    signal.

    Attributes
    ----------
    pending : int
        Number of the signal that arrived while signals were postponed; 0 if none arrived. Code that postpones signals
        checks `pending` and ends in good order.
    answer : str
        Text that is written to stderr when a signal arrives.
    """

    def __init__(self) -> None:
        self.pending, self.answer, self._holders, self._lock = 0, "", 0, threading.Lock()
        self._taken: list[signal.Signals] = []
        self._handled, self._first = -math.inf, -math.inf

    @contextlib.contextmanager
    def postponed(self) -> Iterator[None]:
        """Return a context inside which the first signal is only recorded in `pending`, and a second signal raises Interrupted.

        Any thread may enter the context.
        """
        for number in self._taken:
            # some C libraries replace and restore the handler without this flag; then no signal would interrupt a wait
            signal.siginterrupt(number, True)
        with self._lock:
            self._holders += 1
        try:
            yield
        finally:
            with self._lock:
                self._holders -= 1

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        """Return a context inside which this object handles the signals. The main thread must enter it.

        A signal that was ignored before, such as SIGINT in a background job, stays ignored.
        """
        self._taken = [number for number in SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
        before = {number: signal.signal(number, self._handle) for number in self._taken}
        try:
            yield
        finally:
            self._taken = []
            for number, handler in before.items():
                signal.signal(number, handler)

    def _handle(self, signum, frame):
        before, self._handled = self._handled, time.monotonic()
        if self._holders and (not self.pending or self._handled - before < SAME_SECONDS):
            if not self.pending:
                self.pending = int(signum)
                with contextlib.suppress(OSError):  # stderr may be closed
                    os.write(2, self.answer.encode())  # not sys.stderr, which the signal may have interrupted
            return
        raise Interrupted(signum)

    def is_handled(self, seconds: float) -> bool:
        """Return True once the main thread has handled a signal that has just arrived; False if it has not within `seconds`.

        Return True at once if signals are postponed and this is the first one. The watchdog's thread calls this method.
        """
        arrived = time.monotonic()
        if self._holders:
            self._first = arrived if self._first == -math.inf else self._first
            if arrived - self._first < SAME_SECONDS:
                return True
        while self._handled < arrived - SAME_SECONDS:
            if time.monotonic() > arrived + seconds:
                return False
            time.sleep(0.02)
        return True
