"""Files in the safetensors format, written and read in pieces, with the file's SHA-256 in the header's metadata."""

import hashlib
import json
import math
import os
import re
import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import IO, Protocol

import numpy as np

from sarlite.errors import CheckpointError, import_optional, reading, regular, writing
from sarlite.files import AnyPath, atomic_file
from sarlite.types import Array, ArrayDType, DType

# in the order of the safetensors library's writer
_DTYPES = {"U64": "<u8", "I64": "<i8", "F64": "<f8", "F32": "<f4", "U32": "<u4", "I32": "<i4", "F16": "<f2",
           "U16": "<u2", "I16": "<i2", "I8": "|i1", "U8": "|u1", "BOOL": "|b1"}  # fmt: skip
_CODES = {np.dtype(dtype): code for code, dtype in _DTYPES.items()}
_NO_SUM = b"0" * 64
_SUM = re.compile(rb'"sha256":"([0-9a-f]{64})"')
_MAX_HEADER_BYTES = 100_000_000  # the limit of the safetensors library
_PIECE = 1 << 20


class Sized(Protocol):
    """Protocol of a tensor with a known dtype and shape: an array, or a tensor whose values are read or written later."""

    @property
    def dtype(self) -> ArrayDType: ...
    @property
    def shape(self) -> tuple[int, ...]: ...


def in_order(tensors: Mapping[str, Sized]) -> list[str]:
    """Return the names of `tensors` in the order that their values have in a safetensors file: by dtype, then by name. Raise a
    CheckpointError if a name or a dtype cannot be stored.
    """
    for name, tensor in tensors.items():
        if not isinstance(name, str) or name == "__metadata__":
            raise CheckpointError(f"{name!r} cannot be the name of a tensor: names are texts other than '__metadata__'")
        if tensor.dtype not in _CODES:
            raise CheckpointError(f"tensor {name!r} is {tensor.dtype}, but must be one of {', '.join(str(dtype) for dtype in _CODES)}")
    codes = list(_CODES)
    return sorted(tensors, key=lambda name: (codes.index(tensors[name].dtype), name.encode()))


class TensorWriter:
    """Writer of one safetensors file. It gets the dtypes and shapes of all tensors at first, and then their values in the order of the
    file.

    Parameters
    ----------
    path : str or os.PathLike
    tensors : dict of str to an object with `dtype` and `shape`
        Sizes of all tensors that will be added.
    metadata : dict of str to str
        The entry "sha256" is added.

    Attributes
    ----------
    path : str or os.PathLike
    digest : str
        The file's SHA-256 after the context of `open` has ended; empty before.

    Examples
    --------
    >>> import tempfile
    >>> folder = tempfile.TemporaryDirectory()
    >>> arrays = {"b": np.ones(2), "a": np.arange(6).reshape(3, 2)}
    >>> writer = TensorWriter(folder.name + "/some.safetensors", arrays, {"format": "an example"})
    >>> with writer.open():
    ...     for name in in_order(arrays):
    ...         writer.add(arrays[name])
    >>> tensors, metadata = stored(writer.path, "an example")
    >>> tensors["a"].rows(1, 3).tolist(), metadata["sha256"] == writer.digest
    ([[2, 3], [4, 5]], True)
    """

    def __init__(self, path: AnyPath, tensors: Mapping[str, Sized], metadata: Mapping[str, str]) -> None:
        header: dict[str, object] = {"__metadata__": {**metadata, "sha256": _NO_SUM.decode()}}
        end = 0
        for name in in_order(tensors):
            dtype, shape = tensors[name].dtype, tensors[name].shape
            begin, end = end, end + dtype.itemsize * math.prod(shape)
            header[name] = {"dtype": _CODES[dtype], "shape": list(shape), "data_offsets": [begin, end]}
        text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
        text += b" " * (-len(text) % 8)
        self.path, self._header, self._sum_at, self._hash = path, text, _checksum_offset(text), hashlib.sha256()
        self._file: IO[bytes]
        self.digest = ""

    @contextmanager
    def open(self, *, trial: bool = False, new: bool = False) -> Iterator["TensorWriter"]:
        """Return a context for calls of `add`, which write the file. The file appears under its name when the context ends. A `trial`
        deletes it again and only tests if the disk has room; `new` refuses to replace a file.

        Parameters
        ----------
        trial, new : bool
            See `files.atomic_file`.

        Raises
        ------
        CheckpointError
            Writing failed, for instance because the disk is full. The message names the file and the cause. An earlier
            file is unchanged.
        """
        with self._named(), atomic_file(self.path, trial=trial, new=new) as (_, self._file):
            self.add(np.frombuffer(len(self._header).to_bytes(8, "little") + self._header, np.uint8))
            yield self
            self.digest = self._hash.hexdigest()
            self._file.seek(self._sum_at)
            self._file.write(self.digest.encode())

    def add(self, array: Array) -> None:
        """Append `array`, the next tensor or the next rows of the current tensor, to the file. Raise a CheckpointError if writing fails."""
        data = np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
        self._hash.update(data)
        with self._named():
            self._file.write(data)

    def _named(self):
        return writing(f"checkpoint {self.path}", kind=CheckpointError)


def _checksum_offset(header: bytes) -> int:
    """Return the position in the file, in bytes, of the 64 hexadecimal digits of the checksum, which are part of the `header`."""
    matches = list(_SUM.finditer(header))
    if len(matches) != 1:
        raise ValueError("the file has no checksum")
    return 8 + matches[0].start(1)


def _header(file: IO[bytes]) -> tuple[bytes, bytes]:
    """Return (the first 8 bytes, the header after them) of an open safetensors file. The first 8 bytes are the size of the header."""
    start = file.read(8)
    size = int.from_bytes(start, "little")
    if len(start) < 8 or size > min(_MAX_HEADER_BYTES, os.fstat(file.fileno()).st_size - 8):
        raise ValueError("not a safetensors file, or truncated")
    return start, file.read(size)


def verify(path: AnyPath | int) -> str:
    """Compare the contents of a file with the SHA-256 that is stored in its header; return the SHA-256, or raise a ValueError if they
    differ.

    Parameters
    ----------
    path : str, os.PathLike, or int
        Path or file descriptor.

    Returns
    -------
    str
        SHA-256, 64 hexadecimal digits.

    Raises
    ------
    ValueError
        The file has no checksum, or its contents do not match the checksum.
    OSError
        The file cannot be read.

    Notes
    -----
    Memory: the header and 1 MiB.
    """
    with open(path, "rb", closefd=not isinstance(path, int)) as file:
        file.seek(0)
        start, header = _header(file)
        at = _checksum_offset(header) - 8
        digest = hashlib.sha256(start + header[:at] + _NO_SUM + header[at + 64 :])
        while piece := file.read(_PIECE):
            digest.update(piece)
    if digest.hexdigest().encode() != header[at : at + 64]:
        raise ValueError("the contents do not match the sha256 in the file: the file was changed or damaged")
    return digest.hexdigest()


class _Descriptor:
    """Open file that stays readable if another file takes its path, and is closed when no object refers to it."""

    def __init__(self, path):
        self.path, self.number = path, os.open(regular(path), os.O_RDONLY)
        weakref.finalize(self, os.close, self.number)


class Stored:
    """Tensor in an open safetensors file, whose values are read when the methods `rows` and `read` are called.

    Attributes
    ----------
    dtype : numpy.dtype
    shape : tuple of int
    """

    def __init__(self, file: _Descriptor, dtype: DType, shape: tuple[int, ...], begin: int) -> None:
        self.dtype, self.shape, self._file, self._begin = np.dtype(dtype), shape, file, begin

    def rows(self, begin: int, end: int) -> Array:
        """Return rows begin .. end - 1 of the tensor, or fewer if the tensor ends before, as a new array.

        Raises
        ------
        CheckpointError
            The file cannot be read.
        """
        end = min(end, self.shape[0])
        return self._read((max(end - begin, 0), *self.shape[1:]),
                          begin * self.dtype.itemsize * math.prod(self.shape[1:]))

    def read(self) -> Array:
        """Return the whole tensor as a new array. Raise a CheckpointError if the file cannot be read."""
        return self._read(self.shape, 0)

    def _read(self, shape, at):
        with reading(f"checkpoint {self._file.path}", kind=CheckpointError):
            array = np.empty(shape, self.dtype)
            data, at = memoryview(array.reshape(-1).view(np.uint8)), at + self._begin
            while data:
                n = os.preadv(self._file.number, [data], at)
                if not n:
                    raise ValueError("the file was truncated while it was read")
                data, at = data[n:], at + n
            return array


def stored(path: AnyPath, form: str, *, check: bool = True) -> tuple[dict[str, Stored], dict[str, str]]:
    """Open a safetensors file whose metadata must have the entry "format" `form`; return (tensors by name, metadata). If `check`, the
    contents are compared with the file's checksum.

    Parameters
    ----------
    path : str or os.PathLike
    form : str
        Expected entry "format" of the metadata.
    check : bool
        Compare the file with its checksum.

    Returns
    -------
    tensors : dict of str to Stored
    metadata : dict of str to str

    Raises
    ------
    CheckpointError
        The file is missing, is not a safetensors file, has another format, is truncated or damaged.

    Notes
    -----
    The file stays open as long as any of its tensors exists, so later reads see the same contents. Memory: the header.
    """
    with reading(f"checkpoint {path}", kind=CheckpointError):
        file, safetensors = _Descriptor(path), import_optional("safetensors", "a checkpoint")
        with safetensors.safe_open(str(path), "numpy"):
            pass  # opening checks the header
        with open(file.number, "rb", closefd=False) as opened:
            start, text = _header(opened)
        header = json.loads(text)
        metadata = header.pop("__metadata__", None) or {}
        if metadata.get("format") != form:
            raise CheckpointError(f"checkpoint {path}: format is {metadata.get('format')!r}, not {form!r}")
        if check:
            verify(file.number)
        first = len(start) + len(text)
        return {name: Stored(file, _DTYPES[entry["dtype"]], tuple(entry["shape"]), first + entry["data_offsets"][0])
                for name, entry in header.items()}, metadata
