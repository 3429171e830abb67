"""Exceptions: every error that sarlite raises on purpose is a SarliteError. And the packages that only some uses
need."""

import contextlib
import importlib
import operator
import os
import signal
import stat
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol

_HEAD, _TAIL = 800, 300  # characters of a long message that are left: its first ones and its last ones

# Each extra's packages, as in setup.cfg; the extra `test` is for development alone.
EXTRAS: dict[str, tuple[str, ...]] = {
    "train": ("pymetis", "safetensors", "tqdm", *(("tomli",) if sys.version_info < (3, 11) else ())),
    "mpi": ("mpi4py",),
    "mpich": ("mpi4py", "mpich"),
    "plot": ("matplotlib",),
    "tables": ("pyarrow",),
    "parquet": ("pyarrow",),
}


class SarliteError(Exception):
    """Base of sarlite's own exceptions.

    Parameters
    ----------
    message : str
    argument : str, optional
        The argument that is wrong. The message begins with its name, in whose place a command tells its flag.
    """

    def __init__(self, message: object = "", argument: str | None = None) -> None:
        super().__init__(message)
        self.argument = argument


class ConfigError(SarliteError, ValueError):
    """A flag, an option or an argument has a value that cannot work."""


class DataError(SarliteError, ValueError):
    """A file, a field of it or an array is invalid; the message names all three."""


class ShapeError(SarliteError, ValueError):
    """Arrays disagree in shape, dtype or memory layout."""


class CheckpointError(SarliteError):
    """A checkpoint cannot be written, or does not fit the model."""


class PeerError(SarliteError):
    """Another rank failed, so this one cannot go on."""


class Interrupted(KeyboardInterrupt):
    """A signal asked this process to end; `signum` is its number."""

    def __init__(self, signum: int) -> None:
        super().__init__(f"interrupted by {signal.Signals(signum).name}")
        self.signum = int(signum)


@contextlib.contextmanager
def reading(source: object, field: str = "", kind: type[SarliteError] = DataError) -> Iterator[None]:
    """Read data from outside: no error but a SarliteError of one short line leaves the block.

    Parameters
    ----------
    source : str or path
        The name of the data, for the message.
    field : str
        The field of it that is read.
    kind : class
        The class that any other error becomes, whatever a parser or a library raised; a MemoryError too.

    Raises
    ------
    SarliteError
        In one line of about 1,100 characters at most. Of a longer message the middle is left out.
    """
    where = f"{source}: {field}" if field else str(source)
    try:
        yield
    except SarliteError as error:
        text = one_line(str(error))
        if text == str(error):
            raise
        raise type(error)(text) from error
    except Exception as error:
        raise kind(one_line(f"{where}: {_cause(error, where)}")) from error


@contextlib.contextmanager
def writing(path: str | os.PathLike[str]) -> Iterator[None]:
    """Turn an OSError of the block into a DataError that says which file cannot be written, and why."""
    try:
        yield
    except OSError as error:
        raise DataError(f"{path}: cannot be written: {error.strerror or error}") from error


def one_line(text: str) -> str:
    """Return a message in one line of printable characters. A long one loses its middle."""
    if len(text) > _HEAD + _TAIL:
        text = f"{text[:_HEAD]} ... {text[-_TAIL:]}"
    clean = "".join(c if c.isprintable() else " " if c.isspace() else ascii(c)[1:-1] for c in text)
    return clean if len(clean) <= _HEAD + _TAIL + 5 else f"{clean[:_HEAD]} ... {clean[-_TAIL:]}"


def regular(path: str | os.PathLike[str]) -> Path:
    """Return the path of a regular file; raise an OSError where there is none.

    A pipe or a device is refused, since reading it may never end.
    """
    path = Path(path)
    if not stat.S_ISREG(path.stat().st_mode):
        raise OSError("it is no regular file")
    return path


def _cause(error, where):
    if isinstance(error, FileNotFoundError):
        name = "" if error.filename is None or str(error.filename) in where else f" {error.filename}"
        return f"no such file{name}"
    text = (error.strerror if isinstance(error, OSError) else None) or str(error).strip()
    if not isinstance(error, (OSError, ValueError)) or not text:
        text = f"{type(error).__name__}: {text}" if text else type(error).__name__
    return f"cannot be read: {text}"


def install(extra: str) -> str:
    """Return the command that installs an extra."""
    return f"pip install 'sarlite[{extra}]'"


def needs(module: str, what: str) -> ModuleType:
    """Import a module of an optional package.

    Parameters
    ----------
    module : str
        Dotted name, whose first word is a package of EXTRAS. The message names the first extra that has the package.
    what : str
        The feature that needs the module: the message's subject.

    Returns
    -------
    module

    Raises
    ------
    ConfigError
        The package is not installed or cannot be loaded; the message has the command that installs it.
    """
    package = module.partition(".")[0]
    try:
        return importlib.import_module(module)
    except ImportError as error:
        extra = next(name for name, packages in EXTRAS.items() if package in packages)
        raise ConfigError(f"{what} needs the package {package} ({error}): {install(extra)}") from error


class _Gathers(Protocol):
    def allgather(self, value: Any) -> list[Any]: ...


def raise_together(comm: _Gathers, error: BaseException | None) -> None:
    """Raise on every rank when any rank has an error. Collective.

    Parameters
    ----------
    comm : Communicator
    error : Exception or None
        This rank's error, if it has one.

    Raises
    ------
    Exception
        On a rank that has an error, this error.
    SarliteError
        On other ranks an error of the lowest failing rank's class and text, or PeerError where that rank's is no
        SarliteError.
    Interrupted
        On other ranks, where the lowest failing rank was interrupted.
    """
    found = comm.allgather(None if error is None else _told(error))
    if error is not None:
        raise error
    for rank, item in enumerate(found):
        if item is not None:
            kind, told, argument = item
            raise kind(told) if kind is Interrupted else kind(f"rank {rank}: {told}", argument)


def whole(name: str, value: Any, least: int = 0) -> int:
    """Return `value` as an int of `least` or more; a ConfigError names another value."""
    if type(value).__name__ in ("bool", "bool_") or not hasattr(value, "__index__"):
        raise ConfigError(f"{name} is {value!r}, but must be a whole number")
    if operator.index(value) < least:
        raise ConfigError(f"{name} is {value}, but must be {least} or more")
    return operator.index(value)


def _told(error):
    """(class, text, argument) of an error for other ranks; the class is of this module: every rank can unpickle it."""
    if isinstance(error, Interrupted):
        return Interrupted, error.signum, None
    if not isinstance(error, SarliteError):
        return PeerError, f"{type(error).__name__}: {error}", None
    return next(kind for kind in type(error).__mro__ if kind.__module__ == __name__), str(error), error.argument
