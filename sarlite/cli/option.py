"""Options of commands, declared as fields of dataclasses. The parser, TOML and the tables follow from the fields."""

import argparse
import dataclasses
import math
import os
import sys
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from sarlite.command import byte_size, count_or_all, every, fanouts, flag, share_or_file, suggestion, words
from sarlite.errors import ConfigError, one_line

RANGES: dict[str, Callable[[float], bool]] = {
    "in [0, 1)": lambda value: 0 <= value < 1, "above 0": lambda value: value > 0,
    "above 0 and below 1": lambda value: 0 < value < 1,
}  # fmt: skip
_KINDS = {
    int: "a whole number", float: "a number", bool: "true or false", str: "text", every: "a number of epochs or a time",
    byte_size: "a size such as 2GiB", count_or_all: "a whole number or all", share_or_file: "a share or a file's path",
    fanouts: "a list of picks a row, such as [5, 10, 15]", words: "a list of words",
}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Option:
    """The metadata of a field that is an option.

    Attributes
    ----------
    help : str
        Text for `--help` and for the table in docs/training.md.
    metavar : str
        Placeholder for the value: its unit, or what the value is.
    choices : tuple of str
        Values that a text may have; empty if any text may stand.
    read : callable, optional
        Reads a value from text or from TOML. By default the field's type decides.
    least, most : number, optional
        Smallest and largest value.
    inside : str
        Key of `RANGES`.
    common : bool
        True if `--help` shows the option. `--help-all` shows all options.
    on_resume : {"free", "fixed", "forget"}
        A resumed run may change a free option, and cannot change a fixed one. A checkpoint does not store an option
        to forget, which belongs to one run alone.
    needs : tuple of str
        Options, or kinds of run as in `combinations.KINDS`, without which the option means nothing.
    needs_for : str, optional
        Value that `needs` is about; by default each value.
    recorded : bool
        True if config.toml and checkpoints name the option even if nobody gave it.
    otherwise : str
        Words for the default where the field's default is None.
    argument : str
        Keyword that the option sets, where the keyword has another name.
    see : str
        Link for the table in docs/training.md.
    name, default, kind
        Name, default and type of the field.
    """

    help: str
    metavar: str = ""
    choices: tuple[str, ...] = ()
    read: Callable[[Any], Any] | None = None
    least: float | None = None
    most: float | None = None
    inside: str = ""
    common: bool = False
    on_resume: str = "free"
    needs: tuple[str, ...] = ()
    needs_for: str | None = None
    recorded: bool = True
    otherwise: str = ""
    argument: str = ""
    see: str = ""
    name: str = ""
    default: Any = None
    kind: Any = str

    @property
    def unset(self) -> Any:
        """The value of the option in `RunOptions.values` if nobody gave it."""
        return None if not self.recorded or self.needs and self.needs_for is None else self.default

    def typed(self, value: Any, where: str) -> Any:
        """Return the value that TOML or a checkpoint holds, or raise a ConfigError that begins with `where`."""
        if self.read:
            with suppress(argparse.ArgumentTypeError):
                return self.read(value)
            good = False
        elif self.choices:
            good = value in self.choices
        elif self.kind is float:
            good = isinstance(value, (int, float)) and not isinstance(value, bool)
        else:
            good = isinstance(value, self.kind) and (self.kind is bool or not isinstance(value, bool))
        if not good:
            expected = (f"one of {', '.join(self.choices)}{suggestion(value, self.choices)}" if self.choices
                        else _KINDS[self.read or self.kind])
            raise ConfigError(one_line(f"{where}{self.name} = {value!r} is not {expected}"))
        return float(value) if self.kind is float and not self.read else value

    def check(self, shown: str, value: Any) -> None:
        """Raise a ConfigError if the option cannot have the value; `shown` names the option and the value."""
        if isinstance(value, str):
            _check_text(shown, value)
        if isinstance(value, float) and not math.isfinite(value):
            raise ConfigError(f"{shown} is not a finite number")
        if isinstance(value, (str, list)) or value is None:
            return
        if self.least is not None and value < self.least:
            raise ConfigError(f"{shown} is less than {self.least}")
        if self.most is not None and value > self.most:
            raise ConfigError(f"{shown} is more than {self.most}")
        if self.inside and not RANGES[self.inside](value):
            raise ConfigError(f"{shown} is not {self.inside}")

    def add_to(self, group: Any, default: str, hidden: bool = False) -> None:
        """Add the option to a parser or to a group of a parser; `default` is the text for its default."""
        keywords: dict[str, Any] = {"choices": self.choices}
        if self.kind is bool:
            keywords = {"action": argparse.BooleanOptionalAction}
        elif not self.choices:
            keywords = {"type": self.read or self.kind, "metavar": self.value_words}
        text = f"{self.help} [{default}]" if default else self.help
        group.add_argument(flag(self.name), help=argparse.SUPPRESS if hidden else text, **keywords)

    @property
    def value_words(self) -> str:
        """The placeholder for the value, "" for a flag without a value and for one with choices."""
        if self.kind is bool or self.choices:
            return ""
        return self.metavar or ("N" if self.kind is int else self.kind.__name__.upper())

    @property
    def default_words(self) -> str:
        """The default in words; "" if there is none."""
        return self.otherwise if self.default is None else in_words(self.default)


def in_words(value: Any) -> str:
    """Return a value as help texts show it."""
    return ("yes" if value else "no") if isinstance(value, bool) else str(value)


def option(default: Any, help: str, **metadata: Any) -> Any:
    """Return a dataclass field that is an option of a command; the keywords are attributes of `Option`."""
    return dataclasses.field(default=default, metadata={"option": Option(help, **metadata)})


def fixed_option(default: Any, help: str, **metadata: Any) -> Any:
    """Return a dataclass field that is an option which a resumed run cannot change."""
    return option(default, help, on_resume="fixed", **metadata)


def options_of(section: type) -> Mapping[str, Option]:
    """Return the options of a dataclass by name, in order."""
    hints = typing.get_type_hints(section)
    return {field.name: dataclasses.replace(field.metadata["option"], name=field.name, default=field.default,
                                            kind=_kind(hints[field.name]))
            for field in dataclasses.fields(section) if "option" in field.metadata}


def _kind(hint):
    """The type without None; of several the first."""
    if isinstance(hint, types.UnionType):
        hint = next(kind for kind in typing.get_args(hint) if kind is not type(None))
    return typing.get_origin(hint) or hint


def from_values(section: type, values: Mapping[str, Any]) -> Any:
    """Return a dataclass of options with the values that are not None, and defaults for the others."""
    names = [field.name for field in dataclasses.fields(section)]
    return section(**{name: value for name in names if (value := values.get(name)) is not None})


def by_name(sections: Sequence[type]) -> dict[str, Option]:
    """Return the options of several dataclasses by name."""
    return {name: option for section in sections for name, option in options_of(section).items()}


def _check_text(shown, value):
    """Raise a ConfigError if a text cannot be a file name, because text options may be paths."""
    if len(value) > 4096:
        raise ConfigError(f"{one_line(shown)}: {len(value):,} characters are too long for a path")
    if "\0" in value:
        raise ConfigError(f"{one_line(shown)}: it has a NUL character")
    try:
        os.fsencode(value)
    except UnicodeEncodeError:
        raise ConfigError(f"{one_line(shown)}: no file can be named so where file names are in "
                          f"{sys.getfilesystemencoding()}; set LC_ALL=C.UTF-8") from None
