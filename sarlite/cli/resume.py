"""Options and metadata that a resumed run takes from the checkpoint of the earlier run."""

import os
from collections.abc import Callable, Mapping

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
from sarlite.types import JsonDict, JsonObject
from sarlite.types import Path as AnyPath


def stored(options: RunOptions) -> JsonDict:
    """Return {name: value} of those `options` that a checkpoint stores: all except output paths, options of one process and options
    without a value.
    """
    return {name: value for name, value in options.values.items()
            if OPTIONS[name].on_resume != "forget" and value is not None}


def base(path: AnyPath) -> JsonDict:
    """Return {name: value} of the options of the run that wrote the checkpoint `path`; {} if it cannot be read, since
    `checkpoint.read` raises the error later on all ranks.
    """
    try:
        options = checkpoint.load_metadata(path)["options"]
    except (SarliteError, KeyError):
        return {}
    if not isinstance(options, dict):
        return {}
    if launch.launched_ranks() not in (None, 1):
        options.pop("ranks", None)  # mpiexec sets the number of ranks
    return options


def _is_count(value):
    return type(value) is int and 0 <= value <= MOST_STEPS


def _is_score(value):
    return value is None or type(value) in (int, float)


FieldCheck = Callable[[object], bool]
_FIELDS: dict[str, tuple[FieldCheck, str]] = {
    "epoch": (_is_count, "a whole number"),
    "step": (_is_count, "a whole number"),
    "best": (lambda best: isinstance(best, dict) and _is_count(best.get("epoch")) and isinstance(best.get("scores"), dict)
             and all(map(_is_score, best["scores"].values())) and type(best.get("decided", True)) is bool,
             "an epoch and scores"),
    "options": (lambda options: isinstance(options, dict), "options by name"),
    "data": (lambda data: isinstance(data, dict) and _is_count(data.get("classes")),
             "an identity with a number of classes"),
    "task": (lambda task: isinstance(task, str) and task in TASKS, f"one of {', '.join(TASKS)}"),
    "used": (lambda used: isinstance(used, dict) and all(type(value) is bool for value in used.values()),
             "true or false by name"),
    "positive": (lambda number: type(number) is int and number in (0, 1), "0 or 1"),
    "thresholds": (lambda values: isinstance(values, list) and len(values) > 0
                   and all(type(value) is float and 0 <= value <= 1 for value in values), "a list of probabilities"),
    "schema": (is_schema, "names of node types, relations and columns"),
    "time_kind": (lambda time_kind: time_kind in ("dates", "integers"), "dates or integers"),
}
"""Check of each field of a checkpoint's metadata, and the words of the error message for the expected value."""
_NEEDED = ("epoch", "best", "options", "data")


def check_run(path: AnyPath | None, metadata: JsonObject) -> None:
    """Raise a CheckpointError unless `metadata`, read from the checkpoint `path`, have all fields that a training run writes, with
    valid values.
    """
    missing = [name for name in _NEEDED if name not in metadata]
    if missing:
        raise CheckpointError(f"checkpoint {path} is not from a run: it has no {missing[0]}")
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


def check_options(options: RunOptions, metadata: JsonObject) -> None:
    """Raise an error unless a resumed run with `options` can continue from the checkpoint with `metadata`: no option that is fixed
    may differ, and the checkpoint's epoch must be before the end.

    Parameters
    ----------
    options : RunOptions
        Options of the resumed run.
    metadata : dict
        Metadata of the checkpoint.

    Raises
    ------
    CheckpointError
        The checkpoint is not from a run of the training command.
    ConfigError
        An option differs that a resumed run cannot change, or the checkpoint is from an epoch after the last one, or
        not from one before that of --stop-after.
    """
    check_run(options.output.resume, metadata)
    path, before = options.output.resume, metadata["options"]
    for name, option in OPTIONS.items():
        if option.on_resume != "fixed":
            continue
        old, new = before.get(name, option.unset), options.values[name]
        if old != new and not (name == "model" and same_class(old, new)):
            raise ConfigError(f"{_flag(name, new)}: cannot change, the run of {path} has "
                              f"{'the default of the model' if old is None else old}")
    epochs = options.training.epochs
    schedule, old = options.training.lr_schedule, before.get("epochs", OPTIONS["epochs"].unset)
    if schedule.endswith("cosine") and schedule == before.get("lr_schedule") and epochs != old:
        raise ConfigError(f"--epochs {epochs}: cannot change with --lr-schedule {schedule}, because the learning rate "
                          f"would jump: the run of {path} has {old}. Another --lr-schedule can continue for more epochs")
    if metadata["epoch"] > epochs:
        raise ConfigError(f"--epochs {epochs}: the checkpoint {path} is from epoch {metadata['epoch']}; --epochs counts "
                          "all epochs, from the first one")
    last = options.output.stop_after
    if last is not None and metadata["epoch"] >= last:
        raise ConfigError(f"--stop-after {last}: the checkpoint {path} is from epoch {metadata['epoch']}, so the run would "
                          "never stop there")


def check_data(options: RunOptions, metadata: JsonObject, loaded: Mapping[str, object]) -> None:
    """Raise a CheckpointError unless the loaded data are the data of the checkpoint with `metadata`. `loaded` is the identity of the loaded
    data, such as sizes and hashes. `options` has the names of the checkpoint and of the data for the message.

    Parameters
    ----------
    options : RunOptions
    metadata : dict
        Metadata of the checkpoint.
    loaded : dict
        `identity` of the loaded data.
    """
    differing = difference(metadata["data"], loaded)
    if differing:
        raise CheckpointError(f"checkpoint {options.output.resume}: its data, {metadata['options'].get('data')}, are not "
                              f"--data {options.data.data}: {differing}")


def check_classes(options: RunOptions, metadata: JsonObject, class_names: list[str] | None) -> None:
    """Raise a CheckpointError if `class_names`, of the loaded data, differ from the names in the checkpoint's `metadata`. None
    stands for classes without names.
    """
    pairs = zip(metadata.get("class_names") or (), class_names or ())
    for stored_name, loaded_name in pairs:
        if stored_name != loaded_name:
            raise CheckpointError(f"checkpoint {options.output.resume}: its class {stored_name!r} is {loaded_name!r} in "
                                  f"--data {options.data.data}")


def same_class(one: object, other: object) -> bool:
    """Return True if `one` and `other`, two texts path/to/file.py:Class, have the same file name and class; the folders may differ."""
    names = [spec.rpartition(":") for spec in (str(one), str(other))]
    return all(colon for _, colon, _ in names) and len({(os.path.basename(path), name) for path, _, name in names}) == 1


def _flag(name, value):
    if isinstance(value, bool):
        return flag(name if value else f"no_{name}")
    return flag(name) if value is None else f"{flag(name)} {value}"
