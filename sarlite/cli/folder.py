"""Folder of a run: its path, its files, and the checks that no file of the user is overwritten."""

import contextlib
import json
import os
import sys
import time
from pathlib import Path

from sarlite.comm import together
from sarlite.errors import ConfigError, regular
from sarlite.files import atomic_write, no_follow, remove_left
from sarlite.train import caches, checkpoint

FILES = ("config.toml", "metrics.jsonl", checkpoint.NAME, "summary.json")
CONFIG, METRICS, CHECKPOINT, SUMMARY = FILES
KEPT = "kept-{}.safetensors"
"""File name of a checkpoint that `--keep` retains, with a place for its epoch."""
PREDICTIONS = "predictions.npy"
"""File name of the predictions that Correct and Smooth writes."""
ARGUMENT = "run_dir"
SCHEMA = "sarlite_summary"
"""Key of the format version in summary.json, which identifies the file as a summary."""
MARK = "# options of a run of sarlite.train\n"
"""First line of config.toml, which identifies the file as one that a run wrote."""


class Folder:
    """Folder for a run's files: options, metrics, checkpoint and summary. Construction is collective.

    A new run needs a folder without any of these files. A run that is resumed from the checkpoint in its own folder
    continues in that folder. No file is written before `begin`. `close` removes a new folder that is still empty,
    together with its new parent folders.

    Parameters
    ----------
    comm : Communicator
    run_dir : path or None
        Folder to use. None means the folder of the checkpoint, or without a checkpoint a new folder runs/TIME-NAME.
    resume : path or None
        Checkpoint that the run continues from.
    name : str
        NAME in the path of a new folder.

    Attributes
    ----------
    path : Path
        Path of the folder, the same on every rank.
    continues : bool
        True if the run continues in the folder of its checkpoint.
    metrics : text file or None
        The open metrics.jsonl on rank 0, from `begin` to `close`.

    Raises
    ------
    ConfigError
        On every rank: the folder cannot be made, another run uses the folder, or the folder holds a file that this run
        has not written.
    """

    def __init__(self, comm, run_dir, resume, name):
        self._root, self._is_new, self._lock, self.metrics = comm.rank == 0, False, None, None
        self._new_parents: list[Path] = []  # innermost first
        path = together(comm, lambda: self._choose(run_dir, resume, name) if self._root else None)
        self.path = Path(comm.bcast(path))
        self.checkpoint = self.path / CHECKPOINT
        self.continues = comm.bcast(bool(resume) and _same(resume, self.checkpoint))
        try:
            together(comm, lambda: self._check_files() if self._root else None)
        except BaseException:
            self.close()
            raise

    def _choose(self, run_dir, resume, name):
        if run_dir is None and not resume:
            return _new_folder(Path("runs") / f"{time.strftime('%Y%m%d-%H%M%S')}-{name}", self)
        path = Path(run_dir if run_dir is not None else Path(resume).parent)
        with _naming(path):
            self._make_parents(path)
            try:
                path.mkdir()
                self._is_new = True
            except FileExistsError:
                if not path.is_dir():
                    raise
        return path

    def _make_parents(self, path):
        """Make the missing folders above `path`, and record them, so that `close` can remove them."""
        self._new_parents = [parent for parent in path.absolute().parents if not parent.exists()]
        path.parent.mkdir(parents=True, exist_ok=True)

    def _check_files(self):
        self._lock = _lock(self.path)
        remove_left(self.path)
        link = next((path.name for path in self._own_files() if path.is_symlink()), None)
        if self.continues and link is not None:
            raise ConfigError(f"{ARGUMENT} {self.path}: {link} is a symbolic link, and runs write no file through a "
                              "link: put the file itself in its place", ARGUMENT)
        if not self.continues:
            old = next((path.name for path in self._own_files() if os.path.lexists(path)), None)
            if old is not None:
                raise ConfigError(f"{ARGUMENT} {self.path} already holds {old}; name another folder, "
                                  f"or --resume a run's checkpoint", ARGUMENT)
            return
        for name, is_from_run in _RECOGNIZED.items():
            if os.path.lexists(self.path / name) and not _passes(is_from_run, self.path / name):
                raise ConfigError(f"{ARGUMENT} {self.path} holds a {name} that no run wrote; it is not replaced",
                                  ARGUMENT)

    def _own_files(self):
        """Return the paths of the files that a run always writes, and of the caches and kept checkpoints that exist in the folder."""
        return [*(self.path / name for name in (*FILES, PREDICTIONS)), *caches.files(self.path),
                *sorted(self.path.glob(KEPT.format("*")))]

    def kept(self, epoch):
        """Return the path of the checkpoint of `epoch`, which the option --keep retains to the end of the run."""
        return self.path / KEPT.format(f"{epoch:06}")

    def check_other(self, argument, path):
        """Raise a ConfigError if `path`, the output that the option `argument` names, is this folder or a file that the run writes into it.

        Parameters
        ----------
        argument : str
            Name of the option whose value is `path`.
        path : path
            Path of the other output.
        """
        absolute = Path(path).absolute()
        is_reserved = (absolute.name in (*FILES, PREDICTIONS) or caches.NAMES.fullmatch(absolute.name)
                       or absolute.match(KEPT.format("*")))
        if (is_reserved and _same(absolute.parent, self.path)) or _same(absolute, self.path):
            raise ConfigError(f"{argument} {path}: the run writes its own {absolute.name} there; name another path",
                              argument)

    def check_exists(self):
        """Raise a ConfigError if the folder was removed or replaced since the run began. Called on rank 0."""
        with contextlib.suppress(OSError):
            if os.path.samestat(os.fstat(self._lock), os.stat(self.path)):
                return
        raise ConfigError(f"{ARGUMENT} {self.path}: the folder was removed during the run", ARGUMENT)

    def begin(self, options, start):
        """Write `options`, the run's options as TOML, to config.toml, and open metrics.jsonl; lines of epochs after `start`, from
        which a resumed run continues, are removed. Called on rank 0 after the first epoch.

        Parameters
        ----------
        options : str
            Options of the run as TOML.
        start : int
            Epoch that a resumed run continues from. Lines of later epochs are removed from metrics.jsonl.
        """
        with _naming(self.path):
            atomic_write(self.path / CONFIG, (MARK + options).encode(errors="surrogateescape"), new=not self.continues)
            path = self.path / METRICS
            if self.continues:
                lines = _lines_until(path, start)
                if len(lines) < start:
                    print(f"warning: {path}: {start - len(lines)} of the lines of epochs 1 to {start} are missing or damaged, and are "
                          "left out", file=sys.stderr, flush=True)
                atomic_write(path, "".join(line + "\n" for line in lines).encode())
                (self.path / SUMMARY).unlink(missing_ok=True)
            mode = "a" if self.continues else "x"
            self.metrics = open(path, mode, encoding="utf-8", opener=no_follow)  # noqa: SIM115, closed by `close`

    def end(self, summary):
        """Write summary.json, with the contents `summary`, a dict. Called on rank 0."""
        with _naming(self.path):
            atomic_write(self.path / SUMMARY, (json.dumps({SCHEMA: 1, **summary}) + "\n").encode())

    def close(self):
        """Close open files, and remove the folder if nothing was written to it."""
        if self.metrics is not None:
            with contextlib.suppress(OSError):
                self.metrics.close()
        if self._lock is not None:
            os.close(self._lock)
        if self._is_new:
            with contextlib.suppress(OSError):
                for folder in (self.path, *self._new_parents):
                    folder.rmdir()
        self.metrics = self._lock = None


@contextlib.contextmanager
def _naming(path):
    """Return a context that turns an OSError into a ConfigError that names the run's folder `path`."""
    try:
        yield
    except OSError as error:
        where = f" ({error.filename})" if error.filename and Path(error.filename) != path else ""
        raise ConfigError(f"{ARGUMENT} {path}: {error.strerror}{where}", ARGUMENT) from None


def _new_folder(first: Path, folder: Folder) -> Path:
    """Make a new folder for the run's `folder` object and return its path: `first` or, if that exists, the first free one of
    NAME-2, NAME-3, ....
    """
    with _naming(first.parent):
        folder._make_parents(first)
        path, number = first, 1
        while True:  # two runs may start in one second
            try:
                path.mkdir()
                folder._is_new = True
                return path
            except FileExistsError:
                number += 1
                path = first.with_name(f"{first.name}-{number}")


def _same(one, other):
    try:
        return os.path.samefile(one, other)
    except OSError:
        return False


def _lock(path):
    """Lock the folder `path` for this process and return its open descriptor, whose closing frees the lock. Raise a ConfigError if
    another run has the lock. File systems without locks are left unlocked.
    """
    handle = os.open(path, os.O_RDONLY)
    try:
        import fcntl

        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(handle)
        raise ConfigError(f"{ARGUMENT} {path}: another run uses this folder", ARGUMENT) from None
    except (ImportError, OSError):
        pass
    return handle


def _passes(check, path):
    """Return the result of `check(path)`; False if the file `path` cannot be read or parsed."""
    try:
        return check(regular(path))
    except (OSError, ValueError, TypeError, RecursionError):
        return False


def _is_config(path):
    with path.open("rb") as file:
        return file.read(len(MARK)) == MARK.encode()


def _is_metrics(path):
    with path.open("rb") as file:
        line = file.readline(1 << 16)
    return not line or _epoch(line) is not None


def _is_summary(path):
    return path.stat().st_size < 1 << 24 and SCHEMA in json.loads(path.read_bytes())


_RECOGNIZED = {CONFIG: _is_config, METRICS: _is_metrics, SUMMARY: _is_summary}
"""Function for each file that returns True if a run wrote the file."""


def _epoch(line):
    """Return the epoch number in `line`, a line of metrics.jsonl; None if the line is not valid."""
    try:
        epoch = json.loads(line)["epoch"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    return epoch if type(epoch) is int else None


def _lines_until(path, epoch):
    """Return the lines of the metrics.jsonl at `path` up to and including the line of `epoch`. An invalid line, such as an
    incomplete last line, is left out. A line of an epoch that is not after the one before ends the list.
    """
    lines, last = [], 0
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines() if path.exists() else []:
        number = _epoch(line)
        if number is None:
            continue
        if number > epoch or number <= last:
            break
        lines.append(line)
        last = number
    return lines
