"""`Difference`: one array that a function returned beside the expected number.

Levels judge a difference, and the explainer explains it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from sarlite.oracle.case import Case
from sarlite.oracle.certified import arithmetic, ratios
from sarlite.oracle.finding import Saved
from sarlite.oracle.plain import Number, Plain
from sarlite.types import Array


@dataclass(frozen=True, eq=False)
class Difference:
    """One output or gradient of one case."""

    reference: Any
    case: Case
    output: str  # its name; "d<name>" of a gradient
    expected: Number  # error is None where there is no bound: where a result is held against another of the function
    got: Array
    cotangents: Mapping[str, Array] | None = None  # what a gradient was asked by; None of an output
    # the same output of the other cases of one graph, where one case has too few columns to tell rows apart
    siblings: Callable[[], Sequence[Difference]] = tuple
    named: tuple = ()  # (src, dst) of edges that were found in this case before

    @cached_property
    def ratio(self) -> Array:
        """The error of each element over its bound: 0 where both are the same number, NaN where nothing is decided."""
        return ratios(self.got, self.expected)

    def above(self, most: float = 1.0) -> Array:
        """Return a mask of the elements whose error is more than `most` times the bound; undecided ones are not."""
        return np.nan_to_num(self.ratio) > most

    @cached_property
    def wide(self) -> tuple[Array, Array]:
        """The expected and the returned numbers, in float64."""
        return np.asarray(self.expected.value, np.float64), np.asarray(self.got, np.float64)

    @cached_property
    def differs(self) -> Array:
        """Mask of the elements that are not the same number; NaN is equal to NaN."""
        expected, got = self.wide
        with np.errstate(invalid="ignore"):
            return (got != expected) & ~(np.isnan(got) & np.isnan(expected))

    def evaluate(self, case: Case, by: Any, cotangents: Mapping[str, Array] | None = None) -> Number:
        """Return the same output of another case, or the same gradient by other cotangents, in an arithmetic."""
        if self.cotangents is None:
            return self.reference.outputs(case, by)[self.output]
        return self.reference.gradients(case, cotangents or self.cotangents, by)[self.output[1:]]

    @cached_property
    def exact(self) -> bool:
        """True if no expected element has a bound other than 0 and Inf."""
        error = np.asarray(0.0 if self.expected.error is None else self.expected.error)
        return not (np.isfinite(error) & (error > 0)).any()

    def under(self, case: Case, cotangents: Mapping[str, Array] | None = None) -> Number:
        """Return the number that another case would have given, with the error that rounding may make."""
        if not self.exact:
            return self.evaluate(case, arithmetic(case), cotangents)
        value = np.asarray(self.evaluate(case, Plain(), cotangents).value)
        return Number(value, np.where(np.isfinite(value), 2.0**-20 * np.abs(value), 0.0))

    def fits(self, number: Number) -> bool:
        """Return True if every returned element is within the bound of a number, and some elements are decided."""
        if np.shape(number.value) != self.got.shape or not self.got.size:
            return False
        ratio = ratios(self.got, number)
        return not np.isnan(ratio).all() and not np.any(np.nan_to_num(ratio) > 1)

    @property
    def evidence(self) -> Saved:
        """The case with the arrays that were compared."""
        error = self.expected.error
        bounds = {} if error is None else {self.output: np.asarray(np.broadcast_to(error, self.got.shape), np.float64)}
        expected = {self.output: np.asarray(self.expected.value, np.float64)}
        return Saved(self.case, dict(self.cotangents or {}), expected, bounds, {self.output: self.got})

