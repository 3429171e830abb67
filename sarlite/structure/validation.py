"""Checks of arrays and numbers from a caller: dtype, shape and range. Each error names the argument."""

import operator
from typing import Any

import numpy as np

from sarlite.errors import DataError
from sarlite.types import Array

MOST_NODES = 3_000_000_000
"""Largest number of nodes; its square fits into 64 bits."""


def count(name: str, value: Any, least: int = 0, most: int = MOST_NODES) -> int:
    """Return `value` as an int in least .. most; raise a DataError that names `name` for any other value."""
    try:
        number = operator.index(value)
    except TypeError:
        raise DataError(f"{name}: {value!r} is not a whole number") from None
    if isinstance(value, bool | np.bool_) or not least <= number <= most:
        raise DataError(f"{name}: {value} is outside {least} <= {name} <= {most}")
    return number


def first_true(mask):
    """Return the index of the first true entry of a bool array, an int or a tuple of int; None if no entry is true."""
    if not mask.any():
        return None
    at = np.unravel_index(int(np.argmax(mask)), mask.shape)
    return int(at[0]) if mask.ndim == 1 else tuple(map(int, at))


def array(name: str, data: Any) -> Array:
    """Return `data` as an ndarray, without a copy if possible; errors name `name`.

    Raise a DataError if `data` cannot be converted, or has Python objects.
    """
    try:
        values = np.asarray(data)
    except (ValueError, TypeError, RuntimeError, OverflowError, BufferError) as error:
        raise DataError(f"{name}: not an array: {str(error).partition(chr(10))[0]}") from error
    if values.dtype.hasobject:
        raise DataError(f"{name}: expected numbers, found dtype {values.dtype} of shape {values.shape}")
    return values


def integers(name: str, data: Any, *, length: int | None = None, start: int = 0, stop: int = 1 << 63, what: str = "id",
             entry: str = "entry {at} is {value},", first: int = 0) -> Array:
    """Return `data` as a contiguous int32 or int64 array; raise a DataError that names `name` unless `data` has `length` (None: any
    number of) integers in start .. stop - 1. Only the error's text uses `what` (name of an entry), `entry` (format of the text
    about a bad entry) and `first` (position of data[0] in a larger array).

    Parameters
    ----------
    name : str
        Name of the array, for errors.
    data : (n,) array of any integer dtype, or sequence of integers
        Returned without a copy if it is a contiguous int32 or int64 array. An empty array may have any dtype.
    length : int, optional
        Required n.
    start, stop : int
        Range of the entries.
    what : str
        Name of an entry, for errors.
    entry : str
        Format of an error's text about the first entry out of range, with {at} and {value}.
    first : int
        Position of the first entry, for errors, if the array is a piece of another array.

    Raises
    ------
    DataError
        The dtype, the shape or the length is wrong, or an entry is out of range.

    Examples
    --------
    >>> integers("ids", [0, 1, 7], stop=5)
    Traceback (most recent call last):
        ...
    sarlite.errors.DataError: ids: entry 2 is 7, outside 0 <= id < 5
    """
    values = array(name, data)
    if values.ndim != 1:
        raise DataError(f"{name}: expected one dimension, found shape {values.shape}")
    if values.dtype.kind not in "iu" and values.size:
        raise DataError(f"{name}: expected an integer dtype, found {values.dtype}")
    if length is not None and values.shape != (length,):
        raise DataError(f"{name}: expected shape ({length},), found {values.shape}")
    if values.size and (int(values.min()) < start or int(values.max()) >= stop):
        at = int(np.argmax((values < start) | (values > stop - 1)))
        raise DataError(f"{name}: {entry.format(at=first + at, value=values[at])} outside {start} <= {what} < {stop}")
    return np.ascontiguousarray(values, values.dtype if values.dtype in (np.int32, np.int64) else np.int64)


def permutation(name: str, data: Any, n: int, **how: Any) -> Array:
    """Return `data` as an integer array if it is a permutation of 0 .. n - 1; else raise a DataError that names `name`. `how` are
    further keyword arguments of `integers`, for the text of the error.
    """
    numbers = integers(name, data, length=n, stop=n, **how)
    missing = np.ones(n, bool)
    missing[numbers] = False
    if (at := first_true(missing)) is not None:
        raise DataError(f"{name}: {how.get('what', 'id')} {at} is missing, so another occurs twice")
    return numbers


def bools(name: str, data: Any, length: int) -> Array:
    """Return `data` as a contiguous array of bools, (length,); raise a DataError that names `name` for other arrays."""
    values = array(name, data)
    if values.dtype != bool or values.shape != (length,):
        raise DataError(f"{name}: expected {length} bools, found shape {values.shape}, dtype {values.dtype}")
    return np.ascontiguousarray(values)


def weights(name: str, data: Any, length: int) -> Array:
    """Return `data`, finite edge weights, (length,), as float32 or float64; raise a DataError, naming `name`, for others.

    Arrays of float32 and float64 keep their dtype, and other numbers become float64.
    """
    values = array(name, data)
    if values.dtype.kind not in "biuf" or values.shape != (length,):
        described = f"shape {values.shape}, dtype {values.dtype}"
        raise DataError(f"{name}: expected {length} numbers, one an edge, found {described}")
    values = np.ascontiguousarray(values, values.dtype if values.dtype in (np.float32, np.float64) else np.float64)
    if (at := first_true(~np.isfinite(values))) is not None:
        raise DataError(f"{name}: entry {at} is {values[at]}, expected a finite number")
    return values
