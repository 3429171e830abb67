"""Communication between ranks: the protocol that the rest of sarlite is written against.

`mpi` implements it over mpi4py, `threads` for N ranks as threads of one process, `Solo` for one rank.
"""

import weakref
from collections.abc import Callable
from typing import Any, NoReturn, Protocol, TypeVar

from sarlite.comm.buffers import alltoall_call, broadcast_call, check_reduction, digest
from sarlite.comm.requests import Staged
from sarlite.errors import DataError, ShapeError, raise_together
from sarlite.types import Array

R = TypeVar("R")
MAX_TAG = 2**31 - 1
"""Where tags are Python's numbers."""


class Request(Protocol):
    """A started transfer or reduction. It keeps its buffer alive until it is done. Any thread may call its methods."""

    def wait(self) -> None:
        """Return once the buffer may be read (receive, reduction) or changed (send).

        Raises
        ------
        ShapeError
            The message has not the size of the receive's buffer; the ranks' arrays of a reduction differ.
        PeerError
            The peer failed, or the request was cancelled.
        """

    def test(self) -> bool:
        """Return whether `wait` would return, or raise, without waiting for another rank."""

    def cancel(self) -> None:
        """Give up a send or a receive. Not for reductions.

        Returns once nothing will be written into the buffer any more, and it may be dropped. A thread that waits for a
        receive gets PeerError; under MPI one that waits for a send waits on until the message is received or drained.
        A request that is done stays done; what was already matched may still be delivered before this returns.

        Notes
        -----
        A cancelled receive leaves its message to the next receive with the same source and tag, and under MPI a
        cancelled send may still be received: go on with another tag, or `drain`. MPI cannot take back a send: until it
        is received or drained, its array is kept by a reference, and if it is changed, that is what arrives.
        """


class Communicator(Protocol):
    """A group of ranks. Every method but `start_send`, `start_recv` and `abort` is collective.

    Attributes
    ----------
    rank, size : int
    threaded : bool
        Whether several threads may communicate at once (MPI_THREAD_MULTIPLE).
    max_tag : int
        The largest tag of a message; the smallest is 0. MPI promises 32766, MPICH has 2^29 - 2.

    Notes
    -----
    Messages with the same source, destination and tag arrive in the order they were started. Threads of one rank that
    communicate at once need different tags, and for collectives communicators of their own (`dup`, `channel`).

    `alltoall`, `broadcast`, `allreduce` and `start_allreduce` raise ShapeError on every rank when the ranks' calls do not fit together.
    """

    rank: int
    size: int
    threaded: bool
    max_tag: int

    def start_send(self, array: Array, peer: int, tag: int = 0) -> Request:
        """Start to send a C-contiguous array (any dtype, any size, 2 GiB and more too) to `peer`.

        The array is borrowed until the request is done. The request may wait for the peer's receive, so start every
        receive before waiting for a send.
        """

    def start_recv(self, array: Array, peer: int, tag: int = 0) -> Request:
        """Start to receive into a C-contiguous array of just the size that `peer` sends."""

    def drain(self) -> None:
        """Cancel the requests of sends and receives that are not done, and drop the messages that no receive has met.

        Afterwards the communicator is as new: no message from before is received by anyone, whatever its tag. For
        channels, whose requests may outlive what a program gave up.
        """

    def alltoall(self, arrays: list[Array]) -> list[Array]:
        """Give every rank its own rows.

        Parameters
        ----------
        arrays : list of (n, ...) arrays
            One for each rank, C-contiguous, of one dtype and row shape on every rank, of any number of rows, 0 too.

        Returns
        -------
        list of (m, ...) arrays
            What each rank sent here, in rank order, as new arrays.
        """

    def broadcast(self, array: Array, root: int) -> Array:
        """Fill the C-contiguous `array` with the root's, of the same shape and dtype, and return it.

        Waits without the GIL: a thread may be in here on one communicator while others use other ones.
        """

    def start_broadcast(self, array: Array, root: int) -> Request:
        """Start a `broadcast`; the request is done once `array` may be read, on the root changed.

        The ranks must have agreed on root, shape and dtype before: they are not compared on every communicator. Several may be under
        way, if all ranks start them in one order; until they are done, nothing else collective may be called on this communicator.
        """

    def start_allreduce(self, array: Array, op: str = "sum") -> Request:
        """Start an `allreduce`; `array` holds the result once the request is done.

        It goes on while some thread waits for it or tests it. Until it is done, nothing else collective may be called on
        this communicator: give it a channel.
        """

    def allreduce(self, array: Array, op: str = "sum") -> Array:
        """Reduce elementwise over ranks, in place, and return `array`; op is "sum", "max" or "min".

        The result is the same on every rank. It has the array's dtype; a NaN under "max" or "min" is undefined.
        """

    def gather(self, array: Array, root: int = 0) -> list[Array] | None:
        """Return every rank's rows by rank on the root, None elsewhere.

        Parameters
        ----------
        array : (n, ...) array
            C-contiguous, of one dtype and row shape on every rank, of any number of rows, 0 too.
        root : int
            The same on every rank.

        Returns
        -------
        list of (m, ...) arrays, on the root
            New arrays: the root holds all ranks' rows.

        Raises
        ------
        ShapeError
            On every rank: the arrays do not fit together, or the root is no rank or not the same on all.
        """

    def allgather(self, value: Any) -> list[Any]:
        """Return the list of every rank's `value`, a small picklable object, in rank order."""

    def bcast(self, value: Any, root: int = 0) -> Any:
        """Return the root's `value`, a picklable object, on every rank."""

    def barrier(self) -> None:
        """Return once every rank has called it."""

    def dup(self) -> "Communicator":
        """Return a communicator of the same ranks whose messages never meet this one's."""

    def channel(self, name: str) -> "Communicator":
        """Return the duplicate kept under `name`, made at the first call: MPI has few, and graphs are made often."""

    def split(self, colour: int) -> "Communicator":
        """Return a communicator of the ranks that gave the same `colour`, a number >= 0, numbered in the order of their ranks here."""

    def group(self, name: str, colour: int) -> "Communicator":
        """Return the `split` kept under `name`, made at the first call, whose colours hold."""

    def numbered(self, name: str, holder: Any) -> int:
        """Return a number that is above those of all living holders of `name` on any rank, and `holder`'s as long as it lives. Collective.

        Those whose threads communicate side by side take channels by it, since on one channel their calls would meet.
        """

    def free(self) -> None:
        """Drain a duplicate that was made by `dup`, or a `split`, and its channels, and give them back."""

    def abort(self, reason: Any) -> None:
        """Print `reason`, unless it is None, and end every rank at once; threads as ranks get PeerError instead."""


def together(comm: Communicator, action: Callable[[], R]) -> R:
    """Run `action` on every rank; raise on every rank when it fails on one. Collective.

    Parameters
    ----------
    comm : Communicator
    action : callable
        Takes nothing. It may call collectives only where these fail on every rank or on none.

    Returns
    -------
    object
        This rank's result of `action`.

    Raises
    ------
    Exception
        This rank's own; elsewhere what `raise_together` makes of the lowest failing rank's.
    """
    result: Any = None
    error: BaseException | None = None
    try:
        result = action()
    except BaseException as found:  # whatever it is: the others wait for the word of this rank
        error = found
    raise_together(comm, error)
    return result


def agree(comm: Communicator, value: Any, what: str) -> bytes:
    """Raise DataError on every rank unless all ranks hold the same. Collective; 16 bytes a rank travel.

    Parameters
    ----------
    comm : Communicator
    value : array, bytes, or a tuple, list or dict of such, or anything that `repr` tells
    what : str
        Names it in the message.

    Returns
    -------
    bytes
        The digest that all ranks have.
    """
    digests = comm.allgather(digest(value))
    others = [rank for rank, found in enumerate(digests) if found != digests[0]]
    if others:
        plural = "ranks" if len(others) > 1 else "rank"
        raise DataError(f"{what} is not the same on every rank: {plural} {', '.join(map(str, others))} and rank 0 differ")
    return digests[0]


class Channels:
    """What communicators have in common: `channel` by their `dup`, `group` by their `split`, and `gather` by their `alltoall`."""

    dup: Callable[[], Any]
    split: Callable[[int], Any]
    alltoall: Callable[[list[Array]], list[Array]]
    allgather: Callable[[Any], list[Any]]
    rank: int
    size: int

    def gather(self, array: Array, root: int = 0) -> list[Array] | None:
        good = root in range(self.size) and bool(getattr(array, "ndim", False))
        calls = self.allgather(f"to rank {root}" if good else f"of no rows, or to rank {root}")
        if len(set(calls)) > 1 or not calls[0].startswith("to"):
            told = ", ".join(f"gather {call} on rank {rank}" for rank, call in enumerate(calls) if call != calls[0] or not rank)
            raise ShapeError(f"{told}: one rank of {self.size} must be the root, and arrays have rows")
        found = self.alltoall([array if rank == root else array[:0] for rank in range(self.size)])
        return found if self.rank == root else None

    def channel(self, name: str) -> Any:
        kept = self.__dict__.setdefault("_channels", {})
        if name not in kept:
            kept[name] = self.dup()
        return kept[name]

    def group(self, name: str, colour: int) -> Any:
        kept = self.__dict__.setdefault("_channels", {})
        if ("group", name) not in kept:
            kept["group", name] = self.split(colour)
        return kept["group", name]

    def numbered(self, name: str, holder: Any) -> int:
        held = self.__dict__.setdefault("_holders", {}).setdefault(name, {})
        number = max(self.allgather(max((k + 1 for k, living in held.items() if living() is not None), default=0)))
        held[number] = weakref.ref(holder)
        return number

    def drain_channels(self) -> None:
        """Drain every channel and group, which brings threads that wait for messages there out of MPI. Collective."""
        for channel in self.__dict__.get("_channels", {}).values():
            channel.drain()
            if channel is not self:  # a `Solo` is its own channel
                channel.drain_channels()


def wrap(comm: Any) -> Communicator:
    """Return `comm` as a Communicator: itself, or the one that belongs to an mpi4py communicator.

    Notes
    -----
    Collective for an mpi4py communicator when it is wrapped for the first time: its duplicate is made. It is kept with
    the communicator, whatever is wrapped again later, and freed with it.
    """
    if hasattr(comm, "Get_rank"):
        from sarlite.comm.mpi import wrapped

        return wrapped(comm)
    return comm


class Solo(Channels):
    """The communicator of one rank alone."""

    rank, size, threaded, max_tag = 0, 1, True, MAX_TAG

    def start_send(self, array: Array, peer: int, tag: int = 0) -> Request:
        raise ValueError("one rank has no peer")

    start_recv = start_send

    def drain(self) -> None:
        pass

    def alltoall(self, arrays: list[Array]) -> list[Array]:
        alltoall_call(arrays, 1)
        return [arrays[0].copy()]

    def broadcast(self, array: Array, root: int) -> Array:
        broadcast_call(array, root, 0, 1)
        return array

    def start_broadcast(self, array: Array, root: int) -> Request:
        self.broadcast(array, root)
        return Staged(iter(()))

    def start_allreduce(self, array: Array, op: str = "sum") -> Request:
        check_reduction(array, op)
        return Staged(iter(()))

    def allreduce(self, array: Array, op: str = "sum") -> Array:
        return array

    def allgather(self, value: Any) -> list[Any]:
        return [value]

    def bcast(self, value: Any, root: int = 0) -> Any:
        return value

    def barrier(self) -> None:
        pass

    def dup(self) -> "Solo":
        return self

    def split(self, colour: int) -> "Solo":
        return self

    def free(self) -> None:
        pass

    def abort(self, reason: Any) -> NoReturn:
        raise SystemExit(reason)
