"""Metrics of links: of their scores beside negatives' scores, and of their ranks.

`LinkAuc` and `LinkAveragePrecision` take rows of a link's score and its negatives' scores. `LinkRank` and `SourceRank`
take ranked links, which have the columns of `ranking`.
"""

from collections.abc import Callable

import numpy as np

from sarlite.comm import Communicator
from sarlite.tasks.class_metrics import RocAuc, average_precision
from sarlite.tasks.metrics import MeanMetric, ScoreMetric
from sarlite.tasks.ranking import RANK, SCORE, SOURCE
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
    """Mean over links of a function of the link's rank.

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
        links = output[output[:, RANK] != 0]
        self.add_up(_finite(self.of_rank(links[:, RANK])[:, None].astype(np.float64)), np.isnan(links[:, SCORE:]).any(1))


class SourceRank(MeanMetric):
    """Mean over sources of the sum of gains of the source's links, divided by the largest possible sum.

    The rank of a link in its source's list also counts the source's other links in the split. All links of a source and
    a split are added in one call.

    Parameters
    ----------
    gain : callable
        (ranks from 1, (n,)) -> gains, (n,).
    most : callable
        (number of links of a source, (n,)) -> largest sum of gains, (n,).
    """

    def __init__(self, gain: Callable[[Array], Array], most: Callable[[Array], Array]) -> None:
        super().__init__()
        self.gain, self.most = gain, most

    def add(self, output: Array, labels: Array) -> None:
        links = output[output[:, RANK] != 0]
        source, score, rank = links[np.lexsort((-links[:, SCORE], links[:, SOURCE]))].T
        starts, counts = _runs(source)
        ties, n_ties = _runs(source, score)
        above = np.repeat(ties + (n_ties - 1) / 2, n_ties) - np.repeat(starts, counts)  # the source's own links
        gains = self.gain(rank + above)
        sums = np.add.reduceat(gains, starts) if len(starts) else np.zeros(0)
        self.add_up(_finite((sums / self.most(counts))[:, None]), np.isnan(links[:, SCORE:]).any(1))


def discounts(ranks: Array, k: int) -> Array:
    """Return 1 / log2(1 + rank) for ranks up to k, and 0 for others: the gains of NDCG (Jarvelin and Kekalainen 2002)."""
    return np.where(ranks <= k, 1 / np.log2(1 + ranks), 0.0)


def _runs(*arrays):
    """Return the starts and the lengths of runs of equal values in all arrays."""
    changed = np.zeros(len(arrays[0]), bool)
    for array in arrays:
        changed[1:] |= array[1:] != array[:-1]
    changed[:1] = True
    starts = np.flatnonzero(changed)
    return starts, np.diff(starts, append=len(changed))


def _finite(values):
    return np.where(np.isfinite(values), values, 0.0)


def _first_column(output):
    """Return True in the first column, which has the links, bools of `output`'s shape."""
    return np.arange(output.shape[1]) == np.zeros((len(output), 1))
