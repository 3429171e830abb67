"""Last evaluation of a run, of the best model, for the HTML report: counts by split, calibration, and decision threshold."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np

from sarlite.comm import Communicator
from sarlite.numerics import using
from sarlite.tasks.class_metrics import CountsByClass, scores_of
from sarlite.tasks.metric_table import CLOSING, METRICS
from sarlite.tasks.metrics import Metric
from sarlite.tasks.outcome_counts import SCORE_EDGES, OutcomeCounts, SummedCounts, score_counts
from sarlite.tasks.thresholds import HALF, ThresholdRule, choose_threshold, decide
from sarlite.train.loop import Trainer
from sarlite.train.stopping import Best
from sarlite.types import Array, JsonDict


def outcome(trainer: Trainer, best: Best, n_classes: int, names: Sequence[str] | None = None,
            rule: ThresholdRule = HALF) -> JsonDict:
    """Evaluate the best model once more for the report page. Return a dict with counts by split, calibration and, unless `rule` is the
    threshold 0.5, the decision threshold that `rule` selects. `names` are class names, if any. Collective.

    Parameters
    ----------
    trainer : Trainer
    best : Best
        The best epoch, with the model's state.
    n_classes : int
        Number of the model's outputs.
    names : sequence of str, optional
        Names of the classes.
    rule : ThresholdRule
        Rule by which the validation rows choose the decision threshold, for two classes or several labels per row.

    Returns
    -------
    dict
        JSON-serializable, with these entries:

        - "splits": the task's counts of each split that has rows, beside their description; empty if the task has none.
        - "calibration", for classes and labels: the metrics of `CLOSING` by split.
        - "predicted", for classes and labels: number of rows by predicted class, or with each predicted label, by split.
        - "scores", for classes and labels: histograms of the probabilities by split.
        - "threshold", if `rule` is not 0.5: the chosen thresholds, and precision, recall and F1 at these by split.

    Notes
    -----
    Cost: one evaluation. Memory: a copy of the parameters, and 9 bytes for each row and label. The trainer's model has
    the same parameters before and after.
    """
    comm, task = trainer.comm, trainer.task
    counts = task.outcome_counts(trainer.labels, trainer.rows, comm, n_classes, names)
    of_classes = task.form.name in ("classify", "multilabel")
    collected = {name: _Collector(counts, of_classes, task.form.name, task.positive) for name in trainer.rows}
    with best_parameters(trainer, best), trainer.graph.profile.phase("evaluation"), using(trainer.numerics):
        trainer.score(collected)
    splits = {name: collector for name, collector in collected.items() if trainer.counts[name]}
    result: JsonDict = {**(counts.description if counts else {}), "splits": {}}
    if counts:
        result["splits"] = {name: _sums(comm, collector.parts["counts"]) for name, collector in splits.items()}
    if of_classes:
        several = task.form.name == "multilabel"
        result |= {
            "calibration": {name: {metric: collector.parts[metric].value(_added(comm, collector.parts[metric]), comm)
                               for metric in CLOSING} for name, collector in splits.items()},
            "predicted": {name: _added(comm, collector.parts["classes"]).reshape(3, -1)[1].astype(int).tolist()
                          for name, collector in splits.items()},
            "scores": {"edges": SCORE_EDGES.tolist(), "ranked": several or n_classes == 2,
                       "splits": {name: _sums(comm, collector.parts["scores"]) for name, collector in splits.items()}},
        }
        if (several or n_classes == 2) and rule != HALF:
            result["threshold"] = _threshold(comm, splits, rule)
    return result


@contextmanager
def best_parameters(trainer: Trainer, best: Best) -> Iterator[None]:
    """Return a context inside which the trainer's model has the parameters of the best epoch. At the end of the context the model gets its
    previous parameters back.
    """
    last = trainer.model.state_dict()
    if best.state:
        trainer.model.load_state_dict(best.state)
    try:
        yield
    finally:
        trainer.model.load_state_dict(last)


class _Collector(Metric):
    """Metric of one split that passes each batch on to several metrics and counters, so that one evaluation is enough for all."""

    def __init__(self, counts: OutcomeCounts | None, of_classes: bool, form: str, positive: int) -> None:
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
        """Return (scores of this rank's rows, mask of the scores that belong to a positive row or label), both (n, k)."""
        scores, positive = zip(*self.rows)
        return np.concatenate(scores), np.concatenate(positive)


def _added(comm: Communicator, metric: Metric) -> Array:
    return comm.allreduce(np.asarray(metric.counts(), np.float64).copy())


def _sums(comm: Communicator, metric: Metric) -> list[int] | list[list[int]]:
    return _added(comm, metric).astype(int).tolist()


def _threshold(comm: Communicator, splits: dict[str, "_Collector"], rule: ThresholdRule) -> dict[str, object]:
    """Return a dict with the decision threshold of each label that `rule` chooses (0.5 if it finds none) and, by split, precision, recall
    and F1 at these thresholds. `splits` has the scores of each split. Collective.
    """
    columns = zip(*(array.T for array in splits["val" if "val" in splits else "train"].scores()))
    chosen = [choose_threshold(rule, comm, *column) for column in columns]
    values = np.array([0.5 if value is None else value for value in chosen])
    by_split = {}
    for name, collector in splits.items():
        scores, true = collector.scores()
        predicted = decide(scores, values)
        n_correct, n_predicted, n_true = comm.allreduce(np.array([np.sum(predicted & true), predicted.sum(), true.sum()],
                                                     np.float64))
        by_split[name] = {"precision": n_correct / max(n_predicted, 1), "recall": n_correct / max(n_true, 1),
                       "f1": 2 * n_correct / max(n_predicted + n_true, 1), "predicted": int(n_predicted)}
    return {"rule": rule.name, "level": rule.level, "values": values.tolist(), "not_found": chosen.count(None),
            "splits": by_split}
