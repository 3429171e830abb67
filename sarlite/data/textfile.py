"""Rows of numbers from users' files (text, .npy and Parquet), and partitions from files."""

import gzip
import warnings
from itertools import chain
from pathlib import Path

import numpy as np

from sarlite.data import npyfile
from sarlite.data.tables.text_form import is_number
from sarlite.errors import DataError, import_optional, reading, regular
from sarlite.structure.partition import check_parts

LINE = 1 << 24  # most characters of a line


def read(path, field, dtype):
    """Return the numbers in the text, .npy or .parquet file `path`, shape (n_rows, n_columns). Numbers in text are read as `dtype`,
    and messages call them `field`.

    Parameters
    ----------
    path : path
        A .npy file, a .parquet file (read by the package pyarrow), or UTF-8 text, compressed if the path ends in .gz. Text
        has columns separated by commas or blanks; `#` begins a comment; empty lines are ignored. The first line of two or
        more columns may be a header with a name per column.
    field : str
        Name of the numbers in messages.
    dtype : dtype
        Dtype of numbers from text; numbers from other files keep their dtype.

    Returns
    -------
    (n_rows, n_columns) array

    Raises
    ------
    DataError
        If the file cannot be read, a word is no number, or lines have different lengths.
    """
    suffix = Path(path).suffix
    if suffix == ".npy":
        table = _npy(path, field)
        return table.reshape(table.shape[0], table.shape[1] if table.ndim == 2 else 1)
    return _parquet(path, field) if suffix == ".parquet" else _text(path, field, dtype)


def _parquet(path, name_in_errors):
    """Return the numbers in the Parquet file `path`, (n_rows, n_columns). A column of lists of length k becomes k columns."""
    parquet = import_optional("pyarrow.parquet", f"{path}: {name_in_errors}")
    with reading(path, name_in_errors), regular(path).open("rb") as file:
        table = parquet.read_table(file)
        columns = []
        for name, column in zip(table.column_names, table.columns):
            cells = column.combine_chunks()
            if cells.null_count:
                raise DataError(f"{path}: {name_in_errors}: column {name!r}: a value is missing")
            length = getattr(cells.type, "list_size", None)
            values = np.asarray((cells.flatten() if length else cells).to_numpy(zero_copy_only=False))
            if values.dtype.kind not in "biuf":
                raise DataError(f"{path}: {name_in_errors}: column {name!r} is of {cells.type}, not of numbers")
            columns.append(values.reshape(-1, length or 1))
        return np.concatenate(columns, axis=1) if columns else np.empty((0, 1))


def read_parts(file, n_nodes, n_parts):
    """Return the part of each node, (n_nodes,) int32, from a .npy file of integers or a text file with one part per line.

    Returns
    -------
    (n_nodes,) int32

    Raises
    ------
    DataError
        If the file cannot be read, does not have `n_nodes` rows, or has a part outside 0 <= part < n_parts.
    """
    with reading(file, "parts"):
        parts = read(file, "parts", np.int64)
        return check_parts(parts[:, 0] if parts.shape[1] == 1 else parts, n_nodes, n_parts, file)


def lines(file):
    """Yield the lines of a text file; raise a ValueError for a line of `LINE` characters or more."""
    while line := file.readline(LINE):
        if len(line) == LINE:
            raise ValueError(f"a line of {LINE:,} characters or more")
        yield line


def _text(path, name_in_errors, dtype):
    """Return the numbers in a text file, (n_rows, n_columns), without comments and header."""
    with reading(path, name_in_errors), opened(path) as file:
        rows = (line for line in lines(file) if _content(line))
        first = next(rows, None)
        if first is None:
            return np.empty((0, 1), dtype)
        delimiter = "," if "," in first else None
        columns = _header(_content(first), delimiter)
        below = first if not columns else next(rows, None)
        if below is None:
            return np.empty((0, columns), dtype)
        with warnings.catch_warnings():
            warnings.filterwarnings("error", "loadtxt", DeprecationWarning)  # NumPy before 2.3 reads 1.5 as the integer 1
            table = np.loadtxt(chain([below], rows), dtype, comments="#", delimiter=delimiter, ndmin=2)
        if columns not in (0, table.shape[1]):
            raise DataError(f"{path}: {name_in_errors}: the first line, {first.strip()!r}, is not a header of {table.shape[1]} columns")
        return table


def _npy(path, name_in_errors):
    """Return the memory-mapped array of a .npy file; raise a DataError unless it has one or two dimensions."""
    table = npyfile.load(path, name_in_errors)
    if table.ndim not in (1, 2):
        raise DataError(f"{path}: {name_in_errors}: expected one or two dimensions, found shape {table.shape}")
    return table


def opened(path):
    """Return a file object that reads a text file, decompressed if its name ends in .gz."""
    path = regular(path)
    return gzip.open(path, "rt", encoding="utf-8-sig") if path.suffix == ".gz" else path.open(encoding="utf-8-sig")


def _content(line):
    return line.partition("#")[0].strip()


def _header(line, delimiter):
    """Return the number of words in `line`, split at `delimiter`, if it is a header; 0 if a word is a number or is missing."""
    words = [word.strip().strip("\"'") for word in line.split(delimiter)]
    if len(words) > 1 and all(word and not is_number(word) for word in words):
        return len(words)
    return 0
