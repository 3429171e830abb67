"""Text files of numbers without a header, one row per line, as other projects publish them."""

import numpy as np

from sarlite.data.raw import check_room
from sarlite.data.tables.duckdb_errors import explained
from sarlite.data.tables.sources import connect, text_bytes
from sarlite.data.tables.text_form import Reading, text_form
from sarlite.errors import DataError, regular
from sarlite.types import Array, DType
from sarlite.types import Path as AnyPath


def read_csv(path: AnyPath, field: str, dtype: DType, n_rows: int | None = None, columns: int | None = None,
             most: int | None = None) -> Array:
    """Return the numbers in a text file without a header, shape (n_rows, n_columns), in `dtype`. It must have `n_rows` rows (None:
    at most `most`) and `columns` columns (None: any). Messages call the numbers `field`.

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
        A missing float is NaN.

    Raises
    ------
    DataError
        If the file cannot be read, a word is no number, a whole number is missing, or the numbers of rows or columns are not
        as required.
    """
    limit, whole = most if n_rows is None else n_rows, np.dtype(dtype).kind in "iu"
    kind = "BIGINT" if whole else "FLOAT" if np.dtype(dtype) == np.float32 else "DOUBLE"
    with connect() as connection, explained(f"{path}: {field}"):
        form = text_form(connection, str(regular(path)), Reading(header=False), (), text_bytes(str(path)))
        check_room((n_rows or 0) * len(form.names) * np.dtype(dtype).itemsize, f"{path}: {field}")
        rows = "" if limit is None else f" LIMIT {limit + 1}"
        arrays = [*connection.execute(f"SELECT * FROM {form.relation([str(path)], kind)}{rows}").fetchnumpy().values()]
    n_read = len(arrays[0])
    if not n_read and not n_rows:
        return np.empty((0, columns or len(arrays)), dtype)
    if n_read and columns not in (None, len(arrays)):
        raise DataError(f"{path}: {field}: {len(arrays)} columns, expected {columns}")
    if limit is not None and n_read > limit:
        raise DataError(f"{path}: {field}: more than the {limit} rows that {'may be' if n_rows is None else 'are expected'}")
    if n_rows is not None and n_read < n_rows:
        raise DataError(f"{path}: {field}: {n_read} rows, expected {n_rows}")
    gap = next((int(np.argmax(np.ma.getmaskarray(array))) for array in arrays if whole and np.ma.is_masked(array)), None)
    if gap is not None:
        raise DataError(f"{path}: {field}: row {gap}: no number")
    return np.stack([np.ma.filled(array, array.dtype.type(0 if whole else np.nan)) for array in arrays], 1).astype(dtype, copy=False)
