"""The communicator over MPI. This is the only module that imports mpi4py.

Importing it initialises MPI, if the program has not done so: mpi4py asks for MPI_THREAD_MULTIPLE and finalizes when
Python ends. MPI_Finalize waits for every rank, so a rank that fails must call `abort`, as `guard` does.

Waiting is MPI's own. MPICH spins while it waits but yields the core, and a loop of Test and short sleeps was measured
against it on 2 cores: with 2 ranks a step took 1.0 to 2.8 times as long, with 4 ranks 1.0 to 31 times (the most for small messages).
"""

from contextlib import contextmanager

from mpi4py import MPI

from sarlite.comm import Channels
from sarlite.comm.buffers import as_bytes, check_received, check_reduction
from sarlite.comm.ending import tell
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


class _Pending:
    """Started MPI requests over the pieces of one buffer."""

    def __init__(self, requests, buffer):
        self._requests, self._buffer = requests, buffer

    def wait(self):
        with _errors_named():
            for request in self._requests:  # Waitall would hide which error it was
                request.Wait()
        self._buffer = None

    def test(self):
        """Whether it is done, without waiting."""
        with _errors_named():
            return MPI.Request.Testall(self._requests)


class _Incoming(_Pending):
    """A receive, which also checks how much arrived."""

    def __init__(self, requests, buffer, peer, tag):
        super().__init__(requests, buffer)
        self._peer, self._tag = peer, tag

    def wait(self):
        if self._buffer is None:
            return
        n_bytes, expected, self._buffer = 0, self._buffer.size, None
        with _errors_named():
            for i, request in enumerate(self._requests):
                request.Wait(status := MPI.Status())
                n_bytes += status.Get_count(MPI.BYTE)
                if n_bytes < min((i + 1) * PIECE_BYTES, expected):
                    self._cancel(self._requests[i + 1 :])  # a short piece is the last
                    break
        check_received(n_bytes, expected, self._peer, self._tag)

    @staticmethod
    def _cancel(requests):
        for request in requests:
            request.Cancel()
            request.Wait()


class MpiCommunicator(Channels):
    """Ranks of an MPI communicator; see `sarlite.comm.Communicator` for what the methods promise.

    Parameters
    ----------
    comm : mpi4py.MPI.Intracomm, optional
        Duplicated, so that sarlite's messages meet no others; MPI.COMM_WORLD by default. Collective.
    """

    def __init__(self, comm=None):
        self._comm = (MPI.COMM_WORLD if comm is None else comm).Dup()
        self._comm.Set_errhandler(MPI.ERRORS_RETURN)
        self.rank, self.size = self._comm.Get_rank(), self._comm.Get_size()
        self.threaded = MPI.Query_thread() == MPI.THREAD_MULTIPLE

    def start_send(self, array, peer, tag=0):
        data = as_bytes(array)
        with _errors_named():
            return _Pending([self._comm.Isend([piece, MPI.BYTE], peer, tag) for piece in _pieces(data, PIECE_BYTES)], data)

    def start_recv(self, array, peer, tag=0):
        data = as_bytes(array, writable=True)
        with _errors_named():
            requests = [self._comm.Irecv([piece, MPI.BYTE], peer, tag) for piece in _pieces(data, PIECE_BYTES)]
        return _Incoming(requests, data, peer, tag)

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

    def abort(self, reason):
        tell(str(reason))
        self._comm.Abort(1)

    def _start_allgather(self, row, rows):
        """Start to gather every rank's `row` into `rows`: for the watchdog, which must not wait inside MPI."""
        with _errors_named():
            return _Pending([self._comm.Iallgather(row, rows)], (row, rows))


def library():
    """Return the name and version of the MPI library, and the thread level that it granted."""
    level = next(name for name in _LEVELS if getattr(MPI, name) == MPI.Query_thread())
    return " ".join(MPI.Get_library_version().splitlines()[0].split()), level


def world():
    """Return a communicator of every rank that the launcher started. Collective."""
    return MpiCommunicator()
