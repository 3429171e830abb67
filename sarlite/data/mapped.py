"""Read parts of a memory-mapped array without keeping its pages in this process."""

import math
import mmap

import numpy as np

from sarlite import kernels

BFLOAT16 = np.dtype([("bfloat16", "<u2")])
"""The dtype of rows stored as the upper halves of float32: a record, so that no arithmetic misreads the rows."""
CHUNK_BYTES = 1 << 25
COPY_BYTES = 1 << 21


def widened(rows):
    """Return rows of bfloat16 as float32, which is exact; others as they are."""
    return kernels.widen(np.ascontiguousarray(rows).view(np.uint16)) if rows.dtype == BFLOAT16 else rows


def dtype_name(dtype):
    """Return what messages call a dtype."""
    return "bfloat16" if dtype == BFLOAT16 else np.dtype(dtype).name


def pieces(array, chunk_bytes=CHUNK_BYTES):
    """Yield (start, rows) over an array's first axis, `chunk_bytes` at a time.

    A memory-mapped array is mapped anew for each piece, so the pages of the piece before leave the process.
    """
    if array.ndim == 0 or array.shape[0] == 0:
        return
    row_bytes = max(1, array.nbytes // array.shape[0])
    step = max(1, chunk_bytes // row_bytes)
    for start in range(0, array.shape[0], step):
        yield start, part(array, start, min(start + step, array.shape[0]))


def part(array, start, stop):
    """Return `array[start:stop]`: a view, or for a whole memory-mapped array a view of a map of its own."""
    return np.asarray(fresh(array))[start:stop]


def take(array, ids, dtype=None, chunk_bytes=CHUNK_BYTES):
    """Return `array[ids]` as a new C-contiguous array of `dtype`; whatever the order of `ids`, it is read in sequence.

    Memory: the result, 8 bytes an id and one chunk.
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
    """Return `array[positions]`; of a whole memory-mapped array no pages stay."""
    if positions.size and positions[-1] - positions[0] == positions.size - 1 and (np.diff(positions) == 1).all():
        return part(array, int(positions[0]), int(positions[-1]) + 1)
    return np.asarray(fresh(array))[positions]


def copied(array, start, stop, dtype=None):
    """Return `array[start:stop]`, C-contiguous and of `dtype`; of a whole map it is read from the file, not mapped."""
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
    found = np.fromfile(array.filename, array.dtype, math.prod(shape), offset=array.offset + start * row_bytes)
    return found.reshape(shape)


def is_whole_map(array):
    whole = isinstance(array, np.memmap) and isinstance(array.base, mmap.mmap) and array.filename is not None
    return whole and array.mode == "r" and array.flags.c_contiguous  # rows in Fortran's order are no pieces of the file


def fresh(array):
    """Map a whole memory-mapped file again; any other array (slices included) is returned as it is."""
    if is_whole_map(array):
        return np.memmap(array.filename, array.dtype, "r", array.offset, array.shape)
    return array
