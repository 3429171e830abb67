"""Base classes of metrics over all ranks. For equal outputs a metric has the same bits for any division of the rows.

Counts are integers, sums of errors are computed with integers (`ExactSums`), and scores are sorted over all ranks (`auc`).
"""

import math
from collections.abc import Callable

import numpy as np

from sarlite.comm import Communicator
from sarlite.types import Array


class Metric:
    """Base class of metrics of one split: each rank adds its rows with `add`, and `value` computes the metric over all ranks.

    Attributes
    ----------
    least : int
        Smallest number of negatives of a link for which the metric is defined.
    note : str or None
        Text about labels that `value` left out, set by `value`.
    """

    note: str | None = None
    least = 1

    def add(self, output: Array, labels: Array) -> None:
        """Add rows of the model's outputs, with their labels. Every rank calls `add` at least once, with empty arrays if it has no rows.

        Parameters
        ----------
        output : (n, n_outputs) array
            Output of the model for the rows, or ranked links, see `MetricKind.takes`.
        labels : (n, ...) array
            Targets of the rows.
        """
        raise NotImplementedError

    def counts(self) -> Array:
        """Return this rank's counts of rows, (k,) float64 integers below 2^53. The trainer sums them over ranks and passes the sums to
        `value`.
        """
        return np.zeros(0)

    def value(self, counts: Array, comm: Communicator) -> float | None:
        """Return the metric over all ranks, the same on every rank; None if it is undefined. `counts` is the sum over all ranks of the
        arrays that the method `counts` returned. Collective.

        Parameters
        ----------
        counts : (k,) float64
            Sums over ranks of the results of `counts()`.
        comm : Communicator

        Returns
        -------
        float or None
            None if the metric is undefined, for instance without rows.
        """
        raise NotImplementedError


class ScoreMetric(Metric):
    """Base class of metrics, such as ROC-AUC, that are computed from the scores of all rows and a mask of the positive rows. The metric is
    NaN if any score is NaN.
    """

    def __init__(self) -> None:
        self.rows: list[tuple[Array, Array]] = []

    def value(self, counts: Array, comm: Communicator) -> float | None:
        scores, positive = (np.concatenate([pair[k] for pair in self.rows]) for k in (0, 1))
        if comm.allreduce(np.array([np.isnan(scores).any()], np.float64), "max")[0]:
            return math.nan
        return self.of(scores, positive, comm)

    def of(self, scores: Array, positive: Array, comm: Communicator) -> float | None:
        """Return the metric over all ranks, from this rank's `scores` and `positive`, the mask of the scores whose row is positive.
        Collective.

        Parameters
        ----------
        scores : (n_local, k) or (n_local,) array of floats
            This rank's scores, without NaN.
        positive : array of bools, of the same shape
        comm : Communicator
        """
        raise NotImplementedError


class MeanMetric(Metric):
    """Base class of metrics that are computed from means over the rows of all ranks, summed without rounding. The metric is NaN if a number
    on any rank is not finite.
    """

    def __init__(self) -> None:
        self.sums, self.n, self.n_odd = ExactSums(), 0, 0

    def add_up(self, values: Array, odd: Array) -> None:
        """Add rows of `values`, (n, k), to the exact sums. The mask `odd` marks values that were NaN or infinite and were replaced by 0; if
        any is marked, the metric is NaN.

        Parameters
        ----------
        values : (n, k) float64
            Finite numbers, 0 in place of NaN and infinity.
        odd : array of bools
            True for each value that was not finite. If any is True, the metric is NaN.
        """
        self.sums.add(values)
        self.n, self.n_odd = self.n + len(values), self.n_odd + int(np.count_nonzero(odd))

    def counts(self) -> Array:
        return np.array([self.n, self.n_odd], np.float64)

    def value(self, counts: Array, comm: Communicator) -> float | None:
        means = self.sums.means(comm, int(counts[0]))
        return None if not counts[0] else math.nan if counts[1] else self.of(means)

    def of(self, means: list[float]) -> float:
        """Return the metric from `means`: for each column of the values that `add_up` has collected, the exact mean over the rows of all
        ranks. By default the metric is the mean of the first column.
        """
        return means[0]


class MeanError(MeanMetric):
    """Error of numeric predictions, such as the root mean squared error, averaged over columns.

    The error of a column is root(mean over rows of error(output - label)).

    Parameters
    ----------
    error : callable
        Elementwise function from differences to errors, such as np.square.
    root : callable
        Function from a mean error to a float, such as math.sqrt.

    Examples
    --------
    >>> from sarlite.comm import Solo
    >>> rmse = MeanError(np.square, math.sqrt)
    >>> rmse.add(np.array([[1.0], [2.0]]), np.array([1.0, 4.0]))
    >>> round(rmse.value(rmse.counts(), Solo()), 3)
    1.414
    """

    def __init__(self, error: Callable[[Array], Array], root: Callable[[float], float]) -> None:
        super().__init__()
        self.error, self.root = error, root

    def add(self, output: Array, labels: Array) -> None:
        with np.errstate(over="ignore", invalid="ignore"):
            errors = self.error(output.astype(np.float64) - labels.reshape(output.shape))
        odd = ~np.isfinite(errors)
        self.add_up(np.where(odd, 0, errors), odd)

    def of(self, means: list[float]) -> float:
        return math.fsum(map(self.root, means)) / len(means)


class ExactSums:
    """Sums of columns of nonnegative numbers without rounding. The 53-bit mantissas of numbers with the same exponent are added as
    integers.

    Notes
    -----
    Memory: 34 kB for each column. The sums are exact for fewer than 2^36 numbers.

    Examples
    --------
    >>> from sarlite.comm import Solo
    >>> sums = ExactSums()
    >>> sums.add(np.array([[1e16], [1.0], [1.0]]))
    >>> sums.means(Solo(), 1)
    [1.0000000000000002e+16]
    """

    _LOW, _EXPONENTS, _PIECE = 27, 2100, 1 << 20  # bits of a mantissa's lower half; number of exponents; numbers at a time
    _LEAST = -1074  # smallest exponent

    def __init__(self) -> None:
        self.bins = np.zeros((2, 0, self._EXPONENTS), np.int64)  # upper halves, lower halves

    def add(self, values: Array) -> None:
        """Add rows of values, (n, n_columns) float64, to the exact sums. Every rank calls `add`, with n = 0 if it has no rows."""
        if not self.bins.size:
            self.bins = np.zeros((2, values.shape[1], self._EXPONENTS), np.int64)
        step = max(1, self._PIECE // max(1, values.shape[1]))
        for at in range(0, len(values), step):
            mantissas, exponents = np.frexp(values[at : at + step])
            integers = (mantissas * 2.0**53).astype(np.int64)
            places = (exponents - self._LEAST + self._EXPONENTS * np.arange(values.shape[1])).reshape(-1)
            for bins, half in zip(self.bins, (integers >> self._LOW, integers & ((1 << self._LOW) - 1))):
                half_sums = np.bincount(places, half.reshape(-1), bins.size)  # exact: below 2^53
                bins += half_sums.astype(np.int64).reshape(bins.shape)

    def means(self, comm: Communicator, n: int) -> list[float]:
        """Return for each column its exact sum over all ranks divided by `n`, the number of rows of all ranks, rounded once. Collective."""
        upper, lower = comm.allreduce(self.bins.copy())
        return [self._integer_sum(*halves) / (max(n, 1) << (53 - self._LEAST)) for halves in zip(upper, lower)]

    def _integer_sum(self, upper: Array, lower: Array) -> int:
        """Return a column's exact sum as an integer, in units of 2^-53 times the smallest float. `upper` and `lower` have, for each
        exponent, the sums of the upper and the lower halves of the mantissas.
        """
        used = np.flatnonzero(upper | lower).tolist()
        return sum(((int(upper[place]) << self._LOW) + int(lower[place])) << place for place in used)
