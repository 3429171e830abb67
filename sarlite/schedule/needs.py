"""What ranks need of each other: found once a graph, and laid out by a mode as pieces."""

from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np

from sarlite.errors import raise_together
from sarlite.schedule.pieces import Arrival, Piece, as_range
from sarlite.structure import part_edges_csr
from sarlite.structure.block import Bundle


class Needs(NamedTuple):
    """Which rows one rank needs of each other rank, and which rows each other rank needs of it.

    Attributes
    ----------
    rank : int
    offsets : (size + 1,) int64
        The first source row of each rank.
    cuts : list of EdgesByOwner
        One a set of edges.
    needs : list of (n,) int64
        By rank, its rows that come here, counted from its first, in the order of their columns.
    asked : list of (n,) int64
        By rank, the local rows that go there.
    src_ids : list of (n,) int64
        By rank, the global ids of its rows that come here; for this rank the ids of all local rows.
    degree : float
        Mean number of edges of a destination row, over all sets and ranks. 0 of a batch, whose rows do not ascend.
    """

    rank: int
    offsets: np.ndarray
    cuts: list[Any]
    needs: list[Any]
    asked: list[Any]
    src_ids: list[Any]
    degree: float = 0.0

    @property
    def size(self) -> int:
        return len(self.offsets) - 1

    @property
    def n_rows(self) -> int:
        """How many rows all ranks own."""
        return int(self.offsets[-1])

    @property
    def n_src(self) -> int:
        """How many rows this rank owns."""
        return len(self.src_ids[self.rank])

    # ---- how a mode lays the needs out

    def tiles(self, n: int = 1, peers_at_once: int = 1) -> tuple[Piece, list[Piece]]:
        """Return this rank's own tile, and the peers' tiles.

        There is one tile for `peers_at_once` peers, or with one peer at once a tile for each of `n` ranges of the
        peer's rows. Round s of the peers' tiles brings rows from rank p + s and sends rows to rank p - s, so every rank
        has one partner each way.
        """
        rounds = [((self.rank + s) % self.size, (self.rank - s) % self.size) for s in range(1, self.size)]
        groups = [rounds[start : start + peers_at_once] for start in range(0, len(rounds), peers_at_once)]
        blocks = self._blocks([[self.rank], *([source for source, _ in group] for group in groups)], n)
        peers = []
        for group, own_blocks in zip(groups, blocks[1:]):
            arrivals = zip(*(self._arrivals(source, target, n) for source, target in group))
            peers += [Piece(block, False, each, Fraction(len(each), n)) for block, each in zip(own_blocks, arrivals)]
        return Piece(blocks[0][0], own=True), peers

    def ranges(self, q: int, n: int) -> list[tuple[slice, Any]]:
        """Return the `n` ranges of rank q's rows, and of each range the rows that this rank needs.

        The ranges are slices counted from rank q's first row. The rows needed are counted from the range's first. They
        are a slice where they follow each other, else integers.
        """
        ends = range_ends(self.offsets, q, n)
        ranges = [slice(a, b) for a, b in zip([0, *ends], ends)]
        return [(rows, as_range(need - rows.start)) for rows, need in zip(ranges, self._divided(self.needs[q], q, n))]

    # ---- how blocks and arrivals are made

    @property
    def order(self) -> list[int]:
        """The ranks in the order of the columns, this one first."""
        return [(self.rank + s) % self.size for s in range(self.size)]

    def _arrivals(self, source, target, n):
        """The arrivals of a round, one for each of the n ranges of ranks' rows."""
        needs, asked = self._divided(self.needs[source], source, n), self._divided(self.asked[target], self.rank, n)
        return [Arrival(source, target, len(need), isinstance(as_range(need), slice), as_range(rows))
                for need, rows in zip(needs, asked)]

    def _blocks(self, groups, n):
        """By group of ranks, a block for each range of its rows; the first group, this rank, has one block."""
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
        """By rank, the number of columns before its columns; and the number of all columns."""
        offsets, end = [0] * self.size, 0
        for q in self.order:
            offsets[q], end = end, end + len(self.src_ids[q])
        return offsets, end

    def _divided(self, rows, q, n):
        """Divide ascending rows of rank q by its ranges."""
        return [rows] if n == 1 else np.split(rows, np.searchsorted(rows, range_ends(self.offsets, q, n)[:-1]))

    def _dtype(self, n_columns):
        """The dtype of blocks' indices."""
        most = max([n_columns, *(len(cut.edges.indices) for cut in self.cuts)])
        return np.dtype(np.int32 if most < 2**31 else np.int64)


def find(comm: Any, sets: list[part_edges_csr.InEdges], src_ids: Any, n_local_src: int) -> Needs:
    """Find what this rank must exchange with its peers. Collective.

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


def range_ends(offsets: Any, q: int, n: int) -> list[int]:
    """Return where the `n` ranges of rank q's rows end, counted from its first row."""
    return (np.arange(1, n + 1) * (offsets[q + 1] - offsets[q]) // n).tolist()
