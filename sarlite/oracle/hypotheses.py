"""Whole results under one wrong assumption: each is recomputed, and explains a result that it is equal to."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from sarlite.errors import SarliteError
from sarlite.oracle.case import Case
from sarlite.oracle.edges import EdgeList
from sarlite.oracle.plain import Plain
from sarlite.oracle.reference import DIALECTS, Reference
from sarlite.types import Array

MOST = 1 << 22  # edge-columns of a case that whole results are recomputed for


def recomputed(reference: Reference, case: Case, output: str, got: Array, g: Mapping[str, Array] | None) -> str | None:
    """The first assumption under which `output` is `got`, one line; None where there is none."""
    columns = max((int(np.prod(np.shape(a)[1:])) for a in case.arrays.values()), default=1)
    if case.edges.n_edges * columns > MOST or output.startswith("d") and g is None:
        return None
    for cause, other, changed, cotangents in _assumptions(reference, case, g if output.startswith("d") else None):
        try:
            with np.errstate(all="ignore"):
                found = _output(other, changed, output, cotangents)
        except (SarliteError, ValueError, IndexError, KeyError):
            continue  # the assumption makes no sense here
        if found.shape == got.shape and equal(found, got):
            return cause
    return None


def equal(a: Array, b: Array) -> bool:
    """Whether all elements are the same number, NaN being one of them; results that no integer stands for are rounded to b's dtype first."""
    with np.errstate(all="ignore"):
        return np.array_equal(a, b, equal_nan=True) or np.array_equal(a.astype(b.dtype), b, equal_nan=True)


def _output(reference, case, output, g):
    if g is None:
        return np.asarray(reference.outputs(case, Plain())[output].value)
    return np.asarray(reference.gradients(case, g, Plain())[output[1:]].value)


def _assumptions(reference: Reference, case: Case, g) -> Iterator[tuple[str, Reference, Case, Any]]:
    for key, allowed in reference.definition.attributes.items():
        for value in allowed if isinstance(allowed, tuple) else ():
            if value != case.attributes[key] and key != "weighted":
                yield f"{key} is {value!r}, not {case.attributes[key]!r}", reference, _with(case, attributes={**case.attributes, key: value}), g
    for dialect in DIALECTS:
        if dialect != reference.dialect:
            yield f"it is the dialect {dialect!r}", reference, _with(case, attributes={**case.attributes, "dialect": dialect}), g
    if g is not None:
        yield "the gradient that comes in is taken to be ones", reference, case, {name: np.ones_like(value) for name, value in g.items()}
    for cause, arrays in _arrays(case):
        yield cause, reference, _with(case, arrays={**case.arrays, **arrays}), g
    for cause, changed in _graphs(case):
        yield cause, reference, changed, g


def _arrays(case):
    e = case.edges
    for name, array in case.arrays.items():
        array = np.asarray(array)
        if len(array) == e.n_edges and e.n_edges and name not in ("x", "z"):
            yield f"{name} is taken by place in CSR, not by edge", {name: array[e.eid]}
            back = np.empty_like(array)
            back[e.eid] = array
            yield f"{name} of edges is taken to stand in CSR order already, and sorted back", {name: back}
        if name in ("weight", "mask"):
            yield f"{name} is ignored", {name: np.ones_like(array)}
        if name in ("scores", "src", "dst"):
            yield f"{name} is ignored", {name: np.zeros_like(array)}
    if "scores" in case.arrays or {"src", "dst"} <= case.arrays.keys():
        yield "the scores are ignored: attention is uniform", {k: np.zeros_like(a) for k, a in case.arrays.items() if k in ("scores", "src", "dst")}


def _graphs(case):
    e = case.edges
    if e.n_src == e.n_dst:
        yield "edges go the wrong way: the transpose is taken", _with(case, edges=e.reversed())
        own = e.src == e.dst
        yield "self loops are lost", _without(case, own)
        yield "self loops are added", _more(case, np.flatnonzero(np.bincount(e.src[own], minlength=e.n_src) == 0))
        yield "a self loop is added to each row", _more(case, np.arange(e.n_dst))
    seen = np.zeros(e.n_edges, bool)
    order = e.eid
    seen[order[1:]] = (e.src[order[1:]] == e.src[order[:-1]]) & (e.dst[order[1:]] == e.dst[order[:-1]])
    yield "edges that are there more than once are counted once", _without(case, seen)
    if e.n_edges:
        last = np.zeros(e.n_edges, bool)
        last[e.indptr[1:][np.diff(e.indptr) > 0] - 1] = True
        yield "the last edge of each row is lost", _without(case, last[np.argsort(order)])
        yield "the first edge of each row is lost", _without(case, np.isin(np.arange(e.n_edges), order[e.indptr[:-1][np.diff(e.indptr) > 0]]))
    for bits in (7, 8, 15, 16):
        if e.n_edges > 1 << bits:
            yield f"edges from number 2^{bits} on are lost: an index overflows", _without(case, np.arange(e.n_edges) >= 1 << bits)
        if max(e.n_src, e.n_dst) > 1 << bits:
            low = (1 << bits) - 1
            yield f"row numbers are taken modulo 2^{bits}", _with(case, edges=EdgeList(e.src & low, e.dst & low, e.n_src, e.n_dst))


def _with(case, **changes):
    return replace(case, **changes)


def _without(case, lost: Array):
    """The case without some edges; SarliteError where that is no change, or of one edge, which is read off the difference."""
    if lost.sum() < 2:
        raise_no_change()
    return on_edges(case, np.flatnonzero(~lost))


def on_edges(case: Case, kept: Array) -> Case:
    """Return the case on the edges that `kept` names, the arrays by edge along with them."""
    n, rows = case.edges.n_edges, {case.edges.n_src, case.edges.n_dst}
    by_edge = {name for name, array in case.arrays.items() if len(array) == n and (n not in rows or name in BY_EDGE)}
    arrays = {name: array[kept] if name in by_edge else array for name, array in case.arrays.items()}
    return replace(case, edges=case.edges.select(kept), arrays=arrays)
