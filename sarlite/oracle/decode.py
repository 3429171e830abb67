"""What a wrong result says about its cause: which edge, which rows, which columns, which wrong assumption."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from sarlite.oracle import hypotheses, locate
from sarlite.oracle.case import Case
from sarlite.oracle.reference import Reference
from sarlite.types import Array

Sibling = tuple[Case, Array, Array]  # a case that shares the code, what was expected of it, what was got


def explain(reference: Reference, case: Case, output: str, expected: Array, got: Array, *, cotangents: Mapping[str, Array] | None = None,
            siblings: Sequence[Sibling] = (), book: locate.Codebook | None = None) -> tuple[str, tuple]:
    """Return the probable cause of a wrong result, one line, and the (src, dst) of the edges that it is about.

    Parameters
    ----------
    output : str
        "out" or the name of an output; "d<name>" of a gradient.
    expected, got : array
        Of one shape; `expected` exact.
    cotangents : dict of str to array, for a gradient
    siblings : sequence of (case, expected, got)
        Of the same output: the other cases of one graph, where one has too few columns to tell rows apart.
    book : Codebook, optional
        Of the rows of x of all these cases, where it is there already.

    Notes
    -----
    An edge or an assumption that is named explains every element: the result under it is equal. No edge is searched for: a row's difference
    is the code of a row. Whole results are recomputed only on cases of up to hypotheses.MOST edge-columns.
    """
    expected, got = np.asarray(expected, np.float64), np.asarray(got, np.float64)
    bad = wrong(expected, got)
    if not bad.any():
        return "nothing is wrong", ()
    cause = _not_numbers(case, output, bad, got) or (None if got.any() else "all are 0")
    if cause:
        return cause, ()
    located = _located(case, output, expected, got, cotangents, siblings, book)
    few = located is not None and len(located[1]) == 1
    cause, edges = ("", ()) if few else hypotheses.recomputed(reference, case, output, bad, got, cotangents)
    if not cause and located is not None:
        return located
    cause = cause or _factor(expected, got) or _pattern(bad, expected, got)
    return cause or f"no single cause found: {int(bad.sum())} of {bad.size} elements differ", edges


def wrong(expected: Array, got: Array) -> Array:
    """Where two arrays differ; NaN is equal to NaN."""
    with np.errstate(invalid="ignore"):
        return (got != expected) & ~(np.isnan(got) & np.isnan(expected))


def _not_numbers(case, output, bad, got):
    """NaN, Inf or the lowest number where there should be a number."""
    odd = bad & (~np.isfinite(got) | (np.abs(got) > 1e30) | (np.abs(got) == 65504))
    if not odd.any() or odd.ndim == 0:
        return None
    rows = np.flatnonzero(odd.reshape(len(odd), -1).any(1))
    value = got[odd].flat[0]
    text = f"{value:g} in {len(rows)} rows, the first is {rows[0]}"
    if not output.startswith("d") and len(got) == case.edges.n_dst and not case.edges.in_degrees[rows].any():
        return f"{text}: none of them has an in-edge"
    reachable = case.edges.out_degrees > 0
    if any(len(a) == len(reachable) and not np.isfinite(a[~reachable]).all() for a in case.arrays.values() if np.ndim(a) > 1):
        return f"{text}: NaN and Inf leak from rows that no edge leaves"
    return text


def _factor(expected, got):
    """One factor between all elements."""
    known = (expected != 0) & np.isfinite(expected)
    if not known.any() or not np.isfinite(got[known]).all():
        return None
    factor = (got[known] / expected[known])[0]
    same = np.abs(got - factor * expected) <= 2.0**-20 * np.abs(got)
    if known.sum() > 1 and (same | (np.isnan(got) & np.isnan(expected))).all():
        return f"all are {factor:.6g} times what they should be"
    return None


def _located(case, output, expected, got, cotangents, siblings, book):
    if case.op == "spmm" and case.attributes["reduce"] in ("max", "min") and output == "out" and not case.attributes["loops"]:
        changes = locate.extremum(case, expected, got)
        return None if changes is None else locate.told(locate.Flow(case.edges, expected, None, None), changes)
    if output == "dx" and (cotangents is None or siblings):
        return None
    given = [cotangents["out"]] if output == "dx" else [case.arrays.get("x")] + [other.arrays.get("x") for other, _, _ in siblings]
    flow = None if any(x is None for x in given) else locate.flow(case, output, given)
    if flow is None:
        return None
    expected = np.concatenate([expected, *(np.asarray(e, np.float64) for _, e, _ in siblings)], 1)
    got = np.concatenate([got, *(np.asarray(g, np.float64) for _, _, g in siblings)], 1)
    changes = locate.read(flow, expected, got, book)
    return None if changes is None else locate.told(flow, changes)


def _pattern(bad, expected, got):
    """Which rows, which columns: what the wrong elements have in common."""
    if bad.ndim == 0 or not bad.size:
        return None
    bad, expected, got = (a.reshape(len(a), -1) for a in (bad, expected, got))
    rows, columns = np.flatnonzero(bad.any(1)), np.flatnonzero(bad.any(0))
    return _moved_rows(rows, expected, got) or _columns(columns, bad, got) or _flat(bad) or _same_rows(rows, bad, got)


def _moved_rows(rows, expected, got):
    """Rows that hold what other rows should."""
    if len(expected) < 2 or not np.isfinite(got).all() or not np.isfinite(expected).all():
        return None
    for shift in (1, -1):
        inner = slice(1, -1) if len(got) > 3 else slice(None)
        if np.array_equal(got[inner], np.roll(expected, shift, 0)[inner]):
            return f"rows are off by one: row i holds what row i {'-' if shift > 0 else '+'} 1 should"
    keys = [a @ locate.direction(a.shape[1]) for a in (expected, got)]
    if np.array_equal(*(np.sort(k) for k in keys)) and len(rows) > 1:
        return f"rows are permuted: {len(rows)} rows stand at other places, the first is row {rows[0]}"
    zero = [r for r in rows if not got[r].any()]
    if len(zero) == len(rows):
        return f"rows are 0: {len(rows)} rows, the first is {rows[0]}, the last {rows[-1]} of {len(got)}"
    order = np.argsort(keys[0], kind="stable")
    place = np.minimum(np.searchsorted(keys[0][order], keys[1][rows]), len(order) - 1)
    held = order[place]
    if (expected[held] == got[rows]).all():
        return f"row {rows[0]} holds what row {held[0]} should" + (f"; {len(rows)} such rows" if len(rows) > 1 else "")
    return None


def _columns(columns, bad, got):
    width = bad.shape[1]
    if len(columns) == width or width < 2:
        return None
    where = f"columns {columns[0]} to {columns[-1]}" if len(columns) > 1 else f"column {columns[0]}"
    filled = " and hold 0" if not got[bad].any() else ""
    if columns[-1] == width - 1 and len(columns) == width - columns[0]:
        return f"{where} of {width} wrong{filled}, and none before: is the width no multiple of a block?"
    return f"{where} of {width} wrong{filled}: {len(columns)} columns"


def _flat(bad):
    first = int(np.flatnonzero(bad)[0])
    for bits in (7, 8, 15, 16, 31, 32):
        at = 1 << bits
        if at <= first < at + bad.shape[1] * 2 and bad.size > at:
            return f"elements from number 2^{bits} on are wrong: an index overflows"
    return None


def _same_rows(rows, bad, got):
    if len(rows) > len(bad) // 2:
        return None
    return f"{len(rows)} of {len(bad)} rows are wrong, the first is {rows[0]}: no change of one or two edges of a row explains it"
