"""Options and metadata that a resumed run takes from the checkpoint of the run before."""

import os
from collections.abc import Callable, Mapping
from typing import Any

from sarlite.cli.options import OPTIONS, RunOptions
from sarlite.comm import launch
from sarlite.command import flag
from sarlite.data.meta import check_class_names
from sarlite.data.schema import is_schema
from sarlite.errors import CheckpointError, ConfigError, DataError, SarliteError
from sarlite.keys import MOST_STEPS
from sarlite.tasks.task_table import TASKS
from sarlite.train import checkpoint
from sarlite.train.identity import difference


def stored(options: RunOptions) -> dict[str, Any]:
    """Return the options that a checkpoint stores, by name. A checkpoint names no path to write to."""
    return {name: value for name, value in options.values.items()
            if OPTIONS[name].on_resume != "forget" and value is not None}


def base(path):
    """Return the options of the run that wrote a checkpoint; none if it cannot be read, as `checkpoint.read` tells."""
    try:
        options = checkpoint.load_metadata(path)["options"]
    except (SarliteError, KeyError):
        return {}
    if not isinstance(options, dict):
        return {}
    if launch.launched_ranks() not in (None, 1):
        options.pop("ranks", None)  # the launcher says it
    return options


def _whole(value):
    return type(value) is int and 0 <= value <= MOST_STEPS


def _score(value):
    return value is None or type(value) in (int, float)


_FIELDS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "epoch": (_whole, "a whole number"),
    "step": (_whole, "a whole number"),
    "best": (lambda best: isinstance(best, dict) and _whole(best.get("epoch")) and isinstance(best.get("scores"), dict)
             and all(map(_score, best["scores"].values())) and type(best.get("decided", True)) is bool,
             "an epoch and scores"),
    "options": (lambda options: isinstance(options, dict), "options by name"),
    "data": (lambda data: isinstance(data, dict) and _whole(data.get("classes")),
             "an identity with a number of classes"),
    "task": (lambda task: isinstance(task, str) and task in TASKS, f"one of {', '.join(TASKS)}"),
    "used": (lambda used: isinstance(used, dict) and all(type(value) is bool for value in used.values()),
             "true or false by name"),
    "positive": (lambda number: type(number) is int and number in (0, 1), "0 or 1"),
    "thresholds": (lambda values: isinstance(values, list) and len(values) > 0
                   and all(type(value) is float and 0 <= value <= 1 for value in values), "a list of probabilities"),
    "schema": (is_schema, "names of node types, relations and columns"),
}
"""Of the metadata of a run's checkpoint each field: whether a value can be, and what is said of others."""
_NEEDED = ("epoch", "best", "options", "data")


def check_run(path, metadata):
    """Raise a CheckpointError if `metadata` are not from a run: a field is missing or has an invalid value."""
    missing = [name for name in _NEEDED if name not in metadata]
    if missing:
        raise CheckpointError(f"checkpoint {path} is not of a run: it has no {missing[0]}")
    for name, (fits, expected) in _FIELDS.items():
        if name in metadata and not fits(metadata[name]):
            raise CheckpointError(f"checkpoint {path}: {name}: {str(metadata[name])[:80]!r} is not {expected}")
    try:
        check_class_names(f"checkpoint {path}", metadata.get("class_names"), metadata["data"]["classes"])
    except DataError as error:
        raise CheckpointError(str(error)) from error
    if metadata["best"]["epoch"] > metadata["epoch"]:
        raise CheckpointError(f"checkpoint {path}: best: epoch {metadata['best']['epoch']} is after epoch "
                              f"{metadata['epoch']}")


def check_options(options: RunOptions, metadata: Mapping[str, Any]) -> None:
    """Raise if an option differs that a resumed run cannot change, or if the run is past its last epoch.

    Raises
    ------
    CheckpointError
        The checkpoint is not of a run of the command.
    ConfigError
        Naming the option and both values.
    """
    check_run(options.output.resume, metadata)
    path, before = options.output.resume, metadata["options"]
    for name, option in OPTIONS.items():
        if option.on_resume != "fixed":
            continue
        there, here = before.get(name, option.unset), options.values[name]
        if there != here and not (name == "model" and same_class(there, here)):
            raise ConfigError(f"{_flag(name, here)}: cannot change, the run of {path} has {_said(there)}")
    epochs = options.training.epochs
    schedule, there = options.training.lr_schedule, before.get("epochs", OPTIONS["epochs"].unset)
    if schedule.endswith("cosine") and schedule == before.get("lr_schedule") and epochs != there:
        raise ConfigError(f"--epochs {epochs}: cannot change with --lr-schedule {schedule}, as the learning rate would "
                          f"jump: the run of {path} has {there}. Another --lr-schedule may go on for more epochs")
    if metadata["epoch"] > epochs:
        raise ConfigError(f"--epochs {epochs}: the checkpoint {path} is of epoch {metadata['epoch']}; --epochs counts "
                          "from the first one")


def check_data(options: RunOptions, metadata: Mapping[str, Any], here: Mapping[str, Any]) -> None:
    """Raise a CheckpointError if the data differ from the checkpoint's data; `here` is the `identity` of the data."""
    found = difference(metadata["data"], here)
    if found:
        there = metadata["options"].get("data")
        raise CheckpointError(f"checkpoint {options.output.resume}: its data, {there}, are not --data "
                              f"{options.data.data}: {found}")


def check_classes(options: RunOptions, metadata: Mapping[str, Any], here: list[str] | None) -> None:
    """Raise a CheckpointError if classes of the data have other names than in the checkpoint."""
    there = metadata.get("class_names")
    odd = next((pair for pair in zip(there or (), here or ()) if pair[0] != pair[1]), None)
    if odd:
        raise CheckpointError(f"checkpoint {options.output.resume}: its class {odd[0]!r} is {odd[1]!r} in --data "
                              f"{options.data.data}")


def same_class(there, here):
    """Return True if two model specifications name the same class of a file, which may have moved."""
    names = [spec.rpartition(":") for spec in (str(there), str(here))]
    return all(colon for _, colon, _ in names) and len({(os.path.basename(path), name) for path, _, name in names}) == 1


def _flag(name, value):
    if isinstance(value, bool):
        return flag(name if value else f"no_{name}")
    return flag(name) if value is None else f"{flag(name)} {value}"


def _said(value):
    return "the model's own" if value is None else value
