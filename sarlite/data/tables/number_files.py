"""Text files of numbers alone, as other projects publish them: no header, one row a line."""

from typing import Any

import numpy as np

from sarlite.data.raw import check_room
from sarlite.data.tables.duckdb_errors import explained
from sarlite.data.tables.sources import batches, connect, text_bytes
from sarlite.data.tables.text_form import Reading, text_form
from sarlite.errors import DataError, regular
from sarlite.types import Array


def read_csv(path: Any, field: str, dtype: Any, n_rows: int | None = None, columns: int | None = None,
             most: int | None = None) -> Array:
    """Return the numbers of a .csv.gz without a header, read by DuckDB.

    Parameters
    ----------
    n_rows : int, optional
        Number of rows that the file must have.
    columns : int, optional
        Number of columns that the file must have.
    most : int, optional
        Largest number of rows that the file may have, if `n_rows` is not given.

    Returns
    -------
    (n_rows, n_columns) array

    Raises
    ------
    DataError
        The file cannot be read, a word is no number, or the file has more or fewer rows or columns than asked for.
    """
    found, n_read = [], 0
    limit = most if n_rows is None else n_rows
    for piece in _pieces(path, field, dtype):
        if columns is not None and piece.shape[1] != columns and len(piece):
            raise DataError(f"{path}: {field}: {piece.shape[1]} columns, expected {columns}")
        if n_rows is not None and not n_read:
            check_room(n_rows * piece.shape[1] * piece.itemsize, f"{path}: {field}")
        n_read += len(piece)
        if limit is not None and n_read > limit:
            raise DataError(f"{path}: {field}: more than the {limit} rows "
                            f"that {'may be' if n_rows is None else 'are expected'}")
        found.append(piece)
    if n_rows is not None and n_read != n_rows:
        raise DataError(f"{path}: {field}: {n_read} rows, expected {n_rows}")
    if not n_read:
        return np.empty((0, columns or found[0].shape[1]), dtype)
    return np.concatenate(found)


def _pieces(path, field, dtype):
    """Yield the rows of a text file of numbers alone, without a header, as (n, n_columns) arrays, at least one.

    Raises
    ------
    DataError
        The file cannot be read, or a word is no number. The error names the line.
    """
    with connect() as connection, explained(f"{path}: {field}"):
        form = text_form(connection, [str(regular(path))], Reading(header=False), (), text_bytes(str(path)))
        kind = "BIGINT" if np.dtype(dtype).kind in "iu" else "DOUBLE"
        found = False
        for columns in batches(connection, f"SELECT * FROM {form.relation([str(path)], kind)}", len(form.names)):
            arrays = [np.asarray(column.to_numpy(zero_copy_only=False)).astype(dtype, copy=False) for column in columns]
            found = True
            yield np.stack(arrays, 1)
        if not found:
            yield np.empty((0, len(form.names)), dtype)
