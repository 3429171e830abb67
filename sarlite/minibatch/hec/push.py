"""Asynchronous pushes of rows by a thread to the peers that have these rows as halo rows (DistGNN-MB paper, algorithm 2)."""

import math
import time
import warnings
import weakref
import zlib
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from sarlite import kernels
from sarlite.comm import Communicator, Request
from sarlite.errors import SarliteError, ShapeError
from sarlite.profile import Profile, uncounted
from sarlite.schedule.ahead import Ahead
from sarlite.types import Array, DType

PHASE = "push_rows"
N_WORDS = 5
"""Number of int64 words of a message's header: step, layer, checksum of dtype and row shape, number of rows, 1 if rows have steps."""
_HEAD_BYTES = 8 * N_WORDS
PIECE_BYTES = 1 << 19
"""Size of a piece. Other messages to a peer wait at most for one piece, 4 ms at 1 Gbit/s, not for a whole push."""
PAUSE = 4e-4
"""Seconds between polls. MPI's own wait spins, and would take half the time of a computing thread on the same core."""

Rows = tuple[Array, int | Array, Array]
"""Rows of one peer: (slots (m,) int32, step or steps that computed the rows, int or (m,) int64, rows (m, ...))."""


class Pusher:
    """Exchanges rows with all peers in a background thread, one exchange after the other. Construction is collective.

        pusher.submit(step, layer, messages)    # returns at once in the computing thread
        arrived = pusher.take(step - delay, layer)

    Every rank submits the same jobs in the same order.

    Parameters
    ----------
    comm : Communicator
        A separate channel, such as `graph.comm.channel("embeddings")`.
    profile : Profile
        Counts bytes under "push_rows". Spans of the thread are on the track "push", spans of waiting on "compute".

    Notes
    -----
    A job exchanges packed bytes with `exchange`: a header, and then the rest in pieces, so that other messages to a
    peer can go in between. The received rows depend only on the submitted rows and not on timing, because `take` waits.
    An error in the thread ends it, and every later `submit`, `take` and `drain` of this rank raises the error. Other
    ranks learn of it in the same way as of any failed rank. Jobs that differ between ranks are refused on every rank.
    Without `comm.threaded` there is no thread, and `submit` waits for the exchange.

    Memory: submitted rows that are not yet sent, and received rows that are not yet taken. A row takes its own bytes
    and 4, or 12 with the step that computed it. The thread ends with `close`, or with the object.
    """

    def __init__(self, comm: Communicator, profile: Profile) -> None:
        self._link, self._closed = _Link(uncounted(comm), profile), False
        self._thread: Ahead | None = None
        self._results: dict[tuple[int, int], list[Rows] | None] = {}  # in the order of submission; None before
        if comm.size == 1:
            return
        if not comm.threaded:
            if comm.rank == 0:
                warnings.warn("MPI has no MPI_THREAD_MULTIPLE, so rows are pushed without overlap", RuntimeWarning,
                              stacklevel=2)
            return
        self._thread = kernels.outside_buffers(Ahead, self._link.work, 0, "sarlite-push-rows")
        weakref.finalize(self, _stop, weakref.ref(self._thread)).atexit = False  # it lives as long as it runs

    def submit(self, step: int, layer: int, messages: Sequence[tuple[Array, Array | None, Array]]) -> int:
        """Start to send messages[r] to each rank r, as the exchange (step, layer); return the bytes sent. A message is (positions,
        steps, rows): first the rows' positions in the list of halo rows that rank r has from this rank; then the training step that
        computed each row, or None for `step`; then the rows.

        The call is collective, but waits for no rank.

        Parameters
        ----------
        step, layer : int
            Training step and layer of the rows, which name the exchange. An exchange of this name must not be in progress.
        messages : list by rank of (slots (m,) int array, steps (m,) int array or None, rows (m, ...) array)
            Rows for each rank, none for this rank, with the steps that computed the rows; None stands for `step`. All
            rows, also arrays without rows, have the same dtype and row shape on every rank. The arrays are copied.

        Returns
        -------
        int
            Number of bytes that go to other ranks.

        Raises
        ------
        ShapeError
            The arrays of a message do not fit together.
        SarliteError
            The pusher is closed, or the job was submitted already.
        Exception
            An error that ended the thread.
        """
        if self._closed:
            raise SarliteError("the push thread is closed")
        return kernels.outside_buffers(self._submit, step, layer, messages)

    def _submit(self, step, layer, messages):
        link, key = self._link, (step, layer)
        job = _packed(step, layer, messages, link.comm)
        link.check()
        if key in self._results:
            raise SarliteError(f"push of step {step}, layer {layer}: submitted already")
        self._results[key] = None
        if self._thread is None:
            link.waited_for = True
            self._results[key] = link.exchanged(job)
        else:
            link.jobs.append(job)
            self._thread.release()
        return job.n_bytes

    def take(self, step: int, layer: int) -> list[Rows]:
        """Wait for the exchange that `submit(step, layer, ...)` started; return a list with (positions, steps, rows) for each
        sending rank: first the rows' positions in this rank's list of halo rows from the sender; then the training steps that
        computed the rows; then the rows.

        Returns
        -------
        list by rank of (slots (m,) int32, steps, rows (m, ...))
            Received rows, in new arrays or views of new arrays. `steps` are the steps that computed the rows, (m,)
            int64; or the int `step` if the sender submitted None.

        Raises
        ------
        SarliteError
            The job was not submitted, or was taken already.
        Exception
            An error that ended the thread.
        """
        self._link.check()
        if (step, layer) not in self._results:
            raise SarliteError(f"push of step {step}, layer {layer}: not submitted, or taken already")
        with self._link.profile.span("wait", phase=PHASE):
            self._link.waited_for = True
            try:
                while self._results[step, layer] is None:
                    self._link.check()
                    assert self._thread is not None
                    key, result = self._thread.take()
                    self._results[key] = result
            finally:  # also after an interrupt: otherwise the thread would poll without pauses from then on
                self._link.waited_for = False
        return self._results.pop((step, layer))  # type: ignore[return-value]

    def drain(self) -> list[tuple[int, int, list[Rows]]]:
        """Wait for all exchanges; return a list of (step, layer, received), one for each exchange that `take` has not returned yet,
        in order of submission. `received` is a list with the rows from each sending rank.

        Returns
        -------
        list of (step, layer, rows)
            `rows` are the result of `take`.

        Raises
        ------
        Exception
            The error that ended the thread.
        """
        self._link.check()
        return [(*key, self.take(*key)) for key in list(self._results)]

    def close(self) -> None:
        """Finish all submitted exchanges and end the thread. Repeated calls are allowed.

        An error of the thread is not raised here but by `drain`.
        """
        self._closed = True
        if self._thread is not None:
            self._thread.stop()
            self._thread.wait()


def _stop(thread):
    if (running := thread()) is not None:
        running.stop()


class _Job(NamedTuple):
    """One exchange of rows between all ranks, queued for the push thread: a byte array for each rank, and `n_bytes`, the bytes for
    other ranks.
    """

    step: int
    layer: int
    dtype: DType
    shape: tuple
    messages: list
    n_bytes: int


class _Link:
    """State that the computing thread and the push thread share: queued exchanges, a flag if a caller waits, a failure. It has no
    reference to the Pusher, which may be freed before the thread ends.
    """

    def __init__(self, comm, profile):
        self.comm, self.profile, self.jobs = comm, profile, deque()
        self.waited_for, self.failure = False, None

    def check(self):
        """Raise the error that ended the thread, if any."""
        if self.failure is not None:
            raise self.failure

    def work(self, may_continue: Callable[[], bool]) -> Iterator[tuple[tuple[int, int], list[Rows]]]:
        """Carry out the queued jobs (exchanges) while may_continue() is True; yield ((step, layer), received rows by rank) of each
        job. The push thread runs this method.
        """
        while may_continue():
            job = self.jobs.popleft()
            yield (job.step, job.layer), self.exchanged(job)
            del job

    def exchanged(self, job: _Job) -> list[Rows]:
        """Exchange the embedding rows of `job` with the other ranks; return a list with (positions, steps, rows) for each sending
        rank: first the rows' positions in this rank's list of halo rows; then the training step that computed each row; then the
        rows.
        """
        try:
            return self._exchanged(job)
        except BaseException as error:
            self.failure = error
            raise

    def _exchanged(self, job):
        comm, outgoing = self.comm, job.messages
        with self.profile.span("push rows", "push", step=job.step, layer=job.layer, bytes=job.n_bytes):
            heads = [np.empty(_HEAD_BYTES, np.uint8) for _ in outgoing]
            heads[comm.rank] = outgoing[comm.rank][:_HEAD_BYTES]
            exchange(comm, [message[:_HEAD_BYTES] for message in outgoing], heads, self.is_waited_for)
            words = [head.view(np.int64).tolist() for head in heads]
            _check_same(words)
            incoming = [np.empty(_sections(*head_words[3:], job.dtype, job.shape)[-1][1], np.uint8) for head_words in words]
            incoming[comm.rank] = outgoing[comm.rank]
            rest = [[message[_HEAD_BYTES:] for message in messages] for messages in (outgoing, incoming)]
            exchange(comm, *rest, self.is_waited_for)
        self.profile.count(PHASE, job.n_bytes, sum(map(len, incoming)) - len(incoming[comm.rank]))
        return [_unpacked(message, head, job) for message, head in zip(incoming, words)]

    def is_waited_for(self):
        return self.waited_for


def exchange(comm: Communicator, outgoing: Sequence[Array], incoming: Sequence[Array], hurried: Callable[[], bool],
             piece_bytes: int = PIECE_BYTES, sleep: Callable[[float], object] = time.sleep) -> None:
    """Send outgoing[q] to each rank q and receive incoming[q], `piece_bytes` at a time; between polls call `sleep`, with 0 if hurried().

    Parameters
    ----------
    comm : Communicator
        Nothing else is sent on it meanwhile.
    outgoing, incoming : list by rank of (n_bytes,) uint8 arrays
        Bytes to send to each rank; arrays that are filled with the bytes from each rank, of the right length. The
        entries of this rank are not used. The arrays must not be used elsewhere until the return.
    hurried : callable
        Function () -> True if a thread waits for the end; requests are then tested without pauses.
    piece_bytes : int
        Number of bytes of a message.
    sleep : callable
        Function of a number of seconds, called between tests of the requests.

    Raises
    ------
    PeerError
        A rank failed.

    Notes
    -----
    This function may run on any thread. One piece for each peer and direction is in transit at a time. It tests all
    requests in turn and waits for no single piece, because two ranks could then wait for each other's next piece.
    """
    lanes = []
    for step in range(1, comm.size):  # in a ring, so that not all send to one rank at once
        source, target = (comm.rank - step) % comm.size, (comm.rank + step) % comm.size
        lanes.append(_lane(comm.start_recv, source, incoming[source], piece_bytes))
        lanes.append(_lane(comm.start_send, target, outgoing[target], piece_bytes))
    while lanes:
        moved = [next(lane, None) for lane in lanes]
        lanes = [lane for lane, progress in zip(lanes, moved) if progress is not None]
        if lanes and not any(moved):
            sleep(0 if hurried() else PAUSE)


def _lane(start: Callable[[Array, int], Request], peer: int, array: Array, piece_bytes: int) -> Iterator[bool]:
    """Transfer `array` to or from rank `peer`, `piece_bytes` at a time, where start(piece, peer) starts a send or a receive. Each
    `next` polls the request, and yields True if a piece ended since the last poll.
    """
    for at in range(0, len(array), piece_bytes):
        request, moved = start(array[at : at + piece_bytes], peer), at > 0
        while not request.test():
            yield moved
            moved = False
        request.wait()


def _packed(step: int, layer: int, messages: Sequence[tuple[Array, Array | None, Array]], comm: Communicator) -> _Job:
    """Return the `_Job` (an exchange between all ranks) that sends messages[r] to each rank r, packed into bytes, under the header
    (`step`, `layer`). A message is (positions, steps, rows): first the rows' positions in the list of halo rows that rank r has
    from this rank; then the training step that computed each row, or None for `step`; then the rows.
    """
    if len(messages) != comm.size:
        raise ShapeError(f"{len(messages)} messages are not one for each of {comm.size} ranks")
    dtype, shape = messages[0][2].dtype, messages[0][2].shape[1:]
    kind, packed = zlib.crc32(f"{dtype} {shape}".encode()), []
    for peer, (slots, steps_of, rows) in enumerate(messages):
        fits = slots.ndim == 1 and (steps_of is None or steps_of.shape == slots.shape)
        if not fits or (rows.dtype, rows.shape) != (dtype, (len(slots), *shape)):
            steps = getattr(steps_of, "shape", None)
            raise ShapeError(f"message to rank {peer}: slots {slots.shape}, steps {steps} and rows {rows.dtype} "
                             f"{rows.shape} do not fit together, or not rows of {dtype} {shape}")
        has_steps = steps_of is not None
        sections = _sections(len(slots), has_steps, dtype, shape)
        packed.append(buffer := np.empty(sections[-1][1], np.uint8))
        head = step, layer, kind, len(slots), has_steps
        for view, values in zip(_views(buffer, sections), (head, steps_of if has_steps else (), rows, slots)):
            view[...] = values
    return _Job(step, layer, dtype, shape, packed, sum(map(len, packed)) - len(packed[comm.rank]))


def _check_same(headers: Sequence[Sequence[int]]) -> None:
    """Raise the same ShapeError on every rank unless all ranks' message headers have the same step, layer, and dtype and shape of a row."""
    step, layer, kind = headers[0][:3]
    for rank, head in enumerate(headers):
        if head[:3] != headers[0][:3]:
            rows = "" if head[2] == kind else ", rows of another dtype or shape"
            raise ShapeError(f"ranks push different jobs: rank 0 step {step}, layer {layer}; "
                             f"rank {rank} step {head[0]}, layer {head[1]}{rows}")


def _unpacked(message: Array, header: Sequence[int], job: _Job) -> Rows:
    """Return (positions, steps, rows), the content of one rank's `message` in the exchange `job`, as views of its bytes: first the
    rows' positions in this rank's list of halo rows; then the training steps that computed them; then the rows. `header` is the
    message's header.
    """
    step, _, _, n, has_steps = header
    _, steps, rows, slots = _views(message, _sections(n, has_steps, job.dtype, job.shape))
    return slots, steps if has_steps else step, rows


def _sections(n_rows: int, has_steps: int, dtype: DType, row_shape: tuple[int, ...]) -> list[tuple[int, int, Any, Any]]:
    """Return a list of (first byte, end, dtype, shape) for the sections of a message with `n_rows` rows: header; training steps
    that computed the rows, if `has_steps`; rows; positions in the halo list. Each section starts at a multiple of 8 bytes.
    """
    sections, end, n = list[tuple[int, int, Any, Any]](), 0, n_rows
    for kind, full in ((np.int64, (N_WORDS,)), (np.int64, (n * has_steps,)), (dtype, (n, *row_shape)), (np.int32, (n,))):
        start = -(-end // 8) * 8
        end = start + math.prod(full) * np.dtype(kind).itemsize
        sections.append((start, end, kind, full))
    return sections


def _views(buffer, sections):
    return [buffer[start:end].view(dtype).reshape(shape) for start, end, dtype, shape in sections]
