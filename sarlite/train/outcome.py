"""The best model's outcome on each split: counts for a run's page, the decision threshold, and the calibration."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from sarlite.comm import Communicator
from sarlite.numerics import using
from sarlite.tasks.class_metrics import CountsByClass, scores_of
from sarlite.tasks.metric_table import CLOSING, METRICS
from sarlite.tasks.metrics import Metric
from sarlite.tasks.outcome_counts import SCORE_EDGES, SummedCounts, score_counts
from sarlite.tasks.thresholds import HALF, ThresholdRule, choose_threshold, decide
from sarlite.train.stopping import Best
from sarlite.types import Array


def outcome(trainer: Any, best: Best, n_classes: int, names: Sequence[str] | None = None,
            rule: ThresholdRule = HALF) -> dict[str, Any]:
    """Describe what the best model makes of the rows of each split. Collective.

    Parameters
    ----------
    trainer : Trainer
    best : Best
    n_classes : int
        Number of the model's outputs.
    names : sequence of str, optional
        Of the classes.
    rule : ThresholdRule
        For two classes and for several labels; the validation rows choose the threshold.

    Returns
    -------
    dict
        JSON-able. "splits" with the counts of each split that has rows, and their description, if the task counts any.
        Of classes and labels also "calibration", the metrics of `CLOSING` by split; "predicted", rows by predicted class
        and split, or rows with each label; "scores", counts of probabilities by split. With a `rule` that is not 0.5
        "threshold": the values, and precision, recall and F1 at these by split.

    Notes
    -----
    Takes one evaluation. The trainer's model has the same parameters before and after. Memory: a copy of the
    parameters, and 9 bytes a row and label.
    """
    comm, task = trainer.comm, trainer.task
    counts = task.outcome_counts(trainer.labels, trainer.rows, comm, n_classes, names)
    of_classes = task.form.name in ("classify", "multilabel")
    collected = {name: _Collector(counts, of_classes, task.form.name, task.positive) for name in trainer.rows}
    with best_parameters(trainer, best), trainer.graph.profile.phase("evaluation"), using(trainer.numerics):
        trainer.score(collected)
    splits = {name: own for name, own in collected.items() if trainer.counts[name]}
    found: dict[str, Any] = {**(counts.description if counts else {}), "splits": {}}
    if counts:
        found["splits"] = {name: _sums(comm, own.parts["counts"]) for name, own in splits.items()}
    if of_classes:
        several = task.form.name == "multilabel"
        found |= {
            "calibration": {name: {metric: own.parts[metric].value(_added(comm, own.parts[metric]), comm)
                               for metric in CLOSING} for name, own in splits.items()},
            "predicted": {name: _added(comm, own.parts["classes"]).reshape(3, -1)[1].astype(int).tolist()
                          for name, own in splits.items()},
            "scores": {"edges": SCORE_EDGES.tolist(), "ranked": several or n_classes == 2,
                       "splits": {name: _sums(comm, own.parts["scores"]) for name, own in splits.items()}},
        }
        if (several or n_classes == 2) and rule != HALF:
            found["threshold"] = _threshold(comm, splits, rule)
    return found


@contextmanager
def best_parameters(trainer: Any, best: Best) -> Iterator[None]:
    """Give the trainer's model the best epoch's parameters for the block, and then the last ones again."""
    last = trainer.model.state_dict()
    if best.state:
        trainer.model.load_state_dict(best.state)
    try:
        yield
    finally:
        trainer.model.load_state_dict(last)


class _Collector(Metric):
    """Everything that is counted of a split's rows."""

    def __init__(self, counts: Any, of_classes: bool, form: str, positive: int) -> None:
        self.positive = positive
        self.rows: list[tuple[Array, Array]] = []
        self.parts: dict[str, Metric] = {"counts": SummedCounts(counts.count_rows)} if counts else {}
        if of_classes:
            self.parts |= {name: METRICS[form][name].make(0.0, positive) for name in CLOSING}
            self.parts["classes"] = CountsByClass()
            self.parts["scores"] = SummedCounts(lambda output, labels: score_counts(output, labels, positive))

    def add(self, output: Array, labels: Array) -> None:
        for part in self.parts.values():
            part.add(output, labels)
        if "classes" in self.parts and (labels.ndim == 2 or output.shape[1] == 2):
            self.rows.append(scores_of(output, labels, self.positive))

    def scores(self) -> tuple[Array, Array]:
        """Return this rank's scores and which of them are positive, each (n, k)."""
        scores, positive = zip(*self.rows)
        return np.concatenate(scores), np.concatenate(positive)


def _added(comm: Communicator, metric: Metric) -> Array:
    return comm.allreduce(np.asarray(metric.counts(), np.float64).copy())


def _sums(comm: Communicator, metric: Metric) -> list[Any]:
    return _added(comm, metric).astype(int).tolist()


def _threshold(comm: Communicator, splits: dict[str, Any], rule: ThresholdRule) -> dict[str, Any]:
    """Return the threshold of each label, 0.5 where the rule finds none, and the scores at these by split."""
    columns = zip(*(array.T for array in splits["val" if "val" in splits else "train"].scores()))
    chosen = [choose_threshold(rule, comm, *column) for column in columns]
    values = np.array([0.5 if value is None else value for value in chosen])
    found = {}
    for name, own in splits.items():
        scores, true = own.scores()
        predicted = decide(scores, values)
        right, said, there = comm.allreduce(np.array([np.sum(predicted & true), predicted.sum(), true.sum()],
                                                     np.float64))
        found[name] = {"precision": right / max(said, 1), "recall": right / max(there, 1),
                       "f1": 2 * right / max(said + there, 1), "predicted": int(said)}
    return {"rule": rule.name, "level": rule.level, "values": values.tolist(), "not_found": chosen.count(None),
            "splits": found}
