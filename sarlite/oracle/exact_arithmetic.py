"""`Exact`: an arithmetic that proves for which elements every partial result, in any order, is a number of the dtype."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from sarlite.oracle.choices import DTYPES
from sarlite.oracle.edge_structure import Index
from sarlite.oracle.formats import format_of, rounded
from sarlite.oracle.plain import Number, Plain, all_masked, by_row
from sarlite.types import Array

BITS = {name: round(-np.log2(format_of(name).unit)) for name in DTYPES}
_VANISHES = -1000.0  # exp of it is 0 in every dtype


_KEYS = ("value", "magnitude", "grain")


@dataclass(frozen=True, eq=False)
class Grained:
    """Values that are multiples of `grain`, a power of two: Inf for a value that is 0 whatever the order, 0 where
    nothing is proved.

    `magnitude` is at least the sum of the absolute values of all terms. Where it is at most 2^bits grains, every
    partial sum is a number.
    """

    value: Array
    magnitude: Array
    grain: Array


def _moving(name):
    """Return a primitive that only moves numbers, each part as `Plain` does."""

    def moved(self, x, **options):
        move = partial(getattr(self.plain, name), **options)
        return Grained(*(move(np.broadcast_to(getattr(x, key), x.value.shape)) for key in _KEYS))

    return moved


class Exact:
    """Values in float64, with a proof: `result` has error 0 if the result is exact in every order of evaluation,
    otherwise Inf.

    Parameters
    ----------
    dtype : str
        One of BITS: the format of all numbers but partial sums.
    accumulate : str, optional
        The format of partial sums; without, `dtype`.

    Notes
    -----
    An element is proved if all its partial sums are multiples of one power of two, fewer than 2^bits of it, none of
    them denormal or near overflow. Divisors have to be powers of two, and arguments of a root squares; exp and softmax
    have to meet equal scores, a power of two of them, beside scores 1000 and more below. Kinks have to be missed.
    """

    def __init__(self, dtype: str, accumulate: str | None = None) -> None:
        form, sums = format_of(dtype), format_of(accumulate or dtype)
        self.plain, self.limit, self.most = Plain(), 1 / max(form.unit, sums.unit), min(form.largest, sums.largest) / 2
        self.stored, self.summed, self.most_summed = 1 / form.unit, 1 / sums.unit, sums.largest / 2
        self.least = 2.0**-14 if dtype == "float16" else form.tiny  # no denormal number: some machines flush them

    def given(self, value: Any) -> Grained:
        value = np.asarray(value, np.float64)
        return self._made(value, np.abs(value), _lowest_bit(value))

    constant = given

    def rounded(self, x: Grained, dtype: str) -> Grained:
        value = rounded(x.value, dtype).astype(np.float64)
        return self._known(x, value, True)

    def result(self, x: Grained, rounds: int = 0) -> Number:
        return Number(x.value, np.where(x.grain > 0, 0.0, np.inf), x.magnitude)

    def _made(self, value, magnitude, grain, summed=False):
        """Return values with their proofs; `summed` if only sums are larger than the values, which are stored."""
        magnitude = np.where(np.isfinite(value), magnitude, 0.0)
        limit, most = (self.summed, self.most_summed) if summed else (self.limit, self.most)
        proved = (magnitude <= limit * grain) & (magnitude < most) & (grain >= self.least)
        if summed:
            proved &= ~(np.abs(value) > min(self.stored, self.summed) * grain)
        grain = np.where(np.isfinite(value), np.where(proved, grain, 0.0), np.inf)
        # a number that is not proved may not be 0
        return Grained(value, np.where(grain > 0, magnitude, np.maximum(magnitude, 1.0)), grain)

    # ---- by element

    def add(self, *terms):
        grain = np.minimum.reduce(np.broadcast_arrays(*(t.grain for t in terms)))
        total = self._made(self.plain.add(*(t.value for t in terms)), self.plain.add(*(t.magnitude for t in terms)),
                           grain)
        gone = (total.value == 0) & (total.grain > 0)  # terms that cancel leave a certain 0, whatever follows
        return Grained(total.value, np.where(gone, 0.0, total.magnitude), np.where(gone, np.inf, total.grain))

    def negative(self, x):
        return Grained(-x.value, x.magnitude, x.grain)

    def multiply(self, a, b):
        return self._made(self.plain.multiply(a.value, b.value), a.magnitude * b.magnitude, _times(a.grain, b.grain))

    def divide(self, a, b):
        size = np.abs(b.value)
        fits = (np.frexp(size)[0] == 0.5) & (b.grain > 0)
        grain = np.where(np.isinf(a.grain), np.inf, np.where(fits, a.grain / size, 0.0))
        return self._made(self.plain.divide(a.value, b.value), a.magnitude / size, grain, summed=True)

    def _known(self, x, value, known):
        """Return the values of a function, which are proved where `known`."""
        return self._made(value, np.abs(value), np.where(known & (x.grain > 0), _lowest_bit(value), 0.0))

    def exp(self, x):
        value = np.where(x.value <= _VANISHES, 0.0, self.plain.exp(x.value))
        return self._known(x, value, (x.value == 0) | (x.value <= _VANISHES))

    def log(self, x):
        return self._known(x, self.plain.log(x.value), x.value == 1)

    def tanh(self, x):
        return self._known(x, self.plain.tanh(x.value), x.value == 0)

    def sqrt(self, x):
        value = self.plain.sqrt(x.value)
        return self._known(x, value, value * value == x.value)

    def leaky(self, x, slope):
        lower = self.multiply(x, self.given(slope)) if slope else self.given(np.zeros(x.value.shape))
        return _choose(x.value > 0, x, lower, self.plain.leaky(x.value, slope))

    def leaky_gradient(self, g, x, slope):
        shape = np.broadcast_shapes(g.value.shape, x.value.shape)
        lower = self.multiply(g, self.given(slope)) if slope else self.given(np.zeros(shape))
        chosen = _choose(x.value > 0, g, lower, self.plain.leaky_gradient(g.value, x.value, slope))
        at_kink = (x.value == 0) & (slope != 0) | (x.grain == 0) & (16 * np.abs(x.value) < x.magnitude)
        return self._made(chosen.value, chosen.magnitude, np.where(at_kink & ~np.isinf(g.grain), 0.0, chosen.grain))

    def where(self, x, mask):
        return Grained(self.plain.where(x.value, mask), np.where(mask, x.magnitude, 0.0),
                       np.where(mask, x.grain, np.inf))

    def settled(self, x):
        """Return exact elements as single numbers, not as the sums that they came from."""
        return Grained(x.value, np.where(x.grain > 0, np.abs(x.value), x.magnitude), x.grain)

    # ---- dense

    transpose, reshape, broadcast, slice, gather = map(
        _moving, ("transpose", "reshape", "broadcast", "slice", "gather"))  # fmt: skip

    def matmul(self, a, b):
        grain = _times(a.grain.min(1, initial=np.inf)[:, None], b.grain.min(0, initial=np.inf)[None])
        return self._made(self.plain.matmul(a.value, b.value), a.magnitude @ b.magnitude, grain)

    def sum(self, x, axes):
        grain = x.grain.min(axes, keepdims=True, initial=np.inf)
        return self._made(self.plain.sum(x.value, axes), self.plain.sum(x.magnitude, axes), grain)

    def concat(self, *parts, axis):
        return Grained(*(np.concatenate([np.broadcast_to(getattr(p, key), p.value.shape) for p in parts], axis)
                         for key in _KEYS))

    # ---- by edges

    def scatter_sum(self, x, index):
        value, magnitude = (self.plain.scatter_sum(part, index) for part in (x.value, x.magnitude))
        return self._made(value, magnitude, _least_of_rows(x.grain, index), summed=True)

    def propagate(self, x, weight=None, *, source, target):
        used = np.flatnonzero(source.counts)
        grain = x.grain[used].min(initial=np.inf)
        if weight is not None:  # products are stored
            grain = _times(grain, weight.grain.min(initial=np.inf))
            largest = x.magnitude[used].max(initial=0) * weight.magnitude.max(initial=0)
            grain = grain if largest <= self.limit * grain else 0.0
        parts = [(x.value, None if weight is None else weight.value),
                 (x.magnitude, None if weight is None else weight.magnitude)]
        value, magnitude = (self.plain.propagate(*part, source=source, target=target) for part in parts)
        return self._made(value, magnitude, np.where(magnitude == 0, np.inf, grain), summed=True)

    def edge_dot(self, a, b, of_a, of_b, heads):
        axes = tuple(range(1 + heads, a.value.ndim))
        grain = _times(*(part.grain.min(axes, initial=np.inf)[index.rows] for part, index in ((a, of_a), (b, of_b))))
        return self._made(self.plain.edge_dot(a.value, b.value, of_a, of_b, heads),
                          self.plain.edge_dot(a.magnitude, b.magnitude, of_a, of_b, heads), grain)

    def scatter_max(self, x, index, ties=None, rank=None):
        return Grained(self.plain.scatter_max(x.value, index), self.plain.scatter_max(x.magnitude, index),
                       _least_of_rows(x.grain, index))

    def select(self, g, x, index, ties, rank):
        value = self.plain.select(g.value, x.value, index, ties, rank)
        proved = (_least_of_rows(x.grain, index) > 0) & ~np.isnan(self.plain.scatter_max(x.value, index))
        if ties == "all":
            best = self.plain.scatter_max(x.value, index)
            winners = self.plain.scatter_sum((x.value == best[index.rows]).astype(float), index)
            g = self.divide(g, self.given(np.maximum(winners, 1)))
        grain = np.where(value == 0, np.inf, np.where(proved, g.grain, 0.0)[index.rows])
        return self._made(value, np.abs(value), np.where(proved[index.rows], grain, 0.0))

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
        # else up to 1, not 0
        return self._made(value, np.where(proved, value, 1.0), np.where(proved, _lowest_bit(value), 0.0))

    def promised(self, x, scores, index):
        open_ = all_masked(scores.value, index)
        return Grained(x.value, np.where(open_, np.maximum(x.magnitude, 1.0), x.magnitude),
                       np.where(open_, 0.0, x.grain))


def _choose(mask, a, b, value):
    return Grained(value, np.where(mask, a.magnitude, b.magnitude), np.where(mask, a.grain, b.grain))


def _times(a, b):
    """Return the product of grains; a certain 0 makes a certain 0."""
    return np.where(np.isinf(a) | np.isinf(b), np.inf, a * b)


def _least_of_rows(grain: Array, index: Index) -> Array:
    return by_row(np.minimum, grain, index, np.inf)


def _lowest_bit(value: Array) -> Array:
    """Return the greatest power of two that divides a value; Inf for 0, Inf and NaN."""
    whole = np.isfinite(value) & (value != 0)
    fraction, exponent = np.frexp(np.where(whole, np.abs(value), 1.0))
    digits = (fraction * 2.0**53).astype(np.int64)
    return np.where(whole, np.ldexp((digits & -digits).astype(np.float64), exponent - 53), np.inf)
