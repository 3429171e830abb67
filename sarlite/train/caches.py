"""The caches of a run's minibatches, in a file of each rank beside the checkpoint: caches-STEP-RANKofRANKS.safetensors.

The checkpoint's metadata say which files are its own: "caches" has the global step, a digest of each rank's rows, and
each file's sha256. A set is written whole before the checkpoint that names it, and the one before is removed after
that, so what is read is whole.
"""

import contextlib
import re

from sarlite.comm import together
from sarlite.comm.wire_arrays import digest
from sarlite.errors import CheckpointError, reading
from sarlite.train import checkpoint, tensorfile

NAMES = re.compile(r"caches-[0-9]+-[0-9]+of[0-9]+\.safetensors")


def _path(folder, step, rank, size):
    return folder / f"caches-{step}-{rank}of{size}.safetensors"


def write(comm, folder, trainer, *, trial=False):
    """Write this rank's file, where the trainer's batches have caches; return what the checkpoint says of all, or None.
    Collective.

    Parameters
    ----------
    comm : Communicator
    folder : Path
        Of the run; a trial makes it where another host has none.
    trainer : Trainer
    trial : bool
        Only find out whether the file could be written.

    Raises
    ------
    CheckpointError
        On every rank: a file cannot be written.

    Notes
    -----
    Memory: 4 bytes a row of this rank's caches, and some MiB: rows are gathered as they are written.
    """
    contents, step = trainer.batches.contents(), trainer.training_step.n_steps
    if not any(comm.allgather(bool(contents))):
        return None
    path = _path(folder, step, comm.rank, comm.size)
    found = together(comm, lambda: _write(path, contents, trial))
    return {"step": step, "rows": _rows(comm, trainer.graph), "files": comm.allgather(found)}


def _write(path, contents, trial):
    if trial:  # later a folder that is missing was removed
        with contextlib.suppress(OSError):  # which writing the file tells of
            path.parent.mkdir(parents=True, exist_ok=True)
    writer = tensorfile.Writer(path, contents, {"format": checkpoint.FORMAT, "sarlite": "{}"})
    with writer.open(trial=trial):
        for name in tensorfile.in_order(contents):
            for rows in contents[name].pieces():
                writer.add(rows)
    return writer.digest


def _rows(comm, graph):
    """Return a digest of each rank's rows, because halo rows are numbered by them."""
    return comm.allgather(digest(graph.dst_ids).hex())


def remove_others(folder, caches, size):
    """Remove the cache files of all checkpoints except the one with the metadata `caches`, which may be None."""
    own = {_path(folder, caches["step"], rank, size).name for rank in range(size)} if caches else set()
    for path in files(folder):
        if path.name not in own:
            with contextlib.suppress(OSError):
                path.unlink()


def files(folder):
    """Return the cache files of all checkpoints in a folder."""
    return [path for path in folder.iterdir() if NAMES.fullmatch(path.name)] if folder.is_dir() else []


def restore(comm, folder, trainer, caches, step):
    """Restore what `write` wrote if it fits; return the reason if caches start empty, else None. Collective.

    Parameters
    ----------
    comm, trainer
    folder : Path
        Of the checkpoint.
    caches : dict or None
        What the checkpoint says of them.
    step : int
        The global step that the run goes on from.

    Raises
    ------
    CheckpointError
        On every rank: a file is not the one that the checkpoint was written with, or does not fit.
    """
    found = caches or {"step": step, "rows": [], "files": []}
    size, rows = len(found["files"]), _rows(comm, trainer.graph)
    path = _path(folder, step, comm.rank, comm.size)
    missing = None in comm.allgather(path.exists() or None)
    reasons = {"the checkpoint has none": not size,
               f"the checkpoint has those of {size} rank{'s' if size > 1 else ''}": size != comm.size,
               "steps count otherwise": found["step"] != step, "rows are divided otherwise": found["rows"] != rows,
               f"files {_path(folder, step, 0, comm.size).name} and following are missing": missing}  # fmt: skip
    reason = next((words for words, holds in reasons.items() if holds), None)
    if reason is None:
        together(comm, lambda: trainer.batches.load_state(_read(path, found["files"][comm.rank])))
    return reason


def _read(path, expected):
    with reading(path, kind=CheckpointError):
        if checkpoint.verify(path) != expected:
            raise CheckpointError(f"{path} is not the file that the checkpoint was written with; without it the caches "
                                  "start empty")
    return checkpoint.load(path)[0]
