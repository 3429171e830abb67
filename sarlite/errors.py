"""Exceptions of sarlite, all derived from SarliteError; checks of numbers; imports of optional packages."""

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
from typing import Protocol, TypeVar, cast

__all__ = ["CheckpointError", "ConfigError", "DataError", "DataErrors", "DivergenceError", "Interrupted", "PeerError", "SarliteError",
           "ShapeError", "raise_together"]

T = TypeVar("T")
_MOST_ERRORS = 40  # errors that a message of several shows
_HEAD, _TAIL = 800, 300  # numbers of characters that remain of the start and of the end of a long message

# Packages of each extra, as in setup.cfg, without the extras `docs` and `test` for development
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
    """Base class of sarlite's exceptions.

    Parameters
    ----------
    message : str
        Text, whose control characters are escaped (`printable`). The middle of a word of 400 or more characters is
        left out.
    argument : str, optional
        Name of the argument that is wrong. If the message starts with it, a command shows its flag instead.
    hints : sequence of str
        Arguments with values in the message, such as "edge_weights=True"; a command shows their flags instead.

    Examples
    --------
    >>> from sarlite import Graph
    >>> from sarlite.errors import SarliteError
    >>> try:
    ...     Graph.from_edges([0, 7], [1, 2], n_nodes=3)
    ... except SarliteError as error:
    ...     print(f"{type(error).__name__}: {error}")
    DataError: src: node id 7 at position 1 is outside 0 <= id < 3
    """

    def __init__(self, message: object = "", argument: str | None = None, hints: Sequence[str] = ()) -> None:
        shown = _LONG_WORD.sub(r"\1...\2", printable(message)) if isinstance(message, str) else message
        super().__init__(shown)
        self.argument, self.hints = argument, tuple(hints)


class ConfigError(SarliteError, ValueError):
    """Error of an argument, an option or a flag whose value is invalid."""


class DataError(SarliteError, ValueError):
    """Error of invalid data; the message names file, field and value in one line."""

    def __init__(self, message: object = "", argument: str | None = None, hints: Sequence[str] = ()) -> None:
        super().__init__(one_line(str(message)), argument, hints)


class DataErrors(DataError):
    """Several errors of invalid data in one exception: a line with their number, then one indented line for each error."""

    def __init__(self, message: object = "", argument: str | None = None, hints: Sequence[str] = ()) -> None:
        SarliteError.__init__(self, "\n".join(map(_indented_line, str(message).splitlines())), argument, hints)


class DivergenceError(DataError):
    """Error of a training step whose loss or gradients are not finite, although the features are finite."""


class ShapeError(SarliteError, ValueError):
    """Error of an array whose shape, dtype or memory layout does not fit."""


class CheckpointError(SarliteError):
    """Error of a checkpoint that cannot be written or read, or that does not fit the model."""


class PeerError(SarliteError):
    """Error of an MPI rank that cannot continue because another rank failed."""


SIGNALS = tuple(number for number in signal.Signals if number.name in ("SIGINT", "SIGTERM", "SIGHUP"))
"""Signals that ask a process to end: on Ctrl-C, on preemption by a cluster, and when a terminal closes."""


class Interrupted(KeyboardInterrupt):
    """Exception after a signal of `SIGNALS` asked this process to end.

    Parameters
    ----------
    signum : int
        Number of the signal, such as 15 for SIGTERM; also an attribute.
    """

    def __init__(self, signum: int) -> None:
        super().__init__(f"interrupted by {signal.Signals(signum).name}")
        self.signum = int(signum)


@contextlib.contextmanager
def reading(source: object, field: str = "", kind: type[SarliteError] = DataError) -> Iterator[None]:
    """Return a context that turns any exception into a `kind` with a message of one line, which names the file `source` and the
    `field` being read. A SarliteError keeps its class.

    Parameters
    ----------
    source : str or path
        Name of the data, such as a file, for the message.
    field : str
        Name of the field that is read, for the message.
    kind : class
        Class that an exception other than a SarliteError becomes, also a MemoryError.

    Raises
    ------
    SarliteError
        The message has at most about 1,100 characters; the middle of a longer message is left out.
    """
    where = f"{source}: {field}" if field else str(source)
    try:
        yield
    except DataErrors:
        raise
    except SarliteError as error:
        text = one_line(str(error))
        if text == str(error):
            raise
        raise type(error)(text) from error
    except Exception as error:
        raise kind(one_line(f"{where}: {_cause(error, where)}")) from error


@contextlib.contextmanager
def writing(path: str | os.PathLike[str], argument: str = "", kind: type[SarliteError] | None = None) -> Iterator[None]:
    """Return a context for writing the file `path`. An OSError in it becomes a `kind`, by default a DataError, whose message names
    `path` and the option `argument` that has this path.

    Parameters
    ----------
    path : path
    argument : str
        Name of the argument that has the path; the message starts with it.
    kind : class, optional
        Class of the error, in place of DataError.
    """
    try:
        yield
    except OSError as error:
        where = f"{argument} {path}" if argument else path
        raise (kind or DataError)(f"{where}: cannot be written: {error.strerror or error}", argument or None) from error


def printable(text: str) -> str:
    r"""Return a text with all characters escaped except printable ones, newlines and tabs.

    Names in a foreign file may have control sequences, which would change the user's terminal.

    Examples
    --------
    >>> printable("author" + chr(27) + "[2J, café")
    'author\\x1b[2J, café'
    """
    return "".join(c if c.isprintable() or c in "\n\t" else ascii(c)[1:-1] for c in text)


def one_line(text: str) -> str:
    """Return `text`, a message, as one line of printable characters. Of a message over about 1,100 characters, the middle is left out."""
    if len(text) > _HEAD + _TAIL:
        text = f"{text[:_HEAD]} ... {text[-_TAIL:]}"
    clean = printable("".join(" " if c.isspace() else c for c in text))
    return clean if len(clean) <= _HEAD + _TAIL + 5 else f"{clean[:_HEAD]} ... {clean[-_TAIL:]}"


def _indented_line(text):
    return text[: len(text) - len(text.lstrip(" "))] + one_line(text.lstrip(" "))


def raise_all(errors: Sequence[SarliteError]) -> None:
    """Raise `errors`: a single error as it is, several errors with different texts as one DataErrors. Return if `errors` is empty.

    Parameters
    ----------
    errors : sequence of SarliteError
        Without errors nothing is raised. Errors of equal text count once.
    """
    lines = dict.fromkeys(line.strip() for error in errors for line in str(error).splitlines()[isinstance(error, DataErrors):])
    if len(lines) == 1:
        raise errors[0]
    if lines:
        shown = [f"  {line}" for line in [*lines][:_MOST_ERRORS]]
        more = [f"  and {len(lines) - len(shown):,} more"] if len(lines) > len(shown) else []
        raise DataErrors("\n".join([f"{len(lines):,} faults in the tables:", *shown, *more])) from errors[0]


@contextlib.contextmanager
def collecting(errors: list[SarliteError]) -> Iterator[None]:
    """Return a context that catches a SarliteError and appends it to `errors`, for a later call of `raise_all`."""
    try:
        yield
    except SarliteError as error:
        errors.append(error)


def regular(path: str | os.PathLike[str]) -> Path:
    """Return `path` as a Path; raise an OSError unless it is a regular file.

    Pipes and devices are refused because reading them may never end.
    """
    path = Path(path)
    if not stat.S_ISREG(path.stat().st_mode):
        raise OSError("it is a folder" if path.is_dir() else "it is not a regular file")
    return path


def _cause(error: Exception, where: str) -> str:
    """Return the reason of `error`, which was raised while the file `where` was read, as text for a message that begins with `where`. The
    text does not repeat this name.
    """
    if isinstance(error, FileNotFoundError):
        name = "" if error.filename is None or str(error.filename) in where else f" {error.filename}"
        return f"no such file{name}"
    text = (error.strerror if isinstance(error, OSError) else None) or str(error).strip()
    if not isinstance(error, (OSError, ValueError)) or not text:
        text = f"{type(error).__name__}: {text}" if text else type(error).__name__
    return f"cannot be read: {text}" + ("; text is read in UTF-8" if isinstance(error, UnicodeDecodeError) else "")


def install(extra: str) -> str:
    """Return the pip command that installs sarlite with optional dependencies; `extra` names them, such as "tables"."""
    return f"pip install 'sarlite[{extra}]'"


def import_optional(module: str, what: str) -> ModuleType:
    """Return the imported `module` of an optional package. If the package is missing, raise a ConfigError with the pip command to
    install it, which names `what`, the feature that needs the package.

    Parameters
    ----------
    module : str
        Dotted name of the module; the package is in EXTRAS.
    what : str
        Feature that needs the module, the subject of the error.

    Returns
    -------
    module

    Raises
    ------
    ConfigError
        The package is not installed, and the message has the pip command for its first extra; or it cannot be loaded.
    """
    package = module.partition(".")[0]
    try:
        loaded = importlib.import_module(module)
    except (ImportError, MemoryError) as error:
        _refuse_hidden(package, what)
        if lacks_memory(error):
            raise ConfigError(f"{what}: there is no memory to load the package {package} ({error})") from error
        extra = next(name for name, packages in EXTRAS.items() if package in packages)
        raise ConfigError(f"{what} needs the package {package} ({error}): {install(extra)}") from error
    _refuse_hidden(package, what)
    return loaded


def _refuse_hidden(package, what):
    """Raise a ConfigError about the feature `what` if a user's file, such as pandas.py, was imported in place of `package`. All
    optional packages are folders, so an imported single file must be the user's.
    """
    file = getattr(sys.modules.get(package), "__file__", None)
    if file is not None and not hasattr(sys.modules[package], "__path__"):
        raise ConfigError(f"{what} needs the package {package}, but the file {file} hides it: rename the file")


def lacks_memory(error: BaseException) -> bool:
    """Return True if `error` means, by its class or its text, that memory or address space ran out."""
    words = r"array is too big|Maximum allowed dimension|map segment|[Cc]annot allocate memory(?! in static TLS)|[Oo]ut of memory"
    return isinstance(error, MemoryError) or re.search(words, str(error)) is not None


class _Gathers(Protocol):
    """Protocol of communicators with the method `allgather`."""

    def allgather(self, value: T) -> list[T]: ...


def raise_together(comm: _Gathers, error: BaseException | None) -> None:
    """Raise an error on every rank if any rank passes an `error`: its own error or, on ranks that pass None, an error with the text
    of the lowest failing rank's. Return if all ranks pass None. Collective.

    Parameters
    ----------
    comm : Communicator
    error : Exception or None
        Error of this rank, if there is one.

    Raises
    ------
    Exception
        On a rank that has an error: this error.
    SarliteError
        On other ranks: an error with the class and the text of the lowest failing rank's error. If that is no
        SarliteError, a PeerError whose `__cause__` has the built-in class of that error.
    Interrupted
        On other ranks, if the lowest failing rank was interrupted.

    Examples
    --------
    >>> from sarlite.comm import threads
    >>> def check(comm):
    ...     try:
    ...         raise_together(comm, ConfigError("no such file") if comm.rank == 1 else None)
    ...     except ConfigError as error:
    ...         return str(error)
    >>> threads.run(2, check)
    ['rank 1: no such file', 'no such file']
    """
    descriptions = comm.allgather(None if error is None else _description(error))
    if error is not None:
        raise error
    for rank, item in enumerate(descriptions):
        if item is not None:
            kind, text, builtin, *arguments = item
            if kind is Interrupted:
                raise Interrupted(text)
            raise kind(f"rank {rank}: {text}", *arguments) from _cause_of(builtin, text)


def check_int(name: str, value: object, least: int = 0) -> int:
    """Return `value` as an int if it is an integer of at least `least`. Else raise a ConfigError that begins with `name`, the name
    of the argument.

    Parameters
    ----------
    name : str
        Name of the argument, for the message.
    value : object
        Integer, as a Python int or a NumPy integer; a bool is refused.
    least : int
        Smallest value that is accepted.

    Returns
    -------
    int

    Raises
    ------
    ConfigError
        `value` is no integer, or is below `least`.

    Examples
    --------
    >>> from sarlite import nn
    >>> nn.check_int("hidden", 16, 1)
    16
    >>> nn.check_int("hidden", 0, 1)
    Traceback (most recent call last):
    sarlite.errors.ConfigError: hidden is 0, but must be 1 or more
    """
    if type(value).__name__ in ("bool", "bool_") or not hasattr(value, "__index__"):
        raise ConfigError(f"{name} is {value!r}, but must be a whole number")
    if operator.index(value) < least:
        raise ConfigError(f"{name} is {value}, but must be {least} or more")
    return operator.index(value)


def check_number(name: str, value: object, below: float = math.inf, *, positive: bool = False) -> float:
    """Return `value` as a float if it is a number in [0, `below`), or in (0, `below`) if `positive`. Else raise a ConfigError that
    begins with `name`, the name of the argument.
    """
    is_number = isinstance(value, Real) and not isinstance(value, bool)
    if not is_number or not 0 <= cast(float, value) < below or (positive and value == 0):
        raise ConfigError(f"{name} is {value!r}, but must be in {'(' if positive else '['}0, {below})")
    return float(cast(float, value))


def _description(error):
    """Return `error` as a tuple to send to other ranks: first the class that these ranks raise, a PeerError if `error` is no SarliteError;
    then the text; then the name of the built-in class of its cause (None: no such class); then further arguments of the class.
    """
    if isinstance(error, Interrupted):
        return Interrupted, error.signum, None
    module = __name__ if isinstance(error, SarliteError) else "builtins"
    kind = next(kind for kind in type(error).__mro__ if kind.__module__ == module)
    try:
        text = str(error)
    except Exception:  # noqa: BLE001, because the other ranks wait for this rank's text
        text = "an error without a text"
    if module == __name__:
        return kind, text, None, error.argument, error.hints
    return PeerError, f"{type(error).__name__}: {text}", kind.__name__


def _cause_of(builtin, text):
    """Return an exception with the message `text` of the built-in class named `builtin`, such as "OSError". Return None if
    `builtin` is None, or if the class needs other arguments.
    """
    with contextlib.suppress(TypeError):
        return None if builtin is None else getattr(builtins, builtin)(text)
