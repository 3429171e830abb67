"""Metrics of classes and of several labels: from counts by class, from ranked scores, and from probabilities."""

import math
from collections.abc import Callable

import numpy as np

from sarlite.comm import Communicator
from sarlite.errors import ConfigError
from sarlite.tasks.auc import pairs, precision_steps
from sarlite.tasks.metrics import ExactSums, MeanMetric, Metric, ScoreMetric
from sarlite.types import Array

ByClass = Callable[[Array, Array, Array], Array]
"""(rows that are right, rows predicted, rows that are true), each (n_classes,) int64 -> a score by class, (n_classes,)."""
CALIBRATION_BINS = 10


def log_probabilities(output: Array) -> Array:
    """Return the logarithms of the softmax of each row, (n, n_classes) float64, rounded to float32.

    Rows whose probabilities are equal thus have equal scores, although their sums were added in other orders.
    """
    shifted = output.astype(np.float64) - output.max(1, keepdims=True, initial=-np.inf)
    return (shifted - np.log(np.exp(shifted).sum(1, keepdims=True))).astype(np.float32).astype(np.float64)


def scores_of(output: Array, labels: Array, positive: int = 1) -> tuple[Array, Array]:
    """Return scores that rank rows, a column for each label or class, and which rows are positive.

    Of several labels the scores are the logits. Of two classes there is one column, the logit of class `positive` less
    the logit of the other class. Of more classes the scores are the logarithms of the probabilities.

    Returns
    -------
    scores : (n, k) float64
    positive : (n, k) bool
    """
    if labels.ndim == 2:
        return output.astype(np.float64), labels == 1
    if output.shape[1] == 2:
        own, other = output[:, [positive]].astype(np.float64), output[:, [1 - positive]]
        return own - other, labels[:, None] == positive
    return log_probabilities(output), labels[:, None] == np.arange(output.shape[1])


class Accuracy(Metric):
    """Share of the rows that are right. A row with several labels is right if all labels are.

    Parameters
    ----------
    most : int
        A row counts as right if its class is among the `most` likeliest. Of equally likely classes the lowest comes
        first. Read for classes alone.
    """

    def __init__(self, most: int = 1) -> None:
        self.most, self.hits, self.n = most, 0, 0

    def add(self, output: Array, labels: Array) -> None:
        if labels.ndim == 2:
            right = ((output > 0) == (labels == 1)).all(1)
        elif self.most == 1:
            right = output.argmax(1) == labels
        else:
            own, number = output[np.arange(len(labels)), labels][:, None], np.arange(output.shape[1])
            before = (output > own) | ((output == own) & (number < labels[:, None]))
            right = (before.sum(1) < self.most) & ~np.isnan(own[:, 0])
        self.hits, self.n = self.hits + int(np.count_nonzero(right)), self.n + len(right)

    def counts(self) -> Array:
        return np.array([self.hits, self.n], np.float64)

    def value(self, counts: Array, comm: Communicator) -> float | None:
        return float(counts[0] / counts[1]) if counts[1] else None


class CountsByClass(Metric):
    """A metric that is computed from three counts of each class: rows that are right, rows predicted, rows that are true.

    The predicted class has the largest logit; a label of several is predicted where its logit is above 0.
    """

    def __init__(self) -> None:
        self.several = False
        self.sums: Array = np.zeros((3, 0), np.int64)

    def add(self, output: Array, labels: Array) -> None:
        self.several, n = labels.ndim == 2, output.shape[1]
        if self.several:
            predicted, true = output > 0, labels == 1
            found = (predicted & true).sum(0), predicted.sum(0), true.sum(0)
        else:
            classes = output.argmax(1)
            found = (np.bincount(labels[classes == labels], minlength=n), np.bincount(classes, minlength=n),
                     np.bincount(labels, minlength=n))
        self.sums = np.stack(found) + (self.sums if self.sums.size else 0)

    def counts(self) -> Array:
        return self.sums.reshape(-1).astype(np.float64)

    def value(self, counts: Array, comm: Communicator) -> float | None:
        right, predicted, true = np.rint(counts.reshape(3, -1)).astype(np.int64)
        return self.of(right, predicted, true) if self.several or true.any() else None

    def of(self, right: Array, predicted: Array, true: Array) -> float | None:
        """Return the metric of the counts over all ranks, each (n_classes,) int64."""
        raise NotImplementedError


class Averaged(CountsByClass):
    """Score of counts: of the positive one of two classes, else the mean over classes; or of all classes together.

    Parameters
    ----------
    score : callable
        See `ByClass`.
    average : {"positive", "macro", "micro"}
        "positive": of two classes the score of class `positive`; else as "macro". "macro": the mean over classes.
        "micro": the score of the sums over classes.
    positive : int

    Notes
    -----
    A class that neither occurs nor is predicted is left out of the mean; a label of several counts as 0 there, as in
    scikit-learn.
    """

    def __init__(self, score: ByClass, average: str = "positive", positive: int = 1) -> None:
        super().__init__()
        self.score, self.average, self.positive = score, average, positive

    def of(self, right: Array, predicted: Array, true: Array) -> float | None:
        if self.average == "micro":
            right, predicted, true = (count.sum(keepdims=True) for count in (right, predicted, true))
        elif self.average == "positive" and not self.several and len(true) == 2:
            right, predicted, true = (count[[self.positive]] for count in (right, predicted, true))
        elif not self.several:
            right, predicted, true = (count[predicted + true > 0] for count in (right, predicted, true))
        return math.fsum(self.score(right, predicted, true)) / len(true) if len(true) else None


def precision(right: Array, predicted: Array, true: Array) -> Array:
    """Return the share of predicted rows that are right, 0 without any; see `ByClass`."""
    return right / np.maximum(predicted, 1)


def recall(right: Array, predicted: Array, true: Array) -> Array:
    """Return the share of true rows that are predicted, 0 without any; see `ByClass`."""
    return right / np.maximum(true, 1)


def f_beta(beta: float) -> ByClass:
    """Return the F-beta score, (1 + b^2) tp / (predicted + b^2 true) for b = beta, 0 without any; see `ByClass`."""
    square = beta * beta

    def score(right, predicted, true):
        either = predicted + square * true
        return (1 + square) * right / np.where(either > 0, either, 1)

    return score


class BalancedAccuracy(CountsByClass):
    """Mean of the recall over the classes that occur."""

    def of(self, right: Array, predicted: Array, true: Array) -> float | None:
        there = true > 0
        return math.fsum(right[there] / true[there]) / np.count_nonzero(there)


class Matthews(CountsByClass):
    """Matthews' correlation coefficient over all classes (Gorodkin 2004); 0 if one class alone occurs or is predicted."""

    def of(self, right: Array, predicted: Array, true: Array) -> float | None:
        hits, n = int(right.sum()), int(true.sum())
        of_predicted, of_true = ([int(count) for count in counts] for counts in (predicted, true))
        covariance = hits * n - sum(p * t for p, t in zip(of_predicted, of_true))
        spread = (n * n - sum(p * p for p in of_predicted)) * (n * n - sum(t * t for t in of_true))
        return covariance / math.sqrt(spread) if spread else 0.0


class ClassScores(ScoreMetric):
    """A metric of ranked scores: the mean over the columns of `scores_of` for which it is defined.

    Parameters
    ----------
    positive : int
        The positive one of two classes.
    """

    lacking = "without a positive row"

    def __init__(self, positive: int = 1) -> None:
        super().__init__()
        self.positive = positive

    def add(self, output: Array, labels: Array) -> None:
        self.rows.append(scores_of(output, labels, self.positive))

    def of(self, scores: Array, positive: Array, comm: Communicator) -> float | None:
        found = [value for value in self.by_column(scores, positive, comm) if value is not None]
        if len(found) < scores.shape[1]:
            self.note = f"{scores.shape[1] - len(found)} of {scores.shape[1]} labels, {self.lacking}"
        return math.fsum(found) / len(found) if found else None

    def by_column(self, scores: Array, positive: Array, comm: Communicator) -> list[float | None]:
        """Return the metric of each column over all ranks, None where it is undefined. Collective."""
        raise NotImplementedError


class RocAuc(ClassScores):
    """ROC-AUC: the share of (positive, negative) pairs in order, where a tie is half. The mean over labels, as OGB's.

    A label whose rows are all of one class has no pairs and is left out. With two classes the score of a row is the
    difference of the logits. With another number of classes `add` raises a ConfigError. See `auc.pairs`.
    """

    lacking = "whose rows are all of one class"

    def add(self, output: Array, labels: Array) -> None:
        if labels.ndim == 1 and output.shape[1] != 2:
            raise ConfigError("metric roc-auc is of several labels, or of 2 classes, but the output has "
                              f"{output.shape[1]} columns")
        super().add(output, labels)

    def by_column(self, scores: Array, positive: Array, comm: Communicator) -> list[float | None]:
        return [in_order / (2 * all_pairs) if all_pairs else None
                for in_order, all_pairs in pairs(comm, scores, positive)]


class ClassAveragePrecision(ClassScores):
    """Average precision, the area below precision by recall: of the positive one of two classes, else the mean over
    classes or labels.

    A class without a row is left out. Equal scores are one step, as in scikit-learn.
    """

    def by_column(self, scores: Array, positive: Array, comm: Communicator) -> list[float | None]:
        return [average_precision(comm, *column) for column in zip(scores.T, positive.T)]


def average_precision(comm: Communicator, scores: Array, positive: Array) -> float | None:
    """Return the average precision over all ranks, None without a positive row. Collective.

    Parameters
    ----------
    comm : Communicator
    scores : (n_local,) array of floats
        Scores without NaN.
    positive : (n_local,) array of bools
    """
    steps = precision_steps(comm, scores, positive)
    sums = ExactSums()
    sums.add((steps.own_positive * (steps.positive / np.maximum(steps.positive + steps.negative, 1)))[:, None])
    return sums.means(comm, steps.n_positive)[0] if steps.n_positive else None


class RecallAtPrecision(ClassScores):
    """The largest recall that a threshold gives with at least some precision; 0 if no threshold does.

    Parameters
    ----------
    least : float
        The precision.
    positive : int
    """

    def __init__(self, least: float, positive: int = 1) -> None:
        super().__init__(positive)
        self.precision = least

    def by_column(self, scores: Array, positive: Array, comm: Communicator) -> list[float | None]:
        found: list[float | None] = []
        for column in zip(scores.T, positive.T):
            steps = precision_steps(comm, *column)
            enough = steps.positive / np.maximum(steps.positive + steps.negative, 1) >= self.precision
            most = comm.allreduce(np.array([steps.positive[enough].max(initial=0)], np.float64), "max")[0]
            found.append(float(most / steps.n_positive) if steps.n_positive else None)
        return found


class Brier(MeanMetric):
    """Brier score: the mean over rows of (p - y)^2 for two classes, and for each of several labels.

    For more classes the squares are added over classes, as in scikit-learn.
    """

    def add(self, output: Array, labels: Array) -> None:
        if labels.ndim == 2 or output.shape[1] == 2:
            probabilities, true = _binary_probabilities(output, labels)
            squares = np.square(probabilities - true).mean(1)
        else:
            probabilities = _softmax(output)
            squares = np.square(probabilities - (labels[:, None] == np.arange(output.shape[1]))).sum(1)
        odd = ~np.isfinite(squares)
        self.add_up(np.where(odd, 0, squares)[:, None], odd)


class CalibrationError(Metric):
    """Expected calibration error: the mean over rows of |share of positives - mean probability| in the row's bin.

    The `CALIBRATION_BINS` bins of the probability are equally wide. Of two classes the probability is that of class
    `positive`, of more classes that of the predicted class, and a row is positive if the prediction is right (Guo et al.
    2017). Each of several labels is a row.

    Parameters
    ----------
    positive : int
    """

    def __init__(self, positive: int = 1) -> None:
        self.positive, self.n_odd = positive, 0
        self.n, self.sums = np.zeros((2, CALIBRATION_BINS), np.int64), ExactSums()

    def add(self, output: Array, labels: Array) -> None:
        probabilities, true = confidence(output, labels, self.positive)
        odd = np.isnan(probabilities)
        self.n_odd += int(np.count_nonzero(odd))
        probabilities = np.where(odd, 0, probabilities)
        places = np.minimum((probabilities * CALIBRATION_BINS).astype(np.int64), CALIBRATION_BINS - 1)
        self.n[0] += np.bincount(places, minlength=CALIBRATION_BINS)
        self.n[1] += np.bincount(places[true], minlength=CALIBRATION_BINS)
        self.sums.add(np.where(places[:, None] == np.arange(CALIBRATION_BINS), probabilities[:, None], 0))

    def counts(self) -> Array:
        return np.array([*self.n.reshape(-1), self.n_odd], np.float64)

    def value(self, counts: Array, comm: Communicator) -> float | None:
        rows, positives = counts[:-1].reshape(2, -1)
        sums = self.sums.means(comm, 1)
        if not rows.sum():
            return None
        return math.nan if counts[-1] else math.fsum(np.abs(positives - sums)) / rows.sum()


def confidence(output: Array, labels: Array, positive: int = 1) -> tuple[Array, Array]:
    """Return probabilities, (m,) float64, and which of them came true, (m,) bool; see `CalibrationError`."""
    if labels.ndim == 2 or output.shape[1] == 2:
        probabilities, true = _binary_probabilities(output, labels, positive)
        return probabilities.reshape(-1), true.reshape(-1)
    return _softmax(output).max(1, initial=0), output.argmax(1) == labels


def _softmax(output):
    found = np.exp(output.astype(np.float64) - output.max(1, keepdims=True, initial=-np.inf))
    return found / found.sum(1, keepdims=True)


def _binary_probabilities(output, labels, positive=1):
    """Return the probabilities of the columns of `scores_of`, and which rows are positive."""
    scores, true = scores_of(output, labels, positive)
    with np.errstate(over="ignore"):
        return 1 / (1 + np.exp(-scores)), true
