"""Pairs of nodes from a file, as the candidates of a `LinkGraph`."""

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from sarlite.comm import Communicator, together
from sarlite.data import names as named
from sarlite.data import ogb, textfile
from sarlite.data.cells import ids, whole_ids
from sarlite.data.columns import ENDS
from sarlite.errors import DataError
from sarlite.sar.graph.link_graph import LinkGraph
from sarlite.train.link_edges import Ends
from sarlite.train.negatives import AT_ONCE, RowNumbers
from sarlite.types import Array

HEADER = ["source", "destination"]
_HITS = (20, 50, 100)


class Asked(NamedTuple):
    """The pairs of a file whose sources a rank owns.

    Attributes
    ----------
    places : (k,) int64
        Where the pairs stand in the file; from n on they are its negatives.
    graph : LinkGraph
        Of one candidate a row.
    n : int
        Pairs of the file, without negatives.
    pairs : (n, 3) int64, or None
        All pairs and the numbers of their relations, on rank 0.
    per_link : int, or None
        Negatives of each pair; 0: all pairs have the same; None: there are none.
    """

    places: Array
    graph: LinkGraph
    n: int
    pairs: Array | None
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


def asked(comm: Communicator, file: str, ends: Sequence[tuple[Ends, Ends]], several: list[str] | None, graph: Any,
          at_once: int, with_negatives: bool) -> Asked:
    """Return the pairs of a file whose sources this rank owns, and its negatives where it has some and they are wanted.
    Collective.

    Parameters
    ----------
    file, ends, several
        As `read_links` takes them.
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
        found = read_links(file, ends, several)
        more, per_link = found[:0, :2], None
        if with_negatives and file.endswith(".pt"):
            more, per_link = read_negatives(file, ends[0])
        return np.concatenate([found, np.pad(more, ((0, 0), (0, 1)))]), len(found), per_link

    pairs, *told = together(comm, lambda: read() if comm.rank == 0 else (None, 0, None))
    n_links, per_link, n = comm.bcast((*told, None if pairs is None else len(pairs)))
    own_ids = graph.dst_ids
    order, first = np.argsort(own_ids, kind="stable"), np.array([[one.first, other.first, 0] for one, other in ends])
    places, heads, tails, relations = ([np.empty(0, np.int64)] for _ in range(4))
    for at in range(0, n, at_once):
        piece = np.empty((min(at_once, n - at), 3), np.int64) if pairs is None else pairs[at : at + at_once].copy()
        piece = comm.broadcast(piece, 0)
        piece += first[piece[:, 2]]
        spots = np.minimum(np.searchsorted(own_ids, piece[:, 0], sorter=order), max(len(own_ids) - 1, 0))
        own = np.flatnonzero(own_ids[order[spots]] == piece[:, 0]) if len(own_ids) else places[0]
        places.append(at + own)
        heads.append(order[spots[own]])
        tails.append(piece[own, 1])
        relations.append(piece[own, 2])
    rows, of = RowNumbers(comm, own_ids)(np.concatenate(tails)), np.concatenate(relations) if several else None
    made = LinkGraph(graph, np.concatenate(heads), rows[:, None], at_once=AT_ONCE, relations=of)
    return Asked(np.concatenate(places), made, n_links, None if pairs is None else pairs[:n_links], per_link)


def read_links(file: str, ends: Sequence[tuple[Ends, Ends]], several: list[str] | None) -> Array:
    """Return the links of a file, (n, 3) int64: source, destination, each by original id of its type, and the
    relation's number.

    Parameters
    ----------
    file : path
        Of one relation as `read_pairs` takes it. Of several text of a source, a relation and a destination a line,
        parted by commas; the first line may be a header, of names such as source, relation and destination.
    ends : list by relation of (Ends, Ends)
    several : list of str, optional
        Names of several relations, as user.buys.item.

    Raises
    ------
    DataError
        Naming the file and the line or the pair: it cannot be read, or an id is no node, or a name no relation.
    """
    if several is None:
        pairs = read_pairs(file, ends[0])
        return np.column_stack([pairs, np.zeros(len(pairs), np.int64)])
    cells_of: list[list[str]] = []
    numbers_of: list[int] = []
    for numbers, lines in named.lines(file, "links"):
        for number, cells in zip(numbers, csv.reader(lines, skipinitialspace=True)):
            if len(cells) != 3:
                raise DataError(f"{file}: links: line {number}: {len(cells)} cells, expected three: source, relation "
                                "and destination")
            if not cells_of and {cells[0].lower(), cells[2].lower()} <= ENDS:
                continue
            if cells[1] not in several:
                raise DataError(f"{file}: links: line {number}: relation {cells[1]!r} is none of {', '.join(several)}")
            cells_of.append(cells[::2])
            numbers_of.append(several.index(cells[1]))
    found = np.empty((len(cells_of), 3), np.int64)
    found[:, 2] = numbers_of
    for at, own in enumerate(ends):
        places = np.flatnonzero(found[:, 2] == at)
        for column, end in enumerate(own):
            words = [cells_of[place][column] for place in places]
            found[places, column] = ids_of(f"{file}: links of {several[at]}", HEADER[column], words, 0, end)
    return found


def read_pairs(file: str, ends: Sequence[Ends]) -> Array:
    """Return the pairs (source, destination) of a file by original id of the ends' types, (n, 2) int64.

    Parameters
    ----------
    file : path
        Text of two ids a line, parted by a comma, .npy, .parquet, or .pt as `ogb.pairs` takes it; of nodes with names
        text of two names a line. The first line may be a header, of names such as source and destination.
    ends : (Ends, Ends)

    Raises
    ------
    DataError
        Naming the file and the pair: it cannot be read, or an id is no node.
    """
    if any(end.names for end in ends) and Path(file).suffix not in (".npy", ".parquet", ".pt"):
        return _named(file, ends)
    found = ogb.pairs(file)[0] if Path(file).suffix == ".pt" else textfile.read(file, "links", np.int64)
    if found.dtype.kind not in "iu" or (found.size and found.shape[1] != 2):
        raise DataError(f"{file}: links: expected two whole numbers a line, source and destination, found "
                        f"{found.shape[1]} columns of {found.dtype}")
    return _nodes_of(file, "links", found.reshape(-1, 2), ends)


def read_negatives(file: str, ends: Sequence[Ends]) -> tuple[Array, int | None]:
    """Return the negatives of a `.pt` file, (m, 2) int64, and how many each link has, as `ogb.pairs`; None where there
    are none."""
    _, found, per_link = ogb.pairs(file)
    if found is None:
        return np.empty((0, 2), np.int64), None
    return _nodes_of(file, "negatives", found, ends), per_link


def _nodes_of(file, name, found, ends):
    """Pairs as int64, once each is of nodes."""
    bad = np.argwhere((found < 0) | (found >= [end.n for end in ends]))
    if len(bad):
        at, column = bad[0]
        raise DataError(f"{file}: {name}: {HEADER[column]} of pair {at} is {found[at, column]}, outside 0 <= node < "
                        f"{ends[column].n}")
    return found.astype(np.int64)


def _named(file, ends):
    pairs = []
    for numbers, lines in named.lines(file, "links"):
        for number, cells in zip(numbers, csv.reader(lines, skipinitialspace=True)):
            if len(cells) != 2:
                raise DataError(f"{file}: links: line {number}: {len(cells)} names, expected two, source and "
                                "destination")
            if pairs or not {cell.lower() for cell in cells} <= ENDS:
                pairs.append(cells)
    return np.stack([ids_of(f"{file}: links", HEADER[at], [pair[at] for pair in pairs], 0, end)
                     for at, end in enumerate(ends)], 1)


def ids_of(where: str, column: str, cells: Any, row: int, end: Ends) -> Array:
    """Return the ids of nodes at an end from cells of a table, (n,) int64: by name where they have names, else by
    number.

    Raises
    ------
    DataError
        Naming the row from `row` on and the column: a cell is none of a node.
    """
    if end.names is not None:
        try:
            return np.asarray(end.names.ids(ids(where, column, cells, row)))
        except DataError as error:
            if str(error).startswith(where):
                raise
            raise DataError(f"{where}: column {column!r}: {error}") from error
    found = whole_ids(where, column, cells, row)
    bad = np.flatnonzero(found >= end.n)
    if len(bad):
        raise DataError(f"{where}: row {row + bad[0]}, column {column!r}: {found[bad[0]]} is outside 0 <= node < "
                        f"{end.n}")
    return found
