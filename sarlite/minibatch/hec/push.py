"""Rows pushed to the peers that have them as halo, by a thread, while others are computed (DistGNN-MB alg. 2, AEP)."""

import math
import time
import warnings
import weakref
import zlib
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from sarlite import kernels
from sarlite.comm import Communicator
from sarlite.errors import SarliteError, ShapeError
from sarlite.profile import Profile, uncounted
from sarlite.schedule.ahead import Ahead
from sarlite.types import Array

PHASE = "push_rows"
N_WORDS = 5
"""Words of a message's head: step, layer, what tells dtype and row shape, number of rows, whether they have steps."""
_HEAD_BYTES = 8 * N_WORDS
PIECE_BYTES = 1 << 19
"""What else is sent to a peer waits for a piece at most, not for a message: 4 ms at 1 Gbit/s."""
PAUSE = 4e-4
"""Seconds between looks. MPI's own wait spins: on full cores it would take half the time of what computes there."""

Rows = tuple[Array, Any, Array]
"""(slots (m,) int32, made: int or (m,) int64, rows (m, ...))"""


class Pusher:
    """Exchanges rows with all peers, job by job, in a thread. Collective: every rank submits the same jobs in the same
    order.

        pusher.submit(step, layer, messages)    # by the computing thread, which goes on at once
        arrived = pusher.take(step - delay, layer)

    Parameters
    ----------
    comm : Communicator
        A channel of its own, such as `graph.comm.channel("embeddings")`.
    profile : Profile
        Counts bytes under "push_rows"; spans go to the track "push", those of waiting to "compute".

    Notes
    -----
    A job is an exchange of packed bytes, a head and then, in pieces, the rest (`exchange`): it leaves cores to what
    computes, and other messages to the same peers go between. What arrives depends on what was submitted alone, not on
    when: `take` waits.
    What fails in the thread ends it, and is raised by every later `submit`, `take` and `drain` of this rank; the other
    ranks then learn of it as of any rank that has failed. Jobs that do not fit together are refused on every rank.
    Without `comm.threaded` there is no thread, and `submit` waits for the exchange. Memory: what was submitted and not
    yet sent, and what has arrived and was not yet taken; a row takes its own bytes and 4, or 12 with the step in which
    it was made.
    The thread ends with `close`, and with the object.
    """

    def __init__(self, comm: Communicator, profile: Profile) -> None:
        self._link, self._closed = _Link(uncounted(comm), profile), False
        self._thread: Ahead | None = None
        self._results: dict[tuple[int, int], list[Rows] | None] = {}  # in the order of submission; None before
        if comm.size == 1:
            return
        if not comm.threaded:
            if comm.rank == 0:
                warnings.warn("MPI without MPI_THREAD_MULTIPLE: rows are pushed without overlap", RuntimeWarning,
                              stacklevel=2)
            return
        self._thread = kernels.outside_buffers(Ahead, self._link.work, 0, "sarlite-push-rows")
        weakref.finalize(self, _stop, weakref.ref(self._thread)).atexit = False  # it lives as long as it runs

    def submit(self, step: int, layer: int, messages: Sequence[tuple[Array, Array | None, Array]]) -> int:
        """Start to exchange rows. Collective, but waits for no rank.

        Parameters
        ----------
        step, layer : int
            The job's name; one of each at a time.
        messages : list by rank of (slots (m,) int array, made (m,) int array or None, rows (m, ...) array)
            What goes there, nothing for this rank, and the steps in which the rows were made: None where all were in
            `step`. Rows are of one dtype and row shape, here and on every rank, also where there are none. Copied.

        Returns
        -------
        int
            Bytes that go to other ranks.

        Raises
        ------
        ShapeError
            Arrays that do not fit together.
        SarliteError
            After `close`; the job is there already.
        Exception
            What failed in the thread.
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
        """Return what arrived for a job, once it is here.

        Returns
        -------
        list by rank of (slots (m,) int32, made, rows (m, ...))
            New arrays, or views of such; `made` is `step` where the sender gave None, else (m,) int64.

        Raises
        ------
        SarliteError
            The job was not submitted, or was taken already.
        Exception
            What failed in the thread.
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
                    key, found = self._thread.take()
                    self._results[key] = found
            finally:  # an interrupt too: else the thread would look without a pause from then on
                self._link.waited_for = False
        return self._results.pop((step, layer))  # type: ignore[return-value]

    def drain(self) -> list[tuple[int, int, list[Rows]]]:
        """Wait for all jobs, and return those not taken yet as (step, layer, what `take` returns), in the order of
        submission.

        Raises
        ------
        Exception
            What failed in the thread.
        """
        self._link.check()
        return [(*key, self.take(*key)) for key in list(self._results)]

    def close(self) -> None:
        """Work off what was submitted, and end the thread. May be called again.

        What failed in the thread is not raised here: `drain` raises it.
        """
        self._closed = True
        if self._thread is not None:
            self._thread.stop()
            self._thread.wait()


def _stop(thread):
    if (there := thread()) is not None:
        there.stop()


class _Job(NamedTuple):
    """Messages by rank, packed, of which `n_bytes` go to others."""

    step: int
    layer: int
    dtype: Any
    shape: tuple
    messages: list
    n_bytes: int


class _Link:
    """What the computing thread and the push thread share: the jobs, whether the computing thread waits, and the
    failure.

    It knows no Pusher, which may end before the thread.
    """

    def __init__(self, comm, profile):
        self.comm, self.profile, self.jobs = comm, profile, deque()
        self.waited_for, self.failure = False, None

    def check(self):
        """Raise what failed in the thread."""
        if self.failure is not None:
            raise self.failure

    def work(self, leave):
        """The thread's: yield (name, result) of each job."""
        while leave():
            job = self.jobs.popleft()
            yield (job.step, job.layer), self.exchanged(job)
            del job

    def exchanged(self, job):
        """Carry out a job; return what arrived, by rank."""
        try:
            return self._exchanged(job)
        except BaseException as error:
            self.failure = error
            raise

    def _exchanged(self, job):
        comm, given = self.comm, job.messages
        with self.profile.span("push rows", "push", step=job.step, layer=job.layer, bytes=job.n_bytes):
            heads = [np.empty(_HEAD_BYTES, np.uint8) for _ in given]
            heads[comm.rank] = given[comm.rank][:_HEAD_BYTES]
            exchange(comm, [message[:_HEAD_BYTES] for message in given], heads, self.is_waited_for)
            words = [head.view(np.int64).tolist() for head in heads]
            _check_same(words)
            found = [np.empty(_sections(*own[3:], job.dtype, job.shape)[-1][1], np.uint8) for own in words]
            found[comm.rank] = given[comm.rank]
            rest = [[message[_HEAD_BYTES:] for message in messages] for messages in (given, found)]
            exchange(comm, *rest, self.is_waited_for)
        self.profile.count(PHASE, job.n_bytes, sum(map(len, found)) - len(found[comm.rank]))
        return [_unpacked(message, head, job) for message, head in zip(found, words)]

    def is_waited_for(self):
        return self.waited_for


def exchange(comm: Communicator, given: Sequence[Array], wanted: Sequence[Array], hurried: Callable[[], bool],
             piece_bytes: int = PIECE_BYTES, sleep: Callable[[float], Any] = time.sleep) -> None:
    """Send given[q] to each other rank q, and fill wanted[q] with what it sends here, in pieces. Collective.

    Parameters
    ----------
    comm : Communicator
        Nothing else is sent on it meanwhile.
    given, wanted : list by rank of (n_bytes,) uint8 arrays
        wanted[q] has the length of what q gives this rank; this rank's own are passed over. Borrowed until the return.
    hurried : callable
        Whether somebody waits for the end; then looks follow each other without a pause.
    piece_bytes : int
    sleep : callable
        Called between looks with seconds.

    Raises
    ------
    PeerError
        A rank failed.

    Notes
    -----
    Any thread may call it. One piece a peer and direction is under way. What is under way goes on only at a look, so it
    never waits for a single piece: two ranks could wait for each other's next one.
    """
    lanes = []
    for step in range(1, comm.size):  # in a ring, so that not all send to one rank at once
        source, target = (comm.rank - step) % comm.size, (comm.rank + step) % comm.size
        lanes.append(_lane(comm.start_recv, source, wanted[source], piece_bytes))
        lanes.append(_lane(comm.start_send, target, given[target], piece_bytes))
    while lanes:
        moved = [next(lane, None) for lane in lanes]
        lanes = [lane for lane, found in zip(lanes, moved) if found is not None]
        if lanes and not any(moved):
            sleep(0 if hurried() else PAUSE)


def _lane(start, peer, array, piece_bytes):
    """Yield at each look, until all pieces are there, whether one has come since the last."""
    for at in range(0, len(array), piece_bytes):
        request, moved = start(array[at : at + piece_bytes], peer), at > 0
        while not request.test():
            yield moved
            moved = False
        request.wait()


def _packed(step, layer, messages, comm):
    """Copy messages into one array of bytes each."""
    if len(messages) != comm.size:
        raise ShapeError(f"{len(messages)} messages are not one for each of {comm.size} ranks")
    dtype, shape = messages[0][2].dtype, messages[0][2].shape[1:]
    kind, packed = zlib.crc32(f"{dtype} {shape}".encode()), []
    for peer, (slots, made, rows) in enumerate(messages):
        fits = slots.ndim == 1 and (made is None or made.shape == slots.shape)
        if not fits or (rows.dtype, rows.shape) != (dtype, (len(slots), *shape)):
            steps = getattr(made, "shape", None)
            raise ShapeError(f"message to rank {peer}: slots {slots.shape}, steps {steps} and rows {rows.dtype} "
                             f"{rows.shape} do not fit together, or not rows of {dtype} {shape}")
        has_made = made is not None
        sections = _sections(len(slots), has_made, dtype, shape)
        packed.append(buffer := np.empty(sections[-1][1], np.uint8))
        head = step, layer, kind, len(slots), has_made
        for view, values in zip(_views(buffer, sections), (head, made if has_made else (), rows, slots)):
            view[...] = values
    return _Job(step, layer, dtype, shape, packed, sum(map(len, packed)) - len(packed[comm.rank]))


def _check_same(heads):
    """Raise ShapeError, the same on every rank, unless all ranks push the same job."""
    step, layer, kind = heads[0][:3]
    for rank, head in enumerate(heads):
        if head[:3] != heads[0][:3]:
            rows = "" if head[2] == kind else ", rows of another dtype or shape"
            raise ShapeError(f"ranks push different jobs: rank 0 step {step}, layer {layer}; "
                             f"rank {rank} step {head[0]}, layer {head[1]}{rows}")


def _unpacked(message, head, job):
    """Return what a message brought, as views of it."""
    step, _, _, n, has_made = head
    _, made, rows, slots = _views(message, _sections(n, has_made, job.dtype, job.shape))
    return slots, made if has_made else step, rows


def _sections(n, has_made, dtype, shape):
    """(start, end, dtype, shape) of a message's head, steps, rows and slots; each starts at a multiple of 8 bytes."""
    sections, end = [], 0
    for kind, full in ((np.int64, (N_WORDS,)), (np.int64, (n * has_made,)), (dtype, (n, *shape)), (np.int32, (n,))):
        start = -(-end // 8) * 8
        end = start + math.prod(full) * np.dtype(kind).itemsize
        sections.append((start, end, kind, full))
    return sections


def _views(buffer, sections):
    return [buffer[start:end].view(dtype).reshape(shape) for start, end, dtype, shape in sections]
