"""Forms of targets: a class, several labels of 0 or 1, numbers, and links. A form checks the targets of rows."""

from collections.abc import Mapping, Sequence

import numpy as np

from sarlite.comm import Communicator
from sarlite.data import targets as target_values
from sarlite.errors import ConfigError, DataError, ShapeError
from sarlite.tasks.metric_table import NamedMetric
from sarlite.tasks.outcome_counts import (
    BINS,
    MOST_CLASSES,
    OutcomeCounts,
    confusion,
    histogram_counts,
    logistic,
)
from sarlite.types import Array

Splits = Mapping[str, Array]
"""This rank's row numbers, (k,) int64, by the name of a split."""


class TargetForm:
    """Form of the targets of rows.

    Attributes
    ----------
    name : str
        Key of the form in `LOSSES` and `METRICS`.
    """

    name: str

    def check(self, targets: Array, rows: Splits, n_dst: int) -> None:
        """Raise a DataError or ShapeError that names the first wrong row of a split. Other rows are not read."""
        raise NotImplementedError

    def n_classes(self, targets: Array, rows: Splits) -> int:
        """Return the fewest columns that an output needs, by this rank's targets; 0 if the loss compares shapes."""
        return 0

    def check_width(self, metric: NamedMetric, n_outputs: int) -> None:
        """Raise a ConfigError if `metric` is undefined for `n_outputs` columns."""

    def outcome_counts(self, targets: Array, rows: Splits, comm: Communicator, n_classes: int,
                       class_names: Sequence[str] | None) -> OutcomeCounts | None:
        """Return the counts of the best model's rows that a run's page shows, or None. Collective."""
        raise NotImplementedError


class ClassForm(TargetForm):
    """One class of each row: (n,) integers from 0."""

    name = "classify"

    def check(self, targets: Array, rows: Splits, n_dst: int) -> None:
        if targets.dtype.kind not in "iu":
            raise DataError(f"labels are {targets.dtype}, but classes are integers from 0: labels.astype(np.int64), or "
                            "give a task or a loss")
        if targets.ndim != 1:
            raise ShapeError(f"labels have shape {targets.shape}, but classes are ({n_dst},), one each row, or give a "
                             "task or a loss")
        for name, split in rows.items():
            wrong = split[targets[split] < 0]
            if len(wrong):
                raise DataError(f"labels[{wrong[0]}], of the {name} split, is {targets[wrong[0]]}, but classes count "
                                "from 0")

    def n_classes(self, targets: Array, rows: Splits) -> int:
        return max((int(targets[split].max()) + 1 for split in rows.values() if len(split)), default=0)

    def check_width(self, metric: NamedMetric, n_outputs: int) -> None:
        if metric.kind.two_classes and n_outputs != 2:
            raise ConfigError(f"metric {metric.name} is of several labels, or of 2 classes, but there are "
                              f"{n_outputs} classes", "metric")
        if metric.name.startswith("top@") and metric.parameter >= n_outputs > 2:
            raise ConfigError(f"metric {metric.name}: there are {n_outputs} classes, so each row would be right",
                              "metric")

    def outcome_counts(self, targets: Array, rows: Splits, comm: Communicator, n_classes: int,
                       class_names: Sequence[str] | None) -> OutcomeCounts | None:
        if not 2 <= n_classes <= MOST_CLASSES:
            return None
        return OutcomeCounts({"kind": "confusion", "classes": class_names}, confusion(n_classes))


class _ColumnForm(TargetForm):
    """Numeric targets, (n,) or (n, n_outputs)."""

    def check(self, targets: Array, rows: Splits, n_dst: int) -> None:
        if targets.ndim not in (1, 2) or targets.dtype.kind not in "iufb":
            raise ShapeError(f"labels are {targets.dtype} {targets.shape}, but of task {self.name} numbers, (n, "
                             "n_outputs)")
        for name, split in rows.items():
            wrong = target_values.wrong(targets[split], self.name, np.ones(len(split), bool), 0)
            if wrong:
                raise DataError(f"labels[{split[wrong[0]]}], of the {name} split, {wrong[1]}")


class MultilabelForm(_ColumnForm):
    """Several labels of each row: (n, n_labels) of 0 or 1."""

    name = "multilabel"

    def outcome_counts(self, targets: Array, rows: Splits, comm: Communicator, n_classes: int,
                       class_names: Sequence[str] | None) -> OutcomeCounts | None:
        return histogram_counts(
            ["label 1", "label 0"], lambda output, labels: [logistic(output[labels == value]) for value in (1, 0)],
            np.linspace(0, 1, BINS + 1))


class ValueForm(_ColumnForm):
    """Numbers of each row: (n,) or (n, n_values), finite."""

    name = "regress"

    def outcome_counts(self, targets: Array, rows: Splits, comm: Communicator, n_classes: int,
                       class_names: Sequence[str] | None) -> OutcomeCounts | None:
        values = np.concatenate([targets[split].reshape(-1) for split in rows.values()]).astype(np.float64)
        n, total, squares = comm.allreduce(np.array([values.size, values.sum(), np.square(values).sum()]))
        deviation = float(np.sqrt(max(squares / max(n, 1) - (total / max(n, 1)) ** 2, 0))) or 1.0
        return histogram_counts(
            ["prediction - target"], lambda output, labels: [(output.reshape(labels.shape) - labels).reshape(-1)],
            deviation * np.linspace(-2, 2, BINS + 1))


class LinkForm(TargetForm):
    """A link among its candidates: (n,) zeros, as column 0 of a row's candidates is the link."""

    name = "link"

    def check(self, targets: Array, rows: Splits, n_dst: int) -> None:
        if targets.shape != (n_dst,) or targets.dtype.kind not in "iu" or targets.any():
            raise DataError(f"labels are {targets.dtype} {targets.shape}, but of links the {n_dst} zeros of "
                            "split_links")

    def outcome_counts(self, targets: Array, rows: Splits, comm: Communicator, n_classes: int,
                       class_names: Sequence[str] | None) -> OutcomeCounts | None:
        return histogram_counts(
            ["links", "negatives"], lambda output, labels: [logistic(output[:, 0]), logistic(output[:, 1:])],
            np.linspace(0, 1, BINS + 1))


FORMS: dict[str, TargetForm] = {form.name: form for form in (ClassForm(), MultilabelForm(), ValueForm())}
"""Forms of the labels that a data set may have, by name."""
