"""Row numbers of the nodes of one type, from ids that are words or whole numbers, compared as what they are."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from sarlite.data.names import digests
from sarlite.data.tables.checks import Doubt, cell, id_doubts, refuse, whole
from sarlite.data.tables.sources import Table, batches
from sarlite.data.tables.text_form import quote
from sarlite.errors import DataError, needs
from sarlite.structure.validation import first_true
from sarlite.types import Array

_FITS_BIGINT = ("TINYINT", "SMALLINT", "INTEGER", "BIGINT", "UTINYINT", "USMALLINT", "UINTEGER")
_HASH = "hash({})"  # words are joined faster by hashes, if all ids are known and no two have the same hash
_NAMES = "VALUE is no node number, but other ids are; names=edges takes all ids for names"


class IdColumn(NamedTuple):
    """A column that has ids of nodes."""

    table: Table
    column: str

    @property
    def kind(self) -> str:
        return self.table.types[self.column]


class Numbering(NamedTuple):
    """How the ids of one node type become row numbers 0 .. n_nodes - 1.

    Attributes
    ----------
    n_nodes : int
    id_type : str or None
        Type of SQL in which ids are compared; None if ids are the row numbers themselves.
    table : str
        Table of DuckDB with each id, `id`, and its row number, `n`.
    listed_in : str or None
        Source and column that list all nodes; None if the edges name the nodes.
    form : str
        SQL expression by which ends of edges are joined to ids, with {} for an id: the id itself, or its hash.
    """

    n_nodes: int
    id_type: str | None = None
    table: str = ""
    listed_in: str | None = None
    form: str = "{}"

    def typed(self, column: str) -> str:
        """Return the SQL expression of a column's ids in the type of the comparison."""
        return f"CAST({column} AS {self.id_type})"

    def key(self, column: str) -> str:
        """Return the SQL expression of the join keys of a column: the ids, or hashes of the ids."""
        return self.form.format(self.typed(column))


def number_nodes(node_type: str, listing: IdColumn | None, ends: Sequence[IdColumn], names: bool,
                 count: int | None) -> Numbering | None:
    """Return the numbering of a node type; None if ids are node numbers.

    Parameters
    ----------
    node_type : str
    listing : IdColumn, optional
        Column whose row i has the id of node i.
    ends : sequence of IdColumn
        Columns of edges' ends.
    names : bool
        True if whole numbers are names of nodes, too.
    count : int, optional
        Number of nodes, whose ids are then node numbers.

    Raises
    ------
    DataError
        An id is missing, stands twice in the listing, or is of another kind than the other ids of the type.
    """
    columns = [*([listing] if listing else []), *ends]
    for table, of_table in _by_table(columns):
        refuse(table, [doubt for column in of_table for doubt in id_doubts(table, column)])
    if listing is None and not names and (count is not None or _are_numbers(node_type, ends)):
        for end in ends:
            refuse(end.table, [Doubt(end.column, f"{whole(end.column, end.table)} IS NULL", _NAMES)])
        return None
    id_type = _id_type(node_type, columns)
    made = Numbering(0, id_type, _free_name(columns), f"{listing.table.where}, column {listing.column!r}" if listing
                     else None)
    connection = columns[0].table.connection
    if listing:
        connection.execute(f"CREATE TEMP TABLE {made.table} AS SELECT {made.typed(quote(listing.column))} AS id, "
                           f"CAST(rowid AS UINTEGER) AS n FROM {listing.table.name}")
        _refuse_twice(connection, made, listing)
        return made._replace(n_nodes=listing.table.n_rows)
    every = " UNION ALL ".join(f"SELECT {made.typed(quote(column))} AS id FROM {table.name}" for table, column in ends)
    connection.execute(f"CREATE TEMP TABLE {made.table} AS SELECT id, CAST(row_number() OVER (ORDER BY id) - 1 AS "
                       f"UINTEGER) AS n FROM (SELECT DISTINCT id FROM ({every}))")
    n, n_hashes = connection.execute(f"SELECT count(*), count(DISTINCT {_HASH.format('id')}) FROM {made.table}").fetchone()
    return made._replace(n_nodes=n, form=_HASH if id_type == "VARCHAR" and n_hashes == n else "{}")


def largest(ends: Sequence[IdColumn]) -> tuple[int, str]:
    """Return the largest node number in columns of node numbers, -1 without any, and the source that has it."""
    found = [(table.one(f"max({whole(column, table)})")[0], table.where) for table, column in ends]
    return max(((int(number), where) for number, where in found if number is not None), default=(-1, ""))


def ids_in_order(connection: Any, numbering: Numbering) -> Array:
    """Return the ids of all nodes: words, int64, or uint64; or objects if neither type has all numbers."""
    words = numbering.id_type != "BIGINT"
    sql = f"SELECT {'CAST(id AS VARCHAR)' if words else 'id'} AS id FROM {numbering.table} ORDER BY n"
    ids = np.asarray(connection.execute(sql).fetchnumpy()["id"])
    if numbering.id_type != "HUGEINT":
        return ids.astype(str) if words else ids
    numbers = [int(word) for word in ids]
    return np.array(numbers, object if min(numbers) < 0 else np.uint64)


def mapping(connection: Any, numbering: Numbering, workspace: Any) -> dict[str, Any]:
    """Return the arrays that `names.Names` reads, by file. Memory: about 40 bytes a node."""
    arrow_type = needs("pyarrow", "names of nodes").large_binary()
    data, ends = workspace.spool("bytes", np.uint8), workspace.spool("ends", np.int64)
    ends.write([0])
    hashes = np.empty((numbering.n_nodes, 2), np.uint64)
    at = end = 0
    sql = f"SELECT CAST(id AS VARCHAR) FROM {numbering.table} ORDER BY n"
    for (column,) in batches(connection, sql):
        column = column.cast(arrow_type)
        _, offsets, buffer = column.buffers()
        stops = np.frombuffer(offsets, np.int64)[column.offset : column.offset + len(column) + 1]
        if buffer is not None:
            data.write(np.frombuffer(buffer, np.uint8)[stops[0] : stops[-1]])
        ends.write(stops[1:] - stops[0] + end)
        hashes[at : at + len(column)] = digests(column.to_pylist())
        at, end = at + len(column), end + int(stops[-1] - stops[0])
    order = np.argsort(hashes[:, 0], kind="stable")
    first = hashes[order, 0]
    if (twice := first_true(first[1:] == first[:-1])) is not None:
        raise DataError(f"names: two names have the same hash, {int(first[twice]):#x}")
    return {"bytes": data.array(), "ends": ends.array(), "hashes": workspace.array("hashes", [first]),
            "numbers": workspace.array("numbers", [order.astype(np.int64)])}


def _by_table(columns):
    """Return tables with their columns, so that one scan of a table reads all of its columns of ids."""
    grouped: dict[str, tuple[Table, list[str]]] = {}
    for table, column in columns:
        grouped.setdefault(table.name, (table, []))[1].append(column)
    return [*grouped.values()]


def _are_numbers(node_type, ends):
    """Tell whether the ids at the edges' ends are node numbers: all of them, or none."""
    counted = [(table, column, n_whole) for table, of_table in _by_table(ends)
               for column, n_whole in zip(of_table, table.one(*(f"count({whole(name, table)})" for name in of_table)))]
    total, numbers = sum(table.n_rows for table, *_ in counted), sum(n_whole for *_, n_whole in counted)
    if numbers in (0, total):
        return numbers == total
    few_words = 2 * numbers >= total
    for table, column, n_whole in counted:
        if n_whole < table.n_rows if few_words else n_whole:
            condition = f"{whole(column, table)} IS {'' if few_words else 'NOT '}NULL"
            why = _NAMES if few_words else (f"VALUE is a number, but other ids of type {node_type!r} are words; names=edges "
                                            "takes all ids for names")
            refuse(table, [Doubt(column, condition, why)])
    return few_words


def _id_type(node_type, columns):
    """Return the SQL type for comparing the ids of a node type."""
    kinds = {(column.kind, column.table.typed or column.kind == "whole") for column in columns if column.table.n_rows}
    words = next((column for column in columns if column.kind == "word" and column.table.typed and
                  column.table.n_rows), None)
    numbers = next((column for column in columns if column.kind == "whole" and column.table.n_rows), None)
    if words and numbers:
        raise DataError(f"{words.table.where}: column {words.column!r} has words, but {numbers.table.where}: column "
                        f"{numbers.column!r} has whole numbers: all ids of type {node_type!r} must be of one kind")
    if not kinds or any(kind == "word" for kind, _ in kinds):
        return "VARCHAR"
    types = [table.one(f"any_value(typeof({quote(name)}))")[0] for table, name in columns if table.n_rows]
    return "BIGINT" if all(found in _FITS_BIGINT for found in types) else "HUGEINT"


def _free_name(columns):
    connection = columns[0].table.connection
    (n,) = connection.execute("SELECT count(*) FROM duckdb_tables() WHERE table_name LIKE 'ids%'").fetchone()
    return f"temp.main.ids{n}"


def _refuse_twice(connection, numbering, listing):
    twice = connection.execute(f"SELECT min(n), max(n), any_value(id) FROM {numbering.table} GROUP BY id HAVING "
                               "count(*) > 1 ORDER BY 2 LIMIT 1").fetchone()
    if twice:
        first, again, shown = twice
        raise DataError(f"{cell(listing.table, again, listing.column)}: {shown!r} is the id of row {first}, too")
