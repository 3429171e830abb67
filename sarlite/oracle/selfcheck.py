"""The oracle checks itself: its references against a second one in plain Python, its corpus against the published hashes."""

from collections.abc import Sequence

import numpy as np

from sarlite.errors import ShapeError
from sarlite.oracle import call, certified, loops
from sarlite.oracle.corpus import corpus, digest
from sarlite.oracle.finding import Finding, Verdict
from sarlite.oracle.reference import Reference
from sarlite.oracle.report import Report
from sarlite.oracle.trial import Trial

WIDTH = 3


def selfcheck(references: Sequence[Reference], most_edges: int = 12) -> Report:
    """Return where the references disagree with `loops`, or the corpus with what was published.

    Parameters
    ----------
    references : sequence of Reference
        Operations that `loops` knows.
    most_edges : int
        Of the graphs that both compute on, in float64; `loops` takes one number after the other.
    """
    report = Report(f"the oracle itself, {len(references)} operations")
    with call.working(600.0) as worker:
        for reference in references:
            trial = Trial(_outputs, _gradients, reference, report, worker)
            for entry in corpus("ci"):
                if entry.published["n_edges"] <= most_edges:
                    _compare(trial, entry)
    for entry in corpus("all"):
        report.checked["corpus"] += 1
        if digest(entry.edges) != entry.published["sha256"]:
            report.findings.append(Finding(Verdict.WRONG, "corpus", None, entry.name, "the graph is not the one that was published"))
    return report


def _compare(trial, entry):
    try:
        certified.level(trial, trial.reference.case(entry.edges, name=entry.name, dtype="float64", width=min(entry.width, WIDTH)))
    except ShapeError as error:
        trial.report.skip("graphs that do not suit", f"{entry.name}: {error}")


def _outputs(case):
    return {name: value.astype(np.float64) for name, value in loops.outputs(case).items()}


def _gradients(case, g):
    cotangents = g if isinstance(g, dict) else {"out": g}
    return {name: value.astype(np.float64) for name, value in loops.gradients(case, cotangents).items()}
