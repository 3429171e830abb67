"""InEdges: a part's in-edges as one CSR; EdgesByOwner: these edges divided by the owners of their sources, into blocks."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from sarlite.errors import DataError
from sarlite.structure.block import Block, EdgeOrder
from sarlite.types import Array, DType


class InEdges(NamedTuple):
    """In-edges of one rank's destination rows, as a CSR whose rows list sources in ascending order.

    Attributes
    ----------
    indptr : (n_dst + 1,) int64
    indices : (n_edges,) int
        Row number of each edge's source; row numbers count the rows of all ranks, rank after rank.
    numbers : (n_edges,) int, or None
        Index of each edge into edge values; None if the index is the edge's position in the CSR.
    added_loops : (n_dst,) bool, or None
        True for each row whose self loop was added to the data.
    """

    indptr: np.ndarray
    indices: np.ndarray
    numbers: np.ndarray | None = None
    added_loops: np.ndarray | None = None

    @property
    def n_dst(self):
        """Number of destination rows."""
        return len(self.indptr) - 1

    def some(self, mask: Array, first_row: int = 0) -> tuple["InEdges", Array]:
        """Select the edges where `mask` is True; return (InEdges of these edges, index of each into the edge values). `first_row`
        is the number of this rank's first row in the whole graph; it shows which edges are self loops.

        Parameters
        ----------
        mask : (n_edges,) bool
            True for each edge that is selected.
        first_row : int
            Row number of the first destination row in the whole graph.
        """
        counts = np.diff(np.concatenate([[0], np.cumsum(mask)])[self.indptr])
        indptr, places = np.concatenate([[0], np.cumsum(counts)]), np.flatnonzero(mask)
        loops = self.added_loops
        if loops is not None:
            rows = np.repeat(np.arange(self.n_dst), np.diff(self.indptr))
            loops = loops.copy()
            loops[rows[~mask & (self.indices == rows + first_row)]] = False
        edges = InEdges(indptr, self.indices[places], added_loops=loops)
        return edges, places if self.numbers is None else self.numbers[places]

    def sorted(self) -> "InEdges":
        """Return the same edges with ascending sources in each row; equal edges keep their order."""
        if is_sorted(self.indptr, self.indices):
            return self
        order = np.lexsort((self.indices, np.repeat(np.arange(self.n_dst), np.diff(self.indptr))))
        numbers = order if self.numbers is None else self.numbers[order]
        return self._replace(indices=self.indices[order], numbers=numbers)


def is_sorted(indptr: Array, indices: Array) -> bool:
    """Return True if the sources of each CSR row ascend. Memory: one byte for each edge."""
    falls = indices[1:] < indices[:-1]
    starts = indptr[1:-1]
    falls[starts[(starts > 0) & (starts < len(indices))] - 1] = False
    return not falls.any()


def find_error(edges: InEdges, n_rows: int) -> DataError | None:
    """Return a DataError if `edges` is no CSR, or if a source is outside of 0 .. n_rows - 1; None if all is right."""
    indptr, indices = edges.indptr, edges.indices
    if len(indptr) == 0 or indptr[0] != 0 or indptr[-1] != len(indices) or (np.diff(indptr) < 0).any():
        return DataError(f"indptr does not ascend from 0 to {len(indices)} in {len(indptr)} entries")
    if len(indices) and not (0 <= indices.min() and indices.max() < n_rows):
        where = int(np.flatnonzero((indices < 0) | (indices >= n_rows))[0])
        return DataError(f"edge {where}: source {indices[where]} is not in 0..{n_rows - 1}")
    return None


class EdgesByOwner(NamedTuple):
    """In-edges of one part, grouped by the part that owns their sources, so that the edges can be divided into blocks.

    Attributes
    ----------
    edges : InEdges
    where : list of (n,) int, or [slice]
        For each part the positions in `edges` of the edges from the part, ascending; one slice if there is one part.
    columns : list of (n,) int
        For each part the columns of these edges: the index of each source among the rows that the part sends.
    lasting : bool
        True if blocks live as long as the graph; False for the blocks of a batch.
    grouped : bool
        True if the edges of a row stand in the order of their sources' parts. Positions of a block's edges can then be
        computed, and are not stored. False in a batch.
    """

    edges: InEdges
    where: list
    columns: list
    lasting: bool = True
    grouped: bool = True

    def blocks(self, groups: Sequence[list[int]], ends: Sequence[list[int]], src_ids: Sequence[Array],
               offsets: Sequence[int], dtype: DType) -> list[Block]:
        """Return these edges as a list of Blocks. A group of several source parts in `groups` becomes one block, and ends[k] are
        the ends of each part's columns in it. A group of one part becomes a block for each range of its columns, and ends[k] are
        the ends of the ranges. `src_ids`, the ids of a block's columns, and `offsets`, the number of columns before it, have an
        entry for each block.

        The blocks of the first group have a CSR row for every destination row. Other blocks have CSR rows only for
        destination rows with edges.

        Parameters
        ----------
        groups : list of list of int
            Parts of each group. Each part is in one group.
        ends : list of list of int
            For a group of several parts, which becomes one block: the end of each part's columns in the block. For a
            group of one part: the end of each range of its columns; each range becomes a block.
        src_ids : list of (n_src,) int64
            Global ids of the columns of each block.
        offsets : list of int
            Number of columns before each block.
        dtype : dtype
            Dtype of the indices.
        """
        whole, csrs, columns, places, members = self.edges, [], [], [], []
        for k, (group, group_ends) in enumerate(zip(groups, ends)):
            for where, block_columns in self._ranges(group, group_ends):
                csrs.append(_rows_with_edges(whole.indptr, where, keep_all=k == 0))
                columns.append(block_columns.astype(dtype, copy=False))
                places.append(None if self.grouped or len(self.where) == 1 else where.astype(dtype))
                members.append(group)
        order, numbers = self._order(csrs, members), _as(whole.numbers, dtype)
        blocks = [Block(indptr, indices, ids, whole.n_dst, rows if rows is None else rows.astype(dtype), order=order(k),
                        numbers=numbers, offset=offset, source=members[k][0], lasting=self.lasting)
                  for k, ((rows, indptr), indices, ids, offset) in enumerate(zip(csrs, columns, src_ids, offsets))]
        for block, where in zip(blocks, places):
            if where is not None:
                block.positions = where
        return blocks

    def _order(self, csrs: list[tuple[Any, Any]], members: list[list[int]]) -> Callable[[int], Any]:
        """Return a function f that tells where block k stores its edges: f(k) is (order, sets). `order`, an EdgeOrder, computes the
        positions of sets of edges in the part's CSR; `sets` are the numbers of the sets that block k consists of. f(k) is None if
        block k needs neither, as it has all edges or stores their positions. csrs[k] is (destination rows, row pointers) of block
        k, and members[k] the parts that own its sources.
        """
        if not self.grouped or len(csrs) == 1:
            return lambda k: None
        if len(csrs) < len(self.where):  # some block has the edges of several parts
            parts = [_rows_with_edges(self.edges.indptr, where, keep_all=False) for where in self.where]
            order = EdgeOrder(self.edges.n_dst, parts)
            return lambda k: (order, members[k])
        by_source = sorted(range(len(csrs)), key=lambda k: (members[k], k))
        order = EdgeOrder(self.edges.n_dst, [csrs[k] for k in by_source])
        return lambda k: (order, [by_source.index(k)])

    def _ranges(self, group: list[int], ends: list[int]) -> Iterator[tuple[Any, Array]]:
        """Yield (positions, columns) for each block of a `group` of source parts: the positions of the block's edges in this part's
        CSR, and their columns in the block. Several parts share one block, and `ends` are the ends of each part's columns. A single
        part has a block for each range of its columns, and `ends` are the ends of the ranges.
        """
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

    def _merged(self, group: list[int], starts: list[int]) -> tuple[Array, Array]:
        """Return (positions of the edges from all source parts in `group`, ascending; their CSR columns). The columns of part
        group[k] are counted from starts[k] on.
        """
        places = np.concatenate([self.where[q] for q in group])
        order = np.argsort(places, kind="stable")
        columns = np.concatenate([self.columns[q] + self.columns[q].dtype.type(start) for q, start in zip(group, starts)])
        return places[order], columns[order]


def _as(array: Array | None, dtype: DType) -> Array | None:
    """Return `array` cast to `dtype`, or None if it is None."""
    return None if array is None else array.astype(dtype, copy=False)


def _rows_with_edges(indptr: Array, where: Any, keep_all: bool) -> tuple[Array | None, Array]:
    """Return (destination row of each CSR row, row pointers) of a CSR of the edges at the positions `where` of another CSR, with
    the row pointers `indptr`. Rows without edges are left out, unless `keep_all` is True or they are fewer than about a third; then
    the first result is None, for all rows.
    """
    if isinstance(where, slice):
        return None, indptr
    ends = np.searchsorted(where, indptr).astype(np.int64)
    rows = None if keep_all else np.flatnonzero(np.diff(ends))
    if rows is None or 3 * len(rows) > 2 * len(ends):
        return None, ends
    return rows, np.append(ends[rows], ends[-1])


def among(sorted_values: Array, values: Array) -> Array:
    """Return a mask of the shape of `values`: True for each value that is in `sorted_values`, an ascending array."""
    places = np.minimum(np.searchsorted(sorted_values, values), max(len(sorted_values) - 1, 0))
    return sorted_values[places] == values if len(sorted_values) else np.zeros(values.shape, bool)


def owners(rows: Array, offsets: Array) -> Array:
    """Return the rank that owns each row number, (n,) unsigned; rank p owns rows offsets[p] .. offsets[p + 1] - 1."""
    return (np.searchsorted(offsets, rows, side="right") - 1).astype(np.min_scalar_type(max(len(offsets) - 2, 0)))


def needed_rows(sets: Sequence[InEdges], offsets: Array, rank: int) -> tuple[list[list[Any]], list[Array]]:
    """Return (where, needs) for `sets`, a list of sets of in-edges of part `rank`: where[k][q] are the positions in sets[k] of the
    edges out of rows of part q; needs[q] are the rows that part q must send. Part q owns rows offsets[q] .. offsets[q + 1] - 1.

    Parameters
    ----------
    sets : list of InEdges
        Sets of edges with the same source rows.
    offsets : (n_parts + 1,) int64
        Row number of the first source row of each part.
    rank : int
        This part, whose rows need not be sent.

    Returns
    -------
    where : list of list of (n,) int
        where[k][q]: positions in set k of the edges from part q.
    needs : list of (n,) int64
        For each part the distinct source rows of all sets, ascending, counted from the part's first row; empty for
        `rank`.

    Notes
    -----
    Memory: 9 bytes for each edge, and 1 byte for each row of one part at a time.
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


def by_owner(sets: Sequence[InEdges], where: list[list[Any]], needs: Sequence[Array], offsets: Array,
             rank: int) -> list[EdgesByOwner]:
    """Group each of `sets`, sets of in-edges of part `rank`, by the part that owns the sources; return a list of EdgesByOwner.
    where[k][q] are the positions in sets[k] of the edges from part q; needs[q] are the rows that part q sends. Part q owns rows
    offsets[q] .. offsets[q + 1] - 1.

    Memory: 4 or 8 bytes for each row of one part at a time.
    """
    columns: list[list[Array]] = [[] for _ in sets]
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
