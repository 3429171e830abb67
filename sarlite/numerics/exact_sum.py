"""Exact numerics: sums with the same bits for any number of ranks, order, threads, instruction set and BLAS.

Sums over rows and ranks are accumulated on grids (`kernels.grid_sums`), which hold any partial sum without rounding. A
grid is chosen from the columns' norms over all ranks, which take one allreduce of maxima and one of integers. By the
Cauchy-Schwarz inequality any partial sum of products a_rp g_rq is at most |a_p| |g_q|. Sums within a row have a fixed
order.

A gradient that flows from rows to a replicated tensor (`placement`) is a sum over ranks, which the vjp computes. So the
gradient of a replicated tensor is complete, and the same on every rank.
"""

import math
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np

from sarlite import kernels
from sarlite.errors import ConfigError, DataError, raise_together
from sarlite.numerics import exact_checks
from sarlite.numerics.placement import REPLICATED
from sarlite.numerics.reductions import axes_of, by_heads, flat, taken
from sarlite.numerics.selection import using
from sarlite.types import Array

CACHED_VALUES = 1 << 17
"""Number of values for each thread in the rows that are processed at a time, so that they stay in the cache."""
MOST, LEAST = 500, -480
"""Bounds of the binary exponents of the columns' norms. Larger exponents are refused, smaller ones count as `LEAST`."""


class DenseColumns(NamedTuple):
    """A matrix in memory, whose columns are summed exactly over the rows.

    Attributes
    ----------
    x : (n, F) float32 or float64
    """

    x: Array

    @property
    def shape(self):
        return self.x.shape

    @property
    def dtype(self):
        return self.x.dtype

    def largest(self):
        """Return the largest finite absolute value of each column, (F,) float64."""
        return kernels.exact_largest(self.x)

    def squares(self, inverse):
        """Return for each column f of x an integer that is at least 2^20 * sum_r (x[r,f] * inverse[f])^2, (F,) float64. Integers
        can be summed over ranks without rounding. `inverse` has a factor for each column.
        """
        return kernels.exact_squares(self.x, inverse)

    def sums(self, grid):
        """Return the exact sum of each column, (levels, F) float64. One number may not hold an exact sum, so it is stored as one or
        two float64 numbers to add (levels). `grid`, (levels, F), has the constants that round the terms to multiples of powers of
        two (see `kernels.grid_sums`).
        """
        n = max(1, min(64, len(self.x) // 512))
        parts = np.empty((n, *grid.shape))
        kernels.exact_spmm(np.arange(n + 1) * len(self.x) // n, None, self.x, parts, grid, accumulate=False)
        return parts.sum(0)


class CentredColumns(NamedTuple):
    """The float64 matrix (x - centre) * scale * y, which is never in memory as a whole, and whose columns are summed exactly.
    If y is None, the matrix holds the squares of (x - centre) * scale.

    The methods are those of `DenseColumns`; `kernels.exact_centred` documents the attributes.
    """

    x: Array
    centre: Array
    scale: Array
    y: Array | None = None

    @property
    def shape(self):
        return self.x.shape

    @property
    def dtype(self):
        return np.dtype(np.float64)

    def largest(self):
        return kernels.exact_centred(*self, "largest")

    def squares(self, inverse):
        return kernels.exact_centred(*self, "squares", inverse)

    def sums(self, grid):
        return kernels.exact_centred(*self, "sum", grid)


def some_rows(shape):
    """Return an iterator of slices that divide the rows of a matrix of shape `shape` into parts whose values fit into the cache."""
    step = max(1, CACHED_VALUES * kernels.threads() // max(shape[1], 1))
    return (slice(start, start + step) for start in range(0, shape[0], step))


class Exact:
    """Exact numerics for the ranks of a communicator: sums with the same bits on any number of ranks. Construction is collective.

    A method that has the name of a function decorated by `numerics.by_numerics` replaces that function, which documents
    the parameters.

    Parameters
    ----------
    comm : Communicator

    Attributes
    ----------
    across : bool
        True if sums over axis 0 are sums over the rows of all ranks, as during the vjp of an operation on rows.
    """

    name = "exact"

    def __init__(self, comm):
        self.comm, self.across = comm.channel("exact"), False

    def __repr__(self):
        return "Exact()"

    def check_comm(self, comm):
        """Raise a ConfigError unless `comm` has as many ranks as the communicator of this numerics."""
        if comm.size != self.comm.size:
            raise ConfigError(f"numerics exact: this Exact sums over {self.comm.size} ranks, but {comm.size} ranks hold "
                              "the rows: give Exact(graph.comm)")

    # ---- calls by the tape

    check_supported, check_rows = staticmethod(exact_checks.check_supported), staticmethod(exact_checks.check_rows)

    @contextmanager
    def backward(self, node):
        """Return a context for the backward pass of the tape node `node`: inside, sums over rows include the rows of all ranks,
        unless the node's values are replicated (the same on every rank).
        """
        before, self.across = self.across, node.placement != REPLICATED
        try:
            with using(self):
                yield
        finally:
            self.across = before

    # ---- sums of an array

    def total(self, x, axis=None, keepdims=False):
        axes = axes_of(axis, x.ndim)
        if x.dtype.kind != "f" or not axes:
            return np.add.reduce(x, axis=axes, keepdims=keepdims)
        rest = [a for a in range(x.ndim) if a not in axes]
        shape = [1 if a in axes else n for a, n in enumerate(x.shape)] if keepdims else [x.shape[a] for a in rest]
        n = math.prod(x.shape[a] for a in rest)
        if 0 in axes and self.across:
            return self.column_sums(x.transpose(*axes, *rest).reshape(-1, n)).astype(x.dtype).reshape(shape)
        rows, out = x.transpose(*rest, *axes).reshape(n, x.size // max(n, 1)), np.empty(n, x.dtype)
        for some in some_rows(rows.shape):
            wide = np.ascontiguousarray(rows[some], np.float64)
            sums = np.empty(len(wide))
            kernels.row_dot(wide, np.ones_like(wide), sums)
            out[some] = sums
        return out.reshape(shape)

    def share(self, x):
        """Return this rank's summand of the sum of x over all ranks: in exact numerics rank 0 has the whole sum and the other ranks
        have 0, so that the allreduce which follows returns this sum.
        """
        total = self.column_sums(np.ascontiguousarray(x, np.float64).reshape(-1, 1), True)[0]
        return total if self.comm.rank == 0 else total * 0

    def column_sums(self, x, across=None):
        """Return the sum of each column of x, a matrix or `CentredColumns`, (F,) float64. The sums are over the rows of all ranks
        if `across` is True, over this rank's rows if False; None stands for `self.across`.
        """
        across = self.across if across is None else across
        x = _columns(x)
        (exponents,), n_bits = self._norms([x], across)
        grid = self._grid(exponents + (n_bits + 1) // 2 + 2, n_bits, x.dtype)
        return sum_levels(self._sum(x.sums(grid), across), 0)

    def _norms(self, arrays, across):
        """Bound the norm of each column of the matrices `arrays`. Return (exponents, n_bits): first a list with integers e, (F,),
        for each matrix, so that the norm of column f is at most 2^e[f]; then the bit length of the number of rows. With `across`,
        the rows of all ranks count, else only this rank's rows.
        """
        matrices = [_columns(x) for x in arrays]
        cuts = np.cumsum([x.shape[1] for x in matrices])
        largest = self._max(np.concatenate([x.largest() for x in matrices]), across)
        most = np.maximum(np.frexp(largest)[1], -1000)
        inverse = np.split(np.ldexp(1.0, -most), cuts[:-1])
        squares = [x.squares(by) for x, by in zip(matrices, inverse)]
        *squares, n = self._sum(np.concatenate([*squares, [matrices[0].shape[0]]]), across)
        exponents = most + (np.frexp(np.array(squares) / 2**20)[1] + 1) // 2
        return np.split(_bounded(exponents), cuts[:-1]), int(n).bit_length()

    def _grid(self, sum_exponents, n_bits, dtype):
        """Return the grid of exact sums, (levels, F): the constants that round terms to multiples of powers of two (see
        `kernels.grid_sums`). The sums are below 2^(sum_exponents - 1), and have fewer than 2^n_bits terms of `dtype`.
        """
        grids = [np.ldexp(1.5, sum_exponents), np.ldexp(1.5, sum_exponents - 51 + n_bits)]
        return np.array(grids[: kernels.levels(dtype)])

    def edge_grid(self, x, n_terms, factor=1.0, scale=None):
        """Return the grid for exact sums of up to `n_terms` terms, each of them a row of x times `scale` and a factor of at most
        `factor`. A grid holds constants that round the terms to multiples of powers of two (see `kernels.grid_sums`). Collective.

        Parameters
        ----------
        x : (n_src, ...) array
            The local source rows.
        n_terms : int
            Largest number of terms of a sum.
        factor : float or array
            Bound of the factors of the terms, such as edge weights.
        scale : (n_src,) array, optional
            Factor of each row.
        """
        return self.grid_of(self.largest(x, scale) * factor, n_terms, x.dtype)

    def grid_of(self, largest, n_terms, dtype):
        """Return the grid, (levels, ...) float64, for exact sums of up to `n_terms` terms of dtype `dtype`, whose absolute values
        are at most `largest`, (...). A grid holds constants that round the terms to multiples of powers of two (see
        `kernels.grid_sums`).
        """
        n_bits = int(n_terms).bit_length()
        exponents = _bounded(np.frexp(largest)[1], 2 * MOST, 2 * LEAST)
        return self._grid(exponents + n_bits + 2, n_bits, dtype)

    def largest(self, x, scale=None):
        """Return the largest finite |scale * x| of each column over all ranks, in the shape x.shape[1:]; `scale` has a factor for
        each row (None: 1). Collective.
        """
        rows = np.ascontiguousarray(x).reshape(len(x), math.prod(x.shape[1:]))
        return self._max(kernels.exact_largest(rows, scale), True).reshape(x.shape[1:])

    def _max(self, array, across):
        return self.comm.allreduce(array, "max") if across else array

    def _sum(self, array, across):
        return self.comm.allreduce(np.ascontiguousarray(array)) if across else array

    # ---- choices

    def choices(self, *ways):
        return tuple(way for way in ways if way != "inside")  # its gradient of the weight sums rounded sums of blocks

    def rank_invariant(self, local, shared):
        return shared

    def sums_follow(self):
        return False

    # ---- sums of products

    def product(self, a, b, trans_b=False, into=None):
        if b.ndim != 2 or a.dtype != b.dtype or a.dtype.kind != "f":
            raise ConfigError("numerics exact: products of more than two matrices at a time are not exact yet")
        if into is not None:  # rounded before it is added, as by the tape, which adds if it may not write to `into`
            a, to = a if isinstance(a, kernels.Rows) else flat(a), flat(into)
            for rows in some_rows(to.shape):
                to[rows] += self.product(a[rows], b, trans_b)
            return into
        out = np.empty((*a.shape[:-1], b.shape[0 if trans_b else 1]), a.dtype)
        a, rows = taken(a)
        kernels.gemm(a, np.ascontiguousarray(b), flat(out), trans_b=trans_b, rows=rows, fused=True)
        return out

    def product_over_rows(self, a, g):
        a = a.array() if isinstance(a, kernels.Rows) else np.ascontiguousarray(a)
        return self.product_by_head_over_rows(flat(a)[:, None], flat(np.ascontiguousarray(g))[:, None])[0]

    def product_by_head(self, x, w, trans_b=False):
        return by_heads(x, w, trans_b, fused=True)

    def product_by_head_over_rows(self, x, g):
        matrices = [array.reshape(len(array), math.prod(array.shape[1:])) for array in (x, g)]
        of, n_bits = self._norms(matrices, self.across)
        of_x, of_g = (exponents.reshape(array.shape[1:]) for exponents, array in zip(of, (x, g)))
        sums = np.empty((kernels.levels(g.dtype), *of_x.shape, g.shape[2]))
        for h in range(len(of_x)):
            a, b = np.ascontiguousarray(x[:, h]), np.ascontiguousarray(g[:, h])
            grids = np.ldexp(1.0, of_x[h]), np.ldexp(6.0, of_g[h]), 2.0 ** (n_bits - 51)
            sums[:, h] = kernels.exact_gemm_backward(a, b, *grids)
        return sum_levels(self._sum(sums, self.across), 0).astype(g.dtype)

    # ---- rows picked by number

    def scatter_rows(self, g, index, n_rows):
        again = len(np.unique(index)) < len(index)
        if self.comm.allreduce(np.array([again], np.float64), "max")[0]:
            error = ConfigError("numerics exact: rows picked more than once are not exact yet")
            raise_together(self.comm, error if again else None)
        out = np.zeros((n_rows, *g.shape[1:]), g.dtype)
        out[index] = g
        return out

    def add_at(self, out, index, values):
        np.add.at(out, index, values)  # elements of a loss may repeat on one rank, which `scatter_rows` would refuse

    # ---- norms

    def batch_moments(self, x, comm):
        """Return (count, mean, m2) over the rows of x on all ranks, in float64: first the number of rows; then the mean of each
        column; then each column's sum of squared deviations from the mean. `comm` is ignored, as this object has a communicator.
        Collective.
        """
        x = np.ascontiguousarray(x)
        n = int(self.comm.allreduce(np.array([len(x)], np.int64))[0])
        mean = self.column_sums(x, True) / max(n, 1)
        return n, mean, self.column_sums(CentredColumns(x, mean, np.ones_like(mean)), True)

    def activation_sums(self, pull, g, dx, x, statistics, wants_sums):
        """Backward pass of `nn.activate`: write the gradient of x to `dx` (None: not wanted), and return the gradients of beta and
        gamma, (2, F) float64, maybe as zeros unless `wants_sums`. pull(dx, sums, means) calls the backward kernel for `g`, the
        gradient of the output. `statistics` belong to a batch norm (None: no batch norm).
        """
        over_ranks = dx is not None and statistics is not None and statistics.comm is not None
        sums = np.zeros((2, g.shape[1]))
        if wants_sums or over_ranks:
            slope = np.empty_like(g) if dx is None or statistics is not None else dx  # without a norm, dx is the slope
            pull(dx=slope)
            sums[0] = self.column_sums(slope)
            if statistics is not None:
                sums[1] = self.column_sums(CentredColumns(x, statistics.mean, statistics.inv_std, slope))
        if dx is not None and (statistics is not None or not wants_sums):
            pull(dx=dx, means=sums / statistics.n_rows if over_ranks else np.zeros_like(sums))
        return sums

    def gradient_norm(self, comm, replicated, owned):
        flat_gradient, square = replicated.reshape(1, -1).astype(np.float64), np.empty(1)
        kernels.row_dot(flat_gradient, flat_gradient, square)
        squares = [self.column_sums(np.square(g.reshape(-1, 1), dtype=np.float64), True)[0] for g in owned]
        return float(np.sqrt(square[0] + sum(squares)))

    # ---- functions

    def exp(self, x, out=None):
        return _into(out, _function("exp", x))

    def log(self, x):
        return _function("log", x)

    def log1p(self, x):
        y = 1 + x
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.where(y == 1, x, self.log(y) * (x / (y - 1))).astype(x.dtype)  # x / (y - 1) undoes y's rounding

    def expm1(self, x, out=None):
        return _into(out, _function("expm1_negative", x))

    def power(self, base, n):
        result = 1.0
        while n:
            result, base, n = result * base if n & 1 else result, base * base, n >> 1
        return result


def sum_levels(sums, axis=1):
    """Return the values of exact sums: add up the one or two float64 parts ("levels") along `axis` that together hold each sum.
    With one level the result is a view.

    If a value of the first level is not finite, the second level is NaN, and the first level is the result.
    """
    first, *more = np.moveaxis(sums, axis, 0)
    return np.where(np.isfinite(first), first + more[0], first) if more else first


def named(name, comm):
    """Return the numerics with this name: None for "fast", or an `Exact` for the ranks of `comm`. Collective."""
    return Exact(comm) if name == "exact" else None


def _columns(x):
    """Return x as a matrix whose columns can be summed exactly: unchanged if it is a `CentredColumns` or `DenseColumns`, else as a
    `DenseColumns`.
    """
    return x if isinstance(x, CentredColumns | DenseColumns) else DenseColumns(np.ascontiguousarray(x))


def _function(name, x):
    x = np.asarray(x)
    return kernels.exact_function(name, np.ascontiguousarray(x)).reshape(x.shape)


def _into(out, result):
    """Return `result`; unless `out` is None, copy it into `out` and return `out`."""
    if out is None:
        return result
    out[...] = result
    return out


def _bounded(exponents, most=MOST, least=LEAST):
    """Return the binary `exponents`, each raised to at least `least`; raise a DataError if one of them is above `most`."""
    if (exponents > most).any():
        raise DataError(f"numerics exact: values of 2^{int(exponents.max())} or more leave no room for their sum")
    return np.maximum(exponents, least)
