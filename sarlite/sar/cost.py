"""What an aggregation costs: a mode's own code, run over counts in place of arrays and with nobody at the other end.

`CountingTransport` stands in for `Transport`, and `stand_ins.Rows` for arrays of rows: they have a shape and a dtype, and no values. All
that decides sizes (which rows go, in which messages, what is held how long) is the code that a real run takes, so a new mode is counted as
soon as it is there. A `PartCounts` tells how many rows and edges a part exchanges: of a graph that is there (`counts_of`), or expected of
one that is not (`expected`).
"""

from collections import deque
from typing import Any, NamedTuple

import numpy as np

from sarlite.comm import Solo
from sarlite.profile import Profile
from sarlite.sar.messages import layout, templates_of
from sarlite.sar.modes import MODES
from sarlite.sar.plan import Exchange
from sarlite.sar.schedule import Schedule
from sarlite.sar.stages import Stages, StagesAhead
from sarlite.sar.stand_ins import CountedCut, Message, RowNumbers, Rows
from sarlite.sar.transport import Fetch, Line, Prefetch, Transport


class PartCounts(NamedTuple):
    """How many rows and edges one part exchanges, by rank; enough for a mode to lay a plan out.

    Attributes
    ----------
    rank : int
    offsets : (size + 1,) int64
        First row of each part.
    n_edges : list of int
        The part's in-edges, added self loops too, by the part of their sources.
    n_rows : list of int
        Of its rows those that have such edges.
    needs, asked : list of (int, bool)
        Rows of each part that come here and rows that go there: how many, and whether they follow each other at their owner.
    turned : PartCounts, or None
        Of the reversed edges; None where these exchange the same, on all ranks.
    cover : (PartCounts, PartCounts), or None
        Of mode `cover`: of the edges by rows, and of the reversed ones by sums; None where there are none of these on any rank.
    """

    rank: int
    offsets: Any
    n_edges: list
    n_rows: list
    needs: list
    asked: list
    turned: Any = None
    cover: Any = None

    @property
    def size(self):
        return len(self.offsets) - 1

    @property
    def n_local(self):
        return int(self.offsets[self.rank + 1] - self.offsets[self.rank])

    def exchange(self):
        """Return the `Exchange` that `plan.build` would find, of counts."""
        needs, asked = ([RowNumbers(*found) for found in side] for side in (self.needs, self.asked))
        src_ids = [RowNumbers(self.n_local) if q == self.rank else need for q, need in enumerate(needs)]
        return Exchange(self.rank, np.asarray(self.offsets), [CountedCut(self.n_local, self.n_edges)], needs, asked, src_ids)


def counts_of(graph):
    """Return the `PartCounts` of a sharded graph's part. Collective.

    Notes
    -----
    In mode `oneshot`, where a part's edges are one block, the peers' are divided among them as their rows are.
    """
    plan, rank, size = graph.plan, graph.comm.rank, graph.comm.size
    facts = graph.comm.allgather(graph.n_src)
    n_edges, n_rows, needs, asked = [0] * size, [0] * size, [(0, True)] * size, [(0, True)] * size
    halo = sum(step.n_rows for step in plan.steps)
    for step in plan.steps:
        needs[step.source] = step.n_rows, step.contiguous
        asked[step.target] = step.n_send, isinstance(step.send_rows, slice)
        if step.block is None:
            n_edges[step.source] = plan.local.n_edges * step.n_rows // (graph.n_src + halo)
            n_rows[step.source] = min(graph.n_dst, n_edges[step.source])
        else:
            n_edges[step.source], n_rows[step.source] = step.block.n_edges, len(step.block.indptr) - 1
    n_edges[rank], n_rows[rank] = graph.n_edges - sum(n_edges), graph.n_dst
    return PartCounts(rank, np.concatenate([[0], np.cumsum(facts)]), n_edges, n_rows, needs, asked)


def expected(n_nodes, n_edges, size, *, halo=None, degrees=None, loops=False):
    """Return the `PartCounts` of rank 0 that are expected of a symmetric graph in `size` even parts.

    Parameters
    ----------
    n_nodes, n_edges, size : int
    halo : float, optional
        Share of the other parts' rows that a part needs; by default that of random parts: a row of another part is needed unless all
        its neighbours are elsewhere, 1 - (1 - 1 / size) ** degree.
    degrees : (2, k) array, optional
        Degrees and how many nodes have each, for which that share is averaged; by default all have the mean.
    loops : bool
        Whether a self loop is added to each node.
    """
    offsets = np.arange(size + 1) * n_nodes // size
    local = int(offsets[1])
    values, counts = (np.array([n_edges / n_nodes]), np.array([n_nodes])) if degrees is None else np.asarray(degrees, float)

    def share(part):
        return float((counts * -np.expm1(values * np.log1p(-part))).sum() / counts.sum()) if part < 1 else 1.0

    wanted = share(1 / size) if halo is None else halo
    own = n_edges * local // n_nodes
    inside = round(own * (local / n_nodes if halo is None else max(0.0, 1 - halo)))
    sizes = [int(n) for n in np.diff(offsets)]
    far = [0, *(round((own - inside) * n / max(n_nodes - local, 1)) for n in sizes[1:])]
    needs = [(0, True), *((round(n * wanted), wanted >= 1) for n in sizes[1:])]
    asked = [(0, True), *((round(local * wanted), wanted >= 1) for _ in sizes[1:])]
    n_rows = [local, *(min(local, round(local * share(1 / size)), n) for n in far[1:])]
    return PartCounts(0, offsets, [own - sum(far) + (local if loops else 0), *far[1:]], n_rows, needs, asked)


# ---- in place of the transport


class _Sent:
    """Stands in for the request of a message, which keeps what is sent."""

    def __init__(self, array):
        self.array = array

    def wait(self):
        pass


class _Nobody:
    """Stands in for a communicator: takes what is sent, and gives nothing, or zeros where there are arrays."""

    max_tag, threaded = 1 << 15, True

    def __init__(self, rank, size):
        self.rank, self.size, self.n_messages = rank, size, 0

    def channel(self, name):
        return self

    def start_send(self, array, target, tag):
        self.n_messages += 1
        return _Sent(array)

    def start_recv(self, array, source, tag):
        array[...] = 0

    def broadcast(self, array, root):
        self.n_messages += 1


class Mirror(Solo):
    """A communicator whose every peer has what this rank has: for collectives, in a run that nobody joins."""

    def __init__(self, rank, size):
        self.rank, self.size = rank, size

    def allgather(self, value):
        return [value] * self.size

    def alltoall(self, arrays):
        return [array.copy() for array in arrays]


class CountingTransport(Transport):
    """Counts what would travel, in its `profile`, and places what would be held.

    Parameters
    ----------
    rank, size, prefetch : int
    places : kernels.Places, optional

    Attributes
    ----------
    n_messages, packed_bytes : int
        Messages sent (of a broadcast one), and bytes that were copied to be sent.
    """

    def __init__(self, rank, size, prefetch, places=None):
        self.comm = self.fetch_comm = self.push_comm = _Nobody(rank, size)
        self.prefetch, self.profile, self.line = prefetch, Profile(), Line(self.comm)
        self.places, self.packed_bytes = places, 0

    @property
    def n_messages(self):
        return self.comm.n_messages

    def chosen(self, plain, ahead):
        return _AHEAD[ahead] if self.prefetch and ahead in _AHEAD else plain

    def allocate(self, n_rows, templates, zero=False):
        buffer = Message(layout(n_rows, templates)[1], self.places)
        return buffer, tuple(None if t is None else Rows((n_rows, *t[0]), t[1], buffer) for t in templates)

    def pack(self, arrays, rows):
        buffer, _ = self.allocate(len(rows), templates_of(arrays))
        self.packed_bytes += buffer.nbytes
        return buffer

    def add_rows(self, received, rows, d):
        pass

    def finishing(self, finish):
        return finish


class _FetchAhead(Fetch):
    """`Prefetch` whose thread is always as far ahead as it may be."""

    def __enter__(self):
        self.ready, self.coming, self.sends = deque(), iter(self.steps), None
        for _ in range(1 + self.transport.prefetch * self.steps[0].share.denominator):
            self.release()
        return self

    def arrived(self, step):
        return self.ready.popleft()

    def release(self):
        step = next(self.coming, None)
        if step is not None:
            rows, self.sends = self.exchange(step)  # the last message stays with the thread until the next has gone
            self.ready.append(rows)

    def finish(self):
        self.sends = None


class _StagesAhead(Stages):
    """`StagesAhead` likewise."""

    def __enter__(self):
        self.ready, self.room, self.waiting = deque(), 1 + self.transport.prefetch, next(self.left, None)
        self.fill()
        return self

    def fill(self):
        while self.waiting is not None and (self.room or self.waiting.block is None):
            self.room -= self.waiting.block is not None
            self.ready.append(self.broadcast(self.waiting))
            self.waiting = next(self.left, None)

    def arrived(self, stage):
        return self.ready.popleft()

    def release(self, stage):
        self.room += stage.block is not None
        self.fill()


_AHEAD = {Prefetch: _FetchAhead, StagesAhead: _StagesAhead}


def schedule_of(counts, mode, prefetch, places=None):
    """Return the `Schedule` of a part in a mode, with a `CountingTransport`: its `run` and `run_backward` take `Rows` for arrays."""
    mode, transport = MODES[mode], CountingTransport(counts.rank, counts.size, prefetch, places)

    def of(counts):
        return Schedule(mode.prepare(counts.exchange()), transport, mode)

    made, cover = of(counts), None
    if counts.size == 1:
        return made
    if mode.covers and counts.cover is not None:
        by_rows, by_sums = map(of, counts.cover)
        cover = by_rows._replace(summed=by_sums)
    return made._replace(reverse=made if counts.turned is None else of(counts.turned), cover=cover)


def structure_bytes(counts, mode, transposed, turns, edge_values=False):
    """Return what a part's graph takes, to some per cent: blocks, ids, degrees and scales.

    `transposed` are the edges whose blocks backward walks (`Aggregation.over`), `turns` whether the reversed ones are there too.
    With `edge_values` a transpose has its edges' positions too, for which it is made once more. The values are data, and not counted here.
    """
    made = schedule_of(counts, mode, 0)
    total = 8 * counts.n_local * 6 + _structure(counts, made.plan, "edges" in transposed, {"edges", "cover"} & transposed)
    if turns and counts.turned is not None:
        total += _structure(counts.turned, made.reverse.plan, False, False)
    if made.cover is not None:  # whose local block is that of all edges
        by_rows, by_sums = counts.cover
        total += _structure(by_rows, made.cover.plan._replace(local=None), "cover" in transposed, False)
        total += _structure(by_sums, made.cover.summed.plan, "summed" in transposed, False)
    return total + (_positions(made.plan) if edge_values and "edges" in transposed else 0)


def _structure(counts, plan, transposes, transposes_local):
    blocks = [(counts.n_rows[step.source], step.block, transposes) for step in plan.steps if step.block is not None]
    blocks += [(counts.n_local, plan.local, transposes_local)] if plan.local is not None else []
    total = 16 * plan.n_halo  # ids and scales of columns; rows that are sent
    total += sum(4 * n for n, contiguous in counts.asked if not contiguous)
    for n_rows, block, transposed in blocks:
        dense = 3 * n_rows > 2 * counts.n_local  # as `graph.part` decides
        itemsize = 4 if max(sum(counts.n_edges), counts.n_local + plan.n_halo) < 2**31 else 8
        total += itemsize * block.n_edges + (8 * counts.n_local if dense else (8 + itemsize) * n_rows)
        total += itemsize * block.n_edges + 8 * block.n_src if transposed else 0
    return total


def _positions(plan):
    """What the positions of transposed edges take, and the largest transpose, which is made once more for them."""
    blocks = [plan.local, *(step.block for step in plan.steps if step.block is not None)]
    itemsize = 4 if max(sum(block.n_edges for block in blocks), plan.n_src + plan.n_halo) < 2**31 else 8
    return sum(itemsize * block.n_edges for block in blocks) + max(itemsize * block.n_edges + 8 * block.n_src for block in blocks)
