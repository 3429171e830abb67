"""Rows of the closing table about the best model's decision threshold and calibration, and warnings about both."""

from collections.abc import Iterator, Sequence

from sarlite.tasks.task import Task
from sarlite.types import JsonObject

_WORDS = {"brier": "Brier score", "calibration-error": "calibration error"}
_SPLITS = {"train": "train", "val": "validation", "test": "test"}


def threshold_row(threshold: JsonObject | None) -> Iterator[tuple[str, str]]:
    """Yield rows, (name, text), of the table printed after training: the values of the decision `threshold`, then the scores of
    each split at it. None, for the threshold 0.5, yields nothing.

    Parameters
    ----------
    threshold : dict or None
        Entry "threshold" of `outcome`; None, which yields nothing, if the threshold is 0.5.
    """
    if not threshold:
        return
    values = threshold["values"]
    shown = f"{values[0]:.4g}" if len(values) == 1 else f"{min(values):.4g} to {max(values):.4g}"
    rule = {"fixed": "as given", "best-f1": "the best F1 of validation",
            "precision": f"precision {threshold['level']:g} of validation"}[threshold["rule"]]
    yield "threshold", f"{shown}, {rule}"
    for split, values_at in threshold["splits"].items():
        scores = ", ".join(f"{name} {100 * values_at[key]:.2f} %" for name, key in (("precision", "precision"),
                                                                              ("recall", "recall"), ("F1", "f1")))
        yield "decisions", f"{_SPLITS[split]}: {scores}"


def calibration_row(calibration: JsonObject | None) -> Iterator[tuple[str, str]]:
    """Yield one row, (name, text), of the table printed after training: Brier score and calibration error of the test split, else
    of the validation or the training split. None, for a task without classes, yields nothing.

    Parameters
    ----------
    calibration : dict or None
        Entry "calibration" of `outcome`: the metrics by split. The row shows the test split, else the validation split,
        else the training split. None, for a task without classes, yields nothing.
    """
    for split in ("test", "val", "train"):
        if calibration and split in calibration:
            scores = calibration[split]
            shown = (f"{words} {'-' if scores[name] is None else format(scores[name], '.4g')}" for name, words in _WORDS.items())
            yield "calibration", f"{', '.join(shown)} ({_SPLITS[split]})"
            return


def warnings(task: Task, best_outcome: JsonObject | None, class_names: Sequence[str] | None) -> Iterator[str]:
    """Yield a warning if the best model of `task` predicts a single class, or if no threshold meets the rule of --threshold. `best_outcome`
    is the dict of `train.outcome.outcome`, or None if nothing was trained. Without `class_names`, classes are shown by number.

    Parameters
    ----------
    task : Task
    best_outcome : dict or None
        The best model's `outcome`; None if nothing was trained.
    class_names : sequence of str or None
    """
    best_outcome = best_outcome or {}
    threshold, split = best_outcome.get("threshold"), "val" if "val" in best_outcome.get("predicted", {}) else "train"
    if threshold and threshold["not_found"]:
        yield (f"--threshold: no threshold fulfils the rule on the validation rows, for "
               f"{threshold['not_found']} of {len(threshold['values'])} labels or classes: 0.5 is used")
    if threshold is None and "predicted" in best_outcome:
        predicted = best_outcome["predicted"].get(split, [])
        used = [number for number, n_rows in enumerate(predicted) if n_rows]
        several = task.form.name == "multilabel"
        if several and not used:
            yield f"the best model predicts no label of any {_SPLITS[split]} row: {_REMEDY}"
        elif not several and len(used) == 1 < min(len(predicted), predicted[used[0]]):  # one row always has one class
            name = class_names[used[0]] if class_names else f"class {used[0]}"
            yield f"the best model predicts {name} for all {_SPLITS[split]} rows: {_REMEDY}"


_REMEDY = "--threshold best-f1 moves the threshold, --class-weights balanced gives rare classes more weight"
