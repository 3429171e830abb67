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
            process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=errors,
                                       start_new_session=True)
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


    def exchange(self, write: Callable[[Path], Path], read: Callable[[Path], Any], folders: Sequence[str] = (),
                 **places: Any) -> Any:
        """Run it once on files, and return what `read` makes of its results; raises as `call` does.

        Parameters
        ----------
        write : (folder) -> Path
            Writes the inputs, and says where they are.
        read : (folder) -> any
        folders : sequence of str
            What the folder of results has before the command begins.
        """
        with tempfile.TemporaryDirectory(prefix="sarlite-oracle-") as name:
            inputs, outputs = write(Path(name)), Path(name) / "results"
            outputs.mkdir()
            for each in folders:
                (outputs / each).mkdir()
            self.call(Path(name), inputs=inputs, outputs=outputs, **places)
            return read(outputs)


class Program:
    """Runs a command for each case.

    Parameters
    ----------
    command : str
        As of `Command`: `{inputs}` is replaced by the case's directory (a .sarcase), `{outputs}` by an empty one. The
        program writes `NAME.npy` there for each output, and, where the case has `cotangents`, `dNAME.npy` for each
        gradient.
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
        found = self._results(Saved(case))
        return {name: found[name] for name in self._written(found, self.outputs)}

    def vjp(self, case: Case, g: Any) -> dict[str, Array]:
        cotangents = g if isinstance(g, Mapping) else {self.outputs[0]: g}
        found = self._results(Saved(case, cotangents))
        known = [name for name in (*case.arrays, *case.state) if f"d{name}" in found]
        self._written(found, [f"d{name}" for name in known] or [f"d{next(iter(case.arrays))}"])
        return {name: found[f"d{name}"] for name in known}

    def _results(self, saved):
        return self.command.exchange(lambda folder: sarcase.save(saved, folder / "case.sarcase"), npy.read_folder)

    def _written(self, found, names):
        if missing := [name for name in names if name not in found]:
            there = ", ".join(f"{name}.npy" for name in found) or "nothing"
            raise ProgramError(f"wrote no {missing[0]}.npy: {there} is there")
        return names


class RanksProgram:
    """A run for `check_ranks` that starts a command once for each case and division.

    Parameters
    ----------
    command : str
        As of `Command`, with `{ranks}` replaced by their number; `{outputs}` is a folder that has an empty one a rank,
        "rank-0" and so on.
    time_limit : float
        Seconds of one run. One that takes longer ends the check.

    Raises
    ------
    ConfigError
        As of `Command`.
    """

    def __init__(self, command: str, time_limit: float = 60.0) -> None:
        self.command = Command(command, time_limit)

    def __call__(self, parts: Sequence[Part]) -> list[dict[str, Any]]:
        def write(folder):
            return part_files.write_parts(parts, folder / "parts")

        def read(outputs):
            return part_files.read_results(outputs, parts)

        try:
            return self.command.exchange(write, read, [part_files.folder_of(part) for part in parts], ranks=len(parts))
        except ProgramTimeout as error:
            raise Failure(Verdict.WRONG, str(error), hangs=True) from error


def _end(process):
    """Kill the process group that was started for a program that still runs."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


class ProgramError(SarliteError):
    """A program ended with an error, took too long, or left no result."""


class ProgramTimeout(ProgramError):
    """A program took too long, and was killed with all that it had started."""
