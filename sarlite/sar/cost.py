"""What an aggregation moves: sums over the arrivals of a plan; and what a part exchanges, in any mode.

`exchanged` tells it of a graph that is there: by `Needs` without edges, of which `mode.lay_out(needs, prefetch)` makes
the pieces that a real run has. `expected` tells it of a graph that is not, in numbers alone.
"""

from collections import Counter
from typing import Any, NamedTuple

import numpy as np

from sarlite.graph.part import EdgesByOwner, InEdges
from sarlite.sar.schedule.messages import layout, row_bytes
from sarlite.sar.schedule.needs import Needs
from sarlite.sar.schedule.pieces import Plan


class Aggregation(NamedTuple):
    """One aggregation, forward or backward.

    Attributes
    ----------
    plan : Plan
    over : hashable
        Which edges the plan is of.
    phase, within : str, str or None
        What its bytes are counted under; the phase of the profile that stands in for it, as "evaluation".
    fetched : tuple of (row shape, dtype), or None
        Of the rows that come from peers; None where none come.
    gradients : tuple of (row shape, dtype) or None, or None
        Of the gradients that go to the rows' owners; None forward.
    """

    plan: Plan
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
    n_src : int
        Source rows that this rank owns.
    n_needed : list of int
        By rank, its rows that come here.
    n_edges : list of list of int
        Of each set, its edges by the part of their sources.
    needs : Needs, or None
        Without edges; None of a graph that is not there.
    turned : Exchanged, or None
        Of the reversed edges.
    """

    n_src: int
    n_needed: list[int]
    n_edges: list[list[int]]
    needs: Needs | None = None
    turned: Any = None

    @property
    def size(self) -> int:
        """How many ranks there are."""
        return len(self.n_needed)

    @property
    def n_halo(self) -> int:
        """How many peers' rows come."""
        return sum(self.n_needed)


def _exchanged(rank, offsets, needs, asked, degree, n_edges):
    size, nothing = len(needs), np.empty(0, np.int64)
    no_edges = EdgesByOwner(InEdges(np.zeros(1, np.int64), nothing), [nothing] * size, [nothing] * size)
    src_ids = [*needs]
    src_ids[rank] = np.broadcast_to(np.int64(0), offsets[rank + 1] - offsets[rank])  # which rows they are nobody asks
    found = Needs(rank, offsets, [no_edges], needs, asked, src_ids, degree)
    return Exchanged(found.n_src, [*map(len, needs)], n_edges, found)


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
    found = _exchanged(rank, offsets, comm.alltoall(asked), asked, plan.degree, sets)
    if not turns or size == 1:
        return found
    out = [ranks[rank] for ranks in comm.allgather(sets[0])]
    needs = comm.alltoall(reached)
    return found._replace(turned=_exchanged(rank, offsets, needs, reached, plan.degree, [out]))


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


def expected(n_nodes: int, n_edges: int, size: int, *, halo: float | None = None, degrees: Any = None,
             loops: bool = False) -> Exchanged:
    """Return what rank 0 is expected to exchange of a symmetric graph in `size` even parts.

    Parameters
    ----------
    n_nodes, n_edges, size : int
    halo : float, optional
        Share of the other parts' rows that a part needs; by default that of random parts: a row of another part is
        needed unless all its neighbours are elsewhere, 1 - (1 - 1 / size) ** degree.
    degrees : (2, k) array, optional
        Degrees and how many nodes have each, for which that share is averaged; by default all have the mean.
    loops : bool
        Whether a self loop is added to each node.
    """
    sizes = np.diff(np.arange(size + 1) * n_nodes // size).tolist()
    local = sizes[0]
    values, counts = np.array([[n_edges / n_nodes], [n_nodes]] if degrees is None else degrees, float)
    if halo is None:
        halo_of = float((counts * -np.expm1(values * np.log1p(-1 / size))).sum() / counts.sum()) if size > 1 else 0.0
    own = n_edges * local // n_nodes
    inside = round(own * (local / n_nodes if halo is None else max(0.0, 1 - halo)))
    far = [round((own - inside) * n / max(n_nodes - local, 1)) for n in sizes[1:]]
    needed = [0, *(round(n * (halo_of if halo is None else halo)) for n in sizes[1:])]
    return Exchanged(local, needed, [[own - sum(far) + (local if loops else 0), *far]])
