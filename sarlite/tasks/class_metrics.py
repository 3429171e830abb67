"""Metrics of classes and of several labels per row: from counts by class, from ranked scores, and from probabilities."""

import math
from collections.abc import Callable

import numpy as np

from sarlite.comm import Communicator
from sarlite.errors import ConfigError
from sarlite.tasks.auc import average_precision, pairs, precision_steps
from sarlite.tasks.metrics import ExactSums, MeanMetric, Metric, ScoreMetric
from sarlite.types import Array

ByClass = Callable[[Array, Array, Array], Array]
"""Function (true positives, predicted rows, true rows), each (n_classes,) int64 -> score of each class, (n_classes,)."""
CALIBRATION_BINS = 10
"""Number of bins of the predicted probability in the calibration error."""


def logistic(logits: Array) -> Array:
    """Return 1 / (1 + exp(-logits)), float64.

    Examples
    --------
    >>> logistic(np.array([0.0, -1000.0])).tolist()
    [0.5, 0.0]
    """
    with np.errstate(over="ignore"):
        return 1 / (1 + np.exp(-logits.astype(np.float64)))


def log_probabilities(output: Array) -> Array:
    """Return the log-softmax of each row of logits `output`, (n, n_classes) float64, rounded to float32.

    The rounding makes the scores of rows with equal probabilities equal, although sums were computed in another order.
    """
    shifted = output.astype(np.float64) - output.max(1, keepdims=True, initial=-np.inf)
    return (shifted - np.log(np.exp(shifted).sum(1, keepdims=True))).astype(np.float32).astype(np.float64)


def scores_of(output: Array, labels: Array, positive: int = 1) -> tuple[Array, Array]:
    """Convert the logits `output` to (scores, mask of the scores that belong to a positive row or label), both (n, k). For several labels
    per row, the scores are the logits. For two classes, the one column is the logit of class `positive` minus the other logit; for more
    classes, the columns are log-probabilities.

    Parameters
    ----------
    output : (n, n_outputs) array
        Logits.
    labels : (n,) integers, or (n, n_labels) of 0 and 1
    positive : {0, 1}
        The positive class of two.

    Returns
    -------
    scores : (n, k) float64
    is_positive : (n, k) bool

    Examples
    --------
    >>> scores, is_positive = scores_of(np.array([[0.0, 2.0], [1.0, 0.5]]), np.array([1, 0]))
    >>> scores.tolist(), is_positive.tolist()
    ([[2.0], [-0.5]], [[True], [False]])
    """
    if labels.ndim == 2:
        return output.astype(np.float64), labels == 1
    if output.shape[1] == 2:
        of_positive, of_negative = output[:, [positive]].astype(np.float64), output[:, [1 - positive]]
        return of_positive - of_negative, labels[:, None] == positive
    return log_probabilities(output), labels[:, None] == np.arange(output.shape[1])


class Accuracy(Metric):
    """Share of rows that are predicted correctly. A row with several labels is correct if all its labels are.

    Parameters
    ----------
    most : int
        A row is correct if its class is among the `most` likeliest classes. Among equally likely classes the lowest
        number comes first. Ignored for several labels.

    Examples
    --------
    >>> from sarlite.comm import Solo
    >>> metric = Accuracy()
    >>> metric.add(np.array([[2.0, 1.0], [0.0, 3.0]]), np.array([0, 0]))
    >>> metric.value(metric.counts(), Solo())
    0.5
    """

    def __init__(self, most: int = 1) -> None:
        self.most, self.hits, self.n = most, 0, 0

    def add(self, output: Array, labels: Array) -> None:
        if labels.ndim == 2:
            right = ((output > 0) == (labels == 1)).all(1)
        elif self.most == 1:
            right = output.argmax(1) == labels
        else:
            of_label, number = output[np.arange(len(labels)), labels][:, None], np.arange(output.shape[1])
            before = (output > of_label) | ((output == of_label) & (number < labels[:, None]))
            right = (before.sum(1) < self.most) & ~np.isnan(of_label[:, 0])
        self.hits, self.n = self.hits + int(np.count_nonzero(right)), self.n + len(right)

    def counts(self) -> Array:
        return np.array([self.hits, self.n], np.float64)

    def value(self, counts: Array, comm: Communicator) -> float | None:
        return float(counts[0] / counts[1]) if counts[1] else None


class CountsByClass(Metric):
    """Base class of metrics that are computed from three counts for each class: true positives, rows that are predicted as the class, and
    rows of the class.

    The predicted class of a row has the largest logit. One of several labels is predicted if its logit is above 0.
    """

    def __init__(self) -> None:
        self.several = False
        self.sums: Array = np.zeros((3, 0), np.int64)

    def add(self, output: Array, labels: Array) -> None:
        self.several, n = labels.ndim == 2, output.shape[1]
        if self.several:
            predicted, true = output > 0, labels == 1
            new_counts = (predicted & true).sum(0), predicted.sum(0), true.sum(0)
        else:
            classes = output.argmax(1)
            new_counts = (np.bincount(labels[classes == labels], minlength=n), np.bincount(classes, minlength=n),
                     np.bincount(labels, minlength=n))
        self.sums = np.stack(new_counts) + (self.sums if self.sums.size else 0)

    def counts(self) -> Array:
        return self.sums.reshape(-1).astype(np.float64)

    def value(self, counts: Array, comm: Communicator) -> float | None:
        right, predicted, true = np.rint(counts.reshape(3, -1)).astype(np.int64)
        return self.of(right, predicted, true) if self.several or true.any() else None

    def of(self, right: Array, predicted: Array, true: Array) -> float | None:
        """Return the metric from three counts for each class, (n_classes,) int64 each: true positives `right`, rows `predicted` as the
        class, and rows of the class, `true`. None if the metric is undefined.
        """
        raise NotImplementedError


class Averaged(CountsByClass):
    """Precision, recall or F score with "macro" average (the mean over classes), "micro" average (from the counts summed over classes), or
    of the positive class of two.

    Parameters
    ----------
    score : callable
        Score by class, see `ByClass`.
    average : {"positive", "macro", "micro"}
        "positive": the score of class `positive` for two classes, "macro" otherwise. "macro": the mean over classes.
        "micro": the score of the counts summed over classes.
    positive : int
        The positive class of two.

    Notes
    -----
    A class without true and predicted rows is left out of the mean. One of several labels without such rows counts with
    the score 0, as in scikit-learn.

    Examples
    --------
    >>> from sarlite.comm import Solo
    >>> metric = Averaged(f_beta(1), "macro")
    >>> metric.add(np.array([[2.0, 1.0], [0.0, 3.0], [0.0, 1.0]]), np.array([0, 0, 1]))
    >>> round(metric.value(metric.counts(), Solo()), 3)
    0.667
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
    """Return the precision of each class: true positives `right` / `predicted` rows, 0 without predicted rows, (n_classes,) float64."""
    return right / np.maximum(predicted, 1)


def recall(right: Array, predicted: Array, true: Array) -> Array:
    """Return each class's recall, (n_classes,): true positives `right` / `true` rows, 0 without true rows. `predicted` is ignored."""
    return right / np.maximum(true, 1)


def f_beta(beta: float) -> ByClass:
    """Return a function (true positives, predicted rows, true rows) of each class -> F-beta score of each class, (n_classes,).

    The score is (1 + beta^2) tp / (predicted + beta^2 true), with tp the true positives; 0 without such rows.
    """
    square = beta * beta

    def score(right, predicted, true):
        either = predicted + square * true
        return (1 + square) * right / np.where(either > 0, either, 1)

    return score


class BalancedAccuracy(CountsByClass):
    """Balanced accuracy: the mean recall over the classes that have true rows."""

    def of(self, right: Array, predicted: Array, true: Array) -> float | None:
        occurs = true > 0
        return math.fsum(right[occurs] / true[occurs]) / np.count_nonzero(occurs)


class Matthews(CountsByClass):
    """Matthews correlation coefficient of several classes (Gorodkin 2004); 0 if only one class occurs or is predicted."""

    def of(self, right: Array, predicted: Array, true: Array) -> float | None:
        hits, n = int(right.sum()), int(true.sum())
        of_predicted, of_true = ([int(count) for count in counts] for counts in (predicted, true))
        covariance = hits * n - sum(p * t for p, t in zip(of_predicted, of_true))
        spread = (n * n - sum(p * p for p in of_predicted)) * (n * n - sum(t * t for t in of_true))
        return covariance / math.sqrt(spread) if spread else 0.0


class ClassScores(ScoreMetric):
    """Base class of metrics computed from the scores of rows, such as ROC-AUC: the mean of one value per class or label.

    Parameters
    ----------
    positive : int
        The positive class of two.
    """

    lacking = "without a positive row"

    def __init__(self, positive: int = 1) -> None:
        super().__init__()
        self.positive = positive

    def add(self, output: Array, labels: Array) -> None:
        self.rows.append(scores_of(output, labels, self.positive))

    def of(self, scores: Array, positive: Array, comm: Communicator) -> float | None:
        values = [value for value in self.by_column(scores, positive, comm) if value is not None]
        if len(values) < scores.shape[1]:
            self.note = f"{scores.shape[1] - len(values)} of {scores.shape[1]} labels, {self.lacking}"
        return math.fsum(values) / len(values) if values else None

    def by_column(self, scores: Array, positive: Array, comm: Communicator) -> list[float | None]:
        """Return the metric of each column of `scores` over all ranks, with None for a column where it is undefined. `positive` is the mask
        of the scores whose row is positive. Collective.
        """
        raise NotImplementedError


class RocAuc(ClassScores):
    """ROC-AUC: the share of (positive, negative) pairs of rows whose positive row has the higher score; a tie counts half.

    For several labels the metric is the mean over labels, as in OGB; a label whose rows are all positive or all negative
    is left out. For two classes the score of a row is the difference of its logits. With another number of classes `add`
    raises a ConfigError. See `auc.pairs` for the algorithm.
    """

    lacking = "whose rows are all of one class"

    def add(self, output: Array, labels: Array) -> None:
        if labels.ndim == 1 and output.shape[1] != 2:
            raise ConfigError("metric roc-auc needs several labels or 2 classes, but the output has "
                              f"{output.shape[1]} columns")
        super().add(output, labels)

    def by_column(self, scores: Array, positive: Array, comm: Communicator) -> list[float | None]:
        return [in_order / (2 * all_pairs) if all_pairs else None
                for in_order, all_pairs in pairs(comm, scores, positive)]


class ClassAveragePrecision(ClassScores):
    """Average precision, the area below the precision-recall curve, of the positive class of two or as the mean over classes.

    For two classes it is the average precision of the positive class, otherwise the mean over classes or labels. A class
    without rows is left out. Rows with equal scores are one step of the curve, as in scikit-learn.
    """

    def by_column(self, scores: Array, positive: Array, comm: Communicator) -> list[float | None]:
        return [average_precision(comm, *column) for column in zip(scores.T, positive.T)]


class RecallAtPrecision(ClassScores):
    """Largest recall of any threshold whose precision is at least a given bound; 0 if no threshold reaches the bound.

    Parameters
    ----------
    least : float
        Lower bound of the precision.
    positive : int
        The positive class of two.
    """

    def __init__(self, least: float, positive: int = 1) -> None:
        super().__init__(positive)
        self.precision = least

    def by_column(self, scores: Array, positive: Array, comm: Communicator) -> list[float | None]:
        recalls: list[float | None] = []
        for column in zip(scores.T, positive.T):
            steps = precision_steps(comm, *column)
            enough = steps.precision >= self.precision
            most = comm.allreduce(np.array([steps.positive[enough].max(initial=0)], np.float64), "max")[0]
            recalls.append(float(most / steps.n_positive) if steps.n_positive else None)
        return recalls


class Brier(MeanMetric):
    """Brier score: the mean over rows, and over labels if there are several, of (predicted probability - truth)^2, truth 0 or 1.

    For more than two classes the squares are summed over classes, as in scikit-learn.
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
    """Expected calibration error. Rows are put into bins by predicted probability; the error is the mean over rows of |share of positives -
    mean probability| of the row's bin.

    There are `CALIBRATION_BINS` bins of the probability, of equal width. For two classes the metric takes the probability
    of class `positive`. For more classes it takes the probability of the predicted class, and a row is positive if the
    prediction is correct (Guo et al. 2017). Each of several labels counts as a row.

    Parameters
    ----------
    positive : int
        The positive class of two.
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
    """Return (predicted probability of an event, mask that is True where the event happened), a value for each row. For two classes the
    event is that the row has class `positive`; for more, that the most probable class is right. For several labels per row, there is a
    value for each row and label: the event is that the label is 1.

    Returns
    -------
    probabilities : (m,) float64
        See `CalibrationError`.
    true : (m,) bool

    Examples
    --------
    >>> probabilities, true = confidence(np.array([[0.0, 0.0], [1000.0, 0.0]]), np.array([1, 1]))
    >>> probabilities.tolist(), true.tolist()
    ([0.5, 0.0], [True, True])
    """
    if labels.ndim == 2 or output.shape[1] == 2:
        probabilities, true = _binary_probabilities(output, labels, positive)
        return probabilities.reshape(-1), true.reshape(-1)
    return _softmax(output).max(1, initial=0), output.argmax(1) == labels


def _softmax(output):
    exponentials = np.exp(output.astype(np.float64) - output.max(1, keepdims=True, initial=-np.inf))
    return exponentials / exponentials.sum(1, keepdims=True)


def _binary_probabilities(output: Array, labels: Array, positive: int = 1) -> tuple[Array, Array]:
    """Return (predicted probabilities, mask of the positive entries), both (n, k), from the logits `output`. For two classes the one column
    is about class `positive`; for several labels per row there is a column for each label.
    """
    scores, true = scores_of(output, labels, positive)
    return logistic(scores), true
