"""Ending of a process after a failure: a last message is printed, and every rank ends, whichever thread failed.

The resources for the end are reserved at the start, because a process may fail for lack of memory or threads.
"""

import contextlib
import faulthandler
import os
import signal
import sys
import tempfile
import threading
import time
import traceback

from sarlite.errors import Interrupted

END_SECONDS = 5.0
"""Largest time in seconds that the end may take, for example if a thread never returns."""
_leave = os._exit  # the original function, because `guard` replaces `os._exit`
RESERVE_BYTES = 1 << 22
"""Bytes of address space that are reserved for the end. They are never written to, so they take no memory."""


def tell(text):
    """Print `text` to stderr in a single write, so that the output of other ranks cannot split it."""
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


def end_within(seconds):
    """Start a timer that prints all threads' stacks and ends this process with a nonzero status after `seconds`.

    Works while another thread holds the GIL or waits in MPI. A call replaces an earlier call; infinite `seconds` cancel
    an earlier call.
    """
    call_off()
    if seconds == float("inf"):
        return
    try:
        faulthandler.dump_traceback_later(seconds, exit=True, file=2)
    except (RuntimeError, MemoryError):  # no thread can be started; SIGALRM kills, unless a handler is installed
        signal.setitimer(signal.ITIMER_REAL, seconds)


def call_off():
    """Cancel the timer that `end_within` started."""
    faulthandler.cancel_dump_traceback_later()


class Ending:
    """Object that ends a run after a failure: it prints the cause to stderr, then ends every rank. Only the first failure is reported.

    Parameters
    ----------
    comm : Communicator
    """

    def __init__(self, comm):
        self._comm, self._begun = comm, threading.Lock()
        if hasattr(os, "memfd_create"):
            self._file = os.fdopen(os.memfd_create("sarlite-stacks"), "w+")
        else:
            self._file = tempfile.TemporaryFile("w+")  # noqa: SIM115, closed by `close`
        self._reserve = bytes(RESERVE_BYTES)

    def close(self):
        """Free the file and the memory that were reserved for the report of a failure."""
        self._file.close()
        self._reserve = None

    def stacks(self):
        """Return the stacks of all threads as text, in the format of `faulthandler`."""
        self._file.seek(0)
        self._file.truncate()
        faulthandler.dump_traceback(self._file, all_threads=True)
        self._file.seek(0)
        return self._file.read()

    def say(self, text):
        """Print `text` to stderr with this rank's number before every line."""
        tell(self._prefixed(text))

    def say_stacks(self, text):
        """Print `text` and the stacks of this rank's threads."""
        self.say(f"{text}; the stacks of this rank's threads:\n{self.stacks()}")

    def end(self, cause, head=""):
        """Print `head`, then `cause`, a text or an exception; end every rank with a nonzero status. Does not return."""
        self._end(lambda: self.say(head + _text(cause)))

    def end_with_stacks(self, text):
        """Print `text` and the stacks of this rank's threads, then end every rank. Does not return."""
        self._end(lambda: self.say_stacks(text))

    def end_together(self, text, last_words):
        """Print `text` and the stacks of this rank's threads; wait a second, so that other ranks can print their texts; print
        `last_words`; then end every rank.

        Does not return.
        """
        def report():
            self.say_stacks(text)
            time.sleep(1.0)
            self.say(last_words)

        self._end(report)

    def _prefixed(self, text):
        return "\n".join(f"[rank {self._comm.rank}] {line}" for line in text.rstrip().splitlines())

    def _end(self, report):
        """Call `report()`, which prints the cause, then end every rank. A second caller waits until this process has ended."""
        with self._begun:
            try:
                self._reserve = None
                end_within(END_SECONDS)
                _try(report) or _try(_report_briefly)
                _try(sys.stdout.flush)
                if self._comm.threaded and self._comm.size > 1:
                    self._comm.abort(None)
            finally:
                _leave(1)  # if this thread could not call MPI's abort, the launcher ends the other ranks


def _text(cause):
    """Return the text to print for `cause`: the text itself, the message of an Interrupted, or any other exception's traceback."""
    if isinstance(cause, (str, Interrupted)):
        return str(cause)
    return "".join(traceback.format_exception(cause))


def _try(action):
    """Call `action()`, ignore any exception, and return True if there was none."""
    with contextlib.suppress(BaseException):
        action()
        return True
    return False


def _report_briefly():
    """Print a constant message and all threads' stacks without allocating memory, for a process that has none left."""
    os.write(2, b"sarlite: a rank ends, and has not the memory to say why; the stacks of its threads:\n")
    faulthandler.dump_traceback(2, all_threads=True)
