"""`replay`: checks a function again on a saved case; `summary`: describes a saved case in a few lines."""

import os
from collections.abc import Mapping

from sarlite.errors import DataError, reading
from sarlite.oracle import sarcase
from sarlite.oracle.case import Convert, Run, Vjp
from sarlite.oracle.check_report import Report
from sarlite.oracle.finding import SavedCase
from sarlite.oracle.levels import LEVEL_CHECKS
from sarlite.oracle.reference import Reference, reference_label, reference_of
from sarlite.oracle.trial import trying
from sarlite.types import Array

LEVELS = ("probe", "certified", "repeat")
_MOST_EDGES = 20  # a summary lists the edges of a case up to so many


def replay(path: str | os.PathLike[str], run: Run, *, vjp: Vjp | None = None, convert: Convert | None = None,
           time_limit: float = 60.0, seed: int = 0) -> Report:
    """Check the functions `run` and `vjp` on the case saved at `path`, at the levels "probe" (exact results), "certified" (error
    bounds) and "repeat" (same bits); return the Report. Output gradients are the saved arrays, or random arrays if none were saved.

    Gradients are checked in every layout of the cotangents.

    Parameters
    ----------
    path : path
        A .sarcase directory.
    run, vjp, convert, time_limit, seed
        See `check`.

    Returns
    -------
    Report

    Raises
    ------
    DataError
        The case cannot be read, lacks an array of its operation, or its cotangents have not the shapes of its outputs.
    ConfigError
        The case's operation, dialect or an attribute is unknown.

    Examples
    --------
    >>> import tempfile
    >>> from sarlite import oracle
    >>> report = oracle.check(lambda case: 2 * case.x[case.src], "gather", level="probe", graphs="ring-3")
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = report.save(folder + "/doubled.sarcase")
    ...     oracle.replay(path, lambda case: case.x[case.src]).verdict.name
    'PASS'
    """
    saved = sarcase.load(path)
    case, reference = saved.case, reference_of(saved.case)
    report = Report(f"{reference_label(reference)}, {case.format}, {case.name}")
    cotangents = _cotangents(path, saved, reference)
    with trying(report, run, vjp, reference, time_limit, seed=seed, convert=convert, cotangents=cotangents,
                every_layout=True, suspect_edges=() if saved.finding is None else saved.finding.edges) as trial:
        for level in LEVELS:
            LEVEL_CHECKS[level](trial, case)
    return report


def _cotangents(path: str | os.PathLike[str], saved: SavedCase, reference: Reference) -> Mapping[str, Array] | None:
    """Return the gradients of the outputs that a saved case has, after a check of their shapes; None if it has none. `path`
    starts the error's message.
    """
    with reading(path, "arrays"):  # the arrays may not be those of the operation
        wanted = {name: expr.shape for name, expr in reference.expressions(saved.case)[1].items()}
    saved_shapes = {name: value.shape for name, value in saved.cotangents.items()}
    if saved_shapes and saved_shapes != wanted:
        raise DataError(f"{path}: cotangents are of shape {saved_shapes}, but outputs are of {wanted}")
    return saved.cotangents or None


def summary(saved: SavedCase) -> str:
    """Return a description of a saved case in a few lines: shapes, attributes, edges if there are few, and the finding."""
    case = saved.case
    edges = f"{case.n_edges} edges from {case.n_src} to {case.n_dst} rows"
    lines = [f"{case.op}, {case.name}: {edges}, {case.format}, sums in {case.accumulate}"]
    if case.attributes:
        lines.append("  " + ", ".join(f"{name}={value!r}" for name, value in case.attributes.items()))
    lines += ["  " + ", ".join(f"{name} {tuple(value.shape)}" for name, value in {**case.arrays, **case.state}.items())]
    if case.n_edges <= _MOST_EDGES:
        lines.append("  edges " + ", ".join(f"{u} -> {v}"
                                            for u, v in zip(case.edges.src.tolist(), case.edges.dst.tolist())))
    outcome = f"  found: {saved.finding}" if saved.finding is not None else "  nothing was found in it"
    return "\n".join([*lines, outcome])
