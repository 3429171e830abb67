"""The protocol of communication between ranks that the rest of sarlite is written against.

A communicator inherits from it: what is made of other methods alone is made here.
"""

import weakref
from typing import Any, Protocol, runtime_checkable

from sarlite.errors import SarliteError, ShapeError
from sarlite.types import Array, T

MAX_TAG = 2**31 - 1
"""The largest tag of communicators whose tags are Python's numbers."""


class Request(Protocol):
    """A started transfer or reduction. It keeps its buffer alive until it is done. Any thread may call its methods."""

    def wait(self) -> None:
        """Return once the buffer may be read (receive, reduction) or changed (send).

        Raises
        ------
        ShapeError
            A message has another size than the receive's buffer; the ranks' arrays of a reduction differ.
        PeerError
            The peer failed, or the request was cancelled.
        """

    def test(self) -> bool:
        """Return whether `wait` would return, or raise, without waiting for another rank."""

    def cancel(self) -> None:
        """Give up a send or a receive. A collective call cannot be given up, which is a SarliteError.

        Returns once nothing will be written into the buffer any more; the buffer may then be dropped. A thread that
        waits for a receive gets PeerError. Under MPI a thread that waits for a send waits on until the message is
        received or drained. A request that is done stays done. A message that was already matched may still be
        delivered before this returns.

        Notes
        -----
        A cancelled receive leaves its message to the next receive with the same source and tag, and under MPI a
        cancelled send may still be received: go on with another tag, or `drain`. MPI cannot take back a send. Until the
        send is received or drained, its array is kept by a reference; if the array is changed, the changed values
        arrive. """
        raise SarliteError("a collective call cannot be cancelled: the other ranks count on this one's part")


@runtime_checkable
class MpiComm(Protocol):
    """A communicator of mpi4py, which `wrap` takes."""

    def Get_rank(self) -> int: ...


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

    `alltoall`, `broadcast`, `allreduce` and `start_allreduce` raise ShapeError on every rank when the ranks' calls do
    not fit together. """

    rank: int
    size: int
    threaded: bool
    max_tag: int

    def start_send(self, array: Array, peer: int, tag: int = 0) -> Request:
        """Start to send a C-contiguous array of any dtype and size, also above 2 GiB, to `peer`.

        The array is borrowed until the request is done. The request may wait for the peer's receive, so start every
        receive before waiting for a send.
        """

    def start_recv(self, array: Array, peer: int, tag: int = 0) -> Request:
        """Start to receive into a C-contiguous array of exactly the size that `peer` sends."""

    def drain(self) -> None:
        """Cancel the requests of sends and receives that are not done, and drop the messages that no receive has met.

        Afterwards the communicator is as new: nobody receives a message from before, whatever its tag. This is for
        channels, whose requests may outlive the work that a program gave up.
        """

    def alltoall(self, arrays: list[Array]) -> list[Array]:
        """Send each rank its rows, and return the rows received from each rank.

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
        """Fill the C-contiguous `array` with the root's array, of the same shape and dtype, and return it.

        Waits without the GIL: other threads may use other communicators meanwhile.
        """
        self.start_broadcast(array, root).wait()
        return array

    def start_broadcast(self, array: Array, root: int) -> Request:
        """Start a `broadcast`. The request is done once `array` may be read, and on the root changed.

        The ranks must have agreed on root, shape and dtype before: not every communicator compares them. Several
        broadcasts may be under way, if all ranks start them in one order. Until they are done, nothing else collective
        may be called on this communicator.
        """

    def start_allreduce(self, array: Array, op: str = "sum") -> Request:
        """Start an `allreduce`; `array` holds the result once the request is done.

        The reduction goes on while some thread waits for it or tests it. Until it is done, nothing else collective may
        be called on this communicator: give it a channel. """

    def allreduce(self, array: Array, op: str = "sum") -> Array:
        """Reduce elementwise over ranks, in place, and return `array`; op is "sum", "max" or "min".

        The result is the same on every rank. It has the array's dtype; a NaN under "max" or "min" is undefined.
        """
        self.start_allreduce(array, op).wait()
        return array

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
            On every rank: the arrays do not fit together, or the root is no rank or not the same on all ranks.
        """
        good = root in range(self.size) and bool(getattr(array, "ndim", False))
        calls = self.allgather(f"to rank {root}" if good else f"of no rows, or to rank {root}")
        if len(set(calls)) > 1 or not calls[0].startswith("to"):
            told = ", ".join(f"gather {call} on rank {rank}" for rank, call in enumerate(calls)
                             if call != calls[0] or not rank)
            raise ShapeError(f"{told}: one rank of {self.size} must be the root, and arrays have rows")
        found = self.alltoall([array if rank == root else array[:0] for rank in range(self.size)])
        return found if self.rank == root else None

    def allgather(self, value: T) -> list[T]:
        """Return the list of every rank's `value`, a small picklable object, in rank order."""

    def bcast(self, value: object, root: int = 0) -> Any:
        """Return the root's `value`, a picklable object, on every rank."""

    def barrier(self) -> None:
        """Return once every rank has called it."""

    def dup(self) -> "Communicator":
        """Return a communicator of the same ranks with a separate space of messages."""

    def channel(self, name: str) -> "Communicator":
        """Return the duplicate kept under `name`, made at the first call: MPI has few, and graphs are many."""
        kept = self.__dict__.setdefault("_channels", {})
        if name not in kept:
            kept[name] = self.dup()
        return kept[name]

    def numbered(self, name: str, holder: object) -> int:
        """Return a number above the numbers of all living holders of `name` on any rank.

        It is `holder`'s as long as it lives.

        Holders whose threads communicate side by side name their channels by it, since on one channel their calls would
        meet.
        """
        held = self.__dict__.setdefault("_holders", {}).setdefault(name, {})
        number = max(self.allgather(max((k + 1 for k, living in held.items() if living() is not None), default=0)))
        held[number] = weakref.ref(holder)
        return number

    def free(self) -> None:
        """Drain a communicator that `dup` made, and its channels, and give them back."""
        for channel in self.__dict__.pop("_channels", {}).values():
            channel.free()
        self.drain()

    def drain_channels(self) -> None:
        """Drain every channel, so that threads waiting for messages there leave MPI."""
        for channel in self.__dict__.get("_channels", {}).values():
            channel.drain()
            if channel is not self:  # a `Solo` is its own channel
                channel.drain_channels()

    def abort(self, reason: object) -> None:
        """Print `reason`, unless it is None, and end every rank at once.

        Ranks that are threads get PeerError instead.
        """


CommLike = Communicator | MpiComm
"""A communicator, or a communicator of mpi4py."""
