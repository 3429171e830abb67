"""How a process says its last words and ends every rank, from any thread and whatever its other threads do."""

import contextlib
import faulthandler
import os
import sys
import tempfile
import threading
import time

END_SECONDS = 5.0
"""How long a process that has decided to end may still take, for example because a thread of it never returns."""


def tell(text):
    """Print to stderr in one write, which the words of other ranks do not split."""
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


def stacks():
    """Return the stacks of all threads as faulthandler writes them."""
    with tempfile.TemporaryFile("w+") as file:
        faulthandler.dump_traceback(file, all_threads=True)
        file.seek(0)
        return file.read()


def end_within(seconds):
    """End this process with status 1 unless it ends by itself; needs neither the interpreter's lock nor MPI."""
    faulthandler.dump_traceback_later(seconds, exit=True, file=2)


class Ending:
    """The end of a rank, which happens once: the first cause is the one that is told.

    Parameters
    ----------
    comm : Communicator
    """

    def __init__(self, comm):
        self._comm, self._begun = comm, threading.Lock()

    def say(self, text):
        """Print `text` to stderr with this rank's number before every line."""
        tell(self._prefixed(text))

    def end(self, text):
        """Print `text` and end every rank with a status that is not zero. Does not return."""
        with self._begun:
            self._abort(text)

    def end_together(self, text, last_words):
        """As `end`, but first print `text` and give the other ranks a second to print theirs."""
        with self._begun:
            self.say(text)
            time.sleep(1.0)
            self._abort(last_words)

    def _prefixed(self, text):
        return "\n".join(f"[rank {self._comm.rank}] {line}" for line in text.rstrip().splitlines())

    def _abort(self, text):
        end_within(END_SECONDS)
        with contextlib.suppress(OSError, ValueError):
            sys.stdout.flush()
        if self._comm.threaded and self._comm.size > 1:
            self._comm.abort(self._prefixed(text))
        self.say(text)
        os._exit(1)  # this thread may not call MPI; the launcher ends the other ranks
