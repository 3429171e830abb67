"""Checks of the arrays and numbers that a caller gives: kind, shape, range. Each error names the argument."""

import operator

import numpy as np

from sarlite.errors import DataError

MOST_NODES = 3_000_000_000  # the square of it fits 64 bits


def count(name, value, least=0, most=MOST_NODES):
    """Return a number of nodes or the like as an int, or raise a DataError that names it."""
    try:
        found = operator.index(value)
    except TypeError:
        raise DataError(f"{name}: {value!r} is not a whole number") from None
    if isinstance(value, bool | np.bool_) or not least <= found <= most:
        raise DataError(f"{name}: {value} is outside {least} <= {name} <= {most}")
    return found


def first_true(holds):
    """Return the index of the first true entry, an int or a tuple of int; None if no entry is true."""
    if not holds.any():
        return None
    at = np.unravel_index(int(np.argmax(holds)), holds.shape)
    return int(at[0]) if holds.ndim == 1 else tuple(map(int, at))


def array(name, data):
    """Return `data` as an array, shared if possible; raise a DataError if it is no array or holds Python objects."""
    try:
        found = np.asarray(data)
    except (ValueError, TypeError, RuntimeError, OverflowError, BufferError) as error:
        raise DataError(f"{name}: not an array: {str(error).partition(chr(10))[0]}") from error
    if found.dtype.hasobject:
        raise DataError(f"{name}: expected numbers, found dtype {found.dtype} of shape {found.shape}")
    return found


def integers(name, data, *, length=None, start=0, stop=1 << 63, what="id", entry="entry {at} is {value},", first=0):
    """Return integers in start <= `what` < stop as int32 or int64.

    Parameters
    ----------
    name : str
        What an error calls the array.
    data : (n,) of any integer dtype, or a sequence of integers
        Borrowed, and returned as it is where it is contiguous int32 or int64.
    length : int, optional
        The n to expect.
    entry : str
        How an error tells of the first entry that is out of range.
    first : int
        The place of the first entry, where the array is a piece of another.

    Raises
    ------
    DataError
        Another kind, shape or length; an entry out of range, of which the first is named. An empty array may be of any
        kind.
    """
    found = array(name, data)
    if found.ndim != 1:
        raise DataError(f"{name}: expected one dimension, found shape {found.shape}")
    if found.dtype.kind not in "iu" and found.size:
        raise DataError(f"{name}: expected an integer dtype, found {found.dtype}")
    if length is not None and found.shape != (length,):
        raise DataError(f"{name}: expected shape ({length},), found {found.shape}")
    if found.size and (int(found.min()) < start or int(found.max()) >= stop):
        at = int(np.argmax((found < start) | (found > stop - 1)))
        raise DataError(f"{name}: {entry.format(at=first + at, value=found[at])} outside {start} <= {what} < {stop}")
    return np.ascontiguousarray(found, found.dtype if found.dtype in (np.int32, np.int64) else np.int64)


def permutation(name, data, n, **how):
    """Return a permutation of 0 .. n - 1, (n,) integers, checked as by `integers`."""
    found = integers(name, data, length=n, stop=n, **how)
    missing = np.ones(n, bool)
    missing[found] = False
    if (at := first_true(missing)) is not None:
        raise DataError(f"{name}: {how.get('what', 'id')} {at} is missing, so another is there twice")
    return found


def bools(name, data, length):
    """Return (length,) bools, contiguous."""
    found = array(name, data)
    if found.dtype != bool or found.shape != (length,):
        raise DataError(f"{name}: expected {length} bools, found shape {found.shape}, dtype {found.dtype}")
    return np.ascontiguousarray(found)


def weights(name, data, length):
    """Return finite edge weights, (length,): float32 and float64 unchanged, other numbers as float64."""
    found = array(name, data)
    if found.dtype.kind not in "biuf" or found.shape != (length,):
        described = f"shape {found.shape}, dtype {found.dtype}"
        raise DataError(f"{name}: expected {length} numbers, one an edge, found {described}")
    found = np.ascontiguousarray(found, found.dtype if found.dtype in (np.float32, np.float64) else np.float64)
    if (at := first_true(~np.isfinite(found))) is not None:
        raise DataError(f"{name}: entry {at} is {found[at]}, expected a finite number")
    return found
