"""The inputs that a graph of the corpus is asked with: exact ones, and random ones."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Any

import numpy as np

from sarlite.errors import ConfigError, ShapeError
from sarlite.oracle import probe
from sarlite.oracle.case import Case
from sarlite.oracle.check_report import Report
from sarlite.oracle.corpus import Entry
from sarlite.oracle.formats import rounded
from sarlite.oracle.reference import Reference, suited
from sarlite.oracle.values import special

LARGE_MEAN = 1000.0  # of every second column that batch norm gets


def cases(reference: Reference, entry: Entry, levels: Collection[str], report: Report, **options: Any
          ) -> tuple[list[Case], list[Case]]:
    """Return the probes of a graph, and one case of random numbers with the graph's special values.

    Where no probe is exact, which counts as not covered, one case of small integers stands for them. Each is there
    where `levels` ask it. A graph on which the formula has no meaning counts as not covered, and has no cases.
    `options` are as of `Reference.case`.
    """
    try:
        exact = _exact(reference, entry, report, options) if "probe" in levels else []
        random = [_random(reference, entry, options)] if set(levels) - {"probe"} else []
    except (ConfigError, ShapeError) as error:
        report.skip("graphs that do not suit", f"{entry.name}: {error}")
        return [], []
    return exact, random


def _exact(reference, entry, report, options):
    try:
        return probe.cases(reference, entry, **options)
    except probe.NotExact as error:
        report.skip("graphs without an exact probe: integers, and whichever elements are exact", str(error))
    return [_drawn(reference, entry, "integers", options)]


def _random(reference, entry, options):
    case = special(reference, _drawn(reference, entry, "random", options), entry.values)
    if reference.name != "batch_norm" or entry.values != "codes":
        return case
    x = case.arrays["x"]  # a variance as E[x^2] - E[x]^2 cancels where the mean is large
    moved = rounded(x + LARGE_MEAN * (np.arange(x.shape[1]) % 2), case.format)
    return replace(case, arrays={**case.arrays, "x": moved})


def _drawn(reference, entry, values, options):
    return suited(reference, entry.edges, name=f"{entry.label}/{values}", values=values, width=entry.width,
                  square=entry.square, **options)
