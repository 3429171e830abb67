"""Labels by task: one class per node (classify), several labels of 0 or 1 per node (multilabel), or numbers (regress)."""

import numpy as np

from sarlite.errors import DataError
from sarlite.types import Array

TASKS = ("classify", "multilabel", "regress")
MISSING = 255
"""Value of an unknown label for the task "multilabel"."""
_FORMS = {  # task: shape in words, numbers of dimensions, dtypes
    "classify": ("(n_nodes,)", (1,), ("int64",)),
    "multilabel": ("(n_nodes, n_labels)", (2,), ("uint8",)),
    "regress": ("(n_nodes,) or (n_nodes, n_values)", (1, 2), ("float32", "float64")),
}


def check_form(labels: Array, task: str, where: str) -> None:
    """Raise a DataError that begins with `where` unless `labels` have the number of dimensions and the dtype that `task` needs."""
    if task not in TASKS:
        raise DataError(f"{where}: task {task!r} is not one of {', '.join(TASKS)}")
    shape, dimensions, dtypes = _FORMS[task]
    if labels.ndim not in dimensions or labels.dtype.name not in dtypes:
        raise DataError(f"{where}: expected {' or '.join(dtypes)} {shape}, as the task is {task}, found {labels.dtype} {labels.shape}")


def n_outputs(labels: Array, task: str) -> int | None:
    """Return the number of columns of `labels`, which is a model's number of outputs per node. None for "classify", because class
    numbers do not tell the number of classes.
    """
    return None if task == "classify" else 1 if labels.ndim == 1 else int(labels.shape[1])


def labelled(labels: Array, task: str) -> Array:
    """Return (n,) bool, True for each node that has a label; a node with several labels must have all of them."""
    has_label = labels >= 0 if task == "classify" else labels != MISSING if task == "multilabel" else ~np.isnan(labels)
    return np.asarray(has_label if has_label.ndim == 1 else has_label.all(1))


def first_invalid(labels: Array, task: str, in_split: Array, n_classes: int) -> tuple[int, str] | None:
    """Return (row, description) of the first invalid entry of `labels`, or None. Rows in `in_split` must have a label; class
    numbers must be below `n_classes`.

    Parameters
    ----------
    labels : (n, ...) array
        In the form of the task.
    task : {"classify", "multilabel", "regress"}
    in_split : (n,) bool
        True for rows that must have a label. Other rows may have -1 ("classify"), `MISSING` ("multilabel") or NaN
        ("regress").
    n_classes : int
    """
    if task == "classify":
        bad = (labels < np.where(in_split, 0, -1)) | (labels >= n_classes)
    else:
        split = in_split.reshape(-1, *[1] * (labels.ndim - 1))
        if task == "multilabel":
            bad = (labels != 0) & (labels != 1) & (split | (labels != MISSING))
        else:
            bad = np.where(split, ~np.isfinite(labels), np.isinf(labels))
    if not bad.any():
        return None
    at = np.unravel_index(int(np.argmax(bad)), bad.shape)
    return int(at[0]), _words(labels[at], task, n_classes, "" if len(at) == 1 else f" in column {at[1]}")


def _words(label, task, n_classes, column):
    if label == {"classify": -1, "multilabel": MISSING}.get(task) or label != label:
        return f"is in a split but has no label{column} ({label})"
    expected = {"classify": f"outside 0 <= label < {n_classes}", "multilabel": "neither 0 nor 1", "regress": "not a finite number"}[task]
    return f"has label {label}{column}, {expected}"
