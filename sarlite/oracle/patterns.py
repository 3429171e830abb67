"""What wrong elements have in common: rows that moved, columns left out, numbers from which an index overflows."""

from __future__ import annotations

import numpy as np

from sarlite.oracle.locate import direction
from sarlite.types import Array


def pattern(bad: Array, expected: Array, got: Array) -> str | None:
    """Return what rows, columns or numbers the wrong elements have in common, one line; None where nothing is seen."""
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
    keys = [a @ direction(a.shape[1]) for a in (expected, got)]
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
