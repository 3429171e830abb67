"""The metrics by form of targets and name. A metric is a value of a task."""

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from sarlite.command import suggestion
from sarlite.errors import ConfigError
from sarlite.tasks import class_metrics as classes
from sarlite.tasks.link_metrics import LinkAuc, LinkAveragePrecision, LinkRank, SourceRank, discounts
from sarlite.tasks.metrics import MeanError, Metric


class MetricKind(NamedTuple):
    """A metric by name.

    Attributes
    ----------
    make : callable
        (parameter, positive class) -> Metric without rows.
    lower : bool
        True if a lower value is better.
    two_classes : bool
        True if the metric is undefined for another number of classes.
    parameter : callable, optional
        Returns True for the numbers that may stand for the capital at the end of the name.
    share : bool
        True if the value is a share, which is shown in percent.
    takes : {"outputs", "ranks", "rankings"}
        Rows of the model's output; or ranks of links, among negatives or all destinations; or ranks among all
        destinations.
    """

    make: Callable[[float, int], Metric]
    lower: bool = False
    two_classes: bool = False
    parameter: Callable[[float], bool] | None = None
    share: bool = True
    takes: str = "outputs"


def _averaged(score, average="positive"):
    return MetricKind(lambda _, positive: classes.Averaged(score, average, positive))


def _positive_whole(value):
    return 1 <= value < 1e9 and value == int(value)


def _best_sum(k):
    """Return the function that returns the largest discounted gain of the top k, by the number of links."""
    return lambda counts: np.cumsum(discounts(np.arange(1.0, max(counts, default=0) + 1), k))[counts - 1]


_CALIBRATION = {
    "brier": MetricKind(lambda _, positive: classes.Brier(), lower=True, share=False),
    "calibration-error": MetricKind(lambda _, positive: classes.CalibrationError(positive), lower=True, share=False),
}
_ACCURACY = MetricKind(lambda _, positive: classes.Accuracy())
_COUNTS = {
    "micro-f1": _averaged(classes.f_beta(1), "micro"), "macro-f1": _averaged(classes.f_beta(1), "macro"),
    "precision": _averaged(classes.precision), "recall": _averaged(classes.recall),
    "fbeta@B": MetricKind(lambda beta, positive: classes.Averaged(classes.f_beta(beta), positive=positive),
                          parameter=lambda beta: 0 < beta < 1e6),
}  # fmt: skip
_RANKED = {
    "ap": MetricKind(lambda _, positive: classes.ClassAveragePrecision(positive)),
    "recall@precision=P": MetricKind(lambda least, positive: classes.RecallAtPrecision(least, positive),
                                     parameter=lambda least: 0 < least <= 1),
}  # fmt: skip
METRICS: dict[str, dict[str, MetricKind]] = {
    "classify": {
        "accuracy": _ACCURACY, **_COUNTS,
        "balanced-accuracy": MetricKind(lambda _, positive: classes.BalancedAccuracy()),
        "mcc": MetricKind(lambda _, positive: classes.Matthews(), share=False),
        "top@K": MetricKind(lambda k, positive: classes.Accuracy(int(k)), parameter=_positive_whole),
        "roc-auc": MetricKind(lambda _, positive: classes.RocAuc(positive), two_classes=True),
        **_RANKED, **_CALIBRATION,
    },
    "multilabel": {"roc-auc": MetricKind(lambda _, positive: classes.RocAuc()), "accuracy": _ACCURACY, **_COUNTS,
                   **_RANKED, **_CALIBRATION},
    "regress": {"rmse": MetricKind(lambda *_: MeanError(np.square, math.sqrt), lower=True, share=False),
                "mae": MetricKind(lambda *_: MeanError(np.abs, float), lower=True, share=False)},
    "link": {"roc-auc": MetricKind(lambda *_: LinkAuc()), "ap": MetricKind(lambda *_: LinkAveragePrecision()),
             "mrr": MetricKind(lambda *_: LinkRank(lambda ranks: 1 / ranks), takes="ranks"),
             "hits@K": MetricKind(lambda k, _: LinkRank(lambda ranks: ranks <= k, int(k)), parameter=_positive_whole,
                                  takes="ranks"),
             "recall@K": MetricKind(lambda k, _: SourceRank(lambda ranks: 1.0 * (ranks <= k), lambda counts: counts),
                                    parameter=_positive_whole, takes="rankings"),
             "ndcg@K": MetricKind(lambda k, _: SourceRank(lambda ranks: discounts(ranks, int(k)), _best_sum(int(k))),
                                  parameter=_positive_whole, takes="rankings")},
}  # fmt: skip
"""Metrics by form of targets and name. The first metric of a form is its default."""
ALL_METRICS = tuple(dict.fromkeys(name for metrics in METRICS.values() for name in metrics))
CLOSING = tuple(_CALIBRATION)
"""Metrics of classes and labels that a run also tells of its best model."""


class NamedMetric(NamedTuple):
    """A metric with its parameter.

    Attributes
    ----------
    name : str
        As given, such as "ap" or "top@5".
    kind : MetricKind
    parameter : float
    """

    name: str
    kind: MetricKind
    parameter: float = 0.0

    def make(self, positive: int = 1) -> Metric:
        """Return the metric without rows; `positive` is the positive one of two classes."""
        return self.kind.make(self.parameter, positive)


def find_metric(form: str, word: str | None) -> NamedMetric:
    """Return the metric of a form that `word` names, by default the first.

    Parameters
    ----------
    form : str
        Key of `METRICS`.
    word : str, optional
        A name of the form's metrics, with a number in place of a capital at its end, as "top@5" for "top@K".

    Raises
    ------
    ConfigError
        The form has no such metric, or the number is none that the metric takes.
    """
    metrics = METRICS[form]
    name = word or next(iter(metrics))
    if name in metrics and metrics[name].parameter is None:
        return NamedMetric(name, metrics[name])
    for known, kind in metrics.items():
        if kind.parameter is not None and name.startswith(known[:-1]) and name != known:
            value = _number(name[len(known) - 1 :])
            if not kind.parameter(value):
                raise ConfigError(f"metric {name!r}: {known[-1]} of {known} cannot be {name[len(known) - 1 :]!r}",
                                  "metric")
            return NamedMetric(name, kind, value)
    raise ConfigError(f"metric of task {form}: {name!r} is not one of {', '.join(metrics)}{suggestion(name, metrics)}",
                      "metric")


def lower_is_better(word: str) -> bool:
    """Return True if a lower value is better of the metric that `word` names, in any form of targets."""
    return any(kind.lower for metrics in METRICS.values() for name, kind in metrics.items()
               if word == name or kind.parameter is not None and word.startswith(name[:-1]))


def _number(text):
    try:
        return float(text)
    except ValueError:
        return math.nan
