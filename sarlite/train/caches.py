"""Files of a run's historical embedding caches (older embeddings of halo rows), next to the checkpoint:
caches-STEP-RANKofRANKS.safetensors.

Each rank writes one file. The entry "caches" of the checkpoint's metadata refers to the files: it has the global step, a
digest of each rank's rows, and each file's SHA-256. All files are written before the checkpoint that refers to them, and
older files are removed after it. So a checkpoint never refers to incomplete files.
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
    """Write this rank's embedding caches to a file in `folder`. Return the entry about all ranks' files for the checkpoint's metadata, None
    if no rank has caches. A `trial` deletes the file again and only tests if the disk has room. Collective.

    Parameters
    ----------
    comm : Communicator
    folder : Path
        Folder of the run. A trial creates the folder on a host that lacks it.
    trainer : Trainer
    trial : bool
        Write a file of the same size and remove it again, to find out whether the disk has room.

    Returns
    -------
    dict or None
        Entry "caches" of the checkpoint's metadata; None if no rank has caches.

    Raises
    ------
    CheckpointError
        On every rank: a file cannot be written.

    Notes
    -----
    Memory: 4 bytes for each row of this rank's caches, and some MiB, because rows are gathered while they are written.
    """
    contents, step = trainer.batches.contents(), trainer.training_step.n_steps
    if not any(comm.allgather(bool(contents))):
        return None
    path = _path(folder, step, comm.rank, comm.size)
    sha256 = together(comm, lambda: _write(path, contents, trial))
    return {"step": step, "rows": _id_digests(comm, trainer.graph), "files": comm.allgather(sha256)}


def _write(path, contents, trial):
    if trial:  # only in a trial: later, a missing folder was removed by somebody
        with contextlib.suppress(OSError):  # writing the file reports the error
            path.parent.mkdir(parents=True, exist_ok=True)
    writer = tensorfile.TensorWriter(path, contents, {"format": checkpoint.FORMAT, "sarlite": "{}"})
    with writer.open(trial=trial):
        for name in tensorfile.in_order(contents):
            for rows in contents[name].pieces():
                writer.add(rows)
    return writer.digest


def _id_digests(comm, graph):
    """Return a list with a digest, for each rank, of the ids of the nodes that it owns. If the list equals the one in a checkpoint, the
    nodes are divided among the ranks as before, so stored caches fit. Collective.
    """
    return comm.allgather(digest(graph.dst_ids).hex())


def remove_others(folder, caches, size):
    """Remove the cache files in `folder` that the checkpoint does not use. `caches` is the entry about cache files in the checkpoint's
    metadata, written on `size` ranks; None means that all files are removed.

    Parameters
    ----------
    folder : Path
        Folder of the run.
    caches : dict or None
        Entry "caches" of the checkpoint's metadata.
    size : int
        Number of ranks.
    """
    names_in_use = {_path(folder, caches["step"], rank, size).name for rank in range(size)} if caches else set()
    for path in files(folder):
        if path.name not in names_in_use:
            with contextlib.suppress(OSError):
                path.unlink()


def files(folder):
    """Return the paths of all files with embedding caches in `folder`; [] if the folder does not exist."""
    return [path for path in folder.iterdir() if NAMES.fullmatch(path.name)] if folder.is_dir() else []


def restore(comm, folder, trainer, caches, step):
    """Load this rank's embedding caches from the files in `folder` that `caches`, an entry of the checkpoint's metadata, lists, to continue
    at the global step `step`. Return None, or the reason why the caches do not fit and start empty. Collective.

    Parameters
    ----------
    comm : Communicator
    folder : Path
        Folder of the checkpoint.
    trainer : Trainer
    caches : dict or None
        Entry "caches" of the checkpoint's metadata.
    step : int
        The global step at which the run continues.

    Returns
    -------
    str or None
        Reason why the caches start empty; None if they were restored.

    Raises
    ------
    CheckpointError
        On every rank: a file was changed after the checkpoint was written, or does not fit the caches.
    """
    recorded = caches or {"step": step, "rows": [], "files": []}
    size, rows = len(recorded["files"]), _id_digests(comm, trainer.graph)
    path = _path(folder, step, comm.rank, comm.size)
    missing = None in comm.allgather(path.exists() or None)
    reasons = {"the checkpoint has none": not size,
               f"the checkpoint has caches of {size} rank{'s' if size > 1 else ''}": size != comm.size,
               "they are of another step": recorded["step"] != step, "rows are divided differently": recorded["rows"] != rows,
               f"files {_path(folder, step, 0, comm.size).name} and following are missing": missing}  # fmt: skip
    reason = next((words for words, holds in reasons.items() if holds), None)
    if reason is None:
        together(comm, lambda: trainer.batches.load_state(_read(path, recorded["files"][comm.rank])))
    return reason


def _read(path, expected):
    with reading(path, kind=CheckpointError):
        if checkpoint.verify(path) != expected:
            raise CheckpointError(f"{path} is not the file that the checkpoint was written with; if it is removed, the "
                                  "caches start empty")
    return checkpoint.load(path)[0]
