"""The watchdog: a thread that finds a stall, and through which ranks agree that all of them have finished.

Each round gathers one row of numbers from every rank's watchdog over a communicator of its own, with a non-blocking
collective and naps in between: it neither spins nor waits inside MPI, and it costs one small message per round.
"""

import os
import select
import signal
import threading
import time

import numpy as np

from sarlite.comm.interrupt import Interrupts
from sarlite.errors import SIGNALS, Interrupted

WORKING, DONE, REFUSED, EXITED = range(4)
PROGRESS, STATE, DIGEST, STALLED_MS = range(4)  # the columns of a row
ARRIVED_NAP_SECONDS = 0.005
ANSWER_SECONDS = 5.0
"""How much longer a watchdog waits for another rank's watchdog than for a stall, which all ranks tell together."""
MET_SECONDS, ALONE_MET_SECONDS = 1.0, 5.0
"""How long the main thread may take to meet a signal: in a rank, whose peers wait, and in a process alone."""


class Alarm:
    """Sleep that a signal or another thread can end.

    Python's C-level signal handler writes to the pipe, so a signal is seen even while the main thread is in C.
    """

    def __init__(self):
        self._read, self._write = os.pipe()
        os.set_blocking(self._write, False)
        self._poll = select.poll()
        self._poll.register(self._read, select.POLLIN)

    def listen(self):
        """Let signals that have a Python handler end naps; return what to give to signal.set_wakeup_fd afterwards."""
        return signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)

    def ring(self):
        os.write(self._write, b"\0")

    def nap(self, seconds):
        """Sleep; return the signals among `SIGNALS` that came."""
        if not self._poll.poll(1000 * seconds):
            return set()
        return set(os.read(self._read, 4096)) & {*SIGNALS}

    def close(self):
        os.close(self._read)
        os.close(self._write)


class Watchdog:
    """Watches one rank, together with the other ranks' watchdogs where MPI allows it.

    `ends_stall` tells whether a stall ends the process; one rank alone may just be slow.
    """

    def __init__(self, comm, stall_seconds, ending, ends_stall):
        self._ends_stall = ends_stall
        self._size, self._stall_seconds, self._ending = comm.size, stall_seconds, ending
        self._interval = min(1.0, max(0.02, stall_seconds / 10))
        self._ticks = self._seen = self._seen_own = 0
        self._moved = time.monotonic()
        self._state, self._final, self._settled = (WORKING, 0), None, threading.Event()
        exchanges = comm.size > 1 and hasattr(comm, "_start_allgather")
        self._channel = comm.channel("watchdog") if exchanges else None  # collective
        self._together = self._channel is not None and comm.threaded
        self._watch = self._watch_together if self._together else self._watch_alone
        self._mine, self._rows = np.zeros(4, np.int64), np.zeros((self._size, 4), np.int64)
        self._thread = threading.Thread(target=self._run, name="watchdog", daemon=True)
        self.alarm, self.interrupts = Alarm(), Interrupts()
        self._patience = MET_SECONDS + min(comm.rank, 9) / 10 if comm.size > 1 else ALONE_MET_SECONDS

    def start(self):
        self._thread.start()

    def tick(self):
        """Report progress of this rank: once per epoch, fetched block or similar step. Any thread may call it."""
        self._ticks += 1

    def finish(self, state, digest, seconds):
        """Wait until every rank has finished.

        Parameters
        ----------
        state, digest : int
            How this rank has finished, and a number that tells the reason from other reasons.
        seconds : float or None
            How long to wait for the other ranks; None is for ever, or until a stall is found.

        Returns
        -------
        (size, 4) int64 array or None
            Every rank's last row, the same on every rank; None when some rank went on working.
        """
        self._state = (state, digest)
        self.alarm.ring()
        if self._together:
            self._settled.wait(seconds)
            return self._final
        self._thread.join()
        return self._row()[None] if self._channel is None else self._gather(seconds)

    def stop(self):
        """End the thread, after every rank has finished."""
        self._state = (self._state[0] or DONE, self._state[1])
        self.alarm.ring()
        if self._thread.ident is not None:
            self._thread.join()
        self.alarm.close()

    def _run(self):
        try:
            self._watch()
        except BaseException as error:  # noqa: BLE001, because it ends the process
            self._ending.end(error, "the watchdog failed:\n")

    def _row(self):
        self._mine[:] = self._ticks + self._state[0], *self._state, int(1000 * (time.monotonic() - self._moved))
        return self._mine

    def _gather(self, seconds=None):
        """Return every rank's row, or None if the rows have not arrived within `seconds`."""
        rows, end = self._rows, time.monotonic() + (seconds or float("inf"))
        request = self._channel._start_allgather(self._row(), rows)
        while not request.test():
            if time.monotonic() > end:
                return None
            self._nap()
            if self._together and self._has_stalled(self._stall_seconds + min(self._stall_seconds, ANSWER_SECONDS)):
                self._ending.end_with_stacks("another rank's watchdog does not answer")
        return rows

    def _nap(self):
        signals = self.alarm.nap(self._interval if self._state[0] == WORKING else ARRIVED_NAP_SECONDS)
        if signals and not self.interrupts.met(self._patience):
            self._ending.end(str(Interrupted(min(signals))))  # the main thread would end all ranks, but is stuck in C

    def _has_stalled(self, seconds):
        """Return True if this rank's own counter has not changed for `seconds`."""
        if self._ticks != self._seen_own:
            self._seen_own, self._moved = self._ticks, time.monotonic()
        return time.monotonic() - self._moved > seconds

    def _watch_alone(self):
        while self._state[0] == WORKING:
            self._nap()
            if self._state[0] == WORKING and self._has_stalled(self._stall_seconds):
                self._tell_stall()
                self._moved = time.monotonic()

    def _watch_together(self):
        rows = self._gather()
        while (rows[:, STATE] == WORKING).any():  # ends in the same round on every rank
            total = rows[:, PROGRESS].sum()
            if total != self._seen:
                self._seen, self._moved = total, time.monotonic()
            elif rows[:, STALLED_MS].max() > 1000 * self._stall_seconds:
                self._tell_stall()
            self._nap()
            rows = self._gather()
        self._final = rows
        self._settled.set()

    def _tell_stall(self):
        text = f"no progress for {self._stall_seconds:g} s"
        if self._ends_stall:
            self._ending.end_together(text, "ended because no rank makes progress")
        else:
            self._ending.say_stacks(text)
