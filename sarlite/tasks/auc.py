"""ROC-AUC and average precision over the rows of all ranks, computed by a distributed sort. No rank holds all scores."""

from typing import NamedTuple

import numpy as np

from sarlite.comm import Communicator
from sarlite.tasks.metrics import ExactSums
from sarlite.types import Array


def pairs(comm: Communicator, scores: Array, positive: Array, at_once: int = 1 << 20) -> list[tuple[int, int]]:
    """For each column of `scores`, count the pairs of a positive and a negative row, which may be on different ranks. Return a list of (2 *
    number of pairs whose positive row has the higher score + number of ties, number of pairs), one for each column. `positive` is the mask
    of positive rows, and at most `at_once` scores of a rank are sorted together. Collective.

    Parameters
    ----------
    comm : Communicator
    scores : (n_local, k) array of floats
        Scores without NaN.
    positive : (n_local, k) array of bools
    at_once : int
        Number of a rank's scores that are sorted together. Columns are grouped up to this number.

    Returns
    -------
    list of (int, int)
        The ROC-AUC of a column is the first number divided by twice the second.

    Notes
    -----
    Each rank sorts its own scores and counts positives and negatives by value. The values are then divided into one
    range per rank by regular sampling (Shi & Schaeffer, 1992). On N ranks a range has at most about 2 / N of a column's
    distinct values. Bytes sent: at most 32 for each score, and k (N + N^2) small numbers. Memory: twice the scores that
    are sorted together. All counts are integers, so the result does not depend on the division of rows.

    Examples
    --------
    >>> from sarlite.comm import threads
    >>> scores, positive = np.array([0.9, 0.4, 0.4, 0.1]), np.array([True, True, False, False])
    >>> def work(comm):
    ...     local = slice(comm.rank, None, comm.size)
    ...     return pairs(comm, scores[local, None], positive[local, None])
    >>> threads.run(2, work)
    [[(7, 4)], [(7, 4)]]
    """
    longest = int(comm.allreduce(np.array([len(scores)]), "max")[0])
    width = max(1, at_once // max(1, longest))
    return [column_pairs for at in range(0, scores.shape[1], width)
            for column_pairs in _pairs_of_columns(comm, scores[:, at : at + width], positive[:, at : at + width])]


class PrecisionSteps(NamedTuple):
    """Table with a row for each distinct score: how many rows of all ranks have this score or a higher one, positive and negative rows
    apart. The distinct scores are divided among the ranks, and an instance has the scores in this rank's range.

    Attributes
    ----------
    scores : (m,) float64
        The distinct scores in this rank's range, descending.
    own_positive : (m,) float64
        Number of positive rows with exactly each score.
    positive, negative : (m,) float64
        Number of positive and of negative rows with each score or a higher score.
    n_positive, n_negative : int
        Number of all positive and all negative rows.
    """

    scores: Array
    own_positive: Array
    positive: Array
    negative: Array
    n_positive: int
    n_negative: int

    @property
    def precision(self) -> Array:
        """Precision with each score as the threshold: share of positive rows among rows with at least the score, (m,) float64."""
        return self.positive / np.maximum(self.positive + self.negative, 1)


def precision_steps(comm: Communicator, scores: Array, positive: Array) -> PrecisionSteps:
    """Count, for each distinct score of all ranks, the positive and the negative rows with at least this score. `positive` is the mask of
    positive rows. Return this rank's range of scores as `PrecisionSteps`. Collective.

    Parameters
    ----------
    comm : Communicator
    scores : (n_local,) array of floats
        Scores without NaN.
    positive : (n_local,) array of bools

    Notes
    -----
    Bytes sent: as `pairs`. Each distinct score lies in the range of one rank, so the counts do not depend on the division
    of rows. The range of a higher rank has higher scores.

    Examples
    --------
    >>> from sarlite.comm import Solo
    >>> steps = precision_steps(Solo(), np.array([0.9, 0.4, 0.4, 0.1]), np.array([True, True, False, False]))
    >>> steps.scores.tolist(), steps.positive.tolist(), steps.precision.round(2).tolist()
    ([0.9, 0.4, 0.1], [1.0, 2.0, 2.0], [1.0, 0.67, 0.5])
    """
    rows = _sorted_range(comm, _count_rows(0, scores, positive), 1)[::-1]
    cumulative = np.cumsum(rows[:, 2:], 0)
    sums = np.array(comm.allgather(rows[:, 2:].sum(0)))
    true, false = (cumulative + sums[comm.rank + 1 :].sum(0)).T
    n_positive, n_negative = np.rint(sums.sum(0)).astype(np.int64).tolist()
    return PrecisionSteps(rows[:, 1], rows[:, 2], true, false, n_positive, n_negative)


def average_precision(comm: Communicator, scores: Array, positive: Array) -> float | None:
    """Return the average precision of all ranks' scores: the mean over positive rows of the precision at the row's score. `positive` is the
    mask of positive rows. None if no row of any rank is positive. Collective.

    Examples
    --------
    >>> from sarlite.comm import Solo
    >>> average_precision(Solo(), np.array([0.9, 0.4, 0.2, 0.1]), np.array([True, False, True, False]))
    0.8333333333333333
    """
    steps = precision_steps(comm, scores, positive)
    sums = ExactSums()
    sums.add((steps.own_positive * steps.precision)[:, None])
    return sums.means(comm, steps.n_positive)[0] if steps.n_positive else None


def _pairs_of_columns(comm: Communicator, scores: Array, positive: Array) -> list[tuple[int, int]]:
    """For each column of `scores`, return (2 * number of pairs whose positive row has the higher score + number of ties, number of pairs).
    A pair is a positive and a negative row, by the mask `positive`, of the same rank or of two ranks. Collective.
    """
    k = scores.shape[1]
    count_rows = np.concatenate([np.empty((0, 4)), *(_count_rows(c, scores[:, c], positive[:, c]) for c in range(k))])
    rows = _sorted_range(comm, count_rows, k)
    column, pos, neg = rows[:, 0].astype(np.int64), rows[:, 2].astype(np.int64), rows[:, 3].astype(np.int64)
    sums = np.zeros((comm.size, 2, k), np.int64)
    for which, numbers in enumerate((pos, neg)):
        np.add.at(sums[comm.rank, which], column, numbers)
    before = np.cumsum(neg) - neg  # negatives with a lower score in this range, and all negatives of lower columns
    before -= (np.cumsum(sums[comm.rank, 1]) - sums[comm.rank, 1])[column]
    comm.allreduce(sums)
    in_order = 2 * sums[comm.rank, 0] * sums[: comm.rank, 1].sum(0)  # pairs with the negatives of lower ranges
    np.add.at(in_order, column, pos * (2 * before + neg))
    comm.allreduce(in_order)
    n_pos, n_neg = sums.sum(0).tolist()
    return [(n_ordered, p * n) for n_ordered, p, n in zip(in_order.tolist(), n_pos, n_neg)]


def _count_rows(column_index: int, scores: Array, positive: Array) -> Array:
    """Return a row (column_index, score, n_positive, n_negative) for each distinct value of `scores`, ascending: (n, 4) float64. `scores`
    and the mask `positive` of positive rows belong to one column, whose number is `column_index`.
    """
    values, places = np.unique(scores, return_inverse=True)
    pos = np.bincount(places.reshape(-1), positive, len(values))
    n = np.bincount(places.reshape(-1), minlength=len(values))
    return np.stack([np.full(len(values), float(column_index)), values.astype(np.float64), pos, n - pos], 1)


def _sorted_range(comm: Communicator, count_rows: Array, n_columns: int) -> Array:
    """Sort `count_rows`, rows (column, score, n_positive, n_negative) of all ranks, and return this rank's part: for each of the
    `n_columns` columns, the rows in one range of scores. Higher ranks have higher scores. Rows with equal column and score are joined to
    one, and their counts are added. Collective.
    """
    column = count_rows[:, 0].astype(np.int64)
    ends = np.searchsorted(column, np.arange(n_columns + 1))
    n_local = np.diff(ends)
    every = -(-comm.allreduce(n_local.copy()) // comm.size**2)  # number of values that each sample represents
    samples = np.concatenate([np.empty((0, 2)), *(
        count_rows[low + step - 1 : high : max(step, 1), :2] if step else count_rows[:0, :2]
        for low, high, step in zip(ends, ends[1:], every.tolist()))])
    samples = np.concatenate(comm.alltoall([np.ascontiguousarray(samples)] * comm.size))
    owner = np.empty(len(count_rows), np.int64)
    for c, (low, high) in enumerate(zip(ends, ends[1:])):
        column_samples = np.sort(samples[samples[:, 0] == c, 1])
        n = len(column_samples)
        splitters = column_samples[np.arange(1, comm.size) * n // comm.size] if n else column_samples
        owner[low:high] = np.searchsorted(splitters, count_rows[low:high, 1], "right")
    rows = np.concatenate(comm.alltoall([np.ascontiguousarray(count_rows[owner == rank]) for rank in range(comm.size)]))
    return _merged(rows[np.lexsort((rows[:, 1], rows[:, 0]))])


def _merged(sorted_rows: Array) -> Array:
    """Join the rows (column, score, n_positive, n_negative) of the table `sorted_rows` that have equal column and score to one row with the
    sums of their counts. Return the new table.
    """
    if not len(sorted_rows):
        return sorted_rows
    first = np.flatnonzero(np.concatenate(([True], (sorted_rows[1:, :2] != sorted_rows[:-1, :2]).any(1))))
    return np.concatenate([sorted_rows[first, :2], np.add.reduceat(sorted_rows[:, 2:], first)], 1)
