"""`Progress`: reports on standard error how far long work is and how long it will still take."""

import contextlib
import os
import stat
import sys
import threading
import time
from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any, TextIO

from sarlite.errors import ConfigError, needs

KINDS = ("auto", "bar", "lines", "none")
LINE_SECONDS = 5.0
"""Time from one line to the next, at least; after minutes a line comes less often."""
BAR_SECONDS = 0.5


def bar_class(kind: str, stream: TextIO) -> Any:
    """Return tqdm's class of bars, or None where no bar is shown.

    A bar is shown of kind "bar", and of "auto" on a terminal or in a notebook, where tqdm is there.

    Raises
    ------
    ConfigError
        Kind "bar" without tqdm.
    """
    in_notebook = "ipykernel" in sys.modules
    module = "tqdm.auto" if in_notebook and find_spec("ipywidgets") else "tqdm.std"  # tqdm.auto warns of its lack
    if kind == "bar":
        return needs(module, "--progress bar").tqdm
    if kind == "auto" and (stream.isatty() or in_notebook):
        with contextlib.suppress(ConfigError):
            return needs(module, "--progress auto").tqdm
    return None


class Step:
    """One step of long work.

    Attributes
    ----------
    text : str
        What is done.
    total, done : int
        How much there is to do, and how much is done, in one unit. A total of 0 is not known.
    """

    def __init__(self, text: str, total: int = 0, reads: str | None = None) -> None:
        self.text, self.total, self.done, self._reads, self._begun = text, total, 0, reads, time.monotonic()
        self._doing = ""

    def add(self, n: int) -> None:
        """Count `n` more as done."""
        self.done += n

    def tell(self, doing: str) -> None:
        """Say what of the step is done now."""
        self._doing = f", {doing}"

    def line(self) -> str:
        """Return the progress as text: "write d: 40 %, 12 s, 18 s left", or without a total "METIS: 12 s"."""
        seconds, done, total, text = time.monotonic() - self._begun, self.done, self.total, self.text + self._doing
        if self._reads and not total:
            name, done, total = _position(self._reads)
            text += f", {os.path.basename(name)}" if name and name != self._reads else ""
        if not 0 < done <= total:
            return f"{text}: {duration(seconds)}"
        return f"{text}: {100 * done // total} %, {duration(seconds)}, {duration(seconds * (total - done) / done)} left"


class Progress:
    """Reports steps: by a progress bar on a terminal (tqdm), else by a new line every few seconds.

    A step that takes less has no line.

    Parameters
    ----------
    kind : {"auto", "bar", "lines", "none"}
        "auto" is a bar on a terminal. Under mpiexec standard error is a pipe, so only the caller knows of a terminal.
    stream : file, optional
        By default standard error.
    line_seconds, bar_seconds : float, optional
        Time from one line, or change of the bar, to the next; `LINE_SECONDS` and `BAR_SECONDS`.

    Raises
    ------
    ConfigError
        Another kind, or "bar" without tqdm.
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
        """Tell of the step for as long as the context lasts.

        Parameters
        ----------
        text : str
            What is done.
        total : int
            How much there is to do, in the unit that `Step.add` counts; 0 if that is not known.
        reads : path, optional
            Without a total, the file or the folder of files that is read. Linux tells how far the reading is.
        """
        step, over = Step(text, total, reads), threading.Event()
        thread = threading.Thread(target=self._tell, args=(step, over), name="sarlite-progress", daemon=True)
        if not self.silent:
            with contextlib.suppress(RuntimeError):  # no thread to be had: then nothing is told
                thread.start()
        try:
            yield step
        finally:
            over.set()
            if thread.ident is not None:
                thread.join()

    def _tell(self, step, over):
        with contextlib.suppress(OSError, ValueError):  # nobody reads the stream any more
            if self._bar is None:
                self._lines(step, over)
            else:
                self._line_that_changes(step, over)

    def _lines(self, step, over):
        begun, pause = time.monotonic(), self.line_seconds
        while not over.wait(pause):
            print(step.line(), file=self.stream, flush=True)
            pause = max(self.line_seconds, (time.monotonic() - begun) / 10)

    def _line_that_changes(self, step, over):
        if over.wait(self.bar_seconds):
            return
        with self._bar(bar_format="{desc}", file=self.stream, leave=False, dynamic_ncols=True) as bar:
            while True:
                bar.set_description_str(step.line())
                if over.wait(self.bar_seconds):
                    break


SILENT = Progress("none")


def duration(seconds: float) -> str:
    """Return a time in words: 12 s, 3 min 05 s, 2 h 10 min."""
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02} min"


def _position(path):
    """(name, place, size) of the file at or below `path` that this process is reading; None, 0, 0 if there is none."""
    path = os.path.realpath(path)
    with contextlib.suppress(OSError):
        for fd in os.listdir("/proc/self/fd"):
            with contextlib.suppress(OSError, StopIteration, ValueError):
                name = os.readlink(f"/proc/self/fd/{fd}")
                facts = os.stat(f"/proc/self/fd/{fd}")
                if (name == path or name.startswith(path + os.sep)) and stat.S_ISREG(facts.st_mode):
                    with open(f"/proc/self/fdinfo/{fd}") as file:
                        place = next(int(line.split()[1]) for line in file if line.startswith("pos:"))
                        return name, place, facts.st_size
    return None, 0, 0
