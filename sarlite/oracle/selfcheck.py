"""`selfcheck`: compares the oracle's references with a second implementation, and its graphs with published hashes."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from sarlite.oracle import corpus, inputs, loops
from sarlite.oracle.case import Run
from sarlite.oracle.check_report import Report
from sarlite.oracle.choices import SUMS
from sarlite.oracle.finding import Finding, Verdict
from sarlite.oracle.formats import rounded
from sarlite.oracle.levels import CERTIFIED
from sarlite.oracle.reference import Reference
from sarlite.oracle.trial import Trial, trying

WIDTH = 3


def _outputs(case):
    return loops.outputs(case, once=True)


def selfcheck(references: Sequence[Reference], most_edges: int = 12, *, graphs: str | Sequence[str] = "*",
              dtypes: Sequence[str] = SUMS, outputs: Run = _outputs,
              digest: Callable[..., str] = corpus.digest) -> Report:
    """Check references against `outputs`, a second implementation, on graphs of at most `most_edges` edges. Check also that
    `digest` of each graph is the published hash.

    Parameters
    ----------
    references : sequence of Reference
        Operations that `loops` knows.
    most_edges : int
        Graphs of at most so many edges are computed by `loops`, too, which takes one number at a time. On larger graphs
        of level "ci", the references' own values, rounded once, are compared with their error bounds.
    graphs : str or sequence of str
        Patterns (fnmatch) of the names of graphs.
    dtypes : sequence of str
    outputs : (case) -> {name: array}
        The second implementation.
    digest : (edges) -> str
        Computes the hash that is compared with the published one.

    Returns
    -------
    Report
    """
    report = Report(f"the oracle itself, {len(references)} operations, {', '.join(dtypes)}")
    entries = corpus.matching(corpus.corpus("all"), graphs)
    small = {entry.name for entry in corpus.corpus("ci")}
    for reference in references:
        with trying(report, outputs, _gradients, reference, 600.0) as trial:
            for entry in entries:
                small_graph = entry.published["n_edges"] <= most_edges
                for dtype in dtypes if small_graph or entry.name in small else ():
                    _compare(trial, entry, dtype, small_graph)
    for entry in entries:
        report.checked["corpus"] += 1
        if digest(entry.edges) != entry.published["sha256"]:
            other = "the graph is not the one that was published"
            report.findings.append(Finding(Verdict.WRONG, "corpus", entry.name, "", other))
    return report


def _compare(trial: Trial, entry: corpus.Entry, dtype: str, small_graph: bool) -> None:
    """Check the reference implementation on the graph of `entry`, and add findings to `trial`. If `small_graph`, its results are
    compared with the slow second implementation; else its results, rounded to `dtype`, must lie within its own error bounds.
    """
    entry = replace(entry, width=min(entry.width, WIDTH)) if small_graph else entry
    for case in inputs.cases(trial.reference, entry, ["certified"], trial.report, dtype=dtype)[1]:
        CERTIFIED.check_case(trial, case) if small_graph else _check_own_values(trial, case)


def _check_own_values(trial, case):
    reference = trial.reference
    g = CERTIFIED.cotangents(reference, case, trial.seed)
    for numbers, by in ((CERTIFIED.outputs(reference, case), None), (CERTIFIED.gradients(reference, case, g), g)):
        once = {name: rounded(number.value, case.format) for name, number in numbers.items()}
        CERTIFIED.judge(trial, case, numbers, once, by)


def _gradients(case, g):
    return loops.gradients(case, g if isinstance(g, dict) else {"out": g}, once=True)
