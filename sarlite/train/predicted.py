"""The files of predictions: .npy files of all rows, or a table."""

import re
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from sarlite.comm import Communicator, together
from sarlite.data import node_rows, result_table, scratch
from sarlite.errors import ConfigError, writing
from sarlite.files import try_whole
from sarlite.train.link_edges import Linked
from sarlite.train.recommend import NOBODY
from sarlite.types import Array


class Predicted(NamedTuple):
    """A rank's predictions.

    Attributes
    ----------
    places : (k,) int64
        Where the rows stand in the files.
    n : int
        Rows of the files.
    ids : (n,) or (n, 3) int64, or None
        What the rows of a table are of, on rank 0: nodes, by default all by id; or sources, destinations and the
        numbers of their relations; for likeliest destinations, (n, 2), sources and numbers of relations.
    arrays : list of (k, ...) array
        What each file has: maybe labels or likeliest destinations, at last numbers.
    """

    places: Array
    n: int
    ids: Array | None
    arrays: Sequence[Array]


def paths(config: Any, task: str) -> list[str]:
    """Return the files to write: one, or labels, and at last probabilities."""
    one = config.embeddings is not None or (task in ("regress", "link") and config.top is None)
    if one or not config.out.endswith(".npy"):
        return [config.out]
    return [re.sub(r"\.npy$", ".labels.npy", config.out), config.out]


def check_paths(config: Any, task: str) -> None:
    """Raise a ConfigError where a file cannot be written here."""
    for path in reversed(paths(config, task)):
        with writing(path, "out", ConfigError):
            try_whole(path)


def write(comm: Communicator, config: Any, task: str, found: Predicted, of: Linked,
          class_names: list[str] | None) -> None:
    """Write predictions into --out, of nodes or of links of `of`. Collective.

    Raises
    ------
    DataError
        On every rank: a file cannot be written. What stood there before is intact.
    """
    if not config.out.endswith(".npy"):
        return _write_table(comm, config, task, found, of, class_names)
    for path, array in zip(paths(config, task), found.arrays):
        node_rows.write(comm, path, found.places, array, found.n)
        if comm.rank == 0:
            width = " x ".join(map(str, array.shape[1:])) or 1
            print(f"{path}: {found.n:,} rows of {width}, {array.dtype}", flush=True)


def _write_table(comm, config, task, found, of, class_names):
    """Write arrays as .npy files in a private folder; rank 0 makes the table of these files. Collective."""
    with ExitStack() as held:
        made = together(comm, lambda: held.enter_context(scratch.beside(config.out)) if comm.rank == 0 else None)
        folder = comm.bcast(None if made is None else str(made))
        files = [f"{folder}/{at}.npy" for at in range(len(found.arrays))]
        for file, array in zip(files, found.arrays):
            node_rows.write(comm, file, found.places, array, found.n)
        links = config.links is not None or config.top is not None
        headings = ("source", *(["relation"] if of.several else []), "destination") if links else ("id",)

        def write():
            *labels, numbers = (np.load(file, mmap_mode="r") for file in files)
            of_rows, labels = found.ids, labels[0] if labels else None
            if config.top is not None:
                of_rows, labels, numbers = _pairs(found.ids, labels, numbers)
            columns = partial(_named_columns, of_rows, of, links)
            result_table.write(config.out, columns, labels, numbers, task, class_names,
                               config.embeddings is not None, headings)
            print(f"{config.out}: {len(numbers):,} rows", flush=True)

        together(comm, lambda: write() if comm.rank == 0 else None)


def _named_columns(ids, of, links, first, last):
    """The columns that say what some rows are of: nodes, or source, destination and between them maybe the relation."""
    numbers = np.arange(first, last) if ids is None else ids[first:last]
    if not links:
        return [_named(numbers, of.ends[0][0])]
    if not of.several:
        return [_named(column, end) for column, end in zip(numbers.T, of.ends[0])]
    found = np.empty((len(numbers), 3), object)
    for at, (name, (source, to)) in enumerate(zip(of.several, of.ends)):
        rows = numbers[:, 2] == at
        found[rows] = np.array([_named(numbers[rows, 0], source), [name] * rows.sum(), _named(numbers[rows, 1], to)],
                               object).T
    return found.T.tolist()


def _named(ids, end):
    return end.names.of(ids) if end.names else ids


def _pairs(heads, tails, scores):
    """The pairs of nodes and their likeliest destinations and the numbers of their relations, (n, 3); no labels; and
    the scores."""
    there = tails != NOBODY
    heads = np.repeat(heads, np.count_nonzero(there, 1), axis=0)
    return np.stack([heads[:, 0], tails[there], heads[:, 1]], 1), None, scores[there]
