"""Base classes of metrics over all ranks, with the same bits however the rows are divided, given the bits of outputs.

Hits and counts are integers, and sums of errors are added as integers (`ExactSums`). Ranked scores are sorted over all
ranks (`auc`).
"""

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from sarlite.comm import Communicator
from sarlite.types import Array


class Metric:
    """One metric of one split. Each rank adds its rows; then `value` combines all ranks.

    Attributes
    ----------
    least : int
        The fewest negatives of a link that the metric is defined for.
    note : str or None
        Text that says what `value` left out.
    """

    note: str | None = None
    least = 1

    def add(self, output: Array, labels: Array) -> None:
        """Add rows of the output, (n, n_outputs), and their labels. Every rank calls it, also without rows."""
        raise NotImplementedError

    def counts(self) -> Array:
        """Return integers below 2^53, (k,) float64, whose sums over ranks are the `counts` of `value`."""
        return np.zeros(0)

    def value(self, counts: Array, comm: Communicator) -> float | None:
        """Return the metric, the same on every rank, or None if it is undefined. Collective."""
        raise NotImplementedError


class ScoreMetric(Metric):
    """A metric that keeps this rank's scores and marks the positive scores. NaN if a score of any rank is NaN."""

    def __init__(self) -> None:
        self.rows: list[tuple[Array, Array]] = []

    def value(self, counts: Array, comm: Communicator) -> float | None:
        scores, positive = (np.concatenate([pair[k] for pair in self.rows]) for k in (0, 1))
        if comm.allreduce(np.array([np.isnan(scores).any()], np.float64), "max")[0]:
            return math.nan
        return self.of(scores, positive, comm)

    def of(self, scores: Array, positive: Array, comm: Communicator) -> float | None:
        """Return the metric of all ranks' scores, of which this rank's are (n_local, k), without NaN. Collective."""
        raise NotImplementedError


class MeanMetric(Metric):
    """A metric that is computed from exact means over rows. NaN if a number of any rank is not finite."""

    def __init__(self) -> None:
        self.sums, self.n, self.n_odd = ExactSums(), 0, 0

    def add_up(self, values: Array, odd: Any) -> None:
        """Add rows of finite numbers, (n, k) float64, and count the True values of `odd`, which replaced NaN or inf."""
        self.sums.add(values)
        self.n, self.n_odd = self.n + len(values), self.n_odd + int(np.count_nonzero(odd))

    def counts(self) -> Array:
        return np.array([self.n, self.n_odd], np.float64)

    def value(self, counts: Array, comm: Communicator) -> float | None:
        means = self.sums.means(comm, int(counts[0]))
        return None if not counts[0] else math.nan if counts[1] else self.of(means)

    def of(self, means: list[float]) -> float:
        """Return the metric of the columns' means."""
        return means[0]


class MeanError(MeanMetric):
    """Mean over columns of root(mean over rows of error(output - label)).

    Parameters
    ----------
    error : callable
        (differences) -> errors, elementwise.
    root : callable
        (mean error) -> float.
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
    """Sums of columns of nonnegative numbers, without rounding: 53-bit mantissas are added by exponent.

    Notes
    -----
    Memory: 34 kB a column. Right for fewer than 2^36 numbers.
    """

    _LOW, _EXPONENTS, _PIECE = 27, 2100, 1 << 20  # bits of a mantissa's lower half; from -1074 on; numbers at a time
    _LEAST = -1074

    def __init__(self) -> None:
        self.bins = np.zeros((2, 0, self._EXPONENTS), np.int64)  # upper halves, lower halves

    def add(self, values: Array) -> None:
        """Add rows, (n, n_columns) float64; every rank at least once."""
        if not self.bins.size:
            self.bins = np.zeros((2, values.shape[1], self._EXPONENTS), np.int64)
        step = max(1, self._PIECE // max(1, values.shape[1]))
        for at in range(0, len(values), step):
            mantissas, exponents = np.frexp(values[at : at + step])
            integers = (mantissas * 2.0**53).astype(np.int64)
            places = (exponents - self._LEAST + self._EXPONENTS * np.arange(values.shape[1])).reshape(-1)
            for bins, half in zip(self.bins, (integers >> self._LOW, integers & ((1 << self._LOW) - 1))):
                found = np.bincount(places, half.reshape(-1), bins.size)  # exact: below 2^53
                bins += found.astype(np.int64).reshape(bins.shape)

    def means(self, comm: Communicator, n: int) -> list[float]:
        """Return the columns' sums over all ranks divided by `n`, each rounded once. Collective."""
        upper, lower = comm.allreduce(self.bins.copy())
        return [self._integer_sum(*halves) / (max(n, 1) << (53 - self._LEAST)) for halves in zip(upper, lower)]

    def _integer_sum(self, upper, lower):
        """Return a column's sum times 2^(53 - _LEAST)."""
        used = np.flatnonzero(upper | lower).tolist()
        return sum(((int(upper[place]) << self._LOW) + int(lower[place])) << place for place in used)
