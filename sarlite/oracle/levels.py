"""The levels of a check, such as "probe": the calls that a level makes for one case, and the rule for wrong results.

"probe" compares exact results by ==. "certified" compares with error bounds. "repeat" repeats the same input.
"invariants" is in the module `invariants`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np

from sarlite.oracle import call, certified, invariants, probe
from sarlite.oracle.case import Case
from sarlite.oracle.diagnose import CAUSE_SEARCHES, assumptions_alone, located
from sarlite.oracle.difference import Difference
from sarlite.oracle.finding import Verdict
from sarlite.oracle.plain import BoundedArray
from sarlite.oracle.reference import Reference
from sarlite.oracle.trial import FindingRule, Trial, count_text
from sarlite.types import Array

BoundedArrays = Mapping[str, BoundedArray]


class Level(NamedTuple):
    """Level "probe" or "certified" of a check: the functions that compute expected results, and the rule for results that differ.

    Attributes
    ----------
    name : str
    tolerance, add_finding
        See `Trial.judge`.
    cotangents : (reference, case, seed) -> {output: array}
        Gradients of the outputs; raises NotExact if no exact gradient follows from any.
    outputs : (reference, case) -> {output: BoundedArray}
    gradients : (reference, case, cotangents) -> {name: BoundedArray}
    """

    name: str
    tolerance: float
    add_finding: FindingRule
    cotangents: Callable[[Reference, Case, int], Mapping[str, Array]]
    outputs: Callable[[Reference, Case], BoundedArrays]
    gradients: Callable[[Reference, Case, Mapping[str, Array]], BoundedArrays]

    def check_case(self, trial: Trial, case: Case) -> None:
        """Call the function under test on `case`, and its vjp if there is one, and compare each result with the expected one.
        `trial` holds both functions, and collects the findings.
        """
        reference, g = trial.reference, None
        if trial.vjp is not None and reference.differentiable(case):
            try:
                g = trial.cotangents or self.cotangents(reference, case, trial.seed)
            except probe.NotExact as error:
                trial.report.skip("gradients without an exact probe", str(error))
        expected = self.outputs(reference, case)
        self.judge(trial, case, expected, trial.outputs(case, shapes(expected)))
        if g is not None:
            expected = self.gradients(reference, case, g)
            for layout in trial.layouts():
                self.check_gradient(trial, case, expected, g, layout)

    def check_gradient(self, trial: Trial, case: Case, expected: BoundedArrays, g: Mapping[str, Array], layout: str) -> None:
        """Call the vjp with `g`, the gradients of the outputs, in the memory layout `layout`, and compare its result with
        `expected`. If the result is wrong or missing in another layout than "plain" (contiguous rows), the vjp is called with
        "plain", too, to see if it ignores strides.
        """
        got = trial.gradients(case, g, shapes(expected), layout=layout)
        how, judged = self, got
        if layout != "plain" and not self._right(expected, got):
            judged = trial.gradients(case, g, shapes(expected))
            if got is not None and self._right(expected, judged):
                how, judged = self._replace(add_finding=partial(misread, level=self.name, layout=layout)), got
        how.judge(trial, case, expected, judged, g)

    def _right(self, expected, got):
        return got is not None and not any((np.nan_to_num(certified.ratios(array, expected[name])) > self.tolerance).any()
                                           for name, array in got.items())

    def judge(self, trial: Trial, case: Case, expected: BoundedArrays, got: Mapping[str, Array] | None,
             g: Mapping[str, Array] | None = None) -> None:
        """Add a finding to `trial` for each array in `got` that differs from `expected` by more than this level allows. The
        arrays are gradients if `g`, the gradients of the outputs, is set, else outputs. If the call failed, `got` is None, and
        nothing is added.
        """
        for name, array in (got or {}).items():
            difference = Difference(
                trial.reference, case, name if g is None else f"d{name}", expected[name], array, g, suspect_edges=trial.suspect_edges,
                siblings=partial(_siblings, trial, trial.probe_group, case, name) if g is None else tuple)
            trial.judge(self.name, [difference], self.add_finding, self.tolerance)


def shapes(numbers: BoundedArrays) -> dict[str, tuple[int, ...]]:
    """Return {name: shape} of the expected arrays in `numbers`."""
    return {name: number.value.shape for name, number in numbers.items()}


def _siblings(trial: Trial, probe_group: Sequence[Case], case: Case, name: str) -> tuple[Difference, ...]:
    """Call the function under test on each case of `probe_group`, the probes of one graph, except `case`. Return the output
    `name` of each call with its expected array as a Difference; () if a call fails or the check has stopped.
    """
    differences = []
    for other in probe_group:
        if other is not case:
            expected = probe.numbers(trial.reference, other)
            got = None if trial.stopped else trial.rerun(other, shapes(expected))
            if got is None:
                return ()
            differences.append(Difference(trial.reference, other, name, expected[name], got[name]))
    return tuple(differences)


# ---- findings of wrong answers


def not_exact(trial: Trial, difference: Difference, bad: Array) -> None:
    """Add a finding to `trial` for the elements of `difference` in the mask `bad`, which differ from their exact value. The
    verdict is IMPRECISE if sums in a lower precision explain the elements, else WRONG.
    """
    case, got, value = difference.case, difference.got, difference.expected.value
    if certified.imprecise(got, _lower(difference), bad) and (
            certified.coarse(case, got[bad], value[bad]) or not located(difference)):
        cause = f"{count_text(bad)}; sums in a lower precision would explain it"
        trial.add_finding(Verdict.IMPRECISE, "probe", difference, cause, bad)
    else:
        trial.add_finding(Verdict.WRONG, "probe", difference, count_text(bad), bad, CAUSE_SEARCHES)


def above_bound(trial: Trial, difference: Difference, bad: Array, level: str = "certified") -> None:
    """Add a finding to `trial` for the elements of `difference` in the mask `bad`, whose error is above its bound. The verdict is
    IMPRECISE if `level` is "certified" and the bounds of sums in a lower precision cover the elements, else WRONG.
    """
    times, verdict, worst = float(difference.ratio[bad].max()), Verdict.WRONG, bad
    cause = f"{times:.3g} times the bound; {int(bad.sum())} of {bad.size} elements are above it"
    if level == "certified":
        lower = _lower(difference)
        if certified.imprecise(difference.got, lower, bad):
            verdict, cause = Verdict.IMPRECISE, f"{cause}; sums in a lower precision would explain it"
        else:
            worst = bad & (np.nan_to_num(certified.ratios(difference.got, lower)) > 1)
    trial.add_finding(verdict, level, difference, cause, worst if worst.any() else bad,
                assumptions_alone)


def misread(trial: Trial, difference: Difference, bad: Array, level: str, layout: str) -> None:
    """Add a finding of `level` to `trial`: the vjp ignores strides. Its gradient is right for contiguous output gradients, and
    wrong for output gradients in the memory layout `layout`. `bad` is the mask of the wrong elements of `difference`.
    """
    cause = ("the strides of the incoming gradient are ignored: right for a gradient in contiguous rows, wrong for one "
             f"{call.GRADIENT_LAYOUTS.get(layout, 'that is one number with strides of 0, as of out.sum()')}")
    trial.add_finding(Verdict.WRONG, level, difference, cause, bad, support=2)


def _lower(difference: Difference) -> BoundedArray:
    """Return the expected array of `difference` with error bounds for sums in the next lower precision than the case promises,
    such as TF32 for float32.
    """
    return difference.evaluate(difference.case, certified.arithmetic(difference.case, lower=True))


# ---- level "repeat"


def repeat(trial: Trial, case: Case, n_threads: int | None = None) -> None:
    """Check that repeated calls on `case` give the same bits, and that one thread gives the same bits as `n_threads` threads
    (None: the largest thread pool of this process). The function, and then its vjp if there is one, is called once,
    `trial.repeats` times more, and once on one thread.
    """
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
    on_one_thread = asked(threads=1)
    if on_one_thread is None or not any(other_bits(first[name], on_one_thread[name]).any() for name in first.keys() & on_one_thread.keys()):
        trial.report.checked["repeat"] += len(first) * (on_one_thread is not None)
        return
    for before, threads in ((first, None), (on_one_thread, 1)):  # a race if the same number of threads differs again
        again = asked(threads=threads)
        if again is None or _differ(trial, case, before, again, g, Verdict.NONDETERMINISTIC, "the same call again"):
            return
    _differ(trial, case, first, on_one_thread, g, Verdict.THREADS, f"one thread in place of {n_threads}")


def _differ(trial: Trial, case: Case, first: Mapping[str, Array], again: Mapping[str, Array], g: Mapping[str, Array] | None,
            verdict: Verdict, text: str) -> bool:
    """Return True if the results of two calls, `first` and `again` by name, differ in a bit of an array. A finding with `verdict`
    and `text` is then added to `trial`. The arrays are outputs, or gradients if `g`, the gradients of the outputs, is not None.
    """
    trial.report.checked["repeat"] += len(first)
    for name in first.keys() & again.keys():
        differ = other_bits(first[name], again[name])
        if differ.any():
            output, before = name if g is None else f"d{name}", BoundedArray(first[name], None)
            difference = Difference(trial.reference, case, output, before, again[name], g)
            trial.add_finding(verdict, "repeat", difference, f"{text}: {count_text(differ)}", differ)
            return True
    return False


def other_bits(a: Array, b: Array) -> Array:
    """Return a mask of the elements that differ in a bit between the arrays a and b, of the same shape and dtype; two NaN count
    as equal.
    """
    bits = f"u{a.dtype.itemsize}"
    return (np.ascontiguousarray(a).view(bits) != np.ascontiguousarray(b).view(bits)) & ~(np.isnan(a) & np.isnan(b))


# ---- the table of levels


def _random(reference, case, seed):
    return reference.cotangents(case, "random", seed)


def _outputs(reference, case):
    return reference.outputs(case, certified.arithmetic(case))


def _gradients(reference, case, g):
    return reference.gradients(case, g, certified.arithmetic(case))


PROBE = Level("probe", 0.0, not_exact, probe.cotangents, probe.numbers, probe.gradient_numbers)
CERTIFIED = Level("certified", 1.0, above_bound, _random, _outputs, _gradients)
LEVEL_CHECKS: dict[str, Callable[[Trial, Case], None]] = {"probe": PROBE.check_case, "certified": CERTIFIED.check_case, "repeat": repeat,
                                                    "invariants": invariants.check_case}
