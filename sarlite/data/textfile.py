"""Rows of numbers or names from users' files (text, .npy and Parquet), and partitions from files."""

import gzip
import warnings
from itertools import chain, islice
from pathlib import Path

import numpy as np

from sarlite.data import npyfile
from sarlite.data.mapped import pieces
from sarlite.data.tables.text_form import is_number
from sarlite.errors import DataError, import_optional, reading, regular
from sarlite.structure.partition import check_parts

LINE = 1 << 24  # most characters of a line
_BATCH = 1 << 16, 1 << 25
"""Lines that are parsed at a time, and their characters."""


def read(path, field, dtype):
    """Read numbers, one row per line, from text, .npy or .parquet.

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
    batches = _parquet(path, field) if suffix == ".parquet" else list(_text(path, field, dtype))
    return np.concatenate(batches) if len(batches) > 1 else batches[0]


def _parquet(path, field):
    """Return the rows of a Parquet file as a list of one array. A column of lists of length k becomes k columns."""
    parquet = import_optional("pyarrow.parquet", f"{path}: {field}")
    with reading(path, field), regular(path).open("rb") as file:
        table = parquet.read_table(file)
        columns = []
        for name, column in zip(table.column_names, table.columns):
            cells = column.combine_chunks()
            if cells.null_count:
                raise DataError(f"{path}: {field}: column {name!r}: a value is missing")
            length = getattr(cells.type, "list_size", None)
            values = np.asarray((cells.flatten() if length else cells).to_numpy(zero_copy_only=False))
            if values.dtype.kind not in "biuf":
                raise DataError(f"{path}: {field}: column {name!r} is of {cells.type}, not of numbers")
            columns.append(values.reshape(-1, length or 1))
        return [np.concatenate(columns, axis=1) if columns else np.empty((0, 1))]


def names(path, field, vocabulary):
    """Read one name per line, or a .npy file of text, and replace each name by its index in `vocabulary`.

    The result is an (n_rows,) int8 array.
    """
    places, codes, n = {name: place for place, name in enumerate(vocabulary)}, [np.empty(0, np.int8)], 0
    with reading(path, field):
        for words in _word_batches(path, field):
            for at, word in enumerate(words, n):
                if word not in places:
                    raise DataError(f"{path}: {field}: entry {at} is {word!r}, none of {', '.join(vocabulary)}")
            codes.append(np.array([places[word] for word in words], np.int8))
            n += len(words)
    return np.concatenate(codes)


def _word_batches(path, field):
    """Read a file of names, and yield lists of names."""
    if Path(path).suffix == ".npy":
        for _, piece in pieces(np.atleast_1d(npyfile.load(path, field, "US")).ravel()):
            yield piece.astype(str).tolist()
        return
    with opened(path) as file:
        words = (line.strip() for line in lines(file) if line.strip())
        while batch := list(islice(words, _BATCH[0])):
            yield batch


def read_parts(file, n_nodes, n_parts):
    """Read a user's partition: a .npy file of integers, or text with one part per line.

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


def _batches(rows, dtype, delimiter):
    """Yield lines parsed as (n, n_columns) arrays, about ten thousand lines at a time."""
    rows, (n_lines, n_characters) = iter(rows), _BATCH
    while batch := list(islice(_until(rows, n_characters), n_lines)):
        yield _parsed(batch, dtype, delimiter)


def _parsed(rows, dtype, delimiter):
    """Return lines of numbers as an (n_rows, n_columns) array."""
    with warnings.catch_warnings():
        warnings.filterwarnings("error", "loadtxt", DeprecationWarning)  # NumPy before 2.3 reads 1.5 as the integer 1
        return np.loadtxt(rows, dtype, comments="#", delimiter=delimiter, ndmin=2)


def _until(rows, most):
    """Yield rows of text from an iterator, and stop once the yielded rows have at least `most` characters."""
    for row in rows:
        yield row
        most -= len(row)
        if most <= 0:
            return


def _text(path, field, dtype):
    """Yield the rows of a text file as (n, n_columns) arrays."""
    with reading(path, field), opened(path) as file:
        rows = (line for line in lines(file) if _content(line))
        first = next(rows, None)
        if first is None:
            yield np.empty((0, 1), dtype)
            return
        delimiter = "," if "," in first else None
        columns = _header(_content(first), delimiter)
        width = None
        for batch in _batches(rows if columns else chain([first], rows), dtype, delimiter):
            if columns not in (0, batch.shape[1]):
                raise DataError(f"{path}: {field}: the first line, {first.strip()!r}, "
                                f"is no header of {batch.shape[1]} columns")
            if width not in (None, batch.shape[1]):
                raise ValueError(f"lines of {width} columns, and further down of {batch.shape[1]}")
            width = batch.shape[1]
            yield batch
        if width is None:
            yield np.empty((0, columns), dtype)


def _npy(path, field):
    """Memory-map a .npy file and check that its array has one or two dimensions."""
    table = npyfile.load(path, field)
    if table.ndim not in (1, 2):
        raise DataError(f"{path}: {field}: expected one or two dimensions, found shape {table.shape}")
    return table


def opened(path):
    """Open a text file, compressed or not, for reading."""
    path = regular(path)
    return gzip.open(path, "rt", encoding="utf-8-sig") if path.suffix == ".gz" else path.open(encoding="utf-8-sig")


def _content(line):
    return line.partition("#")[0].strip()


def _header(line, delimiter):
    """Return the number of columns that a header line names; 0 if a word is a number, as the line is then no header."""
    words = [word.strip().strip("\"'") for word in line.split(delimiter)]
    if len(words) > 1 and all(word and not is_number(word) for word in words):
        return len(words)
    return 0
