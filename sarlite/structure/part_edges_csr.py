"""A part's in-edges as one CSR in source order, and the blocks that are cut from it."""

from typing import NamedTuple

import numpy as np

from sarlite.errors import DataError
from sarlite.structure.block import Block, EdgeOrder


class InEdges(NamedTuple):
    """The in-edges of one rank's destination rows, each row's in ascending order of their sources.

    Attributes
    ----------
    indptr : (n_dst + 1,) int64
    indices : (n_edges,) int
        Source row numbers of the whole graph: a rank's rows follow those of the ranks before it.
    numbers : (n_edges,) int, or None
        Each edge's index into edge values; None where the index is the edge's place.
    added_loops : (n_dst,) bool, or None
        Whether a row's self loop was added to the data.
    """

    indptr: np.ndarray
    indices: np.ndarray
    numbers: np.ndarray | None = None
    added_loops: np.ndarray | None = None

    @property
    def n_dst(self):
        return len(self.indptr) - 1

    def some(self, kept, first_row=0):
        """Return the edges selected by `kept`, (n_edges,) bools, and the index of each into the edge values.

        `first_row` is the row number of the first destination in the whole graph.
        """
        counts = np.diff(np.concatenate([[0], np.cumsum(kept)])[self.indptr])
        indptr, places = np.concatenate([[0], np.cumsum(counts)]), np.flatnonzero(kept)
        loops = self.added_loops
        if loops is not None:
            rows = np.repeat(np.arange(self.n_dst), np.diff(self.indptr))
            loops = loops.copy()
            loops[rows[~kept & (self.indices == rows + first_row)]] = False
        edges = InEdges(indptr, self.indices[places], added_loops=loops)
        return edges, places if self.numbers is None else self.numbers[places]

    def sorted(self):
        """Return the same edges with each row's edges in the order of their sources; equal edges keep their order."""
        if is_sorted(self.indptr, self.indices):
            return self
        order = np.lexsort((self.indices, np.repeat(np.arange(self.n_dst), np.diff(self.indptr))))
        numbers = order if self.numbers is None else self.numbers[order]
        return self._replace(indices=self.indices[order], numbers=numbers)


def is_sorted(indptr, indices):
    """Return True if the sources of each row ascend. Memory: one byte per edge."""
    falls = indices[1:] < indices[:-1]
    starts = indptr[1:-1]
    falls[starts[(starts > 0) & (starts < len(indices))] - 1] = False
    return not falls.any()


def find_error(edges, n_rows):
    """Return a DataError for the first error in a CSR with sources in 0 .. n_rows - 1, or None."""
    indptr, indices = edges.indptr, edges.indices
    if len(indptr) == 0 or indptr[0] != 0 or indptr[-1] != len(indices) or (np.diff(indptr) < 0).any():
        return DataError(f"indptr does not ascend from 0 to {len(indices)} in {len(indptr)} entries")
    if len(indices) and not (0 <= indices.min() and indices.max() < n_rows):
        where = int(np.flatnonzero((indices < 0) | (indices >= n_rows))[0])
        return DataError(f"edge {where}: source {indices[where]} is not in 0..{n_rows - 1}")
    return None


class EdgesByOwner(NamedTuple):
    """One part's edges divided by the part of their sources, with the columns that they use.

    Attributes
    ----------
    edges : InEdges
    where : list
        For each part the places of the edges from it, ascending; a slice where there is but one part.
    columns : list of (n,) int
        For each part the columns of these edges: the places of their sources among the rows that the part sends.
    lasting : bool
        Whether the blocks stay; a batch's blocks do not.
    grouped : bool
        True if a row's edges stand in the order of their parts, so that the edges' places need not be kept. In a batch
        they stand otherwise.
    """

    edges: InEdges
    where: list
    columns: list
    lasting: bool = True
    grouped: bool = True

    def blocks(self, groups, ends, src_ids, offsets, dtype):
        """Return a Block for each range of each group's columns.

        The blocks of the first group have all destination rows, the other blocks the rows that have edges.

        Parameters
        ----------
        groups : list of list of int
            The parts of each group, each part in one group.
        ends : list, a group, of lists of int
            Of a group of one part, where the ranges of its columns end, each of which is a block; one range ends at the
            number of columns. Of several parts, which make one block, where the columns of each part end.
        src_ids : list of (n_src,) int64, one a block
        offsets : list of int
            Columns before each block's.
        dtype : dtype of the indices
        """
        whole, csrs, columns, places, members = self.edges, [], [], [], []
        for k, (group, at) in enumerate(zip(groups, ends)):
            for where, of_range in self._ranges(group, at):
                csrs.append(_rows_with_edges(whole.indptr, where, keep_all=k == 0))
                columns.append(of_range.astype(dtype, copy=False))
                places.append(None if self.grouped or len(self.where) == 1 else where.astype(dtype))
                members.append(group)
        order, numbers = self._order(csrs, members), _as(whole.numbers, dtype)
        blocks = [Block(indptr, own, ids, whole.n_dst, rows if rows is None else rows.astype(dtype), order=order(k),
                        numbers=numbers, offset=offset, source=members[k][0], lasting=self.lasting)
                  for k, ((rows, indptr), own, ids, offset) in enumerate(zip(csrs, columns, src_ids, offsets))]
        for block, where in zip(blocks, places):
            if where is not None:
                block.positions = where
        return blocks

    def _order(self, csrs, members):
        """Return a function from a block's number to the order of the part's edges and the block's numbers in it."""
        if not self.grouped or len(csrs) == 1:
            return lambda k: None
        if len(csrs) < len(self.where):  # a block has several parts
            parts = [_rows_with_edges(self.edges.indptr, where, keep_all=False) for where in self.where]
            order = EdgeOrder(self.edges.n_dst, parts)
            return lambda k: (order, members[k])
        by_source = sorted(range(len(csrs)), key=lambda k: (members[k], k))
        order = EdgeOrder(self.edges.n_dst, [csrs[k] for k in by_source])
        return lambda k: (order, [by_source.index(k)])

    def _ranges(self, group, ends):
        """Yield (places, columns) of a group's edges from each range, columns counted from the range's first."""
        if len(group) > 1:
            yield self._merged(group, [0, *ends[:-1]])
            return
        where, columns = self.where[group[0]], self.columns[group[0]]
        if len(ends) == 1:
            yield where, columns
            return
        for a, b in zip([0, *ends], ends):
            chosen = np.flatnonzero((columns >= a) & (columns < b))
            yield where[chosen], columns[chosen] - columns.dtype.type(a)

    def _merged(self, group, starts):
        """Return (places, columns) of the edges from several parts, the places ascending."""
        places = np.concatenate([self.where[q] for q in group])
        order = np.argsort(places, kind="stable")
        columns = np.concatenate([self.columns[q] + self.columns[q].dtype.type(start) for q, start in zip(group, starts)])
        return places[order], columns[order]


def _as(array, dtype):
    return None if array is None else array.astype(dtype, copy=False)


def _rows_with_edges(indptr, where, keep_all):
    """Return (rows, indptr) of the edges at the places `where`; None keeps all rows, also where that is smaller."""
    if isinstance(where, slice):
        return None, indptr
    ends = np.searchsorted(where, indptr).astype(np.int64)
    rows = None if keep_all else np.flatnonzero(np.diff(ends))
    if keep_all or 3 * len(rows) > 2 * len(ends):
        return None, ends
    return rows, np.append(ends[rows], ends[-1])


def among(known, wanted):
    """Return True for the numbers of `wanted` that are in `known`, which ascends, bools of `wanted`'s shape."""
    places = np.minimum(np.searchsorted(known, wanted), max(len(known) - 1, 0))
    return known[places] == wanted if len(known) else np.zeros(wanted.shape, bool)


def owners(rows, offsets):
    """Return the rank that owns each row number, (n,), in the smallest unsigned dtype."""
    return (np.searchsorted(offsets, rows, side="right") - 1).astype(np.min_scalar_type(max(len(offsets) - 2, 0)))


def needed_rows(sets, offsets, rank):
    """Return, for each part, the positions of each set's edges from the part, and the distinct source rows of all sets.

    Parameters
    ----------
    sets : list of InEdges
    offsets : (n_parts + 1,) int64
        The first source row of each part.
    rank : int
        This part, all of whose rows are at hand.

    Returns
    -------
    where : list, a set, of lists, a part, of (n,) places of edges
    needs : list, a part, of (n,) int64
        Source rows counted from the part's first, ascending; none of `rank`.

    Notes
    -----
    Memory: 9 bytes an edge, and 1 byte for each row of one part at a time.
    """
    n_parts = len(offsets) - 1
    if n_parts == 1:
        return [[slice(None)] for _ in sets], [np.empty(0, np.int64)]
    where = []
    for edges in sets:
        owner = owners(edges.indices, offsets)
        order = np.argsort(owner, kind="stable")  # a radix sort of such small integers
        where.append(np.split(order, np.searchsorted(owner[order], np.arange(1, n_parts))))
    needs = []
    for q in range(n_parts):
        mask = np.zeros(0 if q == rank else int(offsets[q + 1] - offsets[q]), bool)
        for edges, places in zip(sets, where):
            mask[edges.indices[places[q]] - offsets[q] if q != rank else slice(0)] = True
        needs.append(np.flatnonzero(mask))
    return where, needs


def by_owner(sets, where, needs, offsets, rank):
    """Return the `EdgesByOwner` of each set of edges. Memory: 4 or 8 bytes for each row of one part at a time."""
    columns = [[] for _ in sets]
    for q, need in enumerate(needs):
        place = None
        if q != rank:
            place = np.empty(int(offsets[q + 1] - offsets[q]), np.int32 if len(need) < 2**31 else np.int64)
            place[need] = np.arange(len(need))
        for k, (edges, places) in enumerate(zip(sets, where)):
            local = edges.indices[places[q]]
            if offsets[q]:
                local = local - local.dtype.type(offsets[q])
            columns[k].append(local if place is None else place[local])
    return [EdgesByOwner(edges, places, cols) for edges, places, cols in zip(sets, where, columns)]
