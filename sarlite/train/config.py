"""The training command's options: flag over file over default."""

import argparse
import inspect
import json
import math
import re
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from sarlite.command import Parser, byte_size, suggestion
from sarlite.errors import ConfigError, needs, reading, regular
from sarlite.minibatch.hec import CHOICES, HEC
from sarlite.minibatch.sampler import KINDS
from sarlite.minibatch.seeds import BATCHES
from sarlite.sar.operators.evaluation import EVALUATIONS
from sarlite.sar.schedule.modes import MODES
from sarlite.train import resume, smoothing
from sarlite.train.metrics import EVERY
from sarlite.train.tasks import LOSSES
from sarlite.types import Path as AnyPath

_MAX_BYTES = 1 << 20  # of a configuration file

def parser() -> argparse.ArgumentParser:
    """Return the argument parser. Defaults are filled in by `resolve`, so that a file can come between."""
    p = Parser(prog="python -m sarlite.train", usage="%(prog)s [options]", argument_default=argparse.SUPPRESS,
               description="Train a graph neural network, full-batch and exactly or on minibatches, on the ranks of mpiexec or on "
                           "--ranks threads.\n"
                           "Each option with its [default]; all of them may stand in a file, as `hidden = 64`: --config.")
    for title, options in GROUPS.items():
        group = p.add_argument_group(title)
        add_options(group, options)
    return p


def add_options(group: Any, options: Mapping[str, tuple[Any, Any, str]]) -> None:
    """Add options to a parser or a group of one, as `GROUPS` has them."""
    for name, (default, kind, text) in options.items():
        keywords: dict[str, Any] = {"action": argparse.BooleanOptionalAction} if kind is bool else \
            {"choices": kind} if isinstance(kind, tuple) else {"type": kind, "metavar": METAVARS.get(name, kind.__name__.upper())}
        group.add_argument("--" + name, help=f"{text} {_shown(name, default)}".rstrip(), **keywords)


def add_taken(parser: Parser, names: Sequence[str], others: Mapping[str, tuple[Any, Any, str]] | None = None) -> None:
    """Add some of the training command's options to another command's parser; `others` stand for those of their names."""
    specs = {name.replace("_", "-"): spec for name, spec in OPTIONS.items()} | dict(others or {})
    add_options(parser, {name: specs[name] for name in names})


def every(value: Any) -> Any:
    """Return what --checkpoint-every says: a number of epochs as an int, a time such as "90s", "10min" or "2h" as text.

    Raises
    ------
    argparse.ArgumentTypeError
        It is neither.
    """
    found = _EVERY.fullmatch(str(value))
    if not found:
        raise argparse.ArgumentTypeError(f"{value!r} is neither a number of epochs nor a time such as 90s, 10min or 2h")
    return str(value) if found[2] else int(found[1])


def fanouts(value: Any) -> list[int]:
    """Return what --fanouts says, picks a row of each layer, as a list; "all" is -1.

    Parameters
    ----------
    value : str or list
        As "5,10,all", or [5, 10, -1] of a file.

    Raises
    ------
    argparse.ArgumentTypeError
        It is neither.
    """
    words = value.split(",") if isinstance(value, str) else map(str, value) if isinstance(value, list) else ()
    found = [-1 if word == "all" else int(word) if _PICKS.fullmatch(word) else 0 for word in words]
    if not found or not all(found):
        raise argparse.ArgumentTypeError(f"{value!r} is no list of picks a row, one a layer, such as 5,10,all")
    return found


def seconds(every: Any) -> float | None:
    """Return the time that --checkpoint-every says, in seconds; None where it says epochs."""
    found = _EVERY.fullmatch(str(every))
    return int(found[1]) * _SECONDS[found[2]] if found and found[2] else None


_SECONDS = {"s": 1.0, "min": 60.0, "h": 3600.0}
_EVERY = re.compile(r"([0-9]{1,9})(s|min|h)?")
_PICKS = re.compile(r"-1|[0-9]{1,9}")


def _shown(name, default):
    """The default as --help shows it; where it is not fixed the text tells, or the models do."""
    if name.replace("-", "_") in MODEL_OPTIONS:
        return f"[{_models_own(name.replace('-', '_'))}]"
    return "" if default is None else f"[{_word(default)}]"


def _models_own(name):
    """What each of the models takes where the option is not given."""
    from sarlite.models import MODELS, RELATIONAL

    own = {model: inspect.signature(cls).parameters.get(KEYWORDS.get(name, name)) for model, cls in {**MODELS, **RELATIONAL}.items()}
    none = "as dropout" if name.endswith("dropout") else "none"
    return ", ".join(f"{model} {none if p.default is None else _word(p.default)}" for model, p in own.items() if p is not None)


def _word(default):
    if isinstance(default, bool):
        return "yes" if default else "no"
    return str(default)


METAVARS = {  # of what is not plain from the name: the unit, or what it is
    "data": "SPEC", "model": "MODEL", "config": "FILE.toml", "layers": "N", "hidden": "N", "heads": "N", "out-heads": "N",
    "dropout": "SHARE", "input-dropout": "SHARE", "attention-dropout": "SHARE", "epochs": "N", "lr": "RATE", "lr-schedule": "SCHEDULE",
    "weight-decay": "RATE", "seed": "N", "eval-every": "EPOCHS", "prefetch": "PEERS", "partition": "METHOD", "balance": "WHAT",
    "threads": "N", "ranks": "N", "stall-timeout": "SECONDS", "run-dir": "DIR", "checkpoint-every": "EPOCHS|TIME", "resume": "FILE",
    "trace": "FILE.json", "trace-epochs": "EPOCHS", "batch-size": "SEEDS", "fanouts": "K,K,..", "eval-fanouts": "K,K,..",
    "hops": "N", "n-bases": "N", "embedding": "N", "teleport": "SHARE", "label-inputs": "SHARE", "propagated": "DIR", **smoothing.METAVARS,
    "sample-ahead": "N", "hec-lines": "ROWS", "hec-life": "STEPS", "hec-limit": "ROWS", "hec-delay": "STEPS",
    "patience": "EPOCHS", "clip-norm": "NORM", "columns": "C", "memory-limit": "SIZE",
}  # fmt: skip
GROUPS: dict[str, dict[str, tuple[Any, Any, str]]] = {  # title: option: default, type or choices, help
    "what": {
        "data": ("sbm:", str, "native directory, planetoid:PATH/cora, npz:FILE, ogb:DIR, edges:FILE, sbm:nodes=10000,... or rmat:...; "
                 "relational graphs: native directory, mag:DIR or relational:nodes=10000,..."),
        "model": ("sage", str, "gcn, sage, gat, appnp, sgc, sign; of relational data rgcn, rgat; or path/to/file.py:Class"),
        "config": (None, str, "TOML file of these options"),
        "self-loops": (None, bool, "add the self loops that are missing [gcn, gat, appnp and sgc yes, sage and sign no]"),
        "edge-weights": (None, bool, "count edges by the data's weights [gcn, appnp, sgc and sign yes; others must be told]"),
        "edge-features": (None, bool, "the data's edge features join the scores of gat; a model of your own has them in its messages"),
        "normalize-features": (False, bool, "scale each node's features to sum 1"),
    },
    "model": {
        "layers": (None, int, "number of layers"),
        "hidden": (None, int, "hidden features, for gat of each head"),
        "heads": (None, int, "attention heads"),
        "out-heads": (None, int, "attention heads of the last layer"),
        "out-concat": (None, bool, "put the last layer's heads side by side, else average them"),
        "dropout": (None, float, "share of dropped features"),
        "input-dropout": (None, float, "share of dropped input features"),
        "attention-dropout": (None, float, "share of dropped attention coefficients"),
        "aggregator": (None, ("mean", "max-pool"), "how neighbours are summed up"),
        "gat-form": (None, ("standard", "paper"), "of gat: scores from z = W h, or from relu(W h + b) as in DistGNN-MB Eq. 2"),
        "residual": (None, bool, "residual connections"),
        "hops": (None, int, "steps of propagation"),
        "teleport": (None, float, "of appnp: share of its own prediction that a node has in each step"),
        "n-bases": (None, int, "of rgcn: bases that the relations' weights are sums of; without it each has a weight of its own"),
        "embedding": (None, int, "of rgcn and rgat: width of the learned rows of node types without features"),
        "relation-weights": (None, EVALUATIONS, "of rgcn: inside the message, or aggregated first; by default what costs fewer bytes"),
        "activation": (None, ("relu", "elu"), "between layers"),
        "batch-norm": (None, bool, "batch norm over all ranks between layers"),
        "dtype": ("float32", ("float32", "float64"), "of parameters and activations"),
    },
    "training": {
        "task": (None, tuple(LOSSES), "what the labels must be: one class, several of 0 or 1, or numbers [as the data say]"),
        "loss": (None, tuple(name for losses in LOSSES.values() for name in losses),
                 "what is minimised [cross-entropy, bce, squared, by task]"),
        "metric": (None, EVERY, "of each split; the best epoch has the best of validation [accuracy, roc-auc, rmse, by task]"),
        "epochs": (100, int, "number of epochs"),
        "lr": (0.01, float, "learning rate"),
        "lr-schedule": ("constant", str, "constant, cosine, step:EVERY:FACTOR, plateau:FACTOR:PATIENCE, or warmup:EPOCHS:SCHEDULE"),
        "clip-norm": (None, float, "the largest norm of all gradients together; larger ones are scaled down to it"),
        "patience": (None, int, "end after so many epochs without a better one by the metric [never]"),
        "weight-decay": (0.0, float, "L2 penalty: decay / 2 * w^2 joins the loss"),
        "weight-decay-on": ("all", ("all", "first"), "all parameters, or the first layer's (Kipf & Welling)"),
        "optimizer": ("adam", ("adam", "adamw", "sgd"), "optimizer"),
        "seed": (0, int, "of initial parameters, dropout and partition"),
        "eval-every": (1, int, "epochs between evaluations"),
        "mfg": (False, bool, "message-flow graphs: compute at each layer only nodes that reach a labelled one"),
        "label-inputs": (None, float, "share of the training nodes that show their labels as inputs in an epoch; the loss is the others'"),
    },
    "correct and smooth": smoothing.OPTIONS,
    "minibatches": {
        "batch-size": (0, int, "seeds of all ranks a step; 0 trains full-batch"),
        "fanouts": (None, fanouts, "in-edges picked a row, the first layer's first; all takes them all"),
        "sampler": (None, KINDS, "how in-edges are picked [uniform]"),
        "sample-ahead": (None, int, "batches that a thread samples ahead [1]"),
        "batches": (None, tuple(BATCHES), "one order of all training nodes, cut into steps, or each rank's own into even parts "
                    "[global on one rank and for exact, else balanced]"),
        "remote": (None, ("exact", "hec", "local"), "what happens at a neighbour of another rank: it is computed there; its last row comes "
                   "from a cache; its edge is left out [exact]"),
        "hec-lines": (None, int, f"rows that each layer's cache holds [{HEC.lines}]"),
        "hec-life": (None, int, f"steps from its arrival that a row counts [{HEC.life}]"),
        "hec-limit": (None, int, f"most rows pushed to a peer, a layer and step [{HEC.limit}]"),
        "hec-delay": (None, int, f"steps that a row may travel [{HEC.delay}]"),
        "on-miss": (None, CHOICES["on_miss"], f"of a row that the cache lacks: leave it out, take zeros, or other picks [{HEC.on_miss}]"),
        "push": (None, CHOICES["push"], f"push what each batch made, or what peers will ask for [{HEC.push}]"),
        "push-by": (None, CHOICES["push_by"], f"which rows count more where there are too many to push [{HEC.push_by}]"),
        "halo-features": (None, CHOICES["features"], "fetch remote features once before training, or cache them [auto: keep where "
                          "they fit]"),
        "lr-scale": (None, ("none", "sqrt", "linear"), "multiply the learning rate by a function of the number of ranks [none]"),
        "eval-fanouts": (None, fanouts, "evaluate on sampled in-edges [exactly, on the full graph]"),
    },
    "ranks": {
        "mode": ("sar", (*MODES, "auto"), "how remote rows arrive; auto: whichever costs least and fits"),
        "backward": (None, ("push", "fetch"), "push gradients to the rows' owners, or fetch those of the rows that they went to "
                     "[push; in broadcast fetch, of GCN and GraphSAGE]"),
        "columns": (1, int, "ranks that share their rows and divide the columns of sums, or heads; each holds the structure of them all"),
        "prefetch": (None, int, "peers' rows fetched ahead, by a thread [1 between hosts or where each rank has a core to spare, else 0]"),
        "partition": ("stored", str, "metis, fennel (less memory), random, contiguous, or a file of one part a node; stored: as the data "
                      "stand, else metis"),
        "order": ("stored", ("stored", "none", "metis", "cluster"), "order of a part's nodes in memory: as stored with the data if it "
                  "is, by id, or nodes that share neighbours together, by METIS or by label propagation (less memory)"),
        "balance": ("auto", str, "what METIS or Fennel makes even: nodes,edges,train or some of them; auto: as stored, else nodes and "
                    "train, and edges where the degrees are skewed"),
        "memory-limit": (None, byte_size, "memory of each rank, such as 2GiB, above which training does not start [what the machine or "
                         "container has, for all ranks there]"),
        "dry-run": (False, bool, "print what each mode would take, memory and bytes by rank, and train nothing"),
        "threads": (0, int, "threads of each rank; 0 divides the node's cores"),
        "ranks": (1, int, "ranks as threads of this process, without MPI"),
        "stall-timeout": (300.0, float, "seconds without progress on any rank before the run is ended; 0 never"),
    },
    "files": {
        "run-dir": (None, str, "folder of the run's files [runs/TIME-MODEL]"),
        "checkpoint-every": ("10min", every, "epochs, or time such as 90s, 10min or 2h, between checkpoints; 0 writes one at the end"),
        "resume": (None, str, "checkpoint to go on from; data, model and all other options are that run's unless told"),
        "json": (False, bool, "end standard output with one line of JSON"),
        "trace": (None, str, "write a timeline of every rank, which ui.perfetto.dev opens"),
        "trace-epochs": (3, int, "epochs that --trace records, the run's first ones"),
        "progress": ("auto", ("auto", "bar", "lines", "none"), "bar, or a line every few seconds [bar on a terminal]"),
        "propagated": (None, str, "of sgc and sign: folder that keeps the propagated features for later runs"),
        "verify": (True, bool, "check the data files' sha256 first"),
    },
}
OPTIONS = {name.replace("-", "_"): spec for group in GROUPS.values() for name, spec in group.items()}
MODEL_OPTIONS = ("layers", "hidden", "heads", "out_heads", "out_concat", "dropout", "input_dropout", "attention_dropout", "aggregator",
                 "gat_form", "residual", "hops", "teleport", "n_bases", "embedding", "relation_weights", "activation", "batch_norm")
KEYWORDS = {"gat_form": "form", "relation_weights": "evaluation"}  # of a model's class, where it has another name than the option
MINIBATCH_OPTIONS = tuple(name.replace("-", "_") for name in GROUPS["minibatches"])[1:]  # but for the batch size, without which none counts
HEC_OPTIONS = {"hec_lines": "lines", "hec_life": "life", "hec_limit": "limit", "hec_delay": "delay", "on_miss": "on_miss", "push": "push",
               "push_by": "push_by", "halo_features": "features"}
"""Options of the cache alone, with the names of `minibatch.HEC`'s arguments."""
_AT_LEAST = {"batch_size": 0, "sample_ahead": 0, "hec_lines": 1, "hec_life": 0, "hec_limit": 1, "hec_delay": 0, "layers": 1, "hidden": 1,
             "heads": 1, "out_heads": 1, "epochs": 1, "eval_every": 1, "prefetch": 0, "threads": 0, "ranks": 1, "trace_epochs": 1,
             "weight_decay": 0.0, "stall_timeout": 0.0, "hops": 1, "patience": 1, "columns": 1, "n_bases": 1, "embedding": 1,
             "memory_limit": 1}
_SHARES = ("dropout", "input_dropout", "attention_dropout", "teleport")
_KINDS = {int: "a whole number", float: "a number", bool: "true or false", str: "text", every: "a number of epochs or a time",
          byte_size: "a size such as 2GiB", fanouts: "a list of picks a row, such as [5, 10, 15]"}  # fmt: skip


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Return the resolved options as a Namespace; exits after --help and --version.

    Raises
    ------
    ConfigError
        An unknown flag or key or a bad value, naming it.
    """
    flags = vars(parser().parse_args(argv))
    before = resume.base(flags["resume"]) if flags.get("resume") else {}
    if not flags.get("config"):
        return resolve(flags, before=before)
    with reading(f"--config {flags['config']}", kind=ConfigError):
        return resolve(flags, read_toml(flags["config"]), before)


def resolve(flags: Mapping[str, Any], file: Any = (), before: Mapping[str, Any] | None = None) -> argparse.Namespace:
    """Return flag over file over those of the run `before`, which is resumed, over default, checked."""
    merged, where = {name: default for name, (default, _, _) in OPTIONS.items()}, f"--config {flags.get('config', 'file')}: "
    merged |= {name: value for name, value in (before or {}).items() if name in OPTIONS}
    for key, value in dict(file).items():
        name = key.replace("-", "_")
        if isinstance(value, dict):
            raise ConfigError(f"{where}[{key}] is a section, but options stand at the top of the file, in none")
        if name not in OPTIONS or name == "config":
            raise ConfigError(f"{where}unknown option {key!r}{suggestion(name, OPTIONS)}")
        merged[name] = _typed(name, value, where)
        _check_range(f"{where}{key} = {value!r}", name, merged[name])
    for name, value in flags.items():
        _check_range(f"{_flag(name)} {value}", name, value)
    given = {name.replace("-", "_"): f"{where}{name}" for name in dict(file)} | {name: _flag(name) for name in flags}
    return argparse.Namespace(**smoothing.fitting(_minibatches({**merged, **flags}, given), given))


def _flag(name):
    return "--" + name.replace("_", "-")


def _minibatches(options, given):
    """Return options in which those of minibatches fit together: what was given is refused where it does not, what was there forgotten."""
    for name in MINIBATCH_OPTIONS:
        hec = name not in HEC_OPTIONS or options["remote"] == "hec"
        missing = "--batch-size" if not options["batch_size"] else None if hec else "--remote hec"
        if missing and name in given and options[name] is not None:
            raise ConfigError(f"{given[name]} means nothing without {missing}")
        options[name] = None if missing else options[name]
    fanouts, evaluated = options["fanouts"], options["eval_fanouts"]
    if options["batch_size"] and options["mfg"]:
        raise ConfigError("--mfg is of full-batch training: minibatches, of --batch-size, compute only what reaches their seeds anyway")
    for name in ("batch_size", "mfg"):
        if options["columns"] > 1 and options[name]:
            raise ConfigError(f"--columns does not go with {_flag(name)}: parts of the graph are computed by rows")
        if options["backward"] == "fetch" and options[name]:
            raise ConfigError(f"--backward fetch does not go with {_flag(name)}: parts of the graph have no reversed edges")
    if options["batch_size"] and options["label_inputs"] and options["remote"] == "hec":
        raise ConfigError("--label-inputs does not go with --remote hec: its rows were made when labels that a step hides were shown")
    if None not in (evaluated, fanouts) and len(evaluated) != len(fanouts):
        raise ConfigError(f"--eval-fanouts has {len(evaluated)} entries, but --fanouts {len(fanouts)}")
    return options


def _check_range(shown, name, value):
    """Raise ConfigError where a number is outside of what its option takes; `shown` says the option and the value."""
    if isinstance(value, float) and not math.isfinite(value):
        raise ConfigError(f"{shown} is not a finite number")
    if name in _AT_LEAST and value < _AT_LEAST[name]:
        raise ConfigError(f"{shown} is less than {_AT_LEAST[name]}")
    if name in _SHARES and not 0 <= value < 1:
        raise ConfigError(f"{shown} is not in [0, 1)")
    if name == "label_inputs" and not 0 < value < 1:
        raise ConfigError(f"{shown} is not above 0 and below 1")
    if name in ("lr", "clip_norm") and not value > 0:
        raise ConfigError(f"{shown} is not above 0")


def _typed(name, value, where):
    kind = OPTIONS[name][1]
    if kind in (every, fanouts, byte_size):
        with suppress(argparse.ArgumentTypeError):
            return kind(value)
        good = False
    elif isinstance(kind, tuple):
        good = value in kind
    elif kind is float:
        good = isinstance(value, (int, float)) and not isinstance(value, bool)
    else:
        good = isinstance(value, kind) and (kind is bool or not isinstance(value, bool))
    if not good:
        expected = f"one of {', '.join(kind)}{suggestion(value, kind)}" if isinstance(kind, tuple) else _KINDS[kind]
        raise ConfigError(f"{where}{name} = {value!r} is not {expected}")
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
                   if value is not None and name not in ("config", "resume", "run_dir"))
