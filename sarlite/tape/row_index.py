"""Row selections by numbers, by a mask or by a slice."""

from typing import Any

import numpy as np

from sarlite.errors import DataError, ShapeError
from sarlite.tape.tensor import as_array
from sarlite.types import Array, ArrayLike


def selected_rows(name: str, rows: ArrayLike | slice, n_rows: int) -> Array:
    """Return the row numbers, (k,) int64, that a user's `rows` (bool mask, slice or row numbers) select of `n_rows` rows. Refuse
    integers 0 and 1 that look like a mask. Errors start with `name`.

    Raises
    ------
    DataError
        `rows` are `n_rows` integers 0 and 1, which look like a mask but would select rows 0 and 1 repeatedly.
    """
    array: Any = None if isinstance(rows, slice) else as_array(rows)
    is_mask = array is not None and n_rows > 2 and array.shape == (n_rows,) and array.dtype.kind in "iu"
    if is_mask and array.max() <= 1 and array.min() >= 0:
        raise DataError(f"{name}: {n_rows} integers 0 and 1 would select rows 0 and 1 repeatedly; "
                        "convert a mask with .astype(bool)")
    return row_numbers(name, rows if array is None else array, n_rows)


def row_numbers(name: str, rows: ArrayLike | slice, n_rows: int) -> Array:
    """Return the row numbers, (k,) int64, that `rows` (bool mask, slice or row numbers) select of `n_rows` rows. Errors start with `name`.

    Parameters
    ----------
    name : str
        Name of the selection in error messages.
    rows : (n_rows,) array of bools, slice, range, or (k,) array of integers in [0, n_rows)
        A mask selects the rows where it is True. Integers select rows in the order of the integers. An empty sequence
        selects no rows.
    n_rows : int
        Number of rows to select from.

    Returns
    -------
    (k,) int64
        Row numbers, C-contiguous.

    Raises
    ------
    ShapeError
        `rows` have another dtype or shape.
    DataError
        A row number is out of range.

    Examples
    --------
    >>> row_numbers("rows", [True, False, True], 3), row_numbers("rows", slice(1, None), 3)
    (array([0, 2]), array([1, 2]))
    """
    if isinstance(rows, slice):
        try:
            return np.arange(*rows.indices(n_rows))
        except (TypeError, ValueError) as error:
            raise ShapeError(f"{name}: {rows}: {error}") from None
    array = as_array(rows)
    if array.dtype == bool and array.shape == (n_rows,):
        return np.flatnonzero(array)
    if array.shape == (0,) and array.dtype != bool:
        return np.empty(0, np.int64)
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise ShapeError(f"{name}: {array.dtype} {array.shape} is neither {n_rows} bools, nor a slice, nor row numbers")
    wrong = np.flatnonzero((array < 0) | (array >= n_rows))
    if len(wrong):
        raise DataError(f"{name}[{wrong[0]}] is {array[wrong[0]]}, but rows are 0 .. {n_rows - 1}" if n_rows else
                        f"{name}[{wrong[0]}] is {array[wrong[0]]}, but there are no rows")
    return np.ascontiguousarray(array, np.int64)
