"""Rows that ranks need from each other. They are found once per graph, and a mode divides them into pieces."""

from fractions import Fraction
from typing import NamedTuple

import numpy as np

from sarlite.comm import Communicator
from sarlite.errors import raise_together
from sarlite.schedule.pieces import Arrival, Piece, as_range
from sarlite.structure import part_edges_csr
from sarlite.structure.block import Bundle
from sarlite.types import Array, RowIndex


class Needs(NamedTuple):
    """Rows that this rank needs from each rank, and rows that each rank needs from it.

    Attributes
    ----------
    rank : int
    offsets : (size + 1,) int64
        First source row of each rank.
    cuts : list of EdgesByOwner
        Edges divided by the owner of their source; one item for each set of edges.
    needs : list of (n,) int64
        For each rank, its rows that this rank needs, counted from the rank's first row, in the order of their columns.
    asked : list of (n,) int64
        For each rank, the local rows that it needs from this rank.
    src_ids : list of (n,) int64
        For each rank, the global ids of its rows in `needs`; for this rank the ids of all local rows.
    degree : float
        Mean number of edges of a destination row, over all sets and ranks; 0 for a batch, whose rows do not ascend.
    """

    rank: int
    offsets: np.ndarray
    cuts: list[part_edges_csr.EdgesByOwner]
    needs: list[Array]
    asked: list[Array]
    src_ids: list[Array]
    degree: float = 0.0

    @property
    def size(self) -> int:
        return len(self.offsets) - 1

    @property
    def n_rows(self) -> int:
        """Number of rows that all ranks own together."""
        return int(self.offsets[-1])

    @property
    def n_src(self) -> int:
        """Number of rows that this rank owns."""
        return len(self.src_ids[self.rank])

    # ---- how a mode lays the needs out

    def tiles(self, n: int = 1, peers_at_once: int = 1) -> tuple[Piece, list[Piece]]:
        """Return this rank's own tile, and the list of the peers' tiles.

        Each tile takes the rows of `peers_at_once` peers. With one peer at once, a peer has one tile for each of `n`
        ranges of its rows. In round s a rank p receives rows from rank p + s and sends rows to rank p - s, so every
        rank has one partner in each direction.
        """
        rounds = [((self.rank + s) % self.size, (self.rank - s) % self.size) for s in range(1, self.size)]
        groups = [rounds[start : start + peers_at_once] for start in range(0, len(rounds), peers_at_once)]
        blocks = self._blocks([[self.rank], *([source for source, _ in group] for group in groups)], n)
        peers = []
        for group, own_blocks in zip(groups, blocks[1:]):
            arrivals = zip(*(self._arrivals(source, target, n) for source, target in group))
            peers += [Piece(block, False, each, Fraction(len(each), n)) for block, each in zip(own_blocks, arrivals)]
        return Piece(blocks[0][0], own=True), peers

    def ranges(self, q: int, n: int) -> list[tuple[slice, RowIndex]]:
        """Return the `n` ranges of rank q's rows, each with the rows in it that this rank needs.

        A range is a slice counted from rank q's first row. The needed rows are counted from the first row of the range.
        They are a slice if they are consecutive, else integers.
        """
        ends = range_ends(self.offsets, q, n)
        ranges = [slice(a, b) for a, b in zip([0, *ends], ends)]
        return [(rows, as_range(need - rows.start)) for rows, need in zip(ranges, self._divided(self.needs[q], q, n))]

    # ---- how blocks and arrivals are made

    @property
    def order(self) -> list[int]:
        """The ranks in the order of their columns, this rank first."""
        return [(self.rank + s) % self.size for s in range(self.size)]

    def _arrivals(self, source, target, n):
        """Return the arrivals of one round, one for each of the n ranges of the ranks' rows."""
        needs, asked = self._divided(self.needs[source], source, n), self._divided(self.asked[target], self.rank, n)
        return [Arrival(source, target, len(need), isinstance(as_range(need), slice), as_range(rows))
                for need, rows in zip(needs, asked)]

    def _blocks(self, groups, n):
        """Return the blocks of each group of ranks, one for each range; the first group, this rank, has one block."""
        offsets, n_columns = self._column_offsets()
        ends, src_ids, starts = [], [], []
        for group in groups:
            lengths = [len(self.src_ids[q]) for q in group]
            if n > 1 and group != [self.rank]:
                lengths = [len(rows) for rows in self._divided(self.needs[group[0]], group[0], n)]
            ends.append(np.cumsum(lengths).tolist())
            ids, at = np.concatenate([self.src_ids[q] for q in group]), ends[-1] if len(group) == 1 else ends[-1][-1:]
            src_ids += np.split(ids, at[:-1])
            starts += [offsets[group[0]] + a for a in (0, *at[:-1])]
        sets = [cut.blocks(groups, ends, src_ids, starts, self._dtype(n_columns)) for cut in self.cuts]
        found = iter(sets[0] if len(sets) == 1 else [Bundle(blocks) for blocks in zip(*sets)])
        return [[next(found) for _ in (at if len(group) == 1 else at[:1])] for group, at in zip(groups, ends)]

    def _column_offsets(self):
        """Return the first column of each rank, and the number of all columns."""
        offsets, end = [0] * self.size, 0
        for q in self.order:
            offsets[q], end = end, end + len(self.src_ids[q])
        return offsets, end

    def _divided(self, rows, q, n):
        """Divide ascending rows of rank q at the ends of its `n` ranges."""
        return [rows] if n == 1 else np.split(rows, np.searchsorted(rows, range_ends(self.offsets, q, n)[:-1]))

    def _dtype(self, n_columns):
        """Return the dtype of the blocks' indices, int32 if it is large enough."""
        most = max([n_columns, *(len(cut.edges.indices) for cut in self.cuts)])
        return np.dtype(np.int32 if most < 2**31 else np.int64)


def find(comm: Communicator, sets: list[part_edges_csr.InEdges], src_ids: Array | None, n_local_src: int) -> Needs:
    """Find the rows that this rank exchanges with its peers. Collective.

    Parameters
    ----------
    comm : Communicator
    sets : list of InEdges
        Sets of edges from the same source rows, which one fetch serves: one, or one a relation.
    src_ids : (n_local_src,) int64, or None
        Global ids of this rank's source rows; None: their row numbers. On all ranks alike.
    n_local_src : int

    Returns
    -------
    Needs

    Raises
    ------
    DataError
        On every rank together: an index out of range or indptr not ascending.

    Notes
    -----
    Takes O(local edges) and O(rows of one part) bytes; nothing is O(n_nodes).
    """
    n_src, n_dst, n_edges = zip(*comm.allgather((int(n_local_src), sum(edges.n_dst for edges in sets),
                                                 sum(len(edges.indices) for edges in sets))))
    offsets = np.concatenate([[0], np.cumsum(n_src)])
    first = int(offsets[comm.rank])
    error = next(filter(None, (part_edges_csr.find_error(edges, int(offsets[-1])) for edges in sets)), None)
    raise_together(comm, error)
    sets = [edges.sorted() for edges in sets]
    where, needs = part_edges_csr.needed_rows(sets, offsets, comm.rank)
    asked = comm.alltoall(needs)
    own = np.arange(first, first + n_local_src) if src_ids is None else np.asarray(src_ids, np.int64)
    if src_ids is None:
        halo_ids = [need + start for need, start in zip(needs, offsets)]
    else:
        halo_ids = comm.alltoall([own[rows] for rows in asked])
    halo_ids[comm.rank] = own
    cuts = part_edges_csr.by_owner(sets, where, needs, offsets, comm.rank)
    return Needs(comm.rank, offsets, cuts, needs, asked, halo_ids, sum(n_edges) / max(sum(n_dst), 1))


def range_ends(offsets: Array, q: int, n: int) -> list[int]:
    """Return the ends of the `n` ranges of rank q's rows, counted from its first row."""
    return (np.arange(1, n + 1) * (offsets[q + 1] - offsets[q]) // n).tolist()
