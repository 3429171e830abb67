"""Files of safetensors with a sha256 of themselves in the header's metadata, written and read in pieces."""

import hashlib
import json
import math
import os
import re
import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import IO, Any

import numpy as np

from sarlite.errors import CheckpointError, needs, reading, regular, writing
from sarlite.files import AnyPath, whole
from sarlite.types import Array

# in the order in which safetensors' own writer puts tensors
_DTYPES = {"U64": "<u8", "I64": "<i8", "F64": "<f8", "F32": "<f4", "U32": "<u4", "I32": "<i4", "F16": "<f2",
           "U16": "<u2", "I16": "<i2", "I8": "|i1", "U8": "|u1", "BOOL": "|b1"}  # fmt: skip
_CODES = {np.dtype(dtype): code for code, dtype in _DTYPES.items()}
_NO_SUM = b"0" * 64
_SUM = re.compile(rb'"sha256":"([0-9a-f]{64})"')
_MAX_HEADER_BYTES = 100_000_000  # safetensors' own
_PIECE = 1 << 20


def in_order(tensors: Mapping[str, Any]) -> list[str]:
    """Return the names of the arrays in the order of a file: by dtype, then by name."""
    codes = list(_CODES)
    return sorted(tensors, key=lambda name: (codes.index(tensors[name].dtype), name.encode()))


class Writer:
    """A file that is being written.

    Parameters
    ----------
    path : path
    tensors : dict of what has a `dtype` and a `shape`
    metadata : dict of str
        Its "sha256" is added.

    Attributes
    ----------
    path : path
    digest : str
        The file's sha256, once it is whole.
    """

    def __init__(self, path: AnyPath, tensors: Mapping[str, Any], metadata: Mapping[str, str]) -> None:
        header: dict[str, Any] = {"__metadata__": {**metadata, "sha256": _NO_SUM.decode()}}
        end = 0
        for name in in_order(tensors):
            dtype, shape = tensors[name].dtype, tensors[name].shape
            begin, end = end, end + dtype.itemsize * math.prod(shape)
            header[name] = {"dtype": _CODES[dtype], "shape": list(shape), "data_offsets": [begin, end]}
        text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
        text += b" " * (-len(text) % 8)
        self.path, self._header, self._sum_at, self._hash = path, text, _sum_place(text), hashlib.sha256()
        self._file: IO[bytes]
        self.digest = ""

    @contextmanager
    def open(self, *, trial: bool = False, new: bool = False) -> Iterator["Writer"]:
        """Return a context for writing a file with `add`; the file appears complete at the end, or not at all.

        See `files.whole` for the options.

        Raises
        ------
        CheckpointError
            An error, such as a full disk. The message names the file and the cause; an earlier file is unchanged.
        """
        with self._named(), whole(self.path, trial=trial, new=new) as (_, self._file):
            self.add(np.frombuffer(len(self._header).to_bytes(8, "little") + self._header, np.uint8))
            yield self
            self.digest = self._hash.hexdigest()
            self._file.seek(self._sum_at)
            self._file.write(self.digest.encode())

    def add(self, array: Array) -> None:
        """Append an array, the next tensor or the next rows of one; raises as `open`."""
        data = np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
        self._hash.update(data)
        with self._named():
            self._file.write(data)

    def _named(self):
        return writing(f"checkpoint {self.path}", kind=CheckpointError)


def _sum_place(header):
    """Return the byte offset of the checksum's 64 digits in the file."""
    found = list(_SUM.finditer(header))
    if len(found) != 1:
        raise ValueError("it has no checksum")
    return 8 + found[0].start(1)


def _header(file):
    """Return the first bytes of an open file, and its header."""
    start = file.read(8)
    size = int.from_bytes(start, "little")
    if len(start) < 8 or size > min(_MAX_HEADER_BYTES, os.fstat(file.fileno()).st_size - 8):
        raise ValueError("it is no safetensors file, or cut off")
    return start, file.read(size)


def verify(path: AnyPath | int) -> str:
    """Compare a file (path or file descriptor) with its stored checksum; return the checksum.

    Raises
    ------
    ValueError
        It has none, or another.
    OSError

    Notes
    -----
    Memory: the header and a megabyte.
    """
    with open(path, "rb", closefd=not isinstance(path, int)) as file:
        file.seek(0)
        start, header = _header(file)
        at = _sum_place(header) - 8
        found = hashlib.sha256(start + header[:at] + _NO_SUM + header[at + 64 :])
        while piece := file.read(_PIECE):
            found.update(piece)
    if found.hexdigest().encode() != header[at : at + 64]:
        raise ValueError("its sha256 is not the one that is written in it: it was changed or damaged")
    return found.hexdigest()


class _Descriptor:
    """An open file, which stays the same when another takes its name; closed when nothing refers to it."""

    def __init__(self, path):
        self.path, self.number = path, os.open(regular(path), os.O_RDONLY)
        weakref.finalize(self, os.close, self.number)


class Stored:
    """A tensor of an open file, read when it is asked for.

    Attributes
    ----------
    dtype : dtype
    shape : tuple of int
    """

    def __init__(self, file: _Descriptor, dtype: Any, shape: tuple[int, ...], begin: int) -> None:
        self.dtype, self.shape, self._file, self._begin = np.dtype(dtype), shape, file, begin

    def rows(self, begin: int, end: int) -> Array:
        """Return the existing rows among `begin` .. `end` as a new array; raise CheckpointError on failure."""
        end = min(end, self.shape[0])
        return self._read((max(end - begin, 0), *self.shape[1:]),
                          begin * self.dtype.itemsize * math.prod(self.shape[1:]))

    def whole(self) -> Array:
        """Return the whole tensor as a new array; raise as `rows`."""
        return self._read(self.shape, 0)

    def _read(self, shape, at):
        with reading(f"checkpoint {self._file.path}", kind=CheckpointError):
            found = np.empty(shape, self.dtype)
            data, at = memoryview(found.reshape(-1).view(np.uint8)), at + self._begin
            while data:
                n = os.preadv(self._file.number, [data], at)
                if not n:
                    raise ValueError("it was cut off while it was read")
                data, at = data[n:], at + n
            return found


def stored(path: AnyPath, form: str, *, check: bool = True) -> tuple[dict[str, Stored], dict[str, str]]:
    """Open a file; return its tensors by name, and the header's metadata.

    Parameters
    ----------
    path : path
    form : str
        What the header's metadata must say as "format".
    check : bool
        Compare it with its checksum.

    Raises
    ------
    CheckpointError
        It is missing, no such file, of another format, cut off or damaged.

    Notes
    -----
    The file stays open, and what is read is its, as long as one of its tensors lives. Memory: the header.
    """
    with reading(f"checkpoint {path}", kind=CheckpointError):
        file, safetensors = _Descriptor(path), needs("safetensors", "a checkpoint")
        with safetensors.safe_open(str(path), "numpy"):
            pass  # which checks the header
        with open(file.number, "rb", closefd=False) as opened:
            start, text = _header(opened)
        header = json.loads(text)
        metadata = header.pop("__metadata__", None) or {}
        if metadata.get("format") != form:
            raise CheckpointError(f"checkpoint {path}: format is {metadata.get('format')!r}, not {form!r}")
        if check:
            verify(file.number)
        first = len(start) + len(text)
        return {name: Stored(file, _DTYPES[told["dtype"]], tuple(told["shape"]), first + told["data_offsets"][0])
                for name, told in header.items()}, metadata
