"""What training is for: which labels it takes, what it minimises, and by what metric it is judged."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from sarlite.command import suggestion
from sarlite.data import targets
from sarlite.errors import ConfigError, DataError, ShapeError
from sarlite.tape import Tensor, ops
from sarlite.train.metrics import LOWER, METRICS, Metric
from sarlite.train.step import Loss
from sarlite.types import Array


def _of_values(loss):
    """A share of a loss's mean over the values of all ranks' rows."""

    def share(output, labels, rows, count):
        chosen = labels[rows] if labels.ndim == 2 else labels[rows, None]
        if output.shape[1:] != chosen.shape[1:]:
            raise ShapeError(f"the model's output is {output.shape}, but the labels are {labels.shape}")
        return loss(ops.take(output, rows), chosen, count=count * output.shape[1])

    return share


def _candidates(output, rows):
    """The chosen rows of scores: a link, and its negatives."""
    if output.ndim != 2 or output.shape[1] < 2:
        raise ShapeError(f"links: the model's output is {output.shape}, but must be a link's score and its negatives' "
                         "a row")
    return ops.take(output, rows)


def _bce_of_links(output, labels, rows, count):
    """Binary cross entropy, the mean over links and negatives."""
    scores = _candidates(output, rows)
    truth = np.zeros(scores.shape, scores.dtype)
    truth[:, 0] = 1
    return ops.bce_with_logits(scores, truth, count=count * scores.shape[1])


def _of_differences(loss):
    """The mean over negatives of a loss of a negative's score less its link's, and of zeros."""

    def share(output, labels, rows, count):
        scores = _candidates(output, rows)
        found = scores[:, 1:] - scores[:, :1]
        return loss(found, np.zeros(found.shape, found.dtype), count=count * found.shape[1])

    return share


def _contrastive(output, labels, rows, count):
    """Cross entropy of the link among its candidates."""
    return ops.cross_entropy(_candidates(output, rows), labels[rows], count=count)


LOSSES: dict[str, dict[str, Loss]] = {
    "classify": {"cross-entropy": ops.cross_entropy},
    "multilabel": {"bce": _of_values(ops.bce_with_logits)},
    "regress": {"squared": _of_values(ops.mse), "absolute": _of_values(ops.mae)},
    "link": {"bce": _bce_of_links, "cross-entropy": _contrastive, "bpr": _of_differences(ops.bce_with_logits),
             "margin": _of_differences(lambda d, zeros, count: ops.mae((d + 1).relu(), zeros, count=count))},
}
"""By task and name; a task's first is its own."""


class Task:
    """Labels, loss and metric of a training.

    Parameters
    ----------
    name : {"classify", "multilabel", "regress", "link"}
        Labels: classes from 0, (n,) integers; 0 or 1, (n, n_labels); numbers, (n,) or (n, n_values); of links the
        zeros of `links.split_links`.
    loss : str, optional
        Of `LOSSES`; of values the mean over rows and columns. By default the task's own: cross entropy, binary cross
        entropy with logits, squared error; of links binary cross entropy, the mean over links and negatives.
        "cross-entropy" of links is that of the link among its negatives; "bpr" and "margin" the means of log(1 +
        exp(d)) and max(0, 1 + d), d a negative's score less its link's.
    metric : str, optional
        Of `METRICS`, which evaluation tells of each split, and the best epoch is found by. By default accuracy;
        ROC-AUC; RMSE; of links ROC-AUC, that of all links against all negatives, as is "ap". "mrr" and "hits@k" are of
        each link's rank among its own negatives.

    Attributes
    ----------
    key : str
        The metric's name in records: "val_" and this.
    lower : bool
        Whether less of the metric is better.

    Raises
    ------
    ConfigError
        The task has no such loss or metric.
    """

    def __init__(self, name: str = "classify", loss: str | None = None, metric: str | None = None) -> None:
        _one_of("task", name, LOSSES)
        self.name, self.metric = name, metric or next(iter(METRICS[name]))
        self.loss = LOSSES[name][_one_of(f"loss of task {name}", loss or next(iter(LOSSES[name])), LOSSES[name])]
        _one_of(f"metric of task {name}", self.metric, METRICS[name])
        self.key, self.lower = self.metric.replace("-", "_"), self.metric in LOWER

    def make_metric(self) -> Metric | None:
        """Return a metric without rows, or None where the task has none."""
        return METRICS[self.name][self.metric]()

    def check(self, labels: Array, rows: Mapping[str, Array], n_dst: int) -> None:
        """Raise, naming the row, where labels of a split are not the task's; elsewhere they are not looked at."""
        if self.name == "classify":
            return _check_classes(labels, rows, n_dst)
        if self.name == "link":
            return _check_zeros(labels, n_dst)
        if labels.ndim not in (1, 2) or labels.dtype.kind not in "iufb":
            raise ShapeError(f"labels are {labels.dtype} {labels.shape}, but of task {self.name} numbers, (n, "
                             "n_outputs)")
        for split, own in rows.items():
            found = targets.wrong(labels[own], self.name, np.ones(len(own), bool), 0)
            if found:
                raise DataError(f"labels[{own[found[0]]}], of the {split} split, {found[1]}")

    def n_classes(self, labels: Array, rows: Mapping[str, Array]) -> int:
        """Return the largest class of this rank's splits + 1; 0 of another task, whose loss compares shapes."""
        if self.name != "classify":
            return 0
        return max((int(labels[own].max()) + 1 for own in rows.values() if len(own)), default=0)

    def check_width(self, n_outputs: int) -> None:
        """Raise a ConfigError where the metric is none of so many outputs."""
        if self.metric == "roc-auc" and self.name == "classify" and n_outputs != 2:
            raise ConfigError("metric roc-auc is of several labels, or of 2 classes, but there are "
                              f"{n_outputs} classes", "metric")

    def check_candidates(self, n: int) -> None:
        """Raise a ConfigError where the metric means nothing of so many candidates: a link and its negatives."""
        metric = self.make_metric()
        if metric and n <= metric.least:
            raise ConfigError(f"metric {self.metric}: needs {metric.least} negatives of each link, but in evaluation "
                              f"there are {n - 1}", "metric")


def mean_over_rows(loss: Callable[[Tensor, Array], Tensor]) -> Loss:
    """Return loss(output, targets), a mean over the rows that it is given, as a rank's share of the mean over all
    ranks' rows.

    Parameters
    ----------
    loss : callable
        (output, targets) -> scalar Tensor. It sees the chosen rows alone, and is not called where there are none.

    Returns
    -------
    callable
        (output, targets, rows, count) -> scalar Tensor, as `TrainingStep` takes: loss(output[rows], targets[rows]) *
        len(rows) / count.
    """

    def share(output, targets, rows, count):
        chosen = ops.take(output, rows)
        if not len(rows):
            return chosen.sum()  # 0, but the backward pass goes all the way: other ranks wait for it
        found = loss(chosen, targets[rows])
        if not isinstance(found, Tensor) or found.size != 1:
            words = f"a Tensor of shape {found.shape}" if isinstance(found, Tensor) else f"a {type(found).__name__}"
            raise ConfigError(f"the loss returned {words}, but must return a Tensor of one value, the mean over the "
                              "rows that it gets")
        return found * (len(rows) / count)

    return share


class OwnLoss(Task):
    """Of a loss of one's own, a mean over the rows that it is given: labels are what it takes. There is no metric."""

    def __init__(self, loss: Callable[[Tensor, Array], Tensor]) -> None:
        super().__init__()
        self.loss = mean_over_rows(loss)

    def make_metric(self) -> None:
        """Return None."""

    def check(self, labels: Array, rows: Mapping[str, Array], n_dst: int) -> None:
        """Take all."""

    def n_classes(self, labels: Array, rows: Mapping[str, Array]) -> int:
        """Return 0: any."""
        return 0


def _one_of(what: str, word: Any, known: Any) -> Any:
    if word not in known:
        raise ConfigError(f"{what}: {word!r} is not one of {', '.join(known)}{suggestion(word, known)}",
                          what.split()[0])
    return word


def _check_zeros(labels, n_dst):
    if labels.shape != (n_dst,) or labels.dtype.kind not in "iu" or labels.any():
        raise DataError(f"labels are {labels.dtype} {labels.shape}, but of links the {n_dst} zeros of split_links")


def _check_classes(labels, rows, n_dst):
    if labels.dtype.kind not in "iu":
        raise DataError(f"labels are {labels.dtype}, but classes are integers from 0: labels.astype(np.int64), or give "
                        "a task or a loss")
    if labels.ndim != 1:
        raise ShapeError(f"labels have shape {labels.shape}, but classes are ({n_dst},), one each row, or give a task "
                         "or a loss")
    for name, split in rows.items():
        wrong = split[labels[split] < 0]
        if len(wrong):
            raise DataError(f"labels[{wrong[0]}], of the {name} split, is {labels[wrong[0]]}, but classes count from 0")
