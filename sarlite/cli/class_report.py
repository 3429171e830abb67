"""Rows of a run's table about the decisions and the calibration of its best model, and warnings about these."""

from collections.abc import Iterator, Sequence
from typing import Any

_WORDS = {"brier": "Brier score", "calibration-error": "calibration error"}
_SPLITS = {"train": "train", "val": "validation", "test": "test"}


def threshold_row(found: dict[str, Any] | None) -> Iterator[tuple[str, str]]:
    """Yield the row of the decision threshold, as `outcome` has it; none of a run that decides by 0.5."""
    if not found:
        return
    values = found["values"]
    told = f"{values[0]:.4g}" if len(values) == 1 else f"{min(values):.4g} to {max(values):.4g}"
    rule = {"fixed": "as given", "best-f1": "the best F1 of validation",
            "precision": f"precision {found['level']:g} of validation"}[found["rule"]]
    yield "threshold", f"{told}, {rule}"
    for split, own in found["splits"].items():
        scores = ", ".join(f"{name} {100 * own[key]:.2f} %" for name, key in (("precision", "precision"),
                                                                              ("recall", "recall"), ("F1", "f1")))
        yield "decisions", f"{_SPLITS[split]}: {scores}"


def calibration_row(found: dict[str, Any] | None) -> Iterator[tuple[str, str]]:
    """Yield the row of the metrics of `CLOSING`, for the last split that has rows; none of a run without classes."""
    for split in ("test", "val", "train"):
        if found and split in found:
            own = found[split]
            told = (f"{words} {'-' if own[name] is None else format(own[name], '.4g')}" for name, words in _WORDS.items())
            yield "calibration", f"{', '.join(told)} ({_SPLITS[split]})"
            return


def warnings(task: Any, judged: dict[str, Any] | None, class_names: Sequence[str] | None) -> Iterator[str]:
    """Yield what a user should know before using the best model's decisions, from its `outcome`."""
    judged = judged or {}
    threshold, split = judged.get("threshold"), "val" if "val" in judged.get("predicted", {}) else "train"
    if threshold and threshold["not_found"]:
        yield (f"--threshold: no threshold does what the rule asks on the validation rows, for "
               f"{threshold['not_found']} of {len(threshold['values'])} labels or classes: 0.5 stays")
    if threshold is None and "predicted" in judged:
        predicted = judged["predicted"].get(split, [])
        used = [number for number, n_rows in enumerate(predicted) if n_rows]
        several = task.form.name == "multilabel"
        if several and not used:
            yield f"the best model predicts no label of any {_SPLITS[split]} row: {_REMEDY}"
        elif not several and len(used) == 1 < len(predicted):
            name = class_names[used[0]] if class_names else f"class {used[0]}"
            yield f"the best model predicts {name} alone for all {_SPLITS[split]} rows: {_REMEDY}"


_REMEDY = "--threshold best-f1 moves the decision, --class-weights balanced weighs rare classes more"
