"""Guard of a command's run: a failing rank ends every rank, and a run without progress is detected.

A program that imports sarlite gets none of these hooks unless it calls `guard`.
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
"""Exit status after errors that all ranks raise together."""
GRACE_SECONDS = 2.0
"""Time in seconds that a rank with a SarliteError or a sys.exit waits for all other ranks to end too."""


def _outcome(error):
    """Return (state, hash of the message) of a rank that ended with the exception `error`, or with success if it is None. The states are
    constants of `watchdog`, and ranks that raise the same error together have the same hash. Return None if `error` must end all ranks at
    once.
    """
    if error is None:
        return DONE, 0
    if isinstance(error, (SystemExit, Interrupted)):
        return EXITED, 0
    if isinstance(error, SarliteError) and not isinstance(error, PeerError):
        text = re.sub(r"^(rank \d+: )+", "", str(error))  # `raise_together` adds the prefix on the other ranks
        return REFUSED, zlib.crc32(text.encode(errors="surrogateescape"))  # for a path in it that is not UTF-8
    return None


@contextmanager
def _hooks(ending, watchdog, n_ranks):
    """Return a context inside which an exception in any thread, or `os._exit(0)` if there are several ranks, ends all ranks by
    `ending`. Inside it signals also wake the thread `watchdog`.
    """

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
    """Return a context inside which SIGINT, SIGTERM and SIGHUP raise Interrupted in the main thread and wake `watchdog`. The
    watchdog ends the process if the main thread is in C code and does not handle the signal.
    """
    with watchdog.interrupts.listening():
        fd = watchdog.alarm.listen()
        try:
            yield
        finally:
            signal.set_wakeup_fd(fd)


def _settle(comm, error, watchdog, ending):
    """End this rank after the exception `error`, or after success if it is None, once all ranks have ended in the same state (their
    watchdogs `watchdog` exchange the states). If the states differ, end all ranks at once by `ending`.
    """
    outcome = _outcome(error)
    rows = None
    if outcome is not None:
        # ranks give up waiting one after another, so that one rank reports a signal that not all ranks got
        turn = min(comm.rank, 4) / 2 if isinstance(error, Interrupted) else 0.0
        rows = watchdog.finish(*outcome, seconds=None if error is None else GRACE_SECONDS + turn)
    if rows is None or (rows[:, STATE] != outcome[0]).any():
        if error is None:
            threading.Event().wait(END_SECONDS)  # the rank that failed ends this rank
            ending.end("another rank failed")
        ending.end(error)
    if error is None:
        return
    end_within(END_SECONDS)  # at its end Python joins threads, which may wait for messages that never come
    if outcome[0] == REFUSED and (rows[: comm.rank, DIGEST] != outcome[1]).all():
        tell(f"error: {error}")
    elif isinstance(error, Interrupted) and comm.rank == 0:
        tell(str(error))
    comm.drain_channels()  # wakes threads that wait in MPI before MPI is finalized
    if outcome[0] == REFUSED:
        raise SystemExit(REFUSAL_STATUS) from None
    if isinstance(error, Interrupted):
        raise SystemExit(128 + error.signum) from None


def _settle_failure(comm, error, watchdog, ending):
    """End this rank after the exception `error` once all ranks have ended in the same state, which their watchdogs `watchdog` exchange. If
    that fails, for example at a second Ctrl-C, end all ranks at once by `ending`.
    """
    try:
        _settle(comm, error, watchdog, ending)
    except SystemExit:
        raise
    except BaseException as second:  # noqa: BLE001, because it ends the process
        ending.end(second)


@contextmanager
def guard(comm: Communicator, stall_seconds: float = 600.0, n_threads: int = 1) -> Iterator[Watchdog]:
    """Return a context inside which all ranks end if one rank fails, or if no rank reports progress for `stall_seconds`. The context yields
    a `Watchdog`, whose method `tick` reports progress. `n_threads` is the number of ranks that are threads of this process.

    Entering and leaving the context are collective.

    - An exception in any thread: every rank ends within seconds with a nonzero status. The traceback is printed with
      the rank before each line.
    - SIGINT (Ctrl-C), SIGTERM or SIGHUP: every rank ends within seconds, even while the main thread is in C code. One
      line is printed. If all ranks got the signal, the status is 128 + the signal's number. Inside
      `interrupts.postponed()` the signal is only recorded, so that the program can end in good order.
    - A SarliteError on every rank: each message is printed once, without traceback, and every rank exits with status 2.
    - `sys.exit` on every rank: every rank exits with its own status.
    - A SarliteError or `sys.exit` on some ranks only: after `GRACE_SECONDS`, as for any other exception.
    - `os._exit(0)` in a job of several ranks: as for an exception.
    - No rank calls `tick` for `stall_seconds`: every rank prints the stacks of its threads and ends with status 1.

    Parameters
    ----------
    comm : Communicator
        Communicator of the whole job. If the ranks are threads of this process, pass `Solo()` and the number of
        threads, and enter the context once for all ranks.
    stall_seconds : float
        Time without progress that counts as a stall. It must be longer than the slowest epoch, or than the slowest
        block if every fetched block calls `tick`.
    n_threads : int
        Number of ranks that are threads of this process.

    Yields
    ------
    Watchdog
        Call its `tick()` to report progress of this rank. Its `interrupts` is an `Interrupts`.

    Notes
    -----
    Entering creates a channel of `comm`. Leaving waits for every rank, so code after the context runs only if all ranks
    succeed.

    A thread detects stalls. It exchanges 32 bytes per rank about once a second, which needs MPI_THREAD_MULTIPLE.
    Without that, each rank watches only its own counter, and may take a long wait for a slow rank for a stall.

    In a job of one rank (`Solo`) exceptions propagate as usual, and a failed thread ends the process. A stall is
    reported, but ends the process only if ranks are threads.

    The launcher must notice a rank that is killed or crashes in C code; MPICH's mpiexec then ends the other ranks.

    Examples
    --------
    >>> from sarlite import Solo
    >>> with guard(Solo()) as watchdog:
    ...     watchdog.tick()
    """
    ending = Ending(comm)
    watchdog = Watchdog(comm, stall_seconds, ending, ends_stall=comm.size * n_threads > 1)
    with _hooks(ending, watchdog, comm.size):
        try:
            watchdog.start()
            call_off()  # the time limit of `launch.begin`; from now on the watchdog detects stalls
            yield watchdog
            _settle(comm, None, watchdog, ending)
        except BaseException as error:
            if comm.size > 1 or isinstance(error, (SarliteError, Interrupted)):
                with watchdog.interrupts.postponed():  # a signal to all ranks may reach this rank late
                    _settle_failure(comm, error, watchdog, ending)
            raise
        finally:
            watchdog.stop()
            ending.close()
