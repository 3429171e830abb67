"""Stages: each rank's rows broadcast in turn, in one order on every rank (MG-GCN 4.1, Figure 2), or in pieces ahead by a thread (4.3)."""

import contextvars
import queue
import threading
from collections import deque
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np

from sarlite.comm.buffers import check_calls
from sarlite.sar.messages import templates_of
from sarlite.sar.transport import Transfer, wait_all

PIECE = 1 << 17  # bytes of the rows that are moved at once, which are copied: few, so that they stay in the processor's cache


class Stage(NamedTuple):
    """One round: `root` sends all its rows, or a piece of them, to every rank.

    Attributes
    ----------
    root : int
    block : Edges, or None
        Whose columns are the rows that come; None in the stages in which this rank is the root.
    rows : slice
        Which of the root's.
    needed : slice or (n,) int
        Those of them that are the block's columns; of a graph ascending, of a batch in any order.
    share : Fraction
        What part of the root's rows these are.
    """

    root: int
    block: Any
    rows: slice
    needed: Any
    share: Fraction = Fraction(1)

    @property
    def n_rows(self):
        return self.rows.stop - self.rows.start


class Stages(Transfer):
    """Brings each stage's rows when they are asked for.

    After a failure of what is computed with them the rank still takes part in the other stages, whose rows it drops: other ranks, which may
    have failed at another stage, wait for it.
    """

    def __init__(self, transport, stages, arrays, phase):
        super().__init__(transport, transport.comm.channel("broadcast"))
        self.left, self.arrays, self.phase, self.templates = iter(stages), arrays, phase, templates_of(arrays)
        self.room = 1 + transport.prefetch * stages[0].share.denominator  # stages whose rows may be here at once

    def __enter__(self):
        try:
            self.check()
        except BaseException as error:
            self.transport.fail(error)
            raise
        return self

    def check(self):
        """Raise a ShapeError on every rank unless all broadcast such rows. Collective."""
        check_calls(self.comm.allgather("broadcasts of " + ", ".join(f"{dtype} rows of shape {shape}" for shape, dtype in self.templates)))

    def __exit__(self, kind, error, trace):
        super().__exit__(kind, error, trace)
        if error is not None:
            for stage in self.left:
                self.broadcast(stage)

    def take(self, stage):
        """Return the rows of `stage`'s columns once they are here; None where they are this rank's, and now sent."""
        with self.profile.span("wait", peer=stage.root, phase=self.phase):
            return self.arrived(stage)

    def arrived(self, stage):
        next(self.left)
        return self.broadcast(stage)

    def release(self, stage):
        """Say that the rows taken last are freed."""

    def broadcast(self, stage):
        try:
            return self.start(stage)()
        except BaseException:
            self.left = iter(())  # nobody knows how far the other ranks are
            raise

    def start(self, stage):
        """Start to broadcast the rows of a stage; return what waits for them and returns as `take`."""
        own = stage.block is None
        if own:
            rows = tuple(array[stage.rows] for array in self.arrays)
        else:
            buffer, rows = self.transport.allocate(stage.n_rows, self.templates)
            self.profile.hold(buffer, stage.share)
        n_bytes = sum(array.nbytes for array in rows)
        sent = (self.comm.size - 1) * n_bytes if own else 0
        span = self.profile.span("broadcast", "fetch", peer=stage.root, bytes=n_bytes, phase=self.phase)
        requests = [self.comm.start_broadcast(array, stage.root) for array in rows if array.nbytes]

        def finish():
            wait_all(requests)
            span.end()
            self.profile.count(f"{self.phase}_fetch", sent, 0 if own else n_bytes)
            return None if own else tuple(_columns(array, stage.needed) for array in rows)

        return finish


def _columns(rows, needed):
    """The needed rows, brought to the front in place where they ascend: each only moves forward, over none that is still to be read."""
    if isinstance(needed, slice) or not (np.diff(needed) > 0).all():
        return rows[needed]
    some = max(1, PIECE * len(rows) // max(rows.nbytes, 1))
    for a in range(0, len(needed), some):
        part = needed[a : a + some]
        rows[a : a + len(part)] = rows[part]
    return rows[: len(needed)]


class StagesAhead(Stages):
    """Brings the rows of up to `prefetch` ranks ahead in a thread, beside those in use; the next wait until some are freed.

    Two broadcasts are under way: what ranks tell each other before the second hides behind the first.
    """

    def __enter__(self):
        self.ready = queue.SimpleQueue()
        self.free = threading.Semaphore(self.room)
        self.stopped = False
        context = contextvars.copy_context()  # its buffers are this thread's
        self.thread = threading.Thread(target=context.run, args=(self.work,), name="sarlite-prefetch", daemon=True)
        self.transport.line.threads.append(self.thread)
        self.thread.start()
        return self

    def __exit__(self, kind, error, trace):
        self.stopped = True
        self.free.release()
        Transfer.__exit__(self, kind, error, trace)  # the thread takes the other stages

    def finish(self):
        with self.profile.span("wait", phase=self.phase):  # where this rank's stage is the last
            self.thread.join()
        self.transport.line.threads.remove(self.thread)

    def work(self):
        under_way = deque()
        try:
            self.check()
            for stage in self.left:
                if stage.block is not None and not self.stopped and not self.free.acquire(blocking=False):
                    self.bring(under_way)  # before rows are freed they must be here
                    self.free.acquire()
                under_way.append(self.start(stage))
                if len(under_way) > 1:
                    self.bring(under_way)
            self.bring(under_way)
        except BaseException as error:  # handed to the computing thread, which raises it
            self.ready.put(error)

    def bring(self, under_way):
        if under_way:
            rows = under_way.popleft()()
            if not self.stopped:
                self.ready.put(rows)

    def arrived(self, stage):
        rows = self.ready.get()
        if isinstance(rows, BaseException):
            raise rows
        return rows

    def release(self, stage):
        if stage.block is not None:
            self.free.release()
