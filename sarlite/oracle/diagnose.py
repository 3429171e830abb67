"""Search for the probable cause of a wrong result: lost edges, moved rows, wrong columns, or a wrong assumption of the kernel.

A cause may describe one case exactly, such as a lost edge whose code is the whole difference. Otherwise it assumes
something about the function under test, and is reported only if a case on another graph confirms it (`Cause.confirms`).
Results under an assumption are computed only for cases of up to assumptions.MOST edges times columns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from math import gcd
from typing import NamedTuple

import numpy as np

from sarlite.oracle import assumptions, locate
from sarlite.oracle.difference import Difference
from sarlite.oracle.finding import Edges

NOTHING = "no single cause found"


class Cause(NamedTuple):
    """A probable cause of a wrong result, as one line of text with the edges that the line names.

    Attributes
    ----------
    text : str
        One line.
    edges : tuple of (src, dst)
        Edges that the text names.
    support : int
        See `Finding`.
    confirms : (Difference) -> bool, optional
        For an assumption: returns True if the assumption explains another difference, too.
    """

    text: str
    edges: Edges = ()
    support: int = 0
    confirms: Callable[[Difference], bool] | None = None

    def fits(self, other: Difference) -> bool:
        """Return True if this cause also explains `other`, the wrong array of another case; False if it does not, or if the cause
        can only be tested on its own case.
        """
        return self.confirms is not None and self.confirms(other)


CauseSearch = Callable[[Difference], Iterable[Cause]]


def causes(difference: Difference, searches: Sequence[CauseSearch]) -> Iterator[Cause]:
    """Yield the probable causes of the wrong array in `difference`, the most certain first: all causes that searches[0](difference)
    yields, then those from searches[1], and so on.
    """
    for search in searches:
        yield from search(difference)


def cause_of(difference: Difference) -> tuple[str, Edges]:
    """Return (text, edges that the text names) of the first probable cause of the wrong array in `difference`. The cause need
    not be confirmed by another case.
    """
    bad = difference.differs
    if not bad.any():
        return "nothing is wrong", ()
    nothing = Cause(f"{NOTHING}: {int(bad.sum())} of {bad.size} elements differ")
    return next(causes(difference, CAUSE_SEARCHES), nothing)[:2]


def _assumed(text: str, search: Callable[[Difference], object], key: object, difference: Difference) -> Cause:
    """Return a Cause with the text `text`, which names a wrong assumption of the kernel. `key` is the value that search(difference)
    has returned. If `search` returns the same value for the wrong array of another case of the same operation, that confirms the
    cause.
    """
    return Cause(text, confirms=lambda other: other.case.op == difference.case.op and search(other) == key)


# ---- numbers


def _not_numbers(difference: Difference) -> Iterator[Cause]:
    """Yield causes if the returned array in `difference` has NaN, Inf or a huge number in place of another number, or a number
    in place of NaN.
    """
    case, (expected, got) = difference.case, difference.as_float64
    lost = difference.differs & np.isnan(expected) & ~np.isnan(got)
    if lost.any() and lost.ndim and np.array_equal(lost, difference.differs):
        rows = np.flatnonzero(lost.reshape(len(lost), -1).any(1))
        yield Cause(f"NaN does not come through: {len(rows)} rows hold numbers in its place, the first is {rows[0]}")
        return
    odd = difference.differs & (~np.isfinite(got) | _is_largest(got))
    if not odd.any() or odd.ndim == 0:
        return
    rows = np.flatnonzero(odd.reshape(len(odd), -1).any(1))
    text = f"{got[odd].flat[0]:g} in {len(rows)} rows, the first is {rows[0]}"
    if not difference.output.startswith("d") and len(got) == case.edges.n_dst and not case.edges.in_degrees[rows].any():
        yield Cause(f"{text}: none of them has an in-edge")
        return
    if np.isinf(expected[odd]).all() and _is_largest(got[odd]).all():
        yield Cause(f"{text}, where {expected[odd].flat[0]:g} is right: an extremum starts at a finite number")
        return
    if _leaks(difference):
        yield _assumed(f"{text}: NaN and Inf leak from rows that no edge leaves", _leaks, True, difference)
    yield from _edges_or_assumptions(difference)
    yield Cause(text)


def _is_largest(got):
    return np.isfinite(got) & ((np.abs(got) > 1e30) | (np.abs(got) == 65504))


def _leaks(difference: Difference) -> bool:
    """Return True if input rows that no edge leaves hold NaN or Inf, and if wrong elements are NaN or Inf where the expected
    elements are finite.
    """
    reachable = difference.case.edges.out_degrees > 0
    spoilt = (len(a) == len(reachable) and not np.isfinite(a[~reachable]).all() for a in difference.case.arrays.values()
              if np.ndim(a) > 1)
    return bool((difference.differs & ~np.isfinite(difference.as_float64[1]) & np.isfinite(difference.as_float64[0])).any()) and any(spoilt)


def _all_zero(difference: Difference) -> Iterator[Cause]:
    if not difference.got.any():
        yield Cause("all are 0")


def _one_factor(difference: Difference) -> Iterator[Cause]:
    """Yield a cause if every returned element in `difference` is the expected element times the same factor."""
    factor = _factor(difference)
    if factor is not None:
        text = f"all are {factor:.6g} times what they should be"
        yield Cause(text, support=1, confirms=lambda other: _factor(other) == factor)
        yield Cause(text)


def _factor(difference: Difference) -> float | None:
    expected, got = difference.as_float64
    nonzero = (expected != 0) & np.isfinite(expected)
    if nonzero.sum() < 2 or not np.isfinite(got[nonzero]).all():
        return None
    factor = (got[nonzero] / expected[nonzero])[0]
    same = np.abs(got - factor * expected) <= 2.0**-20 * np.abs(got)
    return float(f"{factor:.6g}") if (same | (np.isnan(got) & np.isnan(expected))).all() else None


# ---- edges and assumptions about the formula


def located(difference: Difference) -> Cause | None:
    """Return a Cause (a line of text) that names lost, repeated or misrouted edges which together explain every wrong row in
    `difference`; None if no edges do.
    """
    if (named_edge := next(assumptions.named_edges(difference), None)) is not None:
        return Cause(*named_edge, support=1)
    is_extremum = locate.is_extremum(difference.case) and difference.output == "out"
    edge_sum, changes = _extremum_changes(difference) if is_extremum else _sum_changes(difference)
    return None if edge_sum is None or changes is None else Cause(*locate.describe(edge_sum, changes), support=1)


def _extremum_changes(difference):
    expected, got = difference.as_float64
    return locate.EdgeSum(difference.case.edges, expected, None, None), locate.extremum(difference.case, expected, got)


def _sum_changes(difference):
    together, by = [difference, *difference.siblings()], "out" if difference.output == "dx" else "x"
    if difference.output == "dx" and (difference.cotangents is None or len(together) > 1):
        return None, None
    senders = [(each.cotangents if by == "out" else each.case.arrays).get(by) for each in together]
    edge_sum = None if any(x is None for x in senders) else locate.edge_sum_of(difference.case, difference.output, senders)
    if edge_sum is None:
        return None, None
    return edge_sum, locate.find_changes(edge_sum, *(np.concatenate(parts, 1) for parts in zip(*(each.as_float64 for each in together))))


def _edges_or_assumptions(difference: Difference) -> Iterator[Cause]:
    """Yield causes of the wrong array in `difference` in this order: a single edge that explains all wrong rows, wrong
    assumptions of the kernel, several edges.
    """
    edges = located(difference) if difference.exact else None
    if edges is not None and len(edges.edges) == 1:
        yield edges
    for text, pairs in assumptions.that_fit(difference, assumptions.guesses(difference)):
        if pairs:
            yield Cause(text, pairs, support=1)
        else:
            yield Cause(text, confirms=partial(assumptions.explains, text))
    if edges is not None:
        yield edges


# ---- what wrong elements have in common


def _pattern(difference: Difference) -> Iterator[Cause]:
    """Yield causes that the positions of the wrong elements in `difference` suggest: moved rows, wrong heads or columns, index overflow."""
    if difference.differs.ndim == 0:
        return
    if (moved := _moved_rows(difference)) is not None:
        yield _assumed(moved, lambda other: _moved_rows(other) is not None and _moved_rows(other).split(":")[0],
                       moved.split(":")[0], difference)
    if (bits := _overflow(difference)) is not None:
        yield _assumed(f"elements from number 2^{bits} on are wrong: an index overflows", _overflow, bits, difference)
    if (tail := _tail(difference)) is not None:
        width, start, text = tail

        def same_block(other):
            other_tail = _tail(other)
            if other_tail is None or other_tail[0] == width:
                return False
            block = gcd(start, other_tail[1])
            return width - start < block and other_tail[0] - other_tail[1] < block

        yield Cause(f"{text}: the tail of a width that is no multiple of a block is lost", confirms=same_block)
    bad, got = _flat(difference.differs), _flat(difference.as_float64[1])
    rows = np.flatnonzero(bad.any(1))
    text = _heads(difference) or _columns(bad, got) or _zero_rows(rows, got) or _same_rows(rows, bad)
    if text:
        yield Cause(text)


def _flat(array):
    return array.reshape(len(array), -1)


def _moved_rows(difference):
    """Return a line of text if the wrong rows in `difference` hold the values of other rows, shifted or permuted; None otherwise."""
    bad, expected, got = map(_flat, (difference.differs, *difference.as_float64))
    rows = np.flatnonzero(bad.any(1))
    if not np.isfinite(got).all() or not np.isfinite(expected).all() or not got[rows].any():
        return None
    for shift in (1, -1):
        inner = slice(1, -1) if len(got) > 3 else slice(None)
        if len(rows) > 2 and np.array_equal(got[inner], np.roll(expected, shift, 0)[inner]):
            return f"rows are off by one: row i holds what row i {'-' if shift > 0 else '+'} 1 should"
    keys = [a @ locate.direction(a.shape[1]) for a in (expected, got)]
    order = np.argsort(keys[0], kind="stable")
    held = order[np.minimum(np.searchsorted(keys[0][order], keys[1][rows]), len(order) - 1)]
    if not (expected[held] == got[rows]).all():
        return None
    if len(rows) > 1 and np.array_equal(*(np.sort(k) for k in keys)):
        return f"rows are permuted: {len(rows)} rows stand at other places, the first is row {rows[0]}"
    return f"rows hold what other rows should: {len(rows)} rows, as row {rows[0]} what row {held[0]} should"


def _overflow(difference: Difference) -> int | None:
    """Return n if an index of n bits seems to have overflowed: no element before number 2^n is wrong, and most elements from there
    on are. Return None if there is no such n.
    """
    bad, expected, got = (np.ravel(a) for a in (difference.differs, *difference.as_float64))
    first = int(np.flatnonzero(bad)[0]) if bad.any() else 0
    row = max(bad.size // max(len(difference.differs), 1), 1)
    for bits in (7, 8, 15, 16, 31, 32):
        at = 1 << bits
        if at <= first < at + row and bad.size > at + row and bad[at:][(expected != 0)[at:] | (got != 0)[at:]].mean() > 0.5:
            return bits
    return None


def _tail(difference: Difference) -> tuple[int, int, str] | None:
    """Return (number of columns, first wrong column, text that names the wrong columns) if exactly the last columns of the
    array are wrong; None otherwise.
    """
    bad = _flat(difference.differs)
    columns, width = np.flatnonzero(bad.any(0)), bad.shape[1]
    if _by_head(difference) or not len(columns) or not 0 < columns[0] == width - len(columns):
        return None
    return width, int(columns[0]), _columns(bad, _flat(difference.as_float64[1]))


def _by_head(difference: Difference) -> bool:
    """Return True if axis 1 of the array that `difference` holds is the axis of attention heads."""
    return difference.case.op == "softmax" or difference.case.op == "attention" and difference.got.ndim > 1


def _heads(difference):
    if not _by_head(difference) or difference.got.shape[1] < 2:
        return None
    bad = difference.differs.reshape(*difference.differs.shape[:2], -1).any((0, 2))
    wrong = np.flatnonzero(bad)
    return None if bad.all() else f"heads {', '.join(map(str, wrong))} of {len(bad)} are wrong, the others right"


def _columns(bad, got):
    columns, width = np.flatnonzero(bad.any(0)), bad.shape[1]
    if len(columns) == width or width < 2:
        return None
    where = f"columns {columns[0]} to {columns[-1]}" if len(columns) > 1 else f"column {columns[0]}"
    filled = " and hold 0" if not got[bad].any() else ""
    some = "" if len(columns) == columns[-1] - columns[0] + 1 else f": {len(columns)} columns"
    return f"{where} of {width} {'is' if len(columns) == 1 else 'are'} wrong{filled}{some}"


def _zero_rows(rows, got):
    if got[rows].any():
        return None
    return f"rows are 0: {len(rows)} rows, the first is {rows[0]}, the last {rows[-1]} of {len(got)}"


def _same_rows(rows, bad):
    if len(rows) > len(bad) // 2:
        return None
    text = f"{len(rows)} of {len(bad)} rows are wrong, the first is {rows[0]}"
    return f"{text}: no change of one or two edges of a row explains it"


CAUSE_SEARCHES: tuple[CauseSearch, ...] = (_not_numbers, _all_zero, _edges_or_assumptions, _one_factor, _pattern)
assumptions_alone: tuple[CauseSearch, ...] = (_edges_or_assumptions,)
