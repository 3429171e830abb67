"""Kinds of targets: a class, several labels of 0 or 1, numbers, and links. Each kind has the checks of its values."""

from collections.abc import Mapping, Sequence

import numpy as np

from sarlite.comm import Communicator
from sarlite.data import targets as target_values
from sarlite.errors import ConfigError, DataError, ShapeError
from sarlite.tasks.class_metrics import logistic
from sarlite.tasks.metric_table import NamedMetric
from sarlite.tasks.outcome_counts import BINS, MOST_CLASSES, OutcomeCounts, confusion, histogram_counts
from sarlite.types import Array

Splits = Mapping[str, Array]
"""This rank's row numbers, (k,) int64, by the name of a split."""


class TargetForm:
    """Kind of targets, such as "one class for each row". It checks the targets, and chooses what to count for a run's report page.

    Attributes
    ----------
    name : str
        Key of the form in `LOSSES` and `METRICS`.
    """

    name: str

    def check(self, targets: Array, rows: Splits, n_dst: int) -> None:
        """Raise an error unless the targets of the rows in all splits are valid; `n_dst` is the number of this rank's rows.

        The targets of other rows are not read.

        Parameters
        ----------
        targets : (n_dst, ...) array
        rows : dict of str to (k,) int64
            This rank's row numbers by split.
        n_dst : int
            Number of this rank's rows.

        Raises
        ------
        DataError, ShapeError
            The targets have the wrong dtype or shape, or a target is not valid. The error names the first such row.
        """
        raise NotImplementedError

    def n_classes(self, targets: Array, rows: Splits) -> int:
        """Return the least number of output columns that fits this rank's `targets` in the splits `rows`, such as the largest class + 1; 0
        if the kind of targets sets no bound.

        Without a bound the loss checks the shape.
        """
        return 0

    def check_width(self, metric: NamedMetric, n_outputs: int) -> None:
        """Raise a ConfigError if `metric` is undefined for an output with `n_outputs` columns."""

    def outcome_counts(self, targets: Array, rows: Splits, comm: Communicator, n_classes: int,
                       class_names: Sequence[str] | None) -> OutcomeCounts | None:
        """Return what to count for a run's report page: an `OutcomeCounts` for a confusion matrix of classes or a histogram of predictions.
        None if there are too many classes. Collective.
        """
        raise NotImplementedError


class ClassForm(TargetForm):
    """Kind of targets with one class for each row: (n,) integers from 0."""

    name = "classify"

    def check(self, targets: Array, rows: Splits, n_dst: int) -> None:
        if targets.dtype.kind not in "iu":
            remedy = "labels.astype(np.int64)" if targets.dtype.kind in "fb" else "np.unique(labels, return_inverse=True)[1]"
            raise DataError(f"labels are {targets.dtype}, but classes are integers from 0: use {remedy}, or pass a task or "
                            "a loss")
        if targets.ndim != 1:
            raise ShapeError(f"labels have shape {targets.shape}, but classes have shape ({n_dst},), one for each row; for "
                             "other labels pass a task or a loss")
        for name, split in rows.items():
            wrong = split[targets[split] < 0]
            if len(wrong):
                raise DataError(f"labels[{wrong[0]}], of the {name} split, is {targets[wrong[0]]}, but classes count "
                                "from 0")

    def n_classes(self, targets: Array, rows: Splits) -> int:
        return max((int(targets[split].max()) + 1 for split in rows.values() if len(split)), default=0)

    def check_width(self, metric: NamedMetric, n_outputs: int) -> None:
        if metric.kind.two_classes and n_outputs != 2:
            raise ConfigError(f"metric {metric.name} needs several labels or 2 classes, but there are "
                              f"{n_outputs} classes", "metric")
        if metric.name.startswith("top@") and metric.parameter >= n_outputs > 2:
            raise ConfigError(f"metric {metric.name}: there are {n_outputs} classes, so every row would be correct",
                              "metric")

    def outcome_counts(self, targets: Array, rows: Splits, comm: Communicator, n_classes: int,
                       class_names: Sequence[str] | None) -> OutcomeCounts | None:
        if not 2 <= n_classes <= MOST_CLASSES:
            return None
        return OutcomeCounts({"kind": "confusion", "classes": class_names}, confusion(n_classes))


class _ColumnForm(TargetForm):
    """Base class of the kinds of targets that are numbers: (n,), or (n, n_outputs) with a column for each output."""

    def check(self, targets: Array, rows: Splits, n_dst: int) -> None:
        if targets.ndim not in (1, 2) or targets.dtype.kind not in "iufb":
            raise ShapeError(f"labels are {targets.dtype} {targets.shape}, but for task {self.name} they must be numbers, (n, "
                             "n_outputs)")
        for name, split in rows.items():
            wrong = target_values.first_invalid(targets[split], self.name, np.ones(len(split), bool), 0)
            if wrong:
                raise DataError(f"labels[{split[wrong[0]]}], of the {name} split, {wrong[1]}")


class MultilabelForm(_ColumnForm):
    """Kind of targets with several labels for each row: (n, n_labels) of 0 or 1."""

    name = "multilabel"

    def outcome_counts(self, targets: Array, rows: Splits, comm: Communicator, n_classes: int,
                       class_names: Sequence[str] | None) -> OutcomeCounts | None:
        return histogram_counts(
            ["label 1", "label 0"], lambda output, labels: [logistic(output[labels == value]) for value in (1, 0)],
            np.linspace(0, 1, BINS + 1))


class ValueForm(_ColumnForm):
    """Kind of targets with finite numbers: (n,) or (n, n_values)."""

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
    """Kind of targets of links: (n,) zeros. A row of the model's output has the scores of a link and its negatives, and the target is the
    link's column, 0.
    """

    name = "link"

    def check(self, targets: Array, rows: Splits, n_dst: int) -> None:
        if targets.shape != (n_dst,) or targets.dtype.kind not in "iu" or targets.any():
            raise DataError(f"labels are {targets.dtype} {targets.shape}, but for links they must be the {n_dst} zeros of "
                            "split_links")

    def outcome_counts(self, targets: Array, rows: Splits, comm: Communicator, n_classes: int,
                       class_names: Sequence[str] | None) -> OutcomeCounts | None:
        return histogram_counts(
            ["links", "negatives"], lambda output, labels: [logistic(output[:, 0]), logistic(output[:, 1:])],
            np.linspace(0, 1, BINS + 1))


FORMS: dict[str, TargetForm] = {form.name: form for form in (ClassForm(), MultilabelForm(), ValueForm())}
"""Forms of the labels that a data set may have, by name."""
