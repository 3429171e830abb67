"""Rounds: rows of other hosts' parts enter a host once, into memory that its ranks share, and their gradients leave it once, added up.

Rounds follow each other in an order that is the same on every rank. In one of them the rows of a part come to a host, by one of its ranks,
the filler, and all its ranks compute with them. Ranks tell each other by tokens, messages of a byte, that rows are there or done with. Who
waits in a round waits for what others do in this round or in earlier ones, so nobody waits for ever.
"""

import threading

import numpy as np

from sarlite import kernels
from sarlite.errors import PeerError
from sarlite.sar.messages import layout, sections
from sarlite.sar.transport import Fetch, Prefetch, Push, Transfer, parts_of, wait_all

KINDS = GROWS, READ, FILLED, WRITTEN, ADDED = range(5)  # of tokens
LINE_BYTES = 64


class Telling(Transfer):
    """A transfer whose ranks tell each other by tokens. After a failure it starts nothing more, so that `recover` can join its threads."""

    def begin(self, host):
        self.host, self.told, self.lock, self.over = host, [], threading.Lock(), False
        self.others = [rank for rank in host.ranks if rank != host.rank]

    def __exit__(self, kind, error, trace):
        if error is not None:
            with self.lock:
                self.over = True
        super().__exit__(kind, error, trace)

    def finish(self):
        super().finish()
        wait_all(self.told)

    def __enter__(self):
        try:
            self.open()
        except BaseException as error:
            self.transport.fail(error)
            raise
        return super().__enter__()

    def tell(self, rank, kind):
        """Send a token to a rank of the host."""
        self.told.append(self.started(self.host.tokens.start_send, np.zeros(1, np.uint8), self.host.ranks.index(rank), self.token(kind)))

    def token_of(self, rank, kind):
        """Return the request of a token from a rank of the host."""
        return self.started(self.host.tokens.start_recv, np.zeros(1, np.uint8), self.host.ranks.index(rank), self.token(kind))

    def token(self, kind):
        return (len(KINDS) * self.tag + kind) % self.host.tokens.max_tag

    def receive(self, array, source):
        return self.started(self.comm.start_recv, array, source, self.tag) if array.nbytes else None

    def send(self, array, target):
        return self.started(self.comm.start_send, array, target, self.tag) if array.nbytes else None

    def started(self, start, *args):
        with self.lock:
            if self.over:
                raise PeerError("the aggregation has failed")
            return start(*args)


class Slots:
    """The places of a window that rounds use in turn, each of `n_sections` messages. Making them is collective on the host."""

    def __init__(self, transfer, name, rounds, n, n_sections=1):
        self.rounds, self.n, self.n_sections = [r for r in rounds if r.filler is not None], n, n_sections
        self.templates = transfer.templates
        most = max((layout(r.n_rows, self.templates)[1] for r in self.rounds), default=0)
        self.size = -(-most // LINE_BYTES) * LINE_BYTES
        self.window = _window(transfer, name, max(1, n * n_sections * self.size))

    def message(self, k, section=0):
        """Return (buffer, views) of the k-th round's message."""
        start, n_rows = (k % self.n * self.n_sections + section) * self.size, self.rounds[k].n_rows
        buffer = self.window.array[start : start + layout(n_rows, self.templates)[1]]
        return buffer, sections(buffer, n_rows, self.templates)


def _window(transfer, name, n_bytes):
    """Return the host's window of a name, of at least `n_bytes`. It grows on all ranks of the host in the same call."""
    host, kept = transfer.host, transfer.host.windows.get(name)
    if kept is not None and len(kept.array) >= n_bytes:
        return kept
    for rank in transfer.others:
        transfer.tell(rank, GROWS)
    wait_all([transfer.token_of(rank, GROWS) for rank in transfer.others])  # `recover` can cancel this, but not what follows
    if kept is not None:
        host.windows.pop(name).free()
    host.windows[name] = kernels.unbuffered(host.group.share, n_bytes)
    return host.windows[name]


class Rounds(Telling, Fetch):
    """Brings each round's rows when they are asked for."""

    n_slots = 1

    def __init__(self, transport, host, rounds, arrays, phase):
        Fetch.__init__(self, transport, rounds, arrays, phase)
        self.begin(host)
        self.n_begun = self.n_freed = 0
        self.held = {}

    def open(self):
        self.slots = Slots(self, "rows", self.steps, self.n_slots)
        for k in range(self.n_slots):
            self._give(k)

    def release(self, step=None):
        """Say that the rows taken last are freed."""
        if step.filler is not None:
            self._give(self.n_freed + self.n_slots)
            self.n_freed += 1
        super().release(step)

    def _give(self, k):
        """Tell the filler of the k-th that this rank has done with what stood in its place."""
        if k < len(self.slots.rounds) and self.slots.rounds[k].filler != self.host.rank:
            self.tell(self.slots.rounds[k].filler, READ)

    def exchange(self, step):
        """Take part in a round; return its rows where this rank computes with them, and the requests of what was sent."""
        receives, received, rows = [], 0, None
        if step.filler is not None:
            buffer, rows = self.slots.message(self.n_begun)
            if step.filler == self.host.rank:
                receives, received = self._fill(step, buffer, rows)
            self.n_begun += 1
        sends, sent = ([], 0) if step.target is None else self.send_rows(step)
        if receives:
            with self.profile.span("fetch", "fetch", peer=step.source, bytes=received, phase=self.phase):
                wait_all(receives)
        if step.filler == self.host.rank:
            self.slots.window.sync()
            for rank in self.others:
                self.tell(rank, FILLED)
        elif step.filler is not None:
            self.token_of(step.filler, FILLED).wait()
            self.slots.window.sync()
        self.profile.count(f"{self.phase}_fetch", sent, received)
        return None if step.block is None else rows, sends

    def _fill(self, step, buffer, rows):
        """Write this rank's rows to the window, or start to receive another's; return the requests and how many bytes come."""
        place = self.n_begun % self.n_slots
        self.held.pop(place, None)
        wait_all([self.token_of(rank, READ) for rank in self.others])
        self.slots.window.sync()
        self.held[place] = buffer
        self.profile.hold(buffer, step.share)
        if step.source == self.host.rank:
            self.transport.gather(self.arrays, step.send_rows, rows)
            return [], 0
        parts = parts_of(step, buffer, rows)
        return [self.receive(part, step.source) for part in parts], sum(part.nbytes for part in parts)


class RoundsAhead(Rounds, Prefetch):
    """Brings up to `prefetch` rounds ahead in a thread, which takes part in all of them."""

    @property
    def n_slots(self):
        return 1 + self.transport.prefetch * self.steps[0].share.denominator

    def __exit__(self, kind, error, trace):
        if error is not None:
            self.transport.line.late.append(self.thread.join)
        super().__exit__(kind, error, trace)


class SummedPush(Telling, Push):
    """Adds up the gradients of a round's rows in the host, in the order of its ranks, and sends the sums to the rows' owner.

    With a prefetch thread one round's travel while the next is computed.
    """

    def __init__(self, transport, host, rounds, d_arrays, phase):
        Push.__init__(self, transport, d_arrays, 1 if transport.prefetch else 0, phase)
        self.begin(host)
        self.rounds, self.k = rounds, -1

    def open(self):
        self.slots = Slots(self, "gradients", self.rounds, 1 + self.depth, len(self.host.ranks))

    def __exit__(self, kind, error, trace):
        super().__exit__(kind, error, trace)
        if error is not None and self.depth:
            self.transport.line.late.extend(finish for *_, finish in self.pending)

    def rows(self, step):
        """Return this rank's place for a round's gradients, zeros, once what stood there has been added; None where it has none."""
        if step.filler is None:
            return None
        self.k += 1
        self._added(self.k - self.slots.n)
        if step.block is None:
            return None
        buffer, views = self._section(self.k, self.host.rank)
        buffer[...] = 0
        return views

    def _section(self, k, rank):
        return self.slots.message(k, self.host.ranks.index(rank))

    def _added(self, k):
        """Wait until what this rank has written in the k-th round has been read."""
        if k >= 0 and self.host.rank not in (self.slots.rounds[k].source, self.slots.rounds[k].filler):
            self.token_of(self.slots.rounds[k].filler, ADDED).wait()

    def start(self, step):
        """Start to bring a round's gradients to the rows' owner, once those of the one before are there; without a thread finish it."""
        self._finish_all_but(0)
        rows, work = None, []
        if step.target is not None:
            buffer, rows = self.message(step.n_send, zero=False)
            self.profile.count(f"{self.phase}_push", 0, buffer.nbytes)
            request = self.receive(buffer, step.target)
            work.append(lambda: wait_all([request]))
        if step.filler == self.host.rank:
            message, views = self.message(step.n_rows, zero=False)
            rows = views if step.block is None else rows
            work.insert(0, self._adding(step, message, views))
        elif step.filler is not None:
            self.slots.window.sync()
            self.tell(step.filler, WRITTEN)

        def finish():
            for part in work:
                part()

        self.pending.append((step, rows, self.transport.finishing(finish)))
        self._finish_all_but(self.depth)

    def _adding(self, step, message, views):
        """Return what adds up the gradients of the round in this rank's host, and sends them."""
        k, writers = self.k, [rank for rank in self.host.ranks if rank != step.source]
        written = [self.token_of(rank, WRITTEN) for rank in writers if rank != self.host.rank]

        def add():
            wait_all(written)
            self.slots.window.sync()
            for n, rank in enumerate(writers):
                for view, d in zip(views, self._section(k, rank)[1]):
                    if view is not None and n:
                        self.transport.add_rows(d, slice(None), view)
                    elif view is not None:
                        view[...] = d
            for rank in writers:
                if rank != self.host.rank:
                    self.tell(rank, ADDED)
            if step.source != self.host.rank:
                self.profile.count(f"{self.phase}_push", message.nbytes)
                with self.profile.span("push", "push", peer=step.source, bytes=message.nbytes):
                    wait_all([self.send(message, step.source)])

        return add

    def _finish(self, step, rows, finish):
        with self.profile.span("wait", peer=step.source, phase="push"):
            finish()
        for d, received in zip(self.d_arrays, rows or ()):
            if d is not None:
                self.transport.add_rows(received, step.send_rows, d)

    def finish(self):
        self._finish_all_but(0)
        for k in range(self.k + 1 - self.slots.n, self.k + 1):
            self._added(k)
        super().finish()
