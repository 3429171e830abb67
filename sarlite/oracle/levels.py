"""What each level asks of a function for one case, and what it says of a wrong answer.

"probe": what is exact, by ==. "certified": what has bounds. "repeat": the same input again. "invariants": `invariants`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from sarlite.oracle import certified, invariants, probe
from sarlite.oracle.case import Case
from sarlite.oracle.difference import Difference
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
            self.hold(trial, case, expected, trial.gradients(case, g, shapes(expected)), g)

    def hold(self, trial: Trial, case: Case, expected: Numbers, got: Mapping[str, Array] | None,
             g: Mapping[str, Array] | None = None) -> None:
        """Judge outputs, or gradients by the cotangents g."""
        for name, array in (got or {}).items():
            difference = Difference(
                trial.reference, case, name if g is None else f"d{name}", expected[name], array, g, named=trial.named,
                siblings=partial(_siblings, trial, case, name) if g is None else tuple)  # fmt: skip
            trial.judge(self.name, [difference], self.found, self.most)


def shapes(numbers: Numbers) -> dict[str, tuple[int, ...]]:
    """The shape of each number."""
    return {name: number.value.shape for name, number in numbers.items()}


def _siblings(trial, case, name):
    """The probes that share a code with this one, where one case has too few columns for it."""
    found = []
    for other in trial.together:
        if other is not case:
            expected = probe.numbers(trial.reference, other)
            got = trial.quietly(other, shapes(expected))
            if got is None:
                return ()
            found.append(Difference(trial.reference, other, name, expected[name], got[name]))
    return tuple(found)


# ---- what is said of a wrong answer


def not_exact(trial: Trial, difference: Difference, bad: Array) -> None:
    """Report what is not the exact number, with its cause.

    IMPRECISE where sums in a lower precision explain the elements.
    """
    case, got, value = difference.case, difference.got, difference.expected.value
    cause, edges = trial.explained(difference, bad)
    verdict = Verdict.WRONG
    if not edges or certified.coarse(case, got[bad], value[bad]):
        if certified.imprecise(got, _lower(difference), bad):
            verdict, edges = Verdict.IMPRECISE, ()
            cause = f"{counted(bad)}; sums in a lower precision would explain it"
    trial.found(verdict, "probe", difference, cause, bad, edges=edges)


def above_bound(trial: Trial, difference: Difference, bad: Array, level: str = "certified") -> None:
    """Report how far above its bound a result is.

    Of level "certified" it is IMPRECISE where bounds of sums in a lower precision explain the elements.
    """
    times, verdict, worst = float(difference.ratio[bad].max()), Verdict.WRONG, bad
    cause = f"{times:.3g} times the bound; {int(bad.sum())} of {bad.size} elements are above it"
    if level == "certified":
        lower = _lower(difference)
        if certified.imprecise(difference.got, lower, bad):
            verdict, cause = Verdict.IMPRECISE, f"{cause}; sums in a lower precision would explain it"
        else:
            worst = bad & (np.nan_to_num(certified.ratios(difference.got, lower)) > 1)
    trial.found(verdict, level, difference, cause, worst if worst.any() else bad)


def _lower(difference):
    """What would come, with the bounds of sums in the next lower precision."""
    return difference.evaluate(difference.case, certified.arithmetic(difference.case, lower=True))


# ---- level "repeat"


def repeat(trial: Trial, case: Case, n_cores: int | None = None) -> None:
    """Call as it is once and `trial.repeats` times more, and, where there are more cores than one, with one thread."""
    n_cores = os.cpu_count() or 1 if n_cores is None else n_cores
    reference = trial.reference
    wanted = {name: expr.shape for name, expr in reference.expressions(case)[1].items()}
    _same_bits(trial, case, n_cores, partial(trial.outputs, case, wanted))
    if trial.vjp is not None and (names := reference.differentiable(case)):
        g = trial.cotangents or reference.cotangents(case, "random", trial.seed)
        wanted = {name: np.shape({**case.arrays, **case.state}[name]) for name in names}
        _same_bits(trial, case, n_cores, partial(trial.gradients, case, g, wanted), g)


def _same_bits(trial, case, n_cores, call, g=None):
    first = call()
    if first is None:
        return
    kinds: list[tuple[int | None, str]] = [(None, "the same call again")] * trial.repeats
    if n_cores > 1:
        kinds.append((1, "one thread in place of all"))
    else:
        trial.report.skip("other numbers of threads: this machine has one core", case.name)
    for threads, cause in kinds:
        again = call(threads=threads)
        if again is None:
            return
        trial.report.checked["repeat"] += len(first)
        for name in first.keys() & again.keys():
            differ = other_bits(first[name], again[name])
            if differ.any():
                output, before = name if g is None else f"d{name}", Number(first[name], None)
                difference = Difference(trial.reference, case, output, before, again[name], g)
                trial.found(Verdict.NONDETERMINISTIC, "repeat", difference, f"{cause}: {counted(differ)}", differ)
                return


def other_bits(a: Array, b: Array) -> Array:
    """Where two arrays of one shape and dtype differ in a bit; any NaN is as any other."""
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
