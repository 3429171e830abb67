"""Requests for predictions of nodes or node pairs that a file lists, and the files that the predictions are written to."""

import re
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np

from sarlite.comm import Communicator, together
from sarlite.command import show
from sarlite.data import node_rows, result_table, scratch, textfile
from sarlite.errors import ConfigError, DataError, writing
from sarlite.files import check_writable
from sarlite.graph.link_graph import LinkGraph, NodeRows
from sarlite.tasks.link_edges import Ends, Linked
from sarlite.tasks.link_files import read_links, read_negatives
from sarlite.tasks.negatives import AT_ONCE, RowNumbers
from sarlite.tasks.recommend import NOBODY
from sarlite.types import Array

_HITS = (20, 50, 100)  # k of Hits@k with shared negatives


class OutputFiles(Protocol):
    """Protocol of the options of the prediction command that decide about its output files.

    Attributes
    ----------
    out : str
        Path of the output file.
    embeddings : int, optional
        Number of the layer whose rows are written in place of predictions.
    links : str, optional
        File of pairs.
    top : int, optional
        Number of likeliest destinations of each node.
    """

    @property
    def out(self) -> str: ...
    @property
    def embeddings(self) -> int | None: ...
    @property
    def links(self) -> str | None: ...
    @property
    def top(self) -> int | None: ...


class PredictionRequest(NamedTuple):
    """Nodes or node pairs to predict, listed in a file. An instance holds those that this rank computes: its own nodes, or the pairs whose
    source it owns.

    Attributes
    ----------
    places : (k,) int64
        Positions of this rank's nodes or pairs in the file, ascending. Positions from n on are negatives.
    n : int
        Number of nodes or pairs in the file, without negatives.
    ids : (n,) or (n, 3) int64, or None
        Contents of the file on rank 0: nodes, or sources, destinations and relation numbers. None on other ranks, and if
        all nodes are requested.
    rows : (k,) int64, optional
        Local row numbers of the nodes.
    graph : LinkGraph, optional
        Graph of the pairs, with one pair in each row.
    per_link : int, optional
        Number of negatives of each pair; 0 if all pairs share the negatives; None without negatives.
    """

    places: Array
    n: int
    ids: Array | None
    rows: Array | None = None
    graph: LinkGraph | None = None
    per_link: int | None = None

    def metrics(self, comm: Communicator, scores: Array) -> dict[str, float]:
        """Return {metric: value} over all ranks, computed as by the evaluators of the OGB benchmark. `scores` has the scores of this rank's
        links, followed by the scores of their negatives. Collective.

        Parameters
        ----------
        comm : Communicator
        scores : (k,) array
            Score of each of this rank's links and negatives, in the order of `places`.

        Returns
        -------
        dict of str to float
            If all links share the negatives: "hits@K", the share of links with a score above the K-th highest score of
            the negatives. An entry is absent if there are fewer than K negatives. If each link has its own negatives:
            "mrr", the mean reciprocal rank of a link among them, where a tie adds half a rank, and "hits@K", the share
            of ranks up to K. A NaN counts against the link.
        """
        n_own = np.count_nonzero(self.places < self.n)  # places ascend
        links, others = np.split(scores.astype(np.float64), [n_own])
        if self.per_link:
            # a link and its negatives have the same source, so one rank has all
            others, links = others.reshape(n_own, self.per_link), links[:, None]
            ranks = 1 + np.sum(~(others <= links), 1) + 0.5 * np.sum(others == links, 1)
            by_metric = {"mrr": 1 / ranks, **{f"hits@{k}": ranks <= k for k in (1, 3, 10)}}
        else:
            best = np.sort(np.concatenate(comm.allgather(np.sort(others)[-max(_HITS) :])))
            by_metric = {f"hits@{k}": links > best[-k] for k in _HITS if k <= len(best)}
        sums = comm.allreduce(np.array([0, *(np.sum(values) for values in by_metric.values())], np.float64))[1:]
        return dict(zip(by_metric, (sums / max(self.n, 1)).tolist()))


def nodes(comm: Communicator, file: str | None, end: Ends, graph: NodeRows, at_once: int) -> PredictionRequest:
    """Return a `PredictionRequest` for the nodes of type `end` that `file` lists, all of them if it is None. Rank 0 reads the file and
    sends `at_once` ids at a time; each rank keeps the nodes that are its rows in `graph`. Collective.

    Parameters
    ----------
    comm : Communicator
    file : str, optional
        Text file with one id per line, or one name per line if the nodes have names; or a .npy file of ids. By default
        all nodes of `end` are requested, in the order of their ids.
    end : Ends
        The nodes that may be requested.
    graph : Graph or NodeType
        Graph whose rows the encoder outputs.
    at_once : int
        Number of ids that rank 0 sends at a time.

    Raises
    ------
    DataError
        On every rank, naming the file and the entry: the file cannot be read, or an entry is not a node.
    """
    ids = np.asarray(graph.dst_ids) - end.first
    if file is None:
        rows = np.flatnonzero((ids >= 0) & (ids < end.n))
        return PredictionRequest(ids[rows], end.n, None, rows)
    file_ids = together(comm, lambda: _read_nodes(file, end) if comm.rank == 0 else None)
    n = comm.bcast(None if file_ids is None else len(file_ids))
    places, rows, _ = _distribute(comm, ids, n, at_once, None if file_ids is None else lambda some: file_ids[some, None].copy())
    return PredictionRequest(places, n, file_ids, rows)


def _read_nodes(file: str, end: Ends) -> Array:
    """Return the ids, within the node type `end`, of the nodes that a file lists, (n,) int64."""
    if end.names is not None and Path(file).suffix != ".npy":
        return end.names.read(file, "nodes")
    entries = textfile.read(file, "nodes", np.int64)
    if entries.dtype.kind not in "iu" or (entries.size and entries.shape[1] != 1):
        raise DataError(f"{file}: nodes: expected one whole number per line, found {entries.shape[1]} columns of "
                        f"{entries.dtype}")
    entries = entries.reshape(-1)
    bad = np.flatnonzero((entries < 0) | (entries >= end.n))
    if len(bad):
        raise DataError(f"{file}: nodes: entry {bad[0]} is {entries[bad[0]]}, outside 0 <= node < {end.n}")
    return entries.astype(np.int64)


def pairs(comm: Communicator, file: str, of: Linked, graph: NodeRows, at_once: int, with_negatives: bool) -> PredictionRequest:
    """Return a `PredictionRequest` for the node pairs in `file` and, if `with_negatives`, for the negatives in the file. `of` has the
    relations and the nodes of the pairs. Rank 0 reads the file and sends `at_once` pairs at a time; each rank keeps the pairs whose source
    is one of its rows in `graph`. Collective.

    Parameters
    ----------
    comm : Communicator
    file : str
        File of pairs, as `read_links` reads it.
    of : Linked
        Nodes and relations of the pairs.
    graph : Graph or NodeType
        Graph whose rows the encoder outputs.
    at_once : int
        Number of pairs that rank 0 sends at a time.
    with_negatives : bool
        True to read the negatives, too, if the file is a `.pt` file of OGB.

    Raises
    ------
    DataError
        On every rank, as `read_links`.

    Notes
    -----
    Memory: about 145 bytes for each pair and negative on rank 0 while the file is read; then about 48 bytes for each
    pair of this rank.
    """

    def read():
        links = read_links(file, of)
        more, per_link = links[:0, :2], None
        if with_negatives and file.endswith(".pt"):
            more, per_link = read_negatives(file, of.ends[0])
        return np.concatenate([links, np.pad(more, ((0, 0), (0, 1)))]), len(links), per_link

    every, *counts_read = together(comm, lambda: read() if comm.rank == 0 else (None, 0, None))
    n_links, per_link, n = comm.bcast((*counts_read, None if every is None else len(every)))
    first = np.array([[one.first, other.first, 0] for one, other in of.ends])
    places, rows, owned_pairs = _distribute(comm, graph.dst_ids, n, at_once,
                                            None if every is None else lambda some: every[some] + first[every[some, 2]], 3)
    tails, relations = RowNumbers(comm, graph.dst_ids)(owned_pairs[:, 1]), owned_pairs[:, 2].copy() if of.several else None
    link_graph = LinkGraph(graph, rows, tails[:, None], at_once=AT_ONCE, relations=relations)
    return PredictionRequest(places, n_links, None if every is None else every[:n_links], graph=link_graph, per_link=per_link)


def _distribute(comm: Communicator, ids: Array, n: int, at_once: int, get_rows: Callable[[slice], Array] | None,
         width: int = 1) -> tuple[Array, Array, Array]:
    """Send the n rows of a table on rank 0 to all ranks, `at_once` rows at a time; get_rows(slice) reads rows of `width` columns. Each rank
    keeps the rows whose column 0 is in its `ids`. Return (row numbers in the table, indices into `ids`, the rows) of these. Collective.
    """
    order = np.argsort(ids, kind="stable")
    ascending = np.asarray(ids)[order]
    pieces = [(np.empty(0, np.int64), np.empty(0, np.int64), np.empty((0, width), np.int64))]
    for at in range(0, n, at_once):
        end = min(at + at_once, n)
        piece = np.empty((end - at, width), np.int64) if get_rows is None else get_rows(slice(at, end))
        piece = comm.broadcast(piece, 0)
        spots = np.minimum(np.searchsorted(ascending, piece[:, 0]), max(len(ids) - 1, 0))
        owned = np.flatnonzero(ascending[spots] == piece[:, 0]) if len(ids) else pieces[0][0]
        pieces.append((at + owned, order[spots[owned]], piece[owned]))
    places, rows, numbers = (np.concatenate(every) for every in zip(*pieces))
    return places, rows, numbers


def paths(config: OutputFiles, form: str) -> list[str]:
    """Return the list of paths of the output files for targets of the kind `form`, such as "classify". Usually it is [config.out]; classes
    and labels in the format .npy have two files, first for the labels, then `config.out` for the probabilities.

    Parameters
    ----------
    config : OutputFiles
    form : str
        Name of the form of the targets.
    """
    one = config.embeddings is not None or (form in ("regress", "link") and config.top is None)
    if one or not config.out.endswith(".npy"):
        return [config.out]
    return [re.sub(r"\.npy$", ".labels.npy", config.out), config.out]


def check_paths(config: OutputFiles, form: str) -> None:
    """Raise a ConfigError if this rank cannot write one of the output files that `config`, the options about output, names. `form` is the
    kind of targets, such as "classify".
    """
    for path in reversed(paths(config, form)):
        with writing(path, "out", ConfigError):
            check_writable(path)


def write(comm: Communicator, config: OutputFiles, form: str, request: PredictionRequest, arrays: Sequence[Array], of: Linked,
          class_names: list[str] | None) -> None:
    """Write the predictions of all ranks to the output files of `config`. `arrays` are this rank's predictions for the nodes or pairs in
    `request`, and `form` is the kind of targets, such as "classify". `of` has the names of the nodes, and `class_names` the names of the
    classes (None: numbers). Collective.

    Parameters
    ----------
    comm : Communicator
    config : OutputFiles
    form : str
        Name of the form of the targets.
    request : PredictionRequest
    arrays : sequence of (k, ...) array
        This rank's predictions, one array for each column group: labels or likeliest destinations, if any, and numbers.
    of : Linked
        Nodes and relations of the predictions.
    class_names : list of str, optional

    Raises
    ------
    DataError
        On every rank: a file cannot be written. An earlier file is unchanged.
    """
    if not config.out.endswith(".npy"):
        return _write_table(comm, config, form, request, arrays, of, class_names)
    for path, array in zip(paths(config, form), arrays):
        node_rows.write(comm, path, request.places, array, request.n)
        if comm.rank == 0:
            width = " x ".join(map(str, array.shape[1:])) or 1
            show(f"{path}: {request.n:,} rows of {width}, {array.dtype}")


def _write_table(comm, config, form, request, arrays, of, class_names):
    """Write the predictions of all ranks to `config.out` as one table, for targets of the kind `form`. Each rank writes its `arrays` for
    the nodes or pairs in `request` to .npy files in a private folder, and rank 0 joins them. `of` has the names of nodes, and `class_names`
    the names of classes. Collective.
    """
    with ExitStack() as held:
        private_folder = together(comm, lambda: held.enter_context(scratch.beside(config.out)) if comm.rank == 0 else None)
        folder = comm.bcast(None if private_folder is None else str(private_folder))
        files = [f"{folder}/{at}.npy" for at in range(len(arrays))]
        for file, array in zip(files, arrays):
            node_rows.write(comm, file, request.places, array, request.n)
        links = config.links is not None or config.top is not None
        headings = ("source", *(["relation"] if of.several else []), "destination") if links else ("id",)

        def write():
            *labels, numbers = (np.load(file, mmap_mode="r") for file in files)
            of_rows, labels = request.ids, labels[0] if labels else None
            if config.top is not None:
                of_rows, labels, numbers = _pairs_of_lists(request.ids, labels, numbers)
            columns = partial(_name_columns, of_rows, of, links)
            result_table.write(config.out, columns, labels, numbers, form, class_names,
                               config.embeddings is not None, headings)
            show(f"{config.out}: {len(numbers):,} rows")

        together(comm, lambda: write() if comm.rank == 0 else None)


def _name_columns(ids: Array | None, of: Linked, links: bool, first: int, last: int) -> list[Any]:
    """Return the columns of names for the table rows first .. last - 1: nodes or, if `links`, sources, relations (if several) and
    destinations. `ids` has the ids of the nodes or pairs of all rows; None means all nodes. `of` has the names of the nodes and relations.
    """
    numbers = np.arange(first, last) if ids is None else ids[first:last]
    if not links:
        return [_names_of(numbers, of.ends[0][0])]
    if not of.several:
        return [_names_of(column, end) for column, end in zip(numbers.T, of.ends[0])]
    cells = np.empty((len(numbers), 3), object)
    for at, (name, (source, to)) in enumerate(zip(of.several, of.ends)):
        rows = numbers[:, 2] == at
        cells[rows] = np.array([_names_of(numbers[rows, 0], source), [name] * rows.sum(), _names_of(numbers[rows, 1], to)],
                               object).T
    return cells.T.tolist()


def _names_of(ids: Array, end: Ends) -> Any:
    """Return the names of the nodes with these `ids` within the node type `end`; return `ids` if the nodes have no names."""
    return end.names.of(ids) if end.names else ids


def _pairs_of_lists(heads: Array, tails: Array, scores: Array) -> tuple[Array, None, Array]:
    """Convert lists of destinations to pairs. heads[i] is (head, relation index), and tails[i] and scores[i] are the k destinations listed
    for head i. Return (pairs, None, scores): first (head, destination, relation index) of each pair; then None, as pairs have no labels;
    then the score of each pair.
    """
    is_listed = tails != NOBODY
    heads = np.repeat(heads, np.count_nonzero(is_listed, 1), axis=0)
    return np.stack([heads[:, 0], tails[is_listed], heads[:, 1]], 1), None, scores[is_listed]
