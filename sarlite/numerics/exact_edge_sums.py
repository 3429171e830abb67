"""Accumulators of sums over edges for numerics "exact": sums with the same bits for any blocks, ranks and order.

While they are accumulated, sums are on grids (`kernels.grid_sums`): float64 arrays of shape (rows, levels, ...), to
which any rank can add without rounding. The owner of the rows rounds each finished sum once.
"""

import math
from functools import reduce

import numpy as np

from sarlite import kernels
from sarlite.errors import ConfigError
from sarlite.numerics.edge_sums import EdgeSums, in_rows
from sarlite.numerics.exact_sum import Exact, sum_levels
from sarlite.types import Array, DType

COLUMNS_AT_ONCE = 64
"""Number of columns that are summed at a time if rows arrive from peers.

Gathering 64 columns at a time takes no longer for each column than gathering all columns.
"""


class ExactEdgeSums(EdgeSums):
    """Factory of accumulators, which are objects that sum values over edges, for numerics "exact". `EdgeSums` documents the
    methods, which are collective here.

    Parameters
    ----------
    numerics : Exact
    n_terms : int
        Largest number of in-edges or out-edges of a node, over all ranks.
    """

    over_all_edges = True

    def __init__(self, numerics: Exact, n_terms: int) -> None:
        self.numerics, self.n_terms = numerics, n_terms

    def scaled(self, g, scale):
        if scale is None:
            return g, None
        out = g if g.flags.writeable else None  # nothing else reads a writable gradient
        return np.multiply(g, _by_row(scale.astype(g.dtype), g), out=out), None

    def row_sum(self, x, n_dst, *, weight=None, src_scale=None, dst_scale=None, single_block=False, keeps_rows=False,
                out=None):
        if src_scale is not None and out is not None:  # `dst_scale` would also scale the earlier sums in `out`
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

    def picked_gradient(self, g, row_shape, dtype):
        return self._sum(self.numerics.largest(g).reshape(row_shape), self.n_terms, dtype)

    def message_gradients(self, d_edges):
        return [None if d is None else self._sum(self.numerics.largest(d), self.n_terms, d.dtype) for d in d_edges]

    def softmax_sum(self, z, dst_scores, largest_src_scores, dropout, slope, single_block):
        if slope < 0:
            raise ConfigError(f"numerics exact: attention with a slope of {slope}, below 0, is not exact yet")
        bound, row = _dropout_bound(dropout), (dst_scores.shape[1], z.shape[2])
        largest = self.numerics.largest(z)
        grid = self.numerics.grid_of(bound * np.broadcast_to(largest, row), self.n_terms, z.dtype)
        grid_l = self.numerics.grid_of(np.ones(dst_scores.shape[1]), self.n_terms, z.dtype)
        return ExactSoftmaxSum(z, dst_scores, largest_src_scores, slope, largest, grid, grid_l, single_block)

    def softmax_gradient(self, z_row_shape, dst_scores, g, largest_z, dropout, slope, single_block):
        bound, n_heads, of_g = _dropout_bound(dropout), dst_scores.shape[1], self.numerics.largest(g)
        of_z, times = (of_g.max(0, keepdims=True), n_heads) if len(largest_z) < n_heads else (of_g, 1)
        # a score's gradient is at most a factor and a slope times |g . z| + |g . out|, both at most sum_d |g_d| |z_d|
        of_dot = np.empty(n_heads)
        kernels.row_dot(of_g, np.ascontiguousarray(np.broadcast_to(largest_z, of_g.shape)), of_dot)
        of_score = 2.5 * bound * bound * max(1.0, slope) * of_dot
        return ExactSoftmaxGradient(dst_scores, [
            self._sum(bound * of_z, self.n_terms * times, g.dtype, None, single_block),
            self._sum(of_score, self.n_terms, g.dtype, None, single_block)])

    def all_edges(self, n_dst: int, dst: Array, edge_index: Array) -> "AllEdges":
        """Return this rank's in-edges as an `AllEdges` of `n_dst` rows. For each edge, `dst` has the destination row, ascending,
        and `edge_index` the position among the rank's edge values.
        """
        return AllEdges(self, n_dst, dst, edge_index)

    def _sum(self, largest, n_terms, dtype, final_scale=None, single_block=False):
        return GridSum(self.numerics, [(largest, n_terms)], dtype, final_scale, single_block)

    def _weight_bound(self, weight, ndim):
        """Return the largest absolute weight of each head over all ranks, shaped to broadcast with a row of an array of `ndim`
        axes. A row has ndim - 1 axes, and the heads are its first axis.
        """
        of_heads = self.numerics.largest(weight)
        return of_heads.reshape(*of_heads.shape, *[1] * (ndim - 1 - of_heads.ndim))


class GridSum:
    """Accumulator for exact sums of the gradients of rows, with the methods of `FloatSum`. Each term is rounded to a multiple
    of a power of two, which the grid of the sums defines (`kernels.grid_sums`).

    Parameters
    ----------
    numerics : Exact
    terms : list of (largest, n_terms)
        For each sum that is added here: the largest absolute term of each column, in the shape of a row, and the
        largest number of terms of a row.
    dtype : dtype
        Dtype of the finished sums.
    final_scale : (n_rows,) float64, optional
        Factor of each finished sum.
    single_block : bool
        True if one call adds all terms, so that the kernel rounds each sum at once.
    array : array, optional
        Sums so far; None until `start`.
    grid : (levels, ...) float64, optional
        Grid of the sums; by default computed from `terms`.
    level_cache : dict, optional
        Cache of `add_picked`, which all accumulators of one pass share.
    """

    def __init__(self, numerics: Exact, terms: list[tuple[Array, int]], dtype: DType, final_scale: Array | None = None,
                 single_block: bool = False, array: Array | None = None, grid: Array | None = None,
                 level_cache: dict[int, tuple[Array, Array]] | None = None) -> None:
        self._level_cache = {} if level_cache is None else level_cache
        self._numerics, self._terms, self.dtype, self._scale = numerics, terms, np.dtype(dtype), final_scale
        self._single_block, self.array = single_block, array
        if grid is None:
            largest = reduce(np.maximum, (bound for bound, _ in terms))
            grid = numerics.grid_of(largest, sum(n for _, n in terms), self.dtype)
        self.grid: Array = grid

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of a row of the finished sums."""
        return self.grid.shape[1:]

    def start(self, n_rows, earlier=None):  # not `earlier`, because a sum is rounded before it is added to `earlier`
        shape = self.shape if self._single_block else self.grid.shape
        return self._with(np.empty((n_rows, *shape), self.dtype) if self._single_block else np.zeros((n_rows, *shape)),
                          self._single_block)

    def over(self, array):
        return self if array is self.array else self._with(array, False)

    def _with(self, array, single_block):
        return GridSum(self._numerics, self._terms, self.dtype, self._scale, single_block, array, self.grid,
                       self._level_cache)

    def join(self, others):
        if not others:
            return self
        terms = [term for each in (self, *others) for term in each._terms]
        return GridSum(self._numerics, terms, self.dtype, self._scale)

    def add_rows(self, csr, x, *, src_scale=None, dst_scale=None, **weights):
        scale = self._final_scale() if self._single_block else None
        kernels.exact_spmm(*csr, x, self.array, self.grid, scale=scale, accumulate=not self._single_block, **weights)

    def add_picked(self, g, argument, block):
        if id(g) not in self._level_cache:  # once for all blocks
            self._level_cache[id(g)] = self._levels(g), np.concatenate([argument] * len(self.grid), 1)
        levels, argument = in_rows(block, *self._level_cache[id(g)])
        kernels.extremum_backward(levels, argument, self.array.reshape(len(self.array), levels.shape[1]), block.offset)

    def _levels(self, g):
        """Split each value of `g`, (n, F), into the one or two float64 numbers (levels) that exact sums store, side by side: (n,
        levels * F). The first is the value rounded to a multiple of a power of two; the second, for float64, is the rounded
        remainder.
        """
        remainder, levels = g.astype(np.float64), []
        with np.errstate(invalid="ignore"):  # an infinity leaves NaN on the second level
            for m in self.grid:
                m = m.reshape(g.shape[1])
                levels.append((remainder + m) - m)
                remainder = remainder - levels[-1]
        return np.ascontiguousarray(np.concatenate(levels, 1))

    def rounded(self):
        return self.array if self._single_block else _rounded(self.array, self.dtype, self._final_scale())

    def _final_scale(self):
        return None if self._scale is None else self._scale[: len(self.array)]


class ExactRowSum:
    """Accumulator for exact weighted sums of each destination's source rows, with the methods of `RowSum`.

    If one block holds all edges, the kernel rounds each sum at once. Otherwise each sweep over the blocks sums a few
    columns, so that few float64 sums and few columns of peers' rows are in memory.
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
        """Round the exact sums of the columns that the current pass over the blocks has summed, and store them in the output or add
        them to it.
        """
        sums, self._sums = self._sums, None
        if not self._single_block:
            sums = _rounded(sums, self._dtype, self._scale)
        if self._adds:
            if sums is not self._out:
                self._out[..., self._columns] += sums
        elif self._out is None and sums.shape == self._shape:
            self._out = sums
        else:
            self._out = np.empty(self._shape, self._dtype) if self._out is None else self._out
            self._out[..., self._columns] = sums

    def finish(self):
        if self._sums is not None:
            self._round()
        out, self._out = self._out, None
        return out


class ExactSoftmaxSum:
    """Accumulator for attention's output that uses exact sums, with the methods of `SoftmaxSum`.

    If one block holds all edges, the kernel computes the largest score of each row, and rounds each sum at once.
    Otherwise the largest score is known in advance: the leaky ReLU is increasing, so it belongs to the largest source
    score, `top`.
    """

    def __init__(self, z, dst, top, slope, largest, grid, grid_l, single_block):
        self._m = np.zeros_like(dst) if single_block else _largest_scores(dst, top, slope)
        self._dst, self._largest, self._grid, self._grid_l = dst, largest, grid, grid_l
        self._single_block, (n_dst, n_heads), row = single_block, dst.shape, (dst.shape[1], z.shape[2])
        if single_block:  # the kernel writes 1 / l into `_l`
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
    """Accumulators for attention's gradients of z, of the source scores and of the destination scores. They use exact sums, and
    have the methods of `SoftmaxGradient`.
    """

    def __init__(self, dst, accumulators):
        self._dst, self.accumulators, self._parts = dst, accumulators, None

    def _new_parts(self, n_dst, grid):
        return np.zeros((kernels.threads(), n_dst, *grid.shape))

    def add(self, csr, z, src, ends, g, accumulators, slope, dropout):
        dz, d_src = accumulators
        if self._parts is None:
            self._parts = self._new_parts(len(self._dst), d_src.grid)
        kernels.exact_attend_backward(*csr, z, src, ends, g, dz.array, d_src.array, self._parts, dz.grid, d_src.grid,
                                      slope=slope, dropout=dropout)

    def add_by_source(self, csr, z, src, ends, g, accumulators, d_dst, slope, dropout):
        dz, d_src = accumulators
        parts = self._new_parts(len(ends), d_src.grid)
        kernels.exact_attend_backward(*csr, z, src, ends, g, dz.array, d_src.array, parts, dz.grid, d_src.grid,
                                      slope=slope, dropout=dropout)
        d_dst += parts.sum(0)

    def dst_sums(self):
        return np.zeros((len(self._dst), *self.accumulators[1].grid.shape))

    def dst_gradient(self, sums=None):
        if sums is None:
            sums = self.dst_sums() if self._parts is None else self._parts.sum(0)
        return sum_levels(sums).astype(self._dst.dtype)


class AllEdges:
    """All in-edges of a rank's destination rows, ordered by row, over which exact numerics sums messages at once.

    The members are named as in `structure.block.Edges`.

    Attributes
    ----------
    indptr, dst, n_edges
        See `Edges`.
    edge_index_array : (n_edges,) int
        Index of each edge into the part's edge values.
    position : (n_edges,) int
        Inverse of `edge_index_array`: the position, among these edges, of each edge of the part.
    """

    rows = None

    def __init__(self, sums: ExactEdgeSums, n_dst: int, dst: Array, edge_index: Array) -> None:
        self._sums, self.n_dst, self.dst, self.edge_index_array = sums, n_dst, dst, edge_index
        self.indices, self.n_edges = dst, len(dst)
        self.indptr = np.concatenate([[0], np.cumsum(np.bincount(dst, minlength=n_dst))])
        self.position = np.empty_like(edge_index)
        self.position[edge_index] = np.arange(len(edge_index), dtype=edge_index.dtype)

    def at_dst(self, values: Array) -> Array:
        """Return for each edge the row of `values`, (n_dst, ...), that belongs to the edge's destination, (n_edges, ...)."""
        return values[self.dst]

    def in_order(self, values: Array) -> Array:
        """Reorder `values`, (n_edges, ...), from the order of this object's edges, by destination row, to the order of the rank's
        edge values: result[edge_index_array[e]] = values[e].
        """
        return values[self.position]

    def sum_to_dst(self, values: Array, out: Array | None = None, weight: Array | None = None,
                   dst_scale: Array | None = None) -> Array:
        """Return the exact sum of `values`, which has a row for each edge, over the in-edges of each destination, (n_dst, ...).
        Values are multiplied by `weight` of their edge, and sums by `dst_scale`, unless these are None; the result is added to
        `out` if given. Collective.

        Parameters
        ----------
        values : (n_edges, ...) array
        out : (n_dst, ...) array, optional
            Array that the sums are added to.
        weight : (n_edges,) or (n_edges, n_heads) array, optional
            Factor of each value.
        dst_scale : (n_dst,) array, optional
            Factor of each sum.
        """
        values, numerics = np.ascontiguousarray(values), self._sums.numerics
        factor = 1.0 if weight is None else float(numerics.largest(weight).max(initial=0))
        grid = numerics.edge_grid(values, self._sums.n_terms, factor)
        sums = np.zeros((self.n_dst, *grid.shape))
        kernels.exact_spmm(self.indptr, None, values, sums, grid, weight=weight)
        totals = sum_levels(sums)
        totals = (totals if dst_scale is None else totals * _by_row(dst_scale, totals)).astype(values.dtype)
        return totals if out is None else np.add(out, totals, out=out)


def _largest_scores(dst, top, slope):
    """Return the largest attention score of each destination, (n_dst, n_heads): leaky_relu(top + dst) with the slope `slope`.
    `top` has the largest score among the destination's sources, and `dst` the destination's own. A destination without sources,
    where `top` is -inf, gets 0.
    """
    score = top + dst
    with np.errstate(invalid="ignore"):  # a slope of 0 times an infinity, as in the kernels
        score = np.where(score > 0, score, score.dtype.type(slope) * score)
    return np.where(np.isneginf(score), 0, score).astype(dst.dtype)


def _dropout_bound(dropout):
    """Return an upper bound of attention coefficients after dropout with the probability `dropout`. Before dropout they are below
    1.01.
    """
    return 1.01 / (1 - dropout)


def _column_ranges(shape):
    """Return a list of slices that divide the last axis of an array of shape `shape`, so that a row has about `COLUMNS_AT_ONCE`
    values in each slice.
    """
    width = max(1, COLUMNS_AT_ONCE // max(1, math.prod(shape[1:-1])))
    if shape[-1] <= width:
        return [slice(None)]
    return [slice(start, start + width) for start in range(0, shape[-1], width)]


def _rounded(sums, dtype, scale=None):
    """Add the levels (one or two float64 parts) of each exact sum, multiply by `scale`, and return the result, rounded once to
    `dtype`. `scale` holds a factor of each row, or of each row and head; None stands for 1.
    """
    out = np.empty((len(sums), *sums.shape[2:]), dtype)
    kernels.exact_whole(sums, out, scale)
    return out


def _by_row(scale, array):
    """Return `scale`, (n,), in a shape that broadcasts over the rows of `array`, (n, ...)."""
    return scale.reshape(-1, *[1] * (array.ndim - 1))
