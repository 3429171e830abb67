"""Halo rows: the rows that each rank needs from each other rank.

They are found once for each graph or batch, and a mode divides them into pieces.
"""

from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np

from sarlite.comm import Communicator
from sarlite.errors import raise_together
from sarlite.schedule.pieces import Arrival, Piece, as_range
from sarlite.structure import part_edges_csr
from sarlite.structure.block import Bundle
from sarlite.types import Array, RowIndex


class Needs(NamedTuple):
    """Rows that this rank needs from each rank, and rows that each rank needs from this rank.

    Attributes
    ----------
    rank : int
        This rank.
    offsets : (size + 1,) int64
        Rank p owns the source rows offsets[p] .. offsets[p + 1] - 1.
    cuts : list of EdgesByOwner
        For each set of edges, its edges divided by the owner of their source. A graph has one set, and a `HeteroGraph`
        one for each relation.
    needs : list of (n,) int64
        For each rank, the rows of that rank which this rank needs, counted from the rank's first row, in the order of
        the blocks' columns.
    asked : list of (n,) int64
        For each rank, the rows of this rank which that rank needs, counted from this rank's first row.
    src_ids : list of (n,) int64
        For each rank, the global ids of the rows in `needs`; for this rank, the global ids of all local rows.
    degree : float
        Mean number of edges of a destination row, over all sets and ranks; 0 for a batch.
    """

    rank: int
    offsets: Array
    cuts: list[part_edges_csr.EdgesByOwner]
    needs: list[Array]
    asked: list[Array]
    src_ids: list[Array]
    degree: float = 0.0

    @property
    def size(self) -> int:
        """Number of MPI ranks."""
        return len(self.offsets) - 1

    @property
    def n_rows(self) -> int:
        """Number of source rows that all ranks own together."""
        return int(self.offsets[-1])

    @property
    def n_src(self) -> int:
        """Number of source rows that this rank owns."""
        return len(self.src_ids[self.rank])

    # ---- how a mode lays the needs out

    def tiles(self, n: int = 1, peers_at_once: int = 1) -> tuple[Piece, list[Piece]]:
        """Divide all edges into pieces, and return (own piece, list of peers' pieces). The own piece has the edges whose sources
        this rank owns; each of the peers' pieces has the edges whose sources `peers_at_once` peers own. If `n` is above 1, each
        peer's rows are divided into `n` ranges, with a piece for each range.

        Parameters
        ----------
        n : int
            Number of ranges that each peer's rows are divided into, with a tile for each range; 1 if `peers_at_once`
            is above 1. All ranks divide the same rows, as broadcasts need; `Piece.cut` divides the arriving rows.
        peers_at_once : int
            Number of peers whose rows one tile takes.

        Returns
        -------
        own_tile : Piece
            The edges from this rank's rows.
        peer_tiles : list of Piece
            The edges from peers' rows, with the arrivals of the rows. In round s rank p receives from rank p + s and
            sends to rank p - s, so that each rank has one partner in each direction.
        """
        rounds = [((self.rank + s) % self.size, (self.rank - s) % self.size) for s in range(1, self.size)]
        groups = [rounds[start : start + peers_at_once] for start in range(0, len(rounds), peers_at_once)]
        blocks = self._blocks([[self.rank], *([source for source, _ in group] for group in groups)], n)
        peers = []
        for group, group_blocks in zip(groups, blocks[1:]):
            arrivals = zip(*(self._arrivals(source, target, n) for source, target in group))
            peers += [Piece(block, False, each, Fraction(len(each), n)) for block, each in zip(group_blocks, arrivals)]
        return Piece(blocks[0][0], own=True), peers

    def ranges(self, q: int, n: int) -> list[tuple[slice, RowIndex]]:
        """Divide rank q's rows into `n` equal ranges. Return a list with a pair for each range: (slice of rank q's rows, rows of
        the slice that this rank needs). Needed rows are counted from the start of the slice; they are a slice if they are
        consecutive, else an array of integers.
        """
        ends = range_ends(self.offsets, q, n)
        ranges = [slice(a, b) for a, b in zip([0, *ends], ends)]
        return [(rows, as_range(need - rows.start)) for rows, need in zip(ranges, self._divided(self.needs[q], q, n))]

    # ---- how blocks and arrivals are made

    @property
    def order(self) -> list[int]:
        """MPI ranks in the order of their rows among the CSR columns: this rank first, then the next ranks, cyclically."""
        return [(self.rank + s) % self.size for s in range(self.size)]

    def _arrivals(self, source: int, target: int, n: int) -> list[Arrival]:
        """Return a list of n exchanges with two peers: in each this rank receives a range of the rows that it needs of rank `source`,
        and sends the matching range of its rows to rank `target`.
        """
        needs, asked = self._divided(self.needs[source], source, n), self._divided(self.asked[target], self.rank, n)
        return [Arrival(source, target, len(need), isinstance(as_range(need), slice), as_range(rows))
                for need, rows in zip(needs, asked)]

    def _blocks(self, groups: list[list[int]], n: int) -> list[list[Any]]:
        """Divide the edges into blocks by source rank: return a list of blocks for each list of ranks in `groups`, of which the
        first is this rank alone. A list of one peer has `n` blocks, one for each range of its rows; any other list has one block.
        """
        offsets, n_columns = self._column_offsets()
        ends, src_ids, starts = [], [], []
        for group in groups:
            lengths = [len(self.src_ids[q]) for q in group]
            if n > 1 and group != [self.rank]:
                lengths = [len(rows) for rows in self._divided(self.needs[group[0]], group[0], n)]
            ends.append(np.cumsum(lengths).tolist())
            ids = np.concatenate([self.src_ids[q] for q in group])
            block_ends = _block_ends(group, ends[-1])
            src_ids += np.split(ids, block_ends[:-1])
            starts += [offsets[group[0]] + a for a in (0, *block_ends[:-1])]
        sets = [cut.blocks(groups, ends, src_ids, starts, self._dtype(n_columns)) for cut in self.cuts]
        blocks = iter(sets[0] if len(sets) == 1 else [Bundle(blocks) for blocks in zip(*sets)])
        return [[next(blocks) for _ in _block_ends(group, group_ends)] for group, group_ends in zip(groups, ends)]

    def _column_offsets(self) -> tuple[list[int], int]:
        """Return (offsets, n_columns): first the CSR column at which each rank's rows begin; then the number of all CSR columns.
        Both count the columns of all blocks.
        """
        offsets, end = [0] * self.size, 0
        for q in self.order:
            offsets[q], end = end, end + len(self.src_ids[q])
        return offsets, end

    def _divided(self, rows: Array, q: int, n: int) -> list[Array]:
        """Divide `rows`, ascending rows of rank q, into a list of `n` arrays, one for each equal range of rank q's rows."""
        return [rows] if n == 1 else np.split(rows, np.searchsorted(rows, range_ends(self.offsets, q, n)[:-1]))

    def _dtype(self, n_columns: int) -> np.dtype[Any]:
        """Return the dtype of the blocks' indices: int32 if it holds the numbers of columns and of edges, else int64."""
        most = max([n_columns, *(len(cut.edges.indices) for cut in self.cuts)])
        return np.dtype(np.int32 if most < 2**31 else np.int64)


def find(comm: Communicator, sets: list[part_edges_csr.InEdges], src_ids: Array | None, n_local_src: int) -> Needs:
    """Return the Needs (rows that ranks need of each other) for the in-edges `sets` of this rank's rows, one InEdges for each
    relation. This rank owns `n_local_src` source rows with ids `src_ids`; None if ids are row numbers. Collective.

    Parameters
    ----------
    comm : Communicator
    sets : list of InEdges
        In-edges of this rank's destination rows: one set for a graph, or one set for each relation. All sets have the
        same source rows, which are fetched once for all sets.
    src_ids : (n_local_src,) int64, or None
        Global ids of this rank's source rows. None, on all ranks, if the ids are the row numbers.
    n_local_src : int
        Number of source rows of this rank.

    Returns
    -------
    Needs

    Raises
    ------
    DataError
        On every rank together: an index is out of range, or an indptr does not ascend.

    Notes
    -----
    Memory: O(local edges) and O(rows of one part) bytes. No array is O(n_nodes).

    Examples
    --------
    Rank 0 owns rows 0 and 1, rank 1 owns rows 2 and 3. Row 0 has an edge from row 3, and row 2 from row 1.

    >>> from sarlite.comm import threads
    >>> from sarlite.structure.part_edges_csr import InEdges
    >>> def needed(comm):
    ...     edges = InEdges(np.array([0, 1, 1]), np.array([3 if comm.rank == 0 else 1]))
    ...     halo = find(comm, [edges], None, 2)
    ...     return [rows.tolist() for rows in halo.needs], [rows.tolist() for rows in halo.asked]
    >>> threads.run(2, needed)
    [([[], [1]], [[], [1]]), ([[1], []], [[1], []])]
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
    local_ids = np.arange(first, first + n_local_src) if src_ids is None else np.asarray(src_ids, np.int64)
    if src_ids is None:
        ids = [need + start for need, start in zip(needs, offsets)]
    else:
        ids = comm.alltoall([local_ids[rows] for rows in asked])
    ids[comm.rank] = local_ids
    cuts = part_edges_csr.by_owner(sets, where, needs, offsets, comm.rank)
    return Needs(comm.rank, offsets, cuts, needs, asked, ids, sum(n_edges) / max(sum(n_dst), 1))


def _block_ends(group: list[int], ends: list[int]) -> list[int]:
    """Return the columns at which the blocks of a `group` of source ranks end. A group of one rank has a block for each range of
    its rows, and `ends` are the ends of the ranges. Several ranks share one block, and `ends` are the ends of the ranks' columns.
    """
    return ends if len(group) == 1 else ends[-1:]


def range_ends(offsets: Array, q: int, n: int) -> list[int]:
    """Divide rank q's rows, offsets[q] .. offsets[q + 1] - 1, into `n` equal ranges; return their ends, relative to offsets[q]."""
    return (np.arange(1, n + 1) * (offsets[q + 1] - offsets[q]) // n).tolist()
