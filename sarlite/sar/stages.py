"""Stages: each rank's rows broadcast in turn, in the same order on every rank (MG-GCN 4.1, Figure 2), or ahead by a thread (4.3)."""

import contextvars
import queue
import threading
from typing import Any, NamedTuple

from sarlite.sar.messages import templates_of
from sarlite.sar.transport import Transfer

PIECE = 1 << 17  # bytes of the rows that are moved at once, which are copied: few, so that they stay in the processor's cache


class Stage(NamedTuple):
    """One round: `root` sends all its rows to every rank.

    Attributes
    ----------
    root : int
    block : Edges, or None
        Whose columns are the rows that come; None in the stage in which this rank is the root.
    n_rows : int
        The root's.
    needed : slice or (n,) int
        Those of them that are the block's columns, ascending.
    """

    root: int
    block: Any
    n_rows: int
    needed: Any


class Stages(Transfer):
    """Brings each stage's rows when they are asked for.

    After a failure of what is computed with them the rank still takes part in the other stages, whose rows it drops: other ranks, which may
    have failed at another stage, wait for it.
    """

    def __init__(self, transport, stages, arrays, phase):
        super().__init__(transport, transport.comm.channel("broadcast"))
        self.left, self.arrays, self.phase, self.templates = iter(stages), arrays, phase, templates_of(arrays)

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
            return self._broadcast(stage)
        except BaseException:
            self.left = iter(())  # nobody knows how far the other ranks are
            raise

    def _broadcast(self, stage):
        own = stage.block is None
        buffer, rows = (None, self.arrays) if own else self.transport.allocate(stage.n_rows, self.templates)
        n_bytes = sum(array.nbytes for array in rows)
        if buffer is not None:
            self.profile.hold(buffer)
        with self.profile.span("broadcast", "fetch", peer=stage.root, bytes=n_bytes, phase=self.phase):
            for array in rows:
                if array.nbytes:
                    self.comm.broadcast(array, stage.root)
        sent = (self.comm.size - 1) * n_bytes if own else 0
        self.profile.count(f"{self.phase}_fetch", sent, 0 if own else n_bytes)
        return None if own else tuple(_columns(array, stage.needed) for array in rows)


def _columns(rows, needed):
    """The needed rows, brought to the front in place: each only moves forward, so what is still to be read was not written over."""
    if isinstance(needed, slice):
        return rows[needed]
    some = max(1, PIECE * len(rows) // max(rows.nbytes, 1))
    for a in range(0, len(needed), some):
        part = needed[a : a + some]
        rows[a : a + len(part)] = rows[part]
    return rows[: len(needed)]


class StagesAhead(Stages):
    """Brings up to `prefetch` stages ahead in a thread; stage j + 1 + prefetch waits until the rows of stage j are freed."""

    def __enter__(self):
        self.ready = queue.SimpleQueue()
        self.free = threading.Semaphore(1 + self.transport.prefetch)
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
        try:
            for stage in self.left:
                if stage.block is not None and not self.stopped:
                    self.free.acquire()
                rows = self.broadcast(stage)
                if not self.stopped:
                    self.ready.put(rows)
                del rows
        except BaseException as error:  # handed to the computing thread, which raises it
            self.ready.put(error)

    def arrived(self, stage):
        rows = self.ready.get()
        if isinstance(rows, BaseException):
            raise rows
        return rows

    def release(self, stage):
        if stage.block is not None:
            self.free.release()
