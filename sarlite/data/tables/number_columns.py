"""Columns of numbers: replacement of missing values, and conversion into the rows of a matrix."""

import math
from collections.abc import Sequence

import numpy as np

from sarlite.data.tables.checks import check_fill, number, number_doubts, refuse, vectors
from sarlite.data.tables.sources import Table
from sarlite.data.tables.sql_connection import Cells
from sarlite.data.tables.text_form import quote
from sarlite.errors import DataError
from sarlite.types import DType


def numbers(table: Table, columns: Sequence[str], fill: object) -> list[str]:
    """Return the SQL expression of each column of numbers; missing values are replaced or refused.

    A column of lists of numbers remains a column of lists.

    Parameters
    ----------
    table : Table
    columns : sequence of str
    fill : {None, "0", "mean"}
        Replacement of missing values; None refuses them.
    """
    fill = check_fill(fill)
    refuse(table, number_doubts(table, columns, missing=fill is not None))
    return number_expressions(table, columns, fill)


def number_expressions(table: Table, columns: Sequence[str], fill: str | None) -> list[str]:
    """Return the SQL expressions of columns of numbers like `numbers`, but without checking the cells.

    The caller must check them.
    """
    expressions = []
    for column in columns:
        if table.types[column] == "list":
            vectors(table, column)
            expressions.append(quote(column))
            continue
        filled = "0" if fill == "0" else None if fill is None else repr(_mean(table, column))
        value = number(table, column)
        expressions.append(value if filled is None else f"coalesce({value}, {filled})")
    return expressions


def _mean(table, column):
    """Return the mean of a column; the sum is exactly rounded, so the number of threads does not matter."""
    count = 0

    def values():
        nonlocal count
        for (cells,) in table.batches(number(table, column)):
            present = cells.drop_null().to_numpy()
            count += len(present)
            yield from present.tolist()

    total = math.fsum(values())
    if not count and table.n_rows:
        raise DataError(f"{table.where}: column {column!r}: no row has a value, so there is no mean")
    return total / max(count, 1)


def column_names(table: Table, columns: Sequence[str]) -> list[str]:
    """Return the names of the matrix columns; a column of lists gives COLUMN.0, COLUMN.1, ..."""
    names = []
    for column in columns:
        width = vectors(table, column) if table.types[column] == "list" else None
        names += [column] if width in (None, 1) else [f"{column}.{at}" for at in range(width)]
    return names


def matrix(columns: Sequence[Cells], dtype: DType) -> np.ndarray:
    """Stack pyarrow arrays of numbers, or of lists of numbers, into one (n, k) matrix; a null becomes NaN."""
    arrays = []
    for column in columns:
        flat = column.flatten() if hasattr(column, "flatten") and "list" in str(column.type) else column
        with np.errstate(over="ignore"):  # `Dataset.check` refuses infinite results
            arrays.append(np.asarray(flat.to_numpy(zero_copy_only=False)).astype(dtype, copy=False).reshape(
                len(column), -1 if len(column) else 1))
    if len(arrays) == 1:
        return np.ascontiguousarray(arrays[0])
    return np.concatenate(arrays, 1)
