"""The inputs that a graph of the corpus is asked with: exact ones, and random ones."""

from __future__ import annotations

from typing import Any

from sarlite.oracle import probe
from sarlite.oracle.case import Case
from sarlite.oracle.corpus import Entry
from sarlite.oracle.reference import Reference, suited
from sarlite.oracle.report import Report
from sarlite.oracle.values import special


def exact(reference: Reference, entry: Entry, report: Report, **options: Any) -> list[Case]:
    """Return the probes of a graph; where none is exact, which counts as not covered, one case of small integers.

    Parameters
    ----------
    reference : Reference
    entry : Entry
    report : Report
    **options
        dtype, index_dtype and seed, as of `Reference.case`.

    Raises
    ------
    ConfigError, ShapeError
        The formula has no meaning on this graph.
    """
    try:
        return probe.cases(reference, entry, **options)
    except probe.NotExact as error:
        report.skip("graphs without an exact probe: integers, and whichever elements are exact", str(error))
    name = f"{entry.name}/integers"
    return [suited(reference, entry.edges, name=name, values="integers", width=entry.width,
                   square=entry.square, **options)]


def random(reference: Reference, entry: Entry, report: Report, **options: Any) -> list[Case]:
    """Return one case of random numbers, with what is special about the graph's values; as `exact` otherwise."""
    case = suited(reference, entry.edges, name=f"{entry.name}/random", values="random", width=entry.width,
                  square=entry.square, **options)
    return [special(reference, case, entry.values)]
