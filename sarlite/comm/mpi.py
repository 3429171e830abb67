"""The communicator over MPI. This is the only module that imports mpi4py.

Importing it initialises MPI, if the program has not done so: mpi4py asks for MPI_THREAD_MULTIPLE and finalizes when
Python ends. MPI_Finalize waits for every rank, so a rank that fails must call `abort`, as `guard` does.

Waiting is MPI's own. MPICH spins while it waits but yields the core, and a loop of Test and short sleeps was measured
against it on 2 cores: with 2 ranks a step took 1.0 to 2.8 times as long, with 4 ranks 1.0 to 31 times (the most for small messages).
"""

import atexit
import threading
import zlib
from collections import deque
from contextlib import contextmanager, suppress

import numpy as np
from mpi4py import MPI

from sarlite.comm import Channels
from sarlite.comm.buffers import (
    alltoall_call,
    as_bytes,
    broadcast_call,
    check_calls,
    check_received,
    check_reduction,
    described,
    reduction_call,
)
from sarlite.comm.ending import tell
from sarlite.comm.requests import Staged
from sarlite.errors import PeerError, ShapeError

PIECE_BYTES = 1 << 30
"""A longer array travels in pieces of this size, since MPI before version 4 counts in 32 bits. The same on every rank."""

_LEVELS = ("THREAD_SINGLE", "THREAD_FUNNELED", "THREAD_SERIALIZED", "THREAD_MULTIPLE")
_OPS = {"sum": MPI.SUM, "max": MPI.MAX, "min": MPI.MIN}


@contextmanager
def _errors_named():
    """Turn MPI's exceptions into sarlite's."""
    try:
        yield
    except MPI.Exception as error:
        kind = ShapeError if error.Get_error_class() == MPI.ERR_TRUNCATE else PeerError
        raise kind(f"MPI: {error.Get_error_string()}") from error


def _pieces(array, length):
    """The parts of a flat array that travel one by one. One shorter than `length`, maybe empty, is always the last."""
    return [array[start : start + length] for start in range(0, array.size + 1, length)]


class _Waker:
    """What wakes a thread that waits in MPI: a generalized request beside the one that it waits for."""

    idle = []

    def __init__(self):
        self.request, self.used = MPI.Grequest.Start(lambda status: None, lambda: None, lambda completed: None), False

    @classmethod
    def take(cls):
        try:
            return cls.idle.pop()
        except IndexError:
            return cls()

    def wake(self):
        if not self.used:
            self.used = True
            self.request.Complete()

    def put_back(self):
        if self.used:
            self.request.Wait()  # at once; frees it
        else:
            self.idle.append(self)


class _Traffic:
    """What one communicator has sent and received: messages by peer, and the transfers that are not done.

    Messages that were sent and never received are thereby known, also those still on their way.
    """

    def __init__(self, size):
        self._lock, self._open, self._given_up = threading.Lock(), set(), []
        self._sent, self._received = np.zeros((2, size), np.int64)
        _TRAFFIC.add(self)

    def start(self, transfer, peer, n_sent):
        with self._lock:
            self._open.add(transfer)
            self._sent[peer] += n_sent

    def receive(self, peer):
        with self._lock:
            self._received[peer] += 1

    def end(self, transfer):
        with self._lock:
            self._open.discard(transfer)

    def give_up(self, requests, buffer):
        """Keep the buffer of a cancelled send, which MPI may still read, until it is done or drained."""
        with self._lock:
            self._given_up.append((requests, buffer))
            self._given_up = [send for send in self._given_up if not MPI.Request.Testall(send[0])]

    def cancel(self, waited_for=False):
        """Cancel the transfers that are not done, or those alone that a thread waits for."""
        with self._lock:
            found = [transfer for transfer in self._open if not waited_for or transfer.is_waited_for()]
        for transfer in found:
            transfer.cancel()

    def drain(self, comm):
        """Receive, and drop, all that has been sent and not received. Every rank has cancelled."""
        sent = np.empty_like(self._sent)
        comm.Alltoall(self._sent, sent)
        for peer, n in enumerate(sent - self._received):
            for _ in range(n):  # what comes later from this peer was sent after it began to drain
                message = comm.Mprobe(peer, MPI.ANY_TAG, status := MPI.Status())
                message.Recv([np.empty(status.Get_count(MPI.BYTE), np.uint8), MPI.BYTE])
        self._received[:] = sent
        for requests, _ in self._given_up:
            MPI.Request.Waitall(requests)
        self._given_up.clear()


_TRAFFIC = set()
"""Of every communicator, since MPI uses the buffers of transfers whatever Python forgets."""


class _Transfer:
    """The started pieces of one array, of which one thread at a time completes the first."""

    leaving = False
    """Whether Python ends: who waits then would be inside MPI while it is finalized."""

    def __init__(self, requests, buffer, peer, tag, traffic):
        self._requests, self._buffer = deque(requests), buffer
        self._peer, self._tag, self._error = peer, tag, None
        self._turn = threading.Lock()  # held while MPI is called for this transfer
        self._mark = threading.Lock()  # held while one of the next two changes
        self._waker, self._cancelled = None, False
        self._traffic = traffic

    def is_waited_for(self):
        return self._waker is not None

    def wait(self):
        with self._turn:
            while self._requests:
                if self._cancelled or self.leaving:
                    raise self._cancellation()
                self._step(self._wait_first)
            self._end()

    def test(self):
        if not self._turn.acquire(blocking=False):
            return False  # another thread waits
        try:
            while self._requests and not self._cancelled:
                if not self._step(lambda status: self._requests[0].Test(status)):
                    return False
            return True
        finally:
            self._turn.release()

    def cancel(self):
        with self._mark:
            self._cancelled = True
            if self._waker is not None:
                self._waker.wake()
        with self._turn:
            if self._requests:
                self._error = self._cancellation()
                self._give_up()

    def _cancellation(self):
        return PeerError(f"the transfer with rank {self._peer}, tag {self._tag}, was cancelled")

    def _step(self, complete):
        """Go on to the second piece if `complete(status)` says that the first is done, and return whether it is."""
        try:
            with _errors_named():
                done = complete(status := MPI.Status())
            if done:
                self._requests.popleft()
                self._count(status)
                if not self._requests:
                    self._free()
        except (PeerError, ShapeError) as error:
            done, self._error = True, error
            self._requests.popleft()
            self._count(None)
            self._give_up()
        return done

    def _wait_first(self, status):
        """Wait until the first piece is done or another thread cancels; return whether it is done."""
        with self._mark:
            if self._cancelled:
                return False
            self._waker = waker = _Waker.take()
        try:
            return MPI.Request.Waitany([self._requests[0], waker.request], status) == 0
        finally:
            with self._mark:
                self._waker = None
            waker.put_back()

    def _count(self, status):
        """A piece has been done, or has failed where there is no status."""

    def _give_up(self):
        """Cancel the pieces that are left."""
        self._requests.clear()
        self._free()

    def _free(self):
        """No piece is left."""
        self._buffer = None
        self._traffic.end(self)

    def _end(self):
        """Raise what went wrong."""
        if self._error is not None:
            raise self._error


class _Outgoing(_Transfer):
    """A send."""

    def __init__(self, requests, buffer, peer, tag, traffic):
        super().__init__(requests, buffer, peer, tag, traffic)
        traffic.start(self, peer, len(requests))

    def _give_up(self):
        self._traffic.give_up(list(self._requests), self._buffer)
        super()._give_up()


class _Incoming(_Transfer):
    """A receive, which also checks how much arrived."""

    def __init__(self, requests, buffer, peer, tag, traffic):
        super().__init__(requests, buffer, peer, tag, traffic)
        self._n_bytes, self._left = 0, buffer.size
        traffic.start(self, peer, 0)

    def _count(self, status):
        self._traffic.receive(self._peer)
        if status is not None:
            n_bytes = status.Get_count(MPI.BYTE)
            self._n_bytes, self._left = self._n_bytes + n_bytes, self._left - n_bytes
            if n_bytes < min(self._left + n_bytes, PIECE_BYTES):
                self._give_up()  # a short piece is the last

    def _give_up(self):
        for request in self._requests:
            request.Cancel()
            status = MPI.Status()
            with suppress(MPI.Exception):  # a message that matched and is too long
                request.Wait(status)
            if not status.Is_cancelled():
                self._traffic.receive(self._peer)
        super()._give_up()

    def _end(self):
        super()._end()
        check_received(self._n_bytes, self._n_bytes + self._left, self._peer, self._tag)


class _Collective:
    """A started collective of MPI, which keeps its buffers alive."""

    def __init__(self, request, *buffers):
        self._request, self._buffers = request, buffers

    def wait(self):
        with _errors_named():
            self._request.Wait()

    def test(self):
        with _errors_named():
            return self._request.Test()


class MpiCommunicator(Channels):
    """Ranks of an MPI communicator; see `sarlite.comm.Communicator` for what the methods promise.

    Parameters
    ----------
    comm : mpi4py.MPI.Intracomm
        Duplicated, so that sarlite's messages meet no others. Collective.
    """

    def __init__(self, comm):
        self._comm = comm.Dup()
        self._comm.Set_errhandler(MPI.ERRORS_RETURN)
        self.rank, self.size = self._comm.Get_rank(), self._comm.Get_size()
        self.threaded = MPI.Query_thread() == MPI.THREAD_MULTIPLE
        self._own_tag = MPI.COMM_WORLD.Get_attr(MPI.TAG_UB)
        self.max_tag = self._own_tag - 1
        self._traffic = _Traffic(self.size)

    def start_send(self, array, peer, tag=0):
        data = as_bytes(array)
        with _errors_named():
            requests = [self._comm.Isend([piece, MPI.BYTE], peer, tag) for piece in _pieces(data, PIECE_BYTES)]
        return _Outgoing(requests, data, peer, tag, self._traffic)

    def start_recv(self, array, peer, tag=0):
        data = as_bytes(array, writable=True)
        with _errors_named():
            requests = [self._comm.Irecv([piece, MPI.BYTE], peer, tag) for piece in _pieces(data, PIECE_BYTES)]
        return _Incoming(requests, data, peer, tag, self._traffic)

    def drain(self):
        self._traffic.cancel()
        with _errors_named():
            self._traffic.drain(self._comm)

    def alltoall(self, arrays):
        call, error = described(alltoall_call, arrays, self.size)
        self._check_call(call, error)
        sent, lengths = np.array([len(array) for array in arrays], np.int64), np.empty(self.size, np.int64)
        with _errors_named():
            self._comm.Alltoall(sent, lengths)
        found = [np.empty((n, *arrays[0].shape[1:]), arrays[0].dtype) for n in lengths]
        requests = []
        for step in range(1, self.size):  # in a ring, so that not all send to one rank at once
            source, target = (self.rank - step) % self.size, (self.rank + step) % self.size
            requests.append(self.start_recv(found[source], source, self._own_tag))
            requests.append(self.start_send(arrays[target], target, self._own_tag))
        found[self.rank][...] = arrays[self.rank]
        for request in requests:
            request.wait()
        return found

    def broadcast(self, array, root):
        call, error = described(broadcast_call, array, root, self.rank, self.size)
        self._check_call(call, error)
        with _errors_named():
            for piece in _pieces(as_bytes(array), PIECE_BYTES):
                self._comm.Bcast([piece, MPI.BYTE], root)
        return array

    def start_allreduce(self, array, op="sum"):
        return Staged(self._reduction(array, op, *described(reduction_call, array, op)))

    def _reduction(self, array, op, call, error):
        key = _key(call, error)
        yield self._start_reduction(key, "min")
        self._check_keys(key, call, error)
        for piece in _pieces(array.reshape(-1), max(1, PIECE_BYTES // array.itemsize)):
            yield self._start_reduction(piece, op)

    def _start_reduction(self, piece, op):
        with _errors_named():
            return _Collective(self._comm.Iallreduce(MPI.IN_PLACE, piece, _OPS[op]), piece)

    def _check_call(self, call, error):
        """Raise ShapeError on every rank unless all make the same call with arrays that fit."""
        key = _key(call, error)
        with _errors_named():
            self._comm.Allreduce(MPI.IN_PLACE, key, MPI.MIN)
        self._check_keys(key, call, error)

    def _check_keys(self, key, call, error):
        if key[0] != -key[1]:
            check_calls(self.allgather(call), error)

    def allreduce(self, array, op="sum"):
        check_reduction(array, op)
        with _errors_named():
            for piece in _pieces(array.reshape(-1), max(1, PIECE_BYTES // array.itemsize)):
                self._comm.Allreduce(MPI.IN_PLACE, piece, _OPS[op])
        return array

    def allgather(self, value):
        with _errors_named():
            return self._comm.allgather(value)

    def bcast(self, value, root=0):
        with _errors_named():
            return self._comm.bcast(value, root)

    def barrier(self):
        with _errors_named():
            self._comm.Barrier()

    def dup(self):
        return MpiCommunicator(self._comm)

    def free(self):
        """Free this communicator and its channels. Collective."""
        for channel in self.__dict__.pop("_channels", {}).values():
            channel.free()
        self.drain()
        _TRAFFIC.discard(self._traffic)
        with _errors_named():
            self._comm.Free()

    def abort(self, reason):
        tell(str(reason))
        self._comm.Abort(1)

    def _start_allgather(self, row, rows):
        """Start to gather every rank's `row` into `rows`: for the watchdog, which must not wait inside MPI."""
        with _errors_named():
            return _Collective(self._comm.Iallgather(row, rows), row, rows)


def _key(call, error):
    """Two numbers whose minima over the ranks are each other's negatives when all ranks make the same call, without error."""
    number = zlib.crc32(call.encode())
    return np.array([-(2**32) if error else number, -number], np.int64)


def _keyval():
    """The key under which an mpi4py communicator keeps its MpiCommunicator."""
    if not hasattr(_keyval, "kept"):
        _keyval.kept = MPI.Comm.Create_keyval(delete_fn=lambda comm, keyval, kept: kept.free())
    return _keyval.kept


def wrapped(comm):
    """Return the MpiCommunicator of an mpi4py communicator, made at the first call and freed with it. Collective."""
    found = comm.Get_attr(_keyval())
    if found is None:
        found = MpiCommunicator(comm)
        comm.Set_attr(_keyval(), found)
    return found


def library():
    """Return the name and version of the MPI library, and the thread level that it granted."""
    level = next(name for name in _LEVELS if getattr(MPI, name) == MPI.Query_thread())
    return " ".join(MPI.Get_library_version().splitlines()[0].split()), level


def world():
    """Return the communicator of every rank that the launcher started. Collective."""
    return wrapped(MPI.COMM_WORLD)


@atexit.register
def _leave():
    """Bring the threads that wait in MPI out of it before it is finalized."""
    _Transfer.leaving = True
    for traffic in _TRAFFIC:
        traffic.cancel(waited_for=True)
