"""`Progress`: prints the completed share and the remaining time of long operations to standard error."""

import contextlib
import os
import stat
import sys
import threading
import time
from collections.abc import Iterator
from importlib.util import find_spec
from types import TracebackType
from typing import Protocol, TextIO

from sarlite.errors import ConfigError, import_optional

KINDS = ("auto", "bar", "lines", "none")
LINE_SECONDS = 5.0
"""Least time between two lines. After minutes, lines come less often."""
BAR_SECONDS = 0.5
"""Time between two updates of a bar."""


class Bar(Protocol):
    """Progress bar with the methods of tqdm's bars that sarlite calls."""

    def __enter__(self) -> "Bar": ...

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> object: ...

    def update(self, n: float = 1) -> object:
        """Add `n` to the count of the bar."""

    def set_description_str(self, desc: str | None = None, refresh: bool | None = True) -> object:
        """Set the text `desc` before the bar, and draw the bar anew if `refresh`."""

    def set_postfix_str(self, s: str = "", refresh: bool = True) -> object:
        """Set the text `s` after the bar, and draw the bar anew if `refresh`."""

    def close(self) -> object:
        """End the bar: remove it from the terminal, or leave it there if it was made with `leave=True`."""


class MakesBars(Protocol):
    """Callable that returns a progress bar, such as the class `tqdm.tqdm`."""

    def __call__(self, **options: object) -> Bar: ...



def bar_class(kind: str, stream: TextIO) -> MakesBars | None:
    """Return tqdm's class of progress bars if `kind`, an option's value such as "auto", asks for a bar on the file `stream`; else
    None, which stands for lines or silence.

    Parameters
    ----------
    kind : {"auto", "bar", "lines", "none"}
        "bar" shows a bar. "auto" shows a bar on a terminal and in a notebook, if tqdm is installed.
    stream : file
        Stream that the bar is written to.

    Raises
    ------
    ConfigError
        `kind` is "bar", and tqdm is not installed.
    """
    in_notebook = "ipykernel" in sys.modules
    module = "tqdm.auto" if in_notebook and find_spec("ipywidgets") else "tqdm.std"  # tqdm.auto warns without ipywidgets
    bars: MakesBars | None = None
    if kind == "bar":
        bars = import_optional(module, "--progress bar").tqdm
    elif kind == "auto" and (stream.isatty() or in_notebook):
        with contextlib.suppress(ConfigError):
            bars = import_optional(module, "--progress auto").tqdm
    return bars


class Step:
    """Progress of one step of a long operation, such as writing a file: words for the step, the total amount of work and the
    completed amount.

    Attributes
    ----------
    text : str
        Words for the step, such as "write d".
    total, done : int
        Total amount of work and completed amount, in the same unit; `total` is 0 if it is unknown.
    """

    def __init__(self, text: str, total: int = 0, reads: str | None = None) -> None:
        self.text, self.total, self.done, self._reads, self._begun = text, total, 0, reads, time.monotonic()
        self._doing = ""

    def add(self, n: int) -> None:
        """Add `n` to the completed amount of work, in the unit of `total`."""
        self.done += n

    def tell(self, doing: str) -> None:
        """Set `doing`, words for the current part of the step, which `line` appends to the step's text."""
        self._doing = f", {doing}"

    def line(self) -> str:
        """Return the progress as text, such as "write d: 40 %, 12 s, 18 s left"; without a total, "METIS: 12 s"."""
        seconds, done, total, text = time.monotonic() - self._begun, self.done, self.total, self.text + self._doing
        if self._reads and not total:
            name, done, total = _position(self._reads)
            text += f", {os.path.basename(name)}" if name and name != self._reads else ""
        if not 0 < done <= total:
            return f"{text}: {duration(seconds)}"
        return f"{text}: {100 * done // total} %, {duration(seconds)}, {duration(seconds * (total - done) / done)} left"


class Progress:
    """Reporter of progress: a tqdm bar on a terminal, else a new line every few seconds.

    A step that ends before the first line is due prints nothing.

    Parameters
    ----------
    kind : {"auto", "bar", "lines", "none"}
        "auto" shows a bar on a terminal and lines elsewhere. Under mpiexec, standard error is a pipe, so "auto" shows
        lines.
    stream : file, optional
        Standard error by default.
    line_seconds, bar_seconds : float, optional
        Seconds between two lines, and between two updates of the bar; by default `LINE_SECONDS` and `BAR_SECONDS`.

    Raises
    ------
    ConfigError
        `kind` is unknown, or "bar" without tqdm.

    Examples
    --------
    >>> with Progress("none").step("count edges", total=10) as step:
    ...     step.add(10)
    >>> step.done
    10
    """

    def __init__(self, kind: str = "auto", stream: TextIO | None = None, *, line_seconds: float | None = None,
                 bar_seconds: float | None = None) -> None:
        if kind not in KINDS:
            raise ConfigError(f"kind {kind!r} is not one of {', '.join(KINDS)}")
        self.line_seconds = LINE_SECONDS if line_seconds is None else line_seconds
        self.bar_seconds = BAR_SECONDS if bar_seconds is None else bar_seconds
        self.stream: TextIO = sys.stderr if stream is None else stream
        self._bar, self.silent = bar_class(kind, self.stream), kind == "none"

    @contextlib.contextmanager
    def step(self, text: str, total: int = 0, reads: str | None = None) -> Iterator[Step]:
        """Return a context with a `Step` called `text`, whose progress a thread prints until the context ends. The share is the
        completed part of `total` or, if `total` is 0, the position in the file or folder `reads` that the step reads.

        Parameters
        ----------
        text : str
            Words for the step, such as "write d".
        total : int
            Total amount of work, in the unit that `Step.add` counts; 0 if it is unknown.
        reads : path, optional
            File, or folder of files, that the step reads. Without a total, the position in the open file, which Linux
            tells, stands for the completed amount.
        """
        step, ended = Step(text, total, reads), threading.Event()
        thread = threading.Thread(target=self._report, args=(step, ended), name="sarlite-progress", daemon=True)
        if not self.silent:
            with contextlib.suppress(RuntimeError):  # the system has no thread to spare: report nothing
                thread.start()
        try:
            yield step
        finally:
            ended.set()
            if thread.ident is not None:
                thread.join()

    def _report(self, step, ended):
        with contextlib.suppress(OSError, ValueError):  # the stream was closed
            if self._bar is None:
                self._print_lines(step, ended)
            else:
                self._update_bar(step, ended)

    def _print_lines(self, step, ended):
        begun, pause = time.monotonic(), self.line_seconds
        while not ended.wait(pause):
            print(step.line(), file=self.stream, flush=True)
            pause = max(self.line_seconds, (time.monotonic() - begun) / 10)

    def _update_bar(self, step, ended):
        if ended.wait(self.bar_seconds):
            return
        with self._bar(bar_format="{desc}", file=self.stream, leave=False, dynamic_ncols=True) as bar:
            while True:
                bar.set_description_str(step.line())
                if ended.wait(self.bar_seconds):
                    break


SILENT = Progress("none")


def duration(seconds: float) -> str:
    """Return a time as text, such as "3 min 05 s".

    Examples
    --------
    >>> duration(12), duration(185), duration(7800)
    ('12 s', '3 min 05 s', '2 h 10 min')
    """
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02} min"


def _position(path: str) -> tuple[str | None, int, int]:
    """Return (name, read position, size in bytes) of a file that this process has open: `path`, or any file in `path` if `path` is
    a folder. (None, 0, 0) if no such file is open.
    """
    path = os.path.realpath(path)
    with contextlib.suppress(OSError):
        for fd in os.listdir("/proc/self/fd"):
            with contextlib.suppress(OSError, StopIteration, ValueError):
                name = os.readlink(f"/proc/self/fd/{fd}")
                facts = os.stat(f"/proc/self/fd/{fd}")
                if (name == path or name.startswith(path + os.sep)) and stat.S_ISREG(facts.st_mode):
                    with open(f"/proc/self/fdinfo/{fd}") as file:
                        position = next(int(line.split()[1]) for line in file if line.startswith("pos:"))
                        return name, position, facts.st_size
    return None, 0, 0
