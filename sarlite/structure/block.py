"""Blocks: the edges from one part's source rows to another's destination rows."""

from functools import cached_property

import numpy as np

from sarlite import kernels
from sarlite.types import Array

TRANSPOSES = "transpose", "transpose_position", "edges_by_column"
"""Attributes of `Edges` that are made at their first use and kept."""

PIECE_EDGES = 1 << 16
"""Least number of edges of a piece that `Edges.pieces` cuts from a block."""

LONG = 1 << 14
"""Edges of a column above which float32 loses digits that a sum of its gradients must have."""


class Edges:
    """Some edges of a part as a CSR over destination rows and by column; base class of `Block` and of parts of a block.

    Attributes
    ----------
    n_dst : int
        Destination rows of the part.
    rows : (n_rows,) same dtype as indices, or None
        The destination row of each row of the CSR, ascending; None: CSR row i is destination row i.
    indptr : (n_rows + 1,) int64
    indices : (n_edges,) int32 or int64
        Column of each edge: an index into the rows that `source` sends.
    positions : (n_edges,) same dtype as indices, or None
        Place of each edge among the part's edges in source order; None where these are all of the part's edges.
    numbers : (part's n_edges,) int, or None
        By that place, the index into the part's edge values; None where the index is the place.
    src_ids : (n_src,) int64
        Global node id of each column.
    offset : int
        Number of columns in the part's blocks before this one, so that offset + column is unique over them.
    source : int
        The rank that owns the columns, or the first of several ranks.
    n_src, n_edges : int
    lasting : bool
        Whether transposes are kept outside of a step's buffers; a batch's transposes go with the batch.
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
        return len(self.src_ids)

    @property
    def n_edges(self) -> int:
        return len(self.indices)

    @cached_property
    def eid(self):
        """Index of each edge into the part's edge values, (n_edges,); None if it is 0, 1, 2, ..."""
        if self.numbers is None or self.positions is None:
            return self.positions if self.numbers is None else self.numbers
        return self.numbers[self.positions]

    @cached_property
    def labels(self):
        """`eid` as an array, (n_edges,), also if `eid` is None."""
        return np.arange(self.n_edges, dtype=self.indices.dtype) if self.eid is None else self.eid

    @cached_property
    def transpose(self):
        """The same edges by column as (indptr, indices); the indices are destination rows."""
        return self._transposed(rows=self.rows, position=False)[:2]

    @cached_property
    def transpose_position(self):
        """Position in `indices` of each edge of the transpose, (n_edges,). Only edge values need it."""
        return self._transposed()[2]

    @cached_property
    def edges_by_column(self):
        """The edges of each column as (indptr, positions), with positions in `indices`."""
        t_indptr, _, position = self._transposed()
        return t_indptr, position

    def _transposed(self, **options):
        arrays = self.indptr, self.indices, self.n_src
        if self.lasting:
            return kernels.outside_buffers(kernels.transpose, *arrays, **options)
        return kernels.transpose(*arrays, **options)

    @cached_property
    def transpose_eid(self):
        """`eid` of each edge of the transpose, (n_edges,)."""
        return self.transpose_position if self.eid is None else self.eid[self.transpose_position]

    @property
    def whole_indptr(self):
        """Row pointer over all destination rows, (n_dst + 1,); if `rows` is not None each access makes a new array."""
        if self.rows is None:
            return self.indptr
        ends = np.zeros(self.n_dst + 1, np.int64)
        ends[1:][self.rows] = np.diff(self.indptr)
        return np.cumsum(ends, out=ends)

    @property
    def dst(self):
        """Destination row of each edge, (n_edges,). Each access makes a new array."""
        rows = np.arange(len(self.indptr) - 1, dtype=self.indices.dtype) if self.rows is None else self.rows
        return np.repeat(rows, np.diff(self.indptr))

    def between(self, a, b):
        """Return the edges of the CSR's rows from a to b."""
        return RowRange(self, a, b)

    def columns(self, a: int, b: int) -> "Edges":
        """Return the edges from columns a .. b."""
        return ColumnRange(self, a, b)

    def anew(self):
        """The same edges as a new object, where transposes cost little: the transposes go with the object."""
        return self

    @cached_property
    def pieces(self):
        """Edges of consecutive rows, with at most about as many edges as there are columns.

        One value an edge of a piece then takes no more memory than one value a node.
        """
        return self.in_pieces(PIECE_EDGES)

    def in_pieces(self, least_edges):
        """Return the edges in pieces of consecutive rows, of about `least_edges` edges or one edge a column."""
        step = max(least_edges, self.n_src)
        if self.n_edges <= step:
            return [self]
        cuts = np.unique(np.searchsorted(self.indptr, np.arange(step, self.n_edges, step)))
        return [self.between(int(a), int(b)) for a, b in zip([0, *cuts], [*cuts, len(self.indptr) - 1]) if b > a]

    @cached_property
    def halves(self):
        """The edges of the first rows, and the edges of the remaining rows, about equally many."""
        middle = int(np.searchsorted(self.indptr, self.n_edges // 2))
        return self.between(0, middle), self.between(middle, len(self.indptr) - 1)

    @cached_property
    def long_columns(self):
        """The columns of more than `LONG` edges; an edge takes 8 bytes while a part of the edges is counted."""
        counts, step = np.zeros(self.n_src, np.int64), max(1 << 20, self.n_src)
        for start in range(0, self.n_edges if self.n_dst > LONG else 0, step):
            counts += np.bincount(self.indices[start : start + step], minlength=self.n_src)
        return np.flatnonzero(counts > LONG)

    def at_src(self, values):
        """Return (n_edges, ...): the value of each edge's column."""
        return _gather(values, self.indices)

    def at_dst(self, values):
        """Return (n_edges, ...): the value of each edge's destination row."""
        return _gather(values, self.dst)

    def at_edge(self, values):
        """Return (n_edges, ...): each edge's value among the part's; `values` itself where the edges are in order."""
        return values if self.eid is None else _gather(values, self.eid)

    def sum_to_dst(self, values, out, **scale):
        """Add (n_edges, ...) values to the destination rows of `out`; `dst_scale` as `kernels.spmm` takes it."""
        kernels.spmm(self.indptr, None, np.ascontiguousarray(values), out, rows=self.rows, **scale)


class Block(Edges):
    """The edges from part q's source rows (columns) to part p's destination rows: CSR over the rows that have edges.

    Parameters
    ----------
    order : (EdgeOrder, list of int), optional
        The order of the part's edges, and the numbers in it of the sets of edges that this block has. Without an order
        the block's edges are all of the part's.
    numbers, src_ids, n_dst, rows, offset, source, lasting
        See `Edges`.
    """

    def __init__(self, indptr, indices, src_ids, n_dst=None, rows=None, *, order=None, numbers=None, offset=0, source=0,
                 lasting=True):
        self.indptr, self.indices, self.src_ids, self.rows, self.numbers = indptr, indices, src_ids, rows, numbers
        self.n_dst = len(indptr) - 1 if n_dst is None else n_dst
        self.order, self.offset, self.source, self.lasting = order, offset, source, lasting

    @cached_property
    def positions(self):
        return None if self.order is None else self.order[0].positions(self.order[1], self.indices.dtype)


class EdgeOrder:
    """Positions of the edges of each block among all of a part's edges in source order.

    In source order a row's edges from one part follow its edges from the parts before. The positions therefore follow
    from the blocks' `indptr`, and no array of the size of the edges is kept.

    Parameters
    ----------
    n_dst : int
    blocks : list of (rows or None, indptr)
        Blocks in the order of their sources.
    """

    def __init__(self, n_dst, blocks):
        self.n_dst, self.blocks, self._starts = n_dst, blocks, None

    def positions(self, members, dtype):
        """Return the position of each edge of some blocks, (n_edges,), ascending if there are several blocks."""
        places = [self._positions(k, dtype) for k in members]
        return places[0] if len(places) == 1 else np.sort(np.concatenate(places))

    def _positions(self, k, dtype):
        if self._starts is None:  # no cached_property: its lock would be held while thread ranks wait for each other
            self._starts = list(self._each_start())
        indptr = self.blocks[k][1]
        shift = (self._starts[k] - indptr[:-1]).astype(dtype)
        return np.repeat(shift, np.diff(indptr)) + np.arange(indptr[-1], dtype=dtype)

    def _each_start(self):
        """Yield for each block the position of the first edge of each of its rows."""
        ends = np.zeros(self.n_dst + 1, np.int64)
        for rows, indptr in self.blocks:
            ends[1:][_all_or(rows)] += np.diff(indptr)
        following = np.cumsum(ends, out=ends)[:-1]
        for rows, indptr in self.blocks:
            yield following[_all_or(rows)].copy()
            following[_all_or(rows)] += np.diff(indptr)


class RowRange(Edges):
    """The edges of some rows of a block's CSR."""

    def __init__(self, block, a, b):
        self.block, self.edges = block, slice(int(block.indptr[a]), int(block.indptr[b]))
        self.indptr, self.indices = block.indptr[a : b + 1] - self.edges.start, block.indices[self.edges]
        self.rows = np.arange(a, b, dtype=block.indices.dtype) if block.rows is None else block.rows[a:b]
        self.n_dst, self.src_ids, self.offset, self.source = block.n_dst, block.src_ids, block.offset, block.source
        self.lasting = block.lasting

    @cached_property
    def eid(self):
        return self.block.labels[self.edges]


class ColumnRange(Edges):
    """The edges from some columns of a block.

    Their transpose is a part of the block's; the CSR is made at first use.
    """

    def __init__(self, block, a, b):
        self.block, self.range = block, slice(a, b)
        self.n_dst, self.src_ids = block.n_dst, block.src_ids[a:b]
        self.offset, self.source = block.offset + a, block.source

    @cached_property
    def n_edges(self):
        """Counted, as not every schedule needs the block's transpose."""
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
    def eid(self):
        return self.block.labels[self._edges]

    @cached_property
    def _edges(self):
        """The edges' positions in the block."""
        return np.flatnonzero((self.block.indices >= self.range.start) & (self.block.indices < self.range.stop))

    @cached_property
    def indices(self):
        return self.block.indices[self._edges] - self.block.indices.dtype.type(self.range.start)

    @cached_property
    def indptr(self):
        return np.searchsorted(self._edges, self.block.indptr).astype(np.int64)


class Bundle(tuple[Edges, ...]):
    """Several sets of edges from the same source rows, which one fetch serves.

    Each set is for one member of an operator.
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


def _all_or(rows):
    return slice(None) if rows is None else rows


def _gather(values, index):
    if values.dtype.kind != "f":
        return np.take(values, index, axis=0)
    out = np.empty((len(index), *values.shape[1:]), values.dtype)
    kernels.gather_rows(np.ascontiguousarray(values), index, out)
    return out
