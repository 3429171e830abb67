"""What an aggregation moves: sums over the arrivals of a plan, which a mode lays out of counts as it does of edges.

`found` tells what a part exchanges, of a graph that is there, and `expected` of one that is not. Both are `Needs` without edges: they say
which rows go where, or only how many, and `mode.lay_out(needs, prefetch)` makes the pieces that a real run has.
"""

from collections import Counter
from typing import Any, NamedTuple

import numpy as np

from sarlite.sar.schedule.messages import layout, row_bytes
from sarlite.sar.schedule.needs import Needs
from sarlite.sar.schedule.pieces import Plan


class Aggregation(NamedTuple):
    """One aggregation, forward or backward.

    Attributes
    ----------
    over : hashable
        Which edges.
    phase, within : str, str or None
        What its bytes are counted under; the phase of the profile that stands in for it, as "evaluation".
    fetched : tuple of (row shape, dtype), or None
        Of the rows that come from peers; None where none come.
    gradients : tuple of (row shape, dtype) or None, or None
        Of the gradients that go to the rows' owners; None forward.
    """

    over: Any
    phase: str
    within: str | None
    fetched: Any
    gradients: Any = None


class Moved(NamedTuple):
    """Bytes by phase; `packed_bytes` are those of sent rows that are copied into messages."""

    sent: Counter[str]
    received: Counter[str]
    packed_bytes: int = 0


def moved(plan: Plan, size: int, made: Aggregation) -> Moved:
    """Return what an aggregation over a plan sends and receives here, on one of `size` ranks, to the byte."""
    sent, received, packed = Counter[str](), Counter[str](), 0
    fetch, push = (made.within or f"{made.phase}_{way}" for way in ("fetch", "push"))
    pieces = plan.forward if made.gradients is None else plan.backward
    for arrival in (arrival for piece in pieces for arrival in piece.arrivals):
        if made.fetched is not None:
            as_they_stand = isinstance(arrival.send_rows, slice)
            n_bytes = _n_bytes(arrival.n_send, made.fetched, as_they_stand)
            sent[fetch] += n_bytes * (size - 1 if arrival.target is None else 1)
            received[fetch] += _n_bytes(arrival.n_rows, made.fetched, arrival.contiguous)
            packed += 0 if as_they_stand else n_bytes
        if made.gradients is not None:
            sent[push] += _n_bytes(arrival.n_rows, made.gradients)
            received[push] += _n_bytes(arrival.n_send, made.gradients)
    return Moved(sent, received, packed)


def _n_bytes(n_rows, templates, array_by_array=False):
    """Of one message; or of each array's rows as they stand, whose sections are not aligned."""
    return n_rows * sum(map(row_bytes, templates)) if array_by_array else layout(n_rows, templates)[1]


class Exchanged(NamedTuple):
    """What a part exchanges over one set of edges, or over the edges of several relations that one fetch serves.

    Attributes
    ----------
    needs : Needs
        Without edges.
    n_edges : list of list of int
        Of each set, its edges by the part of their sources.
    turned : Exchanged, or None
        Of the reversed edges.
    """

    needs: Needs
    n_edges: list[list[int]]
    turned: Any = None

    @property
    def n_src(self) -> int:
        return self.needs.n_src

    @property
    def n_halo(self) -> int:
        """How many peers' rows come."""
        return sum(map(len, self.needs.needs))

    def plan(self, mode: Any, prefetch: int) -> Plan:
        """Return the plan that a mode lays out."""
        return mode.lay_out(self.needs, prefetch)


class _Block:
    """Stands for a block: only rows are told."""

    offset = 0

    def columns(self, a, b):
        return self


class _Cut:
    """Stands for an `EdgesByOwner`."""

    edges = property(lambda self: self)
    indices = ()

    def blocks(self, rank, ends, src_ids, offsets, dtype):
        return [_Block() for _ in src_ids]

    def merged(self, src_ids, offsets, dtype):
        return _Block()


def _needs(rank, offsets, needs, asked, degree):
    src_ids = [*needs]
    src_ids[rank] = Some(int(offsets[rank + 1] - offsets[rank]), True)
    return Needs(rank, offsets, [_Cut()], needs, asked, src_ids, degree)


def exchanged(comm: Any, plan: Plan, turns: bool = False) -> Exchanged:
    """Return what a part exchanges of a graph that is there, in any mode. Collective.

    Parameters
    ----------
    comm : Communicator
    plan : Plan
    turns : bool
        Whether reversed edges are told, too. Of one set of edges.

    Notes
    -----
    Sends 8 bytes a row that goes to a peer, and as much for the reversed edges.
    """
    rank, size = comm.rank, comm.size
    offsets = np.concatenate([[0], np.cumsum(comm.allgather(plan.n_src))])
    sets = edges_by_owner(plan, rank, size)
    reached = [np.empty(0, np.int64)] * size  # rows here that have edges from each peer
    for block, owner, columns in plan.halo() if turns else ():
        for edges in _sets(block):
            reached[owner] = np.union1d(reached[owner], edges.dst[_inside(edges, columns)]).astype(np.int64)
    asked = plan.asked(size)
    found = Exchanged(_needs(rank, offsets, comm.alltoall(asked), asked, plan.degree), sets)
    if not turns or size == 1:
        return found
    out = [ranks[rank] for ranks in comm.allgather(sets[0])]
    needs = comm.alltoall(reached)
    return found._replace(turned=Exchanged(_needs(rank, offsets, needs, reached, plan.degree), [out]))


def edges_by_owner(plan: Plan, rank: int, size: int) -> list[list[int]]:
    """Return of each set of edges how many have their source on each rank."""
    sets = [[0] * size for _ in _sets(plan.local)]
    for block, owner, columns in plan.halo():
        for own, edges in zip(sets, _sets(block)):
            own[owner] += int(np.count_nonzero(_inside(edges, columns)))
    for k, own in enumerate(sets):
        own[rank] = sum(_sets(block)[k].n_edges for block in plan.blocks) - sum(own)
    return sets


def _inside(edges, columns):
    return (edges.indices >= columns.start) & (edges.indices < columns.stop)


def _sets(block):
    return block if isinstance(block, tuple) else (block,)


def expected(n_nodes: int, n_edges: int, size: int, *, halo: float | None = None, degrees: Any = None, loops: bool = False) -> Exchanged:
    """Return what rank 0 is expected to exchange of a symmetric graph in `size` even parts.

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
    local, sizes = int(offsets[1]), np.diff(offsets).tolist()
    values, counts = (np.array([n_edges / n_nodes]), np.array([n_nodes])) if degrees is None else np.asarray(degrees, float)
    random = float((counts * -np.expm1(values * np.log1p(-1 / size))).sum() / counts.sum()) if size > 1 else 0.0
    wanted = random if halo is None else halo
    own = n_edges * local // n_nodes
    inside = round(own * (local / n_nodes if halo is None else max(0.0, 1 - halo)))
    far = [round((own - inside) * n / max(n_nodes - local, 1)) for n in sizes[1:]]
    needs, asked = ([Some(0), *(Some(round(n * wanted), wanted >= 1) for n in each[1:])] for each in (sizes, [local] * size))
    edges = [own - sum(far) + (local if loops else 0), *far]
    found = Exchanged(_needs(0, offsets, needs, asked, n_edges / max(n_nodes, 1) + bool(loops)), [edges])
    return found._replace(turned=found)


class Some:
    """Stands for `n` ascending row numbers; `contiguous` tells whether each follows the one before."""

    def __init__(self, n: int, contiguous: bool = False) -> None:
        self.n, self.contiguous = n, contiguous

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, slice):
            return Some(len(range(*key.indices(self.n))), self.contiguous)
        return key % self.n * (1 if self.contiguous else 2)  # so that the ends differ by more than their number

    def __array_function__(self, function: Any, types: Any, args: Any, kwargs: Any) -> Any:
        if function is np.concatenate:
            return Some(sum(map(len, args[0])))
        if function is np.diff:
            return np.ones(1)
        if function is np.searchsorted:  # where even ranges begin
            n = len(args[1]) + 1
            return np.arange(1, n) * self.n // n
        if function is np.split:
            ends = [0, *args[1], self.n]
            return [Some(b - a, self.contiguous) for a, b in zip(ends, ends[1:])]
        return NotImplemented

    def __sub__(self, first: int) -> "Some":
        return self

    def max(self) -> int:
        return self.n

    def astype(self, dtype: Any) -> "Some":
        return self
