"""What the best model makes of each split's rows, for a run's page: a confusion matrix, or a histogram."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from sarlite.numerics import using
from sarlite.train.metrics import Metric
from sarlite.train.stopping import Best
from sarlite.types import Array

MOST_CLASSES, BINS = 64, 20


class Counts(Metric):
    """Sums of counts of rows; `of` returns those of some rows, (output, labels) -> array of one shape each time."""

    def __init__(self, of: Callable[[Array, Array], Array]) -> None:
        self.of, self.found = of, np.zeros(())

    def add(self, output: Array, labels: Array) -> None:
        self.found = self.found + self.of(output, labels)

    def counts(self) -> Array:
        return self.found


def confusion(n_classes: int) -> Callable[[Array, Array], Array]:
    """Return what counts rows by true class (first axis) and predicted class."""
    shape = n_classes, n_classes
    return lambda output, labels: np.bincount(
        n_classes * labels.astype(np.int64) + output[:, :n_classes].argmax(1), minlength=n_classes**2).reshape(shape)


def histogram(series: Callable[[Array, Array], Sequence[Array]], edges: Array) -> Callable[[Array, Array], Array]:
    """Return what counts values of each series by bin; the outer bins have what is outside of the edges."""
    return lambda output, labels: np.stack([np.histogram(np.clip(values, edges[0], edges[-1]), edges)[0]
                                            for values in series(output, labels)])


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
        count = confusion(n_classes)
    else:
        of, series, edges = _histogram(trainer, comm)
        told, count = {"kind": "histogram", "edges": edges.tolist(), "series": of}, histogram(series, edges)
    if best.state:
        trainer.model.load_state_dict(best.state)
    metrics = {name: Counts(count) for name in trainer.rows}
    with trainer.graph.profile.phase("evaluation"), using(trainer.numerics):
        trainer.score(metrics)
    sums = comm.allreduce(np.stack([metric.counts() for metric in metrics.values()]).astype(np.float64))
    return {**told, "splits": {name: own.astype(int).tolist() for name, own in zip(metrics, sums) if own.any()}}


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
