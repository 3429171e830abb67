"""`Scope`: the widths, degrees and sizes of a check's cases, and the inputs that its verdict does not cover."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from sarlite.oracle.case import Case
from sarlite.oracle.choices import DTYPES, INDEX_DTYPES
from sarlite.oracle.corpus import VALUES, Entry
from sarlite.oracle.reference import Reference

# Names of the arrays that a kind of special values needs; the other kinds suit every array.
_NEEDED_ARRAYS = {"weights": ("weight",), "scores": ("scores", "el", "er"), "masked": ("scores", "el", "er")}


@dataclass
class Scope:
    """Record of the inputs that a check has covered (widths, kinds of values, degrees and sizes), to name the inputs that its
    verdict does not cover.

    Attributes
    ----------
    widths : set of int
    values : set of str
        Kinds of values, keys of corpus.VALUES.
    max_in_degree, max_out_degree, rows : int
    max_values : int
        Largest number of edges times columns.
    """

    widths: set[int] = field(default_factory=set)
    values: set[str] = field(default_factory=set)
    max_in_degree: int = 0
    max_out_degree: int = 0
    rows: int = 0
    max_values: int = 0

    def add(self, entry: Entry, cases: Sequence[Case]) -> None:
        """Extend the covered widths, degrees, sizes and kinds of values by `cases`, the cases of the graph `entry`; nothing
        changes if `cases` is empty.
        """
        if not cases:
            return
        edges = entry.edges
        self.values.add(entry.values)
        self.widths |= {entry.width} if edges.n_edges else set()
        self.max_in_degree = max(self.max_in_degree, int(edges.in_degrees.max(initial=0)))
        self.max_out_degree = max(self.max_out_degree, int(edges.out_degrees.max(initial=0)))
        self.rows = max(self.rows, edges.n_src, edges.n_dst)
        self.max_values = max(self.max_values, edges.n_edges * entry.width)

    def gaps(self, reference: Reference, levels: Sequence[str], repeats: int, *, dtype: str, index_dtype: str) -> str:
        """Return one line that lists inputs which no case covered, such as larger degrees. `reference` is the checked operation;
        `levels`, `repeats` (further calls on the same input), `dtype` and `index_dtype` are the check's options.
        """
        arrays = reference.arrays_by
        missing = [text for name, text in VALUES.items() if name not in self.values and text
                   and any(array in arrays for array in _NEEDED_ARRAYS.get(name, arrays))]
        if "repeat" in levels:
            races = f"races that show in fewer than one of {repeats + 1} calls of an input"
        else:
            races = "whether the same input gives the same bits"
        beyond = [f"widths other than {spans(self.widths)}",
                  f"rows of more than {self.max_in_degree:,} edges in or {self.max_out_degree:,} out", f"more than {self.rows:,} rows",
                  f"more than {self.max_values:,} numbers by edge and column",
                  f"numbers of {_others(dtype, DTYPES)}", f"indices of {_others(index_dtype, INDEX_DTYPES)}", races]
        return "; ".join([*missing, *beyond])


def _others(name, names):
    return ", ".join(other for other in names if other != name)


def spans(numbers: Iterable[int]) -> str:
    """Return a text that joins consecutive numbers to ranges with both ends, such as "1 to 9, 15 to 17, 31"."""
    ordered = np.array(sorted(numbers), int)
    parts = np.split(ordered, np.flatnonzero(np.diff(ordered) > 1) + 1)
    return ", ".join(str(part[0]) if len(part) == 1 else f"{part[0]} to {part[-1]}" for part in parts if len(part))
