"""Reading and writing of .npy files; a file is read only if its header, size and hash agree with its record in case.json."""

import hashlib
import io
import json
import math
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypedDict

import numpy as np

from sarlite.errors import DataError, reading, regular
from sarlite.types import Array

DTYPES = ("<f8", "<f4", "<f2", "<i8", "<i4", "|b1", "|u1")
LIMIT = 1 << 32  # bytes of one array
_HEAD = 1 << 14  # bytes that a header may take; NumPy refuses headers of more than 10,000 bytes
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,150}")


class Record(TypedDict):
    """Description of a .npy file in a case.json; `sha256` is the hash of the whole file."""

    file: str
    dtype: str
    shape: list[int]
    sha256: str


def plain_name(name: object, field: str) -> str:
    """Return `name` if it is safe in a file name. Raise a DataError, which names `field`, if the name is empty, too long, hidden
    or a path, or has other characters than letters, digits, "_", "-" and ".".
    """
    if not isinstance(name, str) or not _NAME.fullmatch(name) or ".." in name:
        raise DataError(f"{field}: {name!r} is not a plain name of letters, digits, '_', '-' and '.'")
    return name


def write(path: Path, array: Array) -> Record:
    """Write an array to `path` in C order, little-endian; return its record, a dict of file name, dtype, shape and SHA-256 of the file."""
    value = np.asarray(array, np.asarray(array).dtype.newbyteorder("<"), order="C")
    if value.dtype.str not in DTYPES:
        raise DataError(f"{path}: dtype {value.dtype} is not one of {', '.join(DTYPES)}")
    file = io.BytesIO()
    np.lib.format.write_array(file, value, allow_pickle=False)
    path.write_bytes(file.getbuffer())
    return {"file": path.name, "dtype": value.dtype.str, "shape": list(value.shape),
            "sha256": _sha256(file.getbuffer())}


def write_group(folder: Path, group: str, values: Mapping[str, Array]) -> dict[str, Record]:
    """Write each array in `values`, {name: array}, as the file `group`.NAME.npy in `folder`. Return {name: record}, where a record
    has the file's name, dtype, shape and hash.
    """
    return {name: write(folder / f"{group}.{plain_name(name, group)}.npy", value) for name, value in values.items()}


def write_json(path: Path, document: Mapping[str, object], where: Path) -> None:
    """Write `document` as JSON to `path`; raise a DataError that begins with the path `where` if JSON cannot hold a value."""
    try:
        path.write_text(json.dumps(document, indent=1, allow_nan=False) + "\n")
    except (TypeError, ValueError) as error:
        raise DataError(f"{where}: attributes cannot be written as JSON: {error}") from error


def read(folder: Path, field: str, record: Record) -> Array:
    """Read the .npy file that `record` describes, and return the array; `field` is the array's name in error messages.

    Raises
    ------
    DataError
        The file name is not plain; the file is missing, a link or no regular file; its header, size or hash differs
        from the record; or it has `LIMIT` bytes or more.
    """
    where = f"{folder}: {field}"
    if set(record) != {"file", "dtype", "shape", "sha256"}:
        raise DataError(f"{where}: an array has file, dtype, shape and sha256, not {', '.join(map(repr, record))}")
    path = folder / plain_name(record["file"], where)
    with reading(path, field):
        header = _header(path, field)
        if [header[0], list(header[1])] != [record["dtype"], record["shape"]]:
            promised = f"{record['dtype']} {record['shape']}"
            raise DataError(f"{path}: {field}: {header[0]} {list(header[1])}, but case.json says {promised}")
        content = path.read_bytes()
        if (digest := _sha256(content)) != record["sha256"]:
            raise DataError(f"{path}: {field}: sha256 {digest}, but case.json says {record['sha256']}: "
                            "the file was changed")
        return np.lib.format.read_array(io.BytesIO(content), allow_pickle=False)


def read_result(path: Path, field: str, shape: Sequence[int] | None = None) -> Array:
    """Return the array of a .npy file that another program wrote, after checks of its header, size and `shape`; errors name `field`.

    The array may be in C or Fortran order.

    Raises
    ------
    DataError
        As `read`, or the array has another shape than `shape`.
    """
    with reading(path, field):
        _, found_shape = _header(path, field)
        if shape is not None and found_shape != tuple(shape):
            raise DataError(f"{path}: {field}: shape {found_shape}, not {tuple(shape)}")
        with path.open("rb") as file:
            return np.lib.format.read_array(file, allow_pickle=False)


def read_folder(folder: Path) -> dict[str, Array]:
    """Return {file name without .npy: array} for the .npy files in `folder`; raise a DataError for a file that is not a valid array."""
    return {path.stem: read_result(path, path.stem) for path in sorted(folder.glob("*.npy"))}


def _header(path: Path, field: str) -> tuple[str, tuple[int, ...]]:
    """Return (dtype, shape) from the header of a .npy file, after a check of the file size; `field` is the array's name in error
    messages.
    """
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
