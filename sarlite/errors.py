"""Exceptions. Every error that sarlite raises on purpose is a SarliteError. And the packages that not every use needs."""

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

_HEAD, _TAIL = 800, 300  # what is left of a long message, in characters

# Extra to its packages, as in setup.cfg; `test` is for development alone.
EXTRAS: dict[str, tuple[str, ...]] = {
    "train": ("pymetis", "safetensors", "tqdm", *(("tomli",) if sys.version_info < (3, 11) else ())),
    "mpi": ("mpi4py",),
    "mpich": ("mpi4py", "mpich"),
    "plot": ("matplotlib",),
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
    """Read what comes from outside: nothing but a SarliteError of one short line leaves the block.

    Parameters
    ----------
    source : str or path
        What is read, for the message.
    field : str
        What of it.
    kind : class
        What anything else than a SarliteError is turned into, whatever a parser or a library raised; a MemoryError too.

    Raises
    ------
    SarliteError
        In one line of about 1,100 characters at most, its middle left out where it has more.
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
    """Return a message in one line of printable characters, without the middle of what is long."""
    if len(text) > _HEAD + _TAIL:
        text = f"{text[:_HEAD]} ... {text[-_TAIL:]}"
    clean = "".join(c if c.isprintable() else " " if c.isspace() else ascii(c)[1:-1] for c in text)
    return clean if len(clean) <= _HEAD + _TAIL + 5 else f"{clean[:_HEAD]} ... {clean[-_TAIL:]}"


def regular(path: str | os.PathLike[str]) -> Path:
    """Return the path of a file that ends; raises an OSError: nothing is there, or a folder, a pipe (which may wait for ever), a device."""
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
        Dotted name; its first word is a package of EXTRAS, of which the first extra that has it is named.
    what : str
        What needs it: the message's subject.

    Returns
    -------
    module

    Raises
    ------
    ConfigError
        It is not installed or cannot be loaded; the message has the command that installs it.
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
        This rank's finding.

    Raises
    ------
    Exception
        This rank's own `error`.
    SarliteError
        Elsewhere, one of the lowest failing rank's class and text; PeerError when that rank's is no SarliteError.
    Interrupted
        Elsewhere, where the lowest failing rank was interrupted.
    """
    found = comm.allgather(None if error is None else _told(error))
    if error is not None:
        raise error
    for rank, item in enumerate(found):
        if item is not None:
            kind, told, argument = item
            raise kind(told) if kind is Interrupted else kind(f"rank {rank}: {told}", argument)


def whole(name: str, value: Any, least: int = 0) -> int:
    """Return `value` as an int of `least` or more; ConfigError names it."""
    if type(value).__name__ in ("bool", "bool_") or not hasattr(value, "__index__"):
        raise ConfigError(f"{name} is {value!r}, but must be a whole number")
    if operator.index(value) < least:
        raise ConfigError(f"{name} is {value}, but must be {least} or more")
    return operator.index(value)


def _told(error):
    """What tells other ranks of an error: a class of this module, which every rank can unpickle, the text, and the argument."""
    if isinstance(error, Interrupted):
        return Interrupted, error.signum, None
    if not isinstance(error, SarliteError):
        return PeerError, f"{type(error).__name__}: {error}", None
    return next(kind for kind in type(error).__mro__ if kind.__module__ == __name__), str(error), error.argument
