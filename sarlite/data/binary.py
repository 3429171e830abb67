"""Little-endian files of a header and arrays behind it: written, and mapped once the size is what the header says."""

import contextlib
import math
import os
from pathlib import Path

import numpy as np

from sarlite.data.mapped import pieces
from sarlite.errors import ConfigError, DataError, reading, regular, writing
from sarlite.files import whole


def header(path, *fields):
    """Return the fields that a file begins with, packed.

    Parameters
    ----------
    path : path
    *fields : (name, dtype)

    Returns
    -------
    dict of name to int, of text to bytes
    int
        Where the header ends.

    Raises
    ------
    DataError
        The file cannot be read, or ends within a field, which the message names.
    """
    with reading(path, fields[0][0]):
        with regular(path).open("rb") as file:
            data = file.read(sum(np.dtype(dtype).itemsize for _, dtype in fields))
        found, at = {}, 0
        for name, dtype in fields:
            end = at + np.dtype(dtype).itemsize
            if end > len(data):
                raise DataError(f"{path}: {name}: the file ends after {len(data)} bytes, within its header")
            found[name] = np.frombuffer(data[at:end], dtype)[0].item()
            at = end
    return found, at


def arrays(path, offset, *fields):
    """Map the arrays that stand one after the other from `offset` to a file's end, read-only; they may be unaligned.

    Parameters
    ----------
    path : path
    offset : int
    *fields : (name, dtype, shape)

    Raises
    ------
    DataError
        The file ends within an array, which the message names, or is longer.
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
    """Return a regular file's size in bytes; raises an OSError."""
    return regular(path).stat().st_size


@contextlib.contextmanager
def output(path, overwrite=False):
    """Give a function that appends arrays or bytes to a file, which appears whole or not at all; maps are streamed.

    Raises
    ------
    ConfigError
        `path` exists, without `overwrite`.
    DataError
        It cannot be written.
    """
    refuse_existing(path, overwrite)
    with writing(path), whole(path) as (_, file):
        yield lambda data: _append(file, data)


def refuse_existing(path, overwrite):
    """Raise a ConfigError where something stands at `path` that may not be replaced."""
    if os.path.lexists(path) and not overwrite:
        raise ConfigError(f"{Path(path)}: exists already; --overwrite (overwrite=True) replaces it")


def _append(file, data):
    if isinstance(data, bytes):
        file.write(data)
        return
    for _, piece in pieces(data):
        if piece.size:
            file.write(memoryview(np.ascontiguousarray(piece, piece.dtype.newbyteorder("<"))).cast("B"))
