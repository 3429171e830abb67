"""Exact numerics: sums with the same bits for any number of ranks, order, threads, instruction set and BLAS.

Sums over rows and ranks are made on grids (`kernels.exact`), which hold any partial sum without rounding. A grid is
chosen from the columns' norms over all ranks. They take one allreduce of maxima and one of integers. Any partial sum of
products a_rp g_rq is at most |a_p| |g_q|. Sums within a row have a fixed order.

A gradient that flows from tensors with one row per node to a replicated tensor (`Tensor.replicated`) is a sum over
ranks, and the sum is made at that point. The gradient of a replicated tensor is therefore complete, and the same on
every rank.
"""

import math
from collections.abc import Callable
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np

from sarlite import kernels
from sarlite.errors import ConfigError, DataError, raise_together
from sarlite.numerics.reductions import axes_of, by_heads, flat, taken
from sarlite.numerics.selection import using
from sarlite.types import Array

ALIKE = frozenset((
    "abs", "absolute_error", "activate", "add", "aggregate", "astype", "bce_with_logits", "bitwise_and", "bitwise_or",
    "clip", "concat", "cross_entropy", "div", "dropout", "elu", "equal", "exp", "focal", "getitem", "greater",
    "greater_equal", "invert", "layer_norm", "leaky_relu", "less", "less_equal", "log", "log_softmax", "logsumexp",
    "matmul", "matmul_by_head", "max", "maximum", "min", "minimum", "mul", "neg", "nll", "not_equal", "piece",
    "relations", "relu", "reshape",
    "share", "sigmoid", "silu", "softmax", "softplus", "sqrt", "squared_error", "std", "sub", "sum", "take",
    "transpose", "var", "where",
))  # fmt: skip
"""Primitives whose results have the same bits for any number of ranks."""
OVER_AXES = frozenset(("log_softmax", "logsumexp", "max", "min", "softmax", "std", "sum", "var"))
"""Primitives that may reduce over axis 0, of which a rank holds only its own rows."""
BROADCAST = frozenset(("absolute_error", "add", "div", "maximum", "minimum", "mul", "squared_error", "sub", "where"))
CACHED_VALUES = 1 << 17
"""Values per thread of the rows that are computed at a time."""
MOST, LEAST = 500, -480
"""Bounds of the exponents of the columns' norms: larger ones are refused, smaller ones count as `LEAST`."""


class Made(NamedTuple):
    """A float64 matrix whose rows are computed a few at a time while they are summed, to stay in the cache."""

    shape: tuple[int, int]
    make: Callable[[slice], Array]

    @property
    def dtype(self):
        return np.dtype(np.float64)

    def pieces(self):
        return map(self.make, some_rows(self.shape))


def some_rows(shape):
    """Return slices of a matrix's rows that are short enough for their values to stay in the cache."""
    step = max(1, CACHED_VALUES * kernels.threads() // max(shape[1], 1))
    return (slice(start, start + step) for start in range(0, shape[0], step))


class Exact:
    """The numerics "exact" for the ranks of a communicator. Construction is collective.

    Its methods replace the functions that are marked by `numerics.by_numerics`. `check` refuses operations without an
    exact method.
    """

    name = "exact"

    def __init__(self, comm):
        self.comm, self.across = comm.channel("exact"), False
        self._on: dict[int, tuple[Any, Exact]] = {}

    def __repr__(self):
        return "Exact()"

    def on(self, comm):
        """Return this numerics for a communicator of a subset of the ranks. Collective there."""
        if comm.size == self.comm.size:
            return self
        if id(comm) not in self._on:
            self._on[id(comm)] = comm, type(self)(comm)
        return self._on[id(comm)][1]

    # ---- what the tape tells

    def check(self, name, tensors, replicated, params):
        """Raise a ConfigError for a primitive whose bits are not the same everywhere."""
        if name not in ALIKE:
            raise ConfigError(f"numerics exact: the operation {name!r} is not exact yet")
        if replicated:
            return
        if name in OVER_AXES and 0 in axes_of(params["axis"], next(t for t in tensors if t is not None).ndim):
            raise ConfigError(f"numerics exact: {name} over axis 0 is of one rank's rows, so it depends on how rows "
                              "are divided")
        if name in BROADCAST:
            ndim = max(t.ndim for t in tensors if t is not None)
            if any(t is not None and t.replicated and 0 < t.ndim == ndim for t in tensors):
                raise ConfigError(f"numerics exact: {name} of rows and a learned tensor of as many axes: its first "
                                  "axis must go")

    @contextmanager
    def backward(self, node):
        """Return the context for a node's vjp: sums are over all ranks unless the node is replicated."""
        before, self.across = self.across, not node.replicated
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
            found = np.empty(len(wide))
            kernels.row_dot(wide, np.ones_like(wide), found)
            out[some] = found
        return out.reshape(shape)

    def share(self, x):
        """Return the sum of all values over all ranks on rank 0, and 0 on the other ranks."""
        whole = self.column_sums(np.ascontiguousarray(x, np.float64).reshape(-1, 1), True)[0]
        return whole if self.comm.rank == 0 else whole * 0

    def column_sums(self, x, across=None):
        """Return the sum of each column of a matrix or a `Made` over the rows of all ranks, (F,) float64."""
        across = self.across if across is None else across
        (exponents,), n_bits = self._norms([x], across)
        grid = self._grid(exponents + (n_bits + 1) // 2 + 2, n_bits, x.dtype)
        found = np.zeros(grid.shape)
        for piece in _pieces(x):
            n = max(1, min(64, len(piece) // 512))
            parts = np.empty((n, *grid.shape))
            kernels.exact_spmm(np.arange(n + 1) * len(piece) // n, None, piece, parts, grid, accumulate=False)
            found += parts.sum(0)
        return self._sum(found, across).sum(0)

    def _norms(self, arrays, across):
        """Return bounds of the column norms of each matrix over all rows, and the bit length of the number of rows.

        A bound is an exponent k, (F,), with 2^k at least the norm of the column.
        """
        cuts = np.cumsum([x.shape[1] for x in arrays])
        of_pieces = [[np.zeros(x.shape[1]), *map(kernels.exact_largest, _pieces(x))] for x in arrays]
        largest = self._max(np.concatenate([np.max(found, 0) for found in of_pieces]), across)
        most = np.maximum(np.frexp(largest)[1], -1000)
        inverse = np.split(np.ldexp(1.0, -most), cuts[:-1])
        squares = [sum((kernels.exact_squares(piece, by) for piece in _pieces(x)), np.zeros(x.shape[1]))
                   for x, by in zip(arrays, inverse)]
        *squares, n = self._sum(np.concatenate([*squares, [arrays[0].shape[0]]]), across)
        exponents = most + (np.frexp(np.array(squares) / 2**20)[1] + 1) // 2
        return np.split(_bounded(exponents), cuts[:-1]), int(n).bit_length()

    def _grid(self, exponents, n_bits, dtype):
        """Return the grids, (levels, F), for sums of 2^n_bits terms that stay below 2^(exponent - 1)."""
        grids = [np.ldexp(1.5, exponents), np.ldexp(1.5, exponents - 51 + n_bits)]
        return np.array(grids[: kernels.levels(dtype)])

    def edge_grid(self, x, n_terms, factor=1.0, scale=None):
        """Return the grids, (levels, ...), for sums over at most `n_terms` edges of factor * scale * x (local rows)."""
        return self.grid_of(self.largest(x, scale) * factor, n_terms, x.dtype)

    def grid_of(self, largest, n_terms, dtype):
        """Return the grids, (levels, ...), for sums of at most `n_terms` values no larger than `largest`."""
        n_bits = int(n_terms).bit_length()
        exponents = _bounded(np.frexp(largest)[1], 2 * MOST, 2 * LEAST)
        return self._grid(exponents + n_bits + 2, n_bits, dtype)

    def largest(self, x, scale=None):
        """Return the largest finite |scale * x| of each column over all ranks, in the shape of a row. Collective."""
        rows = np.ascontiguousarray(x).reshape(len(x), math.prod(x.shape[1:]))
        return self._max(kernels.exact_largest(rows, scale), True).reshape(x.shape[1:])

    def _max(self, array, across):
        return self.comm.allreduce(array, "max") if across else array

    def _sum(self, array, across):
        return self.comm.allreduce(np.ascontiguousarray(array)) if across else array

    # ---- choices

    def choices(self, *ways):
        return tuple(way for way in ways if way != "inside")  # whose weight's gradient takes each rank's rounded sums

    def rank_invariant(self, local, shared):
        return shared

    def sums_follow(self):
        return False

    # ---- sums of products

    def product(self, a, b, trans_b=False, into=None):
        if b.ndim != 2 or a.dtype != b.dtype or a.dtype.kind != "f":
            raise ConfigError("numerics exact: products of more than two matrices at a time are not exact yet")
        if into is not None:  # rounded before it is added, as it is where the tape adds: who owns a gradient may differ
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
        return self._sum(sums, self.across).sum(0).astype(g.dtype)

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
        np.add.at(out, index, values)  # of losses' rows, which `scatter_rows` would refuse

    # ---- norms

    def batch_moments(self, x, comm):
        """Return (count, mean, M2) of the columns over the rows of all ranks, float64. Collective."""
        x = np.ascontiguousarray(x)
        n = int(self.comm.allreduce(np.array([len(x)], np.int64))[0])
        mean = self.column_sums(x, True) / max(n, 1)
        squares = Made(x.shape, lambda rows: kernels.exact_centred(x[rows], mean, np.ones_like(mean)))
        return n, mean, self.column_sums(squares, True)

    def activation_sums(self, pull, g, dx, x, statistics, wanted):
        over_ranks = dx is not None and statistics is not None and statistics.comm is not None
        sums = np.zeros((2, g.shape[1]))
        if wanted or over_ranks:
            slope = np.empty_like(g) if dx is None or statistics is not None else dx  # which it is without a norm
            pull(dx=slope)
            sums[0] = self.column_sums(slope, True)
            if statistics is not None:
                normal = statistics.mean, statistics.inv_std
                products = Made(x.shape, lambda rows: kernels.exact_centred(x[rows], *normal, slope[rows]))
                sums[1] = self.column_sums(products, True)
        if dx is not None and (statistics is not None or not wanted):
            pull(dx=dx, means=sums / statistics.n_rows if over_ranks else np.zeros_like(sums))
        return sums

    def gradient_norm(self, comm, replicated, owned):
        rows, own = replicated.reshape(1, -1).astype(np.float64), np.empty(1)
        kernels.row_dot(rows, rows, own)
        squares = [self.column_sums(np.square(g.reshape(-1, 1), dtype=np.float64), True)[0] for g in owned]
        return float(np.sqrt(own[0] + sum(squares)))

    # ---- functions

    def exp(self, x, out=None):
        return _into(out, _function("exp", x))

    def log(self, x):
        return _function("log", x)

    def log1p(self, x):
        whole = 1 + x
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.where(whole == 1, x, self.log(whole) * (x / (whole - 1))).astype(x.dtype)

    def expm1(self, x, out=None):
        return _into(out, _function("expm1_negative", x))

    def power(self, base, n):
        found = 1.0
        while n:
            found, base, n = found * base if n & 1 else found, base * base, n >> 1
        return found


def named(name, comm):
    """Return the numerics called `name`: None for "fast", or an `Exact` for the ranks of `comm`. Collective."""
    return Exact(comm) if name == "exact" else None


def _pieces(x):
    """Return the rows of a matrix, or of a `Made`, as a sequence of smaller matrices."""
    return x.pieces() if isinstance(x, Made) else [np.ascontiguousarray(x)]


def _function(name, x):
    x = np.asarray(x)
    return kernels.exact_function(name, np.ascontiguousarray(x)).reshape(x.shape)


def _into(out, found):
    if out is None:
        return found
    out[...] = found
    return out


def _bounded(exponents, most=MOST, least=LEAST):
    """Return the exponents, raised to at least `least`; raise a DataError on every rank if one is above `most`."""
    if (exponents > most).any():
        raise DataError(f"numerics exact: values of 2^{int(exponents.max())} or more leave no room for their sum")
    return np.maximum(exponents, least)
