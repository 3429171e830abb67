"""Base of all command lines: exit statuses, printing, a parser with one-line errors, and readers of option values."""

import argparse
import contextlib
import difflib
import errno
import importlib
import io
import os
import re
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NoReturn, TextIO

from sarlite.errors import SIGNALS, ConfigError, Interrupted, SarliteError, printable, writing


def run_command(action: Callable[[], int | None]) -> int:
    """Call `action`, the main function of a command, and return the command's exit status. Print errors to standard error: a
    SarliteError gives status 2, and a signal 128 + its number.

    A notebook that calls a command's `main` continues after the command. `sys.exit(main())` ends a process with the same
    status.

    Parameters
    ----------
    action : callable
        Returns the exit status, or None for 0.

    Returns
    -------
    int
        Status of `action`, or the status of a SystemExit that `action` raises, such as argparse's after `--help`. 2
        after a SarliteError, whose message is printed as one line, or as a line for each fault of tables. 128 + the
        signal's number after a signal of `SIGNALS`; `action` has then left its contexts, which remove private files.

    Examples
    --------
    >>> run_command(lambda: None), run_command(lambda: 3)
    (0, 3)
    """
    try:
        with _signals_raised():
            return action() or 0
    except SystemExit as exit:
        return exit_status(exit)
    except SarliteError as error:
        show(f"error: {error}", sys.stderr)
        return 2
    except KeyboardInterrupt as error:
        number = error.signum if isinstance(error, Interrupted) else signal.SIGINT
        show(f"interrupted by {signal.Signals(number).name}; unfinished output was removed", sys.stderr)
        return 128 + number


def start(module: str, argv: Sequence[str] | None = None) -> int:
    """Import the command's `module`, call its `main` with the arguments `argv` (None for the process's arguments), and return the
    exit status.

    Importing a command takes a second or more. Ctrl-C in this time, or before `main` handles signals, ends the command
    with one line.

    Parameters
    ----------
    module : str
        Dotted name, such as "sarlite.cli.train_command".
    argv : sequence of str, optional
        Command line arguments; by default the arguments of the process.

    Returns
    -------
    int
        Status of `main`; 130 after Ctrl-C.
    """
    try:
        main: Callable[[Sequence[str] | None], int] = importlib.import_module(module).main
        return main(argv)
    except KeyboardInterrupt:
        show(f"interrupted by {signal.SIGINT.name} before the start", sys.stderr)
        return 128 + signal.SIGINT


def exit_status(exit: SystemExit) -> int:
    """Return the exit status in a SystemExit: its integer, or 0 for None. If it has a message instead, print the message to
    standard error and return 1.

    Examples
    --------
    >>> exit_status(SystemExit(3)), exit_status(SystemExit())
    (3, 0)
    """
    if isinstance(exit.code, str):
        print(exit.code, file=sys.stderr)
    return exit.code if isinstance(exit.code, int) else int(exit.code is not None)


@contextlib.contextmanager
def _signals_raised() -> Iterator[None]:
    """Return a context that makes each signal of `SIGNALS`, such as SIGTERM, raise Interrupted in the main thread. A signal that
    the process ignores stays ignored.
    """
    def handle(number, frame):
        raise Interrupted(number)

    is_main = threading.current_thread() is threading.main_thread()
    handled = [number for number in SIGNALS if is_main and signal.getsignal(number) is not signal.SIG_IGN]
    before = {number: signal.signal(number, handle) for number in handled}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def refuse_input(argument: str, path: str, inputs: Mapping[str, str | os.PathLike[str] | None]) -> None:
    """Raise a ConfigError if `path`, the output file of the option `argument`, is also an input file. `inputs` maps names of
    options to their input files; None stands for no file.

    Parameters
    ----------
    argument : str
        Name of the argument, or the flag, whose value is `path`.
    path : str
        File that the command is about to write.
    inputs : dict of str to path or None
        Input files, keyed by the flag or the name that the error message shows. None is skipped.

    Raises
    ------
    ConfigError
        Both paths lead to the same file.
    """
    for name, input_path in inputs.items():
        with contextlib.suppress(OSError):
            if input_path is not None and os.path.samefile(path, input_path):
                raise ConfigError(f"{argument} {path}: this is also the input file of {name}: name another file",
                                  argument)


def show(text: object, file: TextIO | None = None) -> None:
    """Print a text to `file`, by default standard output, and flush. Control characters are escaped by `printable`.

    Parameters
    ----------
    text : object
        Its `str` is printed.
    file : text file, optional
        Standard output by default.

    Raises
    ------
    DataError
        The text cannot be written, for example to a full disk.
    """
    with writing("standard output" if file is None else "standard error"):
        print(printable(str(text)), file=file or sys.stdout, flush=True)


class _Output(io.FileIO):
    """Stream for standard output or standard error that drops text once the reader of the pipe has closed it, as in `... | head`."""

    def write(self, data):
        try:
            return super().write(data)
        except OSError as error:
            if error.errno not in (errno.EPIPE, errno.EIO):
                raise
            os.dup2(os.open(os.devnull, os.O_WRONLY), self.fileno())
            return memoryview(data).nbytes


def open_closed_streams() -> None:
    """Open the null device for each standard stream that was closed before this process started, as by `2>&-`.

    Python has no stream object for a closed descriptor, and a file that is opened later would get the descriptor's
    number, so messages of C code would be written into that file.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            descriptor = os.open(os.devnull, os.O_RDWR)  # the lowest free number, so usually `number`
            setattr(sys, name, open(descriptor, "w" if number else "r", closefd=False))  # noqa: SIM115 (never closed)


def outlast_readers() -> None:
    """Replace standard output and standard error by streams that drop text once the reader has closed the pipe.

    Without the replacement, a write to a closed pipe or terminal raises an OSError. Closed streams are opened.
    """
    open_closed_streams()
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if type(stream) is not io.TextIOWrapper or isinstance(getattr(stream.buffer, "raw", stream.buffer), _Output):
            continue  # a stream of a notebook or of a test, or one that is replaced already
        raw = _Output(stream.fileno(), "w", closefd=False)
        layer = raw if isinstance(stream.buffer, io.RawIOBase) else io.BufferedWriter(raw)
        setattr(sys, name, io.TextIOWrapper(layer, stream.encoding, stream.errors, line_buffering=stream.line_buffering,
                                            write_through=stream.write_through))


def flag(option: str) -> str:
    """Return the command line flag of an option, such as "--batch-size" for "batch_size".

    Examples
    --------
    >>> flag("batch_size")
    '--batch-size'
    """
    return "--" + option.replace("_", "-")


SYNONYMS = {"learning-rate": "lr", "rate": "lr", "l2": "weight-decay", "wd": "weight-decay", "dataset": "data",
            "hidden-size": "hidden", "hidden-channels": "hidden", "n-hidden": "hidden", "num-hidden": "hidden",
            "n-layers": "layers", "num-layers": "layers", "n-heads": "heads", "num-heads": "heads",
            "n-epochs": "epochs", "num-epochs": "epochs", "max-epochs": "epochs", "arch": "model",
            "num-neighbors": "fanouts", "auc": "roc-auc", "auroc": "roc-auc", "rocauc": "roc-auc", "acc": "accuracy",
            "average-precision": "ap", "auprc": "ap", "pr-auc": "ap", "f1": "macro-f1", "source": "src", "from": "src",
            "target": "dst", "destination": "dst", "dest": "dst", "to": "dst"}
"""Names that other programs use for options and option values, each with sarlite's name."""


def suggestion(word: object, choices: Iterable[object]) -> str:
    """Return "; did you mean A or B?" with the one or two of `choices` that are spelt most like `word`; "" if none is similar.

    A word of `SYNONYMS` yields the choice of the same meaning.

    Examples
    --------
    >>> suggestion("RGCN", ["gcn", "rgcn"]), suggestion("auc", ["accuracy", "roc-auc"]), suggestion("x", ["y"])
    ('; did you mean rgcn?', '; did you mean roc-auc?', '')
    """
    bare, words = _plain(word), {_plain(name): str(name) for name in choices}
    same = bare if bare in words else SYNONYMS.get(bare)
    swapped = [name for name in words if sorted(name) == sorted(bare)]
    near = difflib.get_close_matches(bare, words, n=1, cutoff=0.7)  # no word of three letters is near another one
    close = [same] if same in words else difflib.get_close_matches(bare, words, n=2, cutoff=0.8) or swapped[:1] or near
    return f"; did you mean {' or '.join(words[name] for name in close)}?" if close else ""


def _plain(word):
    """Return a word in lower case, without leading dashes and with underscores replaced by dashes."""
    return str(word).lstrip("-").lower().replace("_", "-")


_SIZE = re.compile(r"([0-9]{1,15}(?:\.[0-9]{1,9})?) ?(?:([KMGT])(i?B)?|B?)", re.IGNORECASE)


def byte_size(value: object) -> int:
    """Return the number of bytes of a size such as "2GiB" or "1.5 GB"; a number without a unit counts bytes.

    Parameters
    ----------
    value : str or int
        Size with a unit of IEC 80000-13: 1 GiB is 1024^3 bytes, and 1 GB is 10^9 bytes. As in GNU's commands, G alone
        means GiB. A number without a unit counts bytes.

    Returns
    -------
    int
        Bytes.

    Raises
    ------
    argparse.ArgumentTypeError
        The text is not a size.

    Examples
    --------
    >>> byte_size("2GiB"), byte_size("1.5 GB"), byte_size(4096)
    (2147483648, 1500000000, 4096)
    """
    match = _SIZE.fullmatch(str(value))
    if not match:
        raise argparse.ArgumentTypeError(f"{value!r} is not a size, such as 512MiB, 2GiB or 1.5GB")
    number, prefix, unit = match.groups("")
    return round(float(number) * (1000 if unit.upper() == "B" else 1024) ** " KMGT".index(prefix.upper() or " "))


def count(value: object) -> int:
    """Return the whole number in a text such as "1000" or "1e3".

    Raises
    ------
    argparse.ArgumentTypeError
        The text is not a whole number.

    Examples
    --------
    >>> count("2000000"), count("1.5e3")
    (2000000, 1500)
    """
    text = str(value)
    match = re.fullmatch(r"([0-9]{1,19})(?:\.([0-9]{1,19}))?(?:e\+?([0-9]{1,2}))?", text, re.IGNORECASE)
    if match:
        digits, fraction, power = match[1], (match[2] or "").rstrip("0"), int(match[3] or 0)
        if len(fraction) <= power:
            return int(digits + fraction) * 10 ** (power - len(fraction))
    raise argparse.ArgumentTypeError(f"{text!r} is not a whole number, such as 2000000 or 2e6")


_INTERVAL = re.compile(r"([0-9]{1,9})(s|min|h)?")
_SECONDS = {"s": 1.0, "min": 60.0, "h": 3600.0}


def interval(value: object) -> int | str:
    """Return `value`, an option's interval between two checkpoints: a number of epochs, such as "5", as an int, or a time, such as "10min",
    unchanged as text.

    Parameters
    ----------
    value : str or int
        A number of epochs, or a time with the unit s, min or h.

    Returns
    -------
    int or str
        Number of epochs, or the time as it stands in `value`; `interval_seconds` converts a time.

    Raises
    ------
    argparse.ArgumentTypeError
        The value is neither.

    Examples
    --------
    >>> interval("5"), interval("10min")
    (5, '10min')
    """
    match = _INTERVAL.fullmatch(str(value))
    if not match:
        raise argparse.ArgumentTypeError(f"{value!r} is neither a number of epochs nor a time such as 90s, 10min or 2h")
    return str(value) if match[2] else int(match[1])


def interval_seconds(value: object) -> float | None:
    """Return an interval of time such as "10min" in seconds; None if the interval is a number of epochs.

    Examples
    --------
    >>> interval_seconds("10min"), interval_seconds(5)
    (600.0, None)
    """
    match = _INTERVAL.fullmatch(str(value))
    return int(match[1]) * _SECONDS[match[2]] if match and match[2] else None


def share_or_file(value: object) -> float | str:
    """Return the value of an option that takes a share, such as 0.1, or a file: a number as a float, any other text, a path, unchanged.

    Raises
    ------
    argparse.ArgumentTypeError
        The value is neither a number nor a text, or is empty.
    """
    if isinstance(value, str | int | float):
        with contextlib.suppress(ValueError):
            return float(value)
    if isinstance(value, str) and value:
        return value
    raise argparse.ArgumentTypeError(f"{value!r} is neither a share nor a file")


def count_or_all(value: object) -> int | str:
    """Return the value of an option that takes a number or "all": a whole number as an int, the word "all" as it is.

    Raises
    ------
    argparse.ArgumentTypeError
        The value is neither.
    """
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if value == "all":
        return "all"
    if isinstance(value, str) and re.fullmatch("[0-9]{1,9}", value):
        return int(value)
    raise argparse.ArgumentTypeError(f"{value!r} is neither a whole number nor all")


_FANOUT = re.compile(r"-1|[0-9]{1,9}")


def fanouts(value: object) -> list[int]:
    """Return the numbers of in-edges that each layer samples per node, first layer first, from a text such as "10,all" or a list
    from a TOML file; "all" becomes -1.

    Parameters
    ----------
    value : str or list
        Numbers, or the word "all", separated by commas; or a list of numbers from a TOML file.

    Raises
    ------
    argparse.ArgumentTypeError
        The value is neither, or an entry is 0.

    Examples
    --------
    >>> fanouts("5,10,all")
    [5, 10, -1]
    """
    entries = value.split(",") if isinstance(value, str) else map(str, value) if isinstance(value, list) else ()
    numbers = [-1 if entry == "all" else int(entry) if _FANOUT.fullmatch(entry) else 0 for entry in entries]
    if not numbers or not all(numbers):
        raise argparse.ArgumentTypeError(f"{value!r} is not a list of in-edges per node, one number per layer, such as 5,10,all; "
                                         "a number is at least 1 and has at most 9 digits")
    return numbers


def words(value: object) -> list[str]:
    """Return the list of words in a text with commas, such as "author,paper". A list, from a TOML file, is returned unchanged.

    Raises
    ------
    argparse.ArgumentTypeError
        The value is neither, or a word is empty.

    Examples
    --------
    >>> words("author,paper")
    ['author', 'paper']
    """
    entries = value.split(",") if isinstance(value, str) else value
    if not isinstance(entries, list) or not all(isinstance(word, str) and word for word in entries):
        raise argparse.ArgumentTypeError(f"{value!r} is not a list of words with commas between")
    return entries


def readable(n_bytes: float, base: int = 1024) -> str:
    """Return `n_bytes`, a number of bytes, as text with a unit, such as "1.5 KiB" with the `base` 1024, or "1.536 kB" with the `base` 1000.

    Parameters
    ----------
    n_bytes : float
    base : {1024, 1000}
        1024 for KiB, MiB, GiB and TiB; 1000 for kB, MB, GB and TB.

    Examples
    --------
    >>> readable(1536), readable(1536, base=1000)
    ('1.5 KiB', '1.536 kB')
    """
    *units, last = ("B", "KiB", "MiB", "GiB", "TiB") if base == 1024 else ("B", "kB", "MB", "GB", "TB")
    for unit in units:
        if n_bytes < base:
            return f"{n_bytes:.4g} {unit}"
        n_bytes /= base
    return f"{n_bytes:.4g} {last}"


def aligned(lines: Sequence[Sequence[str]], side: str = "<") -> str:
    """Return rows of cells, `lines`, as a text table with aligned columns. `side` is the side of the cells' text: "<" for left or
    ">" for right.

    Parameters
    ----------
    lines : sequence of sequence of str
        Cells of each row.
    side : {"<", ">"}
        Alignment of the columns: left or right.

    Examples
    --------
    >>> print(aligned([["rank", "bytes"], ["0", "1,024"]], ">"))
    rank  bytes
       0  1,024
    """
    widths = [max(map(len, column)) for column in zip(*lines)]
    return "\n".join("  ".join(f"{cell:{side}{width}}" for cell, width in zip(line, widths)).rstrip() for line in lines)


class Parser(argparse.ArgumentParser):
    """ArgumentParser without abbreviated flags, which raises a ConfigError of one line for a wrong command line.

    Parameters
    ----------
    pages : dict of str to str
        Documentation page of a flag, which the error for an unknown choice of the flag names.
    **options
        Keywords of `argparse.ArgumentParser`.

    Attributes
    ----------
    help_flag : str
        Flag that lists all options, for error messages.
    """

    def __init__(self, pages: Mapping[str, str] = MappingProxyType({}), **options: Any) -> None:
        self._pages, self.help_flag = pages, "--help"
        super().__init__(**{"allow_abbrev": False, "formatter_class": argparse.RawDescriptionHelpFormatter, **options})
        version = getattr(sys.modules["sarlite"], "__version__", "")
        self.add_argument("--version", action="version", version=f"sarlite {version}")

    def parse_args(self, args: Sequence[str] | None = None, namespace: Any = None) -> Any:  # type: ignore[override]
        r"""Return an object whose attributes are the options in `args`: `namespace`, or a new one for None. `args` None stands for
        `sys.argv[1:]`. Standard output and standard error are prepared for printing.

        From this call on, standard output escapes characters outside its encoding as \xXX or \uXXXX, as standard error
        does. Both streams drop text that nobody reads (`outlast_readers`).

        Raises
        ------
        ConfigError
            A flag or an argument is unknown, or a value is invalid.
        """
        outlast_readers()
        if isinstance(sys.stdout, io.TextIOWrapper):
            sys.stdout.reconfigure(errors="backslashreplace")
        options, unknown = self.parse_known_args(args, namespace)
        for word in [*(word for word in unknown if word.startswith("-")), *unknown]:
            option = word.partition("=")[0]
            self.error(f"unknown option {option}" + suggestion(option, self._all_options()) if word.startswith("-") else
                       f"unexpected argument {word!r}")
        return options

    def error(self, message: str) -> NoReturn:
        hint = f"{self.prog} {self.help_flag} lists all"
        choice = re.search(r"invalid choice: '(.*?)' \(choose from (.*)\)", message)
        if choice:
            choices = [word.strip("' ") for word in choice[2].split(",")]
            refusal = f"{choice[1]!r} is not one of {', '.join(choices)}{suggestion(choice[1], choices)}"
            message = message[: choice.start()] + refusal
            page = self._pages.get(message.removeprefix("argument ").partition(":")[0])
            hint = f"{page} tells which to choose; {hint}" if page else hint
        raise ConfigError(f"{message.removeprefix('argument ')} ({hint})")

    def _all_options(self):
        """Yield each flag of this command and of its subcommands, such as "--lr"."""
        for action in self._actions:
            yield from action.option_strings
            for parser in (action.choices or {}).values() if isinstance(action, argparse._SubParsersAction) else ():
                yield from parser._all_options()
