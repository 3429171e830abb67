"""Sends and receives over MPI that can be cancelled. Only this module and `mpi` import mpi4py.

A thread that waits is inside MPI_Wait, which yields the core and releases the GIL. (MPICH's MPI_Waitany does not yield:
on full cores a message took 3 to 5 times as long.) Another thread wakes the waiting thread by MPI_Cancel. That thread
needs a valid handle even if the wait completes meanwhile. So receives are persistent requests, whose handles stay valid
until this module frees them. MPI cannot cancel a send.
"""

import atexit
import sys
import threading
import time
from collections import deque
from contextlib import contextmanager, suppress

import numpy as np
from mpi4py import MPI

from sarlite.comm.ending import tell
from sarlite.comm.wire_arrays import check_received
from sarlite.errors import PeerError, ShapeError

PIECE_BYTES = 1 << 30
"""Longer arrays are sent in pieces of this many bytes, because MPI before version 4 counts in 32 bits."""
LEAVE_SECONDS = 1.0
"""Time in seconds that the end of Python waits for other threads to return from MPI."""
_INSIDE: list[int] = []  # idents of the threads that are in an MPI call


@contextmanager
def errors_named():
    """Return a context for MPI calls that turns an exception of MPI into a ShapeError, if a message is too long, or a PeerError.

    While the context is active, `_INSIDE` lists the thread.
    """
    _INSIDE.append(thread := threading.get_ident())
    try:
        yield
    except MPI.Exception as error:
        kind = ShapeError if error.Get_error_class() == MPI.ERR_TRUNCATE else PeerError
        raise kind(f"MPI: {error.Get_error_string()}") from error
    finally:
        _INSIDE.remove(thread)


def pieces(array, piece_bytes=PIECE_BYTES):
    """Divide a flat array into a list of views of `piece_bytes` bytes each, which are sent as separate messages.

    The last part is always shorter than `piece_bytes`, and may be empty, so that a receiver recognizes the end.
    """
    length = max(1, piece_bytes // max(1, array.itemsize))
    return [array[start : start + length] for start in range(0, array.size + 1, length)]


class Traffic:
    """Record of the transfers of one communicator: the open ones, and the numbers of messages sent to and received from each peer. It
    cancels open transfers and drops messages that nobody receives.

    From the numbers `drain` knows how many messages were sent and not received, even if they are still in transit.
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
        """Keep the buffer of a cancelled send alive until MPI, which may still read it, has completed its `requests`."""
        with self._lock:
            self._given_up.append((requests, buffer))
            self._given_up = [send for send in self._given_up if not MPI.Request.Testall(send[0])]

    def cancel(self, waited_for=False):
        """Cancel the open transfers; with `waited_for`, only those that a thread waits for."""
        with self._lock:
            transfers = [transfer for transfer in self._open if not waited_for or transfer.is_waited_for()]
        for transfer in transfers:
            transfer.cancel()

    def close(self):
        """Remove this object from the list of all `Traffic`s, because its communicator will be freed."""
        _TRAFFIC.discard(self)

    def drain(self, comm):
        """Receive and drop all messages that were sent to this rank and not received. Collective.

        Every rank must have called `cancel` before.
        """
        sent = np.empty_like(self._sent)
        comm.Alltoall(self._sent, sent)
        for peer, n in enumerate(sent - self._received):
            for _ in range(n):  # further messages of the peer belong to the time after this call
                message = comm.Mprobe(peer, MPI.ANY_TAG, status := MPI.Status())
                message.Recv([np.empty(status.Get_count(MPI.BYTE), np.uint8), MPI.BYTE])
        self._received[:] = sent
        for requests, _ in self._given_up:
            MPI.Request.Waitall(requests)
        self._given_up.clear()


_TRAFFIC: set = set()
"""The `Traffic` of every communicator. It keeps buffers of transfers alive, because MPI may still use them."""


class MpiTransfer:
    """A started send or receive of one array, as a queue of MPI requests for its pieces.

    One thread at a time completes the first request of the queue.
    """

    leaving = False
    """True once Python ends. Then no thread may start to wait, because MPI would be finalized during the wait."""
    sends = False
    """True for a send, False for a receive."""

    def __init__(self, requests, buffer, peer, tag, traffic):
        self._requests, self._buffer = deque(requests), buffer
        self._peer, self._tag, self._error, self._traffic = peer, tag, None, traffic
        self._turn = threading.Lock()  # held while one thread completes pieces
        self._mark = threading.Lock()  # held while the next two change
        self._waiting = self._cancelled = False
        traffic.start(self, peer, len(requests) if self.sends else 0)

    def is_waited_for(self):
        return self._waiting

    def wait(self):
        with self._turn:
            while self._requests:
                self._step(self._wait_first)
            self._end()

    def test(self):
        if not self._turn.acquire(blocking=False):
            return False  # another thread waits
        try:
            while self._requests and self._step(lambda status: self._requests[0].Test(status)):
                pass
            return not self._requests
        finally:
            self._turn.release()

    def cancel(self):
        with self._mark:
            self._cancelled = True
            if self._waiting and not self._wake():
                return
        with self._turn:
            if self._requests:
                self._fail_cancelled()

    def _wake(self):
        """Make the thread that waits in MPI for this transfer return, and return True; return False if that is impossible."""
        return False

    def _step(self, complete):
        """Call `complete(status)`, MPI's test or wait, on the first piece of the transfer. Return False if that piece is still open; if
        it is done or has failed, remove it and return True.
        """
        try:
            with errors_named():
                done = complete(status := MPI.Status())
        except (PeerError, ShapeError) as error:
            self._error = error
            self._pop()
            self._give_up()
            return True
        if done:
            self._pop(status)
        return done

    def _wait_first(self, status):
        """Wait in MPI until the first piece of the transfer is done, write its state into the MPI `status`, and return True. Return False,
        without waiting, if the transfer was cancelled before.
        """
        with self._mark:
            if self._cancelled or self.leaving:
                self._fail_cancelled()
                return False
            self._waiting = True
        try:
            self._requests[0].Wait(status)
        finally:
            with self._mark:
                self._waiting = False
        return True

    def _end(self):
        """Raise the error of the transfer, if it failed. Called when no piece is left."""
        if self._error is not None:
            raise self._error

    def _fail_cancelled(self):
        self._error = PeerError(f"the transfer with rank {self._peer}, tag {self._tag}, was cancelled")
        self._give_up()

    def _pop(self, status=None):
        """Remove the first piece of the transfer from the queue. `status` is the MPI status of a completed piece, None for a piece that
        failed.
        """
        self._requests.popleft()
        if not self._requests:
            self._free()

    def _give_up(self):
        """Drop the requests of the remaining pieces, because the transfer has failed."""
        self._requests.clear()
        self._free()

    def _free(self):
        """Release the transfer's buffer; called when no piece is left."""
        self._buffer = None
        self._traffic.end(self)


def _free(request):
    """Free a persistent request, unless MPI has freed it, as Open MPI does with a request that fails."""
    if request != MPI.REQUEST_NULL:
        request.Free()


class Outgoing(MpiTransfer):
    """A started send. A thread that waits for a cancelled send returns once the message is received or drained."""

    sends = True

    def _give_up(self):
        self._traffic.give_up(list(self._requests), self._buffer)
        super()._give_up()


class Incoming(MpiTransfer):
    """A started receive. It raises a ShapeError if fewer or more bytes arrive than the buffer holds."""

    def __init__(self, requests, buffer, peer, tag, traffic, piece_bytes):
        self._n_bytes, self._left, self._piece_bytes = 0, buffer.size, piece_bytes
        super().__init__(requests, buffer, peer, tag, traffic)

    def _wake(self):
        with suppress(MPI.Exception):  # the request may be done
            # Only the first request. The thread that wakes cancels the others; Open MPI does not allow a second Cancel.
            self._requests[0].Cancel()
        return True

    def _pop(self, status=None):
        with self._mark:
            _free(self._requests[0])
            super()._pop()
        if status is not None and status.Is_cancelled():
            self._fail_cancelled()
            return
        self._traffic.receive(self._peer)
        if status is not None:
            n_bytes = status.Get_count(MPI.BYTE)
            self._n_bytes, self._left = self._n_bytes + n_bytes, self._left - n_bytes
            if n_bytes < min(self._left + n_bytes, self._piece_bytes):
                self._give_up()  # a short piece is the last one of the message

    def _end(self):
        super()._end()
        check_received(self._n_bytes, self._n_bytes + self._left, self._peer, self._tag)

    def _give_up(self):
        for request in self._requests:
            status = MPI.Status()
            with suppress(MPI.Exception):  # a matched message may be too long, or the piece may be done
                request.Cancel()
            with suppress(MPI.Exception):
                request.Wait(status)
            _free(request)
            if not status.Is_cancelled():
                self._traffic.receive(self._peer)
        super()._give_up()


@atexit.register
def _leave():
    """Wake the threads that wait in MPI as Python exits, because MPI must not be finalized while a thread waits. If a thread does not
    return within `LEAVE_SECONDS`, abort the job.
    """
    MpiTransfer.leaving = True
    end = time.monotonic() + LEAVE_SECONDS
    while (waiting := _elsewhere_inside()) and time.monotonic() < end:
        for traffic in list(_TRAFFIC):
            traffic.cancel(waited_for=True)
        time.sleep(0.01)
    if waiting and not MPI.Is_finalized():
        tell(f"error: Python ends while a thread of rank {MPI.COMM_WORLD.rank} waits in MPI: {', '.join(waiting)}")
        with suppress(OSError, ValueError):
            sys.stdout.flush()
        MPI.COMM_WORLD.Abort(1)


def _elsewhere_inside():
    """Return the names of the threads other than this one that are in an MPI call."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    return [names[ident] for ident in list(_INSIDE) if ident in names and ident != threading.get_ident()]
