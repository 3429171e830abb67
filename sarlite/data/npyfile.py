"""One .npy file: written with its hash, and mapped only after its header and size agree with what is expected."""

import builtins
import hashlib
import os

import numpy as np

from sarlite.data.mapped import CHUNK_BYTES, pieces
from sarlite.errors import DataError


class _Hashing:
    """A file that hashes what is written to it."""

    def __init__(self, file):
        self.file, self.digest = file, hashlib.sha256()

    def write(self, data):
        self.digest.update(data)
        self.file.write(data)


def write(path, array):
    """Write an array in C order, fsync it and return its record {"dtype", "shape", "sha256"}.

    Memory-mapped arrays are streamed. Raises OSError where the disk refuses.
    """
    dtype = array.dtype.newbyteorder("<")
    header = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": array.shape}
    with builtins.open(path, "wb") as file:
        out = _Hashing(file)
        np.lib.format.write_array_header_1_0(out, header)
        for _, piece in pieces(array):
            if piece.size:
                out.write(memoryview(np.ascontiguousarray(piece, dtype)).cast("B"))
        file.flush()
        os.fsync(file.fileno())
    return {"dtype": dtype.str, "shape": list(array.shape), "sha256": out.digest.hexdigest()}


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
