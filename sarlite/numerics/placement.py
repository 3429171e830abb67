"""Placement: which values of a tensor each rank holds, and the one rule that gives a result its placement."""

from collections.abc import Collection
from typing import Literal

Placement = Literal["rows", "replicated", "unknown"]
"""Placement of a tensor's values.

"rows": axis 0 holds rows that this rank owns, such as nodes, edges or graphs; other ranks hold other rows.
"replicated": every rank holds the same values, as those of a learned weight.
"unknown": nobody said which of the two; so it is with arrays, and with tensors that are made of them.
"""

ROWS: Placement = "rows"
REPLICATED: Placement = "replicated"
UNKNOWN: Placement = "unknown"
PLACEMENTS = (ROWS, REPLICATED, UNKNOWN)


def joined(placements: Collection[Placement]) -> Placement:
    """Return the placement of a result, given the placements of the values that it is computed from.

    With rows among them the result is rows. A result of replicated values alone is replicated. Any other result is
    unknown. Numbers are the same on every rank and are not listed.

    Examples
    --------
    >>> joined(["replicated", "rows", "unknown"])
    'rows'
    >>> joined(["replicated", "replicated"])
    'replicated'
    >>> joined(["replicated", "unknown"])
    'unknown'
    """
    if ROWS in placements:
        return ROWS
    return REPLICATED if placements and UNKNOWN not in placements else UNKNOWN
