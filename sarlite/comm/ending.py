"""Ending of a process: print a last message and end every rank, from any thread, whatever other threads do.

What the end needs is made at the start, since a process may end because it has no memory or no threads left.
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
"""How long a process that has decided to end may still take, for example because a thread of it never returns."""
_leave = os._exit  # which `guard` replaces
RESERVE_BYTES = 1 << 22
"""Address space that is given back at the end; it is never written to, so it takes no memory."""


def tell(text):
    """Print to stderr in a single write, so that the output of other ranks cannot split it."""
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


def end_within(seconds):
    """End this process after `seconds` with a nonzero exit status, unless it ends by itself.

    The stacks of all threads are printed then. This needs neither the interpreter's lock nor MPI. A call replaces an
    earlier call; infinite `seconds` cancel it.
    """
    call_off()
    if seconds == float("inf"):
        return
    try:
        faulthandler.dump_traceback_later(seconds, exit=True, file=2)
    except (RuntimeError, MemoryError):  # no thread to be had: the kernel's own clock kills, unless a handler is there
        signal.setitimer(signal.ITIMER_REAL, seconds)


def call_off():
    """Cancel `end_within`."""
    faulthandler.cancel_dump_traceback_later()


class Ending:
    """The end of a rank. It happens once, and the first cause is reported."""

    def __init__(self, comm):
        self._comm, self._begun = comm, threading.Lock()
        if hasattr(os, "memfd_create"):
            self._file = os.fdopen(os.memfd_create("sarlite-stacks"), "w+")
        else:
            self._file = tempfile.TemporaryFile("w+")  # noqa: SIM115, closed by `close`
        self._reserve = bytes(RESERVE_BYTES)

    def close(self):
        """Free the resources that were reserved for the end."""
        self._file.close()
        self._reserve = None

    def stacks(self):
        """Return the stacks of all threads as faulthandler writes them."""
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
        """Print `cause`, words or an exception, and end every rank with a status that is not zero. Does not return."""
        self._end(lambda: self.say(head + _words(cause)))

    def end_with_stacks(self, text):
        """Print the stacks of this rank's threads with `text`, then end as `end` does."""
        self._end(lambda: self.say_stacks(text))

    def end_together(self, text, last_words):
        """Print this rank's stacks, wait a second for the stacks of other ranks, print `last_words`, then end."""
        def speak():
            self.say_stacks(text)
            time.sleep(1.0)
            self.say(last_words)

        self._end(speak)

    def _prefixed(self, text):
        return "\n".join(f"[rank {self._comm.rank}] {line}" for line in text.rstrip().splitlines())

    def _end(self, speak):
        with self._begun:
            try:
                self._reserve = None
                end_within(END_SECONDS)
                _try(speak) or _try(_speak_shortly)
                _try(sys.stdout.flush)
                if self._comm.threaded and self._comm.size > 1:
                    self._comm.abort(None)
            finally:
                _leave(1)  # the launcher ends the other ranks where this thread may not call MPI, or could not


def _words(cause):
    if isinstance(cause, (str, Interrupted)):
        return str(cause)
    return "".join(traceback.format_exception(cause))


def _try(action):
    """Run `action()` and return True if it raised nothing. At the end of a process no error may stop the end."""
    with contextlib.suppress(BaseException):
        action()
        return True
    return False


def _speak_shortly():
    """Print a short message and the stacks if memory is too low to format one in Python."""
    os.write(2, b"sarlite: a rank ends, and has not the memory to say why; the stacks of its threads:\n")
    faulthandler.dump_traceback(2, all_threads=True)
