"""Labels from columns of a table: values of one column are classes, or several columns have numbers."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from sarlite.data.graph_tables import MAX_CLASSES
from sarlite.data.raw import count_outputs, in_form
from sarlite.data.tables.checks import DOUBTFUL, Doubt, is_missing, number, number_doubts, refuse, vectors
from sarlite.data.tables.number_columns import matrix
from sarlite.data.tables.sources import Table
from sarlite.data.tables.text_form import literal, quote
from sarlite.errors import ConfigError, DataError, needs

_TASKS = "; what is not one class a {what} is read with task=multilabel or task=regress"


class Labels(NamedTuple):
    """Labels in their task's form.

    Attributes
    ----------
    labels : (n,) or (n, k) array
    n_outputs : int
        Number of classes, labels or values.
    class_names : list of str, optional
        Names of the classes, unless the classes are 0, 1, 2, ...
    counts : dict of str to int
        Number of rows of each class.
    """

    labels: Any
    n_outputs: int
    class_names: list[str] | None
    counts: dict[str, int]


def read_labels(table: Table, columns: Sequence[str], workspace: Any, task: str | None = None,
                classes: int | None = None, what: str = "node", by_number: bool = False) -> Labels:
    """Return the labels in a table's rows. A missing value is no label.

    Parameters
    ----------
    table : Table
    columns : sequence of str
        One column of classes; or of another task columns of numbers.
    workspace : Workspace
    task : {"classify", "multilabel", "regress"}, optional
    classes : int, optional
        Number of classes, whose labels are then 0 .. classes - 1.
    what : str
        Name of a row in messages.
    by_number : bool
        True for a list of labels by node number, where -1 beside 0, 1, 2, ... is no label.

    Raises
    ------
    ConfigError, DataError
        Labels are not of the task's form, or it is in doubt whether a value is a label.
    """
    if task in (None, "classify"):
        return _classes(table, columns[0], workspace, classes, what, by_number)
    lists = [column for column in columns if table.types[column] == "list"]
    refuse(table, number_doubts(table, columns, missing=True))
    for column in lists:
        vectors(table, column)
    spool, n = workspace.spool("labels"), 0
    where = f"{table.where}: column {columns[0]!r}"
    for found in table.batches(*(quote(name) if name in lists else number(table, name) for name in columns)):
        spool.write(in_form(matrix(found, np.float64), where, task, n, what))
        n += len(found[0])
    if not n:
        spool.write(in_form(np.empty((0, len(columns))), where, task, 0, what))
    labels = spool.array()
    return Labels(labels, count_outputs(labels, where, classes, task), None, {})


def _classes(table, column, workspace, classes, what, by_number):
    where = f"{table.where}: column {column!r}"
    if table.types[column] in ("list", "date", "other"):
        shown = {"list": "lists", "date": "dates"}.get(table.types[column], "values of an unknown type")
        raise DataError(f"{where}: labels: expected one label a {what}, found {shown}{_TASKS.format(what=what)}")
    _refuse_doubtful(table, column)
    values, kind = _values(table, column, what)
    if len(values) > MAX_CLASSES:
        raise DataError(f"{where}: more than {MAX_CLASSES} classes")
    known = [value for value, _ in values]
    if kind == "number":
        known, values = _numbers(table, column, known, values, classes, by_number, where)
    elif classes is not None:
        raise ConfigError(f"classes: {classes} means nothing where {where} has words")
    counts = {str(value): n for value, n in values}
    numbered = kind == "number" and (classes is not None or known == [*range(len(known))])
    n_classes = classes if classes is not None else len(known)
    codes = _codes(table, column, kind, known, numbered, workspace)
    return Labels(codes, n_classes, None if numbered else [str(value) for value in known], counts)


def _refuse_doubtful(table, column):
    if table.types[column] == "word" and table.reading.null is None:
        words = ", ".join(map(literal, DOUBTFUL))
        refuse(table, [Doubt(column, f"lower(trim({quote(column)})) IN ({words})",
                             "VALUE may be a class or no label: null=WORD+WORD names the words that are no label (null=nan: "
                             "there are none further)")])


def _values(table, column, what):
    """Return the values with their counts, in order, and whether they are numbers or words."""
    name, there = quote(column), f"NOT {is_missing(table, column)}"
    kind = table.types[column]
    if kind == "word" and not table.typed:
        n, numbers = table.one("count(*)", f"count({number(table, column)})", condition=there)
        truths = table.one(f"count(*) FILTER (WHERE lower(trim({name})) IN ('true', 'false'))")[0]
        kind = "float" if n == numbers and not truths else "word"
    if kind == "bool":
        kind = "word"
    if kind in ("whole", "float"):
        found = number(table, column)
        refuse(table, [Doubt(column, f"{there} AND ({found} <> floor({found}) OR abs({found}) > 9007199254740992)",
                             f"label VALUE, expected a whole number{_TASKS.format(what=what)}")])
        value, kind = f"CAST({found} AS BIGINT)", "number"
    else:
        value, kind = f"CAST({name} AS VARCHAR)", "word"
    sql = f"SELECT {value} AS v, count(*) FROM {table.name} WHERE {there} GROUP BY v ORDER BY v LIMIT {MAX_CLASSES + 1}"
    return table.connection.execute(sql).fetchall(), kind


def _numbers(table, column, known, values, classes, by_number, where):
    """Return the classes that are numbers, and settle what -1 means."""
    rest = [value for value in known if value != -1]
    from_zero = rest == [*range(len(rest))] and bool(rest)
    if -1 in known and (classes is not None or by_number) and (from_zero or classes is not None):
        known, values = rest, [(value, n) for value, n in values if value != -1]
    elif -1 in known and from_zero and table.reading.null is None:
        row = table.one(f"min(rowid) FILTER (WHERE {number(table, column)} = -1)")[0]
        raise DataError(f"{table.where}: row {row}, column {column!r}: -1 beside 0 to {rest[-1]} may be a class or no "
                        "label: null=-1 says that it is no label, null=nan that it is a class")
    if classes is not None and known and not 0 <= known[0] <= known[-1] < classes <= MAX_CLASSES:
        raise ConfigError(f"classes: {classes} cannot work, expected {known[-1] + 1} to {MAX_CLASSES}: {where} has "
                          f"labels from {known[0]} to {known[-1]}")
    return known, values


def _codes(table, column, kind, known, numbered, workspace):
    """Return the number of each row's class, -1 for no label."""
    compute, arrow = needs("pyarrow.compute", table.where), needs("pyarrow", table.where)
    missing = is_missing(table, column)
    value = f"CAST({number(table, column)} AS BIGINT)" if kind == "number" else f"CAST({quote(column)} AS VARCHAR)"
    listed = arrow.array(known, arrow.int64() if kind == "number" else arrow.string())
    spool = workspace.spool("labels", np.int64)
    for (cells,) in table.batches(f"CASE WHEN {missing} THEN NULL ELSE {value} END"):
        if numbered:
            codes = np.asarray(cells.fill_null(-1))
        else:
            codes = np.asarray(compute.index_in(cells, value_set=listed).fill_null(-1))
        spool.write(codes)
    return spool.array()
