"""`ExactArithmetic`: proves which elements float arithmetic computes without rounding, in any order.

An element is exact if all its partial results, in any order, are numbers of the floating type.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt

from sarlite.oracle.choices import DTYPES
from sarlite.oracle.edge_structure import Index
from sarlite.oracle.formats import format_of, rounded
from sarlite.oracle.plain import BoundedArray, FloatArithmetic, all_masked, by_row
from sarlite.types import Array

BITS = {name: round(-np.log2(format_of(name).unit)) for name in DTYPES}  # of the significand, by floating type
_VANISHES = -1000.0  # exp(_VANISHES) is 0 in every floating type
_KEYS = ("value", "magnitude", "grain")


@dataclass(frozen=True, eq=False)
class GrainedArray:
    """Array of values, each with a grain (a power of two that divides all terms of the value), to prove which values are exact.

    Every partial sum of an element is exact in the floating type if the element's magnitude is at most 2^bits grains.

    Attributes
    ----------
    value : array
        Results, in float64.
    magnitude : array
        At least the sum of the absolute values of all terms.
    grain : array
        Power of two that divides every term. Inf if the value is 0 in every order; 0 if nothing is proved.
    """

    value: Array
    magnitude: Array
    grain: Array


def _moving(name: str) -> Callable[..., GrainedArray]:
    """Return the method `name` of ExactArithmetic, for a primitive that only rearranges elements, such as "transpose". The method
    applies FloatArithmetic's method of the same name to values, magnitudes and grains alike.
    """

    def moved(self, x, **options):
        move = partial(getattr(self.plain, name), **options)
        return GrainedArray(*(move(np.broadcast_to(getattr(x, key), x.value.shape)) for key in _KEYS))

    return moved


class ExactArithmetic:
    """Arithmetic in float64 that also proves which results no order of evaluation can round.

    `result` has error 0 for an element that every order of evaluation computes exactly, and Inf for any other element.

    Parameters
    ----------
    dtype : str
        Floating type of all numbers but partial sums, a key of BITS.
    accumulate : str, optional
        Floating type of partial sums; `dtype` if omitted.

    Notes
    -----
    An element is proved if all its partial sums are multiples of one power of two, fewer than 2^bits of it, and none is
    denormal or near overflow. Divisors must be powers of two, and arguments of sqrt must be squares. The scores of a
    softmax must be 1000 or more below the row's maximum, or equal to it; the number of maxima must be a power of two.
    No argument of a leaky ReLU may be at the kink.
    """

    def __init__(self, dtype: str, accumulate: str | None = None) -> None:
        form, sums = format_of(dtype), format_of(accumulate or dtype)
        self.plain, self.limit, self.most = FloatArithmetic(), 1 / max(form.unit, sums.unit), min(form.largest, sums.largest) / 2
        self.stored, self.summed, self.most_summed = 1 / form.unit, 1 / sums.unit, sums.largest / 2
        self.least = 2.0**-14 if dtype == "float16" else form.tiny  # smallest normal number: denormals may be flushed to 0

    def from_array(self, value: npt.ArrayLike) -> GrainedArray:
        value = np.asarray(value, np.float64)
        return self._proved(value, np.abs(value), _lowest_bit(value))

    constant = from_array

    def rounded(self, x: GrainedArray, dtype: str) -> GrainedArray:
        value = rounded(x.value, dtype).astype(np.float64)
        return self._function_values(x, value, True)

    def result(self, x: GrainedArray, rounds: int = 0) -> BoundedArray:
        return BoundedArray(x.value, np.where(x.grain > 0, 0.0, np.inf), x.magnitude)

    def _proved(self, value: Array, magnitude: Array, grain: Array | float, values_are_sums: bool = False) -> GrainedArray:
        """Return the sums `value` as a GrainedArray (values with grains that prove them exact). Their terms are multiples of
        `grain` (powers of two), and partial sums are at most `magnitude`. Sums that a rounding may change get the grain 0. With
        `values_are_sums`, partial sums need to fit only the type of sums, and the finished values also the type that stores them.
        """
        magnitude = np.where(np.isfinite(value), magnitude, 0.0)
        limit, most = (self.summed, self.most_summed) if values_are_sums else (self.limit, self.most)
        proved = (magnitude <= limit * grain) & (magnitude < most) & (grain >= self.least)
        if values_are_sums:
            proved &= ~(np.abs(value) > min(self.stored, self.summed) * grain)
        grain = np.where(np.isfinite(value), np.where(proved, grain, 0.0), np.inf)
        # an element that is not proved may differ from 0
        return GrainedArray(value, np.where(grain > 0, magnitude, np.maximum(magnitude, 1.0)), grain)

    # ---- by element

    def add(self, *terms):
        grain = np.minimum.reduce(np.broadcast_arrays(*(t.grain for t in terms)))
        total = self._proved(self.plain.add(*(t.value for t in terms)), self.plain.add(*(t.magnitude for t in terms)),
                           grain)
        gone = (total.value == 0) & (total.grain > 0)  # terms that cancel exactly leave a certain 0
        return GrainedArray(total.value, np.where(gone, 0.0, total.magnitude), np.where(gone, np.inf, total.grain))

    def negative(self, x):
        return GrainedArray(-x.value, x.magnitude, x.grain)

    def multiply(self, a, b):
        return self._proved(self.plain.multiply(a.value, b.value), a.magnitude * b.magnitude, _times(a.grain, b.grain))

    def divide(self, a, b):
        size = np.abs(b.value)
        fits = (np.frexp(size)[0] == 0.5) & (b.grain > 0)
        grain = np.where(np.isinf(a.grain), np.inf, np.where(fits, a.grain / size, 0.0))
        return self._proved(self.plain.divide(a.value, b.value), a.magnitude / size, grain, values_are_sums=True)

    def _function_values(self, x: GrainedArray, value: Array, is_exact: Array | bool) -> GrainedArray:
        """Return `value`, a nonlinear function of x, as a GrainedArray (values with grains that prove them exact). An element is
        proved exact if the element of x is proved exact and `is_exact`, a mask or a single bool, is True.
        """
        return self._proved(value, np.abs(value), np.where(is_exact & (x.grain > 0), _lowest_bit(value), 0.0))

    def exp(self, x):
        value = np.where(x.value <= _VANISHES, 0.0, self.plain.exp(x.value))
        return self._function_values(x, value, (x.value == 0) | (x.value <= _VANISHES))

    def log(self, x):
        return self._function_values(x, self.plain.log(x.value), x.value == 1)

    def tanh(self, x):
        return self._function_values(x, self.plain.tanh(x.value), x.value == 0)

    def sqrt(self, x):
        value = self.plain.sqrt(x.value)
        return self._function_values(x, value, value * value == x.value)

    def leaky(self, x, slope):
        lower = self.multiply(x, self.from_array(slope)) if slope else self.from_array(np.zeros(x.value.shape))
        return _choose(x.value > 0, x, lower, self.plain.leaky(x.value, slope))

    def leaky_gradient(self, g, x, slope):
        shape = np.broadcast_shapes(g.value.shape, x.value.shape)
        lower = self.multiply(g, self.from_array(slope)) if slope else self.from_array(np.zeros(shape))
        chosen = _choose(x.value > 0, g, lower, self.plain.leaky_gradient(g.value, x.value, slope))
        at_kink = (x.value == 0) & (slope != 0) | (x.grain == 0) & (16 * np.abs(x.value) < x.magnitude)
        return self._proved(chosen.value, chosen.magnitude, np.where(at_kink & ~np.isinf(g.grain), 0.0, chosen.grain))

    def where(self, x, mask):
        return GrainedArray(self.plain.where(x.value, mask), np.where(mask, x.magnitude, 0.0),
                       np.where(mask, x.grain, np.inf))

    def barrier(self, x):
        """Return x as finished values, no longer sums of several terms: the magnitude of an exact element, before the sum of the
        absolute values of its terms, becomes |value|.
        """
        return GrainedArray(x.value, np.where(x.grain > 0, np.abs(x.value), x.magnitude), x.grain)

    # ---- dense

    transpose, reshape, broadcast, slice, gather = map(
        _moving, ("transpose", "reshape", "broadcast", "slice", "gather"))  # fmt: skip

    def matmul(self, a, b):
        grain = _times(a.grain.min(1, initial=np.inf)[:, None], b.grain.min(0, initial=np.inf)[None])
        return self._proved(self.plain.matmul(a.value, b.value), a.magnitude @ b.magnitude, grain)

    def sum(self, x, axes):
        grain = x.grain.min(axes, keepdims=True, initial=np.inf)
        return self._proved(self.plain.sum(x.value, axes), self.plain.sum(x.magnitude, axes), grain)

    def concat(self, *parts, axis):
        return GrainedArray(*(np.concatenate([np.broadcast_to(getattr(p, key), p.value.shape) for p in parts], axis)
                         for key in _KEYS))

    # ---- by edges

    def scatter_sum(self, x, index):
        value, magnitude = (self.plain.scatter_sum(part, index) for part in (x.value, x.magnitude))
        return self._proved(value, magnitude, _least_of_rows(x.grain, index), values_are_sums=True)

    def propagate(self, x, weight=None, *, source, target):
        used = np.flatnonzero(source.counts)
        grain = x.grain[used].min(initial=np.inf)
        if weight is not None:  # each product must be a number of the floating type, too
            grain = _times(grain, weight.grain.min(initial=np.inf))
            largest = x.magnitude[used].max(initial=0) * weight.magnitude.max(initial=0)
            grain = grain if largest <= self.limit * grain else 0.0
        parts = [(x.value, None if weight is None else weight.value),
                 (x.magnitude, None if weight is None else weight.magnitude)]
        value, magnitude = (self.plain.propagate(*part, source=source, target=target) for part in parts)
        return self._proved(value, magnitude, np.where(magnitude == 0, np.inf, grain), values_are_sums=True)

    def edge_dot(self, a, b, index_a, index_b, heads):
        axes = tuple(range(1 + heads, a.value.ndim))
        grain = _times(*(part.grain.min(axes, initial=np.inf)[index.rows] for part, index in ((a, index_a), (b, index_b))))
        return self._proved(self.plain.edge_dot(a.value, b.value, index_a, index_b, heads),
                          self.plain.edge_dot(a.magnitude, b.magnitude, index_a, index_b, heads), grain)

    def scatter_max(self, x, index, ties=None, rank=None):
        return GrainedArray(self.plain.scatter_max(x.value, index), self.plain.scatter_max(x.magnitude, index),
                       _least_of_rows(x.grain, index))

    def select(self, g, x, index, ties, rank):
        value = self.plain.select(g.value, x.value, index, ties, rank)
        proved = (_least_of_rows(x.grain, index) > 0) & ~np.isnan(self.plain.scatter_max(x.value, index))
        if ties == "all":
            best = self.plain.scatter_max(x.value, index)
            winners = self.plain.scatter_sum((x.value == best[index.rows]).astype(float), index)
            g = self.divide(g, self.from_array(np.maximum(winners, 1)))
        grain = np.where(value == 0, np.inf, np.where(proved, g.grain, 0.0)[index.rows])
        return self._proved(value, np.abs(value), np.where(proved[index.rows], grain, 0.0))

    def softmax(self, scores, index, epsilon=0.0):
        s = scores.value
        best = self.plain.scatter_max(s, index)[index.rows]
        at_best = (s == best) & np.isfinite(s)
        count = self.plain.scatter_sum(at_best.astype(float), index)
        clear = at_best | ~np.isfinite(s) | (s <= best + _VANISHES)
        fits = _least_of_rows(np.where(clear, 1.0, 0.0), index) > 0
        fits &= (np.frexp(count)[0] == 0.5) | (count == 0)
        exact = _least_of_rows(np.where(at_best, scores.grain, np.inf), index) > 0
        fits &= (exact | (count == 1)) & (1.0 + epsilon == 1.0)
        value = np.where(at_best, 1 / np.maximum(count, 1)[index.rows], 0.0)
        proved = fits[index.rows]
        # a coefficient that is not proved may be anything up to 1
        return self._proved(value, np.where(proved, value, 1.0), np.where(proved, _lowest_bit(value), 0.0))

    def undecided_if_masked(self, x, scores, index):
        open_ = all_masked(scores.value, index)
        return GrainedArray(x.value, np.where(open_, np.maximum(x.magnitude, 1.0), x.magnitude),
                       np.where(open_, 0.0, x.grain))


def _choose(mask, a, b, value):
    return GrainedArray(value, np.where(mask, a.magnitude, b.magnitude), np.where(mask, a.grain, b.grain))


def _times(grain_a: Array, grain_b: Array) -> Array:
    """Return the grains of the product of two arrays, whose grains are `grain_a` and `grain_b`. A grain is a power of two that
    divides an element. Inf marks an element that is surely 0, and makes the product's grain Inf.
    """
    return np.where(np.isinf(grain_a) | np.isinf(grain_b), np.inf, grain_a * grain_b)


def _least_of_rows(grain: Array, index: Index) -> Array:
    return by_row(np.minimum, grain, index, np.inf)


def _lowest_bit(value: Array) -> Array:
    """Return the largest power of two that divides each value; Inf for 0, Inf and NaN."""
    whole = np.isfinite(value) & (value != 0)
    fraction, exponent = np.frexp(np.where(whole, np.abs(value), 1.0))
    digits = (fraction * 2.0**53).astype(np.int64)
    return np.where(whole, np.ldexp((digits & -digits).astype(np.float64), exponent - 53), np.inf)
