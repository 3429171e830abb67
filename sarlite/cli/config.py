"""From the command line to `RunOptions`: a flag over a file over the run before over the default."""

import functools
import json
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from sarlite.cli import resume
from sarlite.cli.combinations import Run, only_needed, refuse
from sarlite.cli.help import parser, training_parser
from sarlite.cli.option import Option, from_values, options_of
from sarlite.cli.options import ARGUMENTS, OPTIONS, RunOptions
from sarlite.command import flag, suggestion
from sarlite.errors import ConfigError, SarliteError, needs, reading, regular
from sarlite.structure.partition import METHODS
from sarlite.train.checkpoint import path_of
from sarlite.types import Path as AnyPath
from sarlite.user_code import names_file

__all__ = ["naming_flags", "parse", "parse_further", "read_toml", "resolve", "to_toml"]
R = TypeVar("R")
Own = TypeVar("Own")
_MAX_BYTES = 1 << 20  # of a configuration file


def parse(argv: Sequence[str] | None = None) -> RunOptions:
    """Return the options of a training run; exits after --help, --help-all and --version.

    Raises
    ------
    ConfigError
        An unknown flag or key or a bad value, naming it.
    """
    flags = vars(training_parser().parse_args(argv))
    before = resume.base(flags["resume"]) if flags.get("resume") else {}
    if not flags.get("config"):
        return resolve(flags, before=before)
    with reading(f"--config {flags['config']}", kind=ConfigError):
        return resolve(flags, read_toml(flags["config"]), before)


def resolve(flags: Mapping[str, Any], file: Any = (), before: Mapping[str, Any] | None = None,
            checkpoint: str | None = None) -> RunOptions:
    """Return the options: a flag over the file over the run `before`, which wrote `checkpoint`, over the default."""
    where = f"--config {flags.get('config', 'file')}: "
    stored = {key.replace("-", "_"): (key, value) for key, value in dict(file).items() if not _is_gone(key, value)}
    merged = {name: option.unset for name, option in OPTIONS.items()}
    merged |= _of_before(before or {}, f"checkpoint {checkpoint or flags.get('resume')}: options: ")
    for name, (key, value) in stored.items():
        if isinstance(value, dict):
            raise ConfigError(f"{where}[{key}] is a section, but options stand at the top of the file, in no section")
        if name not in OPTIONS or name == "config":
            raise ConfigError(f"{where}unknown option {key!r}{suggestion(name, OPTIONS)}")
        merged[name] = OPTIONS[name].typed(value, where)
        OPTIONS[name].check(f"{where}{key} = {value!r}", merged[name])
    for name, value in flags.items():
        OPTIONS[name].check(f"{flag(name)} {value}", value)
    given = {name: f"{where}{key}" for name, (key, _) in stored.items()} | {name: flag(name) for name in flags}
    found = only_needed({**merged, **flags}, given)
    found["resume"] = found["resume"] and path_of(found["resume"])
    for name in ("model", "mode"):
        if names_file(found[name]) and name not in given and before:
            raise ConfigError(f"the run before has {flag(name)} {found[name]}, but a checkpoint names no code to run: "
                              f"give {flag(name)} FILE.py:Class")
    if found["mode"] in GONE_MODES and "mode" not in given and before:
        raise ConfigError(f"--resume {found['resume']}: the run had --mode {found['mode']}, which no longer exists; "
                          f"{GONE_MODES[found['mode']]} gives the same answers")
    refuse(Run(found))
    return RunOptions.of(found)


def _of_before(before, where):
    """Return the options of the run before that a checkpoint may name, checked as flags are."""
    found = {}
    for name, value in before.items():
        is_path = name == "partition" and value not in (*METHODS, "stored")
        if name not in OPTIONS or OPTIONS[name].on_resume == "forget" or value is None or is_path:
            continue
        is_gone = name == "mode" and value in tuple(GONE_MODES)
        found[name] = value if is_gone else OPTIONS[name].typed(value, where)
        OPTIONS[name].check(f"{where}{name} = {value!r}", found[name])
    return found


def naming_flags(action: Callable[..., R]) -> Callable[..., R]:
    """Name the flag instead of the argument in the errors of a command's action."""

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
        option = ARGUMENTS.get(error.argument, error.argument)
        text = text[:begin] + flag(option) + text[begin + len(error.argument):]
    for hint in error.hints:
        name, _, value = hint.partition("=")
        flags = {"True": flag(name), "False": flag("no_" + name)}
        text = text.replace(hint, flags.get(value) or f"{flag(name)} {value}")
    return text


GONE_MODES = {"auto": "--mode sar", "cover": "--mode sar", "host": "--mode sar"}
"""Modes that a checkpoint may have of an earlier version, and what stands in for each."""


def _is_gone(key, value):
    """Return True if an option of an earlier version has the value that holds without the option, too."""
    return (key, value) in (("halo", "fetch"), ("trace_epochs", 3), ("columns", 1))


def parse_further(argv: Sequence[str] | None, own: type[Own], needed: Sequence[str], taken: Sequence[str],
                  changed: Mapping[str, Option] | None = None, **words: Any) -> tuple[Own, dict[str, Any]]:
    """Return the own options of a further command, and the training options that were given, by name.

    Parameters
    ----------
    own : dataclass of options
    needed : sequence of str
        Own or taken options that must be given.
    taken : sequence of str
        Names of training options that the command has too.
    changed : dict of str to Option, optional
        Options that stand in place of taken ones.
    **words
        As for `command.Parser`.

    Raises
    ------
    ConfigError
        An unknown flag, a bad value, or a needed option that is missing.
    """
    options = {**options_of(own), **{name: OPTIONS[name] for name in taken}, **(changed or {})}
    command = parser({"options of this command": options}, **words)
    given = vars(command.parse_args(argv))
    missing = next((name for name in needed if name not in given), None)
    if missing:
        *first, last = map(flag, needed)
        raise ConfigError(f"{flag(missing)} is missing: {command.prog.rpartition('.')[2]} needs {', '.join(first)} and "
                          f"{last}")
    for name, value in given.items():
        options[name].check(f"{flag(name)} {value}", value)
    return from_values(own, given), {name: value for name, value in given.items() if name not in options_of(own)}


def read_toml(path: AnyPath) -> dict[str, Any]:
    """Return the options in a TOML file, by name."""
    tomllib = needs("tomllib" if sys.version_info >= (3, 11) else "tomli", "--config")
    with reading(f"--config {path}", kind=ConfigError):
        if regular(path).stat().st_size > _MAX_BYTES:
            raise ConfigError(f"--config {path}: more than {_MAX_BYTES} bytes, so it is no file of options")
        found = tomllib.loads(Path(path).read_text(encoding="utf-8-sig", errors="surrogateescape"))
    # paths as this locale has them, also of names that are no UTF-8
    return {name: os.fsdecode(value.encode(errors="surrogateescape")) if isinstance(value, str) else value
            for name, value in found.items()}


def to_toml(options: RunOptions) -> str:
    """Return the options as TOML that `--config` reads back."""
    return "".join(f"{name} = {_toml(value)}\n" for name, value in options.values.items()
                   if value is not None and name not in ("config", "resume", "run_dir"))


def _toml(value):
    """A value as TOML writes it: as JSON, but for characters beyond 16 bits, which TOML has no pair of escapes for."""
    value = os.fsencode(value).decode(errors="surrogateescape") if isinstance(value, str) else value
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
