"""`Trial`: one function under test with its reference; it calls the function, and reports wrong results as findings."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from itertools import count
from typing import Any, TypeVar

import numpy as np

from sarlite.oracle import call
from sarlite.oracle.case import Case, Convert, Vjp
from sarlite.oracle.check_report import Report
from sarlite.oracle.diagnose import NOTHING, Cause, CauseSearch, causes
from sarlite.oracle.difference import Difference
from sarlite.oracle.finding import Edges, Finding, Verdict
from sarlite.oracle.reference import Reference
from sarlite.types import Array

BEST_N_EDGES = 200  # a graph of about this many edges tells causes apart best
MIN_TELLING_EDGES = 8  # many causes explain a case of fewer edges
MAX_CASES = 5  # findings of one verdict, level and output that keep their case and get a search for the cause
Result = TypeVar("Result")


@dataclass(eq=False)
class Trial:
    """Caller of one function under test, for all levels of a check: it runs the function in a thread, compares results with the
    reference, and collects wrong results as findings of a report.

    Every comparison is counted in `report`, and every wrong result becomes a finding of `report`.

    Attributes
    ----------
    run, vjp, reference, seed, expected_failures, allow, convert, repeats
        Arguments of `check`.
    report : Report
    worker : Worker
        Thread that calls the function under test.
    cotangents : dict of str to array, optional
        Gradient of each output if a saved case is checked again; otherwise each level makes its own.
    every_layout : bool
        True if each gradient is asked in all layouts of cotangents, False if in one layout after the other.
    suspect_edges : tuple of (src, dst)
        Edges that the saved finding of the case at hand names.
    probe_group : sequence of Case
        Probes of the graph at hand, which share a code of row numbers.
    stopped : bool
        True once a call has not returned.
    """

    run: Callable[..., object]
    vjp: Vjp | None
    reference: Reference
    report: Report
    worker: call.Worker
    seed: int = 0
    expected_failures: Sequence[str] = ()
    allow: Sequence[str] = ()
    convert: Convert | None = None
    cotangents: Mapping[str, Array] | None = None
    every_layout: bool = False
    repeats: int = 1
    suspect_edges: Edges = ()
    probe_group: Sequence[Case] = ()
    stopped: bool = False
    _layouts: list[str] = field(default_factory=lambda: list(call.GRADIENT_LAYOUTS))
    _n_asked: Iterator[int] = field(default_factory=count)
    _unexplained: dict[int, tuple[Difference, Sequence[CauseSearch]]] = field(default_factory=dict)  # by finding's number

    # ---- calls

    def outputs(self, case: Case, shapes: Mapping[str, tuple[int, ...]], layout: str = "plain",
                threads: int | None = None) -> dict[str, Array] | None:
        """Call the function under test once on `case`, with inputs in a memory layout and `threads` BLAS threads (None: all);
        return outputs by name, or None if the call fails. A failure becomes a finding. `shapes` are the expected shapes.
        """
        return self.attempt(case, lambda converted: call.outputs(self.worker, self.run, converted, shapes, layout, threads),
                          "" if layout == "plain" else f"{layout} arrays")

    def gradients(self, case: Case, cotangents: Mapping[str, Array], shapes: Mapping[str, tuple[int, ...]],
                  threads: int | None = None, layout: str = "plain") -> dict[str, Array] | None:
        """Call the vjp once on `case`, with `cotangents`, the gradients of the outputs, in a memory layout and with `threads`
        BLAS threads (None: all). Return gradients by name, or None if the call fails, which becomes a finding. `shapes` are the
        expected shapes.

        A gradient that the vjp does not return is reported as not covered.
        """
        vjp = self.vjp
        assert vjp is not None
        got = self.attempt(
            case, lambda converted: call.gradients(self.worker, vjp, converted, cotangents, shapes, threads, layout),
            "" if layout == "plain" else f"{layout} gradients")
        if got is not None:
            for name in shapes.keys() - got.keys():
                self.report.skip(f"the gradient of {name}, which vjp does not return", case.name)
        if got is None and layout in self._layouts[1:]:
            self._layouts.remove(layout)  # the refusal is in the report
        return got

    def layouts(self) -> list[str]:
        """Return the memory layouts (see `call.GRADIENT_LAYOUTS`) of the output gradients that the next call of the vjp gets: all
        layouts if `every_layout`, else one, in turn.

        Layouts that the function under test refused are left out.
        """
        return list(self._layouts) if self.every_layout else [self._layouts[next(self._n_asked) % len(self._layouts)]]

    def attempt(self, case: Case, function: Callable[[Case], Result], refusable_layout: str = "") -> Result | None:
        """Return `function(case)`, with the case's arrays converted for the function under test; if the call fails, add a finding
        and return None. If the arrays are in a `refusable_layout`, such as "strided arrays", an exception declines the case, which
        then counts as not covered.

        Parameters
        ----------
        case : Case
        function : (Case) -> T
            Calls the function under test.
        refusable_layout : str
            Layout of the arrays if it is one that a function may refuse, such as "strided arrays".

        Raises
        ------
        CheckStopped
            The call did not return within the time limit.
        """
        before = self.worker.overwritten
        try:
            return function(self._converted(case))
        except call.CallFailure as failure:
            verdict, cause, raised = failure.verdict, failure.cause, failure.cause.startswith("raised")
            refuses = self.reference.refuses(case)
            if raised and refuses:
                self.report.skip("cases that the dialect refuses, as the function does", f"{case.name}: {refuses}")
                return None
            if raised and refusable_layout:
                verdict, cause = Verdict.UNSUPPORTED, f"{refusable_layout}: {cause}"
            self.record(Finding(verdict, "call", case, failure.output, cause, trace=failure.trace))
            if verdict is Verdict.UNSUPPORTED:
                self.report.skip("cases that the function refuses", f"{case.name}: {cause}")
            if failure.hangs:
                self.stopped = True
                raise CheckStopped from failure
            return None
        finally:
            if self.worker.overwritten and not before:
                self.record(Finding(Verdict.WRONG, "call", case, "", "wrote to the result of an earlier call: the result "
                                 "is memory that the function uses again", support=1))

    def rerun(self, case: Case, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Array] | None:
        """Call the function under test again on a case; return its outputs by name, of the expected `shapes`, or None if the call
        fails. A failure is not reported.
        """
        try:
            return call.outputs(self.worker, self.run, self._converted(case), shapes)
        except call.CallFailure:
            return None

    def _converted(self, case):
        return case if self.convert is None else replace(case, convert=self.convert)

    # ---- verdicts

    def judge(self, level: str, differences: Sequence[Difference], add_finding: FindingRule, tolerance: float = 1.0) -> bool:
        """Compare each result in `differences` with its expected array. For the first result with an error above `tolerance`
        times its bound, call `add_finding` and return True; if there is none, return False. The report counts one comparison at
        `level`.

        Parameters
        ----------
        level : str
        differences : sequence of Difference
            One difference, or one for each rank.
        add_finding : (trial, difference, mask) -> None
            Adds a finding for the wrong elements of the first difference that has some.
        tolerance : float
            Largest error over its bound that is right. It is 0 for level "probe", whose bounds are 0 or Inf.

        Returns
        -------
        bool
            True if an element is wrong.
        """
        report, first = self.report, differences[0]
        undecided = sum(int(np.isnan(d.ratio).sum()) for d in differences)
        if not undecided or undecided < sum(d.ratio.size for d in differences):  # nothing is compared if every element is undecided
            report.checked[level] += 1
        reason = "elements that no bound decides" if tolerance else "elements that no probe decides"
        report.skip(reason, f"{first.case.name}, {first.output}", undecided)
        if tolerance:
            ratios = (np.nan_to_num(d.ratio, posinf=np.inf).max(initial=0) for d in differences)
            report.ratio = max(report.ratio, *map(float, ratios))
        for difference in differences:
            bad = difference.above(tolerance)
            if bad.any():
                add_finding(self, difference, bad)
                return True
        return False

    def add_finding(self, verdict: Verdict, level: str, difference: Difference, cause: str, bad: Array,
              searches: Sequence[CauseSearch] = (), **fields: Any) -> None:
        """Add a finding of `verdict` and `level` at the first wrong element of `difference`; the mask `bad` marks the wrong
        elements. The finding has the cause `cause`, unless `searches`, which run after the last case, find a better one. `fields`
        set further fields of the Finding.
        """
        index = np.unravel_index(np.flatnonzero(bad)[0], bad.shape)
        row, column = _row_and_column(index, bad.shape)
        expected, error, got = difference.expected.value, difference.expected.error, difference.got
        bound = None if error is None else float(np.broadcast_to(error, got.shape)[index])
        place = {self._row_kind(difference): row, "column": column, "expected": float(expected[index]),
                 "got": float(got[index]), "bound": bound, "evidence": difference.evidence, **fields}
        self.record(Finding(verdict, level, difference.case, difference.output, cause, **place), difference, searches)

    def _row_kind(self, difference: Difference) -> str:
        """Return the word that messages use for a row of an output or gradient: "node", "edge", or "row" for a parameter."""
        by = self.reference.outputs_by if difference.cotangents is None else self.reference.arrays_by
        name = difference.output if difference.cotangents is None else difference.output[1:]
        return {"edge": "edge", "whole": "row"}.get(by.get(name, "whole"), "node")

    def record(self, finding: Finding, difference: Difference | None = None, searches: Sequence[CauseSearch] = ()) -> None:
        """Add `finding` to the report's findings. If the caller allows its verdict, or expects failures of its case, add it to the
        report's expected failures instead. `searches` look for the cause of `difference` after the last case.

        Of more than MAX_CASES findings of the same verdict, level and output, the least informative keeps only its
        case's name.
        """
        name = finding.case_name
        if finding.verdict.name in self.allow or any(fnmatchcase(name, each) for each in self.expected_failures):
            self.report.expected.append(replace(finding, case=name, evidence=None))
            return
        findings = self.report.findings
        findings.append(finding)
        if difference is not None:
            self._unexplained[len(findings) - 1] = difference, searches
        alike = [k for k, f in enumerate(findings) if (f.verdict, f.output, f.level) ==
                 (finding.verdict, finding.output, finding.level) and isinstance(f.case, Case)]
        if len(alike) > MAX_CASES:
            least = max(alike, key=lambda k: (_remoteness(findings[k].case), k))
            self._unexplained.pop(least, None)
            findings[least] = replace(findings[least], case=findings[least].case_name, evidence=None)

    # ---- causes

    def explain(self) -> None:
        """Search for the cause of each finding whose arrays are still held, and write the cause into the finding. A cause that is
        an assumption must also explain another case's finding.
        """
        by_output: dict[str, list[int]] = defaultdict(list)
        for k, (difference, _) in self._unexplained.items():
            by_output[difference.output].append(k)
        for places in by_output.values():
            self._explain(sorted(places, key=lambda k: _remoteness(self._unexplained[k][0].case)))
        self._unexplained.clear()

    def _explain(self, places):
        findings, confirmed = self.report.findings, []
        for k in places:
            difference, searches = self._unexplained[k]
            others = [other for other, _ in (self._unexplained[at] for at in places)
                      if other.case.edges is not difference.case.edges]
            cause = next((cause for cause in confirmed if cause.fits(difference)), None)
            if cause is None and searches:
                cause = _cause(difference, searches, others)
                confirmed += [cause] * (cause is not None and cause.support == 2)
            if cause is not None:
                findings[k] = replace(findings[k], cause=cause.text, edges=cause.edges, support=cause.support)
            elif searches:
                findings[k] = replace(findings[k], cause=f"{findings[k].cause}; {NOTHING} that a second case confirms")


FindingRule = Callable[[Trial, Difference, Array], None]


def _cause(difference: Difference, searches: Sequence[CauseSearch], others: Sequence[Difference]) -> Cause | None:
    """Search for the cause of `difference` with each function in `searches`. Return the first cause that needs no confirmation, or
    that a difference of another case, in `others`, confirms; None if there is no such cause.
    """
    for cause in causes(difference, searches):
        if cause.confirms is None:
            return cause
        if any(cause.fits(other) for other in others if _can_discriminate(difference.case, other.case)):
            return cause._replace(support=2)
    return None


def _can_discriminate(case: Case, other: Case) -> bool:
    """Return True if the case `other` can confirm a cause that was determined on `case`. Both cases need edges, and one of them
    at least 8, since many different causes explain a wrong result on fewer edges.
    """
    return min(case.n_edges, other.n_edges) > 0 and max(case.n_edges, other.n_edges) >= MIN_TELLING_EDGES


def _remoteness(case: Any) -> float:
    """Return |log(number of edges / 200)| of a case, which is small for cases of about 200 edges, as these tell causes apart best."""
    return abs(np.log((case.n_edges + 1) / BEST_N_EDGES))


def count_text(bad: Array, where: str = "") -> str:
    """Return a text such as "3 of 34 elements differ", with the number of True elements of the mask `bad`; `where` is inserted
    before "differ".
    """
    return f"{int(bad.sum())} of {bad.size} elements{where} differ"


def _row_and_column(index: Sequence[Any], shape: tuple[int, ...]) -> tuple[int | None, int | None]:
    """Return (row, column) of the element at `index` of an array; all axes after the first are flattened to columns, and a
    missing axis gives None.
    """
    if not shape:
        return None, None
    return int(index[0]), int(np.ravel_multi_index(index[1:], shape[1:])) if len(shape) > 1 else None


@contextmanager
def trying(report: Report, run: Callable[..., object], vjp: Vjp | None, reference: Reference, seconds: float, **options: Any
           ) -> Iterator[Trial]:
    """Return a context manager that yields a Trial of the functions `run` and `vjp`, and searches for the causes of its findings
    at the end. A call of more than `seconds` ends the block, and `report` counts the remaining cases as not covered. `options`
    are further fields of Trial.
    """
    worker = call.Worker(seconds)
    trial = Trial(run, vjp, reference, report, worker, **options)
    try:
        yield trial
    except CheckStopped:
        report.skip("what comes after a call that did not return")
    finally:
        worker.close()
    trial.explain()
    worker.close()


class CheckStopped(Exception):
    """Exception that ends a check because a call did not return within the time limit."""

