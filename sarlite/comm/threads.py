"""N ranks as threads of one process: for tests, and for embedding without MPI.

A message is copied once, from array to array: a send or a receive waits in its mailbox until its partner of the same
(context, source, destination, tag) comes, and the side that comes makes the copy. A wait that can never end, because a
rank failed or returned, raises PeerError. """

import contextvars
import pickle
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, wait
from contextlib import suppress
from typing import Any

import numpy as np

from sarlite import kernels
from sarlite.comm.protocol import MAX_TAG, Communicator, Request
from sarlite.comm.requests import Staged
from sarlite.comm.wire_arrays import (
    REDUCTIONS,
    alltoall_call,
    as_bytes,
    broadcast_call,
    check_calls,
    check_received,
    described,
    reduction_call,
)
from sarlite.errors import PeerError, SarliteError, ShapeError
from sarlite.types import Array, T

INTERRUPTED_SECONDS = 5.0
"""How long an interrupted `run` waits for ranks that compute and cannot be woken."""


class _Woken(PeerError):
    """Raised on a rank that waits when another rank fails; it is never the cause of the failure."""


class _World:
    """State that the ranks of one `run` share, protected by one lock."""

    def __init__(self, size):
        self.size = size
        self.lock = threading.Lock()
        self.conditions = [threading.Condition(self.lock) for _ in range(size)]
        self.mailboxes = {}  # (context, source, destination, tag) -> ends without a partner, all of one side
        self.meetings = {}  # (context, number) -> {rank: value} of a collective call
        self.left = set()  # ranks whose function returned
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

    def check(self, rank=None, peers=()):
        """Raise if a rank has failed, or if a peer that `rank` waits for has returned. The caller holds the lock."""
        if self.failure is not None:
            raise _Woken(self.failure)
        gone = self.left.intersection(peers)
        if gone:
            raise PeerError(f"rank {rank} waits for rank {min(gone)}, which has returned")

    def take_back(self, end):
        """Remove an end without a partner from its mailbox. The caller holds the lock."""
        box = self.mailboxes.get(end.key, ())
        if end in box:
            box.remove(end)
        if not box:
            self.mailboxes.pop(end.key, None)


class _Request(Request):
    """A request of `rank`, which is over once `done()`, or raises where a rank fails or one of `missing()` returns.

    Its ranks are numbered as in the world. Both functions are called with the world's lock held.
    """

    def wait(self):
        with self.world.lock:
            while not self.done():
                self.world.check(self.rank, self.missing())
                self.world.conditions[self.rank].wait()

    def test(self):
        with self.world.lock:
            if not self.done():
                self.world.check(self.rank, self.missing())
            return self.done()


class _End(_Request):
    """The request of one side of a message."""

    def __init__(self, comm, data, peer, tag, sends):
        self.world, self.open = comm._world, comm._open
        self.rank, self.peer = comm.rank, peer
        self.data, self.tag, self.sends = data, tag, sends
        self.key = (comm._context, *((self.rank, self.peer) if sends else (self.peer, self.rank)), tag)
        self.met, self.sizes, self.cancelled = False, None, False  # the sizes of both sides, once the copy is made
        self.open.add(self)

    def done(self):
        return self.cancelled or self.sizes is not None

    def missing(self):
        return () if self.met else (self.peer,)

    def wait(self):
        super().wait()
        if self.cancelled:
            raise PeerError(f"the transfer with rank {self.peer}, tag {self.tag}, was cancelled")
        check_received(*self.sizes, self.rank if self.sends else self.peer, self.tag)

    def cancel(self):
        with self.world.lock:
            if not self.met:
                self.cancelled = True
                self.end()
                self.world.take_back(self)
                return
        with suppress(ShapeError, PeerError):
            self.wait()  # not for the other side: both arrays are here

    def end(self):
        """Let go of the array, with the lock held, and wake who waits."""
        self.data = None
        self.open.discard(self)
        self.world.wake(self.rank)


def _copy(send, receive):
    """Make the one copy of a message, without holding the lock."""
    sizes = send.data.size, receive.data.size
    if sizes[0] == sizes[1]:
        np.copyto(receive.data, send.data)
    with send.world.lock:
        for end in (send, receive):
            end.sizes = sizes
            end.end()


class _Meeting(_Request):
    """The request of a collective call, at which every rank leaves a value for all."""

    def __init__(self, world, rank, key, call, value):
        self.world, self.rank = world, rank
        with world.lock:
            world.check()
            self.here = world.meetings.setdefault(key, {})
            self.here[rank] = (call, value)
            if self.done():
                del world.meetings[key]
                world.wake()

    def done(self):
        return len(self.here) == self.world.size

    def missing(self):
        return set(range(self.world.size)) - self.here.keys()

    def result(self, error=None):
        """Every rank's value, once all are here. Raises `error`, or ShapeError unless all ranks made the same call."""
        calls, values = zip(*(self.here[rank] for rank in range(self.world.size)))
        check_calls(calls, error)
        return list(values)


class ThreadCommunicator(Communicator):
    """One rank of `run`; see `sarlite.comm.Communicator` for the contract of the methods.

    A reduction adds in rank order, so its result is the same in every run and on every rank.
    """

    threaded, max_tag = True, MAX_TAG
    _open: set[_End]

    def __init__(self, world: _World, rank: int, context: tuple[int, ...] = ()) -> None:
        self.rank, self.size = rank, world.size
        self._world, self._context, self._open = world, context, set()
        self._n_meetings = self._n_dups = 0

    def start_send(self, array: Array, peer: int, tag: int = 0) -> Request:
        return self._post(as_bytes(array), peer, tag, sends=True)

    def start_recv(self, array: Array, peer: int, tag: int = 0) -> Request:
        return self._post(as_bytes(array, writable=True), peer, tag, sends=False)

    def drain(self) -> None:
        with self._world.lock:
            ends = list(self._open)
        for end in ends:
            end.cancel()
        self._meet("drain", None)

    def alltoall(self, arrays: list[Array]) -> list[Array]:
        call, error = described(alltoall_call, arrays, self.size)
        found = [theirs[self.rank].copy() for theirs in self._meet(call, arrays, error)]
        self._meet("alltoall's second half", None)
        return found

    def start_broadcast(self, array: Array, root: int) -> Staged:
        return Staged(self._broadcast(array, root, *described(broadcast_call, array, root, self.rank, self.size)))

    def _broadcast(self, array, root, call, error):
        keys = self._next_key(), self._next_key()  # here, since others may meet before this goes on
        sent = array if self.rank == root else None  # slow ranks would keep the other ranks' arrays alive
        yield (first := self._arrive(keys[0], call, sent))
        arrays = first.result(error)
        if self.rank != root:
            np.copyto(as_bytes(array), as_bytes(arrays[root]))
        del arrays, first  # the root's array is its own again once it goes on
        yield self._arrive(keys[1], "broadcast's second half", None)

    def start_allreduce(self, array: Array, op: str = "sum") -> Staged:
        return Staged(self._reduction(array, op, *described(reduction_call, array, op)))

    def _reduction(self, array, op, call, error):
        keys = self._next_key(), self._next_key()  # here, since others may meet before this goes on
        yield (first := self._arrive(keys[0], call, array))
        arrays = first.result(error)
        start, stop = (array.size * r // self.size for r in (self.rank, self.rank + 1))
        total = arrays[0].reshape(-1)[start:stop].copy()  # each rank reduces one slice for all
        for other in arrays[1:]:
            REDUCTIONS[op](total, other.reshape(-1)[start:stop], out=total)
        yield (second := self._arrive(keys[1], "allreduce's second half", total))
        np.concatenate(second.result(), out=array.reshape(-1))

    def allgather(self, value: T) -> list[T]:
        return [pickle.loads(item) for item in self._meet("allgather", pickle.dumps(value))]

    def bcast(self, value: object, root: int = 0) -> Any:
        data = self._meet(f"bcast from {root}", pickle.dumps(value) if self.rank == root else None)[root]
        return value if self.rank == root else pickle.loads(data)

    def barrier(self) -> None:
        self._meet("barrier", None)

    def dup(self) -> "ThreadCommunicator":
        self._meet("dup", None)
        self._n_dups += 1
        return ThreadCommunicator(self._world, self.rank, (*self._context, self._n_dups))

    def abort(self, reason: object) -> None:
        self._world.fail(f"rank {self.rank} aborted: {reason}")
        raise PeerError(str(reason))

    def _post(self, data, peer, tag, sends):
        """Bring a new end together with the longest waiting one of the other side, or leave it in the mailbox."""
        if not 0 <= peer < self.size:
            raise ValueError(f"rank {peer} is not one of {self.size}")
        world = self._world
        with world.lock:
            world.check()
            end = _End(self, data, peer, tag, sends)
            box = world.mailboxes.setdefault(end.key, deque())
            if not box or box[0].sends == sends:
                box.append(end)
                return end
            twin = box.popleft()
            end.met = twin.met = True
            if not box:
                del world.mailboxes[end.key]
        _copy(*((end, twin) if sends else (twin, end)))
        return end

    def _next_key(self):
        self._n_meetings += 1
        return self._context, self._n_meetings

    def _arrive(self, key, call, value):
        return _Meeting(self._world, self.rank, key, call, value)

    def _meet(self, call, value, error=None):
        """Return every rank's value once all have come to the same call."""
        meeting = self._arrive(self._next_key(), call, value)
        meeting.wait()
        return meeting.result(error)


def _is_consequence(error):
    """Return True if an exception was caused by another rank's failure."""
    seen = set()
    while error is not None and id(error) not in seen:
        if isinstance(error, _Woken):
            return True
        seen.add(id(error))
        error = error.__cause__ or error.__context__
    return False


def _run_rank(world, rank, n_threads, future, function, args, kwargs):
    try:
        kernels.set_threads(n_threads)
        result = function(ThreadCommunicator(world, rank), *args, **kwargs)
        world.leave(rank)
        future.set_result(result)
    except BaseException as error:  # noqa: BLE001, because `run` raises it again
        world.fail(f"rank {rank} failed: {type(error).__name__}: {error}")
        future.set_exception(error)


def _raise_first(errors):
    """Raise the lowest rank's exception that is a cause, else the lowest rank's; nothing without any."""
    found = [(rank, error) for rank, error in enumerate(errors) if error is not None]
    causes = [item for item in found if not _is_consequence(item[1])]
    for rank, error in causes or found:
        if hasattr(error, "add_note"):
            error.add_note(f"raised by rank {rank} of {len(errors)}")
        raise error


def run(n_ranks: int, function: Callable[..., T], *args: object, **kwargs: object) -> list[T]:
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
    Each rank's kernels use as many threads as the caller's (`kernels.set_threads`).
    """
    if n_ranks < 1:
        raise SarliteError(f"n_ranks is {n_ranks}, less than 1")
    world, n_threads = _World(n_ranks), kernels.threads()
    futures: list[Future[T]] = [Future() for _ in range(n_ranks)]
    threads = [
        threading.Thread(
            target=contextvars.copy_context().run,  # the caller's numpy.errstate holds in the ranks too
            args=(_run_rank, world, rank, n_threads, future, function, args, kwargs),
            name=f"rank {rank}",
            daemon=True,
        )
        for rank, future in enumerate(futures)
    ]
    try:
        for thread in threads:
            thread.start()
        wait(futures)  # Thread.join, once interrupted, takes a running thread for ended in Python 3.11
    except BaseException as error:
        world.fail(f"interrupted: {type(error).__name__}")
        wait(futures, INTERRUPTED_SECONDS)
        raise
    for thread in threads:
        thread.join()
    _raise_first([future.exception() for future in futures])
    return [future.result() for future in futures]
