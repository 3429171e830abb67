"""One function under test, the reference that it is held against, and the report that grows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Any

import numpy as np

from sarlite.oracle import call
from sarlite.oracle.assumptions import Assumed, confirmed
from sarlite.oracle.case import Case
from sarlite.oracle.check_report import Report
from sarlite.oracle.difference import Difference, of_saved
from sarlite.oracle.explain import LOOKS, Cause, Look, cause_of
from sarlite.oracle.finding import Finding, Verdict
from sarlite.types import Array

TELLING = 200  # edges of the graph on which a cause is told apart from others best
KEPT = 20  # findings that keep their case; of the others, but the first of a verdict, the name is left


@dataclass(eq=False)
class Trial:
    """What the levels share: every finding and every comparison goes into the report.

    `run`, `vjp`, `seed`, `expected_failures`, `convert` and `repeats` are as `check` takes them.
    """

    run: Callable
    vjp: Callable | None
    reference: Any
    report: Report
    worker: call.Worker
    seed: int = 0
    expected_failures: Sequence[str] = ()
    convert: Callable[[Array], Any] | None = None
    # by which gradients are asked, where one case is looked at again; else each level makes its own
    cotangents: Mapping[str, Array] | None = None
    repeats: int = 1
    named: tuple = ()  # (src, dst) of edges that were found in the one case at hand before
    explanations: int = 4  # findings whose cause is still looked for; a function that is wrong everywhere has many
    together: Sequence[Case] = ()  # the probes of the graph at hand, that share a code

    # ---- calls

    def outputs(self, case: Case, shapes: Mapping[str, tuple[int, ...]], layout: str = "plain",
                threads: int | None = None) -> dict[str, Array] | None:
        """Return the outputs of one call; None, with a finding, where there are none that can be compared."""
        return self.noted(case, lambda given: call.outputs(self.worker, self.run, given, shapes, layout, threads),
                          layout)

    def gradients(self, case: Case, cotangents: Mapping[str, Array], shapes: Mapping[str, tuple[int, ...]],
                  threads: int | None = None) -> dict[str, Array] | None:
        """Return the gradients of one call; gradients that the call leaves out count as not covered."""
        vjp = self.vjp
        assert vjp is not None
        found = self.noted(case, lambda given: call.gradients(self.worker, vjp, given, cotangents, shapes, threads))
        for name in shapes if found is not None else ():
            if name not in found:
                self.report.skip(f"the gradient of {name}, which vjp does not return", case.name)
        return found

    def noted(self, case: Case, function: Callable[[Case], Any], layout: str = "plain") -> Any:
        """Return what `function` makes of the case as it is given.

        None where that fails, with a finding or counted as not covered.
        """
        try:
            return function(self._given(case))
        except call.Failure as failure:
            verdict, cause, raised = failure.verdict, failure.cause, failure.cause.startswith("raised")
            refuses = getattr(self.reference, "refuses", lambda case: None)(case)
            if raised and refuses:
                self.report.skip("cases that the dialect refuses, as the function does", f"{case.name}: {refuses}")
                return None
            if raised and layout != "plain":  # to refuse a layout is right, and told
                verdict, cause = Verdict.UNSUPPORTED, f"{layout} arrays: {cause}"
            self.add(Finding(verdict, "call", case, failure.output, cause, trace=failure.trace))
            if verdict is Verdict.UNSUPPORTED:
                self.report.skip("cases that the function refuses", f"{case.name}: {cause}")
            if failure.hangs:
                raise Stop from failure
            return None

    def quietly(self, case: Case, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Array] | None:
        """Return the outputs of one call more of a case that was looked at, or None."""
        try:
            return call.outputs(self.worker, self.run, self._given(case), shapes)
        except call.Failure:
            return None

    def _given(self, case):
        return case if self.convert is None else replace(case, convert=self.convert)

    # ---- verdicts

    def judge(self, level: str, asked: Sequence[Difference], found: Found, most: float = 1.0) -> bool:
        """Hold one output, or one gradient, against its reference; return whether it is wrong.

        `asked` is one difference; of a run on several ranks one a rank. The first that has wrong elements is told to
        `found`, which adds a finding. `most` is the largest error over its bound that is right; 0 of level "probe",
        where bounds are 0 or Inf.
        """
        report, first = self.report, asked[0]
        undecided = sum(int(np.isnan(d.ratio).sum()) for d in asked)
        if not undecided or undecided < sum(d.ratio.size for d in asked):  # else nothing was compared
            report.checked[level] += 1
        reason = "elements that no bound decides" if most else "elements that no probe decides"
        report.skip(reason, f"{first.case.name}, {first.output}", undecided)
        if most:
            ratios = (np.nan_to_num(d.ratio, posinf=np.inf).max(initial=0) for d in asked)
            report.ratio = max(report.ratio, *map(float, ratios))
        for difference in asked:
            bad = np.nan_to_num(difference.ratio) > most
            if bad.any():
                found(self, difference, bad)
                return True
        return False

    def explained(self, difference: Difference, bad: Array, looks: Sequence[Look] = LOOKS, where: str = "") -> Cause:
        """Return the probable cause and its edges; of findings after the first few how many elements differ."""
        self.explanations -= 1
        return cause_of(difference, looks) if self.explanations >= 0 else (counted(bad, where), ())

    def found(self, verdict: Verdict, level: str, difference: Difference, cause: str, bad: Array, **fields: Any
              ) -> None:
        """Add a finding whose place is the first element of `bad`; `fields` add to its fields, or replace them."""
        index = np.unravel_index(np.flatnonzero(bad)[0], bad.shape)
        row, column = _place(index, bad.shape)
        expected, error, got = difference.expected.value, difference.expected.error, difference.got
        bound = None if error is None else float(np.broadcast_to(error, got.shape)[index])
        found = {self._place_of(difference): row, "column": column, "expected": float(expected[index]),
                 "got": float(got[index]), "bound": bound, "evidence": difference.evidence, **fields}
        self.add(Finding(verdict, level, difference.case, difference.output, cause, **found))

    def _place_of(self, difference):
        """What a row of an output, or of a gradient, is: a node, an edge, or a row of a parameter."""
        by = self.reference.outputs_by if difference.cotangents is None else self.reference.arrays_by
        name = difference.output if difference.cotangents is None else difference.output[1:]
        return {"edge": "edge", "whole": "row"}.get(by.get(name, "whole"), "node")

    def add(self, finding: Finding) -> None:
        name = getattr(finding.case, "name", "")
        known = {other.verdict for other in self.report.findings}
        if len(self.report.findings) >= KEPT and finding.verdict in known:
            finding = replace(finding, case=name, evidence=None)
        expected = any(fnmatchcase(name, pattern) for pattern in self.expected_failures)
        (self.report.expected if expected else self.report.findings).append(finding)

    # ---- causes that a second case may refute

    def confirm(self) -> None:
        """Keep of assumed causes those that explain a second case, on another graph, too."""
        for k, finding in enumerate(self.report.findings):
            if isinstance(finding.cause, Assumed):
                cause = self._confirmed(finding) or "no single cause found that a second case confirms"
                self.report.findings[k] = replace(finding, cause=cause)

    def _confirmed(self, finding):
        """The assumption that explains the two most telling cases of an output, or None."""
        like = sorted((f for f in self.report.findings if f.output == finding.output and f.evidence is not None),
                      key=lambda f: abs(np.log((f.case.n_edges + 1) / TELLING)))
        other = next((f for f in like[1:] if f.case.edges is not like[0].case.edges), None)
        if other is None:
            return None
        return confirmed(*(of_saved(self.reference, f.evidence, f.output) for f in (like[0], other)))


Found = Callable[[Trial, Difference, Array], None]


def counted(bad: Array, where: str = "") -> str:
    """Return how many elements differ, as a cause."""
    return f"{int(bad.sum())} of {bad.size} elements{where} differ"


def _place(index, shape):
    """The row and the column, flat, of an element."""
    if not shape:
        return None, None
    return int(index[0]), int(np.ravel_multi_index(index[1:], shape[1:])) if len(shape) > 1 else None


@contextmanager
def trying(report: Report, run: Callable, vjp: Callable | None, reference: Any, seconds: float, **options: Any
           ) -> Iterator[Trial]:
    """Give a trial, made with `options`, whose calls may take so many seconds.

    A call that hangs ends the block; the rest is not covered.
    """
    worker = call.Worker(seconds)
    trial = Trial(run, vjp, reference, report, worker, **options)
    try:
        yield trial
    except Stop:
        report.skip("what comes after a call that did not return")
    finally:
        worker.close()
    trial.confirm()


class Stop(Exception):
    """The function hangs: nothing more can be asked."""
