"""One thing that a check found: its verdict, its place, its probable cause. And what a .sarcase holds: `Saved`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from sarlite.oracle.case import Case
from sarlite.types import Array

NUMBERS = ("expected", "got", "bound")
PLACES = ("layer", "rank", "node", "edge", "row", "column")


class Verdict(Enum):
    """The worst finding of a check: the first verdict that applies, in this order."""

    WRONG = "a result that no order of evaluation and no rounding explains"
    IMPRECISE = "an error above the bound of every order of evaluation, that sums in a lower precision would explain"
    NONDETERMINISTIC = "two answers to one input on the same number of threads"
    THREADS = "another answer on one thread than on several, the same one each time"
    LIMIT = "a call took longer than the time limit, or needed more memory than there is"
    UNSUPPORTED = "nothing was checked: the function refused all cases, or no element was decided"
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
    layer, rank, node, edge, row, column : int, optional
        The first element that is wrong: its row (a node; an edge for values by edge; a parameter's row) and its column,
        flat.
    edges : tuple of (src, dst)
        What the difference decodes to.
    expected, got, bound : float, optional
    evidence : Saved, optional
        The case with the arrays that were compared; of later findings None.
    support : int
        How many cases the cause explains to the last wrong element: 0, 1 (this one), or 2 (one on another graph, too).
    trace : str
        Where the function under test raised an exception: its own frames.
    """

    verdict: Verdict
    level: str
    case: Any
    output: str
    cause: str
    layer: int | None = None
    rank: int | None = None
    node: int | None = None
    edge: int | None = None
    row: int | None = None
    column: int | None = None
    edges: tuple = ()
    expected: float | None = None
    got: float | None = None
    bound: float | None = None
    evidence: Saved | None = field(default=None, compare=False, repr=False)
    support: int = 0
    trace: str = field(default="", compare=False, repr=False)

    @property
    def case_name(self) -> str:
        return getattr(self.case, "name", self.case)

    def told(self) -> dict[str, Any]:
        """Return the finding as JSON has it: numbers that JSON does not know as text."""
        numbers = {name: getattr(self, name) for name in NUMBERS}
        return {
            "verdict": self.verdict.name, "level": self.level, "output": self.output, "cause": str(self.cause),
            **{name: getattr(self, name) for name in PLACES},
            **{name: value if value is None or math.isfinite(value) else str(value) for name, value in numbers.items()},
            "edges": [[int(end) for end in edge] for edge in self.edges],
        }  # fmt: skip

    def __str__(self) -> str:
        places = [f"{name} {value}" for name in PLACES
                  if (value := getattr(self, name)) is not None]
        text = f"{self.level}, {self.case_name}, " + ", ".join([self.output, *places])
        if self.got is not None:
            bound = f" +- {self.bound:.3g}" if self.bound else ""
            text += f": expected {self.expected!r}{bound}, got {self.got!r}"
        return f"{text}; {self.cause}"


@dataclass(frozen=True, eq=False)
class Saved:
    """A case with what was asked of a function, what was expected, what the function gave and what was found: what a
    .sarcase holds.

    Attributes
    ----------
    case : Case
    cotangents : dict of str to array
        The gradient of each output that gradients were asked by; empty where none were.
    expected, bounds, got : dict of str to array
        Outputs by name, gradients as "d<name>": in float64, the largest error that rounding explains, and what the
        function gave.
    finding : Finding, optional
    """

    case: Case
    cotangents: Mapping[str, Array] = field(default_factory=dict)
    expected: Mapping[str, Array] = field(default_factory=dict)
    bounds: Mapping[str, Array] = field(default_factory=dict)
    got: Mapping[str, Array] = field(default_factory=dict)
    finding: Finding | None = None
