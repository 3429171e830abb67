"""What the best model makes of each split's rows, for a run's page: a confusion matrix, or a histogram."""

from typing import Any

import numpy as np

from sarlite.tape.numerics import using
from sarlite.train.metrics import Metric
from sarlite.train.stopping import Best
from sarlite.types import Array

MOST_CLASSES, BINS = 64, 20


class Confusion(Metric):
    """Rows by true class (first axis) and predicted class."""

    def __init__(self, n_classes: int) -> None:
        self.found = np.zeros((n_classes, n_classes))

    def add(self, output: Array, labels: Array) -> None:
        n = len(self.found)
        self.found += np.bincount(n * labels.astype(np.int64) + output[:, :n].argmax(1), minlength=n * n).reshape(n, n)

    def counts(self) -> Array:
        return self.found.reshape(-1)


class Histogram(Metric):
    """Values of each series by bin; what is outside of the edges is in the outer bins.

    Parameters
    ----------
    series : callable (output, labels) -> list of array
    n_series : int
    edges : (BINS + 1,) array
    """

    def __init__(self, series: Any, n_series: int, edges: Array) -> None:
        self.series, self.edges, self.found = series, edges, np.zeros((n_series, BINS))

    def add(self, output: Array, labels: Array) -> None:
        for own, values in zip(self.found, self.series(output, labels)):
            own += np.histogram(np.clip(values, self.edges[0], self.edges[-1]), self.edges)[0]

    def counts(self) -> Array:
        return self.found.reshape(-1)


def outcome(trainer: Any, best: Best, n_classes: int, names: Any = None) -> dict[str, Any] | None:
    """Count the best model's rows by split: by true and predicted class, or by the score of a link or a label, or by
    the error of a value. Collective.

    Return the counts, JSON-able; None of more than `MOST_CLASSES` classes. The trainer's model is the best one from
    here on. Takes one evaluation.
    """
    task, comm = trainer.task.name, trainer.comm
    if task == "classify":
        if not 2 <= n_classes <= MOST_CLASSES:
            return None
        told: dict[str, Any] = {"kind": "confusion", "classes": names}
        shape = (n_classes, n_classes)
    else:
        of, series, edges = _histogram(trainer, comm)
        told, shape = {"kind": "histogram", "edges": edges.tolist(), "series": of}, (len(of), BINS)
    if best.state:
        trainer.model.load_state_dict(best.state)
    metrics = {name: Confusion(n_classes) if task == "classify" else Histogram(series, shape[0], edges)
               for name in trainer.rows}
    with trainer.graph.profile.phase("evaluation"), using(trainer.numerics):
        trainer.score(metrics)
    sums = comm.allreduce(np.stack([metric.counts() for metric in metrics.values()]))
    return {**told,
            "splits": {name: own.reshape(shape).astype(int).tolist() for name, own in zip(metrics, sums) if own.any()}}


def _histogram(trainer, comm):
    """The names of series, what tells them of rows, and the bins' edges."""
    if trainer.task.name == "link":
        return (["links", "negatives"], lambda output, labels: [_share(output[:, 0]), _share(output[:, 1:])],
                np.linspace(0, 1, BINS + 1))
    if trainer.task.name == "multilabel":
        return (["label 1", "label 0"], lambda output, labels: [_share(output[labels == value]) for value in (1, 0)],
                np.linspace(0, 1, BINS + 1))
    labels = np.concatenate([trainer.labels[rows].reshape(-1) for rows in trainer.rows.values()]).astype(np.float64)
    n, total, squares = comm.allreduce(np.array([labels.size, labels.sum(), np.square(labels).sum()]))
    spread = float(np.sqrt(max(squares / max(n, 1) - (total / max(n, 1)) ** 2, 0))) or 1.0
    return (["prediction - target"], lambda output, labels: [(output.reshape(labels.shape) - labels).reshape(-1)],
            spread * np.linspace(-2, 2, BINS + 1))


def _share(logits):
    with np.errstate(over="ignore"):
        return 1 / (1 + np.exp(-logits.astype(np.float64)))
