"""Smaller cases out of a case: on some of its edges, of its rows, of its columns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from sarlite.errors import SarliteError
from sarlite.oracle.case import Case
from sarlite.oracle.definition import Shapes
from sarlite.oracle.edges import EdgeList
from sarlite.oracle.reference import Reference
from sarlite.types import Array


def rows_of(reference: Reference, case: Case) -> dict[str, str | None]:
    """Return what the first axis of each array of a case stands for: "src", "dst", "edge", or None; "src" where both rows are the same."""
    for n_dst in (1013, 1009):  # primes, which no width is
        try:
            shapes = reference.arrays(EdgeList(np.zeros(1019, np.int64), np.zeros(1019, np.int64), 1009, n_dst), 1)
        except SarliteError:
            continue  # it takes one set of rows
        kinds = {1009: "src", 1013: "dst", 1019: "edge"}
        return {name: kinds.get(shapes[name][0]) if name in shapes and shapes[name] else None for name in case.arrays}
    return dict.fromkeys(case.arrays)


def on_edges(reference: Reference, case: Case, kept: Array) -> Case:
    """Return the case on the edges that `kept` names by position, the arrays by edge along with them."""
    rows = rows_of(reference, case)
    arrays = {name: array[kept] if rows[name] == "edge" else array for name, array in case.arrays.items()}
    return replace(case, edges=case.edges.select(kept), arrays=arrays)


def on_used_rows(reference: Reference, case: Case) -> Case:
    """Return the case without the rows that have no edge; where sources and destinations are one set, without those that have neither."""
    e, rows = case.edges, rows_of(reference, case)
    src, dst = np.flatnonzero(e.out_degrees), np.flatnonzero(e.in_degrees)
    if e.n_src == e.n_dst:
        src = dst = np.union1d(src, dst)
    kept: dict[str | None, Array] = {"src": src, "dst": dst}
    arrays = {name: array[kept.get(rows[name], slice(None))] for name, array in case.arrays.items()}
    return replace(case, edges=EdgeList(np.searchsorted(src, e.src), np.searchsorted(dst, e.dst), len(src), len(dst)), arrays=arrays)


def width_of(reference: Reference, case: Case) -> int | None:
    """Return the width that a case was made with; None where no width makes arrays of these shapes."""
    shapes = {name: np.shape(array) for name, array in case.arrays.items()}
    candidates = sorted({n for shape in shapes.values() for n in shape[1:]})
    return next((width for width in candidates if reference.arrays(case.edges, width) == shapes), None)


def on_columns(reference: Reference, case: Case, start: int, stop: int) -> Case:
    """Return the case on columns start to stop - 1 of its inputs; the case itself where it has no width, or a state that was given."""
    width = width_of(reference, case)
    if width is None or case.state and reference.state is not None:
        return case
    arrays = _sliced(case.arrays, reference.arrays(case.edges, width), reference.arrays(case.edges, width + 1), start, stop)
    state = _sliced(case.state, reference.parameters(width), reference.parameters(width + 1), start, stop)
    return replace(case, arrays=arrays, state=state)


def _sliced(arrays: Mapping[str, Array], shapes: Shapes, wider: Shapes, start: int, stop: int) -> dict[str, Array]:
    """The arrays, cut on the axes that are as long as the width."""
    out = {}
    for name, array in arrays.items():
        axes = [axis for axis, (a, b) in enumerate(zip(shapes[name], wider[name])) if a + 1 == b]
        for axis in axes:
            array = np.take(array, np.arange(start, stop), axis)
        out[name] = array
    return out
