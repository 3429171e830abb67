"""What long work tells on standard error while it lasts: how far it is, and how long it still takes."""

import contextlib
import os
import stat
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any, TextIO

from sarlite.errors import needs

KINDS = ("auto", "bar", "lines", "none")
LINE_SECONDS = 5.0
_BAR_SECONDS = 0.5


class Step:
    """One step of long work.

    Attributes
    ----------
    text : str
    total, done : int
        In one unit; a total of 0 is not known.
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
        """Return how far it is: "write d: 40 %, 12 s, 18 s left", or with nothing to count "METIS: 12 s"."""
        seconds, done, total, text = time.monotonic() - self._begun, self.done, self.total, self.text + self._doing
        if self._reads and not total:
            name, done, total = _position(self._reads)
            text += f", {os.path.basename(name)}" if name and name != self._reads else ""
        if not 0 < done <= total:
            return f"{text}: {duration(seconds)}"
        return f"{text}: {100 * done // total} %, {duration(seconds)}, {duration(seconds * (total - done) / done)} left"


class Progress:
    """Tells of steps: a line on a terminal that changes (tqdm), else a new line every few seconds, none of a step that takes less.

    Parameters
    ----------
    kind : {"auto", "bar", "lines", "none"}
        "auto" is a bar on a terminal. Under mpiexec standard error is a pipe, so only the caller knows of a terminal.
    stream : file, optional
        By default standard error.

    Raises
    ------
    ConfigError
        "bar" without tqdm.
    """

    def __init__(self, kind: str = "auto", stream: TextIO | None = None) -> None:
        self.stream: TextIO = sys.stderr if stream is None else stream
        self._bar: Any = None
        self.silent = kind == "none"
        if kind == "bar":
            self._bar = needs("tqdm", "--progress bar").tqdm
        elif kind == "auto" and self.stream.isatty():
            with contextlib.suppress(ImportError):
                from tqdm import tqdm

                self._bar = tqdm

    @contextlib.contextmanager
    def step(self, text: str, total: int = 0, reads: str | None = None) -> Iterator[Step]:
        """Tell of the step for as long as the context lasts.

        Parameters
        ----------
        text : str
            What is done.
        total : int
            How much there is to do, in what `Step.add` counts; 0 if that is not known.
        reads : path, optional
            Without a total: the file, or the folder of files, that is read. How far it is, the system tells (on Linux).
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
        with contextlib.suppress(OSError, ValueError):  # who listened is gone
            if self._bar is None:
                self._lines(step, over)
            else:
                self._line_that_changes(step, over)

    def _lines(self, step, over):
        begun, pause = time.monotonic(), LINE_SECONDS
        while not over.wait(pause):
            print(step.line(), file=self.stream, flush=True)
            pause = max(LINE_SECONDS, (time.monotonic() - begun) / 10)

    def _line_that_changes(self, step, over):
        if over.wait(_BAR_SECONDS):
            return
        with self._bar(bar_format="{desc}", file=self.stream, leave=False, dynamic_ncols=True) as bar:
            while True:
                bar.set_description_str(step.line())
                if over.wait(_BAR_SECONDS):
                    break


SILENT = Progress("none")


def duration(seconds: float) -> str:
    """Return a time in words: 12 s, 3 min 05 s, 2 h 10 min."""
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02} min"


def _position(path):
    """The file at or below `path` that this process has open, how far it has read it and its size; None, 0, 0 if there is none."""
    path = os.path.realpath(path)
    with contextlib.suppress(OSError):
        for fd in os.listdir("/proc/self/fd"):
            with contextlib.suppress(OSError, StopIteration, ValueError):
                name = os.readlink(f"/proc/self/fd/{fd}")
                facts = os.stat(f"/proc/self/fd/{fd}")
                if (name == path or name.startswith(path + os.sep)) and stat.S_ISREG(facts.st_mode):
                    with open(f"/proc/self/fdinfo/{fd}") as file:
                        return name, next(int(line.split()[1]) for line in file if line.startswith("pos:")), facts.st_size
    return None, 0, 0
