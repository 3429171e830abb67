"""Labels from columns of a table: classes from one column, or numbers from several columns."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from sarlite.data.graph_tables import MAX_CLASSES
from sarlite.data.raw import count_outputs, in_form
from sarlite.data.tables.checks import DOUBTFUL, Doubt, is_missing, number, number_doubts, refuse, vectors
from sarlite.data.tables.number_columns import matrix
from sarlite.data.tables.sources import Table
from sarlite.data.tables.text_form import literal, quote
from sarlite.data.workspace import Workspace
from sarlite.errors import ConfigError, DataError, import_optional
from sarlite.types import Array

_TASKS = "; labels that are not one class per {what} are read with task=multilabel or task=regress"


class Labels(NamedTuple):
    """Labels of a table's rows, with their classes and counts.

    Attributes
    ----------
    labels : (n,) or (n, k) array
    n_outputs : int
        Number of classes, labels or values.
    class_names : list of str or None
        Names of the classes; None if the classes are 0, 1, 2, ...
    counts : dict of str to int
        Number of rows of each class.
    """

    labels: Array
    n_outputs: int
    class_names: list[str] | None
    counts: dict[str, int]


def read_labels(table: Table, columns: Sequence[str], workspace: Workspace, task: str | None = None,
                classes: int | None = None, what: str = "node", by_number: bool = False) -> Labels:
    """Return the labels in a table's rows; a row with a missing value has no label.

    Parameters
    ----------
    table : Table
    columns : sequence of str
        One column of classes, or columns of numbers for another task.
    workspace : Workspace
    task : {"classify", "multilabel", "regress"}, optional
        By default "classify".
    classes : int, optional
        Number of classes; the labels must then be 0 .. classes - 1.
    what : str
        Word for a row in messages.
    by_number : bool
        True for a list of labels by node number, in which -1 beside 0, 1, 2, ... means no label.

    Raises
    ------
    ConfigError, DataError
        If labels do not have the form of the task, or a value may or may not be a label.
    """
    if task in (None, "classify"):
        return _classes(table, columns[0], workspace, classes, what, by_number)
    lists = [column for column in columns if table.types[column] == "list"]
    refuse(table, number_doubts(table, columns, missing=True))
    for column in lists:
        vectors(table, column)
    spool, n = workspace.spool("labels"), 0
    where = f"{table.where}: column {columns[0]!r}"
    for arrays in table.batches(*(quote(name) if name in lists else number(table, name) for name in columns)):
        spool.write(in_form(matrix(arrays, np.float64), where, task, n, what))
        n += len(arrays[0])
    if not n:
        spool.write(in_form(np.empty((0, len(columns))), where, task, 0, what))
    labels = spool.array()
    return Labels(labels, count_outputs(labels, where, classes, task), None, {})


def _classes(table, column, workspace, classes, what, by_number):
    """Return the labels of one column of classes."""
    where = f"{table.where}: column {column!r}"
    if table.types[column] in ("list", "date", "other"):
        shown = {"list": "lists", "date": "dates"}.get(table.types[column], "values of an unknown type")
        raise DataError(f"{where}: labels: expected one label per {what}, found {shown}{_TASKS.format(what=what)}")
    _refuse_doubtful(table, column)
    values, kind = _values(table, column, what)
    if len(values) > MAX_CLASSES:
        raise DataError(f"{where}: more than {MAX_CLASSES} classes")
    class_values = [value for value, _ in values]
    if kind == "number":
        class_values, values = _numbers(table, column, class_values, values, classes, by_number, where)
    elif classes is not None:
        raise ConfigError(f"classes: {classes} goes with labels that are numbers, but {where} has words")
    counts = {str(value): n for value, n in values}
    numbered = kind == "number" and (classes is not None or class_values == [*range(len(class_values))])
    n_classes = classes if classes is not None else len(class_values)
    codes = _codes(table, column, kind, class_values, numbered, workspace)
    return Labels(codes, n_classes, None if numbered else [str(value) for value in class_values], counts)


def _refuse_doubtful(table, column):
    """Raise a DataError for a word such as "none" that could be the name of a class or mark a missing label.

    The option `null` settles the question.
    """
    if table.types[column] == "word" and table.reading.null is None:
        words = ", ".join(map(literal, DOUBTFUL))
        refuse(table, [Doubt(column, f"lower(trim({quote(column)})) IN ({words})",
                             "VALUE may be a class or no label: null=WORD+WORD names the words that are no label "
                             "(null=nan: no further words)")])


def _values(table, column, what):
    """Count the rows of each distinct value of a column.

    The result is (value, count) pairs in ascending order, and the kind of the values, "number" or "word".
    """
    name, has_value = quote(column), f"NOT {is_missing(table, column)}"
    kind = table.types[column]
    if kind == "word" and not table.typed:
        n, numbers = table.one("count(*)", f"count({number(table, column)})", condition=has_value)
        truths = table.one(f"count(*) FILTER (WHERE lower(trim({name})) IN ('true', 'false'))")[0]
        kind = "float" if n == numbers and not truths else "word"
    if kind == "bool":
        kind = "word"
    if kind in ("whole", "float"):
        expression = number(table, column)
        refuse(table, [Doubt(column, f"{has_value} AND ({expression} <> floor({expression}) OR abs({expression}) > 9007199254740992)",
                             f"label VALUE, expected a whole number{_TASKS.format(what=what)}")])
        value, kind = f"CAST({expression} AS BIGINT)", "number"
    else:
        value, kind = f"CAST({name} AS VARCHAR)", "word"
    sql = f"SELECT {value} AS v, count(*) FROM {table.name} WHERE {has_value} GROUP BY v ORDER BY v LIMIT {MAX_CLASSES + 1}"
    return table.connection.execute(sql).fetchall(), kind


def _numbers(table, column, class_values, values, classes, by_number, where):
    """Remove -1 from the values of a column of class numbers if -1 marks a missing label.

    The result is the class values and their (value, count) pairs.

    A doubtful -1, and a value outside 0 .. classes - 1, are refused.
    """
    rest = [value for value in class_values if value != -1]
    from_zero = rest == [*range(len(rest))] and bool(rest)
    if -1 in class_values and (classes is not None or by_number) and (from_zero or classes is not None):
        class_values, values = rest, [(value, n) for value, n in values if value != -1]
    elif -1 in class_values and from_zero and table.reading.null is None:
        row = table.one(f"min(rowid) FILTER (WHERE {number(table, column)} = -1)")[0]
        raise DataError(f"{table.where}: row {row}, column {column!r}: -1 beside 0 to {rest[-1]} may be a class or no "
                        "label: null=-1 says that it is no label, null=nan that it is a class")
    if classes is not None and class_values and not 0 <= class_values[0] <= class_values[-1] < classes <= MAX_CLASSES:
        raise ConfigError(f"classes: {classes} cannot work, expected {class_values[-1] + 1} to {MAX_CLASSES}: {where} has "
                          f"labels from {class_values[0]} to {class_values[-1]}")
    return class_values, values


def _codes(table, column, kind, class_values, numbered, workspace):
    """Return the index of each row's class in `class_values`; -1 for a row without a label."""
    compute, arrow = import_optional("pyarrow.compute", table.where), import_optional("pyarrow", table.where)
    missing = is_missing(table, column)
    value = f"CAST({number(table, column)} AS BIGINT)" if kind == "number" else f"CAST({quote(column)} AS VARCHAR)"
    listed = arrow.array(class_values, arrow.int64() if kind == "number" else arrow.string())
    spool = workspace.spool("labels", np.int64)
    for (cells,) in table.batches(f"CASE WHEN {missing} THEN NULL ELSE {value} END"):
        if numbered:
            codes = np.asarray(cells.fill_null(-1))
        else:
            codes = np.asarray(compute.index_in(cells, value_set=listed).fill_null(-1))
        spool.write(codes)
    return spool.array()
