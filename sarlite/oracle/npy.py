"""Arrays as .npy files: memory is taken only after header, size of the file and record agree with each other."""

import hashlib
import io
import json
import math
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from sarlite.errors import DataError, reading, regular
from sarlite.types import Array

DTYPES = ("<f8", "<f4", "<f2", "<i8", "<i4", "|b1", "|u1")
LIMIT = 1 << 32  # bytes of one array
_HEAD = 1 << 14  # bytes that a header may take; NumPy refuses one of more than 10,000
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,150}")


def plain(name: object, field: str) -> str:
    """Return a name that is safe as part of a file's.

    Raises DataError: it is empty, long, hidden, a path, or has other characters.
    """
    if not isinstance(name, str) or not _NAME.fullmatch(name) or ".." in name:
        raise DataError(f"{field}: {name!r} is not a plain name of letters, digits, '_', '-' and '.'")
    return name


def write(path: Path, array: Array) -> dict[str, Any]:
    """Write an array in C's order, little-endian; return its record: file, dtype, shape and SHA-256 of the file."""
    value = np.asarray(array, np.asarray(array).dtype.newbyteorder("<"), order="C")
    if value.dtype.str not in DTYPES:
        raise DataError(f"{path}: dtype {value.dtype} is none of {', '.join(DTYPES)}")
    file = io.BytesIO()
    np.lib.format.write_array(file, value, allow_pickle=False)
    path.write_bytes(file.getbuffer())
    return {"file": path.name, "dtype": value.dtype.str, "shape": list(value.shape),
            "sha256": _sha256(file.getbuffer())}


def write_group(folder: Path, group: str, values: Mapping[str, Array]) -> dict[str, Any]:
    """Write arrays as GROUP.NAME.npy, and return their records by name."""
    return {name: write(folder / f"{group}.{plain(name, group)}.npy", value) for name, value in values.items()}


def write_json(path: Path, told: Mapping[str, Any], where: Path) -> None:
    """Write a case.json; a DataError about `where`: an attribute is no JSON."""
    try:
        path.write_text(json.dumps(told, indent=1, allow_nan=False) + "\n")
    except (TypeError, ValueError) as error:
        raise DataError(f"{where}: attributes cannot be written as JSON: {error}") from error


def read(folder: Path, field: str, record: Mapping[str, Any]) -> Array:
    """Return the array of a record.

    Raises DataError where its name is not plain; where it is missing, no regular file or a link; where its header, its
    size or its hash are not the record's; where it has `LIMIT` bytes or more.
    """
    where = f"{folder}: {field}"
    if set(record) != {"file", "dtype", "shape", "sha256"}:
        raise DataError(f"{where}: an array has file, dtype, shape and sha256, not {', '.join(map(repr, record))}")
    path = folder / plain(record["file"], where)
    with reading(path, field):
        header = _header(path, field)
        if [header[0], list(header[1])] != [record["dtype"], record["shape"]]:
            told = f"{record['dtype']} {record['shape']}"
            raise DataError(f"{path}: {field}: {header[0]} {list(header[1])}, but case.json says {told}")
        content = path.read_bytes()
        if (found := _sha256(content)) != record["sha256"]:
            raise DataError(f"{path}: {field}: sha256 {found}, but case.json says {record['sha256']}: "
                            "the file was changed")
        return np.lib.format.read_array(io.BytesIO(content), allow_pickle=False)


def read_result(path: Path, field: str, shape: Sequence[int] | None = None) -> Array:
    """Return the array that another program wrote, in C's or Fortran's order.

    Raises DataError as `read` does, or for another `shape`.
    """
    with reading(path, field):
        _, found = _header(path, field)
        if shape is not None and found != tuple(shape):
            raise DataError(f"{path}: {field}: shape {found}, not {tuple(shape)}")
        with path.open("rb") as file:
            return np.lib.format.read_array(file, allow_pickle=False)


def read_folder(folder: Path) -> dict[str, Array]:
    """Return the arrays of a folder's .npy files by name; raises DataError, as `read_result`."""
    return {path.stem: read_result(path, path.stem) for path in sorted(folder.glob("*.npy"))}


def _header(path, field):
    """The dtype and the shape of a file; the file's size is checked against both."""
    if path.is_symlink():
        raise DataError(f"{path}: {field}: it is a symbolic link")
    with regular(path).open("rb") as file:
        head, size = io.BytesIO(file.read(_HEAD)), os.fstat(file.fileno()).st_size
    version = np.lib.format.read_magic(head)
    if version not in ((1, 0), (2, 0)):
        raise DataError(f"{path}: {field}: version {version} of the .npy format")
    parse = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, _, dtype = parse(head)
    if dtype.str not in DTYPES or any(length < 0 for length in shape):
        raise DataError(f"{path}: {field}: dtype {dtype.str}, shape {shape}; known are {', '.join(DTYPES)}")
    needed = head.tell() + dtype.itemsize * math.prod(shape)
    if size != needed or needed >= LIMIT:
        limit = f" (at most {LIMIT})" if needed >= LIMIT else ""
        raise DataError(f"{path}: {field}: {size} bytes, but its header needs {needed}{limit}")
    return dtype.str, shape


def _sha256(content):
    return hashlib.sha256(content).hexdigest()
