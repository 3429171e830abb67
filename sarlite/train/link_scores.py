"""Pairs of nodes from a file, as the candidates of a `LinkGraph`."""

import csv
from pathlib import Path
from typing import Any

import numpy as np

from sarlite.comm import Communicator, together
from sarlite.data import names as named
from sarlite.data import textfile
from sarlite.data.columns import ENDS
from sarlite.errors import DataError
from sarlite.sar.graph.graph import Graph
from sarlite.sar.graph.link_graph import LinkGraph
from sarlite.train.negatives import RowNumbers
from sarlite.types import Array

HEADER = ["source", "destination"]


def asked(comm: Communicator, file: str, names: Any, graph: Graph, at_once: int) -> tuple[Array, LinkGraph, int, Array | None]:
    """Return the pairs of a file whose sources this rank owns. Collective.

    Parameters
    ----------
    file : path
        As `read_pairs` takes it.
    names : Names, optional
    graph : Graph
        What the encoder computes on.
    at_once : int
        Pairs that are sent at a time.

    Returns
    -------
    places : (k,) int64
        Where the pairs stand in the file.
    LinkGraph
        Of one candidate a row.
    int
        Pairs of the file.
    (n, 2) int64, or None
        All pairs, on rank 0.

    Raises
    ------
    DataError
        On every rank, as `read_pairs`.
    """
    pairs = together(comm, lambda: read_pairs(file, graph.n_nodes, names) if comm.rank == 0 else None)
    n, ids = comm.bcast(None if pairs is None else len(pairs)), graph.dst_ids
    order = np.argsort(ids, kind="stable")
    places, heads, tails = ([np.empty(0, np.int64)] for _ in range(3))
    for at in range(0, n, at_once):
        piece = np.empty((min(at_once, n - at), 2), np.int64) if pairs is None else pairs[at : at + at_once].copy()
        piece = comm.broadcast(piece, 0)
        spots = np.minimum(np.searchsorted(ids, piece[:, 0], sorter=order), max(len(ids) - 1, 0))
        own = np.flatnonzero(ids[order[spots]] == piece[:, 0]) if len(ids) else places[0]
        places.append(at + own)
        heads.append(order[spots[own]])
        tails.append(piece[own, 1])
    rows = RowNumbers(comm, ids)(np.concatenate(tails))
    return np.concatenate(places), LinkGraph(graph, np.concatenate(heads), rows[:, None]), n, pairs


def read_pairs(file: str, n_nodes: int, names: Any = None) -> Array:
    """Return the pairs (source, destination) of a file by original id, (n, 2) int64.

    Parameters
    ----------
    file : path
        Text of two ids a line, parted by a comma, .npy or .parquet; of nodes with names text of two names a line. The
        first line may be a header, of names such as source and destination.
    names : Names, optional
        Of the nodes.

    Raises
    ------
    DataError
        Naming the file and the pair: it cannot be read, or an id is no node.
    """
    if names is not None and Path(file).suffix not in (".npy", ".parquet"):
        return _named(file, names)
    found = textfile.read(file, "links", np.int64)
    if found.dtype.kind not in "iu" or (found.size and found.shape[1] != 2):
        raise DataError(f"{file}: links: expected two whole numbers a line, source and destination, found "
                        f"{found.shape[1]} columns of {found.dtype}")
    found = found.reshape(-1, 2)
    bad = np.argwhere((found < 0) | (found >= n_nodes))
    if len(bad):
        at, column = bad[0]
        raise DataError(f"{file}: links: {HEADER[column]} of pair {at} is {found[at, column]}, outside 0 <= node < {n_nodes}")
    return found.astype(np.int64)


def _named(file, names):
    pairs = []
    for numbers, lines in named.lines(file, "links"):
        for number, cells in zip(numbers, csv.reader(lines, skipinitialspace=True)):
            if len(cells) != 2:
                raise DataError(f"{file}: links: line {number}: {len(cells)} names, expected two, source and destination")
            if pairs or not {cell.lower() for cell in cells} <= ENDS:
                pairs.append(cells)
    try:
        return names.ids(name for pair in pairs for name in pair).reshape(-1, 2)
    except DataError as error:
        raise DataError(f"{file}: links: {error}") from error
