"""The questions that each level asks a function about one case, and the findings that it makes of wrong answers.

"probe" compares exact results by ==. "certified" compares with bounds. "repeat" gives the same input again.
"invariants" is in the module `invariants`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from sarlite.oracle import call, certified, invariants, probe
from sarlite.oracle.case import Case
from sarlite.oracle.difference import Difference
from sarlite.oracle.explain import LOOKS, assumptions_alone, located
from sarlite.oracle.finding import Verdict
from sarlite.oracle.plain import Number
from sarlite.oracle.trial import Found, Trial, counted
from sarlite.types import Array

Numbers = Mapping[str, Number]


class Asking(NamedTuple):
    """How a level asks one case."""

    name: str
    most: float  # as of `Trial.judge`, like `found`
    found: Found
    cotangents: Callable[[Any, Case, int], Mapping[str, Array]]  # (reference, case, seed); raises NotExact for none
    outputs: Callable[[Any, Case], Numbers]
    gradients: Callable[[Any, Case, Mapping[str, Array]], Numbers]

    def ask(self, trial: Trial, case: Case) -> None:
        """Ask outputs, and gradients where there is a vjp, and judge each."""
        reference, g = trial.reference, None
        if trial.vjp is not None and reference.differentiable(case):
            try:
                g = trial.cotangents or self.cotangents(reference, case, trial.seed)
            except probe.NotExact as error:
                trial.report.skip("gradients without an exact probe", str(error))
        expected = self.outputs(reference, case)
        self.hold(trial, case, expected, trial.outputs(case, shapes(expected)))
        if g is not None:
            expected = self.gradients(reference, case, g)
            for layout in trial.layouts():
                self.ask_gradient(trial, case, expected, g, layout)

    def ask_gradient(self, trial: Trial, case: Case, expected: Numbers, g: Mapping[str, Array], layout: str) -> None:
        """Ask a gradient by cotangents in a layout; where that fails or is wrong, by contiguous ones, too."""
        got = trial.gradients(case, g, shapes(expected), layout=layout)
        how, judged = self, got
        if layout != "plain" and not self._right(expected, got):
            judged = trial.gradients(case, g, shapes(expected))
            if got is not None and self._right(expected, judged):
                how, judged = self._replace(found=partial(misread, level=self.name, layout=layout)), got
        how.hold(trial, case, expected, judged, g)

    def _right(self, expected, got):
        return got is not None and not any((np.nan_to_num(certified.ratios(array, expected[name])) > self.most).any()
                                           for name, array in got.items())

    def hold(self, trial: Trial, case: Case, expected: Numbers, got: Mapping[str, Array] | None,
             g: Mapping[str, Array] | None = None) -> None:
        """Judge outputs, or gradients by the cotangents g."""
        for name, array in (got or {}).items():
            difference = Difference(
                trial.reference, case, name if g is None else f"d{name}", expected[name], array, g, named=trial.named,
                siblings=partial(_siblings, trial, trial.together, case, name) if g is None else tuple)
            trial.judge(self.name, [difference], self.found, self.most)


def shapes(numbers: Numbers) -> dict[str, tuple[int, ...]]:
    """The shape of each number."""
    return {name: number.value.shape for name, number in numbers.items()}


def _siblings(trial, together, case, name):
    """Return the differences of the other probes `together`, which share a code that is too long for one case."""
    differences = []
    for other in together:
        if other is not case:
            expected = probe.numbers(trial.reference, other)
            got = None if trial.stopped else trial.quietly(other, shapes(expected))
            if got is None:
                return ()
            differences.append(Difference(trial.reference, other, name, expected[name], got[name]))
    return tuple(differences)


# ---- findings of wrong answers


def not_exact(trial: Trial, difference: Difference, bad: Array) -> None:
    """Add a finding for elements that differ from their exact number.

    The finding is IMPRECISE if sums in a lower precision explain the elements.
    """
    case, got, value = difference.case, difference.got, difference.expected.value
    if certified.imprecise(got, _lower(difference), bad) and (
            certified.coarse(case, got[bad], value[bad]) or not located(difference)):
        cause = f"{counted(bad)}; sums in a lower precision would explain it"
        trial.found(Verdict.IMPRECISE, "probe", difference, cause, bad)
    else:
        trial.found(Verdict.WRONG, "probe", difference, counted(bad), bad, LOOKS)


def above_bound(trial: Trial, difference: Difference, bad: Array, level: str = "certified") -> None:
    """Add a finding for elements above their bound.

    Of level "certified" the finding is IMPRECISE if bounds of sums in a lower precision explain the elements.
    """
    times, verdict, worst = float(difference.ratio[bad].max()), Verdict.WRONG, bad
    cause = f"{times:.3g} times the bound; {int(bad.sum())} of {bad.size} elements are above it"
    if level == "certified":
        lower = _lower(difference)
        if certified.imprecise(difference.got, lower, bad):
            verdict, cause = Verdict.IMPRECISE, f"{cause}; sums in a lower precision would explain it"
        else:
            worst = bad & (np.nan_to_num(certified.ratios(difference.got, lower)) > 1)
    trial.found(verdict, level, difference, cause, worst if worst.any() else bad,
                assumptions_alone)


def misread(trial: Trial, difference: Difference, bad: Array, level: str, layout: str) -> None:
    """Add a finding for a gradient that is right where the incoming gradient is contiguous, and wrong in a layout."""
    cause = ("the strides of the incoming gradient are ignored: right for a gradient in contiguous rows, wrong for one "
             f"{call.GRADIENT_LAYOUTS.get(layout, 'that is one number with strides of 0, as of out.sum()')}")
    trial.found(Verdict.WRONG, level, difference, cause, bad, support=2)


def _lower(difference):
    """Return the expected number with the bounds of sums in the next lower precision."""
    return difference.evaluate(difference.case, certified.arithmetic(difference.case, lower=True))


# ---- level "repeat"


def repeat(trial: Trial, case: Case, n_threads: int | None = None) -> None:
    """Call once and `trial.repeats` times more with all threads, and, of more than one thread, with one thread."""
    n_threads = call.threads_of_pools() if n_threads is None else n_threads
    reference = trial.reference
    wanted = {name: expr.shape for name, expr in reference.expressions(case)[1].items()}
    _same_bits(trial, case, n_threads, partial(trial.outputs, case, wanted))
    if trial.vjp is not None and (names := reference.differentiable(case)):
        g = trial.cotangents or reference.cotangents(case, "random", trial.seed)
        wanted = {name: np.shape({**case.arrays, **case.state}[name]) for name in names}
        _same_bits(trial, case, n_threads, partial(trial.gradients, case, g, wanted), g)


def _same_bits(trial, case, n_threads, asked, g=None):
    first = asked()
    if first is None:
        return
    for _ in range(trial.repeats):
        again = asked()
        if again is None or _differ(trial, case, first, again, g, Verdict.NONDETERMINISTIC, "the same call again"):
            return
    if n_threads == 1:
        trial.report.skip("other numbers of threads: no pool of threads in this process has more than one", case.name)
        return
    alone = asked(threads=1)
    if alone is None or not any(other_bits(first[name], alone[name]).any() for name in first.keys() & alone.keys()):
        trial.report.checked["repeat"] += len(first) * (alone is not None)
        return
    for before, threads in ((first, None), (alone, 1)):  # a race, not the number of threads, where one number differs
        again = asked(threads=threads)
        if again is None or _differ(trial, case, before, again, g, Verdict.NONDETERMINISTIC, "the same call again"):
            return
    _differ(trial, case, first, alone, g, Verdict.THREADS, f"one thread in place of {n_threads}")


def _differ(trial, case, first, again, g, verdict, text):
    """Compare two answers; return True, with a finding, if a bit differs."""
    trial.report.checked["repeat"] += len(first)
    for name in first.keys() & again.keys():
        differ = other_bits(first[name], again[name])
        if differ.any():
            output, before = name if g is None else f"d{name}", Number(first[name], None)
            difference = Difference(trial.reference, case, output, before, again[name], g)
            trial.found(verdict, "repeat", difference, f"{text}: {counted(differ)}", differ)
            return True
    return False


def other_bits(a: Array, b: Array) -> Array:
    """Return a mask of the elements of two arrays, of one shape and dtype, that differ in a bit; all NaN are equal."""
    bits = f"u{a.dtype.itemsize}"
    return (np.ascontiguousarray(a).view(bits) != np.ascontiguousarray(b).view(bits)) & ~(np.isnan(a) & np.isnan(b))


# ---- the table


def _random(reference, case, seed):
    return reference.cotangents(case, "random", seed)


def _outputs(reference, case):
    return reference.outputs(case, certified.arithmetic(case))


def _gradients(reference, case, g):
    return reference.gradients(case, g, certified.arithmetic(case))


PROBE = Asking("probe", 0.0, not_exact, probe.cotangents, probe.numbers, probe.gradient_numbers)
CERTIFIED = Asking("certified", 1.0, above_bound, _random, _outputs, _gradients)
JUDGES: dict[str, Callable[[Trial, Case], None]] = {"probe": PROBE.ask, "certified": CERTIFIED.ask, "repeat": repeat,
                                                    "invariants": invariants.level}
