"""For all command lines: how a command ends, a parser whose errors are one line with a suggestion, types of options."""

import argparse
import contextlib
import difflib
import errno
import io
import os
import re
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import wraps
from types import MappingProxyType
from typing import Any, NoReturn, ParamSpec, TextIO

from sarlite.errors import SIGNALS, ConfigError, Interrupted, SarliteError, printable, writing


def run_command(action: Callable[[], int | None]) -> int:
    """Run a command of one process; return its exit status.

    Parameters
    ----------
    action : callable
        Returns the exit status; None is 0.

    Returns
    -------
    int
        2 after a SarliteError, which is printed in one line. 128 + the number of a signal that asked the process to
        end; what `action` holds, such as private files, is then removed.
    """
    try:
        with _signals_raised():
            return action() or 0
    except SarliteError as error:
        show(f"error: {error}", sys.stderr)
        return 2
    except KeyboardInterrupt as error:
        number = error.signum if isinstance(error, Interrupted) else signal.SIGINT
        show(f"interrupted by {signal.Signals(number).name}; nothing was changed that is not whole", sys.stderr)
        return 128 + number


@contextlib.contextmanager
def _signals_raised() -> Iterator[None]:
    """Return a context where `SIGNALS` raise Interrupted in the main thread; one that is ignored stays ignored."""
    def handle(number, frame):
        raise Interrupted(number)

    here = threading.current_thread() is threading.main_thread()
    taken = [number for number in SIGNALS if here and signal.getsignal(number) is not signal.SIG_IGN]
    before = {number: signal.signal(number, handle) for number in taken}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def refuse_input(argument: str, path: str, inputs: Mapping[str, str | os.PathLike[str] | None]) -> None:
    """Raise a ConfigError if a file to write, the value of `argument`, is one of the files that are read.

    Parameters
    ----------
    argument : str
    path : str
    inputs : dict of str to path or None
        The files that are read, by what names them.
    """
    for name, read in inputs.items():
        with contextlib.suppress(OSError):
            if read is not None and os.path.samefile(path, read):
                raise ConfigError(f"{argument} {path}: this is the file of {name}, which is read: name another file",
                                  argument)


def show(text: object, file: TextIO | None = None) -> None:
    """Print a text that may hold names of data, which are not the user's own: it is made `printable`.

    Raises
    ------
    DataError
        It cannot be written, for example to a full disk.
    """
    with writing("standard output" if file is None else "standard error"):
        print(printable(str(text)), file=file or sys.stdout, flush=True)


class _Output(io.FileIO):
    """Standard output or error. Once nobody reads it, as behind `| head` and a closed terminal, the rest is dropped."""

    def write(self, data):
        try:
            return super().write(data)
        except OSError as error:
            if error.errno not in (errno.EPIPE, errno.EIO):
                raise
            os.dup2(os.open(os.devnull, os.O_WRONLY), self.fileno())
            return memoryview(data).nbytes


def outlast_readers() -> None:
    """Let this process's standard output and error drop what nobody reads any more, instead of raising an OSError."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if type(stream) is not io.TextIOWrapper or isinstance(getattr(stream.buffer, "raw", stream.buffer), _Output):
            continue  # another program's, as a notebook's or a test's; or it is done
        raw = _Output(stream.fileno(), "w", closefd=False)
        layer: Any = raw if isinstance(stream.buffer, io.RawIOBase) else io.BufferedWriter(raw)
        setattr(sys, name, io.TextIOWrapper(layer, stream.encoding, stream.errors, line_buffering=stream.line_buffering,
                                            write_through=stream.write_through))

P = ParamSpec("P")


def flag(option: str) -> str:
    """Return the flag of an option, "--batch-size" of "batch_size"."""
    return "--" + option.replace("_", "-")


SYNONYMS = {"learning-rate": "lr", "rate": "lr", "l2": "weight-decay", "wd": "weight-decay", "dataset": "data",
            "hidden-size": "hidden", "hidden-channels": "hidden", "n-hidden": "hidden", "num-hidden": "hidden",
            "n-layers": "layers", "num-layers": "layers", "n-heads": "heads", "num-heads": "heads",
            "n-epochs": "epochs", "num-epochs": "epochs", "max-epochs": "epochs", "arch": "model",
            "num-neighbors": "fanouts", "auc": "roc-auc", "auroc": "roc-auc", "rocauc": "roc-auc", "acc": "accuracy",
            "average-precision": "ap", "auprc": "ap", "pr-auc": "ap", "f1": "macro-f1", "source": "src", "from": "src",
            "target": "dst", "destination": "dst", "dest": "dst", "to": "dst"}
"""What other programs call our options and their values."""


def suggestion(word: Any, known: Iterable[Any]) -> str:
    """Return "; did you mean ...?" with one or two known words that are close, or that mean the same; else nothing.

    Examples
    --------
    >>> suggestion("RGCN", ["gcn", "rgcn"]), suggestion("auc", ["accuracy", "roc-auc"]), suggestion("x", ["y"])
    ('; did you mean rgcn?', '; did you mean roc-auc?', '')
    """
    bare, words = _plain(word), {_plain(name): str(name) for name in known}
    same = bare if bare in words else SYNONYMS.get(bare)
    swapped = [name for name in words if sorted(name) == sorted(bare)]
    near = difflib.get_close_matches(bare, words, n=1, cutoff=0.7)  # of three letters one that differs is another word
    close = [same] if same in words else difflib.get_close_matches(bare, words, n=2, cutoff=0.8) or swapped[:1] or near
    return f"; did you mean {' or '.join(words[name] for name in close)}?" if close else ""


def _plain(word):
    """Return a word without the marks and capitals that do not make it another word."""
    return str(word).lstrip("-").lower().replace("_", "-")


_SIZE = re.compile(r"([0-9]{1,15}(?:\.[0-9]{1,9})?) ?(?:([KMGT])(i?B)?|B?)", re.IGNORECASE)


def byte_size(value: Any) -> int:
    """Read a number of bytes, from an option (as its `type`) or from a file.

    Parameters
    ----------
    value : str or int
        IEC 80000-13: 1 GiB is 1024^3 bytes and 1 GB 10^9. A bare 1.5G is in GiB, as in GNU's commands. A number alone
        is in bytes.

    Raises
    ------
    argparse.ArgumentTypeError
        It is no size.
    """
    found = _SIZE.fullmatch(str(value))
    if not found:
        raise argparse.ArgumentTypeError(f"{value!r} is no size, such as 512MiB, 2GiB or 1.5GB")
    number, prefix, unit = found.groups("")
    return round(float(number) * (1000 if unit.upper() == "B" else 1024) ** " KMGT".index(prefix.upper() or " "))


def count(value: Any) -> int:
    """Read a whole number, also as 2e9; raises an argparse.ArgumentTypeError for another word."""
    text = str(value)
    found = re.fullmatch(r"([0-9]{1,19})(?:\.([0-9]{1,19}))?(?:e\+?([0-9]{1,2}))?", text, re.IGNORECASE)
    if found:
        digits, fraction, power = found[1], (found[2] or "").rstrip("0"), int(found[3] or 0)
        if len(fraction) <= power:
            return int(digits + fraction) * 10 ** (power - len(fraction))
    raise argparse.ArgumentTypeError(f"{text!r} is no whole number, such as 2000000 or 2e6")


_EVERY = re.compile(r"([0-9]{1,9})(s|min|h)?")
_SECONDS = {"s": 1.0, "min": 60.0, "h": 3600.0}


def every(value: Any) -> Any:
    """Read how often something is done.

    Returns
    -------
    int or str
        A number of epochs, or a time such as "90s", "10min" or "2h" as text.

    Raises
    ------
    argparse.ArgumentTypeError
        It is neither.
    """
    found = _EVERY.fullmatch(str(value))
    if not found:
        raise argparse.ArgumentTypeError(f"{value!r} is neither a number of epochs nor a time such as 90s, 10min or 2h")
    return str(value) if found[2] else int(found[1])


def seconds(every: Any) -> float | None:
    """Return the time that `every` specifies, in seconds; None if it is a number of epochs."""
    found = _EVERY.fullmatch(str(every))
    return int(found[1]) * _SECONDS[found[2]] if found and found[2] else None


def share_or_file(value: Any) -> Any:
    """Read a share, a float, or else the path of a file."""
    try:
        return float(value)
    except (ValueError, TypeError):
        if isinstance(value, str) and value:
            return value
    raise argparse.ArgumentTypeError(f"{value!r} is neither a share nor a file")


def count_or_all(value: Any) -> int | str:
    """Read a whole number, or the word all."""
    if value == "all" or isinstance(value, int) and not isinstance(value, bool):
        return value
    if isinstance(value, str) and re.fullmatch("[0-9]{1,9}", value):
        return int(value)
    raise argparse.ArgumentTypeError(f"{value!r} is neither a whole number nor all")


_PICKS = re.compile(r"-1|[0-9]{1,9}")


def fanouts(value: Any) -> list[int]:
    """Read picks a row of each layer, as a list; "all" is -1.

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


def words(value: Any) -> list[str]:
    """Read words with commas between, or a list of a file; raise an argparse.ArgumentTypeError for anything else."""
    found = value.split(",") if isinstance(value, str) else value
    if not isinstance(found, list) or not all(isinstance(word, str) and word for word in found):
        raise argparse.ArgumentTypeError(f"{value!r} is no list of words with commas between")
    return found


def readable(n_bytes: float, base: int = 1024) -> str:
    """Return a number of bytes as readable text: 1536 is "1.5 KiB", and with base 1000 "1.536 kB"."""
    *units, last = ("B", "KiB", "MiB", "GiB", "TiB") if base == 1024 else ("B", "kB", "MB", "GB", "TB")
    for unit in units:
        if n_bytes < base:
            return f"{n_bytes:.4g} {unit}"
        n_bytes /= base
    return f"{n_bytes:.4g} {last}"


def aligned(lines: Sequence[Sequence[str]], side: str = "<") -> str:
    """Return the cells of a table as text, one line per row; columns align to the left ("<") or right (">")."""
    widths = [max(map(len, column)) for column in zip(*lines)]
    return "\n".join("  ".join(f"{cell:{side}{width}}" for cell, width in zip(line, widths)).rstrip() for line in lines)


def returns_status(main: Callable[P, int | None]) -> Callable[P, int]:
    """Decorate a command's `main` so that it returns the exit status where it would raise SystemExit.

    A notebook that calls `main(words)` goes on then; `sys.exit(main())` ends a process with the same status.
    """
    @wraps(main)
    def run(*args: P.args, **options: P.kwargs) -> int:
        try:
            return main(*args, **options) or 0
        except SystemExit as left:  # of argparse, which prints help, of a guard, or of the user's model
            if isinstance(left.code, str):
                print(left.code, file=sys.stderr)
            return left.code if isinstance(left.code, int) else int(left.code is not None)

    return run


class Parser(argparse.ArgumentParser):
    """An ArgumentParser without abbreviated options, whose errors are ConfigErrors of one line.

    Parameters
    ----------
    pages : dict of str to str
        By option, the page that the error of an unknown choice names.
    """

    def __init__(self, pages: Mapping[str, str] = MappingProxyType({}), **options: Any) -> None:
        self._pages, self.help_flag = pages, "--help"
        super().__init__(**{"allow_abbrev": False, "formatter_class": argparse.RawDescriptionHelpFormatter, **options})
        version = getattr(sys.modules["sarlite"], "__version__", "")
        self.add_argument("--version", action="version", version=f"sarlite {version}")

    def parse_args(self, args: Sequence[str] | None = None, namespace: Any = None) -> Any:  # type: ignore[override]
        r"""Return the options as a Namespace; a ConfigError names the first that is unknown.

        From here on standard output writes what its encoding has not as \xXX or \uXXXX, as standard error does, and
        both drop what nobody reads (`outlast_readers`).
        """
        outlast_readers()
        if isinstance(sys.stdout, io.TextIOWrapper):
            sys.stdout.reconfigure(errors="backslashreplace")
        found, others = self.parse_known_args(args, namespace)
        for word in [*(word for word in others if word.startswith("-")), *others]:
            option = word.partition("=")[0]
            self.error(f"unknown option {option}" + suggestion(option, self._all_options()) if word.startswith("-") else
                       f"unexpected argument {word!r}")
        return found

    def error(self, message: str) -> NoReturn:
        hint = f"{self.prog} {self.help_flag} lists all"
        choice = re.search(r"invalid choice: '(.*?)' \(choose from (.*)\)", message)
        if choice:
            known = [word.strip("' ") for word in choice[2].split(",")]
            told = f"{choice[1]!r} is not one of {', '.join(known)}{suggestion(choice[1], known)}"
            message = message[: choice.start()] + told
            page = self._pages.get(message.removeprefix("argument ").partition(":")[0])
            hint = f"{page} tells which to choose; {hint}" if page else hint
        raise ConfigError(f"{message.removeprefix('argument ')} ({hint})")

    def _all_options(self):
        """The option names of this command and of its subcommands."""
        for action in self._actions:
            yield from action.option_strings
            for parser in (action.choices or {}).values() if isinstance(action, argparse._SubParsersAction) else ():
                yield from parser._all_options()
