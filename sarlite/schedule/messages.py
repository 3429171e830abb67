"""Messages: rows of several arrays in one buffer of bytes, with one section for each array.

A *template* is the pair (shape of a row, dtype) of an array; None stands for an array that is not sent.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from sarlite import kernels
from sarlite.schedule.pieces import length
from sarlite.types import Array, DType, RowIndex

Template = tuple[tuple[int, ...], DType]
"""(Shape of one row, dtype) of an array."""

ALIGNMENT = 16
"""Each section starts at a multiple of this number of bytes."""


def templates_of(arrays: Sequence[Any]) -> tuple[Any, ...]:
    """Return a tuple with the template of each of `arrays`: the pair (shape of one row, dtype); None for an array that is None."""
    return tuple(None if a is None else (a.shape[1:], a.dtype) for a in arrays)


def allocate(n_rows: int, templates: Sequence[Template | None], zero: bool = False) -> tuple[Array, tuple[Any, ...]]:
    """Allocate a buffer for `n_rows` rows of several arrays, zeros if `zero`; a template, (shape of one row, dtype), describes each
    array. Return (buffer of bytes, views of the arrays in it).

    Returns
    -------
    buffer : (n_bytes,) uint8
    views : tuple of (n_rows, ...) array or None
        Each array's section of the buffer.

    Examples
    --------
    >>> buffer, (x, scores) = allocate(3, [((2,), np.float32), ((), np.float64)])
    >>> buffer.nbytes, x.shape, scores.shape
    (56, (3, 2), (3,))
    """
    buffer = (np.zeros if zero else np.empty)(layout(n_rows, templates)[1], np.uint8)
    return buffer, sections(buffer, n_rows, templates)


def sections(buffer: Array, n_rows: int, templates: Sequence[Template | None]) -> tuple[Any, ...]:
    """Return a list of views of the arrays, (n_rows, ...) each, in the bytes `buffer` of a message. A template, (shape of one row,
    dtype), describes each array; None gives None.
    """
    return tuple(None if template is None else _section(buffer, start, n_rows, template)
                 for template, start in zip(templates, layout(n_rows, templates)[0]))


def layout(n_rows: int, templates: Sequence[Template | None]) -> tuple[list[int], int]:
    """Return (byte offset of each array's section, total bytes) of a message; a template is (row shape, dtype) of an array."""
    starts: list[int] = []
    end = 0
    for template in templates:
        starts.append(-(-end // ALIGNMENT) * ALIGNMENT)
        end = starts[-1] + (0 if template is None else n_rows * row_bytes(template))
    return starts, end


def pack(arrays: Sequence[Any], rows: RowIndex) -> Array:
    """Return a new buffer of bytes with the given rows of each array; `rows` is a slice or an array of row numbers."""
    buffer, views = allocate(length(rows), templates_of(arrays))
    gather(arrays, rows, views)
    return buffer


def gather(arrays: Sequence[Any], rows: RowIndex, views: Sequence[Any]) -> None:
    """Copy array[rows] into view for each pair (array, view) of `arrays` and `views`; pairs whose array is None are skipped.

    An array may be `kernels.Rows`. `rows` is a slice or an array of row numbers.
    """
    for array, view in zip(arrays, views):
        if array is not None:
            kernels.copy_rows(array, rows, view)


def row_bytes(template: Template) -> int:
    """Return the number of bytes of one row, given its template (shape, dtype)."""
    shape, dtype = template
    return math.prod(shape) * np.dtype(dtype).itemsize


def _section(buffer, start, n_rows, template):
    shape, dtype = template
    return buffer[start : start + n_rows * row_bytes(template)].view(dtype).reshape(n_rows, *shape)
