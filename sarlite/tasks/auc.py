"""Counts for ROC-AUC and average precision over all ranks, by a distributed sort. No rank holds all scores."""

from typing import NamedTuple

import numpy as np

from sarlite.comm import Communicator
from sarlite.types import Array


def pairs(comm: Communicator, scores: Array, positive: Array, at_once: int = 1 << 20) -> list[tuple[int, int]]:
    """Return (2 * number of ordered pairs, number of pairs) for each column, over all ranks. Collective.

    A pair is a positive and a negative row. A pair is ordered if the positive row has the larger score; a tie counts as
    half an ordered pair.

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
        ROC-AUC is the first number / (2 * the second).

    Notes
    -----
    Each rank sorts its own scores and counts positives and negatives by value. The values are then divided into one
    range per rank by regular sampling (Shi & Schaeffer, 1992). A range has at most about 2 / N of a column's distinct
    values. Sends at most 32 bytes per score, and k (N + N^2) small numbers. Memory: twice that of the larger of a
    million scores and a column. All numbers are integers, so the result does not depend on the division of rows.
    """
    longest = int(comm.allreduce(np.array([len(scores)]), "max")[0])
    width = max(1, at_once // max(1, longest))
    return [found for at in range(0, scores.shape[1], width)
            for found in _pairs(comm, scores[:, at : at + width], positive[:, at : at + width])]


class PrecisionSteps(NamedTuple):
    """Counts of the rows with at least some score, over all ranks. This rank has one range of the distinct scores.

    Attributes
    ----------
    scores : (m,) float64
        The distinct scores of this rank's range, descending.
    own_positive : (m,) float64
        Positive rows with the score.
    positive, negative : (m,) float64
        Positive and negative rows with the score or a higher one.
    n_positive, n_negative : int
        All positive and negative rows.
    """

    scores: Array
    own_positive: Array
    positive: Array
    negative: Array
    n_positive: int
    n_negative: int


def precision_steps(comm: Communicator, scores: Array, positive: Array) -> PrecisionSteps:
    """Return for each distinct score how many rows of all ranks have it or a higher one. Collective.

    Parameters
    ----------
    comm : Communicator
    scores : (n_local,) array of floats
        Scores without NaN.
    positive : (n_local,) array of bools

    Notes
    -----
    Sends as `pairs` does. Each distinct score is in one rank's range, so the numbers are the same however rows are
    divided. The range of a higher rank has higher scores.
    """
    rows = _sorted_range(comm, _counted(0, scores, positive), 1)[::-1]
    found = np.cumsum(rows[:, 2:], 0)
    sums = np.array(comm.allgather(rows[:, 2:].sum(0)))
    true, false = (found + sums[comm.rank + 1 :].sum(0)).T
    n_positive, n_negative = np.rint(sums.sum(0)).astype(np.int64).tolist()
    return PrecisionSteps(rows[:, 1], rows[:, 2], true, false, n_positive, n_negative)


def _pairs(comm, scores, positive):
    k = scores.shape[1]
    own = np.concatenate([np.empty((0, 4)), *(_counted(c, scores[:, c], positive[:, c]) for c in range(k))])
    rows = _sorted_range(comm, own, k)
    column, pos, neg = rows[:, 0].astype(np.int64), rows[:, 2].astype(np.int64), rows[:, 3].astype(np.int64)
    sums = np.zeros((comm.size, 2, k), np.int64)
    for which, numbers in enumerate((pos, neg)):
        np.add.at(sums[comm.rank, which], column, numbers)
    before = np.cumsum(neg) - neg  # negatives of a lower score in this range, and all of lower columns
    before -= (np.cumsum(sums[comm.rank, 1]) - sums[comm.rank, 1])[column]
    comm.allreduce(sums)
    in_order = 2 * sums[comm.rank, 0] * sums[: comm.rank, 1].sum(0)  # with those of lower ranges
    np.add.at(in_order, column, pos * (2 * before + neg))
    comm.allreduce(in_order)
    n_pos, n_neg = sums.sum(0).tolist()
    return [(found, p * n) for found, p, n in zip(in_order.tolist(), n_pos, n_neg)]


def _counted(column, scores, positive):
    """Return (column, score, positives, negatives) of this rank's distinct scores, (m, 4), by ascending score."""
    values, places = np.unique(scores, return_inverse=True)
    pos = np.bincount(places.reshape(-1), positive, len(values))
    n = np.bincount(places.reshape(-1), minlength=len(values))
    return np.stack([np.full(len(values), float(column)), values.astype(np.float64), pos, n - pos], 1)


def _sorted_range(comm, own, k):
    """Exchange rows (column, score, counts): each rank gets a sorted range of each column's scores. Collective.

    The counts of equal scores are added.
    """
    column = own[:, 0].astype(np.int64)
    ends = np.searchsorted(column, np.arange(k + 1))
    n_own = np.diff(ends)
    every = -(-comm.allreduce(n_own.copy()) // comm.size**2)  # how many values a sample stands for
    samples = np.concatenate([np.empty((0, 2)), *(own[low + e - 1 : high : max(e, 1), :2] if e else own[:0, :2]
                                                  for low, high, e in zip(ends, ends[1:], every.tolist()))])
    samples = np.concatenate(comm.alltoall([np.ascontiguousarray(samples)] * comm.size))
    owner = np.empty(len(own), np.int64)
    for c, (low, high) in enumerate(zip(ends, ends[1:])):
        found = np.sort(samples[samples[:, 0] == c, 1])
        splitters = found[np.arange(1, comm.size) * len(found) // comm.size] if len(found) else found
        owner[low:high] = np.searchsorted(splitters, own[low:high, 1], "right")
    rows = np.concatenate(comm.alltoall([np.ascontiguousarray(own[owner == rank]) for rank in range(comm.size)]))
    return _merged(rows[np.lexsort((rows[:, 1], rows[:, 0]))])


def _merged(rows):
    if not len(rows):
        return rows
    first = np.flatnonzero(np.concatenate(([True], (rows[1:, :2] != rows[:-1, :2]).any(1))))
    return np.concatenate([rows[first, :2], np.add.reduceat(rows[:, 2:], first)], 1)
