"""`BoundArithmetic`: evaluates a formula, and bounds the rounding error of every kernel that computes it in a floating type.

A `BoundTerm` stands for every result that some evaluation in a floating type may give. Sums may run in any order, FMA
may be used or not, and products may be reassociated and distributed over sums: A (X W) or (A X) W. A BoundTerm has four
fields:

- `value`: the result, exact but for the roundings of float64 (longdouble if the function under test uses float64).
- `magnitude`: the sum of the absolute values of all terms, |A| |X| |W|.
- `error`: the error that comes from inexact arguments, such as results of exp.
- `growth`: log of (1 + u)^k, where k is the largest number of roundings that a term passes.

Roundings add (e^growth - 1) (magnitude + error) to the error.

The method is from Higham, Accuracy and Stability of Numerical Algorithms, 2002, sections 3.1 and 4.2. The factor is
(1 + u)^k - 1 in place of k u / (1 - k u), as the former also holds if k u is 1 or more. A result of a nonlinear
function (exp, relu, a maximum) cannot be reassociated: magnitude becomes |value|, growth becomes 0, and the whole bound
is error.

Errors below the bound are not seen. The bound holds for the worst order, while the error of a sum of k terms is seldom
above sqrt(k) u. A sum over rows of sums over edges is bounded row by row. A kernel that computes a parameter's gradient
in a single sum over all edges may pass more roundings than that.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import Any, NamedTuple

import numpy as np

from sarlite.oracle.edge_structure import Index
from sarlite.oracle.formats import format_of, rounded
from sarlite.oracle.plain import BoundedArray, FloatArithmetic, all_masked, by_row, column, first, greatest
from sarlite.types import Array

__all__ = ["BoundArithmetic", "BoundedArray", "FloatArithmetic"]

SMALLEST = float(np.finfo(np.float64).tiny)  # replaces a magnitude that underflows
EXP = 4  # assumed error of exp, log and tanh, in units in the last place
RESCALED = EXP + 2  # roundings for each entry of an online softmax: the addition, and the product with exp of a difference


class BoundTerm(NamedTuple):
    """Array of values with bounds of their rounding errors; the bound of a value is error + (e^growth - 1) * (magnitude + error).
    `error` comes from inexact arguments, and `magnitude` is the sum of the absolute values of the terms. `growth` = k log(1 + u)
    for terms that pass k roundings with unit roundoff u, as one number or one for each row.
    """

    value: Array
    magnitude: Array
    error: Array | float = 0.0
    growth: Array | float = 0.0


class BoundArithmetic:
    """Arithmetic on BoundTerms, which are arrays with error bounds. It evaluates a formula, and bounds the rounding error of
    every kernel that computes the formula in the floating type `dtype`.

    Parameters
    ----------
    dtype : str
        Floating type of inputs, results and stored intermediates: "float64", "float32", "float16" or "bfloat16".
    accumulate : str, optional
        Floating type of partial sums; `dtype` if omitted.
    """

    def __init__(self, dtype: str = "float32", accumulate: str | None = None) -> None:
        stored, summed = format_of(dtype), format_of(accumulate or dtype)
        self.dtype = dtype
        self.plain = FloatArithmetic(np.longdouble if dtype == "float64" else np.float64)
        self.sizes = FloatArithmetic(np.float64)
        reference_unit = float(np.finfo(self.plain.dtype).eps) / 2
        self.once, self.each = np.log1p(stored.unit + reference_unit), np.log1p(summed.unit + reference_unit)
        self.tiny, self.largest = max(stored.tiny, summed.tiny), min(stored.largest, summed.largest)

    def from_array(self, value: Array) -> BoundTerm:
        value = self.plain.from_array(value)
        return BoundTerm(value, np.abs(value).astype(np.float64))

    def constant(self, value: Array) -> BoundTerm:
        exact = np.array_equal(rounded(value, self.dtype), value)
        return self.from_array(value)._replace(growth=0.0 if exact else self.once)

    def rounded(self, x: BoundTerm, dtype: str) -> BoundTerm:
        """Return x rounded once to the floating type `dtype`. The error bound of the result covers the roundings of all numbers
        that lie within the error bound of x.
        """
        value, error = rounded(x.value, dtype).astype(x.value.dtype), self._total(x)
        ends = [rounded(end, dtype) for end in (x.value - error, x.value + error)]
        error = np.maximum.reduce([np.where(end == value, 0.0, np.abs(end - value)) for end in ends])
        return BoundTerm(value, np.abs(value).astype(np.float64), np.where(np.isnan(error), np.inf, error))

    def result(self, x: BoundTerm, rounds: int = 0) -> BoundedArray:
        error = self._total(x._replace(growth=x.growth + rounds * self.each))
        error = np.where(x.magnitude + error <= self.largest, error, np.inf)  # an Inf or NaN magnitude gives Inf, too
        return BoundedArray(x.value, error, x.magnitude)

    # ---- by element

    def add(self, *terms):
        value, rounds = self.plain.add(*(t.value for t in terms)), len(terms) - 1
        size, error = self.sizes.add(*(t.magnitude for t in terms)), sum(t.error for t in terms)
        growth = reduce(np.maximum, (_by_row(t, value) for t in terms)) + rounds * max(self.once, self.each)
        return self._bound(value, size, error, growth, rounds)

    def negative(self, x):
        return x._replace(value=-x.value)

    def multiply(self, a, b):
        value = self.plain.multiply(a.value, b.value)
        return self._bilinear(np.multiply, value, a, b, _by_row(a, value) + _by_row(b, value) + self.once, 1)

    def divide(self, a, b):
        value, b_error = self.plain.divide(a.value, b.value), self._total(b)
        inverse = 1 / np.abs(b.value.astype(np.float64))
        least = np.abs(b.value) - b_error
        error = np.where(least > 0, b_error / least * inverse, np.inf)
        inverse = BoundTerm(inverse, inverse, error)
        return self._bilinear(np.multiply, value, a, inverse, _by_row(a, value) + 2 * self.once, 2)

    def exp(self, x):
        value = self.plain.exp(x.value)
        return self._nonlinear(value, value * np.expm1(self._total(x)) + self.tiny * (x.value != -np.inf), EXP)

    def log(self, x):
        error = self._total(x)
        change = np.where(x.value > error, error / (x.value - error), np.inf)
        return self._nonlinear(self.plain.log(x.value), change, EXP)

    def sqrt(self, x):
        value, error = self.plain.sqrt(x.value), self._total(x)
        change = error / (value + np.sqrt(np.maximum(x.value - error, 0)))
        return self._nonlinear(value, np.where(x.value > 0, change, np.sqrt(error)), 1)

    def tanh(self, x):
        return self._nonlinear(self.plain.tanh(x.value), np.minimum(self._total(x), 2), EXP)

    def leaky(self, x, slope):
        error = self._total(x)
        below = x.value < -error
        error = np.where(below, abs(slope) * error, max(1.0, abs(slope)) * error)
        return self._nonlinear(self.plain.leaky(x.value, slope), error, 2 if slope else 0)

    def leaky_gradient(self, g: BoundTerm, x: BoundTerm, slope: float) -> BoundTerm:
        """Return the gradient of a leaky ReLU from `g`, the gradient of its output: g where x > 0, else slope * g. Where the error
        bound of x allows either sign, the error bound of the result covers both cases.
        """
        near = self._total(x)
        undecided = (near > 0) & ~(np.abs(x.value) > near)
        above = undecided | (x.value > 0)
        size, error = (np.where(above, part, abs(slope) * part if slope else 0.0) for part in (g.magnitude, g.error))
        error = error + np.where(undecided, (1 - slope) * size, 0)
        rounds = 2 if slope else 0
        return self._bound(self.plain.leaky_gradient(g.value, x.value, slope), size, error,
                           g.growth + rounds * self.once, rounds)

    def where(self, x, mask):
        return _map_fields(lambda part: np.where(mask, part, 0.0), x)

    def barrier(self, x):
        return BoundTerm(x.value, np.abs(x.value).astype(np.float64), self._total(x))

    # ---- dense

    def matmul(self, a, b):
        value = self.plain.matmul(a.value, b.value)
        k = a.value.shape[1]
        growth = a.growth + _most(b.growth) + self.once + self._sum_growth(k)
        return self._bilinear(self.sizes.matmul, value, a, b, growth, k)

    def sum(self, x, axes):
        k = int(np.prod([x.value.shape[a] for a in axes]))
        parts = _map_fields(lambda part: self.plain.sum(part, axes), x)
        return self._bound(*parts[:3], (_most(x.growth) if 0 in axes else x.growth) + self._sum_growth(k), k)

    def transpose(self, x):
        return _map_fields(np.transpose, x)._replace(growth=_most(x.growth))

    def reshape(self, x, shape):
        growth = x.growth if shape[:1] == x.value.shape[:1] else _most(x.growth)
        return _map_fields(lambda part: part.reshape(shape), x)._replace(growth=growth)

    def broadcast(self, x, shape):
        growth = _by_row(x, np.broadcast_to(x.value, shape))
        return _map_fields(lambda part: np.broadcast_to(part, shape), x)._replace(growth=growth)

    def concat(self, *parts, axis):
        error = np.concatenate([np.broadcast_to(p.error, p.value.shape) for p in parts], axis)
        growth = max(_most(p.growth) for p in parts)
        return BoundTerm(np.concatenate([p.value for p in parts], axis), np.concatenate([p.magnitude for p in parts], axis),
                     error, growth)

    def slice(self, x, start, stop, axis):
        growth = x.growth[start:stop] if axis == 0 and np.ndim(x.growth) else x.growth
        return _map_fields(lambda part: self.plain.slice(part, start, stop, axis), x)._replace(growth=growth)

    # ---- by edges

    def gather(self, x, index):
        return _map_fields(lambda part: part[index.rows], x)._replace(growth=_entries(x, index))

    def scatter_sum(self, x, index):
        parts = _map_fields(lambda part: self._of(part).scatter_sum(part, index), x)
        growth = _most_by_row(x.growth, index) + self._sum_growth(index.counts)
        return self._bound(*parts[:3], growth, _column(index.counts, x.value))

    def propagate(self, x, weight=None, *, source, target):
        growth = _entries(x, source) + (0.0 if weight is None else weight.growth + self.once)
        growth = _most_by_row(growth, target) + self._sum_growth(target.counts)
        rounds = _column(target.counts, x.value)
        if weight is None:
            parts = _map_fields(lambda part: self._of(part).propagate(part, source=source, target=target), x)
            return self._bound(*parts[:3], growth, rounds)
        value = self.plain.propagate(x.value, weight.value, source=source, target=target)

        def product(a, w):
            return self.sizes.propagate(a, w, source=source, target=target)

        return self._bilinear(product, value, x, weight, growth, 2 * rounds)

    def edge_dot(self, a, b, index_a, index_b, heads):
        k = int(np.prod(a.value.shape[1 + heads :]))

        def product(x, y):
            return self.sizes.edge_dot(x, y, index_a, index_b, heads)

        growth = _entries(a, index_a) + _entries(b, index_b) + self.once + self._sum_growth(k)
        return self._bilinear(product, self.plain.edge_dot(a.value, b.value, index_a, index_b, heads), a, b, growth, 2 * k)

    def scatter_max(self, x, index, ties, rank):
        error = np.where(self._contenders(x, index), self._total(x), 0)
        return self._nonlinear(self.plain.scatter_max(x.value, index), by_row(np.maximum, error, index), 0)

    def select(self, g: BoundTerm, x: BoundTerm, index: Index, ties: str, rank: Array | None) -> BoundTerm:
        """Return the gradient of x, (k, ...), where `g` is the gradient of the maximum over the entries of each row, and
        index.rows[e] is the row of entry e. If entries tie, `ties` "all" shares the gradient equally among them, and "first" gives
        it to the entry of lowest `rank` (None: of lowest entry number).

        The bound covers each choice of the maximum if several entries may be the maximum, or if an entry is NaN.
        """
        may, inexact = self._contenders(x, index), (self._total(x) > 0) | np.isnan(x.value)
        single_contender = self.sizes.scatter_sum(may.astype(np.float64), index) <= 1
        undecided = may & ~single_contender[index.rows] & by_row(np.logical_or, may & inexact, index)[index.rows]
        value = self.plain.select(g.value, x.value, index, ties, rank)
        size, error = (np.broadcast_to(part, g.value.shape)[index.rows] for part in (g.magnitude, g.error))
        sure = greatest(x.value, self.plain.scatter_max(x.value, index), index)
        sure = sure if ties == "all" else first(sure, index, rank)
        error = np.where(sure | undecided, error, 0) + np.where(undecided, size, 0)
        size = np.where(sure | undecided, size, 0.0)
        return self._bound(value, size, error, _entries(g, index) + (self.once if ties == "all" else 0),
                           1 if ties == "all" else 0)

    def softmax(self, scores, index, epsilon):
        value, s = self.plain.softmax(scores.value, index, epsilon), scores.value.astype(np.float64)
        top, count = by_row(np.maximum, s, index)[index.rows], _column(index.counts[index.rows], s)
        # A kernel may subtract the row's maximum, log(sum of exp), or, if exp does not underflow, the maximum of all rows.
        below = np.minimum(np.max(s, axis=0, initial=0) - top, -np.log(self.tiny))
        shift = np.maximum(np.abs(top) + (EXP + 2) * np.log(count), below)
        change = self._total(scores) + self.once * np.where(np.isfinite(s), top - s + shift, 0)
        total = np.log(self.sizes.scatter_sum((value * np.exp(change)).astype(np.float64), index))[index.rows]
        relative = np.expm1(change + np.maximum(total, 0) + RESCALED * self.each * count)
        return self._nonlinear(value, np.where(s == -np.inf, 0, value * relative + 2 * self.tiny), 2 * EXP)

    def undecided_if_masked(self, x, scores, index):
        return x._replace(error=np.where(all_masked(scores.value, index), np.inf, x.error))

    # ---- parts of bounds

    def _total(self, x: BoundTerm) -> Array:
        """Return the error bound of each element of x, an array with error bounds: error + (e^growth - 1) * (magnitude + error),
        shape of x.
        """
        growth = np.expm1(_column(x.growth, x.value))
        return np.where(np.isfinite(x.value), x.error + growth * (x.magnitude + x.error),
                        np.where(np.equal(x.error, 0), 0, np.inf))

    def _sum_growth(self, k: int | Array) -> float | Array:
        """Return the growth of a sum of `k` terms: log (1 + u)^(k - 1), where u is the unit roundoff of sums. Roundings enlarge a
        term of the sum at most by the factor e^growth; the rounding to `dtype` is included if this type is narrower than the type
        of sums. `k` is one number, or one for each row.
        """
        return np.maximum(k - 1, 0) * self.each + (self.once if self.once > self.each else 0)

    def _nonlinear(self, value, error, rounds):
        size = np.abs(value).astype(np.float64)
        return self._bound(value, size, np.asarray(error, np.float64), rounds * self.once, 0)

    def _bilinear(self, product, value, a, b, growth, rounds):
        error = 0.0
        if np.any(b.error):
            error = product(a.magnitude, b.error)
        if np.any(a.error):
            error = error + product(a.error, b.magnitude + b.error)
        return self._bound(value, _magnitude_product(product, a.magnitude, b.magnitude), error, growth, rounds)

    def _bound(self, value: Array, magnitude: Array, error: Array | float, growth: Array | float,
               rounds: int | Array) -> BoundTerm:
        """Return a BoundTerm, an array with error bounds, that holds an operation's result `value`. `magnitude` is the sum of the absolute
        values of its terms, `error` the error inherited from its arguments, and `growth` is k log(1 + u) for k roundings with unit roundoff
        u. The error grows by the possible underflow in `rounds` roundings (0: none), and is Inf where the value may overflow.
        """
        if self.plain.dtype != self.sizes.dtype:  # longdouble has numbers below the smallest float64
            magnitude = np.where((magnitude == 0) & ((value != 0) | (error > 0)), SMALLEST, magnitude)
        error = error + self.tiny * rounds * (magnitude > 0) if np.any(rounds) else error
        over = magnitude + error > self.largest
        error = np.where(over, np.inf, error) if over.any() else error
        error = np.broadcast_to(error, value.shape).astype(np.float64, copy=False) if np.ndim(error) else error
        return BoundTerm(value, np.broadcast_to(magnitude, value.shape), error, growth)

    def _contenders(self, x: BoundTerm, index: Index) -> Array:
        """Return a mask of the entries of x that may be the maximum of their row, as x is known only within its error bounds. The
        mask has the shape of x, and index.rows[e] is the row of entry e.
        """
        error = self._total(x)
        least = by_row(np.maximum, np.where(np.isfinite(error), x.value - error, -np.inf), index)
        return ~(x.value + error < least[index.rows])

    def _of(self, part):
        return self.plain if part.dtype == self.plain.dtype else self.sizes


def _magnitude_product(product: Callable[[Array, Array], Array], a: Array, b: Array) -> Array:
    """Return product(a, b), such as a matrix product, of two arrays of magnitudes (numbers >= 0). An element of the result is 0
    only if each of its terms has a factor 0; where it would underflow to 0, it is the smallest normal number.
    """
    least = [np.min(part, where=part > 0, initial=np.inf) for part in (a, b)]
    size = product(a, b)
    if least[0] * least[1] < SMALLEST:
        size = np.maximum(size, np.where(product(np.sign(a), np.sign(b)) > 0, SMALLEST, 0.0))
    return size


def _map_fields(f: Callable[[Any], Array], x: BoundTerm) -> BoundTerm:
    """Apply `f` to the value, magnitude and error of `x`, an array with error bounds; return a BoundTerm of the results, with the
    growth of `x`. `f` may only rearrange numbers, or add numbers that are not negative; otherwise the bound would not hold.
    """
    return BoundTerm(f(x.value), f(x.magnitude), f(x.error) if np.ndim(x.error) else x.error, x.growth)


def _column(growth: Array | float, like: Array) -> Array | float:
    """Reshape `growth`, one number for each row, so that it broadcasts with the array `like`; return a scalar unchanged."""
    return column(growth, like.ndim) if np.ndim(growth) else growth


def _most(growth):
    return np.max(growth, initial=0.0) if np.ndim(growth) else growth


def _by_row(x: BoundTerm, out: Array) -> Array | float:
    """Return `x.growth`, the log of the factor that roundings may enlarge a term by, for `out`, an array computed from x. If the
    rows of `out` are the rows of x, `x.growth` is returned unchanged, one number or one for each row; else its maximum is
    returned.
    """
    aligned = x.value.ndim == out.ndim and x.value.shape[:1] == out.shape[:1]
    return x.growth if aligned else _most(x.growth)


def _entries(x, index):
    return x.growth[index.rows] if np.ndim(x.growth) else x.growth


def _most_by_row(growth, index):
    return by_row(np.maximum, growth, index) if np.ndim(growth) else growth
