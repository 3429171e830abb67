"""The oracle checks itself: its references against `loops`, its bounds, its corpus against the published hashes."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from sarlite.oracle import corpus, inputs, loops
from sarlite.oracle.check_report import Report
from sarlite.oracle.choices import SUMS
from sarlite.oracle.finding import Finding, Verdict
from sarlite.oracle.formats import rounded
from sarlite.oracle.levels import CERTIFIED
from sarlite.oracle.reference import Reference
from sarlite.oracle.trial import trying

WIDTH = 3


def _outputs(case):
    return loops.outputs(case, once=True)


def selfcheck(references: Sequence[Reference], most_edges: int = 12, *, graphs: str | Sequence[str] = "*",
              dtypes: Sequence[str] = SUMS, outputs: Callable[..., Any] = _outputs,
              digest: Callable[..., str] = corpus.digest) -> Report:
    """Return where the references or their bounds disagree with `loops`, or the corpus with what was published.

    Parameters
    ----------
    references : sequence of Reference
        Operations that `loops` knows.
    most_edges : int
        Of the graphs that both compute on; `loops` takes one number after the other, in fractions where an operation is
        rational, and rounds once. On larger graphs of level "ci" the references' own values, rounded once, are held
        against their bounds.
    graphs : str or sequence of str
        Patterns (fnmatch) of the names of graphs.
    outputs : (case) -> {name: array}
        The second computation.
    digest : (edges) -> str
        The hash that is held against the published one.
    """
    report = Report(f"the oracle itself, {len(references)} operations, {', '.join(dtypes)}")
    entries = corpus.named(corpus.corpus("all"), graphs)
    small = {entry.name for entry in corpus.corpus("ci")}
    for reference in references:
        with trying(report, outputs, _gradients, reference, 600.0) as trial:
            for entry in entries:
                apart = entry.published["n_edges"] <= most_edges
                for dtype in dtypes if apart or entry.name in small else ():
                    _compare(trial, entry, dtype, apart)
    for entry in entries:
        report.checked["corpus"] += 1
        if digest(entry.edges) != entry.published["sha256"]:
            other = "the graph is not the one that was published"
            report.findings.append(Finding(Verdict.WRONG, "corpus", None, entry.name, other))
    return report


def _compare(trial, entry, dtype, apart):
    """One graph: against the second computation, or, not `apart`, the reference's own values against their bounds."""
    entry = replace(entry, width=min(entry.width, WIDTH)) if apart else entry
    for case in inputs.cases(trial.reference, entry, ["certified"], trial.report, dtype=dtype)[1]:
        CERTIFIED.ask(trial, case) if apart else _own(trial, case)


def _own(trial, case):
    reference = trial.reference
    g = CERTIFIED.cotangents(reference, case, trial.seed)
    for numbers, by in ((CERTIFIED.outputs(reference, case), None), (CERTIFIED.gradients(reference, case, g), g)):
        once = {name: rounded(number.value, case.format) for name, number in numbers.items()}
        CERTIFIED.hold(trial, case, numbers, once, by)


def _gradients(case, g):
    return loops.gradients(case, g if isinstance(g, dict) else {"out": g}, once=True)
