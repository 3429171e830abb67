"""SQL expressions of table columns of numbers, and their conversion into the rows of a matrix."""

from collections.abc import Sequence

import numpy as np

from sarlite.data.tables.checks import check_cells, list_length, number, number_checks
from sarlite.data.tables.sources import Table
from sarlite.data.tables.sql_connection import Cells, to_array
from sarlite.data.tables.text_form import quote
from sarlite.types import DType


def numbers(table: Table, columns: Sequence[str]) -> list[str]:
    """Return the SQL expression of each of `columns`, which hold numbers or lists of numbers. Raise a DataError for a missing or invalid
    cell.
    """
    check_cells(table, number_checks(table, columns))
    return number_expressions(table, columns)


def number_expressions(table: Table, columns: Sequence[str]) -> list[str]:
    """Return the SQL expression of each of `columns`, which hold numbers or lists of numbers. Only the lengths of the lists are checked,
    not the cells.
    """
    for column in columns:
        if table.types[column] == "vector":
            list_length(table, column)
    return [quote(column) if table.types[column] == "vector" else number(table, column) for column in columns]


def column_names(table: Table, columns: Sequence[str]) -> list[str]:
    """Return the names of the features in `columns` of `table`: the column's name, or COLUMN.0, COLUMN.1, ... for a column of lists of
    numbers.
    """
    names = []
    for column in columns:
        width = list_length(table, column) if table.types[column] == "vector" else None
        names += [column] if width in (None, 1) else [f"{column}.{at}" for at in range(width)]
    return names


def matrix(columns: Sequence[Cells], dtype: DType) -> np.ndarray:
    """Return pyarrow arrays of numbers, or of lists of numbers, side by side as one matrix of `dtype`, shape (n, k). A null becomes NaN."""
    arrays = []
    for column in columns:
        flat = column.flatten() if hasattr(column, "flatten") and "list" in str(column.type) else column
        with np.errstate(over="ignore"):  # `Dataset.check` refuses infinite results
            arrays.append(to_array(flat).astype(dtype, copy=False).reshape(len(column), -1 if len(column) else 1))
    if len(arrays) == 1:
        return np.ascontiguousarray(arrays[0])
    return np.concatenate(arrays, 1)
