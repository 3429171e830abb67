"""Functions under test that are programs in any language: inputs and results are files, each call a process."""

import os
import shlex
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from sarlite.errors import ConfigError, SarliteError, one_line
from sarlite.oracle import npy, part_files, sarcase
from sarlite.oracle.call import Failure, Unsupported
from sarlite.oracle.case import Case
from sarlite.oracle.finding import Saved, Verdict
from sarlite.oracle.parts import Part
from sarlite.types import Array

SKIPPED = 77  # the exit status of a program that does not promise a case, as in Automake's tests
_TOLD = 400  # bytes of a failing program's last words


class Program:
    """Runs a command for each case: `run` and `vjp` are for `check`, `run_ranks` is for `check_ranks`.

    Parameters
    ----------
    command : str
        Words as in a shell, which none is used for. `{inputs}` is replaced by the case's directory (a .sarcase, or what
        `write_parts` writes), `{outputs}` by an empty one, of several ranks with an empty one a rank, "rank-0" and so
        on; `{ranks}` by their number. The program writes `NAME.npy` there for each output, and, where the case has
        `cotangents`, `dNAME.npy` for each gradient. By exit status 77 it refuses a case, as by `Unsupported`.
    outputs : tuple of str
        Names of the operation's outputs.
    time_limit : float
        Seconds of one call; then the program is killed with all that it has started.

    Raises
    ------
    ConfigError
        The command has no such words, or there is no such program.
    """

    def __init__(self, command: str, outputs: tuple[str, ...], time_limit: float = 60.0) -> None:
        try:
            self.words = shlex.split(command)
        except ValueError as error:
            raise ConfigError(f"--command {command!r}: {error}") from error
        for place in ("{inputs}", "{outputs}"):
            if not any(place in word for word in self.words):
                raise ConfigError(f"--command {command!r} has no {place}")
        if shutil.which(self.words[0]) is None:
            raise ConfigError(f"--command: {self.words[0]!r} is no program that can be run")
        self.outputs, self.time_limit = outputs, time_limit

    def run(self, case: Case) -> dict[str, Array]:
        found = self._results(Saved(case))
        return {name: found[name] for name in self._written(found, self.outputs)}

    def vjp(self, case: Case, g: Any) -> dict[str, Array]:
        cotangents = g if isinstance(g, Mapping) else {self.outputs[0]: g}
        found = self._results(Saved(case, cotangents))
        known = [name for name in (*case.arrays, *case.state) if f"d{name}" in found]
        self._written(found, [f"d{name}" for name in known] or [f"d{next(iter(case.arrays))}"])
        return {name: found[f"d{name}"] for name in known}

    def run_ranks(self, parts: Sequence[Part]) -> list[dict[str, Any]]:
        """Run it once for all ranks. A run that takes too long ends the check."""
        try:
            return self._exchange(lambda folder: part_files.write_parts(parts, folder / "parts"),
                                  lambda outputs: part_files.read_results(outputs, parts),
                                  [part_files.folder_of(part) for part in parts], ranks=len(parts))
        except ProgramTimeout as error:
            raise Failure(Verdict.LIMIT, str(error), hangs=True) from error

    def _results(self, saved):
        return self._exchange(lambda folder: sarcase.save(saved, folder / "case.sarcase"), npy.read_folder)

    def _written(self, found, names):
        if missing := [name for name in names if name not in found]:
            there = ", ".join(f"{name}.npy" for name in found) or "nothing"
            raise ProgramError(f"wrote no {missing[0]}.npy: {there} is there")
        return names

    def _exchange(self, write: Callable[[Path], Path], read: Callable[[Path], Any], folders: Sequence[str] = (),
                  **places: Any) -> Any:
        """Run the program once on the files that `write` writes, and return `read(outputs)`; `folders` exist for results."""
        with tempfile.TemporaryDirectory(prefix="sarlite-oracle-") as name:
            inputs, outputs = write(Path(name)), Path(name) / "results"
            for each in ("", *folders):
                (outputs / each).mkdir()
            self._call(Path(name), {"inputs": inputs, "outputs": outputs, **places})
            return read(outputs)

    def _call(self, folder, places):
        """Run the program once; `folder` keeps its standard error."""
        words = self.words
        for name, value in places.items():
            words = [word.replace(f"{{{name}}}", str(value)) for word in words]
        with open(folder / "stderr", "w+b") as errors:
            process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=errors,
                                       start_new_session=True)
            try:
                status = process.wait(self.time_limit)
            except subprocess.TimeoutExpired:
                raise ProgramTimeout(f"{words[0]}: did not end within {self.time_limit:g} s") from None
            finally:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)
                    process.wait()
            errors.seek(max(0, errors.seek(0, os.SEEK_END) - _TOLD))
            said = one_line(errors.read().decode(errors="replace").strip())
        if status == SKIPPED:
            raise Unsupported(said or f"exit status {SKIPPED}")
        if status:
            cause = f"signal {signal.Signals(-status).name}" if status < 0 else f"exit status {status}"
            raise ProgramError(f"{words[0]}: {cause}" + (f": {said}" if said else ""))


class ProgramError(SarliteError):
    """A program ended with an error, took too long, or left no result."""


class ProgramTimeout(ProgramError, TimeoutError):
    """A program took too long, and was killed with all that it had started."""
