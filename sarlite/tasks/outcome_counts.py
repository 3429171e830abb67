"""Counts of a split's rows, for a run's page: a confusion matrix or a histogram."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from sarlite.tasks.class_metrics import confidence
from sarlite.tasks.metrics import Metric
from sarlite.types import Array

MOST_CLASSES, BINS = 64, 20
SCORE_EDGES = 1 / (1 + np.exp(-np.linspace(-12, 12, 241)))
"""Edges of the bins of probabilities, (241,) float64: even steps of the logit, so that rare classes have many bins."""
CountRows = Callable[[Array, Array], Array]
"""(output, targets) of some rows -> counts, an array of one shape in each call."""


class OutcomeCounts(NamedTuple):
    """Counts of the best model's rows.

    Attributes
    ----------
    description : dict
        JSON-able: the "kind" of the counts, and the names of their axes.
    count_rows : callable
        (output, targets) -> counts.
    """

    description: dict[str, Any]
    count_rows: CountRows


class SummedCounts(Metric):
    """Sum over rows of the counts that `count` returns."""

    def __init__(self, count: CountRows) -> None:
        self.count, self.sums = count, np.zeros(())

    def add(self, output: Array, labels: Array) -> None:
        self.sums = self.sums + self.count(output, labels)

    def counts(self) -> Array:
        return self.sums


def confusion(n_classes: int) -> CountRows:
    """Return the function that counts rows by true class (first axis) and predicted class (second axis)."""
    shape = n_classes, n_classes
    return lambda output, targets: np.bincount(
        n_classes * targets.astype(np.int64) + output[:, :n_classes].argmax(1), minlength=n_classes**2).reshape(shape)


def histogram(series: Callable[[Array, Array], Sequence[Array]], edges: Array) -> CountRows:
    """Return the function that counts the values of each series by bin.

    The outer bins also count the values beyond the edges.
    """
    return lambda output, targets: np.stack([np.histogram(np.clip(values, edges[0], edges[-1]), edges)[0]
                                             for values in series(output, targets)])


def score_counts(output: Array, labels: Array, positive: int) -> Array:
    """Return the number of negative and of positive rows by bin of their probability, (2, 240) int64.

    See `class_metrics.confidence` for the rows and probabilities.
    """
    probabilities, true = confidence(output, labels, positive)
    clipped = np.clip(np.nan_to_num(probabilities), SCORE_EDGES[0], SCORE_EDGES[-1])
    return np.stack([np.histogram(clipped[true == value], SCORE_EDGES)[0] for value in (False, True)])


def histogram_counts(names: list[str], series: Callable[[Array, Array], Sequence[Array]],
                     edges: Array) -> OutcomeCounts:
    """Return the counts of a histogram with one series for each name."""
    description = {"kind": "histogram", "edges": edges.tolist(), "series": names}
    return OutcomeCounts(description, histogram(series, edges))


def logistic(logits: Array) -> Array:
    """Return 1 / (1 + exp(-logits)), float64."""
    with np.errstate(over="ignore"):
        return 1 / (1 + np.exp(-logits.astype(np.float64)))
