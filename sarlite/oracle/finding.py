"""`Finding`: one wrong result of a check, with the first wrong element and a probable cause; `SavedCase`: contents of a .sarcase."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from sarlite.oracle.case import Case
from sarlite.oracle.renamed import warn_renamed
from sarlite.types import Array

NUMBERS = ("expected", "got", "bound")
POSITIONS = ("layer", "rank", "node", "edge", "row", "column")
Edges = tuple[tuple[int, ...], ...]  # (src, dst) of each edge


class Verdict(Enum):
    """Verdict of a check, worst first: a check with several findings has the first verdict in this order.

    Examples
    --------
    >>> from sarlite import oracle
    >>> [verdict.name for verdict in oracle.Verdict]
    ['WRONG', 'IMPRECISE', 'NONDETERMINISTIC', 'THREADS', 'LIMIT', 'UNSUPPORTED', 'PASS']
    """

    WRONG = "a result that no order of evaluation and no rounding explains"
    IMPRECISE = "an error above the bound of every order of evaluation, that sums in a lower precision would explain"
    NONDETERMINISTIC = "two answers to one input on the same number of threads"
    THREADS = "another answer on one thread than on several, the same one each time"
    LIMIT = "a call took longer than the time limit, or needed more memory than there is"
    UNSUPPORTED = "nothing was checked: the function refused all cases, or no element was decided"
    PASS = "nothing was found"


@dataclass(frozen=True)
class Finding:
    """One wrong result of a check: the case, the first wrong element, its expected and returned value, and the probable cause.

    Parameters
    ----------
    verdict : Verdict
    level : str
        "probe", "certified", "repeat", "invariant", "call", "sampling", "ranks" or "corpus".
    case : Case or str
        The case; its name alone if the report has enough findings of this kind already.
    output : str
        Name of the output, such as "out"; "d<name>" for the gradient of an input or parameter.
    cause : str
        Probable cause in one line, such as "edge 17 (3 -> 5) is lost".
    layer, rank, node, edge, row, column : int, optional
        Place of the first wrong element. Its row is a node, an edge (for values by edge) or a row of a parameter;
        `column` is the flat index of the other axes. `rank` is set for a run on several ranks, `layer` for a model.
    edges : tuple of (src, dst)
        Edges that the cause names.
    expected, got, bound : float, optional
        Expected and returned value of the first wrong element, and its error bound.
    evidence : SavedCase, optional
        The case with all arrays that were compared; None if `case` is a name.
    support : int
        Number of cases whose every wrong element the cause explains: 0, 1 (this case) or 2 (also one on another graph).
    trace : str
        Traceback of an exception of the function under test, without the oracle's own frames.

    Examples
    --------
    >>> from sarlite import oracle
    >>> report = oracle.check(lambda case: 2 * case.x[case.src], "gather", level="probe", graphs="ring-3", shrink=False)
    >>> finding = report.first_bad
    >>> finding.verdict.name, finding.output, finding.cause
    ('WRONG', 'out', 'all are 2 times what they should be')
    >>> finding.edge, finding.column, finding.expected, finding.got
    (0, 0, 1.0, 2.0)
    """

    verdict: Verdict
    level: str
    case: Case | str
    output: str
    cause: str
    layer: int | None = None
    rank: int | None = None
    node: int | None = None
    edge: int | None = None
    row: int | None = None
    column: int | None = None
    edges: Edges = ()
    expected: float | None = None
    got: float | None = None
    bound: float | None = None
    evidence: SavedCase | None = field(default=None, compare=False, repr=False)
    support: int = 0
    trace: str = field(default="", compare=False, repr=False)

    @property
    def case_name(self) -> str:
        """Name of the finding's case."""
        return self.case.name if isinstance(self.case, Case) else self.case

    def to_dict(self) -> dict[str, object]:
        """Return the finding as a dict for JSON; NaN and Inf become text."""
        numbers = {name: getattr(self, name) for name in NUMBERS}
        return {
            "verdict": self.verdict.name, "level": self.level, "output": self.output, "cause": str(self.cause),
            **{name: getattr(self, name) for name in POSITIONS},
            **{name: value if value is None or math.isfinite(value) else str(value) for name, value in numbers.items()},
            "edges": [[int(end) for end in edge] for edge in self.edges],
        }  # fmt: skip

    def told(self) -> dict[str, object]:
        """Return `to_dict()`, and warn that `told` is the former name of `to_dict`."""
        warn_renamed("Finding.told", "to_dict")
        return self.to_dict()

    def __str__(self) -> str:
        places = [f"{name} {value}" for name in POSITIONS
                  if (value := getattr(self, name)) is not None]
        text = f"{self.level}, {self.case_name}, " + ", ".join([self.output, *places])
        if self.got is not None:
            bound = f" +- {self.bound:.3g}" if self.bound else ""
            text += f": expected {self.expected!r}{bound}, got {self.got!r}"
        return f"{text}; {self.cause}"


@dataclass(frozen=True, eq=False)
class SavedCase:
    """A case with its expected and returned arrays and their error bounds: the contents of a .sarcase directory.

    Attributes
    ----------
    case : Case
    cotangents : dict of str to array
        Gradient of each output that the case's gradients are computed from; empty if gradients are not checked.
    expected, bounds, got : dict of str to array
        Expected arrays, error bounds (float64) and returned arrays, by output; gradients as "d<name>".
    finding : Finding, optional
    """

    case: Case
    cotangents: Mapping[str, Array] = field(default_factory=dict)
    expected: Mapping[str, Array] = field(default_factory=dict)
    bounds: Mapping[str, Array] = field(default_factory=dict)
    got: Mapping[str, Array] = field(default_factory=dict)
    finding: Finding | None = None
