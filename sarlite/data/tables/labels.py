"""Labels from columns of a table: classes from one column, or numbers from several columns."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from sarlite.data.graph_tables import MAX_CLASSES
from sarlite.data.raw import count_outputs, in_form
from sarlite.data.tables.checks import DOUBTFUL_WORDS, CellCheck, cell, check_cells, is_missing, list_length, number, number_checks
from sarlite.data.tables.number_columns import matrix
from sarlite.data.tables.remedies import lists_remedy
from sarlite.data.tables.sources import Table, new_name
from sarlite.data.tables.sql_connection import to_array
from sarlite.data.tables.text_form import literal, quote
from sarlite.data.workspace import Workspace
from sarlite.errors import ConfigError, DataError
from sarlite.types import Array

_MANY = 30  # least number of classes that may be ids by mistake


def other_tasks(table: Table, what: str) -> str:
    """Return the end of a message about labels that are not one class for each row: the options that read other labels. `what` is the word
    for a row, such as "node".
    """
    options = [table.reading.notation.option("task", task) for task in ("multilabel", "regress")]
    return f"; labels that are not one class per {what} are read with {' or '.join(options)}"


class Labels(NamedTuple):
    """Labels of a table's rows, with the number of outputs, the class names, and the number of rows of each class.

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
                classes: int | None = None, what: str = "node", minus_one_missing: bool = False) -> Labels:
    """Return the labels in `columns` of `table` in the form of `task`. `classes` is the number of classes (None: from the labels),
    NaN is a missing label, and so is -1 if `minus_one_missing`. Messages call a row `what`.

    Parameters
    ----------
    table : Table
    columns : sequence of str
        One column of classes, or columns of numbers for another task. For "multilabel" also one column of lists of words, the
        labels of each row.
    workspace : Workspace
    task : {"classify", "multilabel", "regress"}, optional
        By default "classify".
    classes : int, optional
        Number of classes; the labels must then be 0 .. classes - 1.
    what : str
        Word for a row in messages.
    minus_one_missing : bool
        True for a list of labels by node number, in which -1 beside 0, 1, 2, ... means no label.

    Raises
    ------
    ConfigError, DataError
        If labels do not have the form of the task, or a value may or may not be a label.
    """
    if task in (None, "classify"):
        form = _class_values(table, columns[0], task, classes, what, minus_one_missing)
        n_classes = classes if classes is not None else len(form.values)
        codes = _codes(table, columns[0], form, workspace)
        return Labels(codes, n_classes, None if form.numbered else [str(value) for value in form.values], form.counts)
    spool, n = workspace.spool("labels"), 0
    where, form = f"{table.where}: column {columns[0]!r}", None
    if _are_lists_of_words(table, columns, task):
        form = _listed_values(table, columns[0], classes, what)
        expressions = [f"CAST(list_contains({quote(columns[0])}, {literal(label)}) AS DOUBLE)" for label in form.values]
    else:
        check_numbers(table, columns, task)
        expressions = [quote(name) if table.types[name] == "vector" else number(table, name) for name in columns]
    for arrays in table.batches(*expressions):
        spool.write(in_form(matrix(arrays, np.float64), where, task, n, what))
        n += len(arrays[0])
    if not n:
        spool.write(in_form(np.empty((0, len(columns))), where, task, 0, what))
    labels = spool.array()
    names, counts = (None, {}) if form is None else (form.values, form.counts)
    return Labels(labels, count_outputs(labels, where, classes, task), names, counts)


def check_labels(table: Table, columns: Sequence[str], task: str | None, classes: int | None, minus_one_missing: bool) -> None:
    """Raise a DataError for the first cell in the label `columns` of `table` that `read_labels`, with the same arguments, could not read as
    a label.
    """
    if task in (None, "classify"):
        _class_values(table, columns[0], task, classes, "node", minus_one_missing)
    elif _are_lists_of_words(table, columns, task):
        _listed_values(table, columns[0], classes, "node")
    else:
        check_numbers(table, columns, task)


def check_numbers(table: Table, columns: Sequence[str], task: str) -> None:
    """Raise a DataError unless the label `columns` of `table` hold numbers, or lists of numbers that all have the same length. If `task` is
    "multilabel" and there is one column, the message tells how to read several labels from a cell.
    """
    checks = number_checks(table, columns, missing=True, use="label")
    if task == "multilabel" and len(columns) == 1:  # its cells may have several labels
        checks = [check._replace(remedy=partial(lists_remedy, table, columns[0])) for check in checks]
    check_cells(table, checks)
    for column in columns:
        if table.types[column] == "vector":
            list_length(table, column)


def _are_lists_of_words(table, columns, task):
    """Return True if the labels in `columns` are one column of lists of words, and `task` is "multilabel"."""
    return (task == "multilabel" and len(columns) == 1 and table.types[columns[0]] == "list"
            and table.one(f"any_value(typeof({quote(columns[0])}))")[0] == "VARCHAR[]")


def _listed_values(table, column, n_classes, row_word):
    """Return the classes, as `_ClassValues`, that occur in a column of lists of words. Raise a DataError if there are none, or for a word
    like "none" that may mean a missing label. Messages call a row `row_word`.
    """
    view, name = new_name("entries"), quote(column)
    table.connection.execute(f"CREATE TEMP VIEW {view.rpartition('.')[2]} AS SELECT rowid, unnest(list_distinct({name})) AS {name} "
                             f"FROM {table.name}")
    words = replace(table, name=view, types={column: "word"}, typed=True)
    values = _class_values(words, column, "classify", n_classes, row_word, False)
    if not values.values:
        raise DataError(f"{table.where}: column {column!r}: no {row_word} has a label")
    return values


class _ClassValues(NamedTuple):
    """Classes in a column of labels: their values in ascending order, and the number of rows of each."""

    values: list[Any]
    counts: dict[str, int]
    kind: str  # "number" or "word"
    numbered: bool  # True if the classes are 0, 1, 2, ...


def _class_values(table, column, task, n_classes, row_word, minus_one_missing):
    """Return the classes in a column of labels, as `_ClassValues`. Raise an error for a value that may or may not be a class, such as
    "none"; -1 is no label if `minus_one_missing`. `n_classes` is the user's number of classes (None: from the labels), and messages call a
    row `row_word`.
    """
    where = f"{table.where}: column {column!r}"
    if table.types[column] in ("list", "vector", "date", "other"):
        shown = {"list": "lists", "vector": "lists", "date": "dates"}.get(table.types[column], "values of an unknown type")
        raise DataError(f"{where}: labels: expected one label per {row_word}, found {shown}{other_tasks(table, row_word)}")
    _refuse_doubtful_words(table, column)
    values, kind = _value_counts(table, column, row_word)
    if len(values) > MAX_CLASSES:
        raise DataError(f"{where}: more than {MAX_CLASSES} classes")
    if kind == "number":
        values = _class_numbers(table, column, values, n_classes, minus_one_missing, where)
    elif n_classes is not None:
        raise ConfigError(f"classes: {n_classes} goes with labels that are numbers, but {where} has words")
    elif task is None:
        _refuse_several(table, column, [value for value, _ in values])
    n = sum(count for _, count in values)
    if task is None and n_classes is None and len(values) >= _MANY and n < 2 * len(values):
        remedy = table.reading.notation.remedy(("task", "classify", "says that they are classes"),
                                           ("task", "regress", "reads numbers"), otherwise="name the column of the classes")
        raise DataError(f"{where}: {len(values):,} different values in {n:,} rows may be ids, not classes: {remedy}")
    class_values = [value for value, _ in values]
    numbered = kind == "number" and (n_classes is not None or class_values == [*range(len(class_values))])
    return _ClassValues(class_values, {str(value): count for value, count in values}, kind, numbered)


def _refuse_doubtful_words(table, column):
    """Raise a DataError for a word such as "none", which may be a class or a missing label, unless the option `null` tells which
    words mark missing values.
    """
    if table.types[column] != "word" or table.reading.null is not None:
        return
    name, words = quote(column), ", ".join(map(literal, DOUBTFUL_WORDS))
    sql = f"SELECT {name}, count(*), min(rowid) FROM {table.name} WHERE lower(trim({name})) IN ({words}) GROUP BY 1 ORDER BY 3"
    rows = table.connection.execute(sql).fetchall()
    if rows:
        shown = ", ".join(f"{word!r} ({n:,} row{'s' * (n > 1)})" for word, n, _ in rows)
        remedy = table.reading.notation.remedy(("null", "+".join(word for word, *_ in rows), "says that this is no label"),
                                           ("null", "nan", "says that it is a class"))
        raise DataError(f"{cell(table, rows[0][2], column)}: {shown} may be a class or no label: {remedy}")


def _refuse_several(table, column, class_names):
    """Raise a DataError if one of `class_names`, such as "a|b", seems to join several labels, because a part between "|", ";" or "," also
    occurs in another name.
    """
    for mark in "|;,":
        joined = [name for name in class_names if mark in name]
        parts = Counter(part.strip() for name in class_names for part in {*name.split(mark)}) if joined else {}
        for name in joined:
            part = next((part for part in map(str.strip, name.split(mark)) if part and parts[part] > 1), None)
            if part is not None:
                row = table.one(f"min(rowid) FILTER (WHERE {quote(column)} = {literal(name)})")[0]
                remedy = table.reading.notation.remedy(("task", "classify", "says that it is a class"),
                                                   ("task", "multilabel", "reads lists of labels"))
                raise DataError(f"{cell(table, row, column)}: {name!r} may be several labels, as {part!r} is in another class, too: "
                                f"{remedy}: {lists_remedy(table, column)}")


def _value_counts(table, column, row_word):
    """Return (list of (value, number of rows) in ascending order of values, "number" or "word") for a column of labels. Raise a DataError
    for a number that is not whole; messages call a row `row_word`.
    """
    name, has_value = quote(column), f"NOT {is_missing(table, column)}"
    kind = table.types[column]
    if kind == "word" and not table.typed:
        n, numbers = table.one("count(*)", f"count({number(table, column)})", condition=has_value)
        named = f"lower(trim({name})) IN ('true', 'false') OR regexp_full_match(trim({name}), '[+-]?0[0-9]+')"
        kind = "float" if n == numbers and not table.one(f"count(*) FILTER (WHERE {named})")[0] else "word"
    if kind == "bool":
        kind = "word"
    if kind in ("whole", "float"):
        expression = number(table, column)
        check_cells(table, [CellCheck(column, f"{has_value} AND {expression} <> floor({expression})",
                             f"label VALUE, expected a whole number{other_tasks(table, row_word)}"),
                       CellCheck(column, f"{has_value} AND abs({expression}) > 9007199254740992",
                             f"label VALUE, expected a whole number up to 2^53{other_tasks(table, row_word)}")])
        value, kind = f"CAST({expression} AS BIGINT)", "number"
    else:
        value, kind = f"CAST({name} AS VARCHAR)", "word"
    sql = f"SELECT {value}, count(*) FROM {table.name} WHERE {has_value} GROUP BY 1 ORDER BY 1 LIMIT {MAX_CLASSES + 1}"
    return table.connection.execute(sql).fetchall(), kind


def _class_numbers(table, column, value_counts, n_classes, minus_one_missing, column_name):
    """Return the (class number, number of rows) pairs in `value_counts`, without -1 if `minus_one_missing` or `n_classes` shows that it
    marks a missing label. Raise an error for a doubtful -1, and for a number outside 0 to `n_classes` - 1 (None: no limit). Messages call
    the column `column_name`.
    """
    rest = [pair for pair in value_counts if pair[0] != -1]
    numbers = [value for value, _ in rest]
    from_zero = numbers == [*range(len(rest))] and bool(rest)
    from_one = numbers == [*range(1, len(rest) + 1)] and len(rest) != 1  # without other numbers, all may be unlabelled
    if len(rest) < len(value_counts) and (n_classes is not None or minus_one_missing) and (from_zero or n_classes is not None):
        value_counts = rest
    elif len(rest) < len(value_counts) and (from_zero or from_one) and table.reading.null is None:
        row = table.one(f"min(rowid) FILTER (WHERE {number(table, column)} = -1)")[0]
        remedy = table.reading.notation.remedy(("null", "-1", "says that it is no label"), ("null", "nan", "that it is a class"))
        beside = f"beside {numbers[0]} to {numbers[-1]}" if numbers else "in all rows"
        raise DataError(f"{cell(table, row, column)}: -1 {beside} may be a class or no label: {remedy}")
    if n_classes is not None and value_counts and not 0 <= value_counts[0][0] <= value_counts[-1][0] < n_classes <= MAX_CLASSES:
        raise ConfigError(f"classes is {n_classes}, but must be {value_counts[-1][0] + 1} to {MAX_CLASSES}: {column_name} has "
                          f"labels from {value_counts[0][0]} to {value_counts[-1][0]}")
    return value_counts


def _codes(table, column, class_values, workspace):
    """Return the index in `class_values` of the label of each row of `table`, (n_rows,) int64; -1 for a row without a label."""
    value = f"CAST({number(table, column)} AS BIGINT)" if class_values.kind == "number" else f"CAST({quote(column)} AS VARCHAR)"
    if not class_values.numbered:
        names = ", ".join(literal(str(name)) for name in class_values.values)
        value = f"enum_code(TRY_CAST(CAST({value} AS VARCHAR) AS ENUM({names})))" if names else "-1"
    spool = workspace.spool("labels", np.int64)
    for (codes,) in table.batches(f"CAST(CASE WHEN {is_missing(table, column)} THEN -1 ELSE {value} END AS BIGINT)"):
        spool.write(to_array(codes))
    return spool.array()
