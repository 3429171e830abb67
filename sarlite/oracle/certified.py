"""The bounds of a case: the largest error that any order of evaluation may make, and errors as multiples of it."""

from typing import Any

import numpy as np

from sarlite.oracle.arithmetic import Bounded, Number
from sarlite.oracle.case import Case
from sarlite.types import Array

LOWER = {"float64": 2.0**-24, "float32": 2.0**-11, "float16": 2.0**-8, "bfloat16": 2.0**-6}
"""Unit of sums in the next lower precision, by what was promised."""


def arithmetic(case: Case, lower: bool = False) -> Bounded:
    """The bounds of a case; with `lower`, of sums in the next lower precision than was promised."""
    return _Lower(case) if lower else Bounded(case.format, case.accumulate)


class _Lower(Bounded):
    """Bounds where sums and their terms are rounded to the lower precision, as by tensor cores, in the same range."""

    def __init__(self, case: Case) -> None:
        super().__init__(case.format, case.accumulate)
        self.each = np.log1p(LOWER[case.accumulate])

    def given(self, value: Array) -> Any:
        return super().given(value)._replace(growth=self.each)

    def result(self, x: Any, rounds: int = 0) -> Number:
        return super().result(x, rounds + 1)


def ratios(got: Array, number: Number) -> Array:
    """Error over bound of each element: 0 where they are the same number, NaN where nothing is decided."""
    value, error = np.asarray(number.value), np.broadcast_to(number.error, got.shape)
    with np.errstate(all="ignore"):
        same = (got == value) | (np.isnan(got) & np.isnan(value))
        difference = np.abs(got.astype(value.dtype) - value)
        ratio = np.where(same | (difference == 0), 0.0, np.where(error > 0, difference / error, np.inf))
        return np.where(np.isfinite(error), np.where(np.isnan(ratio), np.inf, ratio), np.nan)


def imprecise(got: Array, lower: Number, bad: Array) -> bool:
    """Return True if bounds of a lower precision explain the bad elements.

    The bounds are wide, so an error of 1/16 of all terms is never taken for rounding.
    """
    magnitude = np.broadcast_to(lower.magnitude, got.shape)
    with np.errstate(all="ignore"):
        small = (np.abs(got.astype(np.float64) - lower.value) <= magnitude / 16) & np.isfinite(lower.value)
    return bool((small & ~(np.nan_to_num(ratios(got, lower)) > 1))[bad].all())


def coarse(case: Case, got: Array, expected: Array) -> bool:
    """Return True if all of `got` are numbers of the next lower precision, and the expected numbers are not."""
    unit = LOWER[case.accumulate]

    def fits(value):
        mantissa = np.frexp(value.astype(np.float64))[0] / unit
        return mantissa == np.rint(mantissa)

    return bool((fits(got) & ~fits(expected)).all())
