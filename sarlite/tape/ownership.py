"""Ownership of arrays: the holder of the only reference to an array's memory may write to it."""

import sys
from collections.abc import Sequence
from typing import Any, cast

import numpy as np

from sarlite.types import Array


def is_sole(cell: Sequence[object]) -> bool:
    """Return True if cell[0] is an array and nothing but the list `cell` refers to the array's memory.

    Parameters
    ----------
    cell : sequence
        The array is the first item. The caller must hold no other reference to the array, such as a local variable.

    Notes
    -----
    The function counts references, as NumPy does before it reuses the memory of a temporary array. A view is the only
    reference to its memory if nothing else refers to the view or to the array that owns the memory. The result is
    False for memory that another library owns.

    Measured on the minibatch and full-batch benchmarks: with a new array for each sum of gradients instead, memory
    rises by 11 to 30 % and time by 0 to 4 %.

    Examples
    --------
    >>> import numpy as np
    >>> cell = [np.zeros(3)]
    >>> is_sole(cell)
    True
    >>> other = cell[0][1:]
    >>> is_sole(cell)
    False
    """
    if type(cell[0]) is np.ndarray and not cell[0].size:
        return cell[0].flags.writeable  # an empty array shares no values
    if type(cell[0]) is not np.ndarray or any(not step and n > 1 for step, n in zip(cell[0].strides, cell[0].shape)):
        return False  # values of a broadcast array share memory with each other
    return _references(cell) in (_OF_ARRAY, _OF_VIEW)


def _references(cell: Sequence[Any]) -> tuple[int, int]:
    """Return the reference counts of the array cell[0] and of the array that it is a view of; the second is 0 if it is no view.
    Both are 0 for a view of anything but a plain writable array.
    """
    base = cell[0].base
    if base is None:
        return sys.getrefcount(cell[0]), 0
    if type(base) is not np.ndarray or base.base is not None or not base.flags.writeable:
        return 0, 0
    return sys.getrefcount(cell[0]), sys.getrefcount(base)


# counts of a sole array and of a sole view, measured because Python versions count differently
_OF_ARRAY, _OF_VIEW = _references([np.empty(1)]), _references([np.empty(2)[1:]])


def writable(cell: Sequence[object]) -> Array | None:
    """Return the array cell[0], made writable, if nothing but the list `cell` refers to its memory; else None."""
    if not is_sole(cell):
        return None
    array = cast(Array, cell[0])
    if not array.flags.writeable:  # `backward` made the view read-only while the memory had another owner
        array.flags.writeable = True
    return array
