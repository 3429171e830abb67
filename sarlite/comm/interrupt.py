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
"""Signals so soon after another are the same one: launchers send several."""


class Interrupts:
    """Handling of `SIGNALS`: raise Interrupted in the main thread, or postpone the signal.

    Attributes
    ----------
    noted : int
        Signal that arrived while signals were postponed; 0 without one. The code that postpones signals checks it and
        ends in good order.
    answer : str
        Text that is written to stderr when a signal is noted.
    """

    def __init__(self) -> None:
        self.noted, self.answer, self._holders, self._lock = 0, "", 0, threading.Lock()
        self._taken: list[signal.Signals] = []
        self._handled, self._first = -math.inf, -math.inf

    @contextlib.contextmanager
    def postponed(self) -> Iterator[None]:
        """Return a context that only notes the first signal; a second signal ends the process.

        Any thread may enter it.
        """
        for number in self._taken:
            # a C library that took the signal over and gave it back leaves waits that no signal ends
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
        """Return a context that handles the signals in the main thread.

        A signal that is ignored before, as SIGINT in a background job, stays ignored.
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
        if self._holders and (not self.noted or self._handled - before < SAME_SECONDS):
            if not self.noted:
                self.noted = int(signum)
                with contextlib.suppress(OSError):  # nobody reads it
                    os.write(2, self.answer.encode())  # sys.stderr may be in the middle of a write
            return
        raise Interrupted(signum)

    def met(self, seconds: float) -> bool:
        """Return True if the main thread handles the signal that just arrived within `seconds`, or has postponed it.

        To be called by another thread.
        """
        came = time.monotonic()
        if self._holders:
            self._first = came if self._first == -math.inf else self._first
            if came - self._first < SAME_SECONDS:
                return True
        while self._handled < came - SAME_SECONDS:
            if time.monotonic() > came + seconds:
                return False
            time.sleep(0.02)
        return True
