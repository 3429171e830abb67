"""What each level asks of a function for one case: "probe" what is exact, by ==; "certified" what has bounds."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

from sarlite.oracle import certified, invariants, judge, probe, repeat
from sarlite.oracle.case import Case
from sarlite.oracle.difference import Difference
from sarlite.oracle.plain import Number
from sarlite.oracle.trial import Trial
from sarlite.types import Array

Numbers = Mapping[str, Number]


class Asking(NamedTuple):
    """How a level asks one case.

    Attributes
    ----------
    name : str
    most, found
        As of `judge`.
    cotangents : (reference, case, seed) -> dict
        Raises NotExact where there are none by which a gradient can be asked.
    outputs : (reference, case) -> numbers
    gradients : (reference, case, cotangents) -> numbers
    """

    name: str
    most: float
    found: judge.Found
    cotangents: Callable[[Any, Case, int], Mapping[str, Array]]
    outputs: Callable[[Any, Case], Numbers]
    gradients: Callable[[Any, Case, Mapping[str, Array]], Numbers]


def ask(how: Asking, trial: Trial, case: Case) -> None:
    """Ask outputs, and gradients where there is a vjp, and judge each."""
    reference, g = trial.reference, None
    if trial.vjp is not None and reference.differentiable(case):
        try:
            g = trial.cotangents or how.cotangents(reference, case, trial.seed)
        except probe.NotExact as error:
            trial.report.skip("gradients without an exact probe", str(error))
    expected = how.outputs(reference, case)
    got = trial.outputs(case, shapes(expected))
    for name, array in (got or {}).items():
        siblings = partial(_siblings, trial, case, name)
        difference = Difference(reference, case, name, expected[name], array, siblings=siblings, named=trial.named)
        judge.judge(trial, how.name, [difference], how.found, how.most)
    if g is None:
        return
    expected = how.gradients(reference, case, g)
    got = trial.gradients(case, g, shapes(expected))
    for name, array in (got or {}).items():
        difference = Difference(reference, case, f"d{name}", expected[name], array, g)
        judge.judge(trial, how.name, [difference], how.found, how.most)


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


def _random(reference, case, seed):
    return reference.cotangents(case, "random", seed)


def _outputs(reference, case):
    return reference.outputs(case, certified.arithmetic(case))


def _gradients(reference, case, g):
    return reference.gradients(case, g, certified.arithmetic(case))


PROBE = Asking("probe", 0.0, judge.not_exact, probe.cotangents, probe.numbers, probe.gradient_numbers)
CERTIFIED = Asking("certified", 1.0, judge.above_bound, _random, _outputs, _gradients)

JUDGES: dict[str, Callable[[Trial, Case], None]] = {
    "probe": partial(ask, PROBE), "certified": partial(ask, CERTIFIED), "repeat": repeat.level,
    "invariants": invariants.level,
}  # fmt: skip
