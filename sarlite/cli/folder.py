"""The folder of a run: which one it is, and that nothing of the user's in it is changed."""

import contextlib
import json
import os
import time
from pathlib import Path

from sarlite.comm import together
from sarlite.errors import ConfigError, regular
from sarlite.files import no_follow, remove_left, write_whole
from sarlite.train import caches, checkpoint

FILES = ("config.toml", "metrics.jsonl", checkpoint.NAME, "summary.json")
CONFIG, METRICS, CHECKPOINT, SUMMARY = FILES
KEPT = "kept-{}.safetensors"
"""Name of a checkpoint that stays, with the number of its epoch."""
PREDICTIONS = "predictions.npy"
"""What Correct and Smooth leaves."""
ARGUMENT = "run_dir"
SCHEMA = "sarlite_summary"
"""The key of a summary's version, by which a summary is known."""
MARK = "# options of a run of sarlite.train\n"


class Folder:
    """Folder for a run's `FILES`. Construction is collective.

    A new run needs a folder without any of these files. A run that is resumed from the checkpoint in its own folder
    continues there. Nothing is written before `begin`. A folder that was made and stayed empty is removed, with its new
    parent folders.

    Parameters
    ----------
    comm : Communicator
    run_dir : path or None
        Folder to use; None for a new folder runs/TIME-NAME, or for the folder of the checkpoint.
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
    metrics : text file
        Open metrics file on rank 0, from `begin` on.

    Raises
    ------
    ConfigError
        On every rank: the folder cannot be made, another run works in it, or it holds a file that is not this run's.
    """

    def __init__(self, comm, run_dir, resume, name):
        self._root, self._made, self._lock, self.metrics = comm.rank == 0, False, None, None
        self._new_parents: list[Path] = []  # innermost first
        path = together(comm, lambda: self._choose(run_dir, resume, name) if self._root else None)
        self.path = Path(comm.bcast(path))
        self.checkpoint = self.path / CHECKPOINT
        self.continues = comm.bcast(bool(resume) and _same(resume, self.checkpoint))
        try:
            together(comm, lambda: self._refuse_others() if self._root else None)
        except BaseException:
            self.close()
            raise

    def _choose(self, run_dir, resume, name):
        if run_dir is None and not resume:
            return _new_folder(Path("runs") / f"{time.strftime('%Y%m%d-%H%M%S')}-{name}", self)
        path = Path(run_dir if run_dir is not None else Path(resume).parent)
        with _told(path):
            self._make_parents(path)
            try:
                path.mkdir()
                self._made = True
            except FileExistsError:
                if not path.is_dir():
                    raise
        return path

    def _make_parents(self, path):
        """Make the folders above `path`, and record the new ones."""
        self._new_parents = [parent for parent in path.absolute().parents if not parent.exists()]
        path.parent.mkdir(parents=True, exist_ok=True)

    def _refuse_others(self):
        self._lock = _lock(self.path)
        remove_left(self.path)
        link = next((path.name for path in self._own_files() if path.is_symlink()), None)
        if self.continues and link is not None:
            raise ConfigError(f"{ARGUMENT} {self.path}: {link} is a symbolic link, which nothing is written through: "
                              "put the file itself there", ARGUMENT)
        if not self.continues:
            found = next((path.name for path in self._own_files() if os.path.lexists(path)), None)
            if found is not None:
                raise ConfigError(f"{ARGUMENT} {self.path} already holds {found}; name another folder, "
                                  f"or --resume a run's checkpoint", ARGUMENT)
            return
        for name, is_ours in _OURS.items():
            if os.path.lexists(self.path / name) and not _reads(is_ours, self.path / name):
                raise ConfigError(f"{ARGUMENT} {self.path} holds a {name} that no run wrote; it is not replaced",
                                  ARGUMENT)

    def _own_files(self):
        """Return the paths of the files that a run writes, and of the caches that are there."""
        return [*(self.path / name for name in (*FILES, PREDICTIONS)), *caches.files(self.path),
                *sorted(self.path.glob(KEPT.format("*")))]

    def kept(self, epoch):
        """Return the path of the checkpoint of an epoch that `--keep` keeps."""
        return self.path / KEPT.format(f"{epoch:06}")

    def check_other(self, argument, path):
        """Raise a ConfigError if an output, the value of `argument`, is the folder or a file that the run writes."""
        absolute = Path(path).absolute()
        own = (absolute.name in (*FILES, PREDICTIONS) or caches.NAMES.fullmatch(absolute.name)
               or absolute.match(KEPT.format("*")))
        if (own and _same(absolute.parent, self.path)) or _same(absolute, self.path):
            raise ConfigError(f"{argument} {path}: the run writes its own {absolute.name} there; name another path",
                              argument)

    def check_there(self):
        """Raise a ConfigError if the folder was removed or replaced since the run began. On rank 0."""
        with contextlib.suppress(OSError):
            if os.path.samestat(os.fstat(self._lock), os.stat(self.path)):
                return
        raise ConfigError(f"{ARGUMENT} {self.path}: the folder was removed during the run", ARGUMENT)

    def begin(self, options, start):
        """Write the options and open the metrics, as the first epoch has ended well. On rank 0.

        Parameters
        ----------
        options : str
            TOML.
        start : int
            Metrics of epochs up to this one stay; a run that is resumed writes the others again.
        """
        with _told(self.path):
            write_whole(self.path / CONFIG, (MARK + options).encode(errors="surrogateescape"), new=not self.continues)
            path = self.path / METRICS
            if self.continues:
                write_whole(path, "".join(line + "\n" for line in _lines_until(path, start)).encode())
                (self.path / SUMMARY).unlink(missing_ok=True)
            mode = "a" if self.continues else "x"
            self.metrics = open(path, mode, encoding="utf-8", opener=no_follow)  # noqa: SIM115, closed by `close`

    def end(self, summary):
        """Leave what the run has counted, a dict, as it has ended. On rank 0."""
        with _told(self.path):
            write_whole(self.path / SUMMARY, (json.dumps({SCHEMA: 1, **summary}) + "\n").encode())

    def close(self):
        """Close open files, and remove the folder if nothing was written to it."""
        if self.metrics is not None:
            with contextlib.suppress(OSError):
                self.metrics.close()
        if self._lock is not None:
            os.close(self._lock)
        if self._made:
            with contextlib.suppress(OSError):
                for folder in (self.path, *self._new_parents):
                    folder.rmdir()
        self.metrics = self._lock = None


@contextlib.contextmanager
def _told(path):
    try:
        yield
    except OSError as error:
        where = f" ({error.filename})" if error.filename and Path(error.filename) != path else ""
        raise ConfigError(f"{ARGUMENT} {path}: {error.strerror}{where}", ARGUMENT) from None


def _new_folder(first, folder):
    """Make the first that is free of NAME, NAME-2, ... : of two runs in one second each gets its own."""
    with _told(first.parent):
        folder._make_parents(first)
        path, number = first, 1
        while True:
            try:
                path.mkdir()
                folder._made = True
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
    """Lock the folder for this process, if the file system supports locks."""
    handle = os.open(path, os.O_RDONLY)
    try:
        import fcntl

        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(handle)
        raise ConfigError(f"{ARGUMENT} {path}: another run works in it", ARGUMENT) from None
    except (ImportError, OSError):
        pass
    return handle


def _reads(is_ours, path):
    try:
        return is_ours(regular(path))
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


_OURS = {CONFIG: _is_config, METRICS: _is_metrics, SUMMARY: _is_summary}
"""Whether a run wrote a file."""


def _epoch(line):
    """Return the epoch of a line of metrics; None if the line is not valid."""
    try:
        epoch = json.loads(line)["epoch"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    return epoch if type(epoch) is int else None


def _lines_until(path, epoch):
    """Return the complete lines of epochs up to `epoch`; a killed run may end in the middle of a line."""
    kept, last = [], 0
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines() if path.exists() else []:
        found = _epoch(line)
        if found is None or found > epoch or found <= last:
            break
        kept.append(line)
        last = found
    return kept
