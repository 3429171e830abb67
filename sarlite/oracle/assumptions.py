"""Search for the cause of a wrong result: recompute the result with each possible mistake, and compare it with the array
that the function returned.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial

import numpy as np

from sarlite.errors import SarliteError
from sarlite.oracle import cut
from sarlite.oracle.case import Case
from sarlite.oracle.dialects import DIALECTS
from sarlite.oracle.difference import Difference
from sarlite.oracle.edge_structure import EdgeList
from sarlite.oracle.finding import Edges
from sarlite.oracle.locate import is_extremum
from sarlite.oracle.mistakes import Guess, mistakes
from sarlite.oracle.plain import BoundedArray
from sarlite.oracle.reference import Reference
from sarlite.types import Array

Cotangents = Mapping[str, Array] | None
MOST = 1 << 22  # whole results are computed again for cases of at most so many edges times columns
MOST_EDGES = 64  # at most so many edges into wrong rows are left out, one at a time


def that_fit(difference: Difference, guesses: Iterable[Guess]) -> Iterator[tuple[str, Edges]]:
    """Yield (cause, edges) for each of `guesses` that predicts the returned array in `difference` correctly. `cause` is a text, and
    `edges` has (src, dst) of each edge that the text names.
    """
    return ((guess.cause, guess.edges) for guess in guesses if _fits(difference, guess))


def explains(cause: str, difference: Difference) -> bool:
    """Return True if one of the guesses about `difference` (see `guesses`) has the text `cause` and predicts the array that the
    function returned.
    """
    return any(_fits(difference, guess) for guess in guesses(difference) if guess.cause == cause)


def _fits(difference, guess):
    try:
        with np.errstate(all="ignore"):
            return difference.fits(guess.number())
    except (SarliteError, ValueError, IndexError, KeyError):
        return False  # the guess is not defined for this case


def guesses(difference: Difference) -> Iterator[Guess]:
    """Yield guesses about the cause of the wrong array in `difference`: first mistakes of the whole computation, then single
    lost or repeated edges. Large cases have no guesses, as each guess computes the array again.
    """
    d, case = difference, difference.case
    columns = max((int(np.prod(np.shape(a)[1:])) for a in case.arrays.values()), default=1)
    if case.edges.n_edges * columns > MOST or d.output.startswith("d") and d.cotangents is None:
        return
    if d.output == "dx" and is_extremum(case) and "weight" not in case.arrays:
        yield Guess("entries that tie for the extremum get the whole gradient each",
                    partial(_whole_ties, case, d.cotangents))
    yield from mistakes(d)
    for cause, changed, cotangents in _assumptions(d.reference, case, d.cotangents):
        yield Guess(cause, partial(d.predicted, changed, cotangents))
    if d.cotangents is None and d.reference.outputs_by.get(d.output) == "dst" and d.differs.ndim:
        rows = np.asarray(d.differs.reshape(len(d.differs), -1).any(1))
        into = np.flatnonzero(rows[case.edges.dst])
        yield from single_edges(d, into if len(into) <= MOST_EDGES else ())


def named_edges(difference: Difference) -> Iterator[tuple[str, Edges]]:
    """Test each edge in `difference.suspect_edges`, the edges that an earlier finding names. If all wrong elements are explained by
    leaving the edge out, or by counting it twice, yield (cause as text, ((src, dst),)), with a tuple of the edges to blame, here a
    single edge.
    """
    edges, pairs = difference.case.edges, np.array(difference.suspect_edges).reshape(-1, 2)
    if len(pairs) and difference.cotangents is None:
        is_named = (edges.src[:, None] == pairs[:, 0]) & (edges.dst[:, None] == pairs[:, 1])
        yield from that_fit(difference, single_edges(difference, np.flatnonzero(is_named.any(1))[:MOST_EDGES]))


def single_edges(difference: Difference, edge_index: Iterable[int], describe: Callable[[int], str] = lambda e: ""
                 ) -> Iterator[Guess]:
    """Yield two guesses about the wrong array in `difference` for each edge number in `edge_index`: the edge is lost, or it is
    counted twice. The text that `describe(e)` returns is added to the name of edge e in the guess.
    """
    d, edges = difference, difference.case.edges
    for e in edge_index:
        name, pair = f"edge {e} ({edges.src[e]} -> {edges.dst[e]}){describe(e)}", ((int(edges.src[e]), int(edges.dst[e])),)
        for change, edit in (("lost", np.delete), ("counted twice", np.append)):
            other = cut.on_edges(d.reference, d.case, edit(np.arange(edges.n_edges), e))
            yield Guess(f"{name} is {change}", partial(d.predicted, other), pair)


def _whole_ties(case, cotangents):
    """Return the gradient of x of a `case` with maxima or minima over in-edges, as a certain wrong kernel computes it: each of
    several tied entries gets the whole gradient of the result, `cotangents["out"]`.
    """
    x, e, largest = np.asarray(case.arrays["x"], np.float64), case.edges, case.attributes["reduce"] == "max"
    best = np.full((e.n_dst, x.shape[1]), -np.inf if largest else np.inf)
    (np.maximum if largest else np.minimum).at(best, e.dst, x[e.src])
    out = np.zeros_like(x)
    np.add.at(out, e.src, np.where(x[e.src] == best[e.dst], np.asarray(cotangents["out"], np.float64)[e.dst], 0))
    return BoundedArray(out)


def _assumptions(reference: Reference, case: Case, g: Cotangents) -> Iterator[tuple[str, Case, Cotangents]]:
    choices = {key: allowed for key, allowed in reference.definition.attributes.items() if isinstance(allowed, tuple)}
    for key, allowed in {**choices, "dialect": DIALECTS}.items():
        for value in allowed:
            if value != case.attributes[key]:
                other = replace(case, attributes={**case.attributes, key: value})
                yield f"{key} is {value!r}, not {case.attributes[key]!r}", other, g
    if g is not None:
        ones = {name: np.ones_like(value) for name, value in g.items()}
        yield "the gradient that comes in is taken to be ones", case, ones
    for cause, arrays in _arrays(reference, case):
        yield cause, replace(case, arrays={**case.arrays, **arrays}), g
    for cause, changed in _graphs(reference, case):
        if changed is not None:
            yield cause, changed, g


def _arrays(reference, case):
    e = case.edges
    if scores := {k: np.zeros_like(a) for k, a in case.arrays.items() if k in ("scores", "el", "er", "attn", "q")}:
        yield "the scores are ignored: all edges of a row weigh the same", scores
    for name, array in case.arrays.items():
        if reference.arrays_by.get(name) == "edge" and e.n_edges:
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
        is_loop = e.src == e.dst
        yield "self loops are lost", _without(reference, case, is_loop)
        without_loop = np.flatnonzero(np.bincount(e.src[is_loop], minlength=e.n_src) == 0)
        yield "self loops are added", _with_loops(reference, case, without_loop)
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
            edges = EdgeList(e.src & low, e.dst & low, e.n_src, e.n_dst)
            yield f"row numbers are taken modulo 2^{bits}", replace(case, edges=edges)


def _without(reference: Reference, case: Case, lost: Array) -> Case | None:
    """Return `case` without the edges that the mask `lost` selects, and without their rows in the arrays that `reference` declares
    to be by edge; None if the mask selects no edge.
    """
    return cut.on_edges(reference, case, np.flatnonzero(~lost)) if lost.any() else None


def _with_loops(reference, case, rows):
    more = {name: np.concatenate([array, np.ones((len(rows), *array.shape[1:]), array.dtype)])
            for name, array in case.arrays.items() if reference.arrays_by.get(name) == "edge"}
    return replace(case, edges=case.edges.with_loops(rows), arrays={**case.arrays, **more})
