"""Transport: rows fetched from peers, and gradients pushed to the owners of their rows.

Only this module and `broadcast_transport` communicate during an aggregation, and neither knows an operator. Rows and
gradients use separate channels, because different threads send them. Each direction of each aggregation has its own
tag, so that a message of a failed aggregation is never received by a later one. After a failure on several ranks all
graphs of the communicator refuse to work until `recover` (`CommState`), because no rank knows which messages the other
ranks have sent.
"""

import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import Any

from sarlite import kernels
from sarlite.comm import Communicator, Request
from sarlite.errors import PeerError
from sarlite.schedule.ahead import Ahead
from sarlite.schedule.communicator_state import CommState, Waitable
from sarlite.schedule.messages import allocate, gather, pack, templates_of
from sarlite.schedule.pieces import Arrival, Piece
from sarlite.types import Array, RowIndex


class Transport:
    """Means of one graph for transfers between ranks: the communicators for rows and for gradients, and how far ahead rows are
    fetched. Construction is collective.

    Parameters
    ----------
    comm : Communicator
    prefetch : int
        Number of peers whose rows are fetched ahead of the rows in use; 0 starts no thread.
    profile : Profile

    Attributes
    ----------
    prefetch : int
        The given number; 0 if MPI does not support several threads.
    fetch_comm, push_comm : Communicator
        Channels for rows and for gradients.
    state : CommState
        State shared by all graphs of the communicator.
    """

    def __init__(self, comm, prefetch, profile):
        if prefetch and comm.size > 1 and not comm.threaded:
            if comm.rank == 0:
                warnings.warn("MPI has no MPI_THREAD_MULTIPLE, so prefetch falls back to 0", RuntimeWarning, stacklevel=2)
            prefetch = 0
        self.comm, self.fetch_comm, self.push_comm = comm, comm.channel("fetch"), comm.channel("push")
        self.prefetch, self.profile, self.state = prefetch, profile, CommState.of(comm)

    def new_tag(self):
        """Return a new message tag, the same on all ranks, for the fetch of rows or the push of gradients in one aggregation."""
        self.state.check()
        self.state.n_tags += 1
        return self.state.n_tags % self.fetch_comm.max_tag


class Transfer:
    """Context for the messages of one fetch of rows, or of one push of gradients, in an aggregation. They all have the same tag.

    After an error inside the context, the communicator's state records the failure, and no further message is started.
    """

    def __init__(self, transport, comm):
        self.transport, self.comm, self.profile, self.tag = transport, comm, transport.profile, transport.new_tag()
        self._lock, self._failed = threading.Lock(), False

    def __enter__(self):
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        try:
            if error is None:
                self.finish()
        except BaseException as raised:
            error = raised
            raise
        finally:
            if error is not None:
                with self._lock:
                    self._failed = True
                self.transport.state.fail(error)

    def finish(self) -> None:
        """Wait for all messages that are still in transit."""

    def receive(self, array, source):
        """Start to receive `array` from rank `source`; return the request, or None for an empty array."""
        return self._start(self.comm.start_recv, array, source)

    def send(self, array, target):
        """Start to send `array` to rank `target`; return the request, or None for an empty array."""
        return self._start(self.comm.start_send, array, target)

    def _start(self, start, array, peer):
        if not array.nbytes:
            return None
        with self._lock:
            if self._failed:
                raise PeerError("the aggregation has failed")
            return start(array, peer, self.tag)


def wait_all(requests: Sequence[Request | None]) -> None:
    """Wait for all requests; entries that are None are skipped."""
    for request in requests:
        if request is not None:
            request.wait()


class Fetch(Transfer):
    """Fetch of peers' rows by messages between two ranks: one piece (a block of edges) after the other, in the order of computation.

    With prefetch, a thread fetches ahead of the computation (SAR 3.4).

    Parameters
    ----------
    transport : Transport
    pieces : sequence of Piece
        Pieces in the order of computation.
    arrays : tuple of (n_src, ...) ndarray
        This rank's rows, which this rank also sends to peers.
    phase : str
        Phase under which the profile counts the transferred bytes.
    """

    def __init__(self, transport: Transport, pieces: Sequence[Piece], arrays: tuple[Array, ...], phase: str) -> None:
        super().__init__(transport, self.channel_of(transport))
        self.arrays, self.phase, self.templates = arrays, phase, templates_of(arrays)
        self.coming = [piece for piece in pieces if piece.arrivals]
        self.goes_ahead = bool(transport.prefetch and self.coming and len(pieces) > 1)
        self.ahead: Ahead[tuple[Array, ...]] | None = None

    def __enter__(self):
        if self.goes_ahead:
            # the rows of the piece in use, and of `prefetch` peers, whose rows may be divided into several pieces
            room = 1 + self.transport.prefetch * self.coming[0].share.denominator
            self.ahead = Ahead(self.produce, room, "sarlite-prefetch")
            self.threads.append(self.ahead)
        return self

    @staticmethod
    def channel_of(transport: Transport) -> Communicator:
        """Return the communicator of `transport` whose messages carry the fetched rows."""
        return transport.fetch_comm

    @property
    def threads(self) -> list[Waitable]:
        """List of running prefetch threads, so that `recover` can wait for this fetch's thread."""
        return self.transport.state.fetching

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        if self.ahead and error is not None:
            self.ahead.stop(at_once=True)
        super().__exit__(kind, error, trace)

    def finish(self) -> None:
        if self.ahead:
            with self.profile.span("wait", phase=self.phase):  # until the last rows are sent
                self.ahead.finish()
            self.threads.remove(self.ahead)

    def take(self, piece: Piece) -> tuple[Array, ...]:
        """Wait until the rows of the sources of `piece` have arrived and return them, one array (n_columns, ...) for each fetched array."""
        if not piece.arrivals:
            return self.arrays
        peer = {} if len(piece.arrivals) > 1 else {"peer": piece.arrivals[0].source}
        with self.profile.span("wait", phase=self.phase, **peer):
            if self.ahead:
                return self.ahead.take()
            rows, sends = self.bring(piece)
            wait_all(sends)
            return rows

    def release(self, piece: Piece) -> None:
        """Report that the rows of `piece`, which was taken last, are freed, so that more rows may be fetched."""
        if self.ahead and piece.arrivals:
            self.ahead.release()

    def produce(self, may_continue: Callable[..., bool]) -> Iterator[tuple[Array, ...]]:
        """Yield the rows of each piece that has rows of peers, (n_rows, ...) per array, while `may_continue()`, which may wait, is
        True. The prefetch thread runs this generator.
        """
        for piece in self.coming:
            if not may_continue():
                return
            rows, sends = self.bring(piece)
            yield rows
            del rows
            wait_all(sends)

    def bring(self, piece: Piece) -> tuple[tuple[Array, ...], Sequence[Request | None]]:
        """Receive the peers' rows of `piece`, and in the same exchange send the rows of this rank that peers need. Return the pair
        of a tuple of received arrays, (n_rows, ...), and a list of requests of the sends, which may still be in transit.
        """
        buffer, rows = allocate(piece.n_rows, self.templates)
        self.profile.hold(buffer, piece.share)
        receives, end = [], 0
        for arrival in piece.arrivals:
            start, end = end, end + arrival.n_rows
            message = buffer if len(piece.arrivals) == 1 else None
            receives.append(self.start_receive(arrival, message, tuple(array[start:end] for array in rows)))
        sends = [request for arrival in piece.arrivals for request in self.start_send(arrival)]
        for finish in receives:
            finish()
        return rows, sends

    def start_receive(self, arrival: Arrival, message: Array | None, views: tuple[Array, ...]) -> Callable[[], None]:
        """Start to receive the rows of `arrival` (an exchange with two peers) into the arrays `views`; return a function that waits
        for the rows. `message` is the buffer of bytes that holds the views one after the other, so that one message can fill them
        all; None if there is no such buffer.

        Parameters
        ----------
        arrival : Arrival
        message : (n_bytes,) uint8, or None
            Buffer whose sections are `views`; None if `views` are parts of larger sections.
        views : tuple of (n_rows, ...) array

        Notes
        -----
        Rows that are consecutive at their owner come in one message for each array. Other rows come packed, all arrays
        in one message.
        """
        sections: tuple[Array, ...] = ()
        if arrival.contiguous or len(views) == 1:
            parts = views
        elif message is None:
            message, sections = allocate(arrival.n_rows, self.templates)
            parts = (message,)
        else:
            parts = (message,)
        n_bytes = sum(part.nbytes for part in parts)
        span = self.profile.span("fetch", "fetch", peer=arrival.source, bytes=n_bytes, phase=self.phase)
        requests = [self.receive(part, arrival.source) for part in parts]

        def finish():
            wait_all(requests)
            span.end()
            for view, section in zip(views, sections):
                view[...] = section
            self.profile.count(f"{self.phase}_fetch", 0, n_bytes)

        return finish

    def start_send(self, arrival: Arrival) -> list[Request | None]:
        """Start to send the rows `arrival.send_rows` of each array to rank `arrival.target` (an Arrival is an exchange with two
        peers); return the list of requests to wait for.

        Consecutive rows are sent without a copy, in one message for each array. Other rows are packed into one message.
        """
        rows = arrival.send_rows
        parts = [a[rows] for a in self.arrays] if isinstance(rows, slice) else [pack(self.arrays, rows)]
        requests = [self.send(part, arrival.target) for part in parts]
        self.profile.count(f"{self.phase}_fetch", sum(part.nbytes for part in parts), to=(arrival.target,))
        return requests


class NoFetch:
    """Replacement of `Fetch` for a backward pass that needs no rows of peers: `take` returns None."""

    goes_ahead = False

    def __enter__(self):
        return self

    def __exit__(self, *error):
        pass

    def take(self, piece: Piece) -> None:
        return None

    def release(self, piece: Piece) -> None:
        pass


class Push(Transfer):
    """Context that sends the gradients of peers' rows to the rows' owners, and receives the gradients of this rank's rows from
    peers, which are added to `d_arrays`.

    Parameters
    ----------
    transport : Transport
    d_arrays : list of (n_src, ...) ndarray or None
        Gradients of this rank's rows, added to in place; None for a gradient that is not wanted.
    depth : int
        Number of exchanges that may travel during the computation; with 0 each exchange ends before the next block.
    phase : str
        Phase under which the profile counts the transferred bytes.
    """

    def __init__(self, transport, d_arrays, depth, phase):
        super().__init__(transport, transport.push_comm)
        self.d_arrays, self.depth, self.phase = d_arrays, depth, phase
        self.templates, self.pending = templates_of(d_arrays), []

    def finish(self):
        self._finish_all_but(0)

    def gradients(self, piece: Piece) -> tuple[Array | None, Sequence[Array | None]]:
        """Return (buffer of bytes, list of arrays of zeros in the buffer, one per input) for the gradients of the peers' rows of
        `piece`. A block adds its gradients to the arrays; the buffer is then sent to the rows' owners. For a piece of this rank's
        own rows return (None, `d_arrays`).
        """
        if not piece.arrivals:
            return None, self.d_arrays
        return allocate(piece.n_rows, self.templates, zero=True)

    def start(self, piece: Piece, buffer: Any, views: Sequence[Array | None]) -> None:
        """Start to send the gradients of the rows of `piece` to the rows' owners. The gradients are in the arrays `views`, which lie in
        the message `buffer`.
        """
        if len(piece.arrivals) == 1:
            self._start_exchange(piece.arrivals[0], buffer)
            return
        start = 0
        for arrival in piece.arrivals:
            message, sections = allocate(arrival.n_rows, self.templates)
            gather(views, slice(start, start + arrival.n_rows), sections)
            self._start_exchange(arrival, message)
            start += arrival.n_rows

    def _start_exchange(self, arrival: Arrival, message: Array) -> None:
        """Start to send `message`, the gradients of the rows that `arrival` (an exchange with two peers) had brought, to the rows'
        owner. Also start to receive the gradients of the rows that were sent to rank `arrival.target`. Wait for earlier exchanges,
        so that at most `depth` are in progress.
        """
        self._finish_all_but(max(0, self.depth - 1))
        buffer, rows = allocate(arrival.n_send, self.templates)
        span = self.profile.span("push", "push", peer=arrival.source, bytes=message.nbytes)
        requests = [self.receive(buffer, arrival.target), self.send(message, arrival.source)]
        self.profile.count(f"{self.phase}_push", message.nbytes, buffer.nbytes, to=(arrival.source,))

        def finish():
            wait_all(requests)
            span.end()

        self.pending.append((arrival, rows, _in_thread(finish) if self.transport.prefetch else finish))
        self._finish_all_but(self.depth)

    def _finish_all_but(self, n):
        while len(self.pending) > n:
            self._finish(*self.pending.pop(0))

    def _finish(self, arrival, rows, finish):
        with self.profile.span("wait", peer=arrival.target, phase="push"):
            finish()
        for d, received in zip(self.d_arrays, rows):
            if d is not None:
                add_rows(received, arrival.send_rows, d)


def add_rows(received: Array, rows: RowIndex, d: Array) -> None:
    """Add the gradients `received` to `d[rows]` in place; `rows` is a slice or an array of row numbers.

    All pushed gradients are added here.
    """
    if isinstance(rows, slice):
        kernels.add(d[rows], received, d[rows])
    else:
        kernels.scatter_add_rows(received, rows, d)


def _in_thread(finish: Callable[[], None]) -> Callable[[], None]:
    """Call `finish` in a new thread; return a function that joins the thread and raises the exception of `finish`, if any. MPI
    then makes progress while kernels compute.
    """
    errors: list[BaseException] = []

    def wait():
        try:
            kernels.set_threads(1)  # for this thread only, beside the thread that computes
            finish()
        except BaseException as error:
            errors.append(error)

    def join():
        thread.join()
        if errors:
            raise errors[0]

    thread = threading.Thread(target=wait, name="sarlite-push", daemon=True)
    thread.start()
    return join
