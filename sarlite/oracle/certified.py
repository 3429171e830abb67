"""Level `certified`: every element is held against the largest error that any order of evaluation may make."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from sarlite.oracle.arithmetic import Bounded, Number
from sarlite.oracle.case import Case
from sarlite.oracle.finding import Verdict
from sarlite.oracle.trial import Trial, equal
from sarlite.types import Array

LOWER = {"float64": 2.0**-24, "float32": 2.0**-11, "float16": 2.0**-8, "bfloat16": 2.0**-6}
"""Unit of sums in the next lower precision, by what was promised."""


class _Lower(Bounded):
    """Bounds where what is summed is rounded to the lower precision too, as tensor cores do, in the range of what was promised."""

    def __init__(self, case: Case) -> None:
        super().__init__(case.dtype, case.accumulate)
        self.each = np.log1p(LOWER[case.accumulate])

    def given(self, value: Array) -> Any:
        return super().given(value)._replace(growth=self.each)

    def result(self, x: Any, rounds: int = 0) -> Number:
        return super().result(x, rounds + 1)


def arithmetic(case: Case, lower: bool = False) -> Bounded:
    """The bounds of a case; with `lower`, of sums in the next lower precision than was promised."""
    return _Lower(case) if lower else Bounded(case.dtype, case.accumulate)


def ratios(got: Array, number: Number) -> Array:
    """Error over bound of each element: 0 where they are the same number, NaN where nothing is decided."""
    value, error = np.asarray(number.value), np.broadcast_to(number.error, got.shape)
    with np.errstate(all="ignore"):
        difference = np.abs(got.astype(value.dtype) - value)
        ratio = np.where(equal(got, value) | (difference == 0), 0.0, np.where(error > 0, difference / error, np.inf))
        return np.where(np.isfinite(error), np.where(np.isnan(ratio), np.inf, ratio), np.nan)


def imprecise(got: Array, lower: Number, bad: Array) -> bool:
    """Whether bounds of a lower precision explain the bad elements. They are wide: an error of 1/16 of all terms is no rounding."""
    magnitude = np.broadcast_to(lower.magnitude, got.shape)
    with np.errstate(all="ignore"):
        small = np.abs(got.astype(np.float64) - lower.value) <= magnitude / 16
    return bool((small & ~(np.nan_to_num(ratios(got, lower)) > 1))[bad].all())


def coarse(case: Case, got: Array, expected: Array) -> bool:
    """Whether all of `got` are numbers of the next lower precision, which the expected ones are not."""
    unit = LOWER[case.accumulate]

    def fits(value):
        mantissa = np.frexp(value.astype(np.float64))[0] / unit
        return mantissa == np.rint(mantissa)

    return bool((fits(got) & ~fits(expected)).all())


def level(trial: Trial, case: Case) -> None:
    """Check outputs and gradients of one case, whatever its values."""
    expected = trial.reference.outputs(case, arithmetic(case))
    got = trial.outputs(case, _shapes(expected))
    if got is not None:
        judge(trial, case, got, expected, "", lambda: trial.reference.outputs(case, arithmetic(case, lower=True)))
    if trial.vjp is None or not trial.reference.differentiable(case):
        return
    cotangents = trial.cotangents or trial.reference.cotangents(case, "random", trial.seed)
    expected = trial.reference.gradients(case, cotangents, arithmetic(case))
    got = trial.gradients(case, cotangents, _shapes(expected))
    if got is not None:
        judge(trial, case, got, expected, "d", lambda: trial.reference.gradients(case, cotangents, arithmetic(case, lower=True)),
              cotangents=cotangents)


def judge(trial: Trial, case: Case, got: Mapping[str, Array], expected: Mapping[str, Number], prefix: str,
          lower: Callable[[], Mapping[str, Number]], level: str = "certified", cotangents: Mapping[str, Array] | None = None
          ) -> None:
    """Add a finding for each array that is above its bound: IMPRECISE where the bounds `lower()` explain it."""
    for name, array in got.items():
        ratio = ratios(array, expected[name])
        trial.report.checked[level] += 1
        decided = ~np.isnan(ratio)
        trial.report.skip("elements that no bound decides", f"{case.name}, {prefix}{name}", int((~decided).sum()))
        bad = decided & (np.nan_to_num(ratio) > 1)
        if array.size and decided.any():
            trial.report.ratio = max(trial.report.ratio, float(ratio[decided].max()))
        if bad.any():
            lower_bounds = lower()[name]
            verdict = Verdict.IMPRECISE if imprecise(array, lower_bounds, bad) else Verdict.WRONG
            worst = bad & (np.nan_to_num(ratios(array, lower_bounds)) > 1) if verdict is Verdict.WRONG else bad
            worst = worst if worst.any() else bad
            cause = f"{float(ratio[bad].max()):.3g} times the bound; {int(bad.sum())} of {array.size} elements are above it"
            if verdict is Verdict.IMPRECISE:
                cause += "; sums in a lower precision would explain it"
            trial.found(verdict, level, case, prefix + name, cause, worst, array, expected[name].value,
                        np.broadcast_to(expected[name].error, array.shape), cotangents=cotangents)


def _shapes(numbers):
    return {name: number.value.shape for name, number in numbers.items()}
