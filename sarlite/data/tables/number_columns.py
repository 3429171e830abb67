"""Columns of numbers: what a missing value becomes, and the numbers as rows of a matrix."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from sarlite.data.tables.checks import check_fill, number, number_doubts, refuse, vectors
from sarlite.data.tables.sources import Table
from sarlite.data.tables.text_form import quote
from sarlite.errors import DataError


def numbers(table: Table, columns: Sequence[str], fill: Any) -> list[str]:
    """Return the SQL expressions of columns of numbers. Missing values are filled or refused; lists stay lists."""
    fill = check_fill(fill)
    refuse(table, number_doubts(table, columns, missing=fill is not None))
    return number_expressions(table, columns, fill)


def number_expressions(table: Table, columns: Sequence[str], fill: str | None) -> list[str]:
    """Return what `numbers` does of columns whose doubts the caller refuses."""
    found = []
    for column in columns:
        if table.types[column] == "list":
            vectors(table, column)
            found.append(quote(column))
            continue
        filled = "0" if fill == "0" else None if fill is None else repr(_mean(table, column))
        value = number(table, column)
        found.append(value if filled is None else f"coalesce({value}, {filled})")
    return found


def _mean(table, column):
    """Return the exactly rounded sum of a column's numbers over their count: the same whatever the threads."""
    count = 0

    def values():
        nonlocal count
        for (cells,) in table.batches(number(table, column)):
            there = cells.drop_null().to_numpy()
            count += len(there)
            yield from there.tolist()

    total = math.fsum(values())
    if not count and table.n_rows:
        raise DataError(f"{table.where}: column {column!r}: no row has a value, so there is no mean")
    return total / max(count, 1)


def column_names(table: Table, columns: Sequence[str]) -> list[str]:
    """Return the name of each column of numbers: of a list COLUMN.0, COLUMN.1, ..."""
    names = []
    for column in columns:
        width = vectors(table, column) if table.types[column] == "list" else None
        names += [column] if width in (None, 1) else [f"{column}.{at}" for at in range(width)]
    return names


def matrix(columns: Sequence[Any], dtype: Any) -> np.ndarray:
    """Return columns of pyarrow, of numbers or lists of numbers, as an (n, k) array; a null is NaN."""
    arrays = []
    for column in columns:
        flat = column.flatten() if hasattr(column, "flatten") and "list" in str(column.type) else column
        with np.errstate(over="ignore"):  # what becomes infinite is refused by the data set's check
            arrays.append(np.asarray(flat.to_numpy(zero_copy_only=False)).astype(dtype, copy=False).reshape(
                len(column), -1 if len(column) else 1))
    if len(arrays) == 1:
        return np.ascontiguousarray(arrays[0])
    return np.concatenate(arrays, 1)
