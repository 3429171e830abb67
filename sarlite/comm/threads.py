"""N ranks as threads of one process, for tests and for programs without MPI.

A message is copied once, from array to array. A send or a receive waits in a mailbox for its partner, which has the
same (context, source, destination, tag). The side that arrives second copies. A wait that can never end, because a rank
failed or returned, raises a PeerError.
"""

import contextvars
import pickle
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, wait
from contextlib import suppress
from typing import cast

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
"""Time in seconds that an interrupted `run` waits for ranks that compute and cannot be woken."""


class _Woken(PeerError):
    """Error of a rank that waited when another rank failed. It is never the cause of a failure."""


class _World:
    """State that the ranks of one call of `threads.run` share, protected by one lock."""

    def __init__(self, size):
        self.size = size
        self.lock = threading.Lock()
        self.conditions = [threading.Condition(self.lock) for _ in range(size)]
        self.mailboxes = {}  # (context, source, destination, tag) -> sends without receives, or receives without sends
        self.meetings = {}  # (context, number) -> {rank: value} of a collective call
        self.returned = set()  # ranks whose function returned
        self.failure = None

    def wake(self, *ranks):
        """Wake the waiting threads of the ranks `ranks`, or of all ranks if none is given. The caller holds the lock."""
        for rank in ranks or range(self.size):
            self.conditions[rank].notify_all()

    def fail(self, failure):
        with self.lock:
            self.failure = self.failure or failure
            self.wake()

    def leave(self, rank):
        with self.lock:
            self.returned.add(rank)
            self.wake()

    def check(self, rank=None, peers=()):
        """Raise a PeerError if any rank has failed, or if one of the ranks `peers`, which `rank` waits for, has already returned from
        its function. The caller holds the lock.
        """
        if self.failure is not None:
            raise _Woken(self.failure)
        gone = self.returned.intersection(peers)
        if gone:
            raise PeerError(f"rank {rank} waits for rank {min(gone)}, which has returned")

    def take_back(self, end):
        """Remove a send or a receive, `end`, from its mailbox, where it waits for its partner. The caller holds the lock."""
        box = self.mailboxes.get(end.key, ())
        if end in box:
            box.remove(end)
        if not box:
            self.mailboxes.pop(end.key, None)


class _Request(Request):
    """Base class of requests, which wait until `done()` is True. `missing()` returns the ranks that a request waits for; a PeerError is
    raised if one of them has returned from its function, or if any rank has failed. Subclasses define both methods, which are called with
    the world's lock held.
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


class _SendOrReceive(_Request):
    """Send or receive: the request of one side of a message between two ranks."""

    def __init__(self, comm, data, peer, tag, sends):
        self.world, self.open = comm._world, comm._open
        self.rank, self.peer = comm.rank, peer
        self.data, self.tag, self.sends = data, tag, sends
        self.key = (comm._context, *((self.rank, self.peer) if sends else (self.peer, self.rank)), tag)
        self.met, self.sizes, self.cancelled = False, None, False  # sizes: bytes of both sides, once copied
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
            self.wait()  # short, because both arrays are present and the partner copies

    def end(self):
        """Mark this send or receive as finished: release its array, and wake the thread that waits for it. The caller holds the lock."""
        self.data = None
        self.open.discard(self)
        self.world.wake(self.rank)


def _copy(send, receive):
    """Copy a message from the array of `send` to the array of `receive`, and mark both as done. The caller holds no lock."""
    sizes = send.data.size, receive.data.size
    if sizes[0] == sizes[1]:
        np.copyto(receive.data, send.data)
    with send.world.lock:
        for end in (send, receive):
            end.sizes = sizes
            end.end()


class _Meeting(_Request):
    """Request of a collective call: every rank passes a value, and the request is done when all ranks have called. Every rank gets all
    values.
    """

    def __init__(self, world, rank, key, call_text, value):
        self.world, self.rank = world, rank
        with world.lock:
            world.check()
            self.here = world.meetings.setdefault(key, {})
            self.here[rank] = (call_text, value)
            if self.done():
                del world.meetings[key]
                world.wake()

    def done(self):
        return len(self.here) == self.world.size

    def missing(self):
        return set(range(self.world.size)) - self.here.keys()

    def result(self, error=None):
        """Return the values of all ranks in rank order; all ranks must have called. Raise `error` unless it is None, and raise a ShapeError
        if ranks made different calls.
        """
        calls, values = zip(*(self.here[rank] for rank in range(self.world.size)))
        check_calls(calls, error)
        return list(values)


class ThreadCommunicator(Communicator):
    """Communicator of one rank of `threads.run`; `sarlite.comm.Communicator` documents the methods.

    A reduction adds in rank order, so its result is the same in every run and on every rank.
    """

    threaded, max_tag = True, MAX_TAG
    _open: set[_SendOrReceive]

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
        call_text, error = described(alltoall_call, arrays, self.size)
        received = [sent[self.rank].copy() for sent in self._meet(call_text, arrays, error)]
        self._meet("alltoall's second half", None)
        return received

    def start_broadcast(self, array: Array, root: int) -> Staged:
        return Staged(self._broadcast(array, root, *described(broadcast_call, array, root, self.rank, self.size)))

    def _broadcast(self, array, root, call_text, error):
        """Yield the two requests of a broadcast of the root's `array`. In the first, ranks compare `call_text`, a description of the call,
        and get the array; a ShapeError is raised if ranks differ, or `error` if it is not None. In the second, they report that they have
        copied it.
        """
        keys = self._next_key(), self._next_key()  # both now: other collective calls may start between the steps
        sent = array if self.rank == root else None  # other ranks' arrays are not needed and would be kept alive
        yield (first := self._arrive(keys[0], call_text, sent))
        arrays = first.result(error)
        if self.rank != root:
            np.copyto(as_bytes(array), as_bytes(arrays[root]))
        del arrays, first  # drop the references to the root's array, which the root may free after the second step
        yield self._arrive(keys[1], "broadcast's second half", None)

    def start_allreduce(self, array: Array, op: str = "sum") -> Staged:
        return Staged(self._reduction(array, op, *described(reduction_call, array, op)))

    def _reduction(self, array, op, call_text, error):
        """Yield the two requests of an allreduce by `op`. In the first, ranks compare `call_text`, a description of the call, and exchange
        `array`; a ShapeError is raised if ranks differ, or `error` if it is not None. In the second, each rank passes its reduced slice.
        """
        keys = self._next_key(), self._next_key()  # both now: other collective calls may start between the steps
        yield (first := self._arrive(keys[0], call_text, array))
        arrays = first.result(error)
        start, stop = (array.size * r // self.size for r in (self.rank, self.rank + 1))
        total = arrays[0].reshape(-1)[start:stop].copy()  # each rank reduces one slice for all
        for other in arrays[1:]:
            REDUCTIONS[op](total, other.reshape(-1)[start:stop], out=total)
        yield (second := self._arrive(keys[1], "allreduce's second half", total))
        np.concatenate(second.result(), out=array.reshape(-1))

    def allgather(self, value: T) -> list[T]:
        return [pickle.loads(item) for item in self._meet("allgather", pickle.dumps(value))]

    def bcast(self, value: T | None, root: int = 0) -> T:
        data = self._meet(f"bcast from {root}", pickle.dumps(value) if self.rank == root else None)[root]
        return cast(T, value) if self.rank == root else pickle.loads(data)

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
        """Start to send the array `data` to rank `peer` if `sends`, else to receive into `data`; return the request. The side that comes
        second copies the message.
        """
        if not 0 <= peer < self.size:
            raise ValueError(f"rank {peer} is not one of {self.size}")
        world = self._world
        with world.lock:
            world.check()
            end = _SendOrReceive(self, data, peer, tag, sends)
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

    def _arrive(self, key, call_text, value):
        return _Meeting(self._world, self.rank, key, call_text, value)

    def _meet(self, call_text, value, error=None):
        """Pass `value` to all ranks and return the values of all ranks, in rank order. Raise a ShapeError if ranks differ in `call_text`, a
        description of the collective call, or raise `error` if it is not None.
        """
        meeting = self._arrive(self._next_key(), call_text, value)
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
    """Raise the exception of the lowest rank in `errors`, which has an exception or None for each rank. An exception of a rank that only
    waited for a failed rank is raised only if there is no other. Return if all are None.
    """
    failures = [(rank, error) for rank, error in enumerate(errors) if error is not None]
    causes = [failure for failure in failures if not _is_consequence(failure[1])]
    for rank, error in causes or failures:
        if hasattr(error, "add_note"):
            error.add_note(f"raised by rank {rank} of {len(errors)}")
        raise error


def run(n_ranks: int, function: Callable[..., T], *args: object, **kwargs: object) -> list[T]:
    """Call `function(comm, *args, **kwargs)` on each of `n_ranks` threads, which act as ranks; return the results in rank order.

    Parameters
    ----------
    n_ranks : int
        Number of ranks, at least 1.
    function : callable (comm, *args, **kwargs) -> result
        Function that gets the rank's communicator, and then the arguments, which all ranks share.
    *args, **kwargs : object
        Further arguments of the function.

    Returns
    -------
    list
        The results in rank order.

    Raises
    ------
    Exception
        The exception of the lowest failing rank, with its traceback and causes. The other ranks get a PeerError when
        they communicate next.
    KeyboardInterrupt
        Raised at once. Ranks that compute end when they communicate next.

    Notes
    -----
    A rank must join its own threads before it returns: a rank that waits for a rank that has returned gets a PeerError.
    The kernels of each rank use as many threads as the caller's kernels (`kernels.set_threads`).

    Examples
    --------
    >>> from sarlite.comm import threads
    >>> threads.run(3, lambda comm: comm.allgather(comm.rank ** 2))
    [[0, 1, 4], [0, 1, 4], [0, 1, 4]]
    """
    if n_ranks < 1:
        raise SarliteError(f"n_ranks is {n_ranks}, but must be 1 or more")
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
        wait(futures)  # not Thread.join, which in Python 3.11 treats a running thread as ended after an interrupt
    except BaseException as error:
        world.fail(f"interrupted: {type(error).__name__}")
        wait(futures, INTERRUPTED_SECONDS)
        raise
    for thread in threads:
        thread.join()
    _raise_first([future.exception() for future in futures])
    return [future.result() for future in futures]
