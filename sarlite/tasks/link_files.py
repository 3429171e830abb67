"""Functions that read pairs of nodes, such as links to predict, from files and tables."""

import csv
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from sarlite.data import names as named
from sarlite.data import textfile
from sarlite.data.readers import ogb
from sarlite.data.tables.checks import CellCheck, check_cells, id_checks, node_number
from sarlite.data.tables.sources import Table, connect
from sarlite.data.tables.sources import read as read_table
from sarlite.data.tables.text_form import ENDS, Reading, quote
from sarlite.errors import DataError
from sarlite.tasks.link_edges import Ends, Linked
from sarlite.types import Array

HEADER = ["source", "destination"]
"""Names of the ends of a pair in error messages."""


def read_links(file: str, of: Linked) -> Array:
    """Read links to predict from a file: rows (source id, destination id, relation index), (n, 3) int64. `of` has the graph and the
    relations that the links belong to.

    Parameters
    ----------
    file : path
        For one relation, a file for `read_pairs`. For several relations, a text file with a source, a relation and a
        destination on each line, separated by commas. The first line may be a header.
    of : Linked
        Nodes and relations of the links.

    Returns
    -------
    (n, 3) int64
        Source, destination and relation. Nodes are ids within their type, and relations are indices into `of.relations`.

    Raises
    ------
    DataError
        The file cannot be read, an id is not a node, or a name is not a relation. The error names the file and the line.
    """
    several = of.several
    if several is None:
        pairs = read_pairs(file, of.ends[0])
        return np.column_stack([pairs, np.zeros(len(pairs), np.int64)])
    cells_of, numbers_of = [], []
    for number, (source, relation, to) in _lines(file, "cells, expected three: source, relation and destination", 3):
        if relation not in several:
            raise DataError(f"{file}: links: line {number}: relation {relation!r} is not one of {', '.join(several)}")
        cells_of.append((source, to))
        numbers_of.append(several.index(relation))
    links = np.empty((len(cells_of), 3), np.int64)
    links[:, 2] = numbers_of
    for at, ends in enumerate(of.ends):
        places = np.flatnonzero(links[:, 2] == at)
        for column, end in enumerate(ends):
            words = [cells_of[place][column] for place in places]
            links[places, column] = ids_of(f"{file}: links of {several[at]}", HEADER[column], words, 0, end)
    return links


def read_pairs(file: str, ends: Sequence[Ends]) -> Array:
    """Read (source, destination) pairs from a text, Parquet, .npy or .pt file; return ids of nodes of the types `ends`, (n, 2) int64.

    Parameters
    ----------
    file : path
        Text file with two ids on each line, separated by a comma, or two names if the nodes have names. The first line
        may be a header. Or a .parquet file with two columns of ids or names, a .npy file, or a .pt file, see `ogb.pairs`.
    ends : (Ends, Ends)
        Nodes that sources and destinations can be.

    Returns
    -------
    (n, 2) int64
        Ids within the node types.

    Raises
    ------
    DataError
        The file cannot be read, or an id is not a node. The error names the file and the pair.
    """
    if any(end.names for end in ends) and Path(file).suffix not in (".npy", ".pt"):
        return _ids_by_name_in_columns(file, ends) if Path(file).suffix == ".parquet" else _ids_by_name(file, ends)
    pairs = ogb.pairs(file)[0] if Path(file).suffix == ".pt" else textfile.read(file, "links", np.int64)
    if pairs.dtype.kind not in "iu" or (pairs.size and pairs.shape[1] != 2):
        raise DataError(f"{file}: links: expected two whole numbers per line, source and destination, found "
                        f"{pairs.shape[1]} columns of {pairs.dtype}")
    return _nodes_of(file, "links", pairs.reshape(-1, 2), ends)


def read_negatives(file: str, ends: Sequence[Ends]) -> tuple[Array, int | None]:
    """Read the negatives of links (wrong node pairs to compare with) from a .pt file of OGB; return (pairs, per_link). `pairs` are ids
    within the node types of `ends`, the heads and the tails. `per_link` is the number of pairs for each link, 0 if all links share all
    pairs, and None if the file has no negatives (`pairs` is empty then).

    Returns
    -------
    pairs : (m, 2) int64
        Ids within the node types.
    per_link : int or None
        Number of negatives of each link, 0 if all links share the negatives, None if the file has no negatives.
    """
    _, pairs, per_link = ogb.pairs(file)
    if pairs is None:
        return np.empty((0, 2), np.int64), None
    return _nodes_of(file, "negatives", pairs, ends), per_link


def _nodes_of(file: str, name: str, pairs: Array, ends: Sequence[Ends]) -> Array:
    """Return the id pairs `pairs` as int64; raise a DataError about the array `name` of `file` if an id is not in 0 .. n - 1 of its
    column's node type in `ends`.
    """
    bad = np.argwhere((pairs < 0) | (pairs >= [end.n for end in ends]))
    if len(bad):
        at, column = bad[0]
        raise DataError(f"{file}: {name}: {HEADER[column]} of pair {at} is {pairs[at, column]}, outside 0 <= node < "
                        f"{ends[column].n}")
    return pairs.astype(np.int64)


def _ids_by_name(file: str, ends: Sequence[Ends]) -> Array:
    """Read a text file with two node names in each line; return the ids of the nodes within the types `ends`, (n, 2) int64."""
    pairs = [cells for _, cells in _lines(file, "names, expected two, source and destination", 2)]
    return np.stack([ids_of(f"{file}: links", HEADER[at], [pair[at] for pair in pairs], 0, end)
                     for at, end in enumerate(ends)], 1)


def _ids_by_name_in_columns(file: str, ends: Sequence[Ends]) -> Array:
    """Read a Parquet file with two columns of node names or node numbers; return the ids of the nodes within the types `ends`, (n, 2)
    int64.
    """
    with connect() as connection:
        table = read_table(connection, file, Reading(), (), "links", list)
        if len(table.columns) != 2:
            raise DataError(f"{file}: links: columns {', '.join(table.columns)}, expected two, source and destination")
        return np.stack([column_ids(table, column, end) for column, end in zip(table.columns, ends)], 1)


def _lines(file: str, expected: str, n_cells: int) -> Iterator[tuple[int, list[str]]]:
    """Yield (line number, list of cells) for each line of a text file after the header, if any. A line without exactly `n_cells` cells is
    an error, whose message quotes `expected`.
    """
    begun = False
    for numbers, lines in named.lines(file, "links"):
        for number, cells in zip(numbers, csv.reader(lines, skipinitialspace=True)):
            if len(cells) != n_cells:
                raise DataError(f"{file}: links: line {number}: {len(cells)} {expected}, parted by commas: {','.join(cells)[:80]!r}")
            begun = begun or not {cell.lstrip("_:#").lower() for cell in (cells[0], cells[-1])} <= ENDS
            if begun:
                yield number, cells


def ids_of(where: str, column: str, cells: Sequence[str], row: int, end: Ends) -> Array:
    """Return the ids of the nodes of type `end` that `cells` name, (n,) int64. A cell that names no node raises a DataError with the
    table's name `where`, `column`, and the row, counted from `row` at the first cell.

    Parameters
    ----------
    where, column : str
        Names of the table and the column in error messages.
    cells : sequence of str
        Names if the nodes have names, otherwise ids.
    row : int
        Number of the first cell's row in error messages.
    end : Ends
        Nodes that cells can contain.

    Raises
    ------
    DataError
        A cell is not a node. The error names the table, the row and the column.

    Examples
    --------
    >>> ids_of("pairs.csv", "source", ["2", "0"], 0, Ends(0, 3)).tolist()
    [2, 0]
    """
    if end.names is not None:
        ids = end.names.find(cells)
        bad = np.flatnonzero(ids < 0)
        if len(bad):
            raise DataError(f"{where}: row {row + bad[0]}, column {column!r}: no node is named {cells[bad[0]]!r}")
        return np.asarray(ids)
    odd = next((at for at, word in enumerate(cells) if not (word.isascii() and word.isdigit() and len(word) < 19)), None)
    if odd is not None:
        raise DataError(f"{where}: row {row + odd}, column {column!r}: {cells[odd]!r} is not a node number")
    return _within(where, column, np.array([*map(int, cells)], np.int64), row, end)


def column_ids(table: Table, column: str, end: Ends) -> Array:
    """Return the ids of the nodes of the type `end` in a table's column of names or node numbers, (n,) int64."""
    check_cells(table, id_checks(table, column))
    if end.names is not None:
        words = [cells.to_pylist() for (cells,) in table.batches(f"CAST({quote(column)} AS VARCHAR)")]
        return ids_of(table.where, column, [word for some in words for word in some], 0, end)
    number = node_number(table, column)
    check_cells(table, [CellCheck(column, f"{number} IS NULL", "VALUE is not a node number")])
    pieces = [np.asarray(cells) for (cells,) in table.batches(f"CAST({number} AS BIGINT)")]
    return _within(table.where, column, np.concatenate([np.empty(0, np.int64), *pieces]), 0, end)


def _within(where: str, column: str, ids: Array, first_row: int, end: Ends) -> Array:
    """Return `ids` if all are in 0 .. n - 1 of the node type `end`; otherwise raise a DataError with the table's name `where`, `column`,
    and the row, counted from `first_row`.
    """
    bad = np.flatnonzero((ids < 0) | (ids >= end.n))
    if len(bad):
        raise DataError(f"{where}: row {first_row + bad[0]}, column {column!r}: {ids[bad[0]]} is outside 0 <= node < "
                        f"{end.n}")
    return ids
