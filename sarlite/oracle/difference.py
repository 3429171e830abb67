"""`Difference`: one array that a function under test returned, together with the expected array.

Levels judge a difference, and the explainer looks for its cause.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from sarlite.oracle.case import Case
from sarlite.oracle.certified import arithmetic, ratios
from sarlite.oracle.finding import Edges, SavedCase
from sarlite.oracle.plain import Arithmetic, BoundedArray, FloatArithmetic
from sarlite.oracle.reference import Reference
from sarlite.types import Array, T


@dataclass(frozen=True, eq=False)
class Difference:
    """One output or gradient of one case: the expected and the returned array.

    Attributes
    ----------
    reference : Reference
    case : Case
    output : str
        Name of the output; "d<name>" for the gradient of an input or parameter.
    expected : BoundedArray
        Its `error` is None if the array is compared with another result of the same function, without a bound.
    got : array
        The returned array.
    cotangents : dict of str to array or None
        Gradients of the outputs that a gradient is computed from; None for an output.
    siblings : () -> sequence of Difference
        Returns the same output of the other probes of the graph. Probes share a code of row numbers if one has too few
        columns for it.
    suspect_edges : tuple of (src, dst)
        Edges that an earlier finding on this case names.
    """

    reference: Reference
    case: Case
    output: str
    expected: BoundedArray
    got: Array
    cotangents: Mapping[str, Array] | None = None
    siblings: Callable[[], Sequence[Difference]] = tuple
    suspect_edges: Edges = ()

    @cached_property
    def ratio(self) -> Array:
        """Error of each element divided by its bound; 0 where the returned number is the expected one, NaN where the bound is Inf."""
        return ratios(self.got, self.expected)

    def above(self, tolerance: float = 1.0) -> Array:
        """Return a mask of the elements whose error is more than `tolerance` times their error bound; False where the bound is Inf."""
        return np.nan_to_num(self.ratio) > tolerance

    @cached_property
    def as_float64(self) -> tuple[Array, Array]:
        """Tuple of the expected and the returned array, in float64."""
        return np.asarray(self.expected.value, np.float64), np.asarray(self.got, np.float64)

    @cached_property
    def differs(self) -> Array:
        """Mask of the elements where the expected and the returned array differ; NaN equals NaN."""
        expected, got = self.as_float64
        with np.errstate(invalid="ignore"):
            return (got != expected) & ~(np.isnan(got) & np.isnan(expected))

    def evaluate(self, case: Case, by: Arithmetic[T], cotangents: Mapping[str, Array] | None = None) -> BoundedArray:
        """Return the reference's result for `case` in the arithmetic `by`: the output `self.output`, or the gradient of this name.
        A gradient is computed from `cotangents`, gradients of the outputs; None stands for `self.cotangents`.
        """
        if self.cotangents is None:
            return self.reference.outputs(case, by)[self.output]
        return self.reference.gradients(case, cotangents or self.cotangents, by)[self.output[1:]]

    @cached_property
    def exact(self) -> bool:
        """True if every expected element is either exact (error bound 0) or undecided (error bound Inf)."""
        error = np.asarray(0.0 if self.expected.error is None else self.expected.error)
        return not (np.isfinite(error) & (error > 0)).any()

    def predicted(self, case: Case, cotangents: Mapping[str, Array] | None = None) -> BoundedArray:
        """Return the expected output or gradient `self.output`, with error bounds, of a `case` that a guessed mistake has changed,
        such as by the loss of an edge. If the returned array agrees with this prediction, the guess explains it. `cotangents` are
        gradients of the outputs (None: `self.cotangents`).
        """
        if not self.exact:
            return self.evaluate(case, arithmetic(case), cotangents)
        value = np.asarray(self.evaluate(case, FloatArithmetic(), cotangents).value)
        return BoundedArray(value, np.where(np.isfinite(value), 2.0**-20 * np.abs(value), 0.0))

    def fits(self, prediction: BoundedArray) -> bool:
        """Return True if `prediction`, an array with error bounds, agrees with the array that the tested code returned: each element is
        within its bounds. At least one bound must be finite, as infinite bounds agree with any array.
        """
        if np.shape(prediction.value) != self.got.shape or not self.got.size:
            return False
        ratio = ratios(self.got, prediction)
        return not np.isnan(ratio).all() and not np.any(np.nan_to_num(ratio) > 1)

    @property
    def evidence(self) -> SavedCase:
        """SavedCase (contents of a .sarcase directory) of the case, the cotangents, the expected array, its error bounds and the
        returned array.
        """
        error = self.expected.error
        bounds = {} if error is None else {self.output: np.asarray(self.expected.bound, np.float64)}
        expected = {self.output: np.asarray(self.expected.value, np.float64)}
        return SavedCase(self.case, dict(self.cotangents or {}), expected, bounds, {self.output: self.got})

