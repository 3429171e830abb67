"""One thing that a check found: its verdict, its place, its probable cause."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sarlite.oracle.case import Saved


class Verdict(Enum):
    """The worst of what was found: the first that applies, in this order."""

    WRONG = "a result that no order of evaluation and no rounding explains"
    IMPRECISE = "an error above the bound of every order of evaluation, that sums in a lower precision would explain"
    NONDETERMINISTIC = "two answers to one input"
    UNSUPPORTED = "the function refused what it was asked, and nothing was checked"
    PASS = "nothing was found"


@dataclass(frozen=True)
class Finding:
    """One thing found, with its place.

    Attributes
    ----------
    verdict : Verdict
    level : str
        "probe", "certified", "repeat", "invariant", "call", "sampling" or "ranks".
    case : Case
        Of later findings its name alone.
    output : str
        "out" or the name of an output; "d<name>" of a gradient.
    cause : str
        The probable cause, one line, as "edge 17 (3 -> 5) is lost".
    layer, rank, node, column : int, optional
        The first element that is wrong: its row (a node, or an edge for values by edge) and its column, flat.
    edges : tuple of (src, dst)
        What the difference decodes to.
    expected, got, bound : float, optional
    evidence : Saved, optional
        The case with the arrays that were compared; of later findings None.
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
    evidence: Saved | None = field(default=None, compare=False, repr=False)

    def __str__(self) -> str:
        places = [f"{name} {value}" for name in ("layer", "rank", "node", "column")
                  if (value := getattr(self, name)) is not None]
        text = f"{self.level}, {getattr(self.case, 'name', self.case)}, " + ", ".join([self.output, *places])
        if self.got is not None:
            bound = f" +- {self.bound:.3g}" if self.bound else ""
            text += f": expected {self.expected!r}{bound}, got {self.got!r}"
        return f"{text}; {self.cause}"
