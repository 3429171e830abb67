"""What a wrong result says about its cause: which edge, which rows, which columns, which wrong assumption.

A cause is one line, and the (src, dst) of the edges that it is about. An edge or an assumption that is named explains
every element: the result under it is equal. No edge is searched for: a row's difference is the code of a row
(`locate`). Whole results are computed again (`assumptions`) on cases of up to assumptions.MOST edge-columns alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from sarlite.oracle import assumptions, locate, patterns
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
    a = case.attributes
    if case.op == "spmm" and a["reduce"] in ("max", "min") and d.output == "out" and not a["loops"]:
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
    found = patterns.pattern(d.differs, *d.wide)
    return None if found is None else (found, ())


LOOKS: tuple[Look, ...] = (_not_numbers, _all_zero, _edges_or_assumption, _one_factor, _pattern)
