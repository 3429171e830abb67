"""Reading and writing of single .npy files.

A file is hashed while it is written. Before a file is mapped, its header is compared with its size and with its
record, the dtype and shape that meta.json states.
"""

import builtins
import contextlib
import hashlib
import io
import math
import os
import threading

import numpy as np

from sarlite.data.mapped import BFLOAT16, CHUNK_BYTES, pieces
from sarlite.errors import DataError, reading, regular, writing
from sarlite.progress import Step

HEAD = 1 << 14  # most bytes of a header; NumPy refuses headers of more than 10,000 bytes
_ONE_AT_A_TIME = threading.Lock()
"""Lock for NumPy's header parser, which uses `ast`: from Python 3.11 on, concurrent threads may get a SystemError."""


class Stream:
    """A .npy file of known shape, written in pieces along its first axis and hashed while it is written.

    Parameters
    ----------
    path : path
    shape : tuple of int
    dtype : dtype
        Stored little-endian.
    shown : path, optional
        Name of the file in messages; by default `path`.
    step : progress.Step, optional
        Counts the bytes that are written.

    Attributes
    ----------
    shown : path
    record : dict or None
        {"dtype", "shape", "sha256"} once `close` has returned.

    Raises
    ------
    DataError
        From `write`, if the file system reports an error; other methods raise an OSError.
    """

    def __init__(self, path, shape, dtype, shown=None, step=None):
        self.shown, self._step = shown or path, step or Step("write")
        self.shape, self.dtype, self.record = tuple(int(n) for n in shape), np.dtype(dtype).newbyteorder("<"), None
        self._missing, self._digest = self.shape[0], hashlib.sha256()
        self._file = builtins.open(path, "wb")  # noqa: SIM115, closed by `close`
        header = {"descr": np.lib.format.dtype_to_descr(self.dtype), "fortran_order": False, "shape": self.shape}
        np.lib.format.write_array_header_1_0(_Writes(self._put), header)

    def write(self, rows):
        """Append rows to the file; memory-mapped rows are read in pieces."""
        if rows.shape[1:] != self.shape[1:] or rows.shape[0] > self._missing:
            raise ValueError(f"rows of shape {rows.shape} for an array of shape {self.shape} that misses {self._missing}")
        for _, piece in pieces(rows):
            if piece.size:
                with writing(self.shown):
                    self._put(np.ascontiguousarray(piece, self.dtype).view(np.uint8))
                self._step.add(piece.nbytes)
        self._missing -= rows.shape[0]

    def close(self):
        """Fsync and close the file, and set `record` to its dtype, shape and sha256. Raise a ValueError if not all rows were written."""
        if self._missing:
            raise ValueError(f"{self._missing} rows of {self.shape} were not written")
        try:
            self._file.flush()
            os.fsync(self._file.fileno())
        finally:
            self._file.close()
        self.record = {"dtype": _dtype_text(self.dtype), "shape": list(self.shape), "sha256": self._digest.hexdigest()}

    def abandon(self):
        """Close the file, whether or not all rows were written."""
        with contextlib.suppress(OSError):
            self._file.close()

    def _put(self, data):
        self._digest.update(data)
        self._file.write(data)


def _dtype_text(dtype):
    """Return the name of a dtype in meta.json, such as "<f4" or "bfloat16"."""
    return "bfloat16" if dtype == BFLOAT16 else dtype.str


class _Writes:
    """File-like object with only a `write` method, for NumPy's function that writes .npy headers."""

    def __init__(self, write):
        self.write = write


def load(path, field, kinds="biuf"):
    """Return the array in a .npy file as a read-only memory map. Raise a DataError, which calls the array `field`, if its
    `dtype.kind` is not in `kinds`.

    Parameters
    ----------
    path : path
    field : str
        Name of the array in messages.
    kinds : str
        Accepted kinds of dtype: "biuf" are all numbers, "V" is bfloat16, "US" is text.

    Raises
    ------
    DataError
        If the file is missing, its header cannot be read, or its size does not fit the header.
    """
    with reading(path, field):
        return _mapped(path, *_checked_header(path, field, kinds))


def open_map(path, record, field):
    """Return the array in a .npy file as a read-only memory map. Raise a DataError, which calls the array `field`, unless it has
    the dtype and shape in `record`.

    Parameters
    ----------
    path : path
    record : dict
        "dtype" and "shape" that the file must have.
    field : str
        Name of the array in messages.

    Raises
    ------
    DataError
        As `load`; also if dtype or shape differ from the record, or the array is in Fortran order.
    """
    with reading(path, field):
        dtype, shape, fortran, offset, size = _checked_header(path, field, "biufV")
        if _dtype_text(dtype) != record["dtype"]:
            raise DataError(f"{path}: {field}: dtype {_dtype_text(dtype)}, but meta.json says {record['dtype']}")
        if list(shape) != record["shape"]:
            raise DataError(f"{path}: {field}: shape {list(shape)}, but meta.json says {record['shape']}")
        if fortran and len(shape) > 1:
            raise DataError(f"{path}: {field}: the array is in Fortran order")
        return _mapped(path, dtype, shape, False, offset, size)


def check_record(source, field, record):
    """Raise a DataError about `field` of the file `source` unless `record` is a dict with valid entries dtype, shape and sha256."""
    good = isinstance(record, dict) and {"dtype", "shape", "sha256"} <= record.keys()
    good = good and [type(record[name]) for name in ("dtype", "sha256", "shape")] == [str, str, list]
    if not good or not all(type(length) is int and length >= 0 for length in record["shape"]):
        raise DataError(f"{source}: {field}: expected a record of dtype, shape and sha256, found {record!r}")


def sha256(path):
    """Return the sha256 of a file in hexadecimal; an OSError is raised if the file cannot be read."""
    digest = hashlib.sha256()
    with builtins.open(path, "rb") as file:
        while block := file.read(CHUNK_BYTES):
            digest.update(block)
    return digest.hexdigest()


def verify(path, record, field):
    """Raise a DataError about `field` unless the file `path` has the sha256 in `record`, its entry in meta.json."""
    with reading(path, field):
        actual = sha256(path)
    if actual != record["sha256"]:
        raise DataError(f"{path}: {field}: sha256 {actual}, but meta.json says {record['sha256']}: the file was changed")


def header(head, kinds="biuf"):
    """Return (dtype, shape, True for Fortran order, offset of the data in bytes) from `head`, the first bytes of a .npy file. Raise
    a ValueError if its `dtype.kind` is not in `kinds`.

    Parameters
    ----------
    head : bytes
    kinds : str
        Accepted kinds of dtype, as for `load`.

    Returns
    -------
    dtype : dtype
    shape : tuple of int
    fortran : bool
        True if the array is in Fortran order.
    offset : int
        Byte at which the data begin.

    Raises
    ------
    ValueError
        If the bytes are another format, the dtype is of another kind or holds Python objects, or the shape is impossible.
        NumPy's parser may raise other exceptions.
    """
    file = io.BytesIO(head)
    version = np.lib.format.read_magic(file)
    read = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}.get(version)
    if read is None:
        raise ValueError(f"version {version} of the .npy format")
    with _ONE_AT_A_TIME:
        shape, fortran, dtype = read(file)
    if dtype.hasobject:
        raise ValueError("it holds Python objects, which are never read")
    if dtype.kind not in kinds or dtype.itemsize == 0 or dtype.kind == "V" and dtype != BFLOAT16:
        raise ValueError(f"its dtype is {dtype}, expected {'text' if kinds == 'US' else 'numbers'}")
    if any(length < 0 for length in shape):
        raise ValueError(f"its shape is {shape}")
    return dtype, tuple(int(length) for length in shape), fortran, file.tell()


def _checked_header(path, name_in_errors, allowed_kinds="biuf"):
    """Return (dtype, shape, True for Fortran order, offset of the data in bytes, file size in bytes) of the .npy file `path`. Raise a
    DataError if the size does not fit the header, and a ValueError if the `dtype.kind` is not in `allowed_kinds`.
    """
    with regular(path).open("rb") as file:
        dtype, shape, fortran, offset = header(file.read(HEAD), allowed_kinds)
        size = os.fstat(file.fileno()).st_size
    expected = offset + dtype.itemsize * math.prod(shape)
    if size != expected:
        raise DataError(f"{path}: {name_in_errors}: {size} bytes, but its header needs {expected}: "
                        "the file was cut or something was added")
    return dtype, shape, fortran, offset, size


def _mapped(path, dtype, shape, fortran, offset, size):
    if size == offset:
        return np.empty(shape, dtype)
    return np.memmap(path, dtype, "r", offset, shape, "F" if fortran else "C")
