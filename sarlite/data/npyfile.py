"""One .npy file: written with its hash, and mapped only after its header and size agree with what is expected."""

import builtins
import contextlib
import hashlib
import os

import numpy as np

from sarlite.data.mapped import CHUNK_BYTES, pieces
from sarlite.errors import DataError


class Stream:
    """A .npy file of known shape, written piece by piece along its first axis and hashed on the way.

    Parameters
    ----------
    path : path
    shape : tuple of int
    dtype : dtype
        Stored little-endian.

    Attributes
    ----------
    record : dict or None
        {"dtype", "shape", "sha256"}, once the file is whole and closed.

    Raises
    ------
    OSError
        From every call, where the disk refuses.
    """

    def __init__(self, path, shape, dtype):
        self.shape, self.dtype, self.record = tuple(int(n) for n in shape), np.dtype(dtype).newbyteorder("<"), None
        self._missing, self._digest = self.shape[0], hashlib.sha256()
        self._file = builtins.open(path, "wb")  # noqa: SIM115, closed by `close`
        header = {"descr": np.lib.format.dtype_to_descr(self.dtype), "fortran_order": False, "shape": self.shape}
        np.lib.format.write_array_header_1_0(_Writes(self._put), header)

    def write(self, rows):
        """Append rows; memory-mapped ones are streamed."""
        if rows.shape[1:] != self.shape[1:] or rows.shape[0] > self._missing:
            raise ValueError(f"rows of shape {rows.shape} for an array of shape {self.shape} that misses {self._missing}")
        for _, piece in pieces(rows):
            if piece.size:
                self._put(memoryview(np.ascontiguousarray(piece, self.dtype)).cast("B"))
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
        self.record = {"dtype": self.dtype.str, "shape": list(self.shape), "sha256": self._digest.hexdigest()}

    def abandon(self):
        """Close the file as it is."""
        with contextlib.suppress(OSError):
            self._file.close()

    def _put(self, data):
        self._digest.update(data)
        self._file.write(data)


class _Writes:
    """What NumPy writes a header to."""

    def __init__(self, write):
        self.write = write


def open_map(path, record, field):
    """Map a file read-only if it is just what its record says.

    Raises
    ------
    DataError
        The file is missing, or its header, dtype, shape or size in bytes is not the record's.
    """
    try:
        with builtins.open(path, "rb") as file:
            dtype, shape, offset = _header(file)
            size = os.fstat(file.fileno()).st_size
    except OSError as error:
        raise DataError(f"{path}: {field}: cannot be opened: {error.strerror}") from error
    except ValueError as error:
        raise DataError(f"{path}: {field}: not a .npy file that can be read: {error}") from error
    if dtype.str != record["dtype"]:
        raise DataError(f"{path}: {field}: dtype {dtype.str}, but meta.json says {record['dtype']}")
    if list(shape) != record["shape"]:
        raise DataError(f"{path}: {field}: shape {list(shape)}, but meta.json says {record['shape']}")
    expected = offset + dtype.itemsize * _count(shape)
    if size != expected:
        raise DataError(f"{path}: {field}: {size} bytes, expected {expected}: the file was cut or something was added")
    if _count(shape) == 0:
        return np.empty(shape, dtype)
    return np.memmap(path, dtype, "r", offset, tuple(shape))


def sha256(path):
    """Return a file's sha256 in hexadecimal; raises OSError."""
    digest = hashlib.sha256()
    with builtins.open(path, "rb") as file:
        while block := file.read(CHUNK_BYTES):
            digest.update(block)
    return digest.hexdigest()


def verify(path, record, field):
    """Raise a DataError if the file's sha256 is not its record's."""
    try:
        found = sha256(path)
    except OSError as error:
        raise DataError(f"{path}: {field}: cannot be read: {error.strerror}") from error
    if found != record["sha256"]:
        raise DataError(f"{path}: {field}: sha256 {found}, but meta.json says {record['sha256']}: the file was changed")


def _header(file):
    version = np.lib.format.read_magic(file)
    if version not in ((1, 0), (2, 0)):
        raise ValueError(f"version {version}")
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, fortran_order, dtype = read(file)
    if dtype.hasobject:
        raise ValueError("it holds Python objects")
    if fortran_order and len(shape) > 1:
        raise ValueError("its order is Fortran's")
    if any(length < 0 for length in shape):
        raise ValueError(f"its shape is {shape}")
    return dtype, shape, file.tell()


def _count(shape):
    count = 1
    for length in shape:
        count *= int(length)
    return count
