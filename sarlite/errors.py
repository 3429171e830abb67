"""Exceptions: every error that sarlite raises on purpose is a SarliteError. And the packages that only some uses
need."""

import builtins
import contextlib
import importlib
import math
import operator
import os
import re
import signal
import stat
import sys
from collections.abc import Iterator, Sequence
from numbers import Real
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol

_HEAD, _TAIL = 800, 300  # characters of a long message that are left: its first ones and its last ones

# Each extra's packages, as in setup.cfg; the extras `docs` and `test` are for development alone.
EXTRAS: dict[str, tuple[str, ...]] = {
    "train": ("pymetis", "safetensors", "tqdm", *(("tomli",) if sys.version_info < (3, 11) else ())),
    "mpi": ("mpi4py",),
    "mpich": ("mpi4py", "mpich"),
    "plot": ("matplotlib",),
    "tensorboard": ("tensorboardX",),
    "tables": ("duckdb", "pyarrow"),
    "databases": ("duckdb", "duckdb_extension_postgres_scanner", "duckdb_extension_sqlite_scanner", "pyarrow"),
    "parquet": ("pyarrow",),
    "sweep": ("optuna",),
}


_LONG_WORD = re.compile(r"(\S{150})\S{200,}(\S{50})")


class SarliteError(Exception):
    """Base of sarlite's own exceptions. The message is `printable`; a word of 400 characters or more loses its middle.

    Parameters
    ----------
    message : str
    argument : str, optional
        The argument that is wrong. The message begins with its name, in whose place a command tells its flag.
    hints : sequence of str
        Arguments that the message names with a value, such as "edge_weights=True"; a command tells their flags.
    """

    def __init__(self, message: object = "", argument: str | None = None, hints: Sequence[str] = ()) -> None:
        shown = _LONG_WORD.sub(r"\1...\2", printable(message)) if isinstance(message, str) else message
        super().__init__(shown)
        self.argument, self.hints = argument, tuple(hints)


class ConfigError(SarliteError, ValueError):
    """A flag, an option or an argument has a value that cannot work."""


class DataError(SarliteError, ValueError):
    """A file, a field of it or an array is invalid; the message names all three, in one line: it may quote the file."""

    def __init__(self, message: object = "", argument: str | None = None, hints: Sequence[str] = ()) -> None:
        super().__init__(one_line(str(message)), argument, hints)


class DivergenceError(DataError):
    """The loss or the gradients of a training step are not finite, although the features are."""


class ShapeError(SarliteError, ValueError):
    """Arrays disagree in shape, dtype or memory layout."""


class CheckpointError(SarliteError):
    """A checkpoint cannot be written, or does not fit the model."""


class PeerError(SarliteError):
    """Another rank failed, so this rank cannot continue."""


SIGNALS = tuple(number for number in signal.Signals if number.name in ("SIGINT", "SIGTERM", "SIGHUP"))
"""Signals that ask a process to end: Ctrl-C, a cluster's preemption, a terminal that closes."""


class Interrupted(KeyboardInterrupt):
    """A signal of `SIGNALS` asked this process to end; `signum` is its number."""

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
def writing(path: str | os.PathLike[str], argument: str = "", kind: type[SarliteError] | None = None) -> Iterator[None]:
    """Turn an OSError of the block into a DataError, or another `kind`: which file cannot be written, and why.

    With an argument's name the message begins with this name.
    """
    try:
        yield
    except OSError as error:
        where = f"{argument} {path}" if argument else path
        raise (kind or DataError)(f"{where}: cannot be written: {error.strerror or error}", argument or None) from error


def printable(text: str) -> str:
    """Return a text for a terminal: other characters than printable ones and the ends of lines become escapes.

    A name in a file that is not the user's own may hold a terminal's control sequences.

    Examples
    --------
    >>> printable("author" + chr(27) + "[2J, caf\u00e9")
    'author\\\\x1b[2J, caf\u00e9'
    """
    return "".join(c if c.isprintable() or c in "\n\t" else ascii(c)[1:-1] for c in text)


def one_line(text: str) -> str:
    """Return a message in one line of printable characters. A long one loses its middle."""
    if len(text) > _HEAD + _TAIL:
        text = f"{text[:_HEAD]} ... {text[-_TAIL:]}"
    clean = printable("".join(" " if c.isspace() else c for c in text))
    return clean if len(clean) <= _HEAD + _TAIL + 5 else f"{clean[:_HEAD]} ... {clean[-_TAIL:]}"


def regular(path: str | os.PathLike[str]) -> Path:
    """Return the path of a regular file; raise an OSError where there is none.

    A pipe or a device is refused, since reading it may never end.
    """
    path = Path(path)
    if not stat.S_ISREG(path.stat().st_mode):
        raise OSError("it is a folder" if path.is_dir() else "it is no regular file")
    return path


def _cause(error, where):
    if isinstance(error, FileNotFoundError):
        name = "" if error.filename is None or str(error.filename) in where else f" {error.filename}"
        return f"no such file{name}"
    text = (error.strerror if isinstance(error, OSError) else None) or str(error).strip()
    if not isinstance(error, (OSError, ValueError)) or not text:
        text = f"{type(error).__name__}: {text}" if text else type(error).__name__
    return f"cannot be read: {text}" + ("; text is read in UTF-8" if isinstance(error, UnicodeDecodeError) else "")


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
        The package is not installed, and the message has the command that installs it; or it cannot be loaded.
    """
    package = module.partition(".")[0]
    try:
        found = importlib.import_module(module)
    except (ImportError, MemoryError) as error:
        _refuse_hidden(package, what)
        if lacks_memory(error):
            raise ConfigError(f"{what}: there is no memory to load the package {package} ({error})") from error
        extra = next(name for name, packages in EXTRAS.items() if package in packages)
        raise ConfigError(f"{what} needs the package {package} ({error}): {install(extra)}") from error
    _refuse_hidden(package, what)
    return found


def _refuse_hidden(package, what):
    """Raise a ConfigError if a file of the user's hides a package: the packages of EXTRAS are folders."""
    file = getattr(sys.modules.get(package), "__file__", None)
    if file is not None and not hasattr(sys.modules[package], "__path__"):
        raise ConfigError(f"{what} needs the package {package}, but the file {file} hides it: rename the file")


def lacks_memory(error: BaseException) -> bool:
    """Return True if an error tells of too little memory or address space, in the words of a loader or of NumPy."""
    words = r"array is too big|Maximum allowed dimension|map segment|[Cc]annot allocate memory(?! in static TLS)|[Oo]ut of memory"
    return isinstance(error, MemoryError) or re.search(words, str(error)) is not None


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
        On other ranks an error of the lowest failing rank's class and text. Where that rank's is no SarliteError, a
        PeerError, whose `__cause__` is of the built-in class of that rank's.
    Interrupted
        On other ranks, where the lowest failing rank was interrupted.
    """
    found = comm.allgather(None if error is None else _told(error))
    if error is not None:
        raise error
    for rank, item in enumerate(found):
        if item is not None:
            kind, told, builtin, *arguments = item
            if kind is Interrupted:
                raise Interrupted(told)
            raise kind(f"rank {rank}: {told}", *arguments) from _cause_of(builtin, told)


def whole(name: str, value: Any, least: int = 0) -> int:
    """Return `value` as an int of `least` or more; a ConfigError names another value."""
    if type(value).__name__ in ("bool", "bool_") or not hasattr(value, "__index__"):
        raise ConfigError(f"{name} is {value!r}, but must be a whole number")
    if operator.index(value) < least:
        raise ConfigError(f"{name} is {value}, but must be {least} or more")
    return operator.index(value)


def number(name: str, value: Any, below: float = math.inf, *, positive: bool = False) -> float:
    """Return `value` as a float in [0, below), or where `positive` in (0, below); a ConfigError names another value."""
    real = isinstance(value, Real) and not isinstance(value, bool)
    if not real or not 0 <= value < below or (positive and value == 0):
        raise ConfigError(f"{name} is {value!r}, but must be in {'(' if positive else '['}0, {below})")
    return float(value)


def _told(error):
    """Return (class, text, name of the built-in class, arguments) of an error, which every rank can unpickle."""
    if isinstance(error, Interrupted):
        return Interrupted, error.signum, None
    module = __name__ if isinstance(error, SarliteError) else "builtins"
    kind = next(kind for kind in type(error).__mro__ if kind.__module__ == module)
    try:
        text = str(error)
    except Exception:  # noqa: BLE001, because the other ranks wait for this rank's word
        text = "an error that cannot be told"
    if module == __name__:
        return kind, text, None, error.argument, error.hints
    return PeerError, f"{type(error).__name__}: {text}", kind.__name__


def _cause_of(builtin, told):
    """An exception of a built-in class, None without a name, or where the class takes more than words."""
    with contextlib.suppress(TypeError):
        return None if builtin is None else getattr(builtins, builtin)(told)
