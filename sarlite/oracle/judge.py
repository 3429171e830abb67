"""`judge`: holds results against their reference. Every level counts, explains and reports what is wrong in this one way."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from sarlite.oracle import certified
from sarlite.oracle.difference import Difference
from sarlite.oracle.explain import LOOKS, Cause, Look, cause_of
from sarlite.oracle.finding import Verdict
from sarlite.oracle.trial import Trial
from sarlite.types import Array


@dataclass(frozen=True)
class Judgement:
    """What a finding says about wrong elements.

    Attributes
    ----------
    verdict : Verdict
    cause : str
    edges : tuple of (src, dst)
    worst : (...) bool, optional
        The elements of which the first is the finding's place; all wrong ones where it is None.
    place : dict
        Other fields of the finding.
    """

    verdict: Verdict
    cause: str
    edges: tuple = ()
    worst: Array | None = None
    place: dict[str, Any] = field(default_factory=dict)


def judge(trial: Trial, level: str, asked: Sequence[Difference], judged: Callable[[Difference, Array], Judgement],
          most: float = 1.0) -> bool:
    """Hold one output, or one gradient, against its reference; return whether it is wrong.

    Parameters
    ----------
    trial : Trial
        Gets the comparison, what was not decided, and a finding about the first of `asked` that is wrong.
    level : str
    asked : sequence of Difference
        One; of a run on several ranks one a rank.
    judged : (difference, bad) -> Judgement
        What to say of the wrong elements.
    most : float
        The largest error over its bound that is right; 0 of level "probe", where bounds are 0 or Inf.
    """
    report, first = trial.report, asked[0]
    report.checked[level] += 1
    reason = "elements that no bound decides" if most else "elements that no probe decides"
    report.skip(reason, f"{first.case.name}, {first.output}", sum(int(np.isnan(d.ratio).sum()) for d in asked))
    if most:
        ratio = (np.nan_to_num(d.ratio, posinf=np.inf).max(initial=0) for d in asked)
        report.ratio = max(report.ratio, *(float(each) for each in ratio))
    for difference in asked:
        bad = np.nan_to_num(difference.ratio) > most
        if bad.any():
            found = judged(difference, bad)
            worst = bad if found.worst is None or not found.worst.any() else found.worst
            trial.found(found.verdict, level, difference, found.cause, worst, edges=found.edges, **found.place)
            return True
    return False


def explained(trial: Trial, difference: Difference, bad: Array, looks: Sequence[Look] = LOOKS, where: str = "") -> Cause:
    """Return the probable cause and its edges; of findings after the first few how many elements differ."""
    if trial.explanations <= 0:
        return counted(bad, where), ()
    trial.explanations -= 1
    return cause_of(difference, looks)


def counted(bad: Array, where: str = "") -> str:
    return f"{int(bad.sum())} of {bad.size} elements{where} differ"


def above_bound(difference: Difference, bad: Array) -> Judgement:
    """WRONG, with how far above its bound the result is."""
    times = float(difference.ratio[bad].max())
    return Judgement(Verdict.WRONG, f"{times:.3g} times the bound; {int(bad.sum())} of {bad.size} elements are above it")


def above_bound_or_imprecise(difference: Difference, bad: Array) -> Judgement:
    """The same, but IMPRECISE where bounds of sums in a lower precision explain the elements."""
    cause = above_bound(difference, bad).cause
    lower = difference.evaluate(difference.case, certified.arithmetic(difference.case, lower=True))
    if certified.imprecise(difference.got, lower, bad):
        return Judgement(Verdict.IMPRECISE, f"{cause}; sums in a lower precision would explain it")
    worst = bad & (np.nan_to_num(certified.ratios(difference.got, lower)) > 1)
    return Judgement(Verdict.WRONG, cause, worst=worst)
