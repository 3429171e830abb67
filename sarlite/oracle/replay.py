"""One saved case again: what was found in it, and what a function makes of it now."""

import os
from collections.abc import Callable, Mapping
from typing import Any

from sarlite.errors import DataError, reading
from sarlite.oracle import sarcase
from sarlite.oracle.case import Case
from sarlite.oracle.check_report import Report
from sarlite.oracle.finding import Saved
from sarlite.oracle.levels import JUDGES
from sarlite.oracle.reference import described, reference_of
from sarlite.oracle.trial import trying
from sarlite.types import Array

LEVELS = ("probe", "certified", "repeat")
_MOST_EDGES = 20  # are written out


def replay(path: str | os.PathLike[str], run: Callable[[Case], Any], *,
           vjp: Callable[[Case, Any], Mapping[str, Any]] | None = None, convert: Callable[[Array], Any] | None = None,
           time_limit: float = 60.0, seed: int = 0) -> Report:
    """Check a function on one saved case: by == where its result is exact, by bounds, and by the same input twice.

    Gradients are asked in every layout, by the case's saved cotangents, or, if it has none, by cotangents of `seed`.

    Parameters
    ----------
    path : path
        A .sarcase.
    run, vjp, convert, time_limit, seed
        As of `check`.

    Returns
    -------
    Report

    Raises
    ------
    DataError
        The case cannot be read, lacks an array of its operation, or its cotangents have not the shapes of its outputs.
    ConfigError
        Its operation, its dialect or an attribute is unknown.
    """
    saved = sarcase.load(path)
    case, reference = saved.case, reference_of(saved.case)
    report = Report(f"{described(reference)}, {case.format}, {case.name}")
    cotangents = _cotangents(path, saved, reference)
    with trying(report, run, vjp, reference, time_limit, seed=seed, convert=convert, cotangents=cotangents,
                every_layout=True, named=() if saved.finding is None else saved.finding.edges) as trial:
        for level in LEVELS:
            JUDGES[level](trial, case)
    return report


def _cotangents(path, saved, reference):
    """The cotangents of a saved case; None where it has none."""
    with reading(path, "arrays"):  # which may not be those of the operation
        wanted = {name: expr.shape for name, expr in reference.expressions(saved.case)[1].items()}
    found = {name: value.shape for name, value in saved.cotangents.items()}
    if found and found != wanted:
        raise DataError(f"{path}: cotangents are of shape {found}, but outputs are of {wanted}")
    return saved.cotangents or None


def told(saved: Saved) -> str:
    """Return a saved case in a few lines: shapes, attributes, its edges if they are few, and its finding."""
    case = saved.case
    edges = f"{case.n_edges} edges from {case.n_src} to {case.n_dst} rows"
    lines = [f"{case.op}, {case.name}: {edges}, {case.format}, sums in {case.accumulate}"]
    if case.attributes:
        lines.append("  " + ", ".join(f"{name}={value!r}" for name, value in case.attributes.items()))
    lines += ["  " + ", ".join(f"{name} {tuple(value.shape)}" for name, value in {**case.arrays, **case.state}.items())]
    if case.n_edges <= _MOST_EDGES:
        lines.append("  edges " + ", ".join(f"{u} -> {v}"
                                            for u, v in zip(case.edges.src.tolist(), case.edges.dst.tolist())))
    found = f"  found: {saved.finding}" if saved.finding is not None else "  nothing was found in it"
    return "\n".join([*lines, found])
