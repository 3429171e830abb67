"""N ranks as threads of one process: for tests, and for embedding without MPI.

A message is copied once, from array to array: a send waits in its mailbox until the receive with its (context, source,
destination, tag) comes, and the side that waits first makes the copy. A wait that can never end, because a rank failed
or returned, raises PeerError. """

import contextvars
import pickle
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np

from sarlite import kernels
from sarlite.comm.buffers import (
    REDUCTIONS,
    alltoall_call,
    as_bytes,
    broadcast_call,
    check_calls,
    check_received,
    described,
    reduction_call,
)
from sarlite.comm.channels import MAX_TAG, Channels
from sarlite.comm.requests import Staged
from sarlite.errors import PeerError, SarliteError, ShapeError
from sarlite.types import Array

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

    def check(self, rank=None, peers=()):
        """Raise, with the lock held, once a rank has failed, or one of the peers that `rank` waits for has returned."""
        if self.failure is not None:
            raise _Woken(self.failure)
        gone = self.left.intersection(peers)
        if gone:
            raise PeerError(f"rank {rank} waits for rank {min(gone)}, which has returned")

    def wait_until(self, done, rank, peers):
        """Wait, with the lock held, until `done()`, or raise when it cannot come true any more."""
        while not done():
            self.check(rank, peers())
            self.conditions[rank].wait()

    def take_back(self, end):
        """Forget, with the lock held, an end that has no partner."""
        box = self.mailboxes.get(end.key, ())
        if end in box:
            box.remove(end)
        if not box:
            self.mailboxes.pop(end.key, None)


class _Copy:
    """The one copy of a matched send and receive."""

    def __init__(self, send, receive):
        self.send, self.receive = send, receive
        self.sizes = send.data.size, receive.data.size
        self.started = self.done = False

    def run(self):
        if self.sizes[0] == self.sizes[1]:
            np.copyto(self.receive.data, self.send.data)
        self.send.data = self.receive.data = None  # a side that waits later must not keep the other side's array alive


class _End:
    """The request of one side of a message. Its ranks are numbered as in the world."""

    def __init__(self, comm, data, peer, tag, sends):
        self.world, self.open = comm._world, comm._open
        self.rank, self.peer = comm._members[comm.rank], comm._members[peer]
        self.data, self.tag, self.sends = data, tag, sends
        self.key = (comm._context, *((self.rank, self.peer) if sends else (self.peer, self.rank)), tag)
        self.copy, self.sizes, self.cancelled = None, None, False
        self.open.add(self)

    def wait(self):
        world = self.world
        with world.lock:
            world.wait_until(lambda: self.copy or self.sizes or self.cancelled, self.rank, lambda: (self.peer,))
            if self.cancelled:
                raise PeerError(f"the transfer with rank {self.peer}, tag {self.tag}, was cancelled")
            copy = self.copy
            mine = copy is not None and not copy.started
            if mine:
                copy.started = True
            elif copy is not None:
                world.wait_until(lambda: copy.done, self.rank, tuple)
        if mine:
            copy.run()  # not under the lock, so that other messages go on
        with world.lock:
            if mine:
                copy.done = True
                world.wake(self.rank, self.peer)
            self.sizes = self.sizes or copy.sizes
            self.copy = None  # no cycle keeps the arrays alive
            self.open.discard(self)
        check_received(*self.sizes, self.rank if self.sends else self.peer, self.tag)

    def test(self):
        with self.world.lock:
            if self.sizes or self.cancelled:
                return True
            if self.copy is None:
                self.world.check(self.rank, (self.peer,))
            return self.copy is not None and self.copy.started == self.copy.done

    def cancel(self):
        with self.world.lock:
            if self.copy is None and self.sizes is None:
                self.cancelled, self.data = True, None
                self.open.discard(self)
                self.world.take_back(self)
                self.world.wake(self.rank)
                return
        with suppress(ShapeError, PeerError):
            self.wait()  # not for the other side: both arrays are here


class _Meeting:
    """The request of a collective call, at which every member leaves a value for all.

    Members are ranks of the world.
    """

    def __init__(self, world, rank, members, key, call, value):
        self._world, self._rank, self._members = world, rank, members
        with world.lock:
            world.check()
            self._here = world.meetings.setdefault(key, {})
            self._here[rank] = (call, value)
            if self._all_here():
                del world.meetings[key]
                world.wake()

    def wait(self):
        with self._world.lock:
            self._world.wait_until(self._all_here, self._rank, self._missing)

    def test(self):
        with self._world.lock:
            if not self._all_here():
                self._world.check(self._rank, self._missing())
            return self._all_here()

    def result(self, error=None):
        """Every rank's value, once all are here. Raises `error`, or ShapeError unless all ranks made the same call."""
        calls, values = zip(*(self._here[rank] for rank in self._members))
        check_calls(calls, error)
        return list(values)

    def _all_here(self):
        return len(self._here) == len(self._members)

    def _missing(self):
        return set(self._members) - self._here.keys()


class ThreadCommunicator(Channels):
    """One rank of `run`; see `sarlite.comm.Communicator` for what the methods promise.

    A reduction adds in rank order, so its result is the same in every run and on every rank.
    """

    threaded, max_tag = True, MAX_TAG
    _open: set[Any]

    def __init__(self, world: Any, rank: int, context: tuple[int, ...] = (),
                 members: tuple[int, ...] | None = None) -> None:
        self._members = tuple(range(world.size)) if members is None else members  # ranks of the world, by rank here
        self.rank, self.size = rank, len(self._members)
        self._world, self._context, self._open = world, context, set()
        self._n_meetings = self._n_dups = 0

    def start_send(self, array: Array, peer: int, tag: int = 0) -> Any:
        return self._post(as_bytes(array), peer, tag, sends=True)

    def start_recv(self, array: Array, peer: int, tag: int = 0) -> Any:
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

    def broadcast(self, array: Array, root: int) -> Array:
        self.start_broadcast(array, root).wait()
        return array

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

    def allreduce(self, array: Array, op: str = "sum") -> Array:
        self.start_allreduce(array, op).wait()
        return array

    def allgather(self, value: Any) -> list[Any]:
        return [pickle.loads(item) for item in self._meet("allgather", pickle.dumps(value))]

    def bcast(self, value: Any, root: int = 0) -> Any:
        data = self._meet(f"bcast from {root}", pickle.dumps(value) if self.rank == root else None)[root]
        return value if self.rank == root else pickle.loads(data)

    def barrier(self) -> None:
        self._meet("barrier", None)

    def dup(self) -> "ThreadCommunicator":
        self._meet("dup", None)
        self._n_dups += 1
        return ThreadCommunicator(self._world, self.rank, (*self._context, self._n_dups), self._members)

    def split(self, colour: int) -> "ThreadCommunicator":
        colours = self._meet("split", colour)
        self._n_dups += 1
        here = [rank for rank, found in enumerate(colours) if found == colour]
        members = tuple(self._members[rank] for rank in here)  # in the context they tell the parts' messages apart
        return ThreadCommunicator(self._world, here.index(self.rank), (*self._context, self._n_dups, *members), members)

    def free(self) -> None:
        self.free_channels()
        self.drain()

    def abort(self, reason: Any) -> None:
        self._world.fail(f"rank {self.rank} aborted: {reason}")
        raise PeerError(str(reason))

    def _post(self, data, peer, tag, sends):
        """Match a new end with the longest waiting one of the other side, or leave it in the mailbox."""
        if not 0 <= peer < self.size:
            raise ValueError(f"rank {peer} is not one of {self.size}")
        world = self._world
        with world.lock:
            world.check()
            end = _End(self, data, peer, tag, sends)
            box = world.mailboxes.setdefault(end.key, deque())
            if not box or box[0].sends == sends:
                box.append(end)
            else:
                twin = box.popleft()
                end.copy = twin.copy = _Copy(end, twin) if sends else _Copy(twin, end)
                world.wake(end.peer)
            if not box:
                del world.mailboxes[end.key]
        return end

    def _next_key(self):
        self._n_meetings += 1
        return self._context, self._n_meetings

    def _arrive(self, key, call, value):
        return _Meeting(self._world, self._members[self.rank], self._members, key, call, value)

    def _meet(self, call, value, error=None):
        """Return every rank's value once all have come to the same call."""
        meeting = self._arrive(self._next_key(), call, value)
        meeting.wait()
        return meeting.result(error)


def _is_consequence(error):
    """Whether an exception came from another rank's failure."""
    seen = set()
    while error is not None and id(error) not in seen:
        if isinstance(error, _Woken):
            return True
        seen.add(id(error))
        error = error.__cause__ or error.__context__
    return False


def _run_rank(world, rank, n_threads, results, errors, function, args, kwargs):
    try:
        kernels.set_threads(n_threads)
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


def run(n_ranks: int, function: Callable[..., Any], *args: Any, **kwargs: Any) -> list[Any]:
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
    world, results, errors, n_threads = _World(n_ranks), [None] * n_ranks, [None] * n_ranks, kernels.threads()
    threads = [
        threading.Thread(
            target=contextvars.copy_context().run,  # the caller's numpy.errstate holds in the ranks too
            args=(_run_rank, world, rank, n_threads, results, errors, function, args, kwargs),
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
