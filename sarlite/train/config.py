"""From the command line to options: flag over file over those of the run before over default."""

import argparse
import functools
import inspect
import json
import math
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from sarlite import command
from sarlite.command import Options, Parser, byte_size, every, fanouts, flag, share_or_file, suggestion
from sarlite.errors import ConfigError, SarliteError, needs, one_line, reading, regular
from sarlite.graph.partition import METHODS
from sarlite.kernels.native import MAX_THREADS
from sarlite.train import resume
from sarlite.train.combinations import Run, only_needed, refuse
from sarlite.train.options import GROUPS, KEYWORDS, METAVARS, MINIBATCH_OPTIONS, MODEL_OPTIONS, OPTION_OF, OPTIONS
from sarlite.types import Path as AnyPath

__all__ = ["GROUPS", "MINIBATCH_OPTIONS", "OPTIONS", "add_options", "naming_flags", "parse", "parse_further",
           "parser", "read_toml", "resolve", "to_toml"]  # fmt: skip
R = TypeVar("R")
_MAX_BYTES = 1 << 20  # of a configuration file


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


def resolve(flags: Mapping[str, Any], file: Any = (), before: Mapping[str, Any] | None = None,
            checkpoint: str | None = None) -> argparse.Namespace:
    """Return flag over file over those of the run `before`, which wrote a checkpoint, over default, checked."""
    where = f"--config {flags.get('config', 'file')}: "
    stored = {key.replace("-", "_"): (key, value) for key, value in dict(file).items() if not _is_gone(key, value)}
    merged = {name: default for name, (default, _, _) in OPTIONS.items()}
    merged |= _of_before(before or {}, f"checkpoint {checkpoint or flags.get('resume')}: options: ")
    for name, (key, value) in stored.items():
        if isinstance(value, dict):
            raise ConfigError(f"{where}[{key}] is a section, but options stand at the top of the file, in no section")
        if name not in OPTIONS or name == "config":
            raise ConfigError(f"{where}unknown option {key!r}{suggestion(name, OPTIONS)}")
        merged[name] = _typed(name, value, where)
        _check_range(f"{where}{key} = {value!r}", name, merged[name])
    for name, value in flags.items():
        _check_range(f"{flag(name)} {value}", name, value)
    given = {name: f"{where}{key}" for name, (key, _) in stored.items()} | {name: flag(name) for name in flags}
    found = only_needed({**merged, **flags}, given)
    if ".py:" in found["model"] and "model" not in given and before:
        raise ConfigError(f"the run before has --model {found['model']}, but a checkpoint names no code to run: "
                          f"give --model FILE.py:Class")
    if found["mode"] in GONE_MODES and "mode" not in given and before:
        raise ConfigError(f"--resume {found['resume']}: the run had --mode {found['mode']}, which no longer exists; "
                          f"{GONE_MODES[found['mode']]} gives the same answers")
    refuse(Run(found))
    return argparse.Namespace(**found)


def _of_before(before, where):
    """The options of the run before, which are data: those that a checkpoint may say, as a flag could."""
    found = {}
    for name, value in before.items():
        path = name == "partition" and value not in (*METHODS, "stored")
        if name not in OPTIONS or name in resume.OWN or value is None or path:
            continue
        gone = name == "mode" and value in tuple(GONE_MODES)
        found[name] = value if gone else _typed(name, value, where)
        _check_range(f"{where}{name} = {value!r}", name, found[name])
    return found


def naming_flags(action: Callable[..., R]) -> Callable[..., R]:
    """Tell arguments by their flags, in what the action of a command refuses."""

    @functools.wraps(action)
    def named(*args: Any, **options: Any) -> R:
        try:
            return action(*args, **options)
        except SarliteError as error:
            if error.argument is None and not error.hints:
                raise
            raise type(error)(_with_flags(error)) from error.__cause__

    return named


def _with_flags(error):
    """The text of an error, with flags in place of arguments."""
    ranks, text = re.match(r"(rank \d+: )*", str(error)), str(error)
    begin = ranks.end() if ranks else 0
    if error.argument is not None:
        option = OPTION_OF.get(error.argument, error.argument)
        text = text[:begin] + flag(option) + text[begin + len(error.argument):]
    for hint in error.hints:
        name, _, value = hint.partition("=")
        flags = {"True": flag(name), "False": flag("no_" + name)}
        text = text.replace(hint, flags.get(value) or f"{flag(name)} {value}")
    return text


GONE_MODES = {"auto": "--mode sar", "cover": "--mode sar", "host": "--mode sar"}
"""Modes that a checkpoint may have of an earlier version, and what stands in for each."""


def _is_gone(key, value):
    """Whether a line of a file is of an earlier version's option, and says what holds without the option, too."""
    return (key, value) in (("halo", "fetch"), ("trace_epochs", 3), ("columns", 1))


def parser() -> argparse.ArgumentParser:
    """Return the argument parser. Defaults are filled in by `resolve`, so that a file can come between."""
    p = Parser(prog="python -m sarlite.train", usage="%(prog)s [options]", argument_default=argparse.SUPPRESS,
               description="Train a graph neural network, full-batch and exactly or on minibatches, on the ranks of "
                           "mpiexec or on --ranks threads.\n"
                           "Each option with its [default]; all of them may stand in a file, as `hidden = 64`: "
                           "--config.", pages={"--mode": "docs/which-mode.md"})
    for title, options in GROUPS.items():
        group = p.add_argument_group(title)
        add_options(group, options)
    return p


def add_options(group: Any, options: Mapping[str, tuple[Any, Any, str]]) -> None:
    """Add options to a parser or a group of one, as `GROUPS` has them."""
    command.add_options(group, options, METAVARS, _shown)


def parse_further(argv: Sequence[str] | None, own: Options, metavars: Mapping[str, str], needed: Sequence[str],
                  taken: Sequence[str], others: Options | None = None, **words: Any) -> tuple[dict[str, Any], ...]:
    """Return a further command's own options with their defaults, and the given ones of those that it takes from here.

    Parameters
    ----------
    own : dict
        As `GROUPS` has options; `metavars` are of them.
    taken : sequence of str
        Of `OPTIONS`.
    needed : sequence of str
        Own or taken options that must be given.
    others : dict, optional
        Options that stand in place of taken ones.
    **words
        As for `Parser`.

    Raises
    ------
    ConfigError
        An unknown flag, a bad value, or a needed option that is missing.
    """
    p = Parser(argument_default=argparse.SUPPRESS, **words)
    command.add_options(p, own, metavars)
    specs = {name.replace("_", "-"): spec for name, spec in OPTIONS.items()} | dict(others or {})
    add_options(p, {name: specs[name] for name in taken})
    given = vars(p.parse_args(argv))
    missing = next((name for name in needed if name.replace("-", "_") not in given), None)
    if missing:
        *first, last = map(flag, needed)
        raise ConfigError(f"{flag(missing)} is missing: {p.prog.rpartition('.')[2]} needs {', '.join(first)} and "
                          f"{last}")
    return {name: given.pop(name.replace("-", "_"), default) for name, (default, _, _) in own.items()}, given


def _shown(name, default):
    """The default as --help shows it; where it is not fixed the text tells, or the models do."""
    if name.replace("-", "_") in MODEL_OPTIONS:
        return f"[{_models_own(name.replace('-', '_'))}]"
    return "" if default is None else f"[{_word(default)}]"


def _models_own(name):
    """What each of the models takes where the option is not given."""
    from sarlite.models import MODELS, RELATIONAL

    classes = {**MODELS, **RELATIONAL}.items()
    own = {model: inspect.signature(cls).parameters.get(KEYWORDS.get(name, name)) for model, cls in classes}
    none = "as dropout" if name.endswith("dropout") else "none"
    words = {model: none if p.default is None else _word(p.default) for model, p in own.items() if p is not None}
    return ", ".join(f"{model} {word}" for model, word in words.items())


def _word(default):
    if isinstance(default, bool):
        return "yes" if default else "no"
    return str(default)


_AT_LEAST = {
    "batch_size": 0, "sample_ahead": 0, "hec_lines": 1, "hec_life": 0, "hec_limit": 1, "hec_delay": 0, "layers": 1,
    "hidden": 1, "heads": 1, "out_heads": 1, "epochs": 1, "eval_every": 1, "prefetch": 0, "threads": 0, "ranks": 1,
    "trace_epochs": 1, "weight_decay": 0.0, "stall_timeout": 0.0, "hops": 1, "patience": 1, "n_bases": 1,
    "identity_decay": 0.0, "embedding": 1, "memory_limit": 1, "link_width": 1, "readout_width": 1, "negatives": 1,
    "eval_negatives": 1,
}  # fmt: skip
_AT_MOST = {"ranks": 1024, "threads": MAX_THREADS, "layers": 10_000, "hops": 10_000}
"""Ranks and threads all start; more layers and hops are a slip, whose model would take hours to make."""
_SHARES = ("dropout", "input_dropout", "attention_dropout", "teleport", "link_val", "link_test", "link_disjoint")


def _check_range(shown, name, value):
    """Raise ConfigError where a number is outside of what its option takes; `shown` says the option and the value."""
    if isinstance(value, str):
        _check_text(shown, value)
    if isinstance(value, float) and not math.isfinite(value):
        raise ConfigError(f"{shown} is not a finite number")
    if name in _AT_LEAST and value < _AT_LEAST[name]:
        raise ConfigError(f"{shown} is less than {_AT_LEAST[name]}")
    if name in _AT_MOST and value > _AT_MOST[name]:
        raise ConfigError(f"{shown} is more than {_AT_MOST[name]}")
    if name in _SHARES and not isinstance(value, str) and not 0 <= value < 1:
        raise ConfigError(f"{shown} is not in [0, 1)")
    if name == "label_inputs" and not 0 < value < 1:
        raise ConfigError(f"{shown} is not above 0 and below 1")
    if name in ("lr", "clip_norm") and not value > 0:
        raise ConfigError(f"{shown} is not above 0")


def _check_text(shown, value):
    """Raise ConfigError where a text cannot be a file's name: options that are text are paths, or may be."""
    if "\0" in value:
        raise ConfigError(f"{one_line(shown)}: it has a NUL character")
    try:
        os.fsencode(value)
    except UnicodeEncodeError:
        raise ConfigError(f"{one_line(shown)}: no file can be named so where file names are in "
                          f"{sys.getfilesystemencoding()}; set LC_ALL=C.UTF-8") from None


_KINDS = {
    int: "a whole number", float: "a number", bool: "true or false", str: "text", every: "a number of epochs or a time",
    byte_size: "a size such as 2GiB", share_or_file: "a share or a file's path",
    fanouts: "a list of picks a row, such as [5, 10, 15]",
}  # fmt: skip


def _typed(name, value, where):
    kind = OPTIONS[name][1]
    if kind in (every, fanouts, byte_size, share_or_file):
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
        raise ConfigError(one_line(f"{where}{name} = {value!r} is not {expected}"))
    return float(value) if kind is float else value


def read_toml(path: AnyPath) -> dict[str, Any]:
    tomllib = needs("tomllib" if sys.version_info >= (3, 11) else "tomli", "--config")
    with reading(f"--config {path}", kind=ConfigError):
        if regular(path).stat().st_size > _MAX_BYTES:
            raise ConfigError(f"--config {path}: more than {_MAX_BYTES} bytes, so it is no file of options")
        found = tomllib.loads(Path(path).read_text(encoding="utf-8-sig", errors="surrogateescape"))
    # paths as this locale has them, also of names that are no UTF-8
    return {name: os.fsdecode(value.encode(errors="surrogateescape")) if isinstance(value, str) else value
            for name, value in found.items()}


def to_toml(config: argparse.Namespace) -> str:
    """Return the options as TOML that `--config` reads back."""
    return "".join(f"{name} = {_toml(value)}\n" for name, value in vars(config).items()
                   if value is not None and name not in ("config", "resume", "run_dir"))


def _toml(value):
    """A value as TOML writes it: as JSON, but for characters beyond 16 bits, which TOML has no pair of escapes for."""
    value = os.fsencode(value).decode(errors="surrogateescape") if isinstance(value, str) else value
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
