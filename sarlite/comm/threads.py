"""N ranks as threads of one process: for tests, and for embedding without MPI.

Messages are rendezvous without a copy in between: a send waits in its mailbox until the receive with its (context,
source, destination, tag) comes, and whichever side waits first copies from array to array. A wait that can never end,
because a rank failed or returned, raises PeerError.
"""

import contextvars
import pickle
import threading
from collections import deque

import numpy as np

from sarlite.comm import Channels
from sarlite.comm.buffers import REDUCTIONS, as_bytes, check_received, check_reduction
from sarlite.errors import PeerError, SarliteError, ShapeError

INTERRUPTED_SECONDS = 5.0
"""How long an interrupted `run` waits for ranks that compute and cannot be woken."""


class _Woken(PeerError):
    """Raised where a rank waits while another one fails: a consequence, never the cause."""


class _World:
    """What the ranks of one `run` share, under one lock."""

    def __init__(self, size):
        self.size = size
        self.lock = threading.Lock()
        self.conditions = [threading.Condition(self.lock) for _ in range(size)]
        self.mailboxes = {}  # (context, source, destination, tag) -> ends without a partner, all of one side
        self.meetings = {}  # (context, number) -> {rank: value} of a collective call
        self.left = set()  # ranks whose function returned
        self.n_ended = 0  # threads that returned or failed
        self.ended = threading.Condition(self.lock)
        self.failure = None

    def wake(self, *ranks):
        for rank in ranks or range(self.size):
            self.conditions[rank].notify_all()

    def fail(self, failure):
        with self.lock:
            self.failure = self.failure or failure
            self.wake()

    def leave(self, rank):
        with self.lock:
            self.left.add(rank)
            self.wake()

    def end(self):
        with self.lock:
            self.n_ended += 1
            self.ended.notify_all()

    def wait_for_end(self, seconds=None):
        """Wait for every thread. Thread.join, once interrupted, takes a running thread for ended in Python 3.11."""
        with self.lock:
            self.ended.wait_for(lambda: self.n_ended == self.size, seconds)

    def check(self):
        """Raise, with the lock held, once a rank has failed."""
        if self.failure is not None:
            raise _Woken(self.failure)

    def wait_until(self, done, rank, peers):
        """Wait, with the lock held, until `done()`, or raise when it cannot come true any more."""
        while not done():
            self.check()
            gone = self.left.intersection(peers())
            if gone:
                raise PeerError(f"rank {rank} waits for rank {min(gone)}, which has returned")
            self.conditions[rank].wait()


class _Copy:
    """The one copy of a matched send and receive."""

    def __init__(self, send, receive):
        self.send, self.receive = send, receive
        self.sizes = send.data.size, receive.data.size
        self.started = self.done = False

    def run(self):
        if self.sizes[0] == self.sizes[1]:
            np.copyto(self.receive.data, self.send.data)
        self.send.data = self.receive.data = None  # a side that waits later keeps the other side's array alive no longer


class _End:
    """The request of one side of a message."""

    def __init__(self, world, data, rank, peer, tag, sends):
        self.world, self.data, self.rank, self.peer, self.tag, self.sends = world, data, rank, peer, tag, sends
        self.copy, self.finished = None, False

    def wait(self):
        if self.finished:
            return
        world = self.world
        with world.lock:
            world.wait_until(lambda: self.copy, self.rank, lambda: (self.peer,))
            copy = self.copy
            mine, copy.started = not copy.started, True
            if not mine:
                world.wait_until(lambda: copy.done, self.rank, tuple)
        if mine:
            copy.run()  # not under the lock, so that other messages go on
            with world.lock:
                copy.done = True
                world.wake(self.rank, self.peer)
        self.copy, self.finished = None, True  # no cycle keeps the arrays alive
        check_received(*copy.sizes, copy.send.rank, self.tag)


class ThreadCommunicator(Channels):
    """One rank of `run`; see `sarlite.comm.Communicator` for what the methods promise.

    A reduction adds in rank order, so its result is the same in every run and on every rank.
    """

    threaded = True

    def __init__(self, world, rank, context=()):
        self.rank, self.size = rank, world.size
        self._world, self._context = world, context
        self._n_meetings = self._n_dups = 0

    def start_send(self, array, peer, tag=0):
        return self._post(as_bytes(array), peer, tag, (self._context, self.rank, peer, tag), sends=True)

    def start_recv(self, array, peer, tag=0):
        return self._post(as_bytes(array, writable=True), peer, tag, (self._context, peer, self.rank, tag), sends=False)

    def allreduce(self, array, op="sum"):
        check_reduction(array, op)
        arrays = self._meet(f"allreduce of {op} over {array.dtype} {array.shape}", array)
        start, stop = (array.size * r // self.size for r in (self.rank, self.rank + 1))
        total = arrays[0].reshape(-1)[start:stop].copy()  # each rank reduces one slice for all
        for other in arrays[1:]:
            REDUCTIONS[op](total, other.reshape(-1)[start:stop], out=total)
        slices = self._meet("allreduce's second half", total)
        np.concatenate(slices, out=array.reshape(-1))
        return array

    def allgather(self, value):
        return [pickle.loads(item) for item in self._meet("allgather", pickle.dumps(value))]

    def bcast(self, value, root=0):
        data = self._meet(f"bcast from {root}", pickle.dumps(value) if self.rank == root else None)[root]
        return value if self.rank == root else pickle.loads(data)

    def barrier(self):
        self._meet("barrier", None)

    def dup(self):
        self._meet("dup", None)
        self._n_dups += 1
        return ThreadCommunicator(self._world, self.rank, (*self._context, self._n_dups))

    def abort(self, reason):
        self._world.fail(f"rank {self.rank} aborted: {reason}")
        raise PeerError(str(reason))

    def _post(self, data, peer, tag, key, sends):
        """Match a new end with the longest waiting one of the other side, or leave it in the mailbox."""
        if not 0 <= peer < self.size:
            raise ValueError(f"rank {peer} is not one of {self.size}")
        world, end = self._world, _End(self._world, data, self.rank, peer, tag, sends)
        with world.lock:
            world.check()
            box = world.mailboxes.setdefault(key, deque())
            if not box or box[0].sends == sends:
                box.append(end)
            else:
                twin = box.popleft()
                end.copy = twin.copy = _Copy(end, twin) if sends else _Copy(twin, end)
                world.wake(peer)
            if not box:
                del world.mailboxes[key]
        return end

    def _meet(self, call, value):
        """Return every rank's value once all have come to the same call."""
        world, key = self._world, (self._context, self._n_meetings)
        self._n_meetings += 1
        with world.lock:
            world.check()
            here = world.meetings.setdefault(key, {})
            here[self.rank] = (call, value)
            if len(here) == self.size:
                del world.meetings[key]
                world.wake()
            world.wait_until(lambda: len(here) == self.size, self.rank, lambda: set(range(self.size)) - here.keys())
        self._check_calls([here[rank][0] for rank in range(self.size)])
        return [here[rank][1] for rank in range(self.size)]

    def _check_calls(self, calls):
        for rank, call in enumerate(calls):
            if call != calls[0]:
                raise ShapeError(f"ranks call different collectives: rank 0 {calls[0]}, rank {rank} {call}")


def _is_consequence(error):
    """Whether an exception came from another rank's failure."""
    seen = set()
    while error is not None and id(error) not in seen:
        if isinstance(error, _Woken):
            return True
        seen.add(id(error))
        error = error.__cause__ or error.__context__
    return False


def _run_rank(world, rank, results, errors, function, args, kwargs):
    try:
        results[rank] = function(ThreadCommunicator(world, rank), *args, **kwargs)
        world.leave(rank)
    except BaseException as error:  # noqa: BLE001, because `run` raises it again
        errors[rank] = error
        world.fail(f"rank {rank} failed: {type(error).__name__}: {error}")
    finally:
        world.end()


def _raise_first(errors):
    """Raise the lowest rank's exception that is a cause, else the lowest rank's; nothing without any."""
    found = [(rank, error) for rank, error in enumerate(errors) if error is not None]
    causes = [item for item in found if not _is_consequence(item[1])]
    for rank, error in causes or found:
        if hasattr(error, "add_note"):
            error.add_note(f"raised by rank {rank} of {len(errors)}")
        raise error


def run(n_ranks, function, *args, **kwargs):
    """Run `function(comm, *args, **kwargs)` as every rank of a group of threads.

    Parameters
    ----------
    n_ranks : int
    function : callable
        Given the rank's communicator, then the arguments, which all ranks share.

    Returns
    -------
    list
        Every rank's result, in rank order.

    Raises
    ------
    Exception
        What the lowest failing rank raised, with its own traceback and causes. The other ranks get PeerError where
        they communicate next.
    KeyboardInterrupt
        At once; ranks that compute end when they communicate next.

    Notes
    -----
    A rank must join its own threads before it returns: whoever waits for a rank that has returned gets PeerError.
    """
    if n_ranks < 1:
        raise SarliteError(f"n_ranks is {n_ranks}, less than 1")
    world, results, errors = _World(n_ranks), [None] * n_ranks, [None] * n_ranks
    threads = [
        threading.Thread(
            target=contextvars.copy_context().run,  # the caller's numpy.errstate holds in the ranks too
            args=(_run_rank, world, rank, results, errors, function, args, kwargs),
            name=f"rank {rank}",
            daemon=True,
        )
        for rank in range(n_ranks)
    ]
    try:
        for thread in threads:
            thread.start()
        world.wait_for_end()
    except BaseException as error:
        world.fail(f"interrupted: {type(error).__name__}")
        world.wait_for_end(INTERRUPTED_SECONDS)
        raise
    for thread in threads:
        thread.join()
    _raise_first(errors)
    return results
