"""A failing case, made small: delta debugging over edges, rows and columns."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from sarlite.oracle import cut
from sarlite.oracle.case import Case
from sarlite.oracle.reference import Reference


def shrink(reference: Reference, case: Case, still_fails: Callable[[Case], bool], most_calls: int = 400) -> Case:
    """Return a case on fewer edges, rows and columns that still fails.

    Parameters
    ----------
    reference : Reference
    case : Case
        One that fails.
    still_fails : (Case) -> bool
        Calls the function under test and compares; what it raises is raised here.
    most_calls : int
        After so many calls the smallest failing case is returned.

    Returns
    -------
    Case
        No single edge can be left out without the case's passing, unless calls ran out. Its name ends in "/small".

    Notes
    -----
    Source: Zeller and Hildebrandt 2002, "Simplifying and isolating failure-inducing input": halves first, then ever
    smaller parts.
    """
    attempts = _Attempts(still_fails, most_calls)
    for _ in range(2):
        before = _size(case)
        case = _edges(reference, case, attempts)
        case = attempts.better(case, cut.on_used_rows(reference, case))
        case = _columns(reference, case, attempts)
        if _size(case) == before:
            break
    return replace(case, name=case.name.removesuffix("/small") + "/small")


class _Attempts:
    """Counts the calls, and stops asking after the last."""

    def __init__(self, still_fails, left):
        self.still_fails, self.left = still_fails, left

    def __call__(self, case: Case) -> bool:
        if self.left <= 0:
            return False
        self.left -= 1
        return self.still_fails(case)

    def better(self, case, smaller):
        return smaller if _size(smaller) < _size(case) and self(smaller) else case


def _size(case):
    return case.edges.n_edges, case.edges.n_src + case.edges.n_dst, sum(np.size(a) for a in case.arrays.values())


def _edges(reference, case, attempts):
    """First parts alone, then all but a part, of ever more parts."""
    parts = 2
    while (n := case.edges.n_edges) and attempts.left > 0:
        bounds = np.linspace(0, n, min(parts, max(n, 2)) + 1).astype(int)
        ranges = [np.arange(a, b) for a, b in zip(bounds[:-1], bounds[1:])]
        rest = [] if parts == 2 else [np.setdiff1d(np.arange(n), part, assume_unique=True) for part in ranges]
        tries = [*(ranges if parts <= 8 else ()), *rest]
        found = next((smaller for kept in tries if len(kept) < n
                      and attempts(smaller := cut.on_edges(reference, case, kept))), None)
        if found is not None:
            case, parts = found, max(2, parts // 2)
        elif parts >= n:
            break
        else:
            parts *= 2
    return case


def _columns(reference, case, attempts):
    """Halves of the columns, then all but the first or the last."""
    while (width := cut.width_of(reference, case)) is not None and width > 1 and attempts.left > 0:
        half = width // 2
        tries = [(0, half), (half, width), (0, width - 1), (1, width)]
        cuts = (cut.on_columns(reference, case, a, b) for a, b in tries)
        found = next((smaller for smaller in cuts if _size(smaller) < _size(case) and attempts(smaller)), None)
        if found is None:
            break
        case = found
    return case

