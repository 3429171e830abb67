"""Test cases that a check makes on one graph: probes, whose results are exact in any order of evaluation, and random values."""

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
from sarlite.oracle.reference import Reference, valid_case
from sarlite.oracle.values import special

LARGE_MEAN = 1000.0  # mean of every second column of the input of batch norm


def cases(reference: Reference, entry: Entry, levels: Collection[str], report: Report, **options: Any
          ) -> tuple[list[Case], list[Case]]:
    """Return (probes, [random case]), the test cases on the graph of `entry`: probes have exact results, the random case has
    random values. A list is empty if no level of the check in `levels` needs it. Both are empty if the formula of `reference` is
    not defined on the graph; `report` then counts the graph as not covered.

    If no probe is exact, `report` counts that as not covered, and a case of small integers replaces the probes.
    `options` are keyword arguments of `Reference.case`.
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
    x = case.arrays["x"]  # a large mean shows a variance that is computed as E[x^2] - E[x]^2, which cancels
    moved = rounded(x + LARGE_MEAN * (np.arange(x.shape[1]) % 2), case.format)
    return replace(case, arrays={**case.arrays, "x": moved})


def _drawn(reference, entry, values, options):
    return valid_case(reference, entry.edges, name=f"{entry.label}/{values}", values=values, width=entry.width,
                  square=entry.square, **options)
