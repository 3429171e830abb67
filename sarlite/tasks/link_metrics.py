"""Metrics of links: from scores of links and negatives, and from the position of each link in a list sorted by score.

`LinkAuc` and `LinkAveragePrecision` take rows of a link's score and its negatives' scores. `LinkRank` and `SourceRank`
take ranked links, which have the columns of `ranking`.
"""

from collections.abc import Callable

import numpy as np

from sarlite.comm import Communicator
from sarlite.tasks.auc import average_precision
from sarlite.tasks.class_metrics import RocAuc
from sarlite.tasks.metrics import MeanMetric, ScoreMetric
from sarlite.tasks.ranking import RANK, SCORE, SOURCE
from sarlite.types import Array


class LinkAuc(RocAuc):
    """ROC-AUC of all links against all negatives. A row of the output has the scores of a link and of its negatives."""

    def add(self, output: Array, labels: Array) -> None:
        self.rows.append((output.reshape(-1, 1), _first_column(output).reshape(-1, 1)))


class LinkAveragePrecision(ScoreMetric):
    """Average precision of all links against all negatives: the mean over links of the precision with the link's score as the threshold."""

    def add(self, output: Array, labels: Array) -> None:
        self.rows.append((output.reshape(-1), _first_column(output).reshape(-1)))

    def of(self, scores: Array, positive: Array, comm: Communicator) -> float | None:
        return average_precision(comm, scores, positive)


class LinkRank(MeanMetric):
    """Ranking metric such as MRR or Hits@K: the mean over links of a function of the link's rank among candidates by score.

    Parameters
    ----------
    of_rank : callable
        Function from ranks, (n,) floats from 1, to numbers in [0, 1], (n,).
    least : int
        Smallest number of negatives for which the metric is defined.

    Examples
    --------
    >>> from sarlite.comm import Solo
    >>> from sarlite.tasks.ranking import ranked_among_negatives
    >>> metric = LinkRank(lambda ranks: 1 / ranks)
    >>> metric.add(ranked_among_negatives(np.array([[3.0, 1.0, 2.0], [1.0, 2.0, 0.0]])), np.zeros(2, np.int64))
    >>> metric.value(metric.counts(), Solo())
    0.75
    """

    def __init__(self, of_rank: Callable[[Array], Array], least: int = 1) -> None:
        super().__init__()
        self.of_rank, self.least = of_rank, least

    def add(self, output: Array, labels: Array) -> None:
        links = output[output[:, RANK] != 0]
        self.add_up(_finite(self.of_rank(links[:, RANK])[:, None].astype(np.float64)), np.isnan(links[:, SCORE:]).any(1))


class SourceRank(MeanMetric):
    """Ranking metric such as NDCG@K or Recall@K. A source's value is computed from the ranks of its links among all destinations by score,
    and the metric is the mean over sources.

    The metric is the mean over sources of a ratio. The ratio is the sum of gains of the source's links, divided by the
    largest possible sum.

    The rank of a link in its source's list also counts the source's other links in the split. All links of a source and
    a split are added in one call.

    Parameters
    ----------
    gain : callable
        Function from ranks, (n,) floats from 1, to gains, (n,).
    most : callable
        Function from the numbers of links of sources, (m,), to the largest possible sums of gains, (m,).
    """

    def __init__(self, gain: Callable[[Array], Array], most: Callable[[Array], Array]) -> None:
        super().__init__()
        self.gain, self.most = gain, most

    def add(self, output: Array, labels: Array) -> None:
        links = output[output[:, RANK] != 0]
        source, score, rank = links[np.lexsort((-links[:, SCORE], links[:, SOURCE]))].T
        starts, counts = _constant_runs(source)
        ties, n_ties = _constant_runs(source, score)
        above = np.repeat(ties + (n_ties - 1) / 2, n_ties) - np.repeat(starts, counts)  # number of the source's links that rank higher
        gains = self.gain(rank + above)
        sums = np.add.reduceat(gains, starts) if len(starts) else np.zeros(0)
        self.add_up(_finite((sums / self.most(counts))[:, None]), np.isnan(links[:, SCORE:]).any(1))


def discounts(ranks: Array, k: int) -> Array:
    """Return the gain in NDCG of each position in `ranks`, counted from 1: 1 / log2(1 + position) up to position k, 0 beyond k.

    See Jarvelin and Kekalainen (2002).
    """
    return np.where(ranks <= k, 1 / np.log2(1 + ranks), 0.0)


def _constant_runs(*arrays: Array) -> tuple[Array, Array]:
    """Divide the indices of `arrays`, which have equal lengths, into the longest ranges over which every array is constant. Return (starts,
    lengths) of the ranges.
    """
    changed = np.zeros(len(arrays[0]), bool)
    for array in arrays:
        changed[1:] |= array[1:] != array[:-1]
    changed[:1] = True
    starts = np.flatnonzero(changed)
    return starts, np.diff(starts, append=len(changed))


def _finite(values):
    return np.where(np.isfinite(values), values, 0.0)


def _first_column(output: Array) -> Array:
    """Return a mask with the shape of `output`, True in column 0. A row of `output` has the score of a link, followed by the scores of its
    negatives.
    """
    return np.arange(output.shape[1]) == np.zeros((len(output), 1))
