"""The communicator over MPI.

Importing this module initializes MPI, if the program has not done so: mpi4py requests MPI_THREAD_MULTIPLE, and
finalizes MPI when Python ends. MPI_Finalize waits for every rank, so a rank that fails must call `abort`, as `guard`
does.

Requests wait by MPI_Wait. MPICH spins while it waits, but yields the core. The alternative, a loop of MPI_Test and
short sleeps, was measured on 2 cores: with 2 ranks a step took 1.0 to 2.8 times as long, with 4 ranks 1.0 to 31 times,
the most for small messages.
"""

import os
import zlib
from contextlib import suppress
from typing import cast

import numpy as np
from mpi4py import MPI

from sarlite.comm.ending import tell
from sarlite.comm.mpi_transfers import PIECE_BYTES, Incoming, Outgoing, Traffic, errors_named, pieces
from sarlite.comm.protocol import Communicator, MpiComm, Request
from sarlite.comm.requests import Staged
from sarlite.comm.wire_arrays import alltoall_call, as_bytes, broadcast_call, check_calls, described, reduction_call
from sarlite.types import Array, T

_LEVELS = ("THREAD_SINGLE", "THREAD_FUNNELED", "THREAD_SERIALIZED", "THREAD_MULTIPLE")
_OPS = {"sum": MPI.SUM, "max": MPI.MAX, "min": MPI.MIN}


class _Collective(Request):
    """Request of one or more non-blocking MPI collectives. It keeps their buffers alive."""

    def __init__(self, requests, *buffers):
        self._requests, self._buffers = requests, buffers

    def wait(self):
        with errors_named():
            for request in self._requests:
                request.Wait()

    def test(self):
        with errors_named():
            return all([request.Test() for request in self._requests])


class MpiCommunicator(Communicator):
    """Communicator for the ranks of an MPI communicator; `sarlite.comm.Communicator` documents the methods.

    Construction is collective.

    Parameters
    ----------
    comm : mpi4py.MPI.Intracomm
        Duplicated, so that sarlite's messages are separate from those of other libraries.
    piece_bytes : int
        Longer arrays are sent in pieces of this many bytes. The same on every rank.
    """

    def __init__(self, comm: MPI.Intracomm, piece_bytes: int = PIECE_BYTES) -> None:
        self._comm, self._piece_bytes = comm.Dup(), piece_bytes
        self._comm.Set_errhandler(MPI.ERRORS_RETURN)
        self.rank, self.size = self._comm.Get_rank(), self._comm.Get_size()
        self.threaded = MPI.Query_thread() == MPI.THREAD_MULTIPLE
        self._alltoall_tag = cast(int, MPI.COMM_WORLD.Get_attr(MPI.TAG_UB))
        self.max_tag = self._alltoall_tag - 1
        self._traffic = Traffic(self.size)

    def start_send(self, array: Array, peer: int, tag: int = 0) -> Outgoing:
        data = as_bytes(array)
        with errors_named():
            requests = [self._comm.Isend([piece, MPI.BYTE], peer, tag) for piece in self._pieces(data)]
        return Outgoing(requests, data, peer, tag, self._traffic)

    def start_recv(self, array: Array, peer: int, tag: int = 0) -> Incoming:
        data = as_bytes(array, writable=True)
        with errors_named():
            requests = [self._comm.Recv_init([piece, MPI.BYTE], peer, tag) for piece in self._pieces(data)]
            MPI.Prequest.Startall(requests)
        return Incoming(requests, data, peer, tag, self._traffic, self._piece_bytes)

    def drain(self) -> None:
        self._traffic.cancel()
        with errors_named():
            self._traffic.drain(self._comm)

    def alltoall(self, arrays: list[Array]) -> list[Array]:
        call_text, error = described(alltoall_call, arrays, self.size)
        self._check_call(call_text, error)
        sent, lengths = np.array([len(array) for array in arrays], np.int64), np.empty(self.size, np.int64)
        with errors_named():
            self._comm.Alltoall(sent, lengths)
        received = [np.empty((n, *arrays[0].shape[1:]), arrays[0].dtype) for n in lengths]
        requests: list[Request] = []
        for step in range(1, self.size):  # in a ring, so that the ranks do not all send to one rank at once
            source, target = (self.rank - step) % self.size, (self.rank + step) % self.size
            requests.append(self.start_recv(received[source], source, self._alltoall_tag))
            requests.append(self.start_send(arrays[target], target, self._alltoall_tag))
        received[self.rank][...] = arrays[self.rank]
        for request in requests:
            request.wait()
        return received

    def broadcast(self, array: Array, root: int) -> Array:
        call_text, error = described(broadcast_call, array, root, self.rank, self.size)
        self._check_call(call_text, error)
        with errors_named():
            for piece in self._pieces(as_bytes(array)):
                self._comm.Bcast([piece, MPI.BYTE], root)
        return array

    def start_broadcast(self, array: Array, root: int) -> _Collective:
        broadcast_call(array, root, self.rank, self.size)
        data = as_bytes(array)
        with errors_named():
            return _Collective([self._comm.Ibcast([piece, MPI.BYTE], root) for piece in self._pieces(data)], data)

    def start_allreduce(self, array: Array, op: str = "sum") -> Staged:
        return Staged(self._reduction(array, op, *described(reduction_call, array, op)))

    def _reduction(self, array, op, call_text, error):
        """Yield the MPI requests of an allreduce by `op`, each after the one before is done. The first compares `call_text`, a description
        of the call, between ranks, and raises if ranks differ or one has an `error`; the others reduce parts of `array`.
        """
        key = _key(call_text, error)
        yield self._start_reduction(key, "min")
        self._check_keys(key, call_text, error)
        for piece in self._pieces(array.reshape(-1)):
            yield self._start_reduction(piece, op)

    def _start_reduction(self, piece, op):
        with errors_named():
            return _Collective([self._comm.Iallreduce(MPI.IN_PLACE, piece, _OPS[op])], piece)

    def _check_call(self, call_text, error):
        """Raise a ShapeError on every rank unless all ranks pass the same `call_text`, a description of their collective call, and
        None as `error`. Collective.
        """
        key = _key(call_text, error)
        with errors_named():
            self._comm.Allreduce(MPI.IN_PLACE, key, MPI.MIN)
        self._check_keys(key, call_text, error)

    def _check_keys(self, key, call_text, error):
        """Raise a ShapeError if ranks make different collective calls, which each rank's `call_text` describes, or if a rank has an
        `error`. `key` is the minimum over all ranks of (h, -h), where h is a rank's hash of both: the two add up to 0 only if h is
        equal on all ranks.
        """
        if key[0] != -key[1]:
            check_calls(self.allgather(call_text), error)

    def allreduce(self, array: Array, op: str = "sum") -> Array:
        self._check_call(*described(reduction_call, array, op))
        with errors_named():
            for piece in self._pieces(array.reshape(-1)):
                self._comm.Allreduce(MPI.IN_PLACE, piece, _OPS[op])
        return array

    def allgather(self, value: T) -> list[T]:
        with errors_named():
            return self._comm.allgather(value)

    def bcast(self, value: T | None, root: int = 0) -> T:
        with errors_named():
            return self._comm.bcast(value, root)

    def barrier(self) -> None:
        with errors_named():
            self._comm.Barrier()

    def dup(self) -> "MpiCommunicator":
        return MpiCommunicator(self._comm, self._piece_bytes)

    def free(self) -> None:
        super().free()
        self._traffic.close()
        with errors_named():
            self._comm.Free()

    def abort(self, reason: object) -> None:
        if reason is not None:
            tell(str(reason))
        self._comm.Abort(1)

    def _pieces(self, array):
        return pieces(array, self._piece_bytes)

    def _start_allgather(self, row, rows):
        """Start to gather the array `row` of every rank into the rows of `rows`; return the request. The watchdog uses it, because it
        must not block in MPI.
        """
        with errors_named():
            return _Collective([self._comm.Iallgather(row, rows)], row, rows)


def _key(call_text, error):
    """Return two int64 numbers, (2,), for a check that all ranks make the same collective call. Their minima over all ranks add up to 0 if
    and only if all ranks have the same `call_text`, a description of the call, and no rank has an `error`.
    """
    number = zlib.crc32(call_text.encode())
    return np.array([-(2**32) if error else number, -number], np.int64)


def _keyval():
    """Return the MPI attribute key under which an mpi4py communicator stores its MpiCommunicator."""
    if not hasattr(_keyval, "cached"):
        _keyval.cached = MPI.Comm.Create_keyval(delete_fn=lambda comm, keyval, wrapper: wrapper.free())
    return _keyval.cached


def wrapped(comm: MpiComm) -> MpiCommunicator:
    """Return the MpiCommunicator of an mpi4py communicator. The first call creates it and is collective.

    It is freed together with the mpi4py communicator.
    """
    comm = cast(MPI.Intracomm, comm)
    wrapper = comm.Get_attr(_keyval())
    if wrapper is None:
        wrapper = MpiCommunicator(comm)
        comm.Set_attr(_keyval(), wrapper)
    return cast(MpiCommunicator, wrapper)


def _forget_shared_memory(comm):
    """Unlink the file of MPICH's shared memory, which all ranks have mapped, so that a killed job leaves no file. Collective."""
    comm.barrier()
    with suppress(OSError), open("/proc/self/maps") as maps:
        mapped = {line.split()[5] for line in maps
                  if " /dev/shm/mpich_shm_" in line and not line.endswith("(deleted)\n")}
        for path in mapped:
            with suppress(FileNotFoundError):  # another rank has removed it
                os.unlink(path)


def library() -> tuple[str, str]:
    """Return (name and version of the MPI library, name of the thread level that the library provides)."""
    level = next(name for name in _LEVELS if getattr(MPI, name) == MPI.Query_thread())
    return " ".join(MPI.Get_library_version().strip("\0").splitlines()[0].split()), level


def world() -> MpiCommunicator:
    """Return the communicator of all MPI ranks that the launcher started. Collective."""
    comm = wrapped(MPI.COMM_WORLD)
    _forget_shared_memory(comm)
    return comm


def finalize() -> None:
    """Finalize MPI, if it is not finalized yet. Collective: it waits for every rank."""
    if not MPI.Is_finalized():
        MPI.Finalize()
