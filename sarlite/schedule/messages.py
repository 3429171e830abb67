"""Messages: the rows of several arrays in one buffer, with one section for each array."""

import math

import numpy as np

from sarlite import kernels
from sarlite.schedule.pieces import length

ALIGNMENT = 16


def templates_of(arrays):
    """Return the (row shape, dtype) of each array; None stays None."""
    return tuple(None if a is None else (a.shape[1:], a.dtype) for a in arrays)


def allocate(n_rows, templates, zero=False):
    """Return (buffer, tuple of views): a section of `n_rows` rows for each (row shape, dtype); None stays None."""
    buffer = (np.zeros if zero else np.empty)(layout(n_rows, templates)[1], np.uint8)
    return buffer, sections(buffer, n_rows, templates)


def sections(buffer, n_rows, templates):
    """Return the views of the arrays' sections in an existing message buffer."""
    return tuple(None if template is None else _section(buffer, start, n_rows, template)
                 for template, start in zip(templates, layout(n_rows, templates)[0]))


def layout(n_rows, templates):
    """Return the byte offset of each section, and the total number of bytes."""
    starts, end = [], 0
    for template in templates:
        starts.append(-(-end // ALIGNMENT) * ALIGNMENT)
        end = starts[-1] + (0 if template is None else n_rows * row_bytes(template))
    return starts, end


def pack(arrays, rows):
    """Return a message with some rows of each array; `rows` is a slice or row numbers. None stays None."""
    buffer, views = allocate(length(rows), templates_of(arrays))
    gather(arrays, rows, views)
    return buffer


def gather(arrays, rows, views):
    """Copy some rows of each array, or `kernels.Rows`, into its view; arrays that are None are skipped."""
    for array, view in zip(arrays, views):
        if array is not None:
            kernels.copy_rows(array, rows, view)


def row_bytes(template):
    """Return the number of bytes of one row of a template, (row shape, dtype)."""
    shape, dtype = template
    return math.prod(shape) * np.dtype(dtype).itemsize


def _section(buffer, start, n_rows, template):
    shape, dtype = template
    return buffer[start : start + n_rows * row_bytes(template)].view(dtype).reshape(n_rows, *shape)
