"""Requests for predictions, read from a file of nodes or pairs, and the files that predictions are written to."""

import re
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from sarlite.comm import Communicator, together
from sarlite.command import show
from sarlite.data import node_rows, result_table, scratch, textfile
from sarlite.errors import ConfigError, DataError, writing
from sarlite.files import try_whole
from sarlite.graph.link_graph import LinkGraph
from sarlite.tasks.link_edges import Ends, Linked
from sarlite.tasks.link_files import read_links, read_negatives
from sarlite.tasks.negatives import AT_ONCE, RowNumbers
from sarlite.tasks.recommend import NOBODY
from sarlite.types import Array

_HITS = (20, 50, 100)


class Asked(NamedTuple):
    """Predictions requested from this rank: nodes that it owns, or pairs whose sources it owns.

    Attributes
    ----------
    places : (k,) int64
        Positions in the file; pairs from n on are its negatives.
    n : int
        Number of nodes or pairs in the file, without negatives.
    ids : (n,) or (n, 3) int64, or None
        Contents of the file on rank 0: nodes, or sources, destinations and relation numbers. None for all nodes, by id.
    rows : (k,) int64, optional
        Local rows of the nodes.
    graph : LinkGraph, optional
        Graph of the pairs, with one candidate per row.
    per_link : int, optional
        Number of negatives of each pair; 0 if all pairs share them; None without negatives.
    """

    places: Array
    n: int
    ids: Array | None
    rows: Any = None
    graph: LinkGraph | None = None
    per_link: int | None = None

    def judged(self, comm: Communicator, scores: Array) -> dict[str, float]:
        """Return the metrics of OGB's evaluators for the scores, (k,), of links and negatives, by name. Collective.

        If all links share the negatives, Hits@K is the share of links above the K-th highest score of the negatives. If
        each link has its own negatives, MRR is the mean reciprocal rank of a link among them, where ties count half,
        and Hits@K is the share of ranks up to K. A NaN counts against the link. Hits@K is left out if there are fewer
        than K shared negatives.
        """
        n_own = np.count_nonzero(self.places < self.n)  # places ascend
        links, others = np.split(scores.astype(np.float64), [n_own])
        if self.per_link:
            others, links = others.reshape(n_own, self.per_link), links[:, None]  # all of a source are its owner's
            ranks = 1 + np.sum(~(others <= links), 1) + 0.5 * np.sum(others == links, 1)
            found = {"mrr": 1 / ranks, **{f"hits@{k}": ranks <= k for k in (1, 3, 10)}}
        else:
            best = np.sort(np.concatenate(comm.allgather(np.sort(others)[-max(_HITS) :])))
            found = {f"hits@{k}": links > best[-k] for k in _HITS if k <= len(best)}
        sums = comm.allreduce(np.array([0, *(np.sum(own) for own in found.values())], np.float64))[1:]
        return dict(zip(found, (sums / max(self.n, 1)).tolist()))


def nodes(comm: Communicator, file: str | None, end: Ends, graph: Any, at_once: int) -> Asked:
    """Return the nodes of a file that this rank owns, by default all of one end of links, by id. Collective.

    The file has an id of the data a line, or is .npy; of nodes with names it has a name a line. The encoder computes on
    `graph`. Rank 0 sends `at_once` ids at a time.

    Raises
    ------
    DataError
        On every rank, naming the file and the entry: it cannot be read, or an entry is no node.
    """
    ids = np.asarray(graph.dst_ids) - end.first
    if file is None:
        rows = np.flatnonzero((ids >= 0) & (ids < end.n))
        return Asked(ids[rows], end.n, None, rows)
    found = together(comm, lambda: _read_nodes(file, end) if comm.rank == 0 else None)
    n = comm.bcast(None if found is None else len(found))
    places, rows, _ = _own(comm, ids, n, at_once, None if found is None else lambda some: found[some, None].copy())
    return Asked(places, n, found, rows)


def _read_nodes(file, end):
    if end.names is not None and Path(file).suffix != ".npy":
        return end.names.read(file, "nodes")
    found = textfile.read(file, "nodes", np.int64)
    if found.dtype.kind not in "iu" or (found.size and found.shape[1] != 1):
        raise DataError(f"{file}: nodes: expected one whole number a line, found {found.shape[1]} columns of "
                        f"{found.dtype}")
    found = found.reshape(-1)
    bad = np.flatnonzero((found < 0) | (found >= end.n))
    if len(bad):
        raise DataError(f"{file}: nodes: entry {bad[0]} is {found[bad[0]]}, outside 0 <= node < {end.n}")
    return found.astype(np.int64)


def pairs(comm: Communicator, file: str, of: Linked, graph: Any, at_once: int, with_negatives: bool) -> Asked:
    """Return the pairs of a file whose sources this rank owns, and the negatives that OGB's `.pt` may have, where they
    are wanted. Collective; raises as `read_links`.

    The encoder computes on `graph`. Rank 0 sends `at_once` pairs at a time.

    Notes
    -----
    Memory: about 145 bytes a pair, negatives too, on rank 0 while the file is read; then about 48 a pair of
    a rank's own.
    """

    def read():
        found = read_links(file, of)
        more, per_link = found[:0, :2], None
        if with_negatives and file.endswith(".pt"):
            more, per_link = read_negatives(file, of.ends[0])
        return np.concatenate([found, np.pad(more, ((0, 0), (0, 1)))]), len(found), per_link

    every, *told = together(comm, lambda: read() if comm.rank == 0 else (None, 0, None))
    n_links, per_link, n = comm.bcast((*told, None if every is None else len(every)))
    first = np.array([[one.first, other.first, 0] for one, other in of.ends])
    places, rows, own = _own(comm, graph.dst_ids, n, at_once,
                             None if every is None else lambda some: every[some] + first[every[some, 2]], 3)
    tails, relations = RowNumbers(comm, graph.dst_ids)(own[:, 1]), own[:, 2].copy() if of.several else None
    made = LinkGraph(graph, rows, tails[:, None], at_once=AT_ONCE, relations=relations)
    return Asked(places, n_links, None if every is None else every[:n_links], graph=made, per_link=per_link)


def _own(comm: Communicator, ids: Array, n: int, at_once: int, piece_of: Callable[[slice], Array] | None,
         width: int = 1) -> tuple[Array, Array, Array]:
    """Return the rows of integers whose first number is among `ids`; rank 0 holds the n rows. Collective.

    Return three arrays: the positions of the rows, the index of each first number in `ids`, and the rows, (k, width).
    Rank 0 sends `at_once` rows at a time.
    """
    order = np.argsort(ids, kind="stable")
    ascending = np.asarray(ids)[order]
    found = [(np.empty(0, np.int64), np.empty(0, np.int64), np.empty((0, width), np.int64))]
    for at in range(0, n, at_once):
        end = min(at + at_once, n)
        piece = np.empty((end - at, width), np.int64) if piece_of is None else piece_of(slice(at, end))
        piece = comm.broadcast(piece, 0)
        spots = np.minimum(np.searchsorted(ascending, piece[:, 0]), max(len(ids) - 1, 0))
        own = np.flatnonzero(ascending[spots] == piece[:, 0]) if len(ids) else found[0][0]
        found.append((at + own, order[spots[own]], piece[own]))
    places, rows, numbers = (np.concatenate(every) for every in zip(*found))
    return places, rows, numbers


def paths(config: Any, form: str) -> list[str]:
    """Return the files to write, by the form of the targets: one file, or labels and then probabilities."""
    one = config.embeddings is not None or (form in ("regress", "link") and config.top is None)
    if one or not config.out.endswith(".npy"):
        return [config.out]
    return [re.sub(r"\.npy$", ".labels.npy", config.out), config.out]


def check_paths(config: Any, form: str) -> None:
    """Raise a ConfigError if a prediction file cannot be written on this rank."""
    for path in reversed(paths(config, form)):
        with writing(path, "out", ConfigError):
            try_whole(path)


def write(comm: Communicator, config: Any, form: str, wanted: Asked, arrays: Sequence[Array], of: Linked,
          class_names: list[str] | None) -> None:
    """Write predictions into --out, of nodes or of links of `of`: maybe labels or likeliest destinations, and numbers.
    Collective.

    Raises
    ------
    DataError
        On every rank: a file cannot be written. What stood there before is intact.
    """
    if not config.out.endswith(".npy"):
        return _write_table(comm, config, form, wanted, arrays, of, class_names)
    for path, array in zip(paths(config, form), arrays):
        node_rows.write(comm, path, wanted.places, array, wanted.n)
        if comm.rank == 0:
            width = " x ".join(map(str, array.shape[1:])) or 1
            show(f"{path}: {wanted.n:,} rows of {width}, {array.dtype}")


def _write_table(comm, config, form, wanted, arrays, of, class_names):
    """Write arrays as .npy files in a private folder; rank 0 makes the table of these files. Collective."""
    with ExitStack() as held:
        made = together(comm, lambda: held.enter_context(scratch.beside(config.out)) if comm.rank == 0 else None)
        folder = comm.bcast(None if made is None else str(made))
        files = [f"{folder}/{at}.npy" for at in range(len(arrays))]
        for file, array in zip(files, arrays):
            node_rows.write(comm, file, wanted.places, array, wanted.n)
        links = config.links is not None or config.top is not None
        headings = ("source", *(["relation"] if of.several else []), "destination") if links else ("id",)

        def write():
            *labels, numbers = (np.load(file, mmap_mode="r") for file in files)
            of_rows, labels = wanted.ids, labels[0] if labels else None
            if config.top is not None:
                of_rows, labels, numbers = _pairs(wanted.ids, labels, numbers)
            columns = partial(_named_columns, of_rows, of, links)
            result_table.write(config.out, columns, labels, numbers, form, class_names,
                               config.embeddings is not None, headings)
            show(f"{config.out}: {len(numbers):,} rows")

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
