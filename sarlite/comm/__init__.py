"""Communication between ranks: the protocol that the rest of sarlite is written against.

`mpi` implements it over mpi4py, `threads` for N ranks as threads of one process, `Solo` for one rank.
"""

from typing import Protocol


class Request(Protocol):
    """A started transfer. It keeps its buffer alive until it is done."""

    def wait(self):
        """Return once the buffer may be read (receive) or changed (send).

        Raises
        ------
        ShapeError
            The message has not the size of the receive's buffer.
        PeerError
            The peer failed.
        """


class Communicator(Protocol):
    """A group of ranks. Every method but `start_send`, `start_recv` and `abort` is collective.

    Attributes
    ----------
    rank, size : int
    threaded : bool
        Whether several threads may communicate at once (MPI_THREAD_MULTIPLE).

    Notes
    -----
    Messages with the same source, destination and tag arrive in the order they were started. Threads of one rank that
    communicate at once need different tags, and for collectives communicators of their own (`dup`).
    """

    rank: int
    size: int
    threaded: bool

    def start_send(self, array, peer, tag=0) -> Request:
        """Start to send a C-contiguous array (any dtype, any size, 2 GiB and more too) to `peer`.

        The array is borrowed until the request is done. The request may wait for the peer's receive, so start every
        receive before waiting for a send.
        """

    def start_recv(self, array, peer, tag=0) -> Request:
        """Start to receive into a C-contiguous array of just the size that `peer` sends."""

    def allreduce(self, array, op="sum"):
        """Reduce elementwise over ranks, in place, and return `array`; op is "sum", "max" or "min".

        The result is the same on every rank. It has the array's dtype; a NaN under "max" or "min" is undefined.
        """

    def allgather(self, value):
        """Return the list of every rank's `value`, a small picklable object, in rank order."""

    def bcast(self, value, root=0):
        """Return the root's `value`, a picklable object, on every rank."""

    def barrier(self):
        """Return once every rank has called it."""

    def dup(self) -> "Communicator":
        """Return a communicator of the same ranks whose messages never meet this one's."""

    def channel(self, name) -> "Communicator":
        """Return the duplicate kept under `name`, made at the first call: MPI has few, and graphs are made often."""

    def abort(self, reason):
        """Print `reason` and end every rank at once; threads as ranks get PeerError instead."""


class Channels:
    """The `channel` method of communicators that have `dup`."""

    def channel(self, name):
        kept = self.__dict__.setdefault("_channels", {})
        if name not in kept:
            kept[name] = self.dup()
        return kept[name]


def wrap(comm):
    """Return `comm` as a Communicator: itself, or an mpi4py communicator wrapped. Collective for the latter.

    Notes
    -----
    Wrapping duplicates the MPI communicator, of which MPI has few: wrap once and use the result for many graphs.
    """
    if hasattr(comm, "Get_rank"):
        from sarlite.comm.mpi import MpiCommunicator

        return MpiCommunicator(comm)
    return comm


class Solo(Channels):
    """The communicator of one rank alone."""

    rank, size, threaded = 0, 1, True

    def start_send(self, array, peer, tag=0):
        raise ValueError("one rank has no peer")

    start_recv = start_send

    def allreduce(self, array, op="sum"):
        return array

    def allgather(self, value):
        return [value]

    def bcast(self, value, root=0):
        return value

    def barrier(self):
        pass

    def dup(self):
        return self

    def abort(self, reason):
        raise SystemExit(reason)
