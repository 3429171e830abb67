"""Options of commands, declared as fields of dataclasses. Parsers, TOML files and tables are derived from the fields."""

import argparse
import dataclasses
import math
import os
import sys
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, ClassVar, Protocol, TypeVar

from sarlite.command import byte_size, count_or_all, fanouts, flag, interval, share_or_file, suggestion, words
from sarlite.errors import ConfigError, one_line

OptionValue = bool | int | float | str | list[int] | list[str] | dict[int, float] | None
"""Value of an option; None if nobody gave the option."""
OptionValues = Mapping[str, Any]
"""Values of options by name."""


class HasFields(Protocol):
    """Protocol of objects with dataclass fields: dataclasses and their instances."""

    __dataclass_fields__: ClassVar[dict[str, dataclasses.Field[Any]]]


Section = TypeVar("Section", bound=HasFields)

RANGES: dict[str, Callable[[float], bool]] = {
    "in [0, 1)": lambda value: 0 <= value < 1, "above 0": lambda value: value > 0,
    "above 0 and below 1": lambda value: 0 < value < 1,
}  # fmt: skip
"""Test of a number for each range that an option may have, keyed by the words of error messages."""
_KINDS: dict[object, str] = {
    int: "a whole number", float: "a number", bool: "true or false", str: "text", interval: "a number of epochs or a time",
    byte_size: "a size such as 2GiB", count_or_all: "a whole number or all", share_or_file: "a share or the path of a file",
    fanouts: "a list of in-edges per node, such as [5, 10, 15]", words: "a list of words",
}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Option:
    """Properties of a command's option, stored in the metadata of a dataclass field.

    Attributes
    ----------
    help : str
        Text for `--help` and for the table in docs/training.md.
    metavar : str
        Placeholder for the value in help texts, such as its unit.
    choices : tuple of str
        Accepted texts; an empty tuple accepts any text.
    read : callable, optional
        Converts a text, or a value from TOML, to the option's value. By default the field's type converts the text.
    least, most : number, optional
        Smallest and largest accepted number.
    inside : str
        Key of `RANGES`, or "" for no range.
    common : bool
        True if `--help` shows the option. `--help-all` shows all options.
    on_resume : {"free", "fixed", "forget"}
        A resumed run may change a "free" option and cannot change a "fixed" option. A "forget" option applies to one
        process; checkpoints do not store the option.
    needs : tuple of str
        Options, or kinds of run in `combinations.KINDS`, without which the option has no effect.
    needs_for : str, optional
        Value of the option that `needs` applies to; None for all values.
    recorded : bool
        True if config.toml and checkpoints store the option's default when nobody gave the option.
    otherwise : str
        Text that describes the default where the field's default is None.
    argument : str
        Name of the keyword that the option sets, if it differs from the option's name.
    see : str
        Link for the table in docs/training.md.
    name, default, kind
        Name, default and type of the field.
    """

    help: str
    metavar: str = ""
    choices: tuple[str, ...] = ()
    read: Callable[[Any], OptionValue] | None = None
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
    kind: type = str

    @property
    def unset(self) -> OptionValue:
        """Value that `RunOptions.values` has for this option before a command line or a file sets it."""
        return None if not self.recorded or self.needs and self.needs_for is None else self.default

    def typed(self, value: object, where: str) -> Any:
        """Return `value`, read from TOML or from a checkpoint, converted to the option's type. Raise a ConfigError that begins with
        `where` if it has another type or is not one of the choices.

        Parameters
        ----------
        value : object
            Value of any JSON type.
        where : str
            Beginning of the error message: the file and the table.

        Raises
        ------
        ConfigError
            The value has another type, or is not one of the choices.
        """
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
        return float(value) if self.kind is float and isinstance(value, int | float) else value

    def check(self, shown: str, value: object) -> None:
        """Raise a ConfigError if `value` is out of the option's range, or is a text that cannot be a path. The message begins with
        `shown`, such as "--lr 0".

        Parameters
        ----------
        shown : str
            Option and value as the error message shows both, such as "--lr 0".
        value : object
        """
        if isinstance(value, str):
            _check_text(shown, value)
        if isinstance(value, float) and not math.isfinite(value):
            raise ConfigError(f"{shown} is not a finite number")
        if not isinstance(value, int | float):
            return
        if self.least is not None and value < self.least:
            raise ConfigError(f"{shown} is less than {self.least}")
        if self.most is not None and value > self.most:
            raise ConfigError(f"{shown} is more than {self.most}")
        if self.inside and not RANGES[self.inside](value):
            raise ConfigError(f"{shown} is not {self.inside}")

    def add_to(self, group: "argparse.ArgumentParser | argparse._ArgumentGroup", default: str, hidden: bool = False) -> None:
        """Add the option's flag to `group`, an argument parser or a group of a parser. The help text ends with `default`, a text that tells
        the default; if `hidden`, the help leaves the option out.

        Parameters
        ----------
        group : ArgumentParser or argument group
        default : str
            Text that describes the default; "" shows none.
        hidden : bool
            True if the help text leaves the option out.
        """
        keywords: dict[str, Any] = {"choices": self.choices}
        if self.kind is bool:
            keywords = {"action": argparse.BooleanOptionalAction}
        elif not self.choices:
            keywords = {"type": self.read or self.kind, "metavar": self.value_words}
        text = f"{self.help} [{default}]" if default else self.help
        group.add_argument(flag(self.name), help=argparse.SUPPRESS if hidden else text, **keywords)

    @property
    def value_words(self) -> str:
        """Placeholder for the value in help texts, such as "N"; "" for a flag without a value or with choices."""
        if self.kind is bool or self.choices:
            return ""
        return self.metavar or ("N" if self.kind is int else self.kind.__name__.upper())

    @property
    def default_words(self) -> str:
        """Text that describes the default; "" if there is none."""
        return self.otherwise if self.default is None else in_words(self.default)


def in_words(value: object) -> str:
    """Return `value`, the value of an option, as text for the help: "yes" or "no" for a boolean, else its `str`."""
    return ("yes" if value else "no") if isinstance(value, bool) else str(value)


def option(default: OptionValue, help: str, **metadata: Any) -> Any:
    """Return a dataclass field that is an option of a command. `default` is its default, `help` its help text, and `metadata` has
    further attributes of `Option`.

    Parameters
    ----------
    default : OptionValue
    help : str
        Text for `--help`.
    **metadata
        Further attributes of `Option`.

    Examples
    --------
    >>> @dataclasses.dataclass
    ... class Sizes:
    ...     width: int = option(64, "width of a row", least=1)
    >>> options_of(Sizes)["width"].default_words, Sizes().width
    ('64', 64)
    """
    return dataclasses.field(default=default, metadata={"option": Option(help, **metadata)})


def fixed_option(default: OptionValue, help: str, **metadata: Any) -> Any:
    """Return a dataclass field for an option that a resumed run cannot change, with the default `default` and the help text `help`.
    `metadata` has further attributes of `Option`.
    """
    return option(default, help, on_resume="fixed", **metadata)


def options_of(section: type[HasFields]) -> Mapping[str, Option]:
    """Return {name: option} of the options in the dataclass `section`, in the order of its fields."""
    hints = typing.get_type_hints(section)
    return {field.name: dataclasses.replace(field.metadata["option"], name=field.name, default=field.default,
                                            kind=_kind(hints[field.name]))
            for field in dataclasses.fields(section) if "option" in field.metadata}


def _kind(hint: Any) -> Any:
    """Return the class in a type hint: `list` for `list[int]`, and for a union its first class other than None, such as `int` for
    `int | None`.
    """
    if isinstance(hint, types.UnionType):
        hint = next(kind for kind in typing.get_args(hint) if kind is not type(None))
    return typing.get_origin(hint) or hint


def from_values(section: type[Section], values: OptionValues) -> Section:
    """Return an instance of the dataclass `section` with the options in `values`, {name: value}. An option that is missing or None
    has its default.

    Parameters
    ----------
    section : type
        Dataclass.
    values : dict of str to OptionValue
        Values by option name. Names that `section` does not have are ignored.
    """
    names = [field.name for field in dataclasses.fields(section)]
    return section(**{name: value for name in names if (value := values.get(name)) is not None})


def by_name(sections: Sequence[type[HasFields]]) -> dict[str, Option]:
    """Return {name: option} of the options in all dataclasses `sections`."""
    return {name: option for section in sections for name, option in options_of(section).items()}


def _check_text(shown: str, value: str) -> None:
    """Raise a ConfigError that begins with `shown` if `value`, the text of an option, cannot be a path, for example because of a
    NUL character. All texts are checked, because any of them may be a path.
    """
    if len(value) > 4096:
        raise ConfigError(f"{one_line(shown)}: {len(value):,} characters are too many for a path")
    if "\0" in value:
        raise ConfigError(f"{one_line(shown)}: it has a NUL character")
    try:
        os.fsencode(value)
    except UnicodeEncodeError:
        raise ConfigError(f"{one_line(shown)}: this system's encoding of file names, {sys.getfilesystemencoding()}, "
                          f"lacks a character; set LC_ALL=C.UTF-8") from None
