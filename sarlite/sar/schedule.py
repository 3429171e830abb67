"""The schedule: fetch rows, hand them to the computation, free them. It knows no operator.

SAR algorithm 1 is `run`, algorithm 2 is `run_backward`; the prefetch thread is SAR 3.4.
"""

import contextvars
import queue
import threading
import warnings
from fractions import Fraction
from typing import NamedTuple

import numpy as np

from sarlite import kernels
from sarlite.comm import Communicator
from sarlite.profile import Profile
from sarlite.sar.plan import Plan

MODES = ("sar", "sa", "oneshot")


class Schedule(NamedTuple):
    """How remote rows arrive.

    Attributes
    ----------
    fetch_comm, push_comm : Communicator
        Channels of their own: values and gradients travel from different threads.
    mode : {"sar", "sa", "oneshot"}
    prefetch : int
        Peers' rows fetched ahead of the rows in use; 0 starts no thread.
    """

    plan: Plan
    fetch_comm: Communicator
    push_comm: Communicator
    mode: str
    prefetch: int
    profile: Profile


def make(comm, plan, mode, prefetch, profile):
    """Return a Schedule. Collective."""
    if prefetch and plan.steps and not comm.threaded:
        if comm.rank == 0:
            warnings.warn("MPI without MPI_THREAD_MULTIPLE: prefetch falls back to 0", RuntimeWarning, stacklevel=2)
        prefetch = 0
    return Schedule(plan, comm.channel("fetch"), comm.channel("push"), mode, prefetch, profile)


def run(schedule, arrays, on_block, keep=False):
    """Call `on_block(block, rows)` for each block, the local one first; the rows are freed after the call.

    Parameters
    ----------
    arrays : tuple of (n_local, ...) ndarray
        The local rows, which peers fetch too.
    keep : bool
        Whether to return the list of what `on_block` returned, in block order.

    Notes
    -----
    Collective. Holds at most 1 + prefetch peers' rows; in mode `oneshot` all of them.
    Source: SAR algorithm 1.
    """
    kept = []

    def on_rows(step, block, rows):
        with _span(schedule, step, block, "forward"):
            result = on_block(block, rows)
        if keep:
            kept.append(result)

    if schedule.mode == "oneshot":
        on_rows(None, schedule.plan.local, _fetch_all(schedule, arrays))
    else:
        _each_block(schedule, schedule.plan.steps, arrays, on_rows, "forward", [schedule.plan.local])
    return kept if keep else None


def _each_block(schedule, steps, arrays, on_rows, phase, before, after=(), send=None):
    """The loop: fetch, `on_rows(step, block, rows)`, free, and `send(step, ...)` what it returned where that is given.

    `before` and `after` are blocks of local rows, whose step is None.
    """
    fetcher = _Prefetch if schedule.prefetch and steps else _Fetch
    with fetcher(schedule, steps, arrays, phase) as fetched:
        for block in before:
            on_rows(None, block, arrays)
        for step in steps:
            message = on_rows(step, step.block, fetched.take(step))
            fetched.release()
            if send is not None:
                send(step, message)
            del message
        for block in after:
            on_rows(None, block, arrays)


def _n_parts(schedule, steps):
    """In how many steps a peer's rows travel."""
    return len(steps) // max(1, len(schedule.plan.steps))


def _span(schedule, step, block, phase):
    """The span of one block's computation; in mode `oneshot` the one block has every rank's rows."""
    source = step.source if step else "all" if schedule.mode == "oneshot" else schedule.fetch_comm.rank
    return schedule.profile.span("block", source=source, edges=block.n_edges, phase=phase)


def run_backward(schedule, arrays, kept, on_block, d_arrays):
    """Call `on_block(block, rows, d_rows)` for each block and send each d_rows to the rows' owner.

    Parameters
    ----------
    arrays : tuple of (n_local, ...) ndarray, or None
        Local rows; given, the peers' are fetched again (case 2).
    kept : list, or None
        What `run` kept; given, these are passed as rows. With neither, rows are None (case 1).
    d_arrays : list of (n_local, ...) ndarray or None
        Gradients of the local rows, added to in place; None where nobody needs one.

    Notes
    -----
    Collective. The local block comes last, so that the last gradients travel meanwhile. In case 2 with prefetch its first half comes
    first, so that the first rows travel meanwhile too: `on_block` must heed a block's `place`. Where nothing was kept, blocks are ranges
    of columns of those that `run` showed (`Plan.backward_steps`): at most prefetch peers' rows and a part of another's
    are held.
    Source: SAR algorithm 2.
    """
    if schedule.mode == "oneshot":
        _run_backward_merged(schedule, kept, on_block, d_arrays)
        return
    plan = schedule.plan
    steps = plan.backward_steps if kept is None else plan.steps
    with _Push(schedule, d_arrays, _n_parts(schedule, steps) if schedule.prefetch else 0) as push:

        def on_rows(step, block, rows):
            message, d_rows = (None, d_arrays) if step is None else _allocate(block.n_src, push.templates, zero=True)
            with _span(schedule, step, block, "backward"):
                on_block(block, rows, d_rows)
            return message

        if arrays is None:
            for k, step in enumerate(steps, 1):
                push.start(step, on_rows(step, step.block, kept and kept[k]))
            on_rows(None, plan.local, kept and kept[0])
        else:
            local = plan.local.halves if schedule.prefetch and steps else [plan.local]
            _each_block(schedule, steps, arrays, on_rows, "backward", local[:1], local[1:], push.start)


def _run_backward_merged(schedule, kept, on_block, d_arrays):
    plan = schedule.plan
    with _Push(schedule, d_arrays, len(plan.steps)) as push:
        _, d_rows = _allocate(plan.local.n_src, push.templates, zero=True)
        with _span(schedule, None, plan.local, "backward"):
            on_block(plan.local, kept and kept[0], d_rows)
        for d, d_all in zip(d_arrays, d_rows):
            if d is not None:
                d += d_all[: plan.n_local]
        for step, part in zip(plan.steps, _halo_slices(plan)):
            message, views = _allocate(step.block.n_src, push.templates)
            for view, d_all in zip(views, d_rows):
                if view is not None:
                    view[...] = d_all[part]
            push.start(step, message)


def _halo_slices(plan):
    ends = plan.n_local + np.cumsum([step.block.n_src for step in plan.steps])
    return [slice(int(end) - step.block.n_src, int(end)) for step, end in zip(plan.steps, ends)]


# ---- messages: several arrays' rows in one buffer, one section an array


def _allocate(n_rows, templates, zero=False):
    """Return (buffer, tuple of views): a section of `n_rows` rows for each (row shape, dtype); None stays None."""
    starts, end = [], 0
    for template in templates:
        starts.append(-(-end // 16) * 16)  # aligned
        end = starts[-1] + (0 if template is None else n_rows * int(np.prod(template[0])) * np.dtype(template[1]).itemsize)
    buffer = (np.zeros if zero else np.empty)(end, np.uint8)
    views = []
    for template, start in zip(templates, starts):
        if template is None:
            views.append(None)
        else:
            dtype = np.dtype(template[1])
            size = n_rows * int(np.prod(template[0])) * dtype.itemsize
            views.append(buffer[start : start + size].view(dtype).reshape(n_rows, *template[0]))
    return buffer, tuple(views)


def templates_of(arrays):
    return tuple((a.shape[1:], a.dtype) for a in arrays)


def _pack(arrays, rows):
    buffer, views = _allocate(len(rows), templates_of(arrays))
    for array, view in zip(arrays, views):
        kernels.gather_rows(array, rows, view) if array.dtype.kind == "f" else np.take(array, rows, 0, view)
    return buffer


class _Fetch:
    """Fetches each step's rows when they are asked for."""

    def __init__(self, schedule, steps, arrays, phase):
        self.schedule, self.steps, self.arrays, self.phase = schedule, steps, arrays, phase
        self.templates = templates_of(arrays)
        self.n_parts = _n_parts(schedule, steps)

    def __enter__(self):
        return self

    def __exit__(self, *error):
        pass

    def take(self, step):
        """Return `step`'s rows once they are here."""
        with self.schedule.profile.span("wait", peer=step.source, phase=self.phase):
            return self.arrived(step)

    def arrived(self, step):
        rows, finish = self.exchange(step)
        finish()
        return rows

    def release(self):
        pass

    def exchange(self, step):
        """Receive `step`'s rows; return them and a function that waits until what was sent has left."""
        comm, profile = self.schedule.fetch_comm, self.schedule.profile
        buffer, rows = _allocate(step.block.n_src, self.templates)
        profile.hold(buffer, Fraction(1, self.n_parts))
        with profile.span("fetch", "fetch", peer=step.source, bytes=buffer.nbytes, phase=self.phase):
            receive = comm.start_recv(buffer, step.source) if len(buffer) else None
            send, message = None, _pack(self.arrays, step.send_rows)
            if len(message):
                send = comm.start_send(message, step.target)
            if receive is not None:
                receive.wait()
        profile.count(f"{self.phase}_fetch", message.nbytes, buffer.nbytes)
        return rows, send.wait if send is not None else lambda: None


class _Prefetch(_Fetch):
    """Fetches up to `prefetch` peers' rows ahead in a thread (SAR 3.4)."""

    def __enter__(self):
        self.ready = queue.SimpleQueue()
        self.free = threading.Semaphore(1 + self.schedule.prefetch * self.n_parts)
        self.stopped = False
        context = contextvars.copy_context()  # its buffers are this thread's
        self.thread = threading.Thread(target=context.run, args=(self.work,), name="sarlite-prefetch", daemon=True)
        self.thread.start()
        return self

    def __exit__(self, *error):
        self.stopped = True
        self.free.release()
        if error[0] is None:
            with self.schedule.profile.span("wait", phase=self.phase):  # for the last rows sent to leave
                self.thread.join()

    def work(self):
        try:
            kernels.set_threads(1)  # this thread's own; a second team would fight for the cores with the computing one
            for step in self.steps:
                self.free.acquire()
                if self.stopped:
                    return
                rows, finish = self.exchange(step)
                self.ready.put(rows)
                del rows
                finish()
        except BaseException as error:  # handed to the computing thread, which raises it
            self.ready.put(error)

    def arrived(self, step):
        rows = self.ready.get()
        if isinstance(rows, BaseException):
            raise rows
        return rows

    def release(self):
        self.free.release()


class _Push:
    """Sends gradients of remote rows to their owners, and adds what peers send to `d_arrays`.

    Up to `depth` messages each way travel while something is computed.
    """

    def __init__(self, schedule, d_arrays, depth):
        self.schedule, self.d_arrays, self.depth = schedule, d_arrays, depth
        self.templates = [None if d is None else (d.shape[1:], d.dtype) for d in d_arrays]
        self.pending = []

    def __enter__(self):
        return self

    def __exit__(self, *error):
        if error[0] is None:
            self._finish_all_but(0)

    def start(self, step, message):
        """Start the exchange of one step's gradients, once at most `depth` - 1 others travel; with a depth of 0 finish it too."""
        self._finish_all_but(max(0, self.depth - 1))
        comm, profile = self.schedule.push_comm, self.schedule.profile
        buffer, rows = _allocate(len(step.send_rows), self.templates)
        span = profile.span("push", "push", peer=step.source, bytes=message.nbytes)
        requests = [comm.start_recv(buffer, step.target)] if len(buffer) else []
        requests += [comm.start_send(message, step.source)] if len(message) else []
        profile.count("backward_push", message.nbytes, buffer.nbytes)

        def finish():
            for request in requests:
                request.wait()
            span.end()

        self.pending.append((step, rows, self._in_thread(finish) if self.schedule.prefetch else finish))
        self._finish_all_but(self.depth)

    def _finish_all_but(self, n):
        while len(self.pending) > n:
            self._finish(*self.pending.pop(0))

    @staticmethod
    def _in_thread(finish):
        """A thread that waits in MPI makes the transfer progress while kernels compute; return what joins it."""
        failed = []

        def wait():
            try:
                finish()
            except BaseException as error:
                failed.append(error)

        def join():
            thread.join()
            if failed:
                raise failed[0]

        thread = threading.Thread(target=wait, name="sarlite-push", daemon=True)
        thread.start()
        return join

    def _finish(self, step, rows, finish):
        with self.schedule.profile.span("wait", peer=step.target, phase="push"):
            finish()
        for d, received in zip(self.d_arrays, rows):
            if d is not None:
                kernels.scatter_add_rows(received, step.send_rows, d)


def _fetch_all(schedule, arrays):
    """One exchange with every peer; return arrays of the local rows followed by each step's."""
    if not schedule.plan.steps:
        return arrays
    with schedule.profile.span("wait", phase="forward"):
        return _exchange_all(schedule, arrays)


def _exchange_all(schedule, arrays):
    plan, comm, profile = schedule.plan, schedule.fetch_comm, schedule.profile
    buffer, rows = _allocate(plan.local.n_src, templates_of(arrays))
    profile.hold(buffer, len(plan.steps))
    pending = []
    for step, part in zip(plan.steps, _halo_slices(plan)):
        if len(arrays) == 1:
            message, views = rows[0][part].reshape(-1).view(np.uint8), None
        else:
            message, views = _allocate(step.block.n_src, templates_of(arrays))
        span = profile.span("fetch", "fetch", peer=step.source, bytes=message.nbytes, phase="forward")
        receive = comm.start_recv(message, step.source) if len(message) else None
        pending.append((receive, span, views, part, message.nbytes))
    sends = []
    for step in plan.steps:
        message = _pack(arrays, step.send_rows)
        if len(message):
            sends.append((comm.start_send(message, step.target), message.nbytes))
    for local, array in zip(arrays, rows):
        array[: plan.n_local] = local
    for receive, span, views, part, nbytes in pending:
        if receive is not None:
            receive.wait()
        span.end()
        for array, view in zip(rows, views or ()):
            array[part] = view
        profile.count("forward_fetch", 0, nbytes)
    for send, nbytes in sends:
        send.wait()
        profile.count("forward_fetch", nbytes)
    return rows


def zeros(schedule, template):
    """Return the zero gradient of this rank's rows."""
    return np.zeros((schedule.plan.n_local, *template[0]), template[1])
