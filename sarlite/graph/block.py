"""Blocks: the edges from one part's nodes to another's."""

from functools import cached_property

import numpy as np

from sarlite import kernels

PIECE_EDGES = 1 << 16


class Block:
    """The edges from part q's nodes (columns) to part p's nodes (rows), as CSR.

    Parameters
    ----------
    indptr : (n_dst + 1,) int64
    indices : (n_edges,) int32 or int64
        Column of each edge: an index into the rows that part q sends.
    src_ids : (n_src,) int64
        Global node id of each column.
    eid : (n_edges,) same dtype as indices, or a function that returns it, optional
        Index of each edge into part p's edge values; by default its position. A function is called when it is first needed, as
        unweighted sums and attention never do.
    offset : int
        Number of columns in part p's blocks before this one, so that offset + column is unique over them.
    place : slice
        The rows of part p that the block's rows are.
    """

    def __init__(self, indptr, indices, src_ids, eid=None, offset=0, place=slice(None)):
        self.indptr, self.indices, self.src_ids, self._eid, self.offset, self.place = indptr, indices, src_ids, eid, offset, place
        self.n_dst, self.n_src, self.n_edges = len(indptr) - 1, len(src_ids), len(indices)

    @property
    def eid(self):
        """(n_edges,) index of each edge into part p's edge values; None where it is its position."""
        if callable(self._eid):  # no cached_property: one block's may ask for another's, and their lock is one
            self._eid = self._eid()
        return self._eid

    @eid.setter
    def eid(self, eid):
        self._eid = eid

    @cached_property
    def pieces(self):
        """Blocks of consecutive rows with at most about as many edges as this one has columns.

        One value an edge of a piece then takes no more memory than one value a node.
        """
        step = max(PIECE_EDGES, self.n_src)
        if self.n_edges <= step:
            return [self]
        cuts = np.unique(np.searchsorted(self.indptr, np.arange(step, self.n_edges, step)))
        return [self._rows_between(a, b) for a, b in zip([0, *cuts], [*cuts, self.n_dst]) if b > a]

    @cached_property
    def halves(self):
        """Two blocks of consecutive rows with about as many edges each."""
        middle = int(np.searchsorted(self.indptr, self.n_edges // 2))
        return self._rows_between(0, middle), self._rows_between(middle, self.n_dst)

    def _rows_between(self, a, b):
        edges, start = slice(self.indptr[a], self.indptr[b]), self.place.start or 0
        return Block(self.indptr[a : b + 1] - edges.start, self.indices[edges], self.src_ids, lambda: self.labels[edges], self.offset,
                     slice(start + a, start + b))

    @cached_property
    def transpose(self):
        """(indptr, indices): the same edges by column; indices are rows."""
        return kernels.unbuffered(kernels.transpose, self.indptr, self.indices, self.n_src, position=False)[:2]

    @cached_property
    def transpose_position(self):
        """(n_edges,) the position in this block of each edge of the transpose; only values of edges need it."""
        return kernels.unbuffered(kernels.transpose, self.indptr, self.indices, self.n_src)[2]

    @cached_property
    def transpose_eid(self):
        """(n_edges,) `eid` of each edge of the transpose."""
        return self.transpose_position if self.eid is None else self.eid[self.transpose_position]

    @cached_property
    def labels(self):
        """(n_edges,) `eid`, never None."""
        return np.arange(self.n_edges, dtype=self.indices.dtype) if self.eid is None else self.eid

    @property
    def rows(self):
        """(n_edges,) the row of each edge; made anew at each call."""
        return np.repeat(np.arange(self.n_dst, dtype=self.indices.dtype), np.diff(self.indptr))

    def at_src(self, values):
        """Return (n_edges, ...): of values of the columns, each edge's."""
        return _gather(values, self.indices)

    def at_dst(self, values):
        """Return (n_edges, ...): of values of the rows, each edge's."""
        return _gather(values, self.rows)

    def at_edge(self, values):
        """Return (n_edges, ...): of part p's edge values, each edge's; shared where they are in order."""
        return values if self.eid is None else _gather(values, self.eid)


class Columns(Block):
    """The edges of a block from some of its columns. Its transpose is a part of the block's; its rows are made where they are needed."""

    def __init__(self, block, first, last):
        self.whole, self.columns, self.offset, self.place = block, slice(first, last), block.offset + first, block.place
        self.src_ids, self.n_src, self.n_dst = block.src_ids[first:last], last - first, block.n_dst
        self._eid = lambda: block.labels[self._edges]

    @cached_property
    def transpose(self):
        t_indptr, t_indices = self.whole.transpose
        ends = t_indptr[self.columns.start : self.columns.stop + 1]
        return ends - ends[0], t_indices[ends[0] : ends[-1]]

    @property
    def n_edges(self):
        return len(self.transpose[1])

    @cached_property
    def _edges(self):
        """Their positions in the whole block."""
        return np.flatnonzero((self.whole.indices >= self.columns.start) & (self.whole.indices < self.columns.stop))

    @cached_property
    def indices(self):
        return self.whole.indices[self._edges] - self.whole.indices.dtype.type(self.columns.start)

    @cached_property
    def indptr(self):
        return np.searchsorted(self._edges, self.whole.indptr).astype(np.int64)


def _gather(values, index):
    if values.dtype.kind != "f":
        return np.take(values, index, axis=0)
    out = np.empty((len(index), *values.shape[1:]), values.dtype)
    kernels.gather_rows(np.ascontiguousarray(values), index, out)
    return out
