"""Smaller cases out of a case: on some of its edges, of its rows, of its columns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from sarlite.oracle.case import Case
from sarlite.oracle.definition import Shapes
from sarlite.oracle.edges import EdgeList
from sarlite.oracle.reference import Reference
from sarlite.types import Array


def on_edges(reference: Reference, case: Case, kept: Array) -> Case:
    """Return the case on the edges that `kept` names by position, the arrays by edge along with them."""
    by = reference.arrays_by
    arrays = {name: array[kept] if by.get(name) == "edge" else array for name, array in case.arrays.items()}
    return replace(case, edges=case.edges.select(kept), arrays=arrays)


def on_used_rows(reference: Reference, case: Case) -> Case:
    """Return the case without the rows that have no edge; nodes of one set go where they have neither end."""
    e, by = case.edges, reference.arrays_by
    src, dst = np.flatnonzero(e.out_degrees), np.flatnonzero(e.in_degrees)
    if e.n_src == e.n_dst:
        src = dst = np.union1d(src, dst)
    kept: dict[str | None, Array] = {"src": src, "dst": dst, "node": src}
    arrays = {name: array[kept.get(by.get(name), slice(None))] for name, array in case.arrays.items()}
    return replace(case, edges=EdgeList(np.searchsorted(src, e.src), np.searchsorted(dst, e.dst), len(src), len(dst)),
                   arrays=arrays)


def width_of(reference: Reference, case: Case) -> int | None:
    """Return the width that a case was made with; None where no width makes arrays of these shapes."""
    shapes = {name: np.shape(array) for name, array in case.arrays.items()}
    candidates = sorted({n for shape in shapes.values() for n in shape[1:]})
    return next((width for width in candidates if reference.arrays(case.edges, width) == shapes), None)


def on_columns(reference: Reference, case: Case, start: int, stop: int) -> Case:
    """Return the case on columns start to stop - 1 of its inputs.

    The case itself where it has no width, or a state that was given.
    """
    width = width_of(reference, case)
    if width is None or case.state and reference.state is not None:
        return case
    arrays = _sliced(case.arrays, reference.arrays(case.edges, width), reference.arrays(case.edges, width + 1), start,
                     stop)
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
