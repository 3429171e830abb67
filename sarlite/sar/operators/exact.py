"""Operators whose sums stand on grids: their bits depend neither on blocks, ranks and order nor on the way back.

Sums are float64, (rows, levels, ...), and any rank adds them without rounding; their owner makes them the rows' dtype.
"""

from typing import Any

import numpy as np

from sarlite import kernels
from sarlite.errors import ConfigError
from sarlite.sar.aggregate import Operator
from sarlite.sar.operators.attention import Attend
from sarlite.sar.operators.extremum import Extremum
from sarlite.sar.operators.sums import Sum, columns_of
from sarlite.tape.engine import retained
from sarlite.tape.numerics import current


def made(kind: Any, graph: Any, *arguments: Any) -> Any:
    """Return an operator of a kind over a graph, as the numerics in use has it. Collective.

    Raises
    ------
    ConfigError
        The numerics has no such operator, or not over such a graph.
    """
    numerics = current()
    if numerics is None:
        return kind(*arguments)
    kinds = getattr(numerics, "operators", EXACT)
    if kind not in kinds:
        raise ConfigError(f"numerics exact: messages that are evaluated as {kind.__name__} are not exact yet")
    if not graph.whole_edges:
        raise ConfigError(f"numerics exact: sums over a {type(graph).__name__} are not exact yet")
    if graph.edge_weight is not None:
        raise ConfigError("numerics exact: a graph's edge weights are not exact yet")
    return kinds[kind](numerics, graph.most_edges(), *arguments)


class OnGrid:
    """What the operators here share.

    Parameters
    ----------
    numerics : Exact
    n_terms : int
        The most edges of a row, in or out, over all ranks.
    """

    takes_rows = overwrites = False

    def __init__(self, numerics, n_terms, *arguments):
        super().__init__(*arguments)
        self.numerics, self.n_terms = numerics, n_terms

    def accumulator(self, n_rows, shape, dtype, at):
        return np.zeros((n_rows, kernels.levels(dtype), *shape))

    def finished(self, sums, dtype):
        return _rounded(sums, dtype)


def _rounded(sums, dtype, scale=None, into=None):
    """The sums of the levels, by a scale a row, in a dtype; or added to an array."""
    out = np.empty((len(sums), *sums.shape[2:]), dtype) if into is None else into
    kernels.exact_whole(sums, out, scale, into is not None)
    return out


def _whole(sums):
    """The sums of the levels, axis 1; of one level a view."""
    return sums[:, 0] if sums.shape[1] == 1 else sums.sum(1)


def _by_row(scale, array):
    """A scale a row, as it multiplies an array."""
    return scale.reshape(-1, *[1] * (array.ndim - 1))


class ExactSum(OnGrid, Sum):
    """`Sum`: s_i is multiplied to the finished sum, t_j to the message; backward s_i to the message, t_j to the sum."""

    def begin(self, needs, arrays, keep):
        x = arrays[0]
        self.weight, self.factor = None, 1.0
        if self.weighted:
            if needs[1]:
                raise ConfigError("numerics exact: learned edge weights are not exact yet")
            self.weight = arrays[1]
            self.factor = float(self.numerics.largest(self.weight).max(initial=0))
        self.needs_rows, self.dtype = False, x.dtype
        self.grid = self.numerics.edge_grid(x, self.n_terms, self.factor, self._local_scale(x))
        self.shape, self.sums = x.shape[1:], None

    def forward(self, block, rows):
        begins = self.sums is None and block.rows is None
        if self.sums is None:
            self.sums = (np.empty if begins else np.zeros)((self.n_dst, kernels.levels(self.dtype), *self.shape))
        kernels.exact_spmm(block.indptr, block.indices, rows[0], self.sums, self.grid, rows=block.rows, accumulate=not begins,
                           src_scale=columns_of(block, self.src_scale, self.dtype), **self.weights(block, "eid"))

    def end(self):
        sums, into, self.sums, self.into = self.sums, self.into, None, None
        if sums is None:
            sums = self.accumulator(self.n_dst, self.shape, self.dtype, None)
        return _rounded(sums, self.dtype, self.dst_scale, into)

    def begin_backward(self, g):
        self.g = np.ascontiguousarray(g)
        if self.dst_scale is not None:
            self.g = self.g * _by_row(self.dst_scale.astype(self.dtype), self.g)
        self.grid = self.numerics.edge_grid(self.g, self.n_terms, self.factor)

    def backward(self, block, rows, kept, d_rows):
        if d_rows[0] is not None:
            kernels.exact_spmm(*block.transpose, self.g, d_rows[0], self.grid, **self.weights(block, "transpose_eid"))

    def finished(self, sums, dtype):
        return _rounded(sums, dtype, None if self.src_scale is None else self.src_scale[: len(sums)])

    def reversed_operator(self, rows, d_rows):
        return SumOverReversed(d_rows[0], self.grid), (self.g,), []

    def end_backward(self):
        return [None] if self.weighted else []


class SumOverReversed(Operator):
    """Adds rows over the reversed edges to sums that are there."""

    def __init__(self, sums, grid):
        self.sums, self.grid = sums, grid

    def forward(self, block, rows):
        kernels.exact_spmm(block.indptr, block.indices, rows[0], self.sums, self.grid, rows=block.rows)


class ExactExtremum(OnGrid, Extremum):
    """`Extremum`, which rounds nothing forward; the gradients that go to one row are summed on a grid."""

    def begin_backward(self, g):
        super().begin_backward(g)
        grid = self.numerics.edge_grid(self.g, self.n_terms)
        left, levels = self.g.astype(np.float64), []
        for m in grid:
            levels.append((left + m) - m)
            left = left - levels[-1]
        self.argument = np.concatenate([self.argument] * len(levels), 1)
        self.g = np.ascontiguousarray(np.concatenate(levels, 1))


class ExactAttend(OnGrid, Attend):
    """`Attend` in two passes: over the scores alone, for the largest of each row; then over the rows.

    The leaky ReLU ascends, so the largest score is that of the largest src_j.
    """

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
        self.sums = self.accumulator(n, shape, z.dtype, None)
        self.l = self.accumulator(n, (self.heads,), z.dtype, None)

    def look_ahead(self, schedule, rows):
        top, src = np.full_like(self.dst, -np.inf), rows[1]
        argument = np.full(top.shape, -1, schedule.plan.local.indices.dtype)

        def largest(block, found):
            kernels.extremum(block.indptr, block.indices, found[0], top, argument, rows=block.rows, sign=1,
                             offset=block.offset)

        schedule.run((src,), largest)
        top += self.dst
        top = np.where(top > 0, top, top.dtype.type(self.slope) * top)
        self.m = np.where(np.isneginf(top), 0, top).astype(self.dst.dtype)

    def forward(self, block, rows):
        kernels.exact_attend(block.indptr, block.indices, *rows, self.dst, self.m, self.l, self.sums, self.grid_l,
                             self.grid, rows=block.rows, slope=self.slope, dropout=self.coins(block))
        return rows

    def end(self):
        total, dtype = _whole(self.l), self.dst.dtype
        with np.errstate(divide="ignore"):
            inverse = np.where(total == 0, 0, 1 / total)
        self.out = (_whole(self.sums) * inverse[:, :, None]).astype(dtype)
        self.m[total == 0] = 0
        self.l, self.sums = inverse.astype(dtype), None
        return self.out

    def begin_backward(self, g):
        self.g = np.ascontiguousarray(g)
        self.ends = kernels.attend_ends(self.dst, self.m, self.l, self.g, self.out)
        if not retained():
            self.out = self.m = self.l = None
        largest = self.numerics.largest(self.g)
        of_z, times = (largest.max(0, keepdims=True), self.heads) if len(self.largest) < self.heads else (largest, 1)
        self.grid = self.numerics.grid_of(self.keep * of_z, self.n_terms * times, self.g.dtype)
        # a score's gradient is at most a factor and a slope times |g . z| + |g . out|, both at most sum_d |g_d| |z_d|
        of_dot = np.empty(self.heads)
        kernels.row_dot(largest, np.ascontiguousarray(np.broadcast_to(self.largest, largest.shape)), of_dot)
        of_score = 2.5 * self.keep * self.keep * max(1.0, self.slope) * of_dot
        self.grid_l = self.numerics.grid_of(of_score, self.n_terms, self.g.dtype)
        self.sums, self.d_ends = None, None

    def backward(self, block, rows, kept, d_rows):
        if self.sums is None:
            self.sums = np.zeros((kernels.threads(), len(self.dst), *self.grid_l.shape))
        z, src = rows or kept
        dz, d_src = (self.accumulator(len(x), x.shape[1:], x.dtype, None) if d is None else d
                     for x, d in zip((z, src), d_rows))
        kernels.exact_attend_backward(*block.transpose, z, src, self.ends, self.g, dz, d_src, self.sums, self.grid,
                                      self.grid_l, slope=self.slope, dropout=self.coins(block))

    def reversed_operator(self, rows, d_rows):
        d_rows = [self.accumulator(len(x), x.shape[1:], x.dtype, None) if d is None else d
                  for x, d in zip(rows, d_rows)]
        self.d_ends = self.accumulator(len(self.dst), (self.heads,), self.dst.dtype, None)
        return AttendOverReversed(self, rows, d_rows), (self.g, self.ends), [self.d_ends]

    def end_backward(self):
        sums = self.d_ends if self.sums is None else self.sums.sum(0)
        found = np.zeros_like(self.dst) if sums is None else _whole(sums).astype(self.dst.dtype)
        self.sums = self.d_ends = None
        return [found]


class AttendOverReversed(Operator):
    """`AttendBySource` on grids: adds dz and dsrc of local source rows; each block's ddst is its columns' gradient."""

    def __init__(self, attend, rows, d_rows):
        self.attend, self.rows, self.d_rows = attend, rows, d_rows

    def backward(self, block, rows, kept, d_rows):
        (g, ends), attend = rows, self.attend
        block = block.anew()  # a CSR of some columns is made here, and freed with the rows
        coins = attend.key, attend.p, attend.src_ids, block.src_ids, attend.n_nodes
        dropout = kernels.Dropout(*coins) if attend.p else None
        sums = np.zeros((kernels.threads(), len(ends), *attend.grid_l.shape))
        kernels.exact_attend_backward(block.whole_indptr, block.indices, *self.rows, ends, g, *self.d_rows, sums,
                                      attend.grid, attend.grid_l, slope=attend.slope, dropout=dropout)
        (d_dst,) = d_rows
        d_dst += sums.sum(0)


EXACT = {Sum: ExactSum, Extremum: ExactExtremum, Attend: ExactAttend}
