"""`judge`: holds results against their reference.

Every level counts, explains and reports what is wrong in this one way.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from sarlite.oracle import certified
from sarlite.oracle.difference import Difference
from sarlite.oracle.explain import LOOKS, Cause, Look, cause_of
from sarlite.oracle.finding import Verdict
from sarlite.oracle.trial import Trial
from sarlite.types import Array

Found = Callable[[Trial, Difference, Array], None]


def judge(trial: Trial, level: str, asked: Sequence[Difference], found: Found, most: float = 1.0) -> bool:
    """Hold one output, or one gradient, against its reference; return whether it is wrong.

    Parameters
    ----------
    trial : Trial
        Gets the comparison, and what was not decided.
    level : str
    asked : sequence of Difference
        One; of a run on several ranks one a rank.
    found : (trial, difference, bad) -> None
        Adds a finding about the wrong elements `bad` of the first of `asked` that has such.
    most : float
        The largest error over its bound that is right; 0 of level "probe", where bounds are 0 or Inf.
    """
    report, first = trial.report, asked[0]
    report.checked[level] += 1
    reason = "elements that no bound decides" if most else "elements that no probe decides"
    report.skip(reason, f"{first.case.name}, {first.output}", sum(int(np.isnan(d.ratio).sum()) for d in asked))
    if most:
        ratios = (np.nan_to_num(d.ratio, posinf=np.inf).max(initial=0) for d in asked)
        report.ratio = max(report.ratio, *map(float, ratios))
    for difference in asked:
        bad = np.nan_to_num(difference.ratio) > most
        if bad.any():
            found(trial, difference, bad)
            return True
    return False


def explained(trial: Trial, difference: Difference, bad: Array, looks: Sequence[Look] = LOOKS, where: str = ""
              ) -> Cause:
    """Return the probable cause and its edges; of findings after the first few how many elements differ."""
    if trial.explanations <= 0:
        return counted(bad, where), ()
    trial.explanations -= 1
    return cause_of(difference, looks)


def counted(bad: Array, where: str = "") -> str:
    """Return how many elements differ, as a cause."""
    return f"{int(bad.sum())} of {bad.size} elements{where} differ"


def not_exact(trial: Trial, difference: Difference, bad: Array) -> None:
    """Report what is not the exact number, with its cause.

    IMPRECISE where sums in a lower precision explain the elements.
    """
    case, got, value = difference.case, difference.got, difference.expected.value
    cause, edges = explained(trial, difference, bad)
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
