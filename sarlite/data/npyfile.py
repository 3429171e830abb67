"""One .npy file: written with its hash, and mapped once header, size and record agree."""

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

HEAD = 1 << 14  # bytes that a header may take; NumPy refuses one of more than 10,000
_ONE_AT_A_TIME = threading.Lock()
"""NumPy parses headers by `ast`. From Python 3.11 on two threads in it may get a SystemError."""


class Stream:
    """A .npy file of known shape, written piece by piece along its first axis and hashed on the way.

    Parameters
    ----------
    path : path
    shape : tuple of int
    dtype : dtype
        Stored little-endian.
    shown : path, optional
        What errors name in place of `path`.
    step : progress.Step, optional
        Counts the bytes that are written.

    Attributes
    ----------
    shown : path
    record : dict or None
        {"dtype", "shape", "sha256"}, once the file is whole and closed.

    Raises
    ------
    DataError
        From `write`, where the disk refuses; from the other calls an OSError.
    """

    def __init__(self, path, shape, dtype, shown=None, step=None):
        self.shown, self._step = shown or path, step or Step("write")
        self.shape, self.dtype, self.record = tuple(int(n) for n in shape), np.dtype(dtype).newbyteorder("<"), None
        self._missing, self._digest = self.shape[0], hashlib.sha256()
        self._file = builtins.open(path, "wb")  # noqa: SIM115, closed by `close`
        header = {"descr": np.lib.format.dtype_to_descr(self.dtype), "fortran_order": False, "shape": self.shape}
        np.lib.format.write_array_header_1_0(_Writes(self._put), header)

    def write(self, rows):
        """Append rows; memory-mapped ones are streamed."""
        if rows.shape[1:] != self.shape[1:] or rows.shape[0] > self._missing:
            raise ValueError(f"rows of shape {rows.shape} for an array of shape {self.shape} that misses "
                             f"{self._missing}")
        for _, piece in pieces(rows):
            if piece.size:
                with writing(self.shown):
                    self._put(np.ascontiguousarray(piece, self.dtype).view(np.uint8))
                self._step.add(piece.nbytes)
        self._missing -= rows.shape[0]

    def close(self):
        """Fsync and close; the file must be whole."""
        if self._missing:
            raise ValueError(f"{self._missing} rows of {self.shape} were not written")
        try:
            self._file.flush()
            os.fsync(self._file.fileno())
        finally:
            self._file.close()
        self.record = {"dtype": _told(self.dtype), "shape": list(self.shape), "sha256": self._digest.hexdigest()}

    def abandon(self):
        """Close the file as it is."""
        with contextlib.suppress(OSError):
            self._file.close()

    def _put(self, data):
        self._digest.update(data)
        self._file.write(data)


def _told(dtype):
    """Return the name of a dtype in a record."""
    return "bfloat16" if dtype == BFLOAT16 else dtype.str


class _Writes:
    """File object that NumPy writes a header to."""

    def __init__(self, write):
        self.write = write


def load(path, field, kinds="biuf"):
    """Map any .npy file read-only.

    Parameters
    ----------
    kinds : str
        The dtypes' kinds that are read: "biuf" are all numbers, "V" bfloat16, "US" text.

    Raises
    ------
    DataError
        The file is missing, or its header cannot be read, or its size is not what the header says.
    """
    with reading(path, field):
        return _mapped(path, *_look(path, field, kinds))


def open_map(path, record, field):
    """Map a file read-only if it is just what its record says.

    Raises
    ------
    DataError
        As `load`, or its dtype or shape is not the record's, or it is in Fortran's order.
    """
    with reading(path, field):
        dtype, shape, fortran, offset, size = _look(path, field, "biufV")
        if _told(dtype) != record["dtype"]:
            raise DataError(f"{path}: {field}: dtype {_told(dtype)}, but meta.json says {record['dtype']}")
        if list(shape) != record["shape"]:
            raise DataError(f"{path}: {field}: shape {list(shape)}, but meta.json says {record['shape']}")
        if fortran and len(shape) > 1:
            raise DataError(f"{path}: {field}: its order is Fortran's")
        return _mapped(path, dtype, shape, False, offset, size)


def check_record(source, field, record):
    """Raise a DataError, which names `source` and `field`, unless this is a record as a `Stream` gives one."""
    good = isinstance(record, dict) and {"dtype", "shape", "sha256"} <= record.keys()
    good = good and [type(record[name]) for name in ("dtype", "sha256", "shape")] == [str, str, list]
    if not good or not all(type(length) is int and length >= 0 for length in record["shape"]):
        raise DataError(f"{source}: {field}: expected a record of dtype, shape and sha256, found {record!r}")


def sha256(path):
    """Return a file's sha256 in hexadecimal; raises OSError."""
    digest = hashlib.sha256()
    with builtins.open(path, "rb") as file:
        while block := file.read(CHUNK_BYTES):
            digest.update(block)
    return digest.hexdigest()


def verify(path, record, field):
    """Raise a DataError if the file's sha256 is not its record's."""
    with reading(path, field):
        found = sha256(path)
    if found != record["sha256"]:
        raise DataError(f"{path}: {field}: sha256 {found}, but meta.json says {record['sha256']}: the file was changed")


def header(head, kinds="biuf"):
    """Return (dtype, shape, whether in Fortran's order, where the data begin) from a .npy file's first `HEAD` bytes.

    Raises
    ------
    ValueError
        Another format, objects, other kinds of dtype, or a shape that cannot be; and whatever NumPy's parser raises.
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


def _look(path, field, kinds="biuf"):
    """Return what `header` returns and the size of the file, which must be what the header says."""
    with regular(path).open("rb") as file:
        dtype, shape, fortran, offset = header(file.read(HEAD), kinds)
        size = os.fstat(file.fileno()).st_size
    expected = offset + dtype.itemsize * math.prod(shape)
    if size != expected:
        raise DataError(f"{path}: {field}: {size} bytes, but its header needs {expected}: "
                        "the file was cut or something was added")
    return dtype, shape, fortran, offset, size


def _mapped(path, dtype, shape, fortran, offset, size):
    if size == offset:
        return np.empty(shape, dtype)
    return np.memmap(path, dtype, "r", offset, shape, "F" if fortran else "C")
