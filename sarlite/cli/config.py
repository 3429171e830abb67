"""Parsing of command lines into `RunOptions`.

A flag overrides the configuration file, the file overrides the options of a resumed run, and these override defaults.
"""

import functools
import json
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, ParamSpec, TypeVar

from sarlite.cli import resume
from sarlite.cli.combinations import Run, only_needed, refuse
from sarlite.cli.help import parser, training_parser
from sarlite.cli.option import HasFields, Option, OptionValues, from_values, options_of
from sarlite.cli.options import ARGUMENTS, OPTIONS, RunOptions
from sarlite.command import flag, suggestion
from sarlite.errors import ConfigError, SarliteError, import_optional, reading, regular
from sarlite.structure.partition import METHODS
from sarlite.train.checkpoint import path_of
from sarlite.types import Path as AnyPath
from sarlite.user_code import names_file

__all__ = ["naming_flags", "parse", "parse_further", "read_toml", "resolve", "to_toml"]
P = ParamSpec("P")
R = TypeVar("R")
Section = TypeVar("Section", bound=HasFields)
_MAX_BYTES = 1 << 20  # of a configuration file


def parse(argv: Sequence[str] | None = None) -> RunOptions:
    """Return the options of a training run from its command line.

    Parameters
    ----------
    argv : sequence of str, optional
        Arguments; by default the arguments of the process.

    Raises
    ------
    ConfigError
        A flag or a key of the configuration file is unknown, or has an invalid value; the message names it.
    SystemExit
        After --help, --help-all and --version.

    Examples
    --------
    >>> options = parse(["--model", "gcn", "--lr", "0.1"])
    >>> options.model.model, options.training.lr, options.training.epochs
    ('gcn', 0.1, 100)
    """
    flags = vars(training_parser().parse_args(argv))
    before = resume.base(flags["resume"]) if flags.get("resume") else {}
    if not flags.get("config"):
        return resolve(flags, before=before)
    with reading(f"--config {flags['config']}", kind=ConfigError):
        return resolve(flags, read_toml(flags["config"]), before)


def resolve(flags: OptionValues, file: Mapping[str, object] = MappingProxyType({}), before: OptionValues | None = None,
            checkpoint: str | None = None) -> RunOptions:
    """Return the checked options of a run, each from the first source that has it: `flags`, the configuration `file`, `before`, or the
    defaults. `before` are the options stored in a resumed run's checkpoint, whose path, for messages, is `checkpoint`, by default the value
    of --resume.

    Parameters
    ----------
    flags : dict
        Values of flags by option name, which override all other values.
    file : dict
        Contents of the configuration file; keys may have dashes.
    before : dict, optional
        Options of the run that wrote the checkpoint.
    checkpoint : str, optional
        Path of the checkpoint, for error messages; by default the value of --resume.

    Raises
    ------
    ConfigError
        A key of the file is unknown, a value is invalid, or two options do not go together.
    """
    where = f"--config {flags.get('config', 'file')}: "
    stored = {key.replace("-", "_"): (key, value) for key, value in file.items() if not _is_obsolete(key, value)}
    merged = {name: option.unset for name, option in OPTIONS.items()}
    merged |= _options_before(before or {}, f"checkpoint {checkpoint or flags.get('resume')}: options: ")
    for name, (key, value) in stored.items():
        if isinstance(value, dict):
            raise ConfigError(f"{where}[{key}] is a section, but options are written at the top level of the file")
        if name not in OPTIONS or name == "config":
            raise ConfigError(f"{where}unknown option {key!r}{suggestion(name, OPTIONS)}")
        merged[name] = OPTIONS[name].typed(value, where)
        OPTIONS[name].check(f"{where}{key} = {value!r}", merged[name])
    for name, value in flags.items():
        OPTIONS[name].check(f"{flag(name)} {value}", value)
    sources = {name: f"{where}{key}" for name, (key, _) in stored.items()} | {name: flag(name) for name in flags}
    values = only_needed({**merged, **flags}, sources)
    values["resume"] = values["resume"] and path_of(values["resume"])
    for name in ("model", "mode"):
        if names_file(values[name]) and name not in sources and before:
            raise ConfigError(f"the run before has {flag(name)} {values[name]}, but a checkpoint names no code to run: "
                              f"give {flag(name)} FILE.py:Class")
    if values["mode"] in OBSOLETE_MODES and "mode" not in sources and before:
        raise ConfigError(f"--resume {values['resume']}: the run had --mode {values['mode']}, which no longer exists; "
                          f"{OBSOLETE_MODES[values['mode']]} gives the same results")
    refuse(Run(values))
    return RunOptions.of(values)


def _options_before(before: OptionValues, where: str) -> dict[str, Any]:
    """Return the options that a resumed run takes over from `before`, the options in its checkpoint, after a check. Options such as
    output paths are left out. Error messages begin with `where`.
    """
    values = {}
    for name, value in before.items():
        is_path = name == "partition" and value not in (*METHODS, "stored")
        if name not in OPTIONS or OPTIONS[name].on_resume == "forget" or value is None or is_path:
            continue
        is_obsolete = name == "mode" and value in tuple(OBSOLETE_MODES)
        values[name] = value if is_obsolete else OPTIONS[name].typed(value, where)
        OPTIONS[name].check(f"{where}{name} = {value!r}", values[name])
    return values


def naming_flags(action: Callable[P, R]) -> Callable[P, R]:
    """Return `action`, the main function of a command, wrapped so that its errors name flags in place of Python arguments.

    Examples
    --------
    >>> @naming_flags
    ... def action():
    ...     raise ConfigError("batch_size 0: is less than 1", "batch_size")
    >>> action()
    Traceback (most recent call last):
    sarlite.errors.ConfigError: --batch-size 0: is less than 1
    """

    @functools.wraps(action)
    def named(*args: P.args, **options: P.kwargs) -> R:
        try:
            return action(*args, **options)
        except SarliteError as error:
            if error.argument is None and not error.hints:
                raise
            raise type(error)(_with_flags(error)) from error.__cause__

    return named


def _with_flags(error: SarliteError) -> str:
    """Return the text of `error` with flags, such as --batch-size, in place of names of Python arguments, such as batch_size."""
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


OBSOLETE_MODES = {"auto": "--mode sar", "cover": "--mode sar", "host": "--mode sar"}
"""Modes of earlier versions that a checkpoint may name, and the flag that replaces each."""


def _is_obsolete(key: str, value: object) -> bool:
    """Return True if `key` was an option of an earlier version and `value` is today's only behaviour, so that it can be ignored."""
    return (key, value) in (("halo", "fetch"), ("trace_epochs", 3), ("columns", 1))


def parse_further(argv: Sequence[str] | None, section: type[Section], needed: Sequence[str], taken: Sequence[str],
                  changed: Mapping[str, Option] | None = None, **parser_options: Any) -> tuple[Section, dict[str, Any]]:
    """Return (instance of the dataclass `section` with a command's own options, {name: value} of the training options on the command line
    `argv`). `taken` names the training options that the command has; `changed` replaces some of them, and `needed` names required options.

    Parameters
    ----------
    argv : sequence of str, optional
        Arguments; by default the arguments of the process.
    section : type
        Dataclass of the command's own options.
    needed : sequence of str
        Names of options that must be given.
    taken : sequence of str
        Names of the training options that the command has too.
    changed : dict of str to Option, optional
        Options that replace options of `taken`, for example with another default.
    **parser_options
        Keywords of `command.Parser`.

    Returns
    -------
    section
        Instance of `section` with the command's own options.
    dict
        Values of the training options that the command line has, by name.

    Raises
    ------
    ConfigError
        A flag is unknown, a value is invalid, or a needed option is missing.
    """
    options = {**options_of(section), **{name: OPTIONS[name] for name in taken}, **(changed or {})}
    command = parser({"options of this command": options}, **parser_options)
    values = vars(command.parse_args(argv))
    missing = next((name for name in needed if name not in values), None)
    if missing:
        *first, last = map(flag, needed)
        raise ConfigError(f"{flag(missing)} is missing: {command.prog.rpartition('.')[2]} needs {', '.join(first)} and "
                          f"{last}")
    for name, value in values.items():
        options[name].check(f"{flag(name)} {value}", value)
    return from_values(section, values), {name: value for name, value in values.items() if name not in options_of(section)}


def read_toml(path: AnyPath) -> dict[str, Any]:
    """Return {option: value} from `path`, a configuration file in TOML.

    Raises
    ------
    ConfigError
        The file cannot be read, is larger than 1 MiB, or is not TOML.
    """
    tomllib = import_optional("tomllib" if sys.version_info >= (3, 11) else "tomli", "--config")
    with reading(f"--config {path}", kind=ConfigError):
        if regular(path).stat().st_size > _MAX_BYTES:
            raise ConfigError(f"--config {path}: more than {_MAX_BYTES} bytes, so it cannot be a file of options")
        contents = tomllib.loads(Path(path).read_text(encoding="utf-8-sig", errors="surrogateescape"))
    # a path that is not UTF-8 is decoded as the locale decodes file names
    return {name: os.fsdecode(value.encode(errors="surrogateescape")) if isinstance(value, str) else value
            for name, value in contents.items()}


def to_toml(options: RunOptions) -> str:
    """Return the options as the text of a TOML file, which `--config` reads back."""
    return "".join(f"{name} = {_toml(value)}\n" for name, value in options.values.items()
                   if value is not None and name not in ("config", "resume", "run_dir"))


def _toml(value):
    """Return the value of an option in TOML syntax: JSON without escape sequences, as TOML lacks JSON's surrogate pairs."""
    value = os.fsencode(value).decode(errors="surrogateescape") if isinstance(value, str) else value
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
