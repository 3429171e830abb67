"""Blocks: the edges from the source rows of one part of a graph to the destination rows of another part, as a CSR."""

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np

from sarlite import kernels
from sarlite.types import Array, DType, RowIndex

TRANSPOSES = "transpose", "transpose_position", "edges_by_column"
"""Attributes of `Edges` that are computed when they are first used, and then stored."""

PIECE_EDGES = 1 << 16
"""Least number of edges of a piece that `Edges.pieces` cuts from a block."""

LONG = 1 << 14
"""Number of edges of a column above which a float32 sum of the column's gradients is not accurate enough."""


class Edges:
    """Edges of a part as a CSR: a CSR row for each destination node, and a CSR column for each source node.

    Base class of `Block` and of ranges of a block.

    Attributes
    ----------
    n_dst : int
        Number of destination rows of the part.
    rows : (n_rows,) same dtype as indices, or None
        Destination row of each CSR row, ascending; None if CSR row i is destination row i.
    indptr : (n_rows + 1,) int64
    indices : (n_edges,) int32 or int64
        Column of each edge: an index into the rows that rank `source` sends.
    positions : (n_edges,) same dtype as indices, or None
        Position of each edge among all edges of the part in source order; None if the block has all edges of the part.
    numbers : (n_edges of the part,) int, or None
        Index into the part's edge values of each edge of the part in source order; None if the index is the position.
    src_ids : (n_src,) int64
        Global node id of each column.
    offset : int
        Number of columns of the part's blocks before this one, so that offset + column is unique among the blocks.
    source : int
        Rank that owns the columns, or the lowest of several ranks.
    n_src, n_edges : int
        Number of columns; number of edges.
    lasting : bool
        True if transposes are stored as long as the block. False in a batch, whose transposes lie in the buffers of the
        step.
    """

    n_dst: int
    rows: Array | None
    indptr: Array
    indices: Array
    positions: Array | None
    numbers: Array | None = None
    src_ids: Array
    offset: int
    source: int
    lasting: bool = True

    @property
    def n_src(self) -> int:
        """Number of source rows, which are the columns of the CSR."""
        return len(self.src_ids)

    @property
    def n_edges(self) -> int:
        """Number of edges, which are the entries of the CSR."""
        return len(self.indices)

    @cached_property
    def edge_index(self):
        """Index of each edge into the part's array of edge values, (n_edges,); None if the indices are 0, 1, 2, ..."""
        if self.numbers is None or self.positions is None:
            return self.positions if self.numbers is None else self.numbers
        return self.numbers[self.positions]

    @cached_property
    def edge_index_array(self):
        """`edge_index` as an array, (n_edges,): where `edge_index` is None, the array 0, 1, 2, ..."""
        return np.arange(self.n_edges, dtype=self.indices.dtype) if self.edge_index is None else self.edge_index

    @cached_property
    def transpose(self):
        """The same edges grouped by source, as a CSR (indptr, indices): a row for each source, indices are destinations."""
        return self._transposed(rows=self.rows, position=False)[:2]

    @cached_property
    def transpose_position(self):
        """Position in `indices` of each edge of `transpose`, (n_edges,): values[transpose_position] are edge values in the order of
        `transpose`.
        """
        return self._transposed()[2]

    @cached_property
    def edges_by_column(self):
        """Pair (indptr, positions): positions[indptr[c] : indptr[c + 1]] are the positions in `indices` of the edges of CSR column c."""
        t_indptr, _, position = self._transposed()
        return t_indptr, position

    def _transposed(self, **options):
        arrays = self.indptr, self.indices, self.n_src
        if self.lasting:
            return kernels.outside_buffers(kernels.transpose, *arrays, **options)
        return kernels.transpose(*arrays, **options)

    @cached_property
    def transpose_edge_index(self):
        """Index of each edge of `transpose`, in its order, into the part's array of edge values, (n_edges,)."""
        return self.transpose_position if self.edge_index is None else self.edge_index[self.transpose_position]

    @property
    def whole_indptr(self):
        """Row pointers of a CSR with a row for every destination row, (n_dst + 1,): `indptr`, or a new array if this CSR leaves out
        rows without edges.
        """
        if self.rows is None:
            return self.indptr
        ends = np.zeros(self.n_dst + 1, np.int64)
        ends[1:][self.rows] = np.diff(self.indptr)
        return np.cumsum(ends, out=ends)

    @property
    def dst(self):
        """Destination row of each edge, (n_edges,); a new array at each access."""
        rows = np.arange(len(self.indptr) - 1, dtype=self.indices.dtype) if self.rows is None else self.rows
        return np.repeat(rows, np.diff(self.indptr))

    def between(self, a: int, b: int) -> "Edges":
        """Return the edges of CSR rows a .. b - 1, as Edges."""
        return RowRange(self, a, b)

    def columns(self, a: int, b: int) -> "Edges":
        """Return the edges of CSR columns a .. b - 1, which are source rows, as Edges."""
        return ColumnRange(self, a, b)

    def anew(self) -> "Edges":
        """Return an object with the same edges that its caller may drop, to free the CSR that it computes and stores. A
        `ColumnRange` returns a copy; other edges compute no CSR and return `self`.
        """
        return self

    @cached_property
    def pieces(self):
        """Edges divided into consecutive ranges of CSR rows, a list of Edges. Each has about `PIECE_EDGES` edges, or `n_src` if
        that is more.

        An array with one value for each edge of a piece then takes no more memory than one with a value for each node.
        """
        return self.in_pieces(PIECE_EDGES)

    def in_pieces(self, least_edges: int) -> "list[Edges]":
        """Return the edges divided into consecutive ranges of CSR rows, a list of Edges. Each has about `least_edges` edges, or
        `n_src` if that is more.
        """
        step = max(least_edges, self.n_src)
        if self.n_edges <= step:
            return [self]
        cuts = np.unique(np.searchsorted(self.indptr, np.arange(step, self.n_edges, step)))
        return [self.between(int(a), int(b)) for a, b in zip([0, *cuts], [*cuts, len(self.indptr) - 1]) if b > a]

    @cached_property
    def halves(self):
        """Pair (edges of the first CSR rows, edges of the remaining CSR rows), with about equally many edges each."""
        middle = int(np.searchsorted(self.indptr, self.n_edges // 2))
        return self.between(0, middle), self.between(middle, len(self.indptr) - 1)

    @cached_property
    def long_columns(self):
        """CSR columns (source rows) with more than `LONG` edges, ascending, (n,) int64."""
        counts, step = np.zeros(self.n_src, np.int64), max(1 << 20, self.n_src)
        for start in range(0, self.n_edges if self.n_dst > LONG else 0, step):
            counts += np.bincount(self.indices[start : start + step], minlength=self.n_src)
        return np.flatnonzero(counts > LONG)

    def at_src(self, values: Array) -> Array:
        """Return the value of each edge's source, (n_edges, ...), from values of the sources, (n_src, ...)."""
        return _gather(values, self.indices)

    def at_dst(self, values: Array) -> Array:
        """Return the value of each edge's destination, (n_edges, ...), from values of the destinations, (n_dst, ...)."""
        return _gather(values, self.dst)

    def at_edge(self, values: Array) -> Array:
        """Return the values of these edges, (n_edges, ...), from `values`, the edge values of the whole part."""
        return values if self.edge_index is None else _gather(values, self.edge_index)

    def sum_to_dst(self, values: Array, out: Array, **scale: Any) -> None:
        """Add `values`, a value of each edge, (n_edges, ...), to the rows of their destinations in `out`, (n_dst, ...). `scale` are
        keyword arguments of `kernels.spmm` with factors, such as dst_scale.
        """
        kernels.spmm(self.indptr, None, np.ascontiguousarray(values), out, rows=self.rows, **scale)


class Block(Edges):
    """Edges from the source nodes of part q to the destination nodes of part p, as a CSR with a row for each destination and a
    column for each source.

    Parameters
    ----------
    indptr, indices, src_ids, n_dst, rows, numbers, offset, source, lasting
        See `Edges`.
    order : (EdgeOrder, list of int), optional
        Order of the part's edges, and the indices in `EdgeOrder.blocks` of the edges of this block; by default the
        block has all edges of the part.
    """

    def __init__(self, indptr, indices, src_ids, n_dst=None, rows=None, *, order=None, numbers=None, offset=0, source=0,
                 lasting=True):
        self.indptr, self.indices, self.src_ids, self.rows, self.numbers = indptr, indices, src_ids, rows, numbers
        self.n_dst = len(indptr) - 1 if n_dst is None else n_dst
        self.order, self.offset, self.source, self.lasting = order, offset, source, lasting

    @cached_property
    def positions(self):
        """Position of each edge of this block among all edges of the part, where the edges of a row are sorted by source; None if
        the block has all edges of the part.
        """
        return None if self.order is None else self.order[0].positions(self.order[1], self.indices.dtype)


class EdgeOrder:
    """Positions of sets of edges (the blocks of a part, in the order of their sources) among all edges of the part, sorted by row
    and then by source. They are computed from the sets' row pointers when they are needed, not stored.

    Parameters
    ----------
    n_dst : int
    blocks : list of (rows or None, indptr)
        Blocks in the order of their sources; see `Edges`.
    """

    def __init__(self, n_dst, blocks):
        self.n_dst, self.blocks, self._starts = n_dst, blocks, None

    def positions(self, members: Sequence[int], dtype: DType) -> Array:
        """Return the positions, (n_edges,) of `dtype`, of the edges in the sets with the numbers `members` among all edges of the
        part. The positions of several sets are merged in ascending order.
        """
        places = [self._positions(k, dtype) for k in members]
        return places[0] if len(places) == 1 else np.sort(np.concatenate(places))

    def _positions(self, k, dtype):
        if self._starts is None:  # a cached_property has a lock that ranks as threads would share
            self._starts = list(self._each_start())
        indptr = self.blocks[k][1]
        shift = (self._starts[k] - indptr[:-1]).astype(dtype)
        return np.repeat(shift, np.diff(indptr)) + np.arange(indptr[-1], dtype=dtype)

    def _each_start(self):
        """Yield an array for each set of edges: for each of its CSR rows the position of the row's first edge among all edges of
        the part.
        """
        ends = np.zeros(self.n_dst + 1, np.int64)
        for rows, indptr in self.blocks:
            ends[1:][_all_or(rows)] += np.diff(indptr)
        following = np.cumsum(ends, out=ends)[:-1]
        for rows, indptr in self.blocks:
            yield following[_all_or(rows)].copy()
            following[_all_or(rows)] += np.diff(indptr)


class RowRange(Edges):
    """Edges of consecutive CSR rows of a block, as a CSR of their own."""

    def __init__(self, block, a, b):
        self.block, self.edges = block, slice(int(block.indptr[a]), int(block.indptr[b]))
        self.indptr, self.indices = block.indptr[a : b + 1] - self.edges.start, block.indices[self.edges]
        self.rows = np.arange(a, b, dtype=block.indices.dtype) if block.rows is None else block.rows[a:b]
        self.n_dst, self.src_ids, self.offset, self.source = block.n_dst, block.src_ids, block.offset, block.source
        self.lasting = block.lasting

    @cached_property
    def edge_index(self):
        return self.block.edge_index_array[self.edges]


class ColumnRange(Edges):
    """Edges of consecutive CSR columns (source rows) of a block, as a CSR of their own.

    The transpose is a range of the block's transpose; the CSR by row is computed when it is first used.
    """

    def __init__(self, block, a, b):
        self.block, self.range = block, slice(a, b)
        self.n_dst, self.src_ids = block.n_dst, block.src_ids[a:b]
        self.offset, self.source = block.offset + a, block.source

    @cached_property
    def n_edges(self):
        """Number of edges, counted in the indices of `block`. The number is in `transpose` too, but computing a transpose for it
        would be a waste if the schedule needs none.
        """
        return int(np.count_nonzero((self.block.indices >= self.range.start) & (self.block.indices < self.range.stop)))

    def anew(self):
        return ColumnRange(self.block, self.range.start, self.range.stop)

    @cached_property
    def transpose(self):
        t_indptr, t_indices = self.block.transpose
        ends = t_indptr[self.range.start : self.range.stop + 1]
        return ends - ends[0], t_indices[ends[0] : ends[-1]]

    @cached_property
    def rows(self):
        return self.block.rows

    @cached_property
    def edge_index(self):
        return self.block.edge_index_array[self._edges]

    @cached_property
    def _edges(self):
        """Position of each of these edges among the edges of `block`, ascending."""
        return np.flatnonzero((self.block.indices >= self.range.start) & (self.block.indices < self.range.stop))

    @cached_property
    def indices(self):
        return self.block.indices[self._edges] - self.block.indices.dtype.type(self.range.start)

    @cached_property
    def indptr(self):
        return np.searchsorted(self._edges, self.block.indptr).astype(np.int64)


class Bundle(tuple[Edges, ...]):
    """Several sets of edges out of the same source rows, such as the relations out of one node type, so that one fetch of the rows
    serves all sets.
    """

    @property
    def n_src(self) -> int:
        return self[0].n_src

    @property
    def n_edges(self) -> int:
        return sum(edges.n_edges for edges in self)

    @property
    def source(self) -> int:
        return self[0].source

    @property
    def offset(self) -> int:
        return self[0].offset

    @property
    def src_ids(self) -> Array:
        return self[0].src_ids

    def columns(self, a: int, b: int) -> "Bundle":
        return Bundle(edges.columns(a, b) for edges in self)

    @property
    def halves(self) -> "tuple[Bundle, ...]":
        return tuple(Bundle(halves) for halves in zip(*(edges.halves for edges in self)))


def _all_or(rows: Array | None) -> RowIndex:
    """Return `rows`, an index; for None, which stands for all rows, return slice(None)."""
    return slice(None) if rows is None else rows


def _gather(values: Array, index: Array) -> Array:
    """Return values[index] along the first axis, gathered by a parallel kernel if the values are floats."""
    if values.dtype.kind != "f":
        return np.take(values, index, axis=0)
    out = np.empty((len(index), *values.shape[1:]), values.dtype)
    kernels.gather_rows(np.ascontiguousarray(values), index, out)
    return out
