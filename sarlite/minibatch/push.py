"""Rows pushed to the peers that have them as halo, by a thread, while others are computed (DistGNN-MB alg. 2, AEP)."""

import math
import queue
import threading
import warnings
import weakref
import zlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from sarlite import kernels
from sarlite.comm import Communicator
from sarlite.errors import SarliteError, ShapeError
from sarlite.minibatch.beside import exchange
from sarlite.profile import Profile, uncounted
from sarlite.types import Array

PHASE = "push_rows"
N_WORDS = 5
"""Words of a message's head: step, layer, what tells dtype and row shape, number of rows, whether their steps are there."""
_HEAD_BYTES = 8 * N_WORDS

Rows = tuple[Array, Any, Array]
"""(slots (m,) int32, made: int or (m,) int64, rows (m, ...))"""


class Pusher:
    """Exchanges rows with all peers, job by job, in a thread. Collective: every rank submits the same jobs in the same order.

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
    A job is an exchange of packed bytes, a head and then, in pieces, the rest (`beside.exchange`): it leaves cores to what computes, and
    other messages to the same peers go between. What arrives depends on what was submitted alone, not on when: `take` waits.
    What fails in the thread ends it, and is raised by every later `submit`, `take` and `drain` of this rank; the other ranks then learn
    of it as of any rank that has failed. Jobs that do not fit together are refused on every rank.
    Without `comm.threaded` there is no thread, and `submit` waits for the exchange. Memory: what was submitted and not yet sent, and what
    has arrived and was not yet taken; a row takes its own bytes and 4, or 12 with the step in which it was made.
    The thread ends with `close`, and with the object.
    """

    def __init__(self, comm: Communicator, profile: Profile) -> None:
        self._jobs, self._thread, self._closed = _Jobs(uncounted(comm), profile), None, False
        if comm.size == 1:
            return
        if not comm.threaded:
            if comm.rank == 0:
                warnings.warn("MPI without MPI_THREAD_MULTIPLE: rows are pushed without overlap", RuntimeWarning, stacklevel=2)
            return
        self._queue: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._thread = threading.Thread(target=kernels.unbuffered, args=(_work, self._jobs, self._queue),
                                        name="sarlite-push-rows", daemon=True)
        weakref.finalize(self, self._queue.put, None).atexit = False
        self._thread.start()

    def submit(self, step: int, layer: int, messages: Sequence[tuple[Array, Array | None, Array]]) -> int:
        """Start to exchange rows. Collective, but waits for no rank.

        Parameters
        ----------
        step, layer : int
            The job's name; one of each at a time.
        messages : list by rank of (slots (m,) int array, made (m,) int array or None, rows (m, ...) array)
            What goes there, nothing for this rank, and the steps in which the rows were made: None where all were in `step`. Rows are of
            one dtype and row shape, here and on every rank, also where there are none. Copied.

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
        return kernels.unbuffered(self._submit, step, layer, messages)

    def _submit(self, step, layer, messages):
        job = _packed(step, layer, messages, self._jobs.comm)
        self._jobs.add((step, layer))
        if self._thread is not None:
            self._queue.put(job)
        else:
            self._jobs.waited_for = True
            self._jobs.exchange(job)
            self._jobs.check()
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
        return self._jobs.take((step, layer))

    def drain(self) -> list[tuple[int, int, list[Rows]]]:
        """Wait for all jobs, and return those not taken yet as (step, layer, what `take` returns), in the order of submission.

        Raises
        ------
        Exception
            What failed in the thread.
        """
        self._jobs.check()
        keys = list(self._jobs.results)
        return [(*key, self.take(*key)) for key in keys]

    def close(self) -> None:
        """Work off what was submitted, and end the thread. What failed in it is not raised here: `drain` does. May be called again."""
        self._closed = True
        if self._thread is not None:
            self._queue.put(None)
            self._thread.join()


class _Job(NamedTuple):
    """Messages by rank, packed, of which `n_bytes` go to others."""

    step: int
    layer: int
    dtype: Any
    shape: tuple
    messages: list
    n_bytes: int


class _Jobs:
    """What the computing thread and the push thread share: results by job, None until they are here, and the failure.

    `waited_for` tells whether the computing thread waits.
    """

    def __init__(self, comm, profile):
        self.comm, self.profile, self.changed = comm, profile, threading.Condition()
        self.results, self.waited_for, self.failure = {}, False, None

    def check(self):
        if self.failure is not None:
            raise self.failure

    def add(self, key):
        with self.changed:
            self.check()
            if key in self.results:
                raise SarliteError(f"push of step {key[0]}, layer {key[1]}: submitted already")
            self.results[key] = None

    def take(self, key):
        with self.changed:
            self.check()
            if key not in self.results:
                raise SarliteError(f"push of step {key[0]}, layer {key[1]}: not submitted, or taken already")
            with self.profile.span("wait", phase=PHASE):
                self.waited_for = True
                try:
                    self.changed.wait_for(lambda: self.failure is not None or self.results[key] is not None)
                finally:  # an interrupt too: else the thread would look without a pause from then on
                    self.waited_for = False
            self.check()
            return self.results.pop(key)

    def exchange(self, job):
        """Carry out a job; return whether it worked."""
        try:
            result, failure = self._exchanged(job), None
        except BaseException as error:  # noqa: BLE001, because the computing thread raises it
            result, failure = None, error
        with self.changed:
            self.results[job.step, job.layer], self.failure = result, failure
            self.changed.notify_all()
        return failure is None

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
            exchange(comm, [message[_HEAD_BYTES:] for message in given], [message[_HEAD_BYTES:] for message in found], self.is_waited_for)
        self.profile.count(PHASE, job.n_bytes, sum(map(len, found)) - len(found[comm.rank]))
        return [_unpacked(message, head, job) for message, head in zip(found, words)]

    def is_waited_for(self):
        return self.waited_for


def _work(jobs, waiting):
    """The thread's: it holds no reference to the Pusher, which may end."""
    while (job := waiting.get()) is not None and jobs.exchange(job):
        del job


def _packed(step, layer, messages, comm):
    """Copy messages into one array of bytes each."""
    if len(messages) != comm.size:
        raise ShapeError(f"{len(messages)} messages are not one for each of {comm.size} ranks")
    dtype, shape = messages[0][2].dtype, messages[0][2].shape[1:]
    kind, packed = zlib.crc32(f"{dtype} {shape}".encode()), []
    for peer, (slots, made, rows) in enumerate(messages):
        if (rows.dtype, rows.shape) != (dtype, (len(slots), *shape)) or slots.ndim != 1 or (made is not None and made.shape != slots.shape):
            raise ShapeError(f"message to rank {peer}: slots {slots.shape}, steps {getattr(made, 'shape', None)} and rows {rows.dtype} "
                             f"{rows.shape} do not fit together, or not rows of {dtype} {shape}")
        has_made = made is not None
        sections = _sections(len(slots), has_made, dtype, shape)
        packed.append(buffer := np.empty(sections[-1][1], np.uint8))
        head = step, layer, kind, len(slots), has_made
        for view, values in zip(_views(buffer, sections), (head, made if has_made else (), rows, slots)):
            view[...] = values
    return _Job(step, layer, dtype, shape, packed, sum(map(len, packed)) - len(packed[comm.rank]))


def message_bytes(n: int, dated: bool, dtype: Any, shape: tuple[int, ...]) -> int:
    """Return the bytes of a message of n rows of this dtype and row shape; `dated` tells whether it has the steps that made them."""
    return _sections(n, dated, dtype, shape)[-1][1]


def _check_same(heads):
    """Raise ShapeError, the same on every rank, unless all ranks push the same job."""
    step, layer, kind = heads[0][:3]
    for rank, head in enumerate(heads):
        if head[:3] != heads[0][:3]:
            raise ShapeError(f"ranks push different jobs: rank 0 step {step}, layer {layer}; rank {rank} step {head[0]}, layer {head[1]}"
                             f"{'' if head[2] == kind else ', rows of another dtype or shape'}")


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
