"""What an aggregation moves: sums over the arrivals of pieces; and what a part exchanges, in any mode.

`exchanged` tells it of a graph that is there: by `Needs` without edges, of which `mode.lay_out(needs, prefetch)` makes
the pieces that a real run has. `expected` tells it of a graph that is not, in numbers alone.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from sarlite.graph.part import EdgesByOwner, InEdges
from sarlite.sar.schedule.messages import layout, row_bytes
from sarlite.sar.schedule.needs import Needs
from sarlite.sar.schedule.pieces import Piece, Plan


def fetched(pieces: Sequence[Piece], size: int, templates: Any) -> tuple[int, int, int]:
    """Return the bytes that one of `size` ranks sends and receives where rows of arrays are fetched over pieces, and
    those of sent rows that are copied into messages.

    `templates` are the (row shape, dtype) of each array.
    """
    sent, received, packed = 0, 0, 0
    for arrival in (arrival for piece in pieces for arrival in piece.arrivals):
        as_they_stand = isinstance(arrival.send_rows, slice)
        n_bytes = _n_bytes(arrival.n_send, templates, as_they_stand)
        sent += n_bytes * (size - 1 if arrival.target is None else 1)
        received += _n_bytes(arrival.n_rows, templates, arrival.contiguous)
        packed += 0 if as_they_stand else n_bytes
    return sent, received, packed


def pushed(pieces: Sequence[Piece], templates: Any) -> tuple[int, int]:
    """Return the bytes that a rank sends and receives where gradients are pushed to the rows' owners.

    `templates` are as of `fetched`; None of an array that needs no gradient.
    """
    arrivals = [arrival for piece in pieces for arrival in piece.arrivals]
    return (sum(_n_bytes(arrival.n_rows, templates) for arrival in arrivals),
            sum(_n_bytes(arrival.n_send, templates) for arrival in arrivals))


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
    """

    n_src: int
    n_needed: list[int]
    n_edges: list[list[int]]
    needs: Needs | None = None

    @property
    def size(self) -> int:
        """How many ranks there are."""
        return len(self.n_needed)

    @property
    def n_halo(self) -> int:
        """How many peers' rows come."""
        return sum(self.n_needed)


def exchanged(comm: Any, plan: Plan) -> Exchanged:
    """Return what a part exchanges of a graph that is there, in any mode. Collective; sends 8 bytes a row that goes to
    a peer.
    """
    asked = plan.asked(comm.size)
    return _exchanged(comm, plan, comm.alltoall(asked), asked, edges_by_owner(plan, comm.rank, comm.size))


def reversed_exchanged(comm: Any, plan: Plan) -> Exchanged:
    """Return what a part exchanges over the reversed edges of a graph of one set of edges. Collective; sends as much.
    """
    asked = [np.empty(0, np.int64)] * comm.size  # rows here that have edges from each peer
    for block, owner, columns in plan.halo():
        asked[owner] = np.union1d(asked[owner], block.dst[_inside(block, columns)]).astype(np.int64)
    (own,) = edges_by_owner(plan, comm.rank, comm.size)
    out = [ranks[comm.rank] for ranks in comm.allgather(own)]
    return _exchanged(comm, plan, comm.alltoall(asked), asked, [out])


def _exchanged(comm, plan, needs, asked, n_edges):
    offsets, nothing = np.concatenate([[0], np.cumsum(comm.allgather(plan.n_src))]), np.empty(0, np.int64)
    no_edges = EdgesByOwner(InEdges(np.zeros(1, np.int64), nothing), [nothing] * comm.size, [nothing] * comm.size)
    src_ids = [*needs]
    src_ids[comm.rank] = np.broadcast_to(np.int64(0), plan.n_src)  # which rows they are nobody asks
    found = Needs(comm.rank, offsets, [no_edges], needs, asked, src_ids, plan.degree)
    return Exchanged(plan.n_src, [*map(len, needs)], n_edges, found)


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
