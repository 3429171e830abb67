"""`Scope`: the extremes of a check's cases, and so the inputs that its verdict does not cover."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from sarlite.oracle.case import Case
from sarlite.oracle.choices import DTYPES, INDEX_DTYPES
from sarlite.oracle.corpus import VALUES, Entry
from sarlite.oracle.reference import Reference

# Special values that only some operations can meet: by the name of an array.
_OF_ARRAYS = {"weights": ("weight",), "scores": ("scores", "el", "er"), "masked": ("scores", "el", "er")}


@dataclass
class Scope:
    """The extremes of some cases."""

    widths: set[int] = field(default_factory=set)
    values: set[str] = field(default_factory=set)  # of corpus.VALUES
    into: int = 0  # the most edges into a row
    out_of: int = 0
    rows: int = 0
    numbers: int = 0  # by edge and column

    def add(self, entry: Entry, cases: Sequence[Case]) -> None:
        """Take in what a graph's cases have."""
        if not cases:
            return
        edges = entry.edges
        self.values.add(entry.values)
        self.widths |= {entry.width} if edges.n_edges else set()
        self.into = max(self.into, int(edges.in_degrees.max(initial=0)))
        self.out_of = max(self.out_of, int(edges.out_degrees.max(initial=0)))
        self.rows = max(self.rows, edges.n_src, edges.n_dst)
        self.numbers = max(self.numbers, edges.n_edges * entry.width)

    def told(self, reference: Reference, levels: Sequence[str], repeats: int, *, dtype: str, index_dtype: str) -> str:
        """Return what no case had, one line."""
        arrays = reference.arrays_by
        missing = [text for name, text in VALUES.items() if name not in self.values and text
                   and any(array in arrays for array in _OF_ARRAYS.get(name, arrays))]
        if "repeat" in levels:
            races = f"races that show in fewer than one of {repeats + 1} calls of an input"
        else:
            races = "whether the same input gives the same bits"
        beyond = [f"widths other than {spans(self.widths)}",
                  f"rows of more than {self.into:,} edges in or {self.out_of:,} out", f"more than {self.rows:,} rows",
                  f"more than {self.numbers:,} numbers by edge and column",
                  f"numbers of {_others(dtype, DTYPES)}", f"indices of {_others(index_dtype, INDEX_DTYPES)}", races]
        return "; ".join([*missing, *beyond])


def _others(name, names):
    return ", ".join(other for other in names if other != name)


def spans(numbers: Iterable[int]) -> str:
    """Return numbers as "1 to 9, 15 to 17, 31"."""
    ordered = np.array(sorted(numbers), int)
    parts = np.split(ordered, np.flatnonzero(np.diff(ordered) > 1) + 1)
    return ", ".join(str(part[0]) if len(part) == 1 else f"{part[0]} to {part[-1]}" for part in parts if len(part))
