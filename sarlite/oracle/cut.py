"""Functions that derive a case from another case: with other edges, with fewer rows, or with fewer columns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from sarlite.oracle.case import Case
from sarlite.oracle.edge_structure import EdgeList
from sarlite.oracle.reference import Reference, ShapeWords
from sarlite.types import Array


def on_rows(reference: Reference, case: Case, edges: EdgeList, rows: Mapping[str, Array]) -> Case:
    """Return `case` with the graph `edges`, and with a selection of the rows of its arrays. `rows` is {kind: row numbers to keep}
    with the kinds "src", "dst", "node" and "edge"; `reference` knows the kind of each array. Arrays of a kind that `rows` lacks are
    unchanged.
    """
    by = reference.arrays_by
    arrays = {name: array[rows[by[name]]] if by.get(name) in rows else array for name, array in case.arrays.items()}
    return replace(case, edges=edges, arrays=arrays)


def on_edges(reference: Reference, case: Case, edge_index: Array) -> Case:
    """Return `case` with only the edges numbered in `edge_index`. Arrays that have a row for each edge, as `reference` knows,
    keep only the rows of these edges.
    """
    return on_rows(reference, case, case.edges.select(edge_index), {"edge": edge_index})


def on_used_rows(reference: Reference, case: Case) -> Case:
    """Return `case` without source rows that no edge leaves, and without destination rows that no edge enters. If there are as
    many sources as destinations, they count as the same nodes, and a node with an edge in or out stays.
    """
    e = case.edges
    src, dst = np.flatnonzero(e.out_degrees), np.flatnonzero(e.in_degrees)
    if e.n_src == e.n_dst:
        src = dst = np.union1d(src, dst)
    edges = EdgeList(np.searchsorted(src, e.src), np.searchsorted(dst, e.dst), len(src), len(dst))
    return on_rows(reference, case, edges, {"src": src, "dst": dst, "node": src})


def width_of(reference: Reference, case: Case) -> int | None:
    """Return the number of columns of the inputs of `case`: the length of their axes that `reference` calls "width". None if no
    input has columns, or if two inputs have different numbers of columns.
    """
    sizes = {array.shape[axis] for name, array in case.arrays.items() for axis in _width_axes(reference.shapes[0], name)}
    return sizes.pop() if len(sizes) == 1 else None


def on_columns(reference: Reference, case: Case, start: int, stop: int) -> Case:
    """Return `case` with only the columns `start` to `stop` - 1 of its inputs and parameters. If the caller has set the parameters
    (`reference.state`), `case` is returned unchanged.
    """
    if case.state and reference.state is not None:
        return case
    arrays, state = ({name: _sliced(array, _width_axes(shapes, name), start, stop) for name, array in values.items()}
                     for values, shapes in zip((case.arrays, case.state), reference.shapes))
    return replace(case, arrays=arrays, state=state)


def _width_axes(shapes: ShapeWords, name: str) -> list[int]:
    """Return the axes of the array `name` whose length is "width". `shapes` has the axis lengths of each array, as in {"x":
    ["n_src", "width"]}.
    """
    return [axis for axis, word in enumerate(shapes.get(name, ())) if word == "width"]


def _sliced(array, axes, start, stop):
    for axis in axes:
        array = np.take(array, np.arange(start, stop), axis)
    return array
