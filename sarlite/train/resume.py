"""What a resumed run takes from the run before: its options are the base, and some cannot change."""

import os
from collections.abc import Callable
from typing import Any

from sarlite.comm import launch
from sarlite.command import flag
from sarlite.errors import CheckpointError, ConfigError, SarliteError
from sarlite.tasks.task_table import TASKS
from sarlite.train import checkpoint
from sarlite.train.identity import difference
from sarlite.train.options import GRAPH_OPTIONS, LINK_OPTIONS

OWN = ("run_dir", "resume", "config", "trace", "trace_epochs", "tensorboard", "propagated", "dry_run", "memory_limit")
"""Options of one run alone: a checkpoint neither keeps nor gives them. So it names no path to write to."""
LASTING = ("model", "layers", "hidden", "heads", "out_heads", "out_concat", "aggregator", "gat_form", "residual",
           "activation", "n_bases", "embedding", "batch_norm", "hops", "teleport", "identity_decay", "label_inputs",
           "dtype", "task", "loss", "metric", "optimizer", "seed", "self_loops", "normalize_features", "edge_weights",
           "edge_features", "numerics", "rows", *LINK_OPTIONS, *GRAPH_OPTIONS)
"""Options that a resumed run has from the run before: with others its state would mean something else."""


_BEFORE = {"numerics": "fast", "rows": "float32"}
"""What checkpoints had that were written before there was the option."""


def stored(options):
    """Return what a checkpoint keeps of the options, a Namespace."""
    return {name: value for name, value in vars(options).items() if name not in OWN and value is not None}


def base(path):
    """Return the options of the run that wrote a checkpoint; none where it cannot be read: `checkpoint.read` tells."""
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
    return type(value) is int and value >= 0


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
    "class_names": (lambda names: isinstance(names, list) and all(isinstance(name, str) for name in names),
                    "a list of names"),
}
"""Of the metadata of a run's checkpoint each field: whether a value can be, and what is said of others."""
_NEEDED = ("epoch", "best", "options", "data")


def check_run(path, metadata):
    """Raise a CheckpointError where metadata are not those of a run: a field is missing, or its value cannot be."""
    missing = [name for name in _NEEDED if name not in metadata]
    if missing:
        raise CheckpointError(f"checkpoint {path} is not of a run: it has no {missing[0]}")
    for name, (fits, expected) in _FIELDS.items():
        if name in metadata and not fits(metadata[name]):
            raise CheckpointError(f"checkpoint {path}: {name}: {str(metadata[name])[:80]!r} is not {expected}")
    if metadata["best"]["epoch"] > metadata["epoch"]:
        raise CheckpointError(f"checkpoint {path}: best: epoch {metadata['best']['epoch']} is after epoch "
                              f"{metadata['epoch']}")


def check_options(config, metadata):
    """Raise where options differ that cannot change, or the run is past its last epoch.

    Raises
    ------
    CheckpointError
        It is not of a run of the command.
    ConfigError
        Naming the option and both values.
    """
    check_run(config.resume, metadata)
    before = metadata["options"]
    for name in LASTING:
        there, here = before.get(name, _BEFORE.get(name)), getattr(config, name, None)
        if there != here and not (name == "model" and same_class(there, here)):
            raise ConfigError(f"{_flag(name, here)}: cannot change, the run of {config.resume} has {_said(there)}")
    if metadata["epoch"] > config.epochs:
        raise ConfigError(f"--epochs {config.epochs}: the checkpoint {config.resume} is of epoch {metadata['epoch']}; "
                          "--epochs counts from the first one")


def check_data(config, metadata, here):
    """Raise a CheckpointError where the data are not those of the run before; `here` is their `identity`."""
    found = difference(metadata["data"], here)
    if found:
        there = metadata["options"].get("data")
        raise CheckpointError(f"checkpoint {config.resume}: its data, {there}, are not --data {config.data}: {found}")


def same_class(there, here):
    """Whether two models are the same class of a file, which may have moved."""
    names = [spec.rpartition(":") for spec in (str(there), str(here))]
    return all(colon for _, colon, _ in names) and len({(os.path.basename(path), name) for path, _, name in names}) == 1


def _flag(name, value):
    if isinstance(value, bool):
        return flag(name if value else f"no_{name}")
    return flag(name) if value is None else f"{flag(name)} {value}"


def _said(value):
    return "the model's own" if value is None else value
