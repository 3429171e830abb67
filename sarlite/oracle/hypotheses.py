"""Whole results under one wrong assumption: each is recomputed, and explains a result that it is equal to."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import chain
from typing import Any

import numpy as np

from sarlite.errors import SarliteError
from sarlite.oracle import cut
from sarlite.oracle.case import Case
from sarlite.oracle.edges import EdgeList
from sarlite.oracle.plain import Plain
from sarlite.oracle.reference import DIALECTS, Reference
from sarlite.types import Array

MOST = 1 << 22  # edge-columns of a case that whole results are recomputed for
MOST_EDGES = 64  # edges into wrong rows that are left out one at a time


def recomputed(reference: Reference, case: Case, output: str, bad: Array, got: Array, g: Mapping[str, Array] | None) -> tuple[str, tuple]:
    """The first assumption under which `output` is `got`, one line, and the (src, dst) of an edge it is about; "" where there is none."""
    columns = max((int(np.prod(np.shape(a)[1:])) for a in case.arrays.values()), default=1)
    if case.edges.n_edges * columns > MOST or output.startswith("d") and g is None:
        return "", ()
    if output == "dx" and g is not None and equal(_whole_ties(case, g), got):
        return "entries that tie for the extremum get the whole gradient each", ()
    g = g if output.startswith("d") else None
    for cause, changed, cotangents, edges in chain(_assumptions(reference, case, g), _edges(reference, case, output, bad, g)):
        try:
            with np.errstate(all="ignore"):
                found = _output(reference, changed, output, cotangents)
        except (SarliteError, ValueError, IndexError, KeyError):
            continue  # the assumption makes no sense here
        if equal(found, got):
            return cause, edges
    return "", ()


def _whole_ties(case, g):
    """The gradient of x of an extremum over edges where every winner gets all of it; an empty array of other operations."""
    if case.op != "spmm" or case.attributes["reduce"] not in ("max", "min") or "weight" in case.arrays or case.attributes["loops"]:
        return np.zeros(0)
    x, e = np.asarray(case.arrays["x"], np.float64), case.edges
    best = np.full((e.n_dst, x.shape[1]), -np.inf if case.attributes["reduce"] == "max" else np.inf)
    (np.maximum if case.attributes["reduce"] == "max" else np.minimum).at(best, e.dst, x[e.src])
    out = np.zeros_like(x)
    np.add.at(out, e.src, np.where(x[e.src] == best[e.dst], np.asarray(g["out"], np.float64)[e.dst], 0))
    return out


def _edges(reference, case, output, bad, g):
    """Of an output by rows: each edge into a wrong row lost, or counted twice."""
    e = case.edges
    if g is not None or reference.outputs_by.get(output) != "dst" or bad.ndim == 0:
        return
    wrong = bad.reshape(len(bad), -1).any(1)
    into = np.flatnonzero(wrong[e.dst])
    for k in into if len(into) <= MOST_EDGES else ():
        name, pair = f"edge {k} ({e.src[k]} -> {e.dst[k]})", ((int(e.src[k]), int(e.dst[k])),)
        yield f"{name} is lost", cut.on_edges(reference, case, np.delete(np.arange(e.n_edges), k)), None, pair
        yield f"{name} is counted twice", cut.on_edges(reference, case, np.append(np.arange(e.n_edges), k)), None, pair


def equal(a: Array, b: Array) -> bool:
    """Whether shapes are the same, and elements the same numbers, NaN being one; where a result is not exact, up to its rounding."""
    with np.errstate(all="ignore"):
        return a.shape == b.shape and bool(np.array_equal(a, b, equal_nan=True) or np.allclose(a, b, 2.0**-20, 0, equal_nan=True))


def _output(reference, case, output, g):
    if g is None:
        return np.asarray(reference.outputs(case, Plain())[output].value)
    return np.asarray(reference.gradients(case, g, Plain())[output[1:]].value)


def _assumptions(reference: Reference, case: Case, g: Any) -> Iterator[tuple[str, Case, Any, tuple]]:
    choices = {key: allowed for key, allowed in reference.definition.attributes.items() if isinstance(allowed, tuple)}
    for key, allowed in {**choices, "dialect": DIALECTS}.items():
        for value in allowed:
            if value != case.attributes[key]:
                other = replace(case, attributes={**case.attributes, key: value})
                yield f"{key} is {value!r}, not {case.attributes[key]!r}", other, g, ()
    if g is not None:
        ones = {name: np.ones_like(value) for name, value in g.items()}
        yield "the gradient that comes in is taken to be ones", case, ones, ()
    for cause, arrays in _arrays(reference, case):
        yield cause, replace(case, arrays={**case.arrays, **arrays}), g, ()
    for cause, changed in _graphs(reference, case):
        if changed is not None:
            yield cause, changed, g, ()


def _arrays(reference, case):
    e, rows_of = case.edges, cut.rows_of(reference, case)
    if scores := {k: np.zeros_like(a) for k, a in case.arrays.items() if k in ("scores", "el", "er", "attn", "q")}:
        yield "the scores are ignored: all edges of a row weigh the same", scores
    for name, array in case.arrays.items():
        if rows_of[name] == "edge" and e.n_edges:
            yield f"{name} is taken by place in CSR, not by edge", {name: array[e.eid]}
            back = np.empty_like(array)
            back[e.eid] = array
            yield f"{name} of edges is taken to stand in CSR order already, and sorted back", {name: back}
        if name in ("weight", "mask"):
            yield f"{name} is ignored", {name: np.ones_like(array)}
        if name in ("el", "er"):
            yield f"{name} is ignored", {name: np.zeros_like(array)}


def _graphs(reference, case):
    e = case.edges
    if e.n_src == e.n_dst:
        yield "edges go the wrong way: the transpose is taken", replace(case, edges=e.reversed())
        own = e.src == e.dst
        yield "self loops are lost", _without(reference, case, own)
        yield "self loops are added", _with_loops(reference, case, np.flatnonzero(np.bincount(e.src[own], minlength=e.n_src) == 0))
        yield "a self loop is added to each row", _with_loops(reference, case, np.arange(e.n_dst))
    seen = np.zeros(e.n_edges, bool)
    order = e.eid
    seen[order[1:]] = (e.src[order[1:]] == e.src[order[:-1]]) & (e.dst[order[1:]] == e.dst[order[:-1]])
    yield "edges that are there more than once count once", _without(reference, case, seen)
    if e.n_edges:
        last = np.zeros(e.n_edges, bool)
        last[e.indptr[1:][np.diff(e.indptr) > 0] - 1] = True
        yield "the last edge of each row is lost", _without(reference, case, last[np.argsort(order)])
        first = np.isin(np.arange(e.n_edges), order[e.indptr[:-1][np.diff(e.indptr) > 0]])
        yield "the first edge of each row is lost", _without(reference, case, first)
    for bits in (7, 8, 15, 16):
        if e.n_edges > 1 << bits:
            late = np.arange(e.n_edges) >= 1 << bits
            yield f"edges from number 2^{bits} on are lost: an index overflows", _without(reference, case, late)
        if max(e.n_src, e.n_dst) > 1 << bits:
            low = (1 << bits) - 1
            yield f"row numbers are taken modulo 2^{bits}", replace(case, edges=EdgeList(e.src & low, e.dst & low, e.n_src, e.n_dst))


def _without(reference, case, lost):
    """The case without some edges; None where that is no change, or of one edge, which is read off the difference."""
    return cut.on_edges(reference, case, np.flatnonzero(~lost)) if lost.sum() > 1 else None


def _with_loops(reference, case, rows):
    e = case.edges
    edges = EdgeList(np.concatenate([e.src, rows]), np.concatenate([e.dst, rows]), e.n_src, e.n_dst)
    by_edge = [name for name, what in cut.rows_of(reference, case).items() if what == "edge"]
    more = {name: np.concatenate([a, np.ones((len(rows), *a.shape[1:]), a.dtype)]) for name, a in case.arrays.items() if name in by_edge}
    return replace(case, edges=edges, arrays={**case.arrays, **more})
