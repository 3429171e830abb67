"""What predictions are asked of: the nodes or the pairs of a file, and where those of this rank stand in it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from sarlite.comm import Communicator, together
from sarlite.data import textfile
from sarlite.errors import DataError
from sarlite.sar.graph.link_graph import LinkGraph
from sarlite.train.link_edges import Ends, Linked
from sarlite.train.link_files import read_links, read_negatives
from sarlite.train.negatives import AT_ONCE, RowNumbers
from sarlite.types import Array

_HITS = (20, 50, 100)


class Nodes(NamedTuple):
    """The nodes that are asked for and that a rank owns.

    Attributes
    ----------
    places, rows : (k,) int64
        Where the nodes stand in the file; their local rows.
    n : int
        Nodes of the file.
    ids : (n,) int64, or None
        All of the file's, on rank 0; None without a file.
    """

    places: Array
    rows: Array
    n: int
    ids: Array | None


def nodes(comm: Communicator, file: str | None, end: Ends, graph: Any, at_once: int) -> Nodes:
    """Return the nodes of a file that this rank owns, by default all of one end of links, by id. Collective.

    Parameters
    ----------
    comm : Communicator
    file : path, optional
        An id of the data a line, or .npy; of nodes with names text of a name a line.
    end : Ends
    graph : Graph or NodeType
        What the encoder computes on.
    at_once : int
        Ids that are sent at a time.

    Raises
    ------
    DataError
        On every rank, naming the file and the entry: it cannot be read, or an entry is no node.
    """
    ids = np.asarray(graph.dst_ids) - end.first
    if file is None:
        rows = np.flatnonzero((ids >= 0) & (ids < end.n))
        return Nodes(ids[rows], rows, end.n, None)
    found = together(comm, lambda: _read_nodes(file, end) if comm.rank == 0 else None)
    n = comm.bcast(None if found is None else len(found))
    places, rows, _ = _own(comm, ids, n, at_once, None if found is None else lambda some: found[some, None].copy())
    return Nodes(places, rows, n, found)


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


class Pairs(NamedTuple):
    """The pairs that are asked for and whose sources a rank owns.

    Attributes
    ----------
    places : (k,) int64
        Where the pairs stand in the file; from n on they are its negatives.
    graph : LinkGraph
        Of one candidate a row.
    n : int
        Pairs of the file, without negatives.
    ids : (n, 3) int64, or None
        All pairs and the numbers of their relations, on rank 0.
    per_link : int, or None
        Negatives of each pair; 0: all pairs have the same; None: there are none.
    """

    places: Array
    graph: LinkGraph
    n: int
    ids: Array | None
    per_link: int | None

    def judged(self, scores: Array) -> dict[str, float]:
        """Return what OGB's evaluators say of scores, (k,), of links and negatives: by name a share or a mean.
        Collective.

        Hits@K is the share of links above the K-th highest score of the negatives that all links have; of negatives of
        each link MRR is of its rank among them, where ties count half, and Hits@K the share of ranks up to K. A score
        that is NaN is a bad one. Nothing is said of fewer negatives than K.
        """
        comm, n_own = self.graph.comm, np.count_nonzero(self.places < self.n)  # places ascend
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


def pairs(comm: Communicator, file: str, of: Linked, graph: Any, at_once: int, with_negatives: bool) -> Pairs:
    """Return the pairs of a file whose sources this rank owns, and its negatives where it has some and they are wanted.
    Collective.

    Parameters
    ----------
    file : path
        As `read_links` takes it.
    of : Linked
    graph : Graph or NodeType
        What the encoder computes on.
    at_once : int
        Pairs that are sent at a time.
    with_negatives : bool
        Of OGB's `.pt`, which may have some.

    Raises
    ------
    DataError
        On every rank, as `read_links`.

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
    return Pairs(places, made, n_links, None if every is None else every[:n_links], per_link)


def _own(comm: Communicator, ids: Array, n: int, at_once: int, piece_of: Callable[[slice], Array] | None,
         width: int = 1) -> tuple[Array, Array, Array]:
    """Of n rows of whole numbers, which rank 0 has, those whose first number is among `ids`: their places, where the
    number stands in `ids`, and the rows themselves, (k, width). Rank 0 sends `at_once` at a time. Collective."""
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

