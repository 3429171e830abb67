"""`shrink`: makes a failing case small by delta debugging over its edges, rows and columns."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from sarlite.oracle import cut
from sarlite.oracle.case import Case
from sarlite.oracle.reference import Reference


def shrink(reference: Reference, case: Case, still_fails: Callable[[Case], bool], most_calls: int = 400) -> Case:
    """Return a case on fewer edges, rows and columns that still fails, after at most `most_calls` calls of `still_fails`.

    Parameters
    ----------
    reference : Reference
    case : Case
        A case that fails.
    still_fails : (Case) -> bool
        Calls the function under test and compares the result. Its exceptions pass through.
    most_calls : int
        Largest number of calls; then the smallest failing case so far is returned.

    Returns
    -------
    Case
        Unless the calls ran out, the case passes without any one of its edges. Its name ends in "/small".

    References
    ----------
    Zeller and Hildebrandt 2002, "Simplifying and isolating failure-inducing input": first halves are tried, then
    smaller and smaller parts.
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
    """The predicate `still_fails` with a limited number of calls: once `left`, the number of calls that remain, is 0, every case
    counts as passing.
    """

    def __init__(self, still_fails: Callable[[Case], bool], left: int) -> None:
        self.still_fails, self.left = still_fails, left

    def __call__(self, case: Case) -> bool:
        if self.left <= 0:
            return False
        self.left -= 1
        return self.still_fails(case)

    def better(self, case: Case, smaller: Case) -> Case:
        """Return `smaller` if it is smaller than `case` and still fails, else `case`."""
        return smaller if _size(smaller) < _size(case) and self(smaller) else case


def _size(case):
    return case.edges.n_edges, case.edges.n_src + case.edges.n_dst, sum(np.size(a) for a in case.arrays.values())


def _edges(reference: Reference, case: Case, attempts: _Attempts) -> Case:
    """Return the failing case with edges removed as long as it still fails. `attempts` tests each of several equal parts of the
    edges, then all edges but one part; the parts become ever smaller.
    """
    parts = 2
    while (n := case.edges.n_edges) and attempts.left > 0:
        bounds = np.linspace(0, n, min(parts, max(n, 2)) + 1).astype(int)
        ranges = [np.arange(a, b) for a, b in zip(bounds[:-1], bounds[1:])]
        rest = [] if parts == 2 else [np.setdiff1d(np.arange(n), part, assume_unique=True) for part in ranges]
        tries = [*(ranges if parts <= 8 else ()), *rest]
        smaller_case = next((smaller for edge_index in tries if len(edge_index) < n
                      and attempts(smaller := cut.on_edges(reference, case, edge_index))), None)
        if smaller_case is not None:
            case, parts = smaller_case, max(2, parts // 2)
        elif parts >= n:
            break
        else:
            parts *= 2
    return case


def _columns(reference: Reference, case: Case, attempts: _Attempts) -> Case:
    """Return the failing case with columns removed as long as it still fails; `attempts` tests each half, and all columns but the
    first or last.
    """
    while (width := cut.width_of(reference, case)) is not None and width > 1 and attempts.left > 0:
        half = width // 2
        tries = [(0, half), (half, width), (0, width - 1), (1, width)]
        cuts = (cut.on_columns(reference, case, a, b) for a, b in tries)
        smaller_case = next((smaller for smaller in cuts if _size(smaller) < _size(case) and attempts(smaller)), None)
        if smaller_case is None:
            break
        case = smaller_case
    return case

