"""Accumulators whose sums over edges have the same bits for any blocks, ranks and order, forward and backward.

Sums are held on grids (`kernels.exact`), as float64 of shape (rows, levels, ...). Any rank adds to them without
rounding, and the owner of the rows rounds each sum once.
"""

import math
from functools import reduce
from typing import Any

import numpy as np

from sarlite import kernels
from sarlite.errors import ConfigError
from sarlite.numerics.edge_sums import EdgeSums, in_rows
from sarlite.numerics.exact_sum import sum_levels
from sarlite.types import Array, DType

COLUMNS_AT_ONCE = 64
"""Columns that are summed at a time where peers' rows come. Edges gather 64 columns as fast as all columns."""


class ExactEdgeSums(EdgeSums):
    """Sums over edges on grids: the accumulators of numerics "exact".

    Parameters
    ----------
    numerics : Exact
    n_terms : int
        The most edges of one row, in or out, over all ranks.
    """

    over_all_edges = True

    def __init__(self, numerics: Any, n_terms: int) -> None:
        self.numerics, self.n_terms = numerics, n_terms

    def scaled(self, g, scale):
        if scale is None:
            return g, None
        over = g if g.flags.writeable else None  # nobody else reads a gradient that may be written to
        return np.multiply(g, _by_row(scale.astype(g.dtype), g), out=over), None

    def row_sum(self, x, n_dst, *, weight=None, src_scale=None, dst_scale=None, single_block=False, keeps_rows=False,
                out=None):
        if src_scale is not None and out is not None:  # each relation would scale what all relations have added up
            raise ConfigError("numerics exact: 'sym' of several relations at once is not exact yet")
        bound = None if weight is None else self._weight_bound(weight, x.ndim)
        local = None if src_scale is None else src_scale[: len(x)].astype(x.dtype)
        grid = self.numerics.edge_grid(x, self.n_terms, 1.0 if bound is None else bound, local)
        return ExactRowSum(grid, (n_dst, *x.shape[1:]), x.dtype, dst_scale, single_block, keeps_rows, out, bound)

    def row_sum_like(self, gradient, n_dst, dst_scale, single_block):
        return ExactRowSum(gradient.grid, (n_dst, *gradient.shape), gradient.dtype, dst_scale, single_block, False,
                           None)

    def row_gradient(self, g, dtype, *, weight=None, weight_bound=None, final_scale=None, single_block=False):
        if weight is not None and weight_bound is None:
            weight_bound = self._weight_bound(weight, g.ndim)
        largest = self.numerics.largest(g) if weight is None else self.numerics.largest(g) * weight_bound
        return self._sum(largest, self.n_terms, dtype, final_scale, single_block)

    def picked_gradient(self, g, row, dtype):
        return self._sum(self.numerics.largest(g).reshape(row), self.n_terms, dtype)

    def message_gradients(self, d_edges):
        return [None if d is None else self._sum(self.numerics.largest(d), self.n_terms, d.dtype) for d in d_edges]

    def softmax_sum(self, z, dst, top, dropout, slope, single_block):
        if slope < 0:
            raise ConfigError(f"numerics exact: attention with a slope of {slope}, below 0, is not exact yet")
        bound, row = _dropout_bound(dropout), (dst.shape[1], z.shape[2])
        largest = self.numerics.largest(z)
        grid = self.numerics.grid_of(bound * np.broadcast_to(largest, row), self.n_terms, z.dtype)
        grid_l = self.numerics.grid_of(np.ones(dst.shape[1]), self.n_terms, z.dtype)
        return ExactSoftmaxSum(z, dst, top, slope, largest, grid, grid_l, single_block)

    def softmax_gradient(self, z_row, dst, g, largest, dropout, slope, single_block):
        bound, n_heads, of_g = _dropout_bound(dropout), dst.shape[1], self.numerics.largest(g)
        of_z, times = (of_g.max(0, keepdims=True), n_heads) if len(largest) < n_heads else (of_g, 1)
        # a score's gradient is at most a factor and a slope times |g . z| + |g . out|, both at most sum_d |g_d| |z_d|
        of_dot = np.empty(n_heads)
        kernels.row_dot(of_g, np.ascontiguousarray(np.broadcast_to(largest, of_g.shape)), of_dot)
        of_score = 2.5 * bound * bound * max(1.0, slope) * of_dot
        return ExactSoftmaxGradient(dst, [
            self._sum(bound * of_z, self.n_terms * times, g.dtype, None, single_block),
            self._sum(of_score, self.n_terms, g.dtype, None, single_block)])

    def all_edges(self, n_dst: int, dst: Array, labels: Array) -> "AllEdges":
        """Return all edges of a rank's destination rows, ordered by row; see `AllEdges`."""
        return AllEdges(self, n_dst, dst, labels)

    def _sum(self, largest, n_terms, dtype, final_scale=None, single_block=False):
        return GridSum(self.numerics, [(largest, n_terms)], dtype, final_scale, single_block)

    def _weight_bound(self, weight, ndim):
        """Return the largest weight over all ranks, by head, shaped to multiply a row of `ndim` - 1 axes."""
        of_heads = self.numerics.largest(weight)
        return of_heads.reshape(*of_heads.shape, *[1] * (ndim - 1 - of_heads.ndim))


class GridSum:
    """Rows of gradients that edges add to on a grid; see `FloatSum` for the methods.

    Parameters
    ----------
    numerics : Exact
    terms : list of (largest, n_terms)
        Largest value of each column, and the most values that a row sums up, of each sum that is added here.
    dtype : dtype of the finished sums
    final_scale : (n,) float64, optional
        Factor of each finished sum.
    single_block : bool
        True if all terms come at once, so that each sum is rounded as it is made.
    """

    def __init__(self, numerics: Any, terms: list[tuple[Any, int]], dtype: DType, final_scale: Array | None = None,
                 single_block: bool = False, array: Array | None = None, grid: Array | None = None,
                 on_grid: dict[int, Any] | None = None) -> None:
        self._on_grid = {} if on_grid is None else on_grid
        self._numerics, self._terms, self.dtype, self._scale = numerics, terms, np.dtype(dtype), final_scale
        self._single_block, self.array = single_block, array
        if grid is None:
            largest = reduce(np.maximum, (bound for bound, _ in terms))
            grid = numerics.grid_of(largest, sum(n for _, n in terms), self.dtype)
        self.grid = grid

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of a row of the finished sums."""
        return self.grid.shape[1:]

    def start(self, n_rows, earlier=None):  # these sums are rounded before they are added to earlier sums
        shape = self.shape if self._single_block else self.grid.shape
        return self._with(np.empty((n_rows, *shape), self.dtype) if self._single_block else np.zeros((n_rows, *shape)),
                          self._single_block)

    def over(self, array):
        return self if array is self.array else self._with(array, False)

    def _with(self, array, single_block):
        return GridSum(self._numerics, self._terms, self.dtype, self._scale, single_block, array, self.grid,
                       self._on_grid)

    def join(self, others):
        if not others:
            return self
        terms = [term for each in (self, *others) for term in each._terms]
        return GridSum(self._numerics, terms, self.dtype, self._scale)

    def add_rows(self, csr, x, *, src_scale=None, dst_scale=None, **weights):
        scale = self._final_scale() if self._single_block else None
        kernels.exact_spmm(*csr, x, self.array, self.grid, scale=scale, accumulate=not self._single_block, **weights)

    def add_picked(self, g, argument, block):
        if id(g) not in self._on_grid:  # made once for all blocks
            self._on_grid[id(g)] = self._levels(g), np.concatenate([argument] * len(self.grid), 1)
        levels, argument = in_rows(block, *self._on_grid[id(g)])
        kernels.extremum_backward(levels, argument, self.array.reshape(len(self.array), levels.shape[1]), block.offset)

    def _levels(self, g):
        """Split values (n, F) into the parts that the grid's levels hold, (n, levels * F) float64."""
        left, levels = g.astype(np.float64), []
        with np.errstate(invalid="ignore"):  # an infinity leaves NaN on the second level
            for m in self.grid:
                m = m.reshape(g.shape[1])
                levels.append((left + m) - m)
                left = left - levels[-1]
        return np.ascontiguousarray(np.concatenate(levels, 1))

    def rounded(self):
        return self.array if self._single_block else _rounded(self.array, self.dtype, self._final_scale())

    def _final_scale(self):
        return None if self._scale is None else self._scale[: len(self.array)]


class ExactRowSum:
    """The weighted sum of each destination's source rows on a grid; see `RowSum` for the methods.

    If one block has all edges, each sum is rounded at once. Otherwise a few columns at a time are summed over all
    blocks, so that few float64 sums and few columns of peers' rows are in memory.
    """

    def __init__(self, grid, shape, dtype, dst_scale, single_block, keeps_rows, out, weight_bound=None):
        self._grid, self._shape, self._dtype, self._scale = grid, shape, dtype, dst_scale
        self.weight_bound = weight_bound
        self._single_block, self._all_columns = single_block, single_block or keeps_rows or len(shape) == 1
        self._out, self._adds = out, out is not None
        self._columns, self._sums = slice(None), out if single_block else None

    def sweeps(self, x):
        if self._all_columns:
            yield x
            return
        for columns in _column_ranges(self._shape):
            self._columns = columns
            yield np.ascontiguousarray(x[..., self._columns])
            self._round()

    def add(self, block, x, *, src_scale=None, **weights):
        begun = self._sums is not None
        if not begun:
            levels = () if self._single_block else (kernels.levels(self._dtype),)
            dtype = self._dtype if self._single_block else np.float64
            self._sums = np.empty((self._shape[0], *levels, *x.shape[1:]), dtype)
            if block.rows is not None:
                self._sums[...] = 0
        kernels.exact_spmm(block.indptr, block.indices, x, self._sums,
                           np.ascontiguousarray(self._grid[..., self._columns]), rows=block.rows, accumulate=begun,
                           src_scale=None if src_scale is None else src_scale.astype(self._dtype),
                           scale=self._scale if self._single_block else None, **weights)

    def _round(self):
        """Put the sums of these columns, whose edges have all been added, into the output."""
        found, self._sums = self._sums, None
        if not self._single_block:
            found = _rounded(found, self._dtype, self._scale)
        if self._adds:
            if found is not self._out:
                self._out[..., self._columns] += found
        elif self._out is None and found.shape == self._shape:
            self._out = found
        else:
            self._out = np.empty(self._shape, self._dtype) if self._out is None else self._out
            self._out[..., self._columns] = found

    def finish(self):
        if self._sums is not None:
            self._round()
        out, self._out = self._out, None
        return out


class ExactSoftmaxSum:
    """Attention's output on grids, given the largest score of each row; see `SoftmaxSum` for the methods.

    The leaky ReLU is increasing, so the largest score belongs to the largest src_j. If one block has all edges, each
    sum is rounded at once.
    """

    def __init__(self, z, dst, top, slope, largest, grid, grid_l, single_block):
        score = top + dst
        with np.errstate(invalid="ignore"):  # a slope of 0 times an infinity, as in the kernels
            score = np.where(score > 0, score, score.dtype.type(slope) * score)
        self._m = np.where(np.isneginf(score), 0, score).astype(dst.dtype)
        self._dst, self._largest, self._grid, self._grid_l = dst, largest, grid, grid_l
        self._single_block, (n_dst, n_heads), row = single_block, dst.shape, (dst.shape[1], z.shape[2])
        if single_block:  # the sum of exponentials is its inverse from the first
            self._out, self._l = np.zeros((n_dst, *row), z.dtype), np.zeros_like(dst)
        else:
            n = kernels.levels(z.dtype)
            self._out, self._l = np.zeros((n_dst, n, *row)), np.zeros((n_dst, n, n_heads))

    def add(self, block, z, src, slope, dropout):
        kernels.exact_attend(block.indptr, block.indices, z, src, self._dst, self._m, self._l, self._out, self._grid_l,
                             self._grid, rows=block.rows, slope=slope, dropout=dropout)

    def finish(self):
        if not self._single_block:
            total, dtype = sum_levels(self._l), self._dst.dtype
            with np.errstate(divide="ignore"):
                inverse = np.where(total == 0, 0, 1 / total)
            self._out, self._l = _rounded(self._out, dtype, inverse), inverse.astype(dtype)
        return self._out, self._m, self._l, self._largest


class ExactSoftmaxGradient:
    """Gradients of attention on grids; see `SoftmaxGradient` for the methods."""

    def __init__(self, dst, sinks):
        self._dst, self.sinks, self._parts = dst, sinks, None

    def _new_parts(self, n_dst, grid):
        return np.zeros((kernels.threads(), n_dst, *grid.shape))

    def add(self, csr, z, src, ends, g, sinks, slope, dropout):
        dz, d_src = sinks
        if self._parts is None:
            self._parts = self._new_parts(len(self._dst), d_src.grid)
        kernels.exact_attend_backward(*csr, z, src, ends, g, dz.array, d_src.array, self._parts, dz.grid, d_src.grid,
                                      slope=slope, dropout=dropout)

    def add_by_source(self, csr, z, src, ends, g, sinks, d_dst, slope, dropout):
        dz, d_src = sinks
        parts = self._new_parts(len(ends), d_src.grid)
        kernels.exact_attend_backward(*csr, z, src, ends, g, dz.array, d_src.array, parts, dz.grid, d_src.grid,
                                      slope=slope, dropout=dropout)
        d_dst += parts.sum(0)

    def dst_sums(self):
        return np.zeros((len(self._dst), *self.sinks[1].grid.shape))

    def dst_gradient(self, sums=None):
        if sums is None:
            sums = self.dst_sums() if self._parts is None else self._parts.sum(0)
        return sum_levels(sums).astype(self._dst.dtype)


class AllEdges:
    """All edges of a rank's destination rows, ordered by row, with the part of the `Edges` interface that reducers use.

    Attributes
    ----------
    indptr, dst, n_edges
        See `Edges`.
    labels : (n_edges,) int
        Index of each edge into the part's edge values.
    place : (n_edges,) int
        Inverse of `labels`: the position here of each of the part's edges.
    """

    rows = None

    def __init__(self, sums: ExactEdgeSums, n_dst: int, dst: Array, labels: Array) -> None:
        self._sums, self.n_dst, self.dst, self.labels = sums, n_dst, dst, labels
        self.indices, self.n_edges = dst, len(dst)
        self.indptr = np.concatenate([[0], np.cumsum(np.bincount(dst, minlength=n_dst))])
        self.place = np.empty_like(labels)
        self.place[labels] = np.arange(len(labels), dtype=labels.dtype)

    def at_dst(self, values: Array) -> Array:
        """Return (n_edges, ...): the value of each edge's destination row."""
        return values[self.dst]

    def in_order(self, values: Array) -> Array:
        """Return values of edges, (n_edges, ...), reordered to the order of the part's edge values."""
        return values[self.place]

    def sum_to_dst(self, values: Array, out: Array | None = None, weight: Array | None = None,
                   dst_scale: Array | None = None) -> Array:
        """Return the sum of (n_edges, ...) values for each row, times `dst_scale`; add the sums to `out` if given."""
        values, numerics = np.ascontiguousarray(values), self._sums.numerics
        factor = 1.0 if weight is None else float(numerics.largest(weight).max(initial=0))
        grid = numerics.edge_grid(values, self._sums.n_terms, factor)
        sums = np.zeros((self.n_dst, *grid.shape))
        kernels.exact_spmm(self.indptr, None, values, sums, grid, weight=weight)
        found = sum_levels(sums)
        found = (found if dst_scale is None else found * _by_row(dst_scale, found)).astype(values.dtype)
        return found if out is None else np.add(out, found, out=out)


def _dropout_bound(dropout):
    """Return an upper bound of a coefficient after dropout, given that coefficients exceed 1 only by rounding."""
    return 1.01 / (1 - dropout)


def _column_ranges(shape):
    """Return slices of the last axis of rows (n, ..., F) that hold about `COLUMNS_AT_ONCE` values of a row each."""
    width = max(1, COLUMNS_AT_ONCE // max(1, math.prod(shape[1:-1])))
    if shape[-1] <= width:
        return [slice(None)]
    return [slice(start, start + width) for start in range(0, shape[-1], width)]


def _rounded(sums, dtype, scale=None):
    """Return the sums over the levels, times a scale per row or per row and head, rounded to `dtype`."""
    out = np.empty((len(sums), *sums.shape[2:]), dtype)
    kernels.exact_whole(sums, out, scale)
    return out


def _by_row(scale, array):
    """Return a scale per row, (n,), reshaped to broadcast over the rows of `array`."""
    return scale.reshape(-1, *[1] * (array.ndim - 1))
