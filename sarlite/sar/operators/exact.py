"""Operators whose sums stand on grids: their bits depend neither on blocks, ranks and order nor on the way back.

Sums are float64, (rows, levels, ...), and any rank adds them without rounding; their owner makes them the rows' dtype.
"""

import math
from functools import reduce

import numpy as np

from sarlite import kernels
from sarlite.errors import ConfigError
from sarlite.sar.operators.attention import Attend
from sarlite.sar.operators.extremum import Extremum
from sarlite.sar.operators.sums import Sum, columns_of
from sarlite.tape.recording import retained


class OnGrid:
    """What the operators here share.

    Parameters
    ----------
    numerics : Exact
    n_terms : int
        The most edges of a row, in or out, over all ranks.
    """

    overwrites = may_narrow = adds_to_given = False

    def __init__(self, numerics, n_terms, *arguments):
        super().__init__(*arguments)
        self.numerics, self.n_terms = numerics, n_terms

    def accumulator(self, n_rows, shape, dtype, at):
        if not self.accumulate:  # rounded at once
            return np.empty((n_rows, *shape), dtype)
        return np.zeros((n_rows, kernels.levels(dtype), *shape))

    def stand_on(self, *bounds):
        """Take for each fetched input a bound of what is added up to its gradients: the largest, how many, dtype."""
        self.bounds, self.grids = bounds, [self.numerics.grid_of(*bound) for bound in bounds]

    def join(self, place, others):
        operators = [(self, place), *others]
        largest, n_terms, dtypes = zip(*(operator.bounds[at] for operator, at in operators))
        grid = self.numerics.grid_of(reduce(np.maximum, largest), sum(n_terms), dtypes[0])
        for operator, at in operators:
            operator.grids[at] = grid

    def finished(self, sums, dtype):
        return rounded(sums, dtype) if self.accumulate else sums


TURN = 64
"""Columns that are summed at a time where peers' rows come. Edges gather so many no slower than all."""


def turns(x):
    """The columns of rows (n, ..., F), `TURN` of a row at a time."""
    width = max(1, TURN // max(1, math.prod(x.shape[1:-1])))
    if x.ndim == 1 or x.shape[-1] <= width:
        return [slice(None)]
    return [slice(start, start + width) for start in range(0, x.shape[-1], width)]


def rounded(sums, dtype, scale=None):
    """The sums of the levels, by a scale a row, or a row and head, in a dtype."""
    out = np.empty((len(sums), *sums.shape[2:]), dtype)
    kernels.exact_whole(sums, out, scale)
    return out


def whole(sums):
    """The sums of the levels, axis 1; of one level a view."""
    return sums[:, 0] if sums.shape[1] == 1 else sums.sum(1)


def by_row(scale, array):
    """A scale a row, as it multiplies an array."""
    return scale.reshape(-1, *[1] * (array.ndim - 1))


class ExactSum(OnGrid, Sum):
    """`Sum`: s_i is multiplied to the finished sum, t_j to the message; backward s_i to the message, t_j to the sum.

    A sum whose edges are all in one block is rounded at once. Else it is float64 until it is whole, and `TURN` columns
    are summed at a time, over all blocks: few sums are float64 at once, and few columns of peers' rows are here.
    """

    overwrites = True
    grid = out = None

    def begin(self, needs, arrays, keep):
        x = arrays[0]
        if self.src_scale is not None and self.into is not None:  # each would scale what all have added up
            raise ConfigError("numerics exact: 'sym' of several relations at once is not exact yet")
        self.weight, self.factor, self.dtype, self.row = None, 1.0, x.dtype, x.shape[1:]
        self.needs_rows = self.weighted and needs[1]
        if self.weighted:
            self.weight = arrays[1]
            of_heads = self.numerics.largest(self.weight)  # of ranks that divide columns each may have other heads
            self.factor = of_heads.reshape(*of_heads.shape, *[1] * (x.ndim - 1 - of_heads.ndim))
        if self.grid is None:
            self.grid = self.numerics.edge_grid(x, self.n_terms, self.factor, self._local_scale(x))
        self.columns, self.sums = slice(None), self.into if self.alone else None

    def run(self, schedule, rows, keep=False, phase="forward"):
        (x,) = rows
        whole = self.alone or (keep and self.needs_rows)  # what is kept is whole rows
        for self.columns in [slice(None)] if whole else turns(x):
            kept = super().run(schedule, (np.ascontiguousarray(x[..., self.columns]),), keep, phase)
            self._round()
        return kept

    def forward(self, block, rows):
        begun = self.sums is not None
        if not begun:
            levels = () if self.alone else (kernels.levels(self.dtype),)
            self.sums = np.empty((self.n_dst, *levels, *rows[0].shape[1:]), self.dtype if self.alone else np.float64)
        if not begun and block.rows is not None:
            self.sums[...] = 0
        grid = np.ascontiguousarray(self.grid[..., self.columns])
        kernels.exact_spmm(block.indptr, block.indices, rows[0], self.sums, grid, rows=block.rows, accumulate=begun,
                           src_scale=columns_of(block, self.src_scale, self.dtype),
                           scale=self.dst_scale if self.alone else None, **self.weights(block, "eid"))
        return rows if self.needs_rows else None

    def _round(self):
        """Put the sums of these columns, whose edges are all here, where the output is wanted."""
        found, self.sums = self.sums if self.alone else rounded(self.sums, self.dtype, self.dst_scale), None
        if self.into is not None:
            if found is not self.into:
                self.into[..., self.columns] += found
        elif self.out is None and found.shape[1:] == self.row:
            self.out = found
        else:
            self.out = np.empty((self.n_dst, *self.row), self.dtype) if self.out is None else self.out
            self.out[..., self.columns] = found

    def end(self):
        if self.sums is not None:  # of relations, whose blocks another operator has shown
            self._round()
        out, self.out, self.into = self.out if self.into is None else self.into, None, None
        return out

    def begin_backward(self, g):
        self.g = np.ascontiguousarray(g)
        if self.dst_scale is not None:
            over = self.g if self.g.flags.writeable else None  # this pass's own
            self.g = np.multiply(self.g, by_row(self.dst_scale.astype(self.dtype), self.g), out=over)
        self.stand_on((self.numerics.largest(self.g) * self.factor, self.n_terms, self.g.dtype))
        self.d_weight = np.zeros_like(self.weight) if self.needs_rows else None

    def backward(self, block, rows, kept, d_rows):
        if d_rows[0] is not None:
            scale = None if self.accumulate else self._final_scale(len(d_rows[0]))
            kernels.exact_spmm(*block.transpose, self.g, d_rows[0], self.grids[0], accumulate=self.accumulate,
                               scale=scale, **self.weights(block, "transpose_eid"))
        if self.needs_rows:
            kernels.edge_dot(block.indptr, block.indices, self.g, (rows or kept)[0], self.d_weight, rows=block.rows,
                             eid=block.eid)

    def finished(self, sums, dtype):
        return rounded(sums, dtype, self._final_scale(len(sums))) if self.accumulate else sums

    def _final_scale(self, n):
        """t of the local source rows, which the finished sums of gradients are multiplied with."""
        return None if self.src_scale is None else self.src_scale[:n]

    def reversed_operator(self, rows, d_rows):
        made = ExactSum(self.numerics, self.n_terms, len(d_rows[0]), False, self._final_scale(len(d_rows[0])))
        made.grid, made.out = self.grids[0], d_rows[0]
        return made, (self.g,), []


class ExactExtremum(OnGrid, Extremum):
    """`Extremum`, which rounds nothing forward; the gradients that go to one row are summed on a grid."""

    def begin_backward(self, g):
        super().begin_backward(g)
        largest = self.numerics.largest(self.g).reshape(self.shape[1:])
        self.stand_on((largest, self.n_terms, self.g.dtype))
        self.on_grid = None

    def backward(self, block, rows, kept, d_rows):
        if self.on_grid is None:
            left, levels = self.g.astype(np.float64), []
            for m in self.grids[0]:
                m = m.reshape(self.g.shape[1])
                levels.append((left + m) - m)
                left = left - levels[-1]
            argument = np.concatenate([self.argument] * len(levels), 1)
            self.on_grid = np.ascontiguousarray(np.concatenate(levels, 1)), argument
        if d_rows[0] is not None:
            g, argument = self.on_grid
            kernels.extremum_backward(g, argument, d_rows[0].reshape(len(d_rows[0]), g.shape[1]), block.offset)


class ExactAttend(OnGrid, Attend):
    """`Attend` in two passes: over the scores alone, for the largest of each row; then over the rows.

    The leaky ReLU ascends, so the largest score is that of the largest src_j. Sums whose edges are all in one block are
    rounded at once.
    """

    overwrites = True

    def __init__(self, numerics, n_terms, slope, dropout, *arguments):
        super().__init__(numerics, n_terms, slope, dropout, *arguments)
        if slope < 0:
            raise ConfigError(f"numerics exact: attention with a slope of {slope}, below 0, is not exact yet")
        self.keep = 1.01 / (1 - dropout)  # above dropout's factor times a coefficient that is 1 but for rounding

    def begin(self, needs, arrays, keep):
        z, _, self.dst = arrays
        self.needs, self.heads, n = needs, self.dst.shape[1], len(self.dst)
        self.largest = self.numerics.largest(z)
        shape = self.heads, z.shape[2]
        self.grid = self.numerics.grid_of(self.keep * np.broadcast_to(self.largest, shape), self.n_terms, z.dtype)
        self.grid_l = self.numerics.grid_of(np.ones(self.heads), self.n_terms, z.dtype)
        if self.alone:  # rounded at once, l being 1 / l
            self.out, self.l = np.zeros((n, *shape), z.dtype), np.zeros_like(self.dst)
        else:
            self.out, self.l = (self.accumulator(n, of, z.dtype, None) for of in (shape, (self.heads,)))

    def look_ahead(self, schedule, rows):
        top, arguments = np.full_like(self.dst, -np.inf), []

        def largest(block, found):
            arguments.append(arguments[0] if arguments else np.full(top.shape, -1, block.indices.dtype))
            kernels.extremum(block.indptr, block.indices, found[0], top, arguments[0], rows=block.rows, sign=1,
                             offset=block.offset)

        schedule.run((rows[1],), largest)
        top += self.dst
        top = np.where(top > 0, top, top.dtype.type(self.slope) * top)
        self.m = np.where(np.isneginf(top), 0, top).astype(self.dst.dtype)

    def forward(self, block, rows):
        kernels.exact_attend(block.indptr, block.indices, *rows, self.dst, self.m, self.l, self.out, self.grid_l,
                             self.grid, rows=block.rows, slope=self.slope, dropout=self.coins(block))
        return rows

    def end(self):
        if not self.alone:
            total, dtype = whole(self.l), self.dst.dtype
            with np.errstate(divide="ignore"):
                inverse = np.where(total == 0, 0, 1 / total)
            self.out, self.l = rounded(self.out, dtype, inverse), inverse.astype(dtype)
        return self.out

    def begin_backward(self, g):
        self.g = np.ascontiguousarray(g)
        self.ends = kernels.attend_ends(self.dst, self.m, self.l, self.g, self.out)
        if not retained():
            self.out = self.m = self.l = None
        largest = self.numerics.largest(self.g)
        of_z, times = (largest.max(0, keepdims=True), self.heads) if len(self.largest) < self.heads else (largest, 1)
        # a score's gradient is at most a factor and a slope times |g . z| + |g . out|, both at most sum_d |g_d| |z_d|
        of_dot = np.empty(self.heads)
        kernels.row_dot(largest, np.ascontiguousarray(np.broadcast_to(self.largest, largest.shape)), of_dot)
        of_score = 2.5 * self.keep * self.keep * max(1.0, self.slope) * of_dot
        dtype = self.g.dtype
        self.stand_on((self.keep * of_z, self.n_terms * times, dtype), (of_score, self.n_terms, dtype))
        self.sums, self.d_dst = None, np.zeros((len(self.dst), *self.grids[1].shape))

    def backward(self, block, rows, kept, d_rows):
        if self.sums is None:
            self.sums = np.zeros((kernels.threads(), len(self.dst), *self.grids[1].shape))
        z, src = rows or kept
        dz, d_src = (self.accumulator(len(x), x.shape[1:], x.dtype, None) if d is None else d
                     for x, d in zip((z, src), d_rows))
        kernels.exact_attend_backward(*block.transpose, z, src, self.ends, self.g, dz, d_src, self.sums, *self.grids,
                                      slope=self.slope, dropout=self.coins(block))

    def add_by_source(self, csr, rows, ends, g, d_rows, d_dst, dropout):
        sums = np.zeros((kernels.threads(), len(ends), *self.grids[1].shape))
        kernels.exact_attend_backward(*csr, *rows, ends, g, *d_rows, sums, *self.grids, slope=self.slope,
                                      dropout=dropout)
        if d_dst is not None:
            d_dst += sums.sum(0)

    def end_backward(self):
        sums = self.d_dst if self.sums is None else self.sums.sum(0)
        self.sums = self.d_dst = None
        return [whole(sums).astype(self.dst.dtype)]
