"""`Difference`: one array that a function gave beside what it had to be.

Levels judge it, and the explainer explains it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from sarlite.oracle.case import Case
from sarlite.oracle.certified import ratios
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
    book: Any = None  # the Codebook of the rows of x of all these cases, where it is there already
    named: tuple = ()  # (src, dst) of edges that were found in this case before

    @cached_property
    def ratio(self) -> Array:
        """The error of each element over its bound: 0 where both are the same number, NaN where nothing is decided."""
        return ratios(self.got, self.expected)

    @cached_property
    def wide(self) -> tuple[Array, Array]:
        """What was expected and what came, in float64."""
        return np.asarray(self.expected.value, np.float64), np.asarray(self.got, np.float64)

    @cached_property
    def differs(self) -> Array:
        """(...) bool: where the numbers are not the same; NaN is equal to NaN."""
        expected, got = self.wide
        with np.errstate(invalid="ignore"):
            return (got != expected) & ~(np.isnan(got) & np.isnan(expected))

    def evaluate(self, case: Case, arithmetic: Any, cotangents: Mapping[str, Array] | None = None) -> Number:
        """Return the same output of another case, or the same gradient by other cotangents."""
        if self.cotangents is None:
            return self.reference.outputs(case, arithmetic)[self.output]
        return self.reference.gradients(case, cotangents or self.cotangents, arithmetic)[self.output[1:]]

    def under(self, case: Case, cotangents: Mapping[str, Array] | None = None) -> Number:
        """Return what another case would have given, with the error that rounding may make."""
        value = np.asarray(self.evaluate(case, Plain(), cotangents).value)
        return Number(value, np.where(np.isfinite(value), 2.0**-20 * np.abs(value), 0.0))

    def fits(self, number: Number) -> bool:
        """Whether every element that came is within the bound of a number, and some elements are decided."""
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


def of_saved(reference: Any, saved: Saved, output: str) -> Difference:
    """Return the difference that `Difference.evidence` was made of."""
    expected = Number(saved.expected[output], saved.bounds.get(output))
    return Difference(reference, saved.case, output, expected, saved.got[output], saved.cotangents or None)
