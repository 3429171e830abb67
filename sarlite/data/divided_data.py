"""Data sets prepared for the ranks of a run: as stored, or divided anew into a private temporary folder."""

import contextlib
import os
import sys
import tempfile
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from sarlite.comm import Communicator, agree, together
from sarlite.comm.wire_arrays import digest
from sarlite.command import show
from sarlite.data import format, npyfile
from sarlite.data import scratch as scratches
from sarlite.data.assignment import make_order, plan
from sarlite.data.dataset import Dataset
from sarlite.data.divide import divide, in_memory, record, stored_order
from sarlite.data.spec import load, native_directory, source_path
from sarlite.errors import ConfigError
from sarlite.files import private_folder
from sarlite.progress import SILENT, Progress
from sarlite.structure import balance as balancing
from sarlite.structure.partition import METHODS
from sarlite.types import JsonDict
from sarlite.types import Path as AnyPath


class DivisionRequest(NamedTuple):
    """User's request for the division of a data set: the data set's spec, the methods that divide and order its nodes, the counts
    to balance, and the seed.
    """

    spec: AnyPath
    partition: str
    order: str
    balance: str
    seed: int


@contextlib.contextmanager
def divided(comm: Communicator, spec: AnyPath, *, partition: str = "stored", order: str = "stored",
            balance: str = "auto", seed: int = 0, verify: bool = False, scratch: AnyPath | None = None,
            progress: Progress = SILENT, seconds: dict[str, float] | None = None, task: str | None = None,
            allow_empty: Collection[str] = (), relational: bool = False, transforms: Mapping[str, JsonDict] | None = None,
            **changes: bool | None) -> Iterator[Dataset]:
    """Return a context that yields the data set `spec`, memory-mapped, with as many parts as `comm` has ranks. `partition`, `order` and
    `balance` say how nodes are divided (by default as stored, if that fits), in a temporary folder below `scratch`. `verify` compares
    checksums; `task`, `allow_empty`, `relational`, `transforms` and `changes` are arguments of `load`. Collective.

    Parameters
    ----------
    comm : Communicator
    spec : str
        As for `load`. A native directory is used as it is if its number of parts is a multiple of the number of ranks.
    partition : str
        "stored" takes the stored parts, or divides by METIS if they do not fit. A method of `graph.partition`, or a file
        with one part per node, makes rank 0 divide the data anew unless they are stored so. One rank needs no division.
    order : {"stored", "none", "metis", "cluster"}
        Order of the rows within a part: as stored, ascending ids, or by a method of `graph.order`.
    balance : str
        Counts that METIS balances, as for `graph.partition`. "auto" takes the stored parts as they are, and otherwise
        chooses the counts by the degrees.
    seed : int
    verify : bool
        If True, compare the sha256 of the files. Ranks that see the same native directory divide the work.
    scratch : path, optional
        Folder for a private temporary folder with data that are divided anew, which is removed when the context ends.
        Every rank must see it. By default, or if it lies inside the data set's directory, the system's folder is used.
    progress : Progress
        Rank 0's object shows the progress of rank 0.
    seconds : dict, optional
        On rank 0 the time for computing the parts is stored under "partition", in seconds.
    task, allow_empty, relational, transforms, **changes
        As for `load`.

    Yields
    ------
    Dataset
        Data set with one part per rank, or the same number of neighbouring parts for each rank; `Part` reads them.

    Raises
    ------
    SarliteError
        On all ranks together; also if ranks see different data sets under the same path, as on two hosts. Any other
        exception of one rank is a PeerError on the other ranks.

    Notes
    -----
    Only rank 0 holds a whole edge list, while it reads or generates data that are no native directory, and O(n_nodes)
    integers, while it divides the data. One rank does this in memory.

    Examples
    --------
    Two ranks get the two halves of a generated graph:

    >>> from sarlite import data
    >>> from sarlite.comm import threads
    >>> def first_ids(comm):
    ...     with data.divided(comm, "sbm:nodes=100,features=8,seed=1", partition="contiguous") as dataset:
    ...         return dataset.n_parts, data.Part(dataset, comm.rank, comm.size).node_ids()[:3].tolist()
    >>> threads.run(2, first_ids)
    [(2, [0, 1, 2]), (2, [50, 51, 52])]
    """
    with contextlib.ExitStack() as held:
        native = comm.bcast(together(comm, lambda: _native(held, spec) if comm.rank == 0 else None))
        files = _files_to_verify(comm, native) if verify and native else None
        request = DivisionRequest(spec, partition, order, balance, seed)

        if files is not None:
            together(comm, lambda: _verify(files, progress if comm.rank == 0 else SILENT))

        def prepare():
            if comm.rank:
                return None, None
            load_options = {"task": task, "allow_empty": allow_empty, "relational": relational, "transforms": transforms}
            return _prepare(comm.size, held, request, native, verify and files is None, scratch, progress, seconds, load_options, changes)

        dataset, where = together(comm, prepare)
        where = comm.bcast(where)
        opened, meta = together(comm, lambda: (dataset, None) if where is None else (format.open(where), format.read_meta(where)))
        agree(comm, meta, f"{where}: the data set, as meta.json describes it,")
        yield opened
        comm.barrier()


def suits(dataset: Dataset, n_parts: int, partition: str, order: str, balance: str = "auto") -> bool:
    """Return True if the stored parts of `dataset` can serve as `n_parts` parts, and were made with the requested `partition`,
    `order` and `balance`; "stored" and "auto" accept any.
    """
    stored = dataset.division or {"partition": None}
    same = partition == "stored" or (partition in METHODS and partition == stored["partition"])
    same = same and balance in ("auto", stored.get("balance", "auto"))
    return (n_parts == 1 or (same and dataset.n_parts % n_parts == 0)) and order in ("stored", stored_order(dataset))


def _native(exit_stack, spec):
    """Return the directory in the native format that `spec` names, locked for reading until `exit_stack` closes; None for any other
    spec.
    """
    directory = native_directory(spec)
    if directory is not None:
        exit_stack.enter_context(scratches.locked(Path(directory) / format.META, exclusive=False))
    return directory


def _verify(files, progress):
    """Raise a DataError for the first of `files` whose sha256 differs from its record in meta.json. A file is (path, record, field): record
    has the sha256, and field is the name of the array for the message.
    """
    sizes = [os.path.getsize(path) for path, *_ in files]
    with progress.step("compare checksums", sum(sizes)) as step:
        for file, size in zip(files, sizes):
            npyfile.verify(*file)
            step.add(size)


def _files_to_verify(comm, directory):
    """Return the files of the data set in `directory` whose sha256 this rank compares. Ranks that see the same files divide the
    work among them. Collective.
    """
    files = together(comm, lambda: [(*file, os.stat(file[0])) for file in format.files(directory)])
    seen = digest([(field, stat.st_ino, stat.st_size, stat.st_mtime_ns) for _, _, field, stat in files])
    group = [rank for rank, other in enumerate(comm.allgather(seen)) if other == seen]
    loads, mine = dict.fromkeys(group, 0), []
    for *file, stat in sorted(files, key=lambda file: -file[3].st_size):
        rank = min(group, key=loads.__getitem__)
        loads[rank] += stat.st_size
        mine += [file] if rank == comm.rank else []
    return mine


def _prepare(n_ranks, exit_stack, request, stored_directory, verify, scratch_folder, progress, seconds, load_options, graph_changes):
    """Load the data set of `request`, a DivisionRequest, and divide it for `n_ranks` ranks, unless its stored parts can serve. Return (data
    set in memory, None) for one rank, else (None, directory that all ranks map): `stored_directory`, or a folder below `scratch_folder`.
    `verify`, `load_options` and `graph_changes` are arguments of `load`.

    `exit_stack` keeps locks and temporary folders until it is closed.
    """
    spec, partition = request.spec, request.partition
    balancing.check(request.balance)
    if partition not in ("stored", *METHODS) and not os.path.exists(partition):
        raise ConfigError(f"partition: {partition!r} is not one of stored, {', '.join(METHODS)}, and no such file exists")
    with progress.step(f"read {spec}", reads=source_path(spec)):
        dataset = load(spec, verify=verify, **load_options, **graph_changes)
    good = suits(dataset, n_ranks, partition, request.order, request.balance)
    if n_ranks == 1:
        return dataset if good else _reordered(dataset, request.order, request.seed), None
    stored = None if any(graph_changes.values()) else stored_directory
    if good and stored:
        return None, stored
    folder = exit_stack.enter_context(_scratch(_outside(scratch_folder, dataset) or tempfile.gettempdir()))
    _divide(dataset, n_ranks, folder / "data", request, progress, seconds)
    if stored:
        parts = f"{dataset.n_parts} part{'s' if dataset.n_parts > 1 else ''}"
        show(f"{spec}: stored in {parts}, which do not fit these options and {n_ranks} ranks: divided for this run, in {folder}; "
             f"to divide the data once for all runs: python -m sarlite.data partition {spec} --parts {n_ranks}", sys.stderr)
    return None, str(folder / "data")


@contextlib.contextmanager
def _scratch(parent):
    """Yield a new temporary folder in `parent` that only this user can read. It is removed when the context ends."""
    try:
        context = contextlib.ExitStack()
        folder = context.enter_context(private_folder(parent, 0o700))
    except OSError as error:
        raise ConfigError(f"{parent}: no scratch can be made here: {error.strerror or error}") from error
    with context:
        yield folder


def _divide(dataset, n_parts, directory, request, progress, seconds):
    """Write `dataset` to `directory` in `n_parts` parts, divided and ordered by the methods in `request`, a DivisionRequest. The dict
    `seconds` receives the computing time.
    """
    stored = (dataset.division or {"partition": "metis"})["partition"]
    method = request.partition if request.partition != "stored" else stored if stored in METHODS else "metis"
    order = "stored" if request.order == stored_order(dataset) else request.order
    parts, nodes, division = plan(dataset, n_parts, method, order, balance=request.balance, seed=request.seed,
                                  progress=progress, seconds=seconds)
    with (progress.step("write the parts", dataset.n_bytes) as step, format.GraphWriter(directory, step=step) as out):
        divide(dataset, parts, n_parts, out, order=nodes, division=division)


def _reordered(dataset, order, seed):
    """Return `dataset` in memory, in one part, with its rows in the order of the method `order`, such as "metis"."""
    nodes = make_order(dataset, order, seed=seed)
    return in_memory(dataset, order=nodes, division=record(1, "contiguous", order, seed))


def _outside(scratch, dataset):
    """Return the folder `scratch` for temporary files, or None if it lies inside the data set's directory, where no other files may be."""
    data_folder = dataset.directory and Path(dataset.directory).resolve()
    inside = scratch is not None and data_folder and Path(scratch).resolve().is_relative_to(data_folder)
    return None if inside else scratch
