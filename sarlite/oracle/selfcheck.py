"""The oracle checks itself: its references against `loops`, its corpus against the published hashes."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from sarlite.errors import ShapeError
from sarlite.oracle import corpus, levels, loops
from sarlite.oracle.finding import Finding, Verdict
from sarlite.oracle.reference import Reference
from sarlite.oracle.report import Report
from sarlite.oracle.trial import trying

WIDTH = 3


def selfcheck(references: Sequence[Reference], most_edges: int = 12, *, graphs: str | Sequence[str] = "*",
              outputs: Callable[..., Any] = loops.outputs, digest: Callable[..., str] = corpus.digest) -> Report:
    """Return where the references disagree with `loops`, or the corpus with what was published.

    Parameters
    ----------
    references : sequence of Reference
        Operations that `loops` knows.
    most_edges : int
        Of the graphs that both compute on, in float64; `loops` takes one number after the other.
    graphs : str or sequence of str
        Patterns (fnmatch) of the names of graphs.
    outputs : (case) -> {name: array}
        The second computation.
    digest : (edges) -> str
        The hash that is held against the published one.
    """
    report = Report(f"the oracle itself, {len(references)} operations")

    def run(case):
        return {name: value.astype(np.float64) for name, value in outputs(case).items()}

    for reference in references:
        with trying(report, run, _gradients, reference, 600.0) as trial:
            for entry in corpus.named(corpus.corpus("ci"), graphs):
                if entry.published["n_edges"] <= most_edges:
                    _compare(trial, entry)
    for entry in corpus.named(corpus.corpus("all"), graphs):
        report.checked["corpus"] += 1
        if digest(entry.edges) != entry.published["sha256"]:
            other = "the graph is not the one that was published"
            report.findings.append(Finding(Verdict.WRONG, "corpus", None, entry.name, other))
    return report


def _compare(trial, entry):
    options = {"name": entry.name, "dtype": "float64", "width": min(entry.width, WIDTH)}
    try:
        levels.ask(levels.CERTIFIED, trial, trial.reference.case(entry.edges, **options))
    except ShapeError as error:
        trial.report.skip("graphs that do not suit", f"{entry.name}: {error}")


def _gradients(case, g):
    cotangents = g if isinstance(g, dict) else {"out": g}
    return {name: value.astype(np.float64) for name, value in loops.gradients(case, cotangents).items()}
