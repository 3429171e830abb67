"""What a check found: a verdict, findings that name the place, and what was not covered."""

from dataclasses import dataclass
from enum import Enum
from typing import Any

from sarlite.errors import SarliteError


class Verdict(Enum):
    """The worst of what was found: the first that applies, in this order."""

    WRONG = "a result that no order of evaluation and no rounding explains"
    IMPRECISE = "an error above the bound of every order of evaluation, that sums in a lower precision would explain"
    NONDETERMINISTIC = "two answers to one input"
    UNSUPPORTED = "the function refused what it was asked, and nothing was checked"
    PASS = "nothing was found"


class OracleError(SarliteError, AssertionError):
    """Raised by `Report.require`: a check found something."""


@dataclass(frozen=True)
class Finding:
    """One thing found, with its place.

    Attributes
    ----------
    verdict : Verdict
    level : str
        "probe", "certified", "repeat", "invariant", "call" or "ranks".
    case : Case
    output : str
        "out" or the name of an output; "d<name>" of a gradient.
    cause : str
        The probable cause, one line, as "edge 17 (3 -> 5) is lost".
    layer, rank, node, column : int, optional
        The first element that is wrong: its row (a node, or an edge for values by edge) and its column, flat.
    edges : tuple of (src, dst)
        What the difference decodes to.
    expected, got, bound : float, optional
    """

    verdict: Verdict
    level: str
    case: Any
    output: str
    cause: str
    layer: int | None = None
    rank: int | None = None
    node: int | None = None
    column: int | None = None
    edges: tuple = ()
    expected: float | None = None
    got: float | None = None
    bound: float | None = None
