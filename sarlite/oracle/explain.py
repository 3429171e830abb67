"""What a wrong result says about its cause: which edge, which rows, which columns, which wrong assumption.

A cause is one line, and the (src, dst) of the edges that it is about. An edge or an assumption that is named explains
every element: the result under it is equal. No edge is searched for: a row's difference is the code of a row
(`locate`). Whole results are computed again (`assumptions`) on cases of up to assumptions.MOST edge-columns alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from sarlite.oracle import assumptions, locate
from sarlite.oracle.difference import Difference

Cause = tuple[str, tuple]
Look = Callable[[Difference], Cause | None]


def cause_of(difference: Difference, looks: Sequence[Look] | None = None) -> Cause:
    """Return the probable cause: what the first of `looks` says that says something; without `looks`, of LOOKS."""
    bad = difference.differs
    if not bad.any():
        return "nothing is wrong", ()
    said = (look(difference) for look in (LOOKS if looks is None else looks))
    nothing = f"no single cause found: {int(bad.sum())} of {bad.size} elements differ", ()
    return next((cause for cause in said if cause), nothing)


def _not_numbers(d):
    """NaN, Inf or the lowest number where there should be a number, or a number where there should be NaN."""
    case, (expected, got) = d.case, d.wide
    lost = d.differs & np.isnan(expected) & ~np.isnan(got)
    if lost.any() and lost.ndim and np.array_equal(lost, d.differs):
        rows = np.flatnonzero(lost.reshape(len(lost), -1).any(1))
        return f"NaN does not come through: {len(rows)} rows hold numbers in its place, the first is {rows[0]}", ()
    odd = d.differs & (~np.isfinite(got) | (np.abs(got) > 1e30) | (np.abs(got) == 65504))
    if not odd.any() or odd.ndim == 0:
        return None
    rows = np.flatnonzero(odd.reshape(len(odd), -1).any(1))
    text = f"{got[odd].flat[0]:g} in {len(rows)} rows, the first is {rows[0]}"
    if not d.output.startswith("d") and len(got) == case.edges.n_dst and not case.edges.in_degrees[rows].any():
        return f"{text}: none of them has an in-edge", ()
    reachable = case.edges.out_degrees > 0
    spoilt = (len(a) == len(reachable) and not np.isfinite(a[~reachable]).all() for a in case.arrays.values()
              if np.ndim(a) > 1)
    return f"{text}: NaN and Inf leak from rows that no edge leaves" if any(spoilt) else text, ()


def _all_zero(d):
    return None if d.got.any() else ("all are 0", ())


def _edges_or_assumption(d):
    """One edge that the differences of rows name; else an assumption; else several edges."""
    located = _located(d)
    if located is not None and len(located[1]) == 1:
        return located
    found = assumptions.first_that_fits(d, assumptions.guesses(d))
    return (assumptions.Assumed(found[0]), ()) if found and not found[1] else found or located


def _located(d):
    case, (expected, got) = d.case, d.wide
    if locate.is_extremum(case) and d.output == "out":
        changes = locate.extremum(case, expected, got)
        return None if changes is None else locate.told(locate.Flow(case.edges, expected, None, None), changes)
    together = [d, *d.siblings()]
    if d.output == "dx" and (d.cotangents is None or len(together) > 1):
        return None
    given = [d.cotangents["out"]] if d.output == "dx" else [each.case.arrays.get("x") for each in together]
    flow = None if any(x is None for x in given) else locate.flow(case, d.output, given)
    if flow is None:
        return None
    changes = locate.read(flow, *(np.concatenate(parts, 1) for parts in zip(*(each.wide for each in together))), d.book)
    return None if changes is None else locate.told(flow, changes)


def _one_factor(d):
    """One factor between all elements."""
    expected, got = d.wide
    known = (expected != 0) & np.isfinite(expected)
    if not known.any() or not np.isfinite(got[known]).all():
        return None
    factor = (got[known] / expected[known])[0]
    same = np.abs(got - factor * expected) <= 2.0**-20 * np.abs(got)
    if known.sum() > 1 and (same | (np.isnan(got) & np.isnan(expected))).all():
        return f"all are {factor:.6g} times what they should be", ()
    return None


def _pattern(d):
    """What wrong elements have in common: rows that moved, columns left out, numbers from which an index overflows."""
    if d.differs.ndim == 0:
        return None
    bad, expected, got = (a.reshape(len(a), -1) for a in (d.differs, *d.wide))
    rows, columns = np.flatnonzero(bad.any(1)), np.flatnonzero(bad.any(0))
    found = _moved_rows(rows, expected, got) or _columns(columns, bad, got) or _flat(bad) or _same_rows(rows, bad, got)
    return (found, ()) if found else None


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
    found = f"{len(rows)} of {len(bad)} rows are wrong, the first is {rows[0]}"
    return f"{found}: no change of one or two edges of a row explains it"


LOOKS: tuple[Look, ...] = (_not_numbers, _all_zero, _edges_or_assumption, _one_factor, _pattern)
