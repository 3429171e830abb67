"""Numbering of the nodes of one type: row numbers for ids that are words or whole numbers.

Words are compared as words and whole numbers as numbers.
"""

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import numpy as np

from sarlite.data.names import digests
from sarlite.data.tables.checks import DOUBTFUL_WORDS, MISSING, CellCheck, cell, check_cells, id_checks, node_number
from sarlite.data.tables.remedies import left_out, query_remedy, trimmed
from sarlite.data.tables.sources import Table, batches, new_name
from sarlite.data.tables.sql_connection import Connection
from sarlite.data.tables.text_form import literal, quote
from sarlite.data.workspace import Workspace
from sarlite.errors import DataError, import_optional
from sarlite.structure.validation import first_true
from sarlite.types import Array, JsonDict

_FITS_BIGINT = ("TINYINT", "SMALLINT", "INTEGER", "BIGINT", "UTINYINT", "USMALLINT", "UINTEGER")
_HASH = "hash({})"  # joining by hash is faster for words; correct if all ids are listed and their hashes are distinct
FOLDED = ("lower(trim(CASE WHEN strlen({0}) = length({0}) THEN {0} ELSE "  # of ASCII letters; bytes and letters
          "nfc_normalize(regexp_replace({0}, '[\u00ad\u200b-\u200f\u2060\ufeff]', '', 'g')) END))")
"""SQL of an id without blanks, invisible letters, capitals, and differences between Unicode forms."""
_CANONICAL = "'0|-?[1-9][0-9]{0,18}'"  # of a whole number in words, which the same digits in Parquet equal


class IdColumn(NamedTuple):
    """Column of node ids in a table."""

    table: Table
    column: str

    @property
    def kind(self) -> str:
        """Kind of the column's values, as in `Table.types`; only "word" (text) and "whole" (whole numbers) can be ids."""
        return self.table.types[self.column]


class NodeNumbering(NamedTuple):
    """Mapping of the ids of one node type to row numbers 0 .. n_nodes - 1, held in a DuckDB table.

    Attributes
    ----------
    n_nodes : int
    id_type : str or None
        SQL type in which ids are compared; None if the ids are the row numbers.
    table : str
        Table of DuckDB with each id, `id`, and its row number, `n`.
    listed_in : str or None
        Source and column that list all nodes; None if only the edges name the nodes.
    form : str
        SQL expression of the join key of an id, with {} for the id: the id itself, or its hash.
    """

    n_nodes: int
    id_type: str | None = None
    table: str = ""
    listed_in: str | None = None
    form: str = "{}"

    def typed(self, column: str) -> str:
        """Return the SQL expression that casts the ids in `column` to the numbering's type of ids, so that they can be compared."""
        return f"CAST({column} AS {self.id_type})"

    def key(self, column: str) -> str:
        """Return the SQL expression that joins the ids in `column` with the table of nodes: the ids, or hashes of words, which are joined
        faster.
        """
        return self.form.format(self.typed(column))


def number_nodes(node_type: str, listing: IdColumn | None, ends: Sequence[IdColumn], ids_are_names: bool,
                 n_nodes: int | None) -> NodeNumbering | None:
    """Return a NodeNumbering of the ids in the column `listing` or, if that is None, in `ends`, the columns of edges' ends. Return None if
    ids in `ends` are row numbers already: `ids_are_names` is False, and all are whole numbers or the number of nodes, `n_nodes`, is given.

    Parameters
    ----------
    node_type : str
    listing : IdColumn or None
        Column whose row i has the id of node i.
    ends : sequence of IdColumn
        Columns of edges' ends.
    ids_are_names : bool
        If True, whole numbers are names of nodes too.
    n_nodes : int or None
        Number of nodes; if it is known, the ids are node numbers.

    Raises
    ------
    DataError
        If an id is missing, appears twice in the listing, or is of another kind than the other ids of the type.
    """
    columns = [*([listing] if listing else []), *ends]
    for table, of_table in _by_table(columns):
        check_cells(table, [check for column in of_table for check in id_checks(table, column)])
    if listing is None and not ids_are_names and (n_nodes is not None or _are_numbers(node_type, ends)):
        for end in ends:
            check_cells(end.table, [_no_number(end.table, end.column)])
        return None
    id_type = _id_type(node_type, columns)
    numbering = NodeNumbering(0, id_type, new_name("ids"), f"{listing.table.where}, column {listing.column!r}" if listing else None)
    connection = columns[0].table.connection
    if listing:
        connection.execute(f"CREATE TEMP TABLE {numbering.table} AS SELECT {numbering.typed(quote(listing.column))} AS id, "
                           f"CAST(rowid AS UINTEGER) AS n FROM {listing.table.name}")
        _refuse_twice(connection, numbering, listing)
        return numbering._replace(n_nodes=listing.table.n_rows)
    every = " UNION ALL ".join(f"SELECT {numbering.typed(quote(column))} AS id FROM {table.name}" for table, column in ends)
    connection.execute(f"CREATE TEMP TABLE {numbering.table} AS SELECT id, CAST(row_number() OVER (ORDER BY id) - 1 AS "
                       f"UINTEGER) AS n FROM (SELECT DISTINCT id FROM ({every}))")
    _refuse_doubtful(connection, numbering, ends)
    n, n_hashes = connection.execute(f"SELECT count(*), count(DISTINCT {_HASH.format('id')}) FROM {numbering.table}").fetchone()
    return numbering._replace(n_nodes=n, form=_HASH if id_type == "VARCHAR" and n_hashes == n else "{}")


def _refuse_doubtful(connection, numbering, ends):
    """Raise a DataError for an id in the columns `ends` such as "NA" or "nan", which may be a name or a missing id. It is accepted if the
    user's option `null` lists other words only.
    """
    words = ", ".join(map(literal, (*MISSING, *DOUBTFUL_WORDS)))
    sql = f"SELECT id FROM {numbering.table} WHERE lower(trim(id)) IN ({words}) ORDER BY id"
    ids = [word for (word,) in connection.execute(sql).fetchall()] if numbering.id_type == "VARCHAR" else []
    for table, column in ends if ids else ():
        odd = [word for word in ids if table.reading.null is None or word in table.reading.null]
        other = next((word for word in MISSING[1:] if word not in ids), "none")
        named = table.reading.notation.remedy(("null", other, "says that it is a name"),
                                              otherwise="a table of nodes with this name settles it")
        check_cells(table, [CellCheck(column, f"{quote(column)} = {literal(word)}", f"VALUE may be a name or no id: {named}",
                                      partial(left_out, table, column)) for word in odd])


def largest(ends: Sequence[IdColumn]) -> tuple[int, str]:
    """Return (largest node number in the columns `ends`, name of the source that has it); (-1, "") if no column has a node number."""
    maxima = [(table.one(f"max({node_number(table, column)})")[0], table.where) for table, column in ends]
    return max(((int(number), where) for number, where in maxima if number is not None), default=(-1, ""))


def alike(connection: Connection, numbering: NodeNumbering) -> JsonDict | None:
    """Return {"ids": number of ids that differ from another id only in blanks, capitals or Unicode form, "example": two of them}; None
    if there are none.
    """
    if numbering.id_type != "VARCHAR":
        return None
    folded = FOLDED.format("id")
    n, n_folded = connection.execute(f"SELECT count(*), count(DISTINCT {_HASH.format(folded)}) FROM {numbering.table}").fetchone()
    if n == n_folded:
        return None
    groups = f"SELECT count(*) AS n, [min(id), max(id)] AS example FROM {numbering.table} GROUP BY {folded} HAVING count(*) > 1"
    n, example = connection.execute(f"SELECT sum(n), min(example) FROM ({groups})").fetchone()
    return {"ids": int(n), "example": example} if n else None


def ids_in_order(connection: Connection, numbering: NodeNumbering) -> Array:
    """Return the ids of all nodes in the order of their row numbers, (n_nodes,): words, int64, uint64, or objects if neither
    integer type fits.
    """
    words = numbering.id_type != "BIGINT"
    sql = f"SELECT {'CAST(id AS VARCHAR)' if words else 'id'} AS id FROM {numbering.table} ORDER BY n"
    ids = np.asarray(connection.execute(sql).fetchnumpy()["id"])
    if numbering.id_type != "HUGEINT":
        return ids.astype(str) if words else ids
    numbers = [int(word) for word in ids]
    return np.array(numbers, object if min(numbers) < 0 else np.uint64)


def mapping(connection: Connection, numbering: NodeNumbering, workspace: Workspace) -> dict[str, Array]:
    """Return {file name: array} that `names.Names` needs to look up nodes: the bytes of all names, where each name ends, their
    hashes and node numbers.

    Memory: about 40 bytes per node.
    """
    arrow_type = import_optional("pyarrow", "names of nodes").large_binary()
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


def _by_table(id_columns):
    """Return a list of (table, names of its id columns) from `id_columns`, so that one scan of a table reads all of its id columns."""
    grouped: dict[str, tuple[Table, list[str]]] = {}
    for table, column in id_columns:
        grouped.setdefault(table.name, (table, []))[1].append(column)
    return [*grouped.values()]


def _are_numbers(node_type, ends):
    """Return True if all ids in `ends`, the columns of edges' ends, are node numbers, and False if none is. Raise a DataError for a
    mixture.
    """
    counted = [(table, column, n_whole) for table, of_table in _by_table(ends)
               for column, n_whole in zip(of_table, table.one(*(f"count({node_number(table, name)})" for name in of_table)))]
    total, numbers = sum(table.n_rows for table, *_ in counted), sum(n_whole for *_, n_whole in counted)
    if numbers in (0, total):
        return numbers == total
    few_words = 2 * numbers >= total
    for table, column, n_whole in counted:
        if n_whole < table.n_rows if few_words else n_whole:
            why = f"VALUE is a number, but other ids of type {node_type!r} are words; {_all_names(table)}"
            check_cells(table, [_no_number(table, column) if few_words else
                                CellCheck(column, f"{node_number(table, column)} IS NOT NULL", why)])
    return few_words


def _no_number(table, column):
    """Return the check that refuses an end of an edge that is not a node number."""
    return CellCheck(column, f"{node_number(table, column)} IS NULL", "VALUE is not a node number, but other ids are", lambda value: (
        trimmed(table, column) if str(value) != str(value).strip() else _all_names(table)))


def _all_names(table):
    return table.reading.notation.remedy(("names", "edges", "treats all ids as names"))


def count_distinct(ends: Sequence[IdColumn]) -> int:
    """Return the number of distinct node numbers in the columns `ends`."""
    every = " UNION ALL ".join(f"SELECT {node_number(table, column)} AS id FROM {table.name}" for table, column in ends)
    return int(ends[0].table.connection.execute(f"SELECT count(DISTINCT id) FROM ({every})").fetchone()[0])


def _id_type(node_type, id_columns):
    """Return the SQL type, of words or of whole numbers, that all ids of `node_type` are cast to for comparison. Raise a DataError
    if some of `id_columns` hold words and others whole numbers.
    """
    kinds = {column.kind for column in id_columns if column.table.n_rows}
    words = next((column for column in id_columns if column.kind == "word" and column.table.typed and column.table.n_rows), None)
    numbers = next((column for column in id_columns if column.kind == "whole" and column.table.n_rows), None)
    if words and numbers:
        raise DataError(f"{words.table.where}: column {words.column!r} has words, but {numbers.table.where}: column "
                        f"{numbers.column!r} has whole numbers: all ids of type {node_type!r} must be of one kind")
    if not kinds or words or not all(column.kind == "whole" or _is_canonical(*column) for column in id_columns):
        return "VARCHAR"
    id_columns = [column for column in id_columns if column.kind == "whole"]
    types = [table.one(f"any_value(typeof({quote(name)}))")[0] for table, name in id_columns if table.n_rows]
    return "BIGINT" if all(type_name in _FITS_BIGINT for type_name in types) else "HUGEINT"


def _is_canonical(table, column):
    """Return True if all words of a column are 64-bit whole numbers without a plus sign or leading zeros."""
    name = quote(column)
    is_whole = f"regexp_full_match({name}, {_CANONICAL}) AND TRY_CAST({name} AS BIGINT) IS NOT NULL"
    if not table.n_rows or not table.one(f"bool_and({is_whole})", condition="rowid = 0")[0]:  # most columns of words end here
        return not table.n_rows
    return bool(table.one(f"bool_and({is_whole})")[0])


def _refuse_twice(connection, numbering, listing):
    """Raise a DataError if an id in the DuckDB table of `numbering` occurs twice in `listing`, the column that lists the nodes."""
    twice = connection.execute(f"SELECT min(n), max(n), any_value(id) FROM {numbering.table} GROUP BY id HAVING "
                               "count(*) > 1 ORDER BY 2 LIMIT 1").fetchone()
    if twice:
        first, again, shown = twice
        remedy = query_remedy(listing.table, f"SELECT DISTINCT ON ({quote(listing.column)}) *", "ORDER BY ALL", "keeps one row of each id")
        raise DataError(f"{cell(listing.table, again, listing.column)}: {shown!r} is the id of row {first}, too; {remedy}")
