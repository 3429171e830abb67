"""Placement of a tensor's values on ranks, and the rule that gives the result of an operation its placement."""

from collections.abc import Collection
from typing import Literal

Placement = Literal["rows", "replicated", "unknown"]
"""Placement of a tensor's values.

"rows": axis 0 holds rows that this rank owns, such as nodes, edges or graphs; other ranks hold other rows.
"replicated": every rank holds the same values, such as a learned weight.
"unknown": the placement was not specified, as for arrays and for tensors that are created from arrays.
"""

ROWS: Placement = "rows"
REPLICATED: Placement = "replicated"
UNKNOWN: Placement = "unknown"
PLACEMENTS = (ROWS, REPLICATED, UNKNOWN)


def joined(placements: Collection[Placement]) -> Placement:
    """Return the placement of a result from the inputs' `placements`: "rows" if any input is rows, "replicated" if all inputs
    are replicated, else "unknown".

    Parameters
    ----------
    placements : collection of Placement
        Placements of the inputs, without inputs that are numbers.

    Returns
    -------
    Placement
        "rows" if an input is rows; "replicated" if all inputs are replicated; else "unknown".

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
