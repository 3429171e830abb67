"""Counts of the rows of a split for a run's report page: a confusion matrix or a histogram."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from sarlite.tasks.class_metrics import confidence
from sarlite.tasks.metrics import Metric
from sarlite.types import Array

MOST_CLASSES, BINS = 64, 20
"""Largest number of classes of a confusion matrix, and number of bins of a histogram."""
SCORE_EDGES = 1 / (1 + np.exp(-np.linspace(-12, 12, 241)))
"""Edges of the bins of probabilities, (241,) float64, at equal steps of the logit, so that rare classes have many bins."""
CountRows = Callable[[Array, Array], Array]
"""Function (output, targets) of some rows -> counts, an array with the same shape in each call."""


class OutcomeCounts(NamedTuple):
    """Counts for a run's report page, such as a confusion matrix. An instance holds a description of the counts and the function (output,
    targets) -> counts.

    Attributes
    ----------
    description : dict
        The "kind" of the counts and the names of their axes, JSON-serializable.
    count_rows : callable
        Function (output, targets) -> counts.
    """

    description: dict[str, object]
    count_rows: CountRows


class SummedCounts(Metric):
    """Metric that counts rows for a run's report page: it sums the arrays that a function (output, targets) -> counts returns for the
    batches.
    """

    def __init__(self, count: CountRows) -> None:
        self.count, self.sums = count, np.zeros(())

    def add(self, output: Array, labels: Array) -> None:
        self.sums = self.sums + self.count(output, labels)

    def counts(self) -> Array:
        return self.sums


def confusion(n_classes: int) -> CountRows:
    """Return a function (output, targets) -> confusion matrix, (n_classes, n_classes): the number of rows by true class (first axis) and
    predicted class (second axis).

    Examples
    --------
    >>> confusion(2)(np.array([[1.0, 0.0], [1.0, 0.0]]), np.array([0, 1])).tolist()
    [[1, 0], [1, 0]]
    """
    shape = n_classes, n_classes
    return lambda output, targets: np.bincount(
        n_classes * targets.astype(np.int64) + output[:, :n_classes].argmax(1), minlength=n_classes**2).reshape(shape)


def histogram(series: Callable[[Array, Array], Sequence[Array]], edges: Array) -> CountRows:
    """Return a function (output, targets) -> counts, (n_series, n_bins): a histogram of each array of values that `series`(output, targets)
    returns. `edges` are the bounds of the bins; the outer bins count the values beyond them, too.

    Parameters
    ----------
    series : callable
        Function (output, targets) -> list of arrays of values, one array for each series.
    edges : (n_bins + 1,) array
        Edges of the bins. The outer bins also count the values beyond the edges.
    """
    return lambda output, targets: np.stack([np.histogram(np.clip(values, edges[0], edges[-1]), edges)[0]
                                             for values in series(output, targets)])


def score_counts(output: Array, labels: Array, positive: int) -> Array:
    """Return the numbers of negative (row 0) and positive (row 1) rows in each of 240 bins of the predicted probability of class
    `positive`, (2, 240) int64.

    The bins are those of `SCORE_EDGES`.

    `class_metrics.confidence` returns the probabilities, and the rows that are positive.
    """
    probabilities, true = confidence(output, labels, positive)
    clipped = np.clip(np.nan_to_num(probabilities), SCORE_EDGES[0], SCORE_EDGES[-1])
    return np.stack([np.histogram(clipped[true == value], SCORE_EDGES)[0] for value in (False, True)])


def histogram_counts(names: list[str], series: Callable[[Array, Array], Sequence[Array]],
                     edges: Array) -> OutcomeCounts:
    """Return the `OutcomeCounts` of a histogram with one series of counts for each of the `names`. `series` is a function (output, targets)
    -> arrays of values, one for each name, and `edges` are the bounds of the bins.
    """
    description = {"kind": "histogram", "edges": edges.tolist(), "series": names}
    return OutcomeCounts(description, histogram(series, edges))
