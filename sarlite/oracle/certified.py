"""Error bounds for the results of a case, and errors as multiples of the bounds, as level "certified" of `check` uses them."""

import numpy as np

from sarlite.oracle.arithmetic import BoundArithmetic, BoundedArray, BoundTerm
from sarlite.oracle.case import Case
from sarlite.types import Array

LOWER = {"float64": 2.0**-24, "float32": 2.0**-11, "float16": 2.0**-8, "bfloat16": 2.0**-6}
"""Unit roundoff of sums in the next lower precision, by promised dtype."""


def arithmetic(case: Case, lower: bool = False) -> BoundArithmetic:
    """Return the arithmetic that computes results and error bounds for the dtypes of `case`. With `lower`, the bounds are those
    of kernels that compute sums in the next lower precision, such as TF32 in place of float32.
    """
    return _LowerPrecision(case) if lower else BoundArithmetic(case.format, case.accumulate)


class _LowerPrecision(BoundArithmetic):
    """Arithmetic that bounds the errors of kernels whose sums are less precise than promised, such as TF32 in place of float32.
    The terms of the sums are rounded too; the exponent range stays the same. Tensor cores compute in this way.
    """

    def __init__(self, case: Case) -> None:
        super().__init__(case.format, case.accumulate)
        self.each = np.log1p(LOWER[case.accumulate])

    def from_array(self, value: Array) -> BoundTerm:
        return super().from_array(value)._replace(growth=self.each)

    def result(self, x: BoundTerm, rounds: int = 0) -> BoundedArray:
        return super().result(x, rounds + 1)


def ratios(got: Array, expected: BoundedArray) -> Array:
    """Return |got - expected| divided by the error bound of the expected element, for each element.

    Parameters
    ----------
    got : array
        Returned elements.
    expected : BoundedArray
        Expected elements.

    Returns
    -------
    array of float
        0 where both are the same number, NaN where the expected element is undecided (its bound is Inf).
    """
    value, error = np.asarray(expected.value), np.broadcast_to(expected.bound, got.shape)
    with np.errstate(all="ignore"):
        same = (got == value) | (np.isnan(got) & np.isnan(value))
        difference = np.abs(got.astype(value.dtype) - value)
        ratio = np.where(same | (difference == 0), 0.0, np.where(error > 0, difference / error, np.inf))
        return np.where(np.isfinite(error), np.where(np.isnan(ratio), np.inf, ratio), np.nan)


def imprecise(got: Array, lower: BoundedArray, bad: Array) -> bool:
    """Return True if sums in a lower precision explain all wrong elements, which the mask `bad` marks in the returned array
    `got`. `lower` is the expected array with the error bounds of the lower precision.

    These bounds are wide, so an error above 1/16 of the magnitude never counts as rounding.
    """
    if lower.magnitude is None:
        return False
    with np.errstate(all="ignore"):
        small = (np.abs(got.astype(np.float64) - lower.value) <= lower.magnitude / 16) & np.isfinite(lower.value)
    return bool((small & ~(np.nan_to_num(ratios(got, lower)) > 1))[bad].all())


def coarse(case: Case, got: Array, expected: Array) -> bool:
    """Return True if all numbers of the returned array `got`, but none of `expected`, are representable in the next lower
    precision than the case's sums have. A kernel has then probably rounded its results to the lower precision.
    """
    unit = LOWER[case.accumulate]

    def fits(value):
        mantissa = np.frexp(value.astype(np.float64))[0] / unit
        return mantissa == np.rint(mantissa)

    return bool((fits(got) & ~fits(expected)).all())
