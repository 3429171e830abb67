"""The watchdog: a thread that detects stalls, and that agrees with the other ranks' watchdogs when all have finished.

In each round the watchdogs of all ranks gather one row of numbers from each rank, by a non-blocking collective on a
channel of their own, and sleep in between. So a watchdog neither spins nor waits inside MPI, and costs one small
message in each round.
"""

import os
import select
import signal
import threading
import time

import numpy as np

from sarlite.comm.interrupt import Interrupts
from sarlite.errors import SIGNALS, Interrupted

WORKING, DONE, REFUSED, EXITED = range(4)  # states of a rank
PROGRESS, STATE, DIGEST, STALLED_MS = range(4)  # columns of a row
ARRIVED_NAP_SECONDS = 0.005
ANSWER_SECONDS = 5.0
"""Additional time in seconds, beyond a stall's, that a watchdog waits for the answer of another rank's watchdog."""
MET_SECONDS, ALONE_MET_SECONDS = 1.0, 5.0
"""Time in seconds that the main thread may take to handle a signal: with several ranks, and with one rank."""


class Alarm:
    """Interruptible sleep: a signal or another thread can end it.

    Python's C-level signal handler writes to a pipe, so a signal ends the sleep even while the main thread is in C.
    """

    def __init__(self):
        self._read, self._write = os.pipe()
        os.set_blocking(self._write, False)
        self._poll = select.poll()
        self._poll.register(self._read, select.POLLIN)

    def listen(self):
        """Let signals that have a Python handler end the sleep of `nap`. Return the file descriptor that signals woke before, to
        restore it by `signal.set_wakeup_fd`.
        """
        return signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)

    def ring(self):
        """End the sleep of the thread that is in `nap`."""
        os.write(self._write, b"\0")

    def nap(self, seconds):
        """Sleep for at most `seconds`; return the set of signals among `SIGNALS` that arrived."""
        if not self._poll.poll(1000 * seconds):
            return set()
        return set(os.read(self._read, 4096)) & {*SIGNALS}

    def close(self):
        os.close(self._read)
        os.close(self._write)


class Watchdog:
    """Thread that watches the progress of one rank and ends the run if it stalls. If MPI supports threads, it exchanges states with the
    watchdogs of the other ranks.

    Parameters
    ----------
    comm : Communicator
    stall_seconds : float
        Time without progress that counts as a stall.
    ending : Ending
        Ends the ranks and prints the reason.
    ends_stall : bool
        True if a stall ends the process; False if it is only reported.

    Attributes
    ----------
    alarm : Alarm
    interrupts : Interrupts
    """

    def __init__(self, comm, stall_seconds, ending, ends_stall):
        self._ends_stall = ends_stall
        self._size, self._stall_seconds, self._ending = comm.size, stall_seconds, ending
        self._interval = min(1.0, max(0.02, stall_seconds / 10))
        self._ticks = self._seen_total = self._seen_ticks = 0
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
        """Report progress of this rank, for example once for each epoch or fetched block. Any thread may call it."""
        self._ticks += 1

    def finish(self, state, digest, seconds):
        """Report that this rank finished in `state` (a constant of this module); `digest` is a hash of its error. Return four
        numbers of each rank, (size, 4): progress count, state, hash, and milliseconds since the last progress. Return None if not
        all ranks have finished within `seconds`.

        Parameters
        ----------
        state : int
            `DONE`, `REFUSED` or `EXITED`.
        digest : int
            Number that identifies the error of this rank.
        seconds : float or None
            Time to wait for the other ranks; None for no limit except a stall.

        Returns
        -------
        (size, 4) int64 array or None
            Last state of each rank, the same on every rank; see `_row`. None if a rank did not finish in time.
        """
        self._state = (state, digest)
        self.alarm.ring()
        if self._together:
            self._settled.wait(seconds)
            return self._final
        self._thread.join()
        return self._row()[None] if self._channel is None else self._gather(seconds)

    def stop(self):
        """End the watchdog's thread, once every rank has finished."""
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
        """Return four numbers of this rank, (4,) int64: its progress count, its state, the hash of its error, and the milliseconds
        since its last progress.
        """
        self._mine[:] = self._ticks + self._state[0], *self._state, int(1000 * (time.monotonic() - self._moved))
        return self._mine

    def _gather(self, seconds=None):
        """Gather from every rank (progress count, state, hash of its error, milliseconds since its last progress), and return them as
        (size, 4) int64. Return None if they have not arrived within `seconds` (None: no limit).
        """
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
        """Sleep for one interval; end all ranks if a signal arrives and the main thread does not handle it in time."""
        signals = self.alarm.nap(self._interval if self._state[0] == WORKING else ARRIVED_NAP_SECONDS)
        if signals and not self.interrupts.is_handled(self._patience):
            self._ending.end(str(Interrupted(min(signals))))  # the main thread would end all ranks, but is stuck in C

    def _has_stalled(self, seconds):
        """Return True if this rank has reported no progress for `seconds`."""
        if self._ticks != self._seen_ticks:
            self._seen_ticks, self._moved = self._ticks, time.monotonic()
        return time.monotonic() - self._moved > seconds

    def _watch_alone(self):
        """Watch this rank's progress until it has finished, without the other ranks."""
        while self._state[0] == WORKING:
            self._nap()
            if self._state[0] == WORKING and self._has_stalled(self._stall_seconds):
                self._report_stall()
                self._moved = time.monotonic()

    def _watch_together(self):
        """Exchange the states of all ranks repeatedly, until all ranks have finished."""
        rows = self._gather()
        while (rows[:, STATE] == WORKING).any():  # ends in the same round on every rank
            total = rows[:, PROGRESS].sum()
            if total != self._seen_total:
                self._seen_total, self._moved = total, time.monotonic()
            elif rows[:, STALLED_MS].max() > 1000 * self._stall_seconds:
                self._report_stall()
            self._nap()
            rows = self._gather()
        self._final = rows
        self._settled.set()

    def _report_stall(self):
        text = f"no progress for {self._stall_seconds:g} s"
        if self._ends_stall:
            self._ending.end_together(text, "ended because no rank makes progress")
        else:
            self._ending.say_stacks(text)
