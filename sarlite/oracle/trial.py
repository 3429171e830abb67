"""One function under test, the reference that its results are compared with, and the report of both."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from itertools import count
from typing import Any

import numpy as np

from sarlite.oracle import call
from sarlite.oracle.case import Case
from sarlite.oracle.check_report import Report
from sarlite.oracle.difference import Difference
from sarlite.oracle.explain import NOTHING, Cause, Look, causes
from sarlite.oracle.finding import Finding, Verdict
from sarlite.types import Array

TELLING = 200  # edges of the graph on which a cause is told apart from others best
FEW = 8  # edges up to which many causes explain a case
KEPT = 5  # findings of a verdict, a level and an output that keep their case, and are searched for a cause


@dataclass(eq=False)
class Trial:
    """State that all levels share: every finding and every comparison goes into the report.

    `run`, `vjp`, `seed`, `expected_failures`, `allow`, `convert` and `repeats` are the arguments of `check`.
    """

    run: Callable
    vjp: Callable | None
    reference: Any
    report: Report
    worker: call.Worker
    seed: int = 0
    expected_failures: Sequence[str] = ()
    allow: Sequence[str] = ()
    convert: Callable[[Array], Any] | None = None
    # gradient of each output where one case is looked at again; otherwise each level makes its own
    cotangents: Mapping[str, Array] | None = None
    every_layout: bool = False  # True if a gradient is asked in all layouts, not in one after another
    repeats: int = 1
    named: tuple = ()  # (src, dst) of edges that were found in the one case at hand before
    together: Sequence[Case] = ()  # probes of the graph at hand, which share a code
    stopped: bool = False  # True once a call has not returned
    _layouts: list[str] = field(default_factory=lambda: list(call.GRADIENT_LAYOUTS))
    _asked: Iterator[int] = field(default_factory=count)
    _open: dict[int, tuple[Difference, Sequence[Look]]] = field(default_factory=dict)  # by place in report.findings

    # ---- calls

    def outputs(self, case: Case, shapes: Mapping[str, tuple[int, ...]], layout: str = "plain",
                threads: int | None = None) -> dict[str, Array] | None:
        """Return the outputs of one call; None, with a finding, if they cannot be compared."""
        return self.noted(case, lambda given: call.outputs(self.worker, self.run, given, shapes, layout, threads),
                          "" if layout == "plain" else f"{layout} arrays")

    def gradients(self, case: Case, cotangents: Mapping[str, Array], shapes: Mapping[str, tuple[int, ...]],
                  threads: int | None = None, layout: str = "plain") -> dict[str, Array] | None:
        """Return the gradients of one call; gradients that the call leaves out count as not covered."""
        vjp = self.vjp
        assert vjp is not None
        got = self.noted(
            case, lambda given: call.gradients(self.worker, vjp, given, cotangents, shapes, threads, layout),
            "" if layout == "plain" else f"{layout} gradients")
        for name in shapes if got is not None else ():
            if name not in got:
                self.report.skip(f"the gradient of {name}, which vjp does not return", case.name)
        if got is None and layout in self._layouts[1:]:
            self._layouts.remove(layout)  # refused once, and told
        return got

    def layouts(self) -> list[str]:
        """Return the layouts of the next gradient that is asked: one that is not refused, in turn, or all."""
        return list(self._layouts) if self.every_layout else [self._layouts[next(self._asked) % len(self._layouts)]]

    def noted(self, case: Case, function: Callable[[Case], Any], layout: str = "") -> Any:
        """Return `function(case)` with the case as the function under test gets it.

        Where that fails, return None, with a finding or counted as not covered. `layout` names arrays that a function
        may refuse.
        """
        before = self.worker.overwritten
        try:
            return function(self._given(case))
        except call.Failure as failure:
            verdict, cause, raised = failure.verdict, failure.cause, failure.cause.startswith("raised")
            refuses = getattr(self.reference, "refuses", lambda case: None)(case)
            if raised and refuses:
                self.report.skip("cases that the dialect refuses, as the function does", f"{case.name}: {refuses}")
                return None
            if raised and layout:
                verdict, cause = Verdict.UNSUPPORTED, f"{layout}: {cause}"
            self.add(Finding(verdict, "call", case, failure.output, cause, trace=failure.trace))
            if verdict is Verdict.UNSUPPORTED:
                self.report.skip("cases that the function refuses", f"{case.name}: {cause}")
            if failure.hangs:
                self.stopped = True
                raise Stop from failure
            return None
        finally:
            if self.worker.overwritten and not before:
                self.add(Finding(Verdict.WRONG, "call", case, "", "wrote to the result of an earlier call: the result "
                                 "is memory that the function uses again", support=1))

    def quietly(self, case: Case, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Array] | None:
        """Return the outputs of one more call of a case that was judged before, or None."""
        try:
            return call.outputs(self.worker, self.run, self._given(case), shapes)
        except call.Failure:
            return None

    def _given(self, case):
        return case if self.convert is None else replace(case, convert=self.convert)

    # ---- verdicts

    def judge(self, level: str, asked: Sequence[Difference], found: Found, most: float = 1.0) -> bool:
        """Compare one output, or one gradient, with its reference; return True if the array is wrong.

        `asked` is one difference, or of a run on several ranks one a rank. The first that has wrong elements is passed
        to `found`, which adds a finding. `most` is the largest error over its bound that is right; it is 0 of level
        "probe", where bounds are 0 or Inf.
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
            bad = difference.above(most)
            if bad.any():
                found(self, difference, bad)
                return True
        return False

    def found(self, verdict: Verdict, level: str, difference: Difference, cause: str, bad: Array,
              looks: Sequence[Look] = (), **fields: Any) -> None:
        """Add a finding whose place is the first element of `bad`; `fields` add to its fields, or replace them.

        `looks` search for the cause once all cases are through; `cause` stands where they find none.
        """
        index = np.unravel_index(np.flatnonzero(bad)[0], bad.shape)
        row, column = _place(index, bad.shape)
        expected, error, got = difference.expected.value, difference.expected.error, difference.got
        bound = None if error is None else float(np.broadcast_to(error, got.shape)[index])
        place = {self._place_of(difference): row, "column": column, "expected": float(expected[index]),
                 "got": float(got[index]), "bound": bound, "evidence": difference.evidence, **fields}
        self.add(Finding(verdict, level, difference.case, difference.output, cause, **place), difference, looks)

    def _place_of(self, difference):
        """Return the kind of a row of an output or of a gradient: a node, an edge, or a row of a parameter."""
        by = self.reference.outputs_by if difference.cotangents is None else self.reference.arrays_by
        name = difference.output if difference.cotangents is None else difference.output[1:]
        return {"edge": "edge", "whole": "row"}.get(by.get(name, "whole"), "node")

    def add(self, finding: Finding, difference: Difference | None = None, looks: Sequence[Look] = ()) -> None:
        """Add a finding; the least telling of more than KEPT of its kind loses its case."""
        name = finding.case_name
        if finding.verdict.name in self.allow or any(fnmatchcase(name, each) for each in self.expected_failures):
            self.report.expected.append(replace(finding, case=name, evidence=None))
            return
        findings = self.report.findings
        findings.append(finding)
        if difference is not None:
            self._open[len(findings) - 1] = difference, looks
        alike = [k for k, f in enumerate(findings) if (f.verdict, f.output, f.level) ==
                 (finding.verdict, finding.output, finding.level) and isinstance(f.case, Case)]
        if len(alike) > KEPT:
            least = max(alike, key=lambda k: (_remoteness(findings[k].case), k))
            self._open.pop(least, None)
            findings[least] = replace(findings[least], case=findings[least].case.name, evidence=None)

    # ---- causes

    def explain(self) -> None:
        """Look for the cause of the most telling findings of each output; other cases confirm or refute causes."""
        by_output: dict[str, list[int]] = defaultdict(list)
        for k, (difference, _) in self._open.items():
            by_output[difference.output].append(k)
        for places in by_output.values():
            self._explain(sorted(places, key=lambda k: _remoteness(self._open[k][0].case)))
        self._open.clear()

    def _explain(self, places):
        findings, confirmed = self.report.findings, []
        for k in places:
            difference, looks = self._open[k]
            others = [other for other, _ in (self._open[at] for at in places)
                      if other.case.edges is not difference.case.edges]
            known = next((cause for cause in confirmed if cause.fits(difference)), None)
            if known is None and looks:
                known = _cause(difference, looks, others)
                confirmed += [known] * (known is not None and known.support == 2)
            if known is not None:
                findings[k] = replace(findings[k], cause=known.text, edges=known.edges, support=known.support)
            elif looks:
                findings[k] = replace(findings[k], cause=f"{findings[k].cause}; {NOTHING} that a second case confirms")


Found = Callable[[Trial, Difference, Array], None]


def _cause(difference: Difference, looks: Sequence[Look], others: Sequence[Difference]) -> Cause | None:
    """Return the first cause that is no mere assumption, or that another case confirms; None if there is none."""
    for cause in causes(difference, looks):
        if cause.confirms is None:
            return cause
        if any(cause.fits(other) for other in others if _tell(difference.case, other.case)):
            return cause._replace(support=2)
    return None


def _tell(one, other):
    """Return True if two cases have the edges to tell causes apart: some each, and one of them more than a few."""
    return min(one.n_edges, other.n_edges) > 0 and max(one.n_edges, other.n_edges) >= FEW


def _remoteness(case):
    """Return how far the number of edges of a case is from the number that tells causes apart best."""
    return abs(np.log((case.n_edges + 1) / TELLING))


def counted(bad: Array, where: str = "") -> str:
    """Return how many elements differ, as a cause."""
    return f"{int(bad.sum())} of {bad.size} elements{where} differ"


def _place(index, shape):
    """Return the row and the column, flat, of an element."""
    if not shape:
        return None, None
    return int(index[0]), int(np.ravel_multi_index(index[1:], shape[1:])) if len(shape) > 1 else None


@contextmanager
def trying(report: Report, run: Callable, vjp: Callable | None, reference: Any, seconds: float, **options: Any
           ) -> Iterator[Trial]:
    """Give a trial, made with `options`, whose calls may take `seconds` each.

    A call that does not return ends the block; the rest is not covered. Causes are looked for at the end.
    """
    worker = call.Worker(seconds)
    trial = Trial(run, vjp, reference, report, worker, **options)
    try:
        yield trial
    except Stop:
        report.skip("what comes after a call that did not return")
    finally:
        worker.close()
    trial.explain()
    worker.close()


class Stop(Exception):
    """A call has not returned: nothing more can be asked."""

