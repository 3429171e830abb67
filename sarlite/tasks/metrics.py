"""Metrics over all ranks, with the same bits however the rows are divided, given the bits of the outputs.

Hits and counts are integers, and sums of errors are added as integers (`ExactSums`). ROC-AUC counts pairs (`auc`).
"""

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from sarlite.comm import Communicator
from sarlite.errors import ConfigError
from sarlite.tasks.auc import pairs, precisions
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


class Accuracy(Metric):
    """Share of the rows that are right. A row with several labels is right if all labels are."""

    def __init__(self) -> None:
        self.hits = self.n = 0

    def add(self, output: Array, labels: Array) -> None:
        right = output.argmax(1) == labels if labels.ndim == 1 else ((output > 0) == (labels == 1)).all(1)
        self.hits, self.n = self.hits + int(np.count_nonzero(right)), self.n + len(right)

    def counts(self) -> Array:
        return np.array([self.hits, self.n], np.float64)

    def value(self, counts: Array, comm: Communicator) -> float | None:
        return float(counts[0] / counts[1]) if counts[1] else None


class F1(Metric):
    """F1 score, 2 tp / (2 tp + fp + fn): over all classes together (micro), or the mean over classes (macro).

    Parameters
    ----------
    average : {"micro", "macro"}

    Notes
    -----
    A label of several that neither occurs nor is predicted counts as 0 in macro, but such a class is left out, as in
    scikit-learn.
    """

    def __init__(self, average: str) -> None:
        self.average, self.several = average, False
        # (2, n_outputs) of tp, and of 2 tp + fp + fn, which is how often predicted, and how often true
        self.found: Any = 0.0

    def add(self, output: Array, labels: Array) -> None:
        self.several, n = labels.ndim == 2, output.shape[1]
        if self.several:
            predicted, true = output > 0, labels == 1
            found = (predicted & true).sum(0), predicted.sum(0) + true.sum(0)
        else:
            classes = output.argmax(1)
            found = (np.bincount(labels[classes == labels], minlength=n),
                     np.bincount(classes, minlength=n) + np.bincount(labels, minlength=n))
        self.found = self.found + np.stack(found)

    def counts(self) -> Array:
        return self.found.reshape(-1)

    def value(self, counts: Array, comm: Communicator) -> float | None:
        """Return the score, 0 if nothing is true and nothing is predicted."""
        hits, either = counts.reshape(2, -1)
        if self.average == "micro":
            hits, either = hits.sum(keepdims=True), either.sum(keepdims=True)
        elif not self.several:
            hits, either = hits[either > 0], either[either > 0]
        return math.fsum(2 * hits / np.maximum(either, 1)) / len(hits) if len(hits) else None


class _ScoreMetric(Metric):
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


class RocAuc(_ScoreMetric):
    """ROC-AUC: the share of (positive, negative) pairs in order, where a tie is half. The mean over labels, as OGB's.

    A label whose rows are all of one class has no pairs and is left out. With two classes the score of a row is the
    difference of the logits. With another number of classes `add` raises a ConfigError. See `auc.pairs`.
    """

    def add(self, output: Array, labels: Array) -> None:
        if labels.ndim == 1 and output.shape[1] != 2:
            raise ConfigError("metric roc-auc is of several labels, or of 2 classes, but the output has "
                              f"{output.shape[1]} columns")
        scores = output if labels.ndim == 2 else output[:, 1:2].astype(np.float64) - output[:, :1]
        self.rows.append((scores, (labels == 1).reshape(scores.shape)))

    def of(self, scores: Array, positive: Array, comm: Communicator) -> float | None:
        found = [in_order / (2 * all_pairs) for in_order, all_pairs in pairs(comm, scores, positive) if all_pairs]
        if len(found) < scores.shape[1]:
            self.note = f"{scores.shape[1] - len(found)} of {scores.shape[1]} labels, whose rows are all of one class"
        return math.fsum(found) / len(found) if found else None


class _MeanMetric(Metric):
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


class MeanError(_MeanMetric):
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


class LinkAuc(RocAuc):
    """ROC-AUC of links against the negatives of all links. A row of the output is a link and its negatives."""

    def add(self, output: Array, labels: Array) -> None:
        self.rows.append((output.reshape(-1, 1), _first_column(output).reshape(-1, 1)))


class AveragePrecision(_ScoreMetric):
    """Average precision: the mean over links of the share of links among candidates with the link's score or higher.

    Equal scores are one step, as in scikit-learn.
    """

    def add(self, output: Array, labels: Array) -> None:
        self.rows.append((output.reshape(-1), _first_column(output).reshape(-1)))

    def of(self, scores: Array, positive: Array, comm: Communicator) -> float | None:
        terms, n = precisions(comm, scores, positive)
        sums = ExactSums()
        sums.add(terms)
        return sums.means(comm, n)[0] if n else None


class LinkRank(_MeanMetric):
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


def _hits(k: int) -> Callable[[], Metric]:
    return lambda: LinkRank(lambda ranks: ranks <= k, k)


_CLASSES: dict[str, Callable[[], Metric]] = {
    "accuracy": Accuracy, "micro-f1": lambda: F1("micro"), "macro-f1": lambda: F1("macro"), "roc-auc": RocAuc,
}  # fmt: skip
METRICS: dict[str, dict[str, Callable[[], Metric]]] = {
    "classify": _CLASSES, "multilabel": {"roc-auc": RocAuc, **_CLASSES},
    "regress": {"rmse": lambda: MeanError(np.square, math.sqrt), "mae": lambda: MeanError(np.abs, float)},
    "link": {"roc-auc": LinkAuc, "ap": AveragePrecision, "mrr": lambda: LinkRank(lambda ranks: 1 / ranks),
             **{f"hits@{k}": _hits(k) for k in (1, 3, 10, 20, 50, 100)}},
}  # fmt: skip
"""Metrics by form of targets and name. The first metric of a form is its default."""
LOWER = ("rmse", "mae")
"""Names of the metrics of which a lower value is better."""
EVERY = tuple(dict.fromkeys(name for names in METRICS.values() for name in names))
