"""Text files of numbers without a header, one row per line, as other projects publish them."""

import numpy as np

from sarlite.data.raw import check_room
from sarlite.data.tables.duckdb_errors import explained
from sarlite.data.tables.sources import batches, connect, text_bytes
from sarlite.data.tables.text_form import Reading, text_form
from sarlite.errors import DataError, regular
from sarlite.types import Array, DType
from sarlite.types import Path as AnyPath


def read_csv(path: AnyPath, field: str, dtype: DType, n_rows: int | None = None, columns: int | None = None,
             most: int | None = None) -> Array:
    """Return the numbers of a text file without a header, read by DuckDB; the file may be compressed.

    Parameters
    ----------
    path : path
    field : str
        Name of the numbers in messages.
    dtype : dtype
    n_rows : int, optional
        Number of rows that the file must have.
    columns : int, optional
        Number of columns that the file must have.
    most : int, optional
        Largest number of rows that the file may have, if `n_rows` is not passed.

    Returns
    -------
    (n_rows, n_columns) array

    Raises
    ------
    DataError
        If the file cannot be read, a word is no number, or the numbers of rows or columns are not as required.
    """
    pieces, n_read = [], 0
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
        pieces.append(piece)
    if n_rows is not None and n_read != n_rows:
        raise DataError(f"{path}: {field}: {n_read} rows, expected {n_rows}")
    if not n_read:
        return np.empty((0, columns or pieces[0].shape[1]), dtype)
    return np.concatenate(pieces)


def _pieces(path, field, dtype):
    """Yield the rows of a file as (n, n_columns) arrays, at least one array."""
    with connect() as connection, explained(f"{path}: {field}"):
        form = text_form(connection, [str(regular(path))], Reading(header=False), (), text_bytes(str(path)))
        kind = "BIGINT" if np.dtype(dtype).kind in "iu" else "DOUBLE"
        any_rows = False
        for columns in batches(connection, f"SELECT * FROM {form.relation([str(path)], kind)}", len(form.names)):
            arrays = [np.asarray(column.to_numpy(zero_copy_only=False)).astype(dtype, copy=False) for column in columns]
            any_rows = True
            yield np.stack(arrays, 1)
        if not any_rows:
            yield np.empty((0, len(form.names)), dtype)
