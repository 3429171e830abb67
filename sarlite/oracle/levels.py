"""What each level asks of a function for one case: `probe` what is exact, by ==; `certified` what has bounds; `repeat`; `invariants`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

from sarlite.oracle import certified, invariants, judge, probe, repeat
from sarlite.oracle.case import Case
from sarlite.oracle.difference import Difference
from sarlite.oracle.finding import Verdict
from sarlite.oracle.judge import Judgement
from sarlite.oracle.plain import Number
from sarlite.oracle.trial import Trial
from sarlite.types import Array

Numbers = Mapping[str, Number]


class Asking(NamedTuple):
    """How a level asks one case.

    Attributes
    ----------
    name : str
    most : float
        As of `judge`.
    cotangents : (reference, case, seed) -> dict
        Raises NotExact where there are none by which a gradient can be asked.
    outputs : (reference, case) -> numbers
    gradients : (reference, case, cotangents) -> numbers
    judged : (trial) -> what `judge` takes
    """

    name: str
    most: float
    cotangents: Callable[[Any, Case, int], Mapping[str, Array]]
    outputs: Callable[[Any, Case], Numbers]
    gradients: Callable[[Any, Case, Mapping[str, Array]], Numbers]
    judged: Callable[[Trial], Callable[[Difference, Array], Judgement]]


def ask(how: Asking, trial: Trial, case: Case) -> None:
    """Ask outputs, and gradients where there is a vjp, and judge each."""
    reference, g = trial.reference, None
    if trial.vjp is not None and reference.differentiable(case):
        try:
            g = trial.cotangents or how.cotangents(reference, case, trial.seed)
        except probe.NotExact as error:
            trial.report.skip("gradients without an exact probe", str(error))
    expected = how.outputs(reference, case)
    _judge(how, trial, case, expected, trial.outputs(case, shapes(expected)), "", None)
    if g is not None:
        expected = how.gradients(reference, case, g)
        _judge(how, trial, case, expected, trial.gradients(case, g, shapes(expected)), "d", g)


def _judge(how, trial, case, expected, got, prefix, g):
    for name, array in (got or {}).items():
        difference = Difference(trial.reference, case, f"{prefix}{name}", expected[name], array, g)
        judge.judge(trial, how.name, [difference], how.judged(trial), how.most)


def shapes(numbers: Numbers) -> dict[str, tuple[int, ...]]:
    """The shape of each number."""
    return {name: number.value.shape for name, number in numbers.items()}


# ---- probe


def _not_exact(trial: Trial, difference: Difference, bad: Array) -> Judgement:
    """WRONG with its cause, or IMPRECISE where sums in a lower precision explain the elements."""
    case, got, value = difference.case, difference.got, difference.expected.value
    if difference.cotangents is None:
        difference = replace(difference, siblings=lambda: _siblings(trial, case, difference.output))
    cause, edges = judge.explained(trial, difference, bad)
    if not edges or certified.coarse(case, got[bad], value[bad]):
        lower = difference.evaluate(case, certified.arithmetic(case, lower=True))
        if certified.imprecise(got, lower, bad):
            return Judgement(Verdict.IMPRECISE, f"{judge.counted(bad)}; sums in a lower precision would explain it")
    return Judgement(Verdict.WRONG, cause, edges)


def _siblings(trial, case, name):
    """The other cases that share a code with this one, where one has too few columns for it."""
    found = []
    for other in trial.together:
        if other is not case:
            expected = probe.numbers(trial.reference, other)
            got = trial.quietly(other, shapes(expected))
            if got is None:
                return ()
            found.append(Difference(trial.reference, other, name, expected[name], got[name]))
    return tuple(found)


PROBE = Asking("probe", 0.0, probe.cotangents, probe.numbers, probe.gradient_numbers, lambda trial: partial(_not_exact, trial))

# ---- certified


def _outputs(reference, case):
    return reference.outputs(case, certified.arithmetic(case))


def _gradients(reference, case, g):
    return reference.gradients(case, g, certified.arithmetic(case))


def _random(reference, case, seed):
    return reference.cotangents(case, "random", seed)


CERTIFIED = Asking("certified", 1.0, _random, _outputs, _gradients, lambda trial: judge.above_bound_or_imprecise)

# ---- all


JUDGES: dict[str, Callable[[Trial, Case], None]] = {
    "probe": partial(ask, PROBE), "certified": partial(ask, CERTIFIED), "repeat": repeat.level, "invariants": invariants.level,
}  # fmt: skip
