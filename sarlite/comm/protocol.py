"""The base classes of communication between ranks: `Communicator` and `Request`.

Implementations inherit from `Communicator`, which defines the methods that need only other methods.
"""

import weakref
from typing import Protocol, runtime_checkable

from sarlite.errors import SarliteError, ShapeError
from sarlite.types import Array, T

MAX_TAG = 2**31 - 1
"""Largest tag of the communicators `Solo` and `ThreadCommunicator`."""


class Request(Protocol):
    """A started transfer or collective call. It keeps its buffer alive until it is done.

    Any thread may call the methods.

    Examples
    --------
    Two ranks exchange one array each:

    >>> import numpy as np
    >>> from sarlite.comm import threads
    >>> def exchange(comm):
    ...     received = np.empty(2)
    ...     requests = [comm.start_recv(received, 1 - comm.rank), comm.start_send(np.full(2, 10.0 + comm.rank), 1 - comm.rank)]
    ...     for request in requests:
    ...         request.wait()
    ...     return received.tolist(), requests[0].test()
    >>> threads.run(2, exchange)
    [([11.0, 11.0], True), ([10.0, 10.0], True)]
    """

    def wait(self) -> None:
        """Wait until the transfer is done: then the buffer of a receive or a reduction may be read, and the buffer of a send may be
        changed.

        Raises
        ------
        ShapeError
            A message has another size than the buffer of the receive, or the arrays of a reduction differ in shape or
            dtype between ranks.
        PeerError
            The peer failed, or the request was cancelled.
        """

    def test(self) -> bool:
        """Return True if `wait` would return or raise at once."""

    def cancel(self) -> None:
        """Cancel a send or a receive. If it is already done, nothing changes.

        After the call nothing is written into the buffer. A message that was already matched may be delivered during
        the call. A thread that waits for the cancelled receive gets a PeerError. Under MPI a thread that waits for the
        cancelled send keeps waiting until the message is received or drained.

        Raises
        ------
        SarliteError
            The request belongs to a collective call, which cannot be cancelled.

        Notes
        -----
        The message of a cancelled receive goes to the next receive with the same source and tag. MPI cannot take back a
        send, so under MPI a cancelled send may still be received. Until then its array is kept alive, and later changes
        of the array may be sent. So after a cancellation use another tag, or call `drain`.
        """
        raise SarliteError("a collective call cannot be cancelled: the other ranks wait for this rank's part")


@runtime_checkable
class MpiComm(Protocol):
    """A communicator of mpi4py, which `wrap` accepts."""

    def Get_rank(self) -> int: ...


class Communicator(Protocol):
    """A group of ranks that exchange arrays. All methods except `start_send`, `start_recv` and `abort` are collective.

    Attributes
    ----------
    rank : int
        Number of this rank, 0 .. size - 1.
    size : int
        Number of ranks.
    threaded : bool
        True if several threads may communicate at the same time (MPI_THREAD_MULTIPLE).
    max_tag : int
        Largest tag of a message; the smallest is 0. It is at least 32766 under MPI, and 2^29 - 2 for MPICH.

    Notes
    -----
    Messages with the same source, destination and tag arrive in the order of their start. Threads of one rank that
    communicate at the same time need different tags, and separate communicators for collective calls (`dup`,
    `channel`).

    `alltoall`, `broadcast`, `allreduce` and `start_allreduce` raise a ShapeError on every rank if the ranks' arguments
    do not fit together.

    Examples
    --------
    >>> import numpy as np
    >>> from sarlite.comm import threads
    >>> threads.run(2, lambda comm: comm.allreduce(np.array([comm.rank + 1.0])).tolist())
    [[3.0], [3.0]]
    """

    rank: int
    size: int
    threaded: bool
    max_tag: int

    def start_send(self, array: Array, peer: int, tag: int = 0) -> Request:
        """Start to send an array to rank `peer`, which receives it with the same `tag`; return the request to wait for.

        Parameters
        ----------
        array : C-contiguous array
            Any dtype and size, also above 2 GiB. It is borrowed until the request is done.
        peer : int
        tag : int
            Number in 0 .. `max_tag`, the same as for the receive.

        Notes
        -----
        The send may be done only after the peer has started the receive. So start all receives before waiting for a
        send.
        """

    def start_recv(self, array: Array, peer: int, tag: int = 0) -> Request:
        """Start to receive into `array` the message that rank `peer` sends with the same `tag`, which must have as many bytes; return
        the request to wait for.

        `array` is C-contiguous.
        """

    def drain(self) -> None:
        """Cancel the open sends and receives of all ranks, and drop all messages that were not received.

        Afterwards no receive gets a message from before the call, whatever its tag. Use it when requests were left
        open because the program gave up the work that they belonged to.
        """

    def alltoall(self, arrays: list[Array]) -> list[Array]:
        """Send the array arrays[p] to each rank p, and return the list of arrays received from each rank, in rank order.

        Parameters
        ----------
        arrays : list of (n, ...) arrays
            An array for each rank, C-contiguous, with any number of rows. The dtype and the shape of a row are the same
            for all arrays on all ranks.

        Returns
        -------
        list of (m, ...) arrays
            New arrays with the rows that each rank sent to this rank, in rank order.
        """

    def broadcast(self, array: Array, root: int) -> Array:
        """Copy the root's array into `array` on every rank, and return `array`.

        `array` is C-contiguous, with the same shape and dtype on all ranks. The call releases the GIL while it waits,
        so other threads may use other communicators.
        """
        self.start_broadcast(array, root).wait()
        return array

    def start_broadcast(self, array: Array, root: int) -> Request:
        """Start to copy the root's array into `array` on every rank; return the request. Once it is done, `array` may be read, and the root
        may change its array.

        The root, shape and dtype must be the same on all ranks, which not every communicator checks. Several broadcasts
        may be in progress, if all ranks start them in the same order. Until they are done, no other collective method
        of this communicator may be called.
        """

    def start_allreduce(self, array: Array, op: str = "sum") -> Request:
        """Start an `allreduce` of `array` by `op`, "sum", "max" or "min"; return its request. Once it is done, `array` holds the result.

        The reduction progresses while a thread waits for the request or tests it. Until it is done, no other collective
        method of this communicator may be called, so use a channel for it.
        """

    def allreduce(self, array: Array, op: str = "sum") -> Array:
        """Reduce `array` elementwise over all ranks by `op`, "sum", "max" or "min", in place, and return it.

        Parameters
        ----------
        array : C-contiguous array
            The same shape and dtype on every rank.
        op : {"sum", "max", "min"}
            With "max" and "min" the result for NaN is undefined.

        Returns
        -------
        array
            The same values on every rank, in the array's dtype.
        """
        self.start_allreduce(array, op).wait()
        return array

    def gather(self, array: Array, root: int = 0) -> list[Array] | None:
        """Return the arrays of all ranks on the root, and None on the other ranks.

        Parameters
        ----------
        array : (n, ...) array
            C-contiguous, with any number of rows. The dtype and the shape of a row are the same on every rank.
        root : int
            Rank that receives the arrays; the same on every rank.

        Returns
        -------
        list of (m, ...) arrays, or None
            On the root new arrays, in rank order.

        Raises
        ------
        ShapeError
            On every rank: the arrays do not fit together, or `root` is not a rank or differs between ranks.
        """
        good = root in range(self.size) and bool(getattr(array, "ndim", False))
        calls = self.allgather(f"to rank {root}" if good else f"of no rows, or to rank {root}")
        if len(set(calls)) > 1 or not calls[0].startswith("to"):
            listed = ", ".join(f"gather {call} on rank {rank}" for rank, call in enumerate(calls)
                               if call != calls[0] or not rank)
            raise ShapeError(f"{listed}: one rank of {self.size} must be the root, and arrays have rows")
        received = self.alltoall([array if rank == root else array[:0] for rank in range(self.size)])
        return received if self.rank == root else None

    def allgather(self, value: T) -> list[T]:
        """Return the list of every rank's `value`, a small picklable object, in rank order."""

    def bcast(self, value: T | None, root: int = 0) -> T:
        """Return the root's `value`, a picklable object, on every rank; the values of other ranks are ignored."""

    def barrier(self) -> None:
        """Return once every rank has called `barrier`."""

    def dup(self) -> "Communicator":
        """Return a communicator of the same ranks with a separate message space."""

    def channel(self, name: str) -> "Communicator":
        """Return the duplicate of this communicator with this name; the first call creates it by `dup`.

        Graphs share channels by name, because MPI supports only a limited number of communicators.
        """
        channels = self.__dict__.setdefault("_channels", {})
        if name not in channels:
            channels[name] = self.dup()
        return channels[name]

    def numbered(self, name: str, holder: object) -> int:
        """Return a number for the object `holder`, the same on all ranks. Objects that exist at the same time and pass the same `name` get
        different numbers. Collective.

        Objects whose threads communicate at the same time put the number into the names of their channels, so that each
        object has a channel of its own.
        """
        holders = self.__dict__.setdefault("_holders", {}).setdefault(name, {})
        number = max(self.allgather(max((k + 1 for k, ref in holders.items() if ref() is not None), default=0)))
        holders[number] = weakref.ref(holder)
        return number

    def free(self) -> None:
        """Drain and free a communicator that `dup` returned, and its channels."""
        for channel in self.__dict__.pop("_channels", {}).values():
            channel.free()
        self.drain()

    def drain_channels(self) -> None:
        """Call `drain` of every channel, so that threads which wait for messages there return."""
        for channel in self.__dict__.get("_channels", {}).values():
            channel.drain()
            if channel is not self:  # a `Solo` is its own channel
                channel.drain_channels()

    def abort(self, reason: object) -> None:
        """Print `reason`, unless it is None, and end all ranks at once; ranks that are threads get a PeerError."""


CommLike = Communicator | MpiComm
"""A `Communicator`, or a communicator of mpi4py."""
