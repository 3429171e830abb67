"""Transport: rows fetched from peers, gradients pushed to their owners. The only place that talks to peers; it knows no operator.

Values and gradients travel on channels of their own, since different threads send them. Every aggregation, each direction of it, takes
a tag of its own, so that what an aggregation that failed has left under way meets no later one. After a failure on several ranks the
communicator's graphs refuse until `recover`: nobody can know how far the other ranks came, and a peer may still need what was sent.
"""

import contextvars
import queue
import threading
import warnings
from contextlib import suppress

import numpy as np

from sarlite import kernels
from sarlite.errors import PeerError
from sarlite.sar.messages import allocate, gather, pack, templates_of


class Line:
    """What the graphs of one communicator share: the number of the last tag, the failure after which none is usable, threads that are in
    broadcasts, what ends those that failed aggregations have left, and the channels of messages, those of groups of its ranks too."""

    def __init__(self, comm):
        self.comm, self.n_tags, self.failure, self.threads, self.late, self.channels = comm, 0, None, [], [], []

    @classmethod
    def of(cls, comm):
        return comm.channel("fetch").__dict__.setdefault("_line", cls(comm))

    def join(self, *channels):
        self.channels.extend(channel for channel in channels if channel not in self.channels)

    def recover(self):
        """Drop what is under way, waking threads that wait for it, and agree on the next tag. Collective."""
        while self.threads:  # they take part in every stage
            self.threads.pop().join()
        self.n_tags = int(self.comm.allreduce(np.array([self.n_tags], np.int64), "max")[0])
        for channel in self.channels:  # not before all are here: a peer may need what was sent in order to come to its own failure
            channel.drain()
        while self.late:  # threads that hold shared memory, and wait for nothing any more
            with suppress(Exception):
                self.late.pop()()
        self.failure = None


class Transport:
    """How the rows of one graph travel. Making one is collective.

    Parameters
    ----------
    comm : Communicator
    prefetch : int
        Peers' rows fetched ahead of the rows in use; 0 starts no thread.
    profile : Profile
    line : Line, optional
        Of the communicator that `comm` is a group of.

    Attributes
    ----------
    fetch_comm, push_comm : Communicator
    """

    def __init__(self, comm, prefetch, profile, line=None):
        if prefetch and comm.size > 1 and not comm.threaded:
            if comm.rank == 0:
                warnings.warn("MPI without MPI_THREAD_MULTIPLE: prefetch falls back to 0", RuntimeWarning, stacklevel=2)
            prefetch = 0
        self.comm, self.fetch_comm, self.push_comm = comm, comm.channel("fetch"), comm.channel("push")
        self.prefetch, self.profile, self.line = prefetch, profile, line or Line.of(comm)
        self.line.join(self.fetch_comm, self.push_comm)

    def fetch(self, steps, arrays, phase):
        """Return a context that brings each step's rows of `arrays`, one after the other; without arrays it brings None."""
        if arrays is None:
            return NoFetch()
        return self.chosen(Fetch, Prefetch if steps else Fetch)(self, steps, arrays, phase)

    def push(self, d_arrays, depth, phase="backward"):
        """Return a context that sends gradients, or partial sums, to their owners and adds what peers send to `d_arrays`."""
        return Push(self, d_arrays, depth, phase)

    # ---- what decides sizes is above and in the transfers; `cost.CountingTransport` has the following alone another way

    def chosen(self, plain, ahead):
        """Return the kind of transfer: `ahead`, by a thread, where something is fetched ahead."""
        return ahead if self.prefetch else plain

    def allocate(self, n_rows, templates, zero=False):
        """Return (buffer, views) of a message."""
        return allocate(n_rows, templates, zero)

    def pack(self, arrays, rows):
        return pack(arrays, rows)

    def gather(self, arrays, rows, views):
        """Copy some rows of each array into its view."""
        gather(arrays, rows, views)

    def add_rows(self, received, rows, d):
        """Add rows that came to those of `d` that they are of."""
        if isinstance(rows, slice):
            kernels.add(d[rows], received, d[rows])
        else:
            kernels.scatter_add_rows(received, rows, d)

    def finishing(self, finish):
        """Return what finishes a transfer, which makes progress meanwhile where there is a thread for it."""
        return _in_thread(finish) if self.prefetch else finish

    # ---- failure

    def new_tag(self):
        """The tag of one aggregation's messages, on all ranks alike."""
        if self.line.failure is not None:
            raise PeerError(f"an aggregation failed ({self.line.failure}); graph.recover() on every rank makes graphs usable again")
        self.line.n_tags += 1
        return self.line.n_tags % self.fetch_comm.max_tag

    def fail(self, error):
        """Note that messages may be missing from here on."""
        if self.line.comm.size > 1:
            self.line.failure = f"{type(error).__name__}: {error}"

    def recover(self):
        """Make the graphs of the communicator usable again. Collective."""
        self.line.recover()


class Transfer:
    """A context whose messages are under way; on an error the transport is told."""

    def __init__(self, transport, comm):
        self.transport, self.comm, self.profile, self.tag = transport, comm, transport.profile, transport.new_tag()

    def __enter__(self):
        return self

    def __exit__(self, kind, error, trace):
        try:
            if error is None:
                self.finish()
        except BaseException as found:
            error = found
            raise
        finally:
            if error is not None:
                self.transport.fail(error)

    def finish(self):
        """Wait for what is under way still."""

    def receive(self, array, source):
        return self.comm.start_recv(array, source, self.tag) if array.nbytes else None

    def send(self, array, target):
        return self.comm.start_send(array, target, self.tag) if array.nbytes else None


def wait_all(requests):
    """Wait for requests; None among them are nothing."""
    for request in requests:
        if request is not None:
            request.wait()


class NoFetch:
    """Where nothing is fetched."""

    def __enter__(self):
        return self

    def __exit__(self, *error):
        pass

    def take(self, step):
        return None

    def release(self, step=None):
        pass


class Fetch(Transfer):
    """Fetches each step's rows when they are asked for."""

    def __init__(self, transport, steps, arrays, phase):
        super().__init__(transport, transport.fetch_comm)
        self.steps, self.arrays, self.phase, self.templates = steps, arrays, phase, templates_of(arrays)

    def take(self, step):
        """Return `step`'s rows once they are here."""
        with self.profile.span("wait", peer=step.source, phase=self.phase):
            return self.arrived(step)

    def arrived(self, step):
        rows, sends = self.exchange(step)
        wait_all(sends)
        return rows

    def release(self, step=None):
        """Say that the rows taken last are freed."""

    def exchange(self, step):
        """Receive `step`'s rows; return them and the requests of what was sent."""
        buffer, rows = self.transport.allocate(step.n_rows, self.templates)
        self.profile.hold(buffer, step.share)
        with self.profile.span("fetch", "fetch", peer=step.source, bytes=buffer.nbytes, phase=self.phase):
            receives = self.receive_rows(step, buffer, rows)
            sends, n_bytes = self.send_rows(step)
            wait_all(receives)
        self.profile.count(f"{self.phase}_fetch", n_bytes, sum(part.nbytes for part in parts_of(step, buffer, rows)))
        return rows, sends

    def receive_rows(self, step, buffer, rows):
        return [self.receive(part, step.source) for part in parts_of(step, buffer, rows)]

    def send_rows(self, step):
        """Start to send `send_rows` of each array: rows that follow each other as they stand, others as one packed message."""
        rows = step.send_rows
        parts = [a[rows] for a in self.arrays] if isinstance(rows, slice) else [self.transport.pack(self.arrays, rows)]
        return [self.send(part, step.target) for part in parts], sum(part.nbytes for part in parts)


def parts_of(step, buffer, rows):
    """What a step's rows arrive in: rows that follow each other at their owner array by array, others as one message."""
    return rows if step.contiguous else (buffer,)


class Prefetch(Fetch):
    """Fetches up to `prefetch` peers' rows ahead in a thread (SAR 3.4)."""

    def __enter__(self):
        self.ready = queue.SimpleQueue()
        self.free = threading.Semaphore(1 + self.transport.prefetch * self.steps[0].share.denominator)
        self.stopped = False
        context = contextvars.copy_context()  # its buffers are this thread's
        self.thread = threading.Thread(target=context.run, args=(self.work,), name="sarlite-prefetch", daemon=True)
        self.thread.start()
        return self

    def __exit__(self, kind, error, trace):
        self.stopped = True
        self.free.release()
        super().__exit__(kind, error, trace)

    def finish(self):
        with self.profile.span("wait", phase=self.phase):  # for the last rows sent to leave
            self.thread.join()
        while not self.ready.empty():  # the error of the last send, which came after all rows were there
            self.arrived(None)

    def work(self):
        try:
            kernels.set_threads(1)  # this thread's own; a second team would fight for the cores with the computing one
            for step in self.steps:
                self.free.acquire()
                if self.stopped:
                    return
                rows, sends = self.exchange(step)
                self.ready.put(rows)
                del rows
                wait_all(sends)
        except BaseException as error:  # handed to the computing thread, which raises it
            self.ready.put(error)

    def arrived(self, step):
        rows = self.ready.get()
        if isinstance(rows, BaseException):
            raise rows
        return rows

    def release(self, step=None):
        self.free.release()


class FetchAll(Fetch):
    """Fetches all peers' rows at once, into arrays behind the local rows."""

    def __init__(self, transport, plan, arrays, phase):
        super().__init__(transport, plan.steps, arrays, phase)
        self.n_local = plan.n_src

    def take_all(self):
        """Return arrays of the local rows followed by each step's."""
        with self.profile.span("wait", phase=self.phase):
            n_rows = self.n_local + sum(step.n_rows for step in self.steps)
            buffer, rows = self.transport.allocate(n_rows, self.templates)
            self.profile.hold(buffer, len(self.steps))
            pending = [self.start(step, rows, place) for step, place in zip(self.steps, halo_slices(self.n_local, self.steps))]
            sends = [self.send_rows(step) for step in self.steps]
            gather(self.arrays, slice(None), tuple(whole[: self.n_local] for whole in rows))
            for finish in pending:
                finish()
            for requests, n_bytes in sends:
                wait_all(requests)
                self.profile.count(f"{self.phase}_fetch", n_bytes)
            return rows

    def start(self, step, rows, place):
        """Start to receive one step's rows into their places; return what finishes it."""
        views = tuple(array[place] for array in rows)
        straight = step.contiguous or len(rows) == 1
        message, sections = (None, views) if straight else self.transport.allocate(step.n_rows, self.templates)
        parts = views if straight else (message,)
        n_bytes = sum(part.nbytes for part in parts)
        span = self.profile.span("fetch", "fetch", peer=step.source, bytes=n_bytes, phase=self.phase)
        requests = [self.receive(part, step.source) for part in parts]

        def finish():
            wait_all(requests)
            span.end()
            if not straight:
                for view, section in zip(views, sections):
                    view[...] = section
            self.profile.count(f"{self.phase}_fetch", 0, n_bytes)

        return finish


def halo_slices(n_local, steps):
    """Where each step's rows stand behind the local ones."""
    ends = n_local + np.cumsum([step.n_rows for step in steps], dtype=np.int64)
    return [slice(int(end) - step.n_rows, int(end)) for step, end in zip(steps, ends)]


class Push(Transfer):
    """Sends gradients of remote rows to their owners, and adds what peers send to `d_arrays`.

    Up to `depth` messages each way travel while something is computed.
    """

    def __init__(self, transport, d_arrays, depth, phase):
        super().__init__(transport, transport.push_comm)
        self.d_arrays, self.depth, self.phase, self.templates, self.pending = d_arrays, depth, phase, templates_of(d_arrays), []

    def finish(self):
        self._finish_all_but(0)

    def message(self, n_rows, zero=True):
        """Return (buffer, views) for the gradients of `n_rows` remote rows."""
        return self.transport.allocate(n_rows, self.templates, zero)

    def start(self, step, message):
        """Start the exchange of one step's gradients, once at most `depth` - 1 others travel; with a depth of 0 finish it too."""
        self._finish_all_but(max(0, self.depth - 1))
        buffer, rows = self.message(step.n_send, zero=False)
        span = self.profile.span("push", "push", peer=step.source, bytes=message.nbytes)
        requests = [self.receive(buffer, step.target), self.send(message, step.source)]
        self.profile.count(f"{self.phase}_push", message.nbytes, buffer.nbytes)

        def finish():
            wait_all(requests)
            span.end()

        self.pending.append((step, rows, self.transport.finishing(finish)))
        self._finish_all_but(self.depth)

    def _finish_all_but(self, n):
        while len(self.pending) > n:
            self._finish(*self.pending.pop(0))

    def _finish(self, step, rows, finish):
        with self.profile.span("wait", peer=step.target, phase="push"):
            finish()
        for d, received in zip(self.d_arrays, rows):
            if d is not None:
                self.transport.add_rows(received, step.send_rows, d)


def _in_thread(finish):
    """A thread that waits in MPI makes the transfer progress while kernels compute; return what joins it."""
    failed = []

    def wait():
        try:
            kernels.set_threads(1)  # this thread's own, which is beside the computing one
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
