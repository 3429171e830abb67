"""A data set made ready for the ranks of a run: as it is stored, or divided anew into private scratch."""

import contextlib
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from sarlite.comm import Communicator, together
from sarlite.data import format
from sarlite.data.dataset import Dataset
from sarlite.data.divide import InMemory, divide, make_order, make_parts, record, stored_order
from sarlite.data.spec import load, native_directory
from sarlite.errors import ConfigError
from sarlite.graph.partition import METHODS
from sarlite.types import Path as AnyPath

SCRATCH = ".sarlite-data-"


@contextlib.contextmanager
def divided(comm: Communicator, spec: AnyPath, *, partition: str = "stored", order: str = "stored", seed: int = 0, verify: bool = False,
            scratch: AnyPath | None = None, seconds: dict[str, float] | None = None, **changes: bool | None) -> Iterator[Dataset]:
    """Map a data set, divided for the ranks of `comm`, for as long as the context lasts. Collective.

    Parameters
    ----------
    comm : Communicator
    spec : str
        As `load` takes it. A native directory of a multiple of as many parts as there are ranks is used as it is.
    partition : str
        "stored": as it is divided, else by METIS; a method of `graph.partition`, or a file of one part a node: divided anew by rank 0
        where it is not stored so. On one rank nothing is divided.
    order : {"stored", "none", "metis"}
        The order of a part's rows: as stored, ascending ids, or by METIS.
    seed : int
    verify : bool
        Compare the files' sha256, on rank 0.
    scratch : path, optional
        Folder in which a private temporary folder is made for what is divided anew, removed as the context ends; every rank must
        see it. By default, and where it lies in the data set itself, the system's.
    seconds : dict, optional
        On rank 0, how long making the parts took is put under "partition".
    **changes
        As for `load`.

    Yields
    ------
    Dataset
        Whose parts are the ranks', or several neighbours one rank's; take a `Part` of it.

    Raises
    ------
    SarliteError
        On every rank together. Any other exception of rank 0 is a PeerError on the others.

    Notes
    -----
    Rank 0 alone holds a whole edge list, while it reads or generates what is no native directory, and O(n_nodes) integers, while it
    divides; on one rank that is done in memory.
    """
    with contextlib.ExitStack() as stack:
        dataset, where = together(comm, lambda: _prepare(comm, spec, partition, order, seed, verify, scratch, changes, seconds, stack))
        where = comm.bcast(where)
        yield together(comm, lambda: format.open(where) if dataset is None else dataset)
        comm.barrier()


def suits(dataset: Dataset, n_parts: int, partition: str, order: str) -> bool:
    """Tell whether a data set as it stands is divided as asked for."""
    stored = dataset.division or {"partition": None}
    same = partition == "stored" or (partition in METHODS and partition == stored["partition"])
    return (n_parts == 1 or (same and dataset.n_parts % n_parts == 0)) and order in ("stored", stored_order(dataset))


def _prepare(comm, spec, partition, order, seed, verify, scratch, changes, seconds, stack):
    """On rank 0: the data set, or the directory where all find it. `stack` removes what is made. Nothing on the others."""
    if comm.rank:
        return None, None
    if partition not in ("stored", *METHODS) and not Path(partition).exists():
        raise ConfigError(f"partition: {partition!r} is none of stored, {', '.join(METHODS)}, and no such file exists")
    dataset = load(spec, verify=verify, **changes)
    good = suits(dataset, comm.size, partition, order)
    if comm.size == 1:
        return dataset if good else _reordered(dataset, order, seed), None
    stored = None if any(changes.values()) else native_directory(spec)
    if good and stored:
        return None, stored
    folder = _private_folder(_outside(scratch, dataset), stack)
    _divide(dataset, comm.size, folder / "data", partition, order, seed, seconds)
    if stored:
        print(f"{spec}: {dataset.n_parts} stored parts do not serve {comm.size} ranks as asked: divided anew in {folder}, for this run; "
              f"`python -m sarlite.data partition` does it once", file=sys.stderr, flush=True)  # fmt: skip
    return None, str(folder / "data")


def _private_folder(parent, stack):
    """A new folder in `parent`, which `stack` removes; those that killed processes left go first: one that lives holds a lock."""
    parent = Path(tempfile.gettempdir() if parent is None else parent)
    for left in parent.glob(SCRATCH + "*"):
        if (handle := _locked(left)) is not None:
            shutil.rmtree(left, ignore_errors=True)
            os.close(handle)
    while True:
        folder = Path(tempfile.mkdtemp(prefix=SCRATCH, dir=parent))
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        if (handle := _locked(folder)) is not None:
            stack.callback(os.close, handle)
        if folder.exists():  # else another process took it for a killed one's before it was locked
            return folder


def _locked(folder):
    """A handle of a folder that holds a lock on it; None where a process that lives has it, or where there are no locks."""
    try:
        import fcntl

        handle = os.open(folder, os.O_RDONLY)
    except (ImportError, OSError):
        return None
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(handle)
        return None
    return handle


def _divide(dataset, n_parts, directory, partition, order, seed, seconds):
    stored = (dataset.division or {"partition": "metis"})["partition"]
    method = partition if partition != "stored" else stored if stored in METHODS else "metis"
    begin = time.perf_counter()
    parts = make_parts(dataset, n_parts, method, seed=seed)
    if seconds is not None:
        seconds["partition"] = time.perf_counter() - begin
    kept = stored_order(dataset)
    nodes = make_order(dataset, "stored" if order == kept else order, seed=seed)
    with format.GraphWriter(directory) as out:
        divide(dataset, parts, n_parts, out, order=nodes, division=record(n_parts, method, kept if order == "stored" else order, seed))


def _reordered(dataset, order, seed):
    nodes = make_order(dataset, order, seed=seed)
    sink = InMemory(dataset.source)
    divide(dataset, make_parts(dataset, 1, "contiguous"), 1, sink, order=nodes, division=record(1, "contiguous", order, seed))
    return sink.dataset


def _outside(scratch, dataset):
    """The folder to make scratch in: never one of the data set's own."""
    if scratch is None or (dataset.directory and Path(scratch).resolve().is_relative_to(Path(dataset.directory).resolve())):
        return None
    return scratch
