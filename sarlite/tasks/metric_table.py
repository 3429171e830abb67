"""Table of the metrics by kind of targets (classes, several labels, numbers, links) and name."""

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from sarlite.command import suggestion
from sarlite.errors import ConfigError
from sarlite.tasks import class_metrics as classes
from sarlite.tasks.link_metrics import LinkAuc, LinkAveragePrecision, LinkRank, SourceRank, discounts
from sarlite.tasks.metrics import MeanError, Metric
from sarlite.types import Array


class MetricKind(NamedTuple):
    """Entry of the table of metrics: a function that makes the metric, True if a lower value is better, and the kind of arrays that the
    metric is computed from.

    Attributes
    ----------
    make : callable
        Function (parameter, positive class) -> Metric without rows.
    lower : bool
        True if a lower value is better.
    two_classes : bool
        True if the metric of classes is defined only for two classes.
    parameter : callable, optional
        Function that returns True for a valid parameter, the number in place of the capital at the end of the name. None
        for a metric without a parameter.
    share : bool
        True if the value is a share, which is shown in percent.
    takes : {"outputs", "ranks", "rankings"}
        Argument of `Metric.add`. "outputs": rows of the model's output. "ranks": links ranked among negatives or among
        all destinations. "rankings": links ranked among all destinations.
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


def _best_sum(k: int) -> Callable[[Array], Array]:
    """Return a function that maps the number of links of each source, (m,), to the largest possible DCG@k of the source, (m,), which NDCG
    divides by. It is reached if the source's links take the first ranks.
    """
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
"""Metrics by kind of targets and name. The first metric of a form is its default."""
ALL_METRICS = tuple(dict.fromkeys(name for metrics in METRICS.values() for name in metrics))
"""Names of the metrics of all forms."""
CLOSING = tuple(_CALIBRATION)
"""Metrics of classes and labels that a run reports for its best model beside the task's metric."""


class NamedMetric(NamedTuple):
    """Metric that was chosen by name: its entry in the table of metrics, and the number in its name, such as 5 in "top@5".

    Attributes
    ----------
    name : str
        Name with the parameter, such as "ap" or "top@5".
    kind : MetricKind
    parameter : float
        0 for a metric without a parameter.
    """

    name: str
    kind: MetricKind
    parameter: float = 0.0

    def make(self, positive: int = 1) -> Metric:
        """Create the metric, to which no rows have been added yet; `positive`, 0 or 1, is the positive class of two."""
        return self.kind.make(self.parameter, positive)


def find_metric(form: str, word: str | None) -> NamedMetric:
    """Return the metric named `word`, such as "top@5", for targets of the kind `form`, such as "classify". If `word` is None, return the
    default metric of this kind.

    Parameters
    ----------
    form : str
        Form of the targets, a key of `METRICS`.
    word : str, optional
        Name of a metric. A number takes the place of a capital at the end of the name: "top@5" for "top@K". By default
        the first metric of the form.

    Returns
    -------
    NamedMetric

    Raises
    ------
    ConfigError
        The form has no such metric, or the number is not valid for the metric.

    Examples
    --------
    >>> find_metric("classify", "top@5").parameter, find_metric("regress", None).name
    (5.0, 'rmse')
    """
    metrics = METRICS[form]
    name = word or next(iter(metrics))
    if name in metrics and metrics[name].parameter is None:
        return NamedMetric(name, metrics[name])
    for pattern, kind in metrics.items():
        if kind.parameter is not None and name.startswith(pattern[:-1]) and name != pattern:
            value = _number(name[len(pattern) - 1 :])
            if not kind.parameter(value):
                raise ConfigError(f"metric {name!r}: {pattern[-1]} of {pattern} cannot be {name[len(pattern) - 1 :]!r}",
                                  "metric")
            return NamedMetric(name, kind, value)
    raise ConfigError(f"metric of task {form}: {name!r} is not one of {', '.join(metrics)}{suggestion(name, metrics)}",
                      "metric")


def lower_is_better(word: str) -> bool:
    """Return True if a lower value of the metric named `word` is better, as for "rmse".

    Examples
    --------
    >>> lower_is_better("rmse"), lower_is_better("top@5")
    (True, False)
    """
    return any(kind.lower for metrics in METRICS.values() for name, kind in metrics.items()
               if word == name or kind.parameter is not None and word.startswith(name[:-1]))


def _number(text):
    try:
        return float(text)
    except ValueError:
        return math.nan
