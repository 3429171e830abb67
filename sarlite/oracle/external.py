"""A function under test that is a program in any language: inputs and results are files, each call a process of its own."""

import os
import shlex
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sarlite.errors import ConfigError, SarliteError, one_line
from sarlite.oracle import npy, sarcase
from sarlite.oracle.call import Unsupported
from sarlite.oracle.case import Case
from sarlite.types import Array

SKIPPED = 77  # the exit status of a program that does not promise a case, as in Automake's tests
_TOLD = 400  # bytes of a failing program's last words


class ProgramError(SarliteError):
    """A program ended with an error, took too long, or left no result."""


class ProgramTimeout(ProgramError):
    """A program took too long, and was killed with all that it had started."""


class Command:
    """Words of a command, in which places as `{inputs}` are filled for each call.

    Parameters
    ----------
    command : str
        Words as in a shell, which none is used for. It has `{inputs}` and `{outputs}`.
    time_limit : float
        Seconds of one call; then it is killed with all that it has started.

    Raises
    ------
    ConfigError
        The command has no such words, or there is no such program.
    """

    def __init__(self, command: str, time_limit: float = 60.0) -> None:
        try:
            self.words = shlex.split(command)
        except ValueError as error:
            raise ConfigError(f"--command {command!r}: {error}") from error
        for place in ("{inputs}", "{outputs}"):
            if not any(place in word for word in self.words):
                raise ConfigError(f"--command {command!r} has no {place}")
        if shutil.which(self.words[0]) is None:
            raise ConfigError(f"--command: {self.words[0]!r} is no program that can be run")
        self.time_limit = time_limit

    def call(self, folder: Path, **places: Any) -> None:
        """Run it once; `folder` keeps what it says.

        Raises
        ------
        Unsupported
            Its exit status is 77.
        ProgramError
            It is another one than 0, or the time is over.
        """
        words = self.words
        for name, value in places.items():
            words = [word.replace(f"{{{name}}}", str(value)) for word in words]
        with open(folder / "stderr", "w+b") as errors:
            process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=errors, start_new_session=True)
            try:
                status = process.wait(self.time_limit)
            except subprocess.TimeoutExpired:
                raise ProgramTimeout(f"{words[0]}: did not end within {self.time_limit:g} s") from None
            finally:
                _end(process)
            errors.seek(max(0, errors.seek(0, os.SEEK_END) - _TOLD))
            said = one_line(errors.read().decode(errors="replace").strip())
        if status == SKIPPED:
            raise Unsupported(said or f"exit status {SKIPPED}")
        if status:
            cause = f"signal {signal.Signals(-status).name}" if status < 0 else f"exit status {status}"
            raise ProgramError(f"{words[0]}: {cause}" + (f": {said}" if said else ""))


class Program:
    """Runs a command for each case.

    Parameters
    ----------
    command : str
        As of `Command`: `{inputs}` is replaced by the case's directory (a .sarcase), `{outputs}` by an empty one. The program writes
        `NAME.npy` there for each output, and, where the case has `cotangents`, `dNAME.npy` for each gradient.
    outputs : sequence of str
        Names of the operation's outputs.
    time_limit : float
        Seconds of one call.

    Raises
    ------
    ConfigError
        As of `Command`.
    """

    def __init__(self, command: str, outputs: tuple[str, ...], time_limit: float = 60.0) -> None:
        self.command, self.outputs = Command(command, time_limit), outputs

    def run(self, case: Case) -> dict[str, Array]:
        found = self._results(sarcase.Saved(case))
        return {name: found[name] for name in self._written(found, self.outputs)}

    def vjp(self, case: Case, g: Any) -> dict[str, Array]:
        cotangents = g if isinstance(g, Mapping) else {self.outputs[0]: g}
        found = self._results(sarcase.Saved(case, cotangents))
        known = [name for name in (*case.arrays, *case.state) if f"d{name}" in found]
        self._written(found, [f"d{name}" for name in known] or [f"d{next(iter(case.arrays))}"])
        return {name: found[f"d{name}"] for name in known}

    def _results(self, saved):
        with tempfile.TemporaryDirectory(prefix="sarlite-oracle-") as folder:
            inputs = sarcase.save(saved, Path(folder) / "case.sarcase")
            outputs = Path(folder) / "results"
            outputs.mkdir()
            self.command.call(Path(folder), inputs=inputs, outputs=outputs)
            return read_arrays(outputs)

    def _written(self, found, names):
        if missing := [name for name in names if name not in found]:
            raise ProgramError(f"wrote no {missing[0]}.npy: {', '.join(f'{name}.npy' for name in found) or 'nothing'} is there")
        return names


def read_arrays(folder: Path) -> dict[str, Array]:
    """Return the arrays of a folder's .npy files by name; raises DataError, as `npy.read_result`."""
    return {path.stem: npy.read_result(path, path.stem) for path in sorted(folder.glob("*.npy"))}


def _end(process):
    """Kill the process group that was started for a program that still runs."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
