"""Reading of parts of memory-mapped arrays so that their pages do not stay in this process's resident memory."""

import math
import mmap

import numpy as np

from sarlite import kernels

BFLOAT16 = np.dtype([("bfloat16", "<u2")])
"""Dtype of stored bfloat16, the upper half of a float32. It is a record, so that arithmetic on raw rows fails."""
CHUNK_BYTES = 1 << 25
COPY_BYTES = 1 << 21


def widened(rows):
    """Return bfloat16 rows as float32, which is exact; other rows are returned unchanged."""
    return kernels.widen(np.ascontiguousarray(rows).view(np.uint16)) if rows.dtype == BFLOAT16 else rows


def dtype_name(dtype):
    """Return the name of a dtype for messages, such as "float32" or "bfloat16"."""
    return "bfloat16" if dtype == BFLOAT16 else np.dtype(dtype).name


def pieces(array, chunk_bytes=CHUNK_BYTES):
    """Yield (start, rows) for consecutive rows of an array, about `chunk_bytes` at a time.

    A memory-mapped array is mapped anew for each piece, so that the pages of the previous piece can be released.
    """
    if array.ndim == 0 or array.shape[0] == 0:
        return
    row_bytes = max(1, array.nbytes // array.shape[0])
    step = max(1, chunk_bytes // row_bytes)
    for start in range(0, array.shape[0], step):
        yield start, part(array, start, min(start + step, array.shape[0]))


def part(array, start, stop):
    """Return `array[start:stop]` without a copy. A memory map of a whole file is mapped anew, so that its pages can be released
    when the part is freed.
    """
    return np.asarray(fresh(array))[start:stop]


def take(array, ids, dtype=None, chunk_bytes=CHUNK_BYTES):
    """Return `array[ids]` as a new C-contiguous array of `dtype` (None: the array's). Rows are read in ascending order of the ids,
    `chunk_bytes` at a time, so few pages of a memory map are resident.

    Memory: the result, 8 bytes per id, and a chunk.
    """
    out = np.empty((ids.size, *array.shape[1:]), dtype or array.dtype)
    row_bytes = max(1, array.nbytes // max(1, array.shape[0]))
    step = max(1, chunk_bytes // row_bytes)
    ascending = np.argsort(ids, kind="stable")
    for start in range(0, ids.size, step):
        chosen = ascending[start : start + step]
        out[chosen] = np.asarray(fresh(array))[ids[chosen]]
    return out


def gather(array, positions):
    """Return `array[positions]` as a new array. If `array` is a memory map of a whole file, its pages do not stay resident."""
    if positions.size and positions[-1] - positions[0] == positions.size - 1 and (np.diff(positions) == 1).all():
        return part(array, int(positions[0]), int(positions[-1]) + 1)
    return np.asarray(fresh(array))[positions]


def copied(array, start, stop, dtype=None):
    """Return a C-contiguous copy of `array[start:stop]` in `dtype` (None: the array's). A memory map's rows are read with file I/O,
    so none of its pages stay resident.
    """
    dtype = np.dtype(dtype or array.dtype)
    if not is_whole_map(array):
        rows = array[start:stop]
        return np.ascontiguousarray(rows if dtype == array.dtype else widened(rows), dtype)
    row_bytes, shape = array.nbytes // max(1, array.shape[0]), array.shape[1:]
    if dtype == array.dtype:
        return _read(array, start, stop, row_bytes)
    out, step = np.empty((stop - start, *shape), dtype), max(1, COPY_BYTES // max(1, row_bytes))
    for at in range(start, stop, step):
        out[at - start : at - start + step] = widened(_read(array, at, min(at + step, stop), row_bytes))
    return out


def _read(array, start, stop, row_bytes):
    shape = (stop - start, *array.shape[1:])
    rows = np.fromfile(array.filename, array.dtype, math.prod(shape), offset=array.offset + start * row_bytes)
    return rows.reshape(shape)


def is_whole_map(array):
    """Return True if an array is a read-only, C-contiguous memory map of a whole file."""
    whole = isinstance(array, np.memmap) and isinstance(array.base, mmap.mmap) and array.filename is not None
    return whole and array.mode == "r" and array.flags.c_contiguous  # rows in Fortran order are not contiguous in the file


def fresh(array):
    """Return a new memory map of the same file if `array` maps a whole file; any other array, including a slice, unchanged."""
    if is_whole_map(array):
        return np.memmap(array.filename, array.dtype, "r", array.offset, array.shape)
    return array
