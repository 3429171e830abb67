"""Guard of the command line: a failing rank ends every rank, and stalls are detected.

Embedding sarlite installs none of this.
"""

import os
import re
import signal
import threading
import traceback
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

from sarlite.comm.ending import END_SECONDS, Ending, call_off, end_within, tell
from sarlite.comm.protocol import Communicator
from sarlite.comm.watchdog import DIGEST, DONE, EXITED, REFUSED, STATE, Watchdog
from sarlite.errors import Interrupted, PeerError, SarliteError

REFUSAL_STATUS = 2
"""The exit status after errors that all ranks raise together."""
GRACE_SECONDS = 2.0
"""How long a rank with a SarliteError or a sys.exit waits for all other ranks to end too."""


def _outcome(error):
    """The state and the digest of a rank whose work ended with `error`; None when that must end all ranks at once."""
    if error is None:
        return DONE, 0
    if isinstance(error, (SystemExit, Interrupted)):
        return EXITED, 0
    if isinstance(error, SarliteError) and not isinstance(error, PeerError):
        text = re.sub(r"^(rank \d+: )+", "", str(error))  # the same on the rank that found it and on the others
        return REFUSED, zlib.crc32(text.encode(errors="surrogateescape"))  # of a path that is no UTF-8, too
    return None


@contextmanager
def _hooks(ending, watchdog, n_ranks):
    """Return a context that makes dead threads, `SIGNALS` and `os._exit(0)` end all ranks."""

    def thread_failed(args):
        name = args.thread.name if args.thread else "?"
        ending.end(args.exc_value or args.exc_type.__name__, f"thread {name} failed:\n")

    def left(status):
        if status == 0 and os.getpid() == process:  # MPICH's launcher would end the job without a word, with status 0
            ending.end("".join(["os._exit(0) was called here:\n", *traceback.format_stack()[:-1]]))
        leave(status)

    process, leave = os.getpid(), os._exit
    hook, threading.excepthook = threading.excepthook, thread_failed
    if n_ranks > 1:
        os._exit = left
    try:
        with _signals(watchdog) if threading.current_thread() is threading.main_thread() else nullcontext():
            yield
    finally:
        threading.excepthook = hook
        os._exit = leave


@contextmanager
def _signals(watchdog):
    """Let `SIGNALS` raise Interrupted in the main thread, and wake the watchdog, should that be in C."""
    with watchdog.interrupts.listening():
        fd = watchdog.alarm.listen()
        try:
            yield
        finally:
            signal.set_wakeup_fd(fd)


def _settle(comm, error, watchdog, ending):
    """End together with the other ranks, or end them. Returns when this rank's outcome is every rank's."""
    outcome = _outcome(error)
    rows = None
    if outcome is not None:
        # so that one rank tells all of a signal
        turn = min(comm.rank, 4) / 2 if isinstance(error, Interrupted) else 0.0
        rows = watchdog.finish(*outcome, seconds=None if error is None else GRACE_SECONDS + turn)
    if rows is None or (rows[:, STATE] != outcome[0]).any():
        if error is None:
            threading.Event().wait(END_SECONDS)  # the rank that failed ends this one
            ending.end("another rank failed")
        ending.end(error)
    if error is None:
        return
    end_within(END_SECONDS)  # Python waits for threads, which may wait for messages that never come
    if outcome[0] == REFUSED and (rows[: comm.rank, DIGEST] != outcome[1]).all():
        tell(f"error: {error}")
    elif isinstance(error, Interrupted) and comm.rank == 0:
        tell(str(error))
    comm.drain_channels()  # which brings threads out of MPI before it is finalized
    if outcome[0] == REFUSED:
        raise SystemExit(REFUSAL_STATUS) from None
    if isinstance(error, Interrupted):
        raise SystemExit(128 + error.signum) from None


def _settle_failure(comm, error, watchdog, ending):
    """Call `_settle`; any other exception that is raised there, such as a second Ctrl-C, ends the process."""
    try:
        _settle(comm, error, watchdog, ending)
    except SystemExit:
        raise
    except BaseException as second:  # noqa: BLE001, because it ends the process
        ending.end(second)


@contextmanager
def guard(comm: Communicator, stall_seconds: float = 600.0, n_threads: int = 1) -> Iterator[Watchdog]:
    """Run the body of a `with` so that a failure anywhere ends every rank, with its cause on stderr. Collective.

    ==============================================  ================================================================
    what happens inside                             what follows
    ==============================================  ================================================================
    exception in the main thread or another one     every rank ends within seconds, that traceback on stderr with
                                                    the rank before each line, status not 0
    SIGINT (Ctrl-C), SIGTERM or SIGHUP on ranks     every rank ends within seconds, also while the main thread is in
                                                    C: one line; where all ranks got the signal, the status is 128 +
                                                    the signal's number. Inside `interrupts.postponed()` the signal
                                                    is only noted, for the program to end in good order
    SarliteError on every rank                      each message once, without traceback; every rank exits with
                                                    status 2
    sys.exit on every rank                          every rank exits with its own status
    SarliteError or sys.exit on some ranks          after `GRACE_SECONDS`, as any other exception
    `os._exit(0)` in a process of several ranks     as an exception
    no rank calls `tick` for `stall_seconds`        every rank prints the stacks of its threads and ends, status 1
    ==============================================  ================================================================

    Parameters
    ----------
    comm : Communicator
        The whole job's. Ranks that are threads are one process: give `Solo()` and their number, and put the guard
        around all of them.
    stall_seconds : float
        Longer than the slowest epoch, or than the slowest block where every fetched block calls `tick`.
    n_threads : int
        Ranks that are threads of this process.

    Yields
    ------
    Watchdog
        Its `tick()` says that this rank makes progress; its `interrupts` are an `Interrupts`.

    Notes
    -----
    Entering makes a channel of `comm`. Leaving waits for every rank, so code after the body runs only when all ranks
    succeed.

    A thread looks for the stall; it exchanges 32 bytes per rank about once a second. This needs MPI_THREAD_MULTIPLE.
    Without it each rank watches its own counter alone, and may take a long wait for a slow rank for a stall.

    Alone (`Solo`), exceptions take Python's usual way, a thread that dies ends the process, and a stall is
    printed but does not end it, unless there are threads as ranks.

    A killed rank, or one that crashes in C, is the launcher's to notice: MPICH's mpiexec ends the others.
    """
    ending = Ending(comm)
    watchdog = Watchdog(comm, stall_seconds, ending, ends_stall=comm.size * n_threads > 1)
    alone = comm.size == 1
    with _hooks(ending, watchdog, comm.size):
        try:
            watchdog.start()
            call_off()  # what `launch.begin` has set: from here on the watchdog watches
            yield watchdog
            _settle(comm, None, watchdog, ending)
        except BaseException as error:
            if not alone or isinstance(error, (SarliteError, Interrupted)):
                with watchdog.interrupts.postponed():  # the signal may still come that another rank told of
                    _settle_failure(comm, error, watchdog, ending)
            raise
        finally:
            watchdog.stop()
            ending.close()
