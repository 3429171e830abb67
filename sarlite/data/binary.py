"""Writing and memory-mapping of little-endian binary files: a header, followed by arrays whose sizes the header implies."""

import contextlib
import math
import os
from pathlib import Path

import numpy as np

from sarlite.data.mapped import pieces
from sarlite.errors import ConfigError, DataError, reading, regular, writing
from sarlite.files import atomic_file


def header(path, *fields):
    """Return ({name: value}, size of the header in bytes) from the start of the binary file `path`. The header holds `fields`,
    (name, dtype) each, without gaps.

    Parameters
    ----------
    path : path
    *fields : (name, dtype)

    Returns
    -------
    values : dict of str to int or bytes
    end : int
        Offset in bytes at which the header ends.

    Raises
    ------
    DataError
        If the file cannot be read, or ends within a field. The message names the field.
    """
    with reading(path, fields[0][0]):
        with regular(path).open("rb") as file:
            data = file.read(sum(np.dtype(dtype).itemsize for _, dtype in fields))
        values, at = {}, 0
        for name, dtype in fields:
            end = at + np.dtype(dtype).itemsize
            if end > len(data):
                raise DataError(f"{path}: {name}: the file ends after {len(data)} bytes, within its header")
            values[name] = np.frombuffer(data[at:end], dtype)[0].item()
            at = end
    return values, at


def arrays(path, offset, *fields):
    """Return read-only memory maps of the arrays in a binary file from byte `offset` to its end. `fields` are their (name, dtype,
    shape), in order.

    Parameters
    ----------
    path : path
    offset : int
        Position of the first array in bytes.
    *fields : (name, dtype, shape)

    Raises
    ------
    DataError
        If the file ends within an array, which the message names, or is longer than the arrays.
    """
    with reading(path, fields[0][0]):
        size, starts = file_size(path), [offset]
        for _, dtype, shape in fields:
            starts.append(starts[-1] + np.dtype(dtype).itemsize * math.prod(shape))
        if size != starts[-1]:
            short = next((name for (name, *_), end in zip(fields, starts[1:]) if end > size), None)
            raise DataError(f"{path}: {short or fields[-1][0]}: {size} bytes, but its header needs {starts[-1]}: "
                            f"{'the file was cut' if short else 'something was added'}")  # fmt: skip
        return [np.memmap(path, dtype, "r", start, shape) if math.prod(shape) else np.empty(shape, dtype)
                for (_, dtype, shape), start in zip(fields, starts)]


def file_size(path):
    """Return the size of a regular file in bytes; an OSError is raised if the file cannot be read."""
    return regular(path).stat().st_size


@contextlib.contextmanager
def output(path, overwrite=False):
    """Yield a function that appends arrays or bytes to the file `path`. The file appears whole at the end of the context or, after
    an error, not at all.

    Memory-mapped arrays are copied in pieces.

    Raises
    ------
    ConfigError
        If `path` exists and `overwrite` is False.
    DataError
        If the file cannot be written.
    """
    refuse_existing(path, overwrite)
    with writing(path), atomic_file(path) as (_, file):
        yield lambda data: _append(file, data)


def refuse_existing(path, overwrite):
    """Raise a ConfigError if `path` exists and `overwrite` is False."""
    if os.path.lexists(path) and not overwrite:
        raise ConfigError(f"{Path(path)}: exists already; --overwrite (overwrite=True) replaces it")


def _append(file, data):
    if isinstance(data, bytes):
        file.write(data)
        return
    for _, piece in pieces(data):
        if piece.size:
            file.write(memoryview(np.ascontiguousarray(piece, piece.dtype.newbyteorder("<"))).cast("B"))
