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
from sarlite.sar.plan import Exchange, n_pieces, range_ends
from sarlite.sar.relations import sets_of
from sarlite.sar.schedule import Schedule
from sarlite.sar.stages import Stages, StagesAhead
from sarlite.sar.stand_ins import CountedCut, Message, RowNumbers, Rows
from sarlite.sar.transport import Fetch, Line, Prefetch, Transport


class SetCounts(NamedTuple):
    """One set of a part's in-edges, such as a relation's.

    Attributes
    ----------
    n_dst : int
        Destination rows of the part.
    n_edges : list of int
        Its edges, added self loops too, by the part of their sources.
    n_rows : list of int
        Destination rows that have such edges.
    """

    n_dst: int
    n_edges: list
    n_rows: list


class PartCounts(NamedTuple):
    """How many rows and edges one part exchanges, by rank; enough for a mode to lay a plan out.

    Attributes
    ----------
    rank : int
    offsets : (size + 1,) int64
        First source row of each part.
    sets : list of SetCounts
        One; of relations that one fetch serves one each.
    needs, asked : list of (int, bool)
        Rows of each part that come here and rows that go there: how many, and whether they follow each other at their owner.
    degree : float
        As of `Exchange`.
    ranges : (list, list), or None
        Of `needs` and `asked`, a list of the same of each range of the owner's rows, where rows come in `n_pieces`. None: even ones.
    turned : PartCounts, or None
        Of the reversed edges; None where these exchange the same, on all ranks.
    """

    rank: int
    offsets: Any
    sets: list
    needs: list
    asked: list
    degree: float = 0.0
    ranges: Any = None
    turned: Any = None

    @property
    def size(self):
        return len(self.offsets) - 1

    @property
    def n_local(self):
        return int(self.offsets[self.rank + 1] - self.offsets[self.rank])

    @property
    def n_pieces(self):
        """As of `Exchange`."""
        return n_pieces(self.offsets, self.degree)

    def exchange(self):
        """Return the `Exchange` that `plan.build` would find, of counts."""
        ranges = self.ranges or [[None] * self.size] * 2
        needs, asked = ([RowNumbers(*found, own) for found, own in zip(*side)] for side in zip((self.needs, self.asked), ranges))
        src_ids = [RowNumbers(self.n_local) if q == self.rank else need for q, need in enumerate(needs)]
        cuts = [CountedCut(each.n_dst, each.n_edges) for each in self.sets]
        return Exchange(self.rank, np.asarray(self.offsets), cuts, needs, asked, src_ids, self.degree)


def counts_of_plan(comm, plan, sets):
    """Return the `PartCounts` of a sharded graph's part. Collective.

    Parameters
    ----------
    comm : Communicator
    plan : Plan
    sets : list of (n_dst, n_edges)
        The part's destination rows and edges, of each set of edges of the plan.

    Notes
    -----
    In mode `oneshot`, where a part's edges are one block, the peers' are divided among them as their rows are.
    """
    rank, size = comm.rank, comm.size
    facts = comm.allgather(plan.n_src)
    found = [SetCounts(n_dst, [0] * size, [0] * size) for n_dst, _ in sets]
    for step in plan.steps:
        for k, each in enumerate(found):
            if step.block is None:
                n = sets_of(plan.local)[k].n_edges * step.n_rows // (plan.n_src + plan.n_halo)
                n_rows = min(each.n_dst, n)
            else:
                edges = sets_of(step.block)[k]
                n, n_rows = edges.n_edges, len(edges.indptr) - 1
            each.n_edges[step.source] += n
            each.n_rows[step.source] = max(each.n_rows[step.source], n_rows)
    for each, (n_dst, n_edges) in zip(found, sets):
        each.n_edges[rank], each.n_rows[rank] = n_edges - sum(each.n_edges), n_dst
    counts = PartCounts(rank, np.concatenate([[0], np.cumsum(facts)]), found, [], [], plan.degree)
    return exchanging(comm, counts, plan.asked(size))


def exchanging(comm, counts, asked):
    """Return `counts` of a part of whose rows `asked`, by rank, go there. Collective."""
    ends, told = range_ends(counts.offsets, counts.rank, counts.n_pieces), []
    for rows in asked:
        told.append((counted(rows), [counted(own) for own in np.split(rows, np.searchsorted(rows, ends[:-1]))] if len(ends) > 1 else None))
    came = [found[counts.rank] for found in comm.allgather(told)]
    (needs, need_ranges), (asked, ask_ranges) = zip(*came), zip(*told)
    return counts._replace(needs=[*needs], asked=[*asked], ranges=([*need_ranges], [*ask_ranges]) if len(ends) > 1 else None)


def counted(rows):
    """How many different rows there are, equal ones side by side, and whether each follows the one before."""
    steps = np.diff(rows)
    return (0, True) if len(rows) == 0 else (1 + int(np.count_nonzero(steps)), bool(((steps == 0) | (steps == 1)).all()))


def counts_of(graph):
    """Return the `PartCounts` of a `Graph`'s part. Collective."""
    return counts_of_plan(graph.comm, graph.plan, [(graph.n_dst, graph.n_edges)])


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

    def needed(k):  # by any of k ranks, of each other part's rows
        return share(k / size) if halo is None else 1 - (1 - halo) ** k

    wanted = needed(1)
    own = n_edges * local // n_nodes
    inside = round(own * (local / n_nodes if halo is None else max(0.0, 1 - halo)))
    sizes = [int(n) for n in np.diff(offsets)]
    far = [0, *(round((own - inside) * n / max(n_nodes - local, 1)) for n in sizes[1:])]
    needs = [(0, True), *((round(n * wanted), wanted >= 1) for n in sizes[1:])]
    asked = [(0, True), *((round(local * wanted), wanted >= 1) for _ in sizes[1:])]
    n_rows = [local, *(min(local, round(local * share(1 / size)), n) for n in far[1:])]
    edges = SetCounts(local, [own - sum(far) + (local if loops else 0), *far[1:]], n_rows)
    degree = n_edges / max(n_nodes, 1) + bool(loops)
    return PartCounts(0, offsets, [edges], needs, asked, degree)


# ---- in place of the transport


class _Sent:
    """Stands in for a request, which keeps what is sent."""

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
        return _Sent(None)

    def start_broadcast(self, array, root):
        self.n_messages += 1
        return _Sent(array)

    def allgather(self, value):
        return [value]


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
        Of messages.

    Attributes
    ----------
    n_messages, packed_bytes : int
        Messages sent (of a broadcast one; tokens too), and bytes that were copied to be sent, or to be read by others.
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

    def gather(self, arrays, rows, views):
        self.packed_bytes += sum(view.nbytes for view in views)

    def add_rows(self, received, rows, d):
        pass

    def finishing(self, finish):
        return finish


class _FetchAhead(Fetch):
    """`Prefetch` whose thread is always as far ahead as it may be."""

    def __enter__(self):
        self.ready, self.coming, self.sends = deque(), iter(self.steps), None
        for _ in range(1 + self.transport.prefetch * self.steps[0].share.denominator):
            self.bring()
        return self

    def arrived(self, step):
        return self.ready.popleft()

    def release(self, step=None):
        self.bring()

    def bring(self):
        step = next(self.coming, None)
        if step is not None:
            rows, self.sends = self.exchange(step)  # the last message stays with the thread until the next has gone
            self.ready.append(rows)

    def finish(self):
        self.sends = None


class _StagesAhead(Stages):
    """`StagesAhead` likewise."""

    def __enter__(self):
        self.ready, self.waiting = deque(), next(self.left, None)
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


def schedule_of(counts, mode, prefetch, places=None, transport=None):
    """Return the `Schedule` of a part in a mode: its `run` and `run_backward` take `Rows` for arrays.

    By default with a `CountingTransport` of its own. `counts` that are no `PartCounts` make it themselves: `schedule(transport)`.
    """
    if not isinstance(counts, PartCounts):
        return counts.schedule(transport)
    mode, transport = MODES[mode], transport or CountingTransport(counts.rank, counts.size, prefetch, places)
    made = Schedule(mode.prepare(counts.exchange(), transport.prefetch), transport, mode)
    if counts.size == 1 or counts.turned is None:
        return made if counts.size == 1 else made._replace(reverse=made)
    turned = mode.prepare(counts.turned.exchange(), transport.prefetch)
    return made._replace(reverse=Schedule(turned, transport, mode))


def schedules_of(counts, mode, prefetch, places=None):
    """Return a `CountingTransport` and the schedules that share it, by `Aggregation.over`.

    Parameters
    ----------
    counts : PartCounts, or dict of PartCounts
        Of a relational graph by the relations that one fetch serves.
    """
    if isinstance(counts, PartCounts):
        made = schedule_of(counts, mode, prefetch, places)
        over = {"edges": made, "reverse": made.reverse}
        return made.transport, over
    first = next(iter(counts.values()))
    transport = CountingTransport(first.rank, first.size, prefetch, places)
    return transport, {chosen: schedule_of(each, mode, prefetch, transport=transport) for chosen, each in counts.items()}
