"""Metrics of links among negatives. A row of the output has the score of a link, and then the scores of negatives."""

from collections.abc import Callable

import numpy as np

from sarlite.comm import Communicator
from sarlite.tasks.class_metrics import RocAuc, average_precision
from sarlite.tasks.metrics import MeanMetric, ScoreMetric
from sarlite.types import Array


class LinkAuc(RocAuc):
    """ROC-AUC of links against the negatives of all links. A row of the output is a link and its negatives."""

    def add(self, output: Array, labels: Array) -> None:
        self.rows.append((output.reshape(-1, 1), _first_column(output).reshape(-1, 1)))


class LinkAveragePrecision(ScoreMetric):
    """Average precision: the mean over links of the share of links among candidates with the link's score or higher.

    Equal scores are one step, as in scikit-learn.
    """

    def add(self, output: Array, labels: Array) -> None:
        self.rows.append((output.reshape(-1), _first_column(output).reshape(-1)))

    def of(self, scores: Array, positive: Array, comm: Communicator) -> float | None:
        return average_precision(comm, scores, positive)


class LinkRank(MeanMetric):
    """Mean over links of a function of the link's rank among its own negatives. A tie counts half, as in OGB.

    Parameters
    ----------
    of_rank : callable
        (ranks from 1, (n,)) -> numbers in [0, 1], (n,).
    least : int
        The fewest negatives that the metric is defined for.
    """

    def __init__(self, of_rank: Callable[[Array], Array], least: int = 1) -> None:
        super().__init__()
        self.of_rank, self.least = of_rank, least

    def add(self, output: Array, labels: Array) -> None:
        link, others = output[:, :1], output[:, 1:]
        ranks = 1 + (others > link).sum(1) + 0.5 * (others == link).sum(1)
        self.add_up(self.of_rank(ranks)[:, None].astype(np.float64), np.isnan(output).any(1))


def _first_column(output):
    """Return True in the first column, which has the links, bools of `output`'s shape."""
    return np.arange(output.shape[1]) == np.zeros((len(output), 1))
