"""The training command's options: flag over file over default."""

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sarlite.errors import ConfigError, needs, reading, regular
from sarlite.types import Path as AnyPath

AUTO = "the model's own"
_MAX_BYTES = 1 << 20  # of a configuration file


def parser() -> argparse.ArgumentParser:
    """Return the argument parser. Defaults are filled in by `resolve`, so that a file can come between."""
    p = argparse.ArgumentParser(
        prog="python -m sarlite.train", allow_abbrev=False, argument_default=argparse.SUPPRESS,
        description="Train a graph neural network, full-batch and exactly, on the ranks of mpiexec or on --ranks threads.",
        formatter_class=argparse.RawDescriptionHelpFormatter)
    for title, options in GROUPS.items():
        group = p.add_argument_group(title)
        for name, (default, kind, text) in options.items():
            shown = "" if default is None or kind is bool else f" [{default}]"
            keywords = {"action": argparse.BooleanOptionalAction} if kind is bool else \
                {"choices": kind} if isinstance(kind, tuple) else {"type": kind, "metavar": kind.__name__.upper()}
            group.add_argument("--" + name, help=text + shown, **keywords)
    return p


GROUPS: dict[str, dict[str, tuple[Any, Any, str]]] = {  # title: option: default, type or choices, help
    "what": {
        "data": ("sbm:", str, "native directory, planetoid:PATH/cora, npz:FILE, ogb:DIR, edges:FILE, sbm:nodes=10000,... or rmat:..."),
        "model": ("sage", str, "gcn, sage, gat, or path/to/file.py:Class"),
        "config": (None, str, "TOML file of these options"),
        "self-loops": (None, bool, "add the self loops that miss [as the model asks]"),
        "normalize-features": (False, bool, "scale each node's features to sum 1"),
    },
    "model": {
        "layers": (None, int, f"number of layers [{AUTO}]"),
        "hidden": (None, int, f"hidden features, for gat of each head [{AUTO}]"),
        "heads": (None, int, f"attention heads [{AUTO}]"),
        "out-heads": (None, int, f"attention heads of the last layer [{AUTO}]"),
        "out-concat": (None, bool, f"put the last layer's heads side by side, else average them [{AUTO}]"),
        "dropout": (None, float, f"share of dropped features [{AUTO}]"),
        "input-dropout": (None, float, "share of dropped input features, of gcn and gat [as dropout]"),
        "attention-dropout": (None, float, f"share of dropped attention coefficients [{AUTO}]"),
        "aggregator": (None, ("mean", "max-pool"), f"of sage [{AUTO}]"),
        "residual": (None, bool, f"residual connections of gat [{AUTO}]"),
        "activation": (None, ("relu", "elu"), f"between layers [{AUTO}]"),
        "batch-norm": (None, bool, f"batch norm over all ranks between layers [{AUTO}]"),
        "dtype": ("float32", ("float32", "float64"), "of parameters and activations"),
    },
    "training": {
        "epochs": (100, int, "number of epochs"),
        "lr": (0.01, float, "learning rate"),
        "lr-schedule": ("constant", str, "constant, cosine, step:EVERY:FACTOR, or warmup:EPOCHS:SCHEDULE"),
        "weight-decay": (0.0, float, "L2 penalty"),
        "weight-decay-on": ("all", ("all", "first"), "all parameters, or the first layer's (Kipf & Welling)"),
        "optimizer": ("adam", ("adam", "adamw", "sgd"), "optimizer"),
        "seed": (0, int, "of initial parameters, dropout and partition"),
        "eval-every": (1, int, "epochs between evaluations"),
    },
    "ranks": {
        "mode": ("sar", ("sar", "sa", "oneshot"), "how remote rows arrive"),
        "prefetch": (None, int, "peers' rows fetched ahead, by a thread [1 between hosts or where each rank has a core to spare, else 0]"),
        "partition": ("stored", str, "metis, random, contiguous, or a file of one part a node; stored: as the data stand, else metis"),
        "order": ("stored", ("stored", "none", "metis"), "order of a part's nodes in memory: as stored with the data if it is, by id, or "
                  "by METIS, nodes that share neighbours together"),
        "threads": (0, int, "threads a rank; 0 divides the node's cores"),
        "ranks": (1, int, "ranks as threads of this process, without MPI"),
        "stall-timeout": (300.0, float, "seconds without progress on any rank before the run is ended; 0 never"),
    },
    "files": {
        "run-dir": (None, str, "folder of the run's files [runs/TIME-MODEL]"),
        "checkpoint-every": (0, int, "epochs between checkpoints; 0 writes one at the end"),
        "resume": (None, str, "checkpoint to go on from"),
        "json": (False, bool, "end standard output with one line of JSON"),
        "trace": (None, str, "write a timeline of every rank, which ui.perfetto.dev opens"),
        "trace-epochs": (3, int, "epochs that --trace records, the run's first ones"),
        "progress": ("auto", ("auto", "bar", "lines", "none"), "bar, or a line every few seconds [bar on a terminal]"),
        "verify": (True, bool, "check the data files' sha256 first"),
    },
}
OPTIONS = {name.replace("-", "_"): spec for group in GROUPS.values() for name, spec in group.items()}
MODEL_OPTIONS = ("layers", "hidden", "heads", "out_heads", "out_concat", "dropout", "input_dropout", "attention_dropout", "aggregator",
                 "residual", "activation", "batch_norm")
_AT_LEAST = {"layers": 1, "hidden": 1, "heads": 1, "out_heads": 1, "epochs": 1, "eval_every": 1, "prefetch": 0, "threads": 0,
             "ranks": 1, "checkpoint_every": 0, "trace_epochs": 1, "weight_decay": 0.0, "stall_timeout": 0.0}


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Return the resolved options as a Namespace; exits with status 2 on a bad flag.

    Raises
    ------
    ConfigError
        An unknown key or a bad value, naming it.
    """
    flags = vars(parser().parse_args(argv))
    if not flags.get("config"):
        return resolve(flags)
    with reading(f"--config {flags['config']}", kind=ConfigError):
        return resolve(flags, read_toml(flags["config"]))


def resolve(flags: Mapping[str, Any], file: Any = ()) -> argparse.Namespace:
    """Return flag over file over default, checked."""
    merged = {name: default for name, (default, _, _) in OPTIONS.items()}
    for name, value in dict(file).items():
        name = name.replace("-", "_")
        if name not in OPTIONS or name == "config":
            raise ConfigError(f"configuration file: unknown option {name!r}")
        merged[name] = _typed(name, value)
    merged.update(flags)
    for name, least in _AT_LEAST.items():
        if merged[name] is not None and not merged[name] >= least:
            raise ConfigError(f"--{name.replace('_', '-')} {merged[name]} is less than {least}")
    for name in ("dropout", "input_dropout", "attention_dropout"):
        if merged[name] is not None and not 0 <= merged[name] < 1:
            raise ConfigError(f"--{name.replace('_', '-')} {merged[name]} is not in [0, 1)")
    if not merged["lr"] > 0:
        raise ConfigError(f"--lr {merged['lr']} is not above 0")
    return argparse.Namespace(**merged)


def _typed(name, value):
    kind = OPTIONS[name][1]
    if isinstance(kind, tuple):
        good = value in kind
    elif kind is float:
        good, value = isinstance(value, (int, float)) and not isinstance(value, bool), value
    else:
        good = isinstance(value, kind) and (kind is bool or not isinstance(value, bool))
    if not good:
        expected = ", ".join(kind) if isinstance(kind, tuple) else kind.__name__
        raise ConfigError(f"configuration file: {name} = {value!r} is not {expected}")
    return float(value) if kind is float else value


def read_toml(path: AnyPath) -> dict[str, Any]:
    tomllib = needs("tomllib" if sys.version_info >= (3, 11) else "tomli", "--config")
    with reading(f"--config {path}", kind=ConfigError):
        if regular(path).stat().st_size > _MAX_BYTES:
            raise ConfigError(f"--config {path}: more than {_MAX_BYTES} bytes, so it is no file of options")
        return tomllib.loads(Path(path).read_text(encoding="utf-8-sig"))


def to_toml(config: argparse.Namespace) -> str:
    """Return the options as TOML that `--config` reads back."""
    return "".join(f"{name} = {json.dumps(value)}\n" for name, value in vars(config).items()
                   if value is not None and name not in ("config", "resume"))
