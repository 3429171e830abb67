"""Programs in any language as functions under test: inputs and results are files, and each call is a process."""

import os
import shlex
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from sarlite.errors import ConfigError, SarliteError, one_line
from sarlite.oracle import npy, part_files, sarcase
from sarlite.oracle.call import CallFailure, Unsupported
from sarlite.oracle.case import Case
from sarlite.oracle.finding import SavedCase, Verdict
from sarlite.oracle.parts import RankPart
from sarlite.types import Array

T = TypeVar("T")
SKIPPED = 77  # exit status by which a program refuses a case, as in Automake's tests
_ERROR_BYTES = 400  # bytes from the end of a failing program's standard error that a finding quotes


class ExternalProgram:
    """Command that acts as function under test: `run` and `vjp` are for `check`, `run_ranks` for `check_ranks`. Each call of a
    method runs the command once.

    Parameters
    ----------
    command : str
        Words as in a shell; no shell runs them. "{inputs}" is replaced by the directory of the case: a .sarcase, or
        what `write_parts` writes. "{outputs}" is replaced by an empty directory, with one folder for each rank
        ("rank-0" and so on) in a run on several ranks, and "{ranks}" by the number of ranks. The program writes
        `NAME.npy` into "{outputs}" for each output and, if the case has `cotangents`, `dNAME.npy` for each gradient.
        Exit status 77 refuses a case.
    outputs : tuple of str
        Names of the operation's outputs.
    time_limit : float
        Seconds of one call; then the program is killed with all processes that it has started.

    Raises
    ------
    ConfigError
        The command lacks "{inputs}" or "{outputs}", or there is no such program.
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
            raise ConfigError(f"--command: {self.words[0]!r} is not an executable program")
        self.outputs, self.time_limit = outputs, time_limit

    def run(self, case: Case) -> dict[str, Array]:
        """Run the program on a case, and return the outputs that it writes, as arrays by name."""
        results = self._results(SavedCase(case))
        return {name: results[name] for name in self._written(results, self.outputs)}

    def vjp(self, case: Case, g: Array | Mapping[str, Array]) -> dict[str, Array]:
        """Run the program on a case and `g`, the gradients of its outputs; return the input gradients that it writes, by name."""
        cotangents = g if isinstance(g, Mapping) else {self.outputs[0]: g}
        results = self._results(SavedCase(case, cotangents))
        names = [name for name in (*case.arrays, *case.state) if f"d{name}" in results]
        self._written(results, [f"d{name}" for name in names] or [f"d{next(iter(case.arrays))}"])
        return {name: results[f"d{name}"] for name in names}

    def run_ranks(self, parts: Sequence[RankPart]) -> list[dict[str, object]]:
        """Run the program once for all ranks, with one of `parts` as each rank's inputs, and return each rank's results by name. A
        run beyond the time limit ends the check.
        """
        try:
            return self._exchange(lambda folder: part_files.write_parts(parts, folder / "parts"),
                                  lambda outputs: part_files.read_results(outputs, parts),
                                  [part_files.folder_of(part) for part in parts], ranks=len(parts))
        except ProgramTimeout as error:
            raise CallFailure(Verdict.LIMIT, str(error), hangs=True) from error

    def _results(self, saved):
        return self._exchange(lambda folder: sarcase.save(saved, folder / "case.sarcase"), npy.read_folder)

    def _written(self, results, names):
        if missing := [name for name in names if name not in results]:
            written = ", ".join(f"{name}.npy" for name in results) or "nothing"
            raise ProgramError(f"wrote no {missing[0]}.npy: {written} is there")
        return names

    def _exchange(self, write: Callable[[Path], Path], read: Callable[[Path], T], folders: Sequence[str] = (),
                  **placeholders: object) -> T:
        """Run the program once: write(folder) writes the inputs to a new folder and returns their path; read(results) then reads
        the program's output folder `results`, and its value is returned. `folders` are subfolders to make in `results` before the
        run. `placeholders` are {word: value} to put in place of each "{word}" in the command line, besides the paths of inputs and
        outputs.
        """
        with tempfile.TemporaryDirectory(prefix="sarlite-oracle-") as name:
            inputs, outputs = write(Path(name)), Path(name) / "results"
            for each in ("", *folders):
                (outputs / each).mkdir()
            self._call(Path(name), {"inputs": inputs, "outputs": outputs, **placeholders})
            return read(outputs)

    def _call(self, folder: Path, placeholders: Mapping[str, object]) -> None:
        """Run the program once, with placeholders[word] for each "{word}" of its command; its standard error goes to a file in `folder`."""
        words = self.words
        for name, value in placeholders.items():
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
            errors.seek(max(0, errors.seek(0, os.SEEK_END) - _ERROR_BYTES))
            said = one_line(errors.read().decode(errors="replace").strip())
        if status == SKIPPED:
            raise Unsupported(said or f"exit status {SKIPPED}")
        if status:
            cause = f"signal {signal.Signals(-status).name}" if status < 0 else f"exit status {status}"
            raise ProgramError(f"{words[0]}: {cause}" + (f": {said}" if said else ""))


class ProgramError(SarliteError):
    """Exception for a program that ended with an error, took too long, or wrote no result."""


class ProgramTimeout(ProgramError, TimeoutError):
    """Exception for a program that took too long, and was killed with all processes that it had started."""
