"""A data set made ready for the ranks of a run: as it is stored, or divided anew into private scratch."""

import contextlib
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from sarlite.comm import Communicator, together
from sarlite.data import format
from sarlite.data.dataset import Dataset
from sarlite.data.divide import InMemory, divide, make_order, make_parts, record, stored_order
from sarlite.data.spec import load, native_directory
from sarlite.errors import ConfigError
from sarlite.graph import balance as balancing
from sarlite.graph.partition import METHODS
from sarlite.types import Path as AnyPath


@contextlib.contextmanager
def divided(comm: Communicator, spec: AnyPath, *, partition: str = "stored", order: str = "stored", balance: str = "auto", seed: int = 0,
            verify: bool = False, scratch: AnyPath | None = None, **changes: bool | None) -> Iterator[Dataset]:
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
    balance : str
        What METIS makes even, as `graph.partition` takes it; "auto": as stored, else as the degrees say.
    seed : int
    verify : bool
        Compare the files' sha256, on rank 0.
    scratch : path, optional
        Folder in which a private temporary folder is made for what is divided anew, removed as the context ends; every rank must
        see it. By default, and where it lies in the data set itself, the system's.
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
    folder = None
    try:
        dataset, where, folder = together(comm, lambda: _prepare(comm, spec, partition, order, balance, seed, verify, scratch, changes))
        where = comm.bcast(where)
        yield together(comm, lambda: format.open(where) if dataset is None else dataset)
        comm.barrier()
    finally:
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)


def suits(dataset: Dataset, n_parts: int, partition: str, order: str, balance: str = "auto") -> bool:
    """Tell whether a data set as it stands is divided as asked for."""
    stored = dataset.division or {"partition": None}
    same = partition == "stored" or (partition in METHODS and partition == stored["partition"])
    same = same and balance in ("auto", stored.get("balance", "auto"))
    return (n_parts == 1 or (same and dataset.n_parts % n_parts == 0)) and order in ("stored", stored_order(dataset))


def _prepare(comm, spec, partition, order, balance, seed, verify, scratch, changes):
    """On rank 0: the data set, or the directory where all find it, and the folder to remove. Nothing on the others."""
    if comm.rank:
        return None, None, None
    balancing.check(balance)
    if partition not in ("stored", *METHODS) and not Path(partition).exists():
        raise ConfigError(f"partition: {partition!r} is none of stored, {', '.join(METHODS)}, and no such file exists")
    dataset = load(spec, verify=verify, **changes)
    good = suits(dataset, comm.size, partition, order, balance)
    if comm.size == 1:
        return dataset if good else _reordered(dataset, order, seed), None, None
    stored = None if any(changes.values()) else native_directory(spec)
    if good and stored:
        return None, stored, None
    folder = Path(tempfile.mkdtemp(prefix=".sarlite-data-", dir=_outside(scratch, dataset)))
    try:
        _divide(dataset, comm.size, folder / "data", partition, order, balance, seed)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    if stored:
        print(f"{spec}: {dataset.n_parts} stored parts do not serve {comm.size} ranks as asked: divided anew in {folder}, for this run; "
              f"`python -m sarlite.data partition` does it once", file=sys.stderr, flush=True)  # fmt: skip
    return None, str(folder / "data"), folder


def _divide(dataset, n_parts, directory, partition, order, balance, seed):
    stored = (dataset.division or {"partition": "metis"})["partition"]
    method = partition if partition != "stored" else stored if stored in METHODS else "metis"
    parts = make_parts(dataset, n_parts, method, balance=balance, seed=seed)
    kept = stored_order(dataset)
    nodes = make_order(dataset, "stored" if order == kept else order, seed=seed)
    division = record(n_parts, method, kept if order == "stored" else order, seed, balance)
    with format.GraphWriter(directory) as out:
        divide(dataset, parts, n_parts, out, order=nodes, division=division)


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
