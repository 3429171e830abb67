"""Rows of numbers, or of names, from files that users bring: text, .npy and Parquet; and a partition in a file."""

import gzip
import warnings
from itertools import chain, islice
from pathlib import Path

import numpy as np

from sarlite.data import npyfile
from sarlite.data.mapped import pieces
from sarlite.data.tables.text_form import is_number
from sarlite.errors import DataError, needs, reading, regular
from sarlite.structure.partition import check_parts

LINE = 1 << 24  # characters of a line
_BATCH = 1 << 16, 1 << 25
"""Lines that are parsed at a time, and their characters."""


def read(path, field, dtype):
    """Read numbers, one row a line, from text, .npy or .parquet.

    Parameters
    ----------
    path : path
        Ending in .npy or .parquet (which the package pyarrow reads), or text in UTF-8, ending in .gz where it is
        compressed: columns parted by commas or blanks, `#` begins a comment, empty lines do not count. The first line
        of two or more columns may be a header of as many names.
    field : str
        For messages.
    dtype : dtype
        Of numbers in text; numbers of other files keep their dtype.

    Returns
    -------
    (n_rows, n_columns) array

    Raises
    ------
    DataError
        The file cannot be read, a word is no number, or lines are of different lengths.
    """
    suffix = Path(path).suffix
    if suffix == ".npy":
        table = _npy(path, field)
        return table.reshape(table.shape[0], table.shape[1] if table.ndim == 2 else 1)
    found = _parquet(path, field) if suffix == ".parquet" else list(_text(path, field, dtype))
    return np.concatenate(found) if len(found) > 1 else found[0]


def _parquet(path, field):
    """Return a Parquet file's rows as one array. A column of lists of length k counts as k columns."""
    parquet = needs("pyarrow.parquet", f"{path}: {field}")
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


def names(path, field, known):
    """Read one name a line, or from a .npy file of text, as places in `known`: (n_rows,) int8."""
    places, found, n = {name: place for place, name in enumerate(known)}, [np.empty(0, np.int8)], 0
    with reading(path, field):
        for words in _word_batches(path, field):
            for at, word in enumerate(words, n):
                if word not in places:
                    raise DataError(f"{path}: {field}: entry {at} is {word!r}, none of {', '.join(known)}")
            found.append(np.array([places[word] for word in words], np.int8))
            n += len(words)
    return np.concatenate(found)


def _word_batches(path, field):
    if Path(path).suffix == ".npy":
        for _, piece in pieces(np.atleast_1d(npyfile.load(path, field, "US")).ravel()):
            yield piece.astype(str).tolist()
        return
    with opened(path) as file:
        words = (line.strip() for line in lines(file) if line.strip())
        while found := list(islice(words, _BATCH[0])):
            yield found


def read_parts(file, n_nodes, n_parts):
    """Read a user's partition: a .npy file of integers, or text with one part a line.

    Returns
    -------
    (n_nodes,) int32

    Raises
    ------
    DataError
        The file cannot be read, has another length than `n_nodes`, or a part outside 0 <= part < n_parts.
    """
    with reading(file, "parts"):
        parts = read(file, "parts", np.int64)
        return check_parts(parts[:, 0] if parts.shape[1] == 1 else parts, n_nodes, n_parts, file)


def lines(file):
    """Yield the lines of a text file; raises a ValueError for one that is too long to be one."""
    while line := file.readline(LINE):
        if len(line) == LINE:
            raise ValueError(f"a line of {LINE:,} characters or more")
        yield line


def _batches(rows, dtype, delimiter):
    """Yield lines parsed as (n, n_columns) arrays, some ten thousand at a time."""
    rows, (n_lines, n_characters) = iter(rows), _BATCH
    while found := list(islice(_until(rows, n_characters), n_lines)):
        yield _parsed(found, dtype, delimiter)


def _parsed(rows, dtype, delimiter):
    """Return lines of numbers as an (n_rows, n_columns) array."""
    with warnings.catch_warnings():
        warnings.filterwarnings("error", "loadtxt", DeprecationWarning)  # NumPy before 2.3 reads 1.5 as the integer 1
        return np.loadtxt(rows, dtype, comments="#", delimiter=delimiter, ndmin=2)


def _until(rows, most):
    """Yield from `rows` until they have `most` characters."""
    for row in rows:
        yield row
        most -= len(row)
        if most <= 0:
            return


def _text(path, field, dtype):
    with reading(path, field), opened(path) as file:
        rows = (line for line in lines(file) if _content(line))
        first = next(rows, None)
        if first is None:
            yield np.empty((0, 1), dtype)
            return
        delimiter = "," if "," in first else None
        columns = _header(_content(first), delimiter)
        width = None
        for found in _batches(rows if columns else chain([first], rows), dtype, delimiter):
            if columns not in (0, found.shape[1]):
                raise DataError(f"{path}: {field}: the first line, {first.strip()!r}, "
                                f"is no header of {found.shape[1]} columns")
            if width not in (None, found.shape[1]):
                raise ValueError(f"lines of {width} columns, and further down of {found.shape[1]}")
            width = found.shape[1]
            yield found
        if width is None:
            yield np.empty((0, columns), dtype)


def _npy(path, field):
    table = npyfile.load(path, field)
    if table.ndim not in (1, 2):
        raise DataError(f"{path}: {field}: expected one or two dimensions, found shape {table.shape}")
    return table


def opened(path):
    """Return a file of text, compressed or not, open for reading."""
    path = regular(path)
    return gzip.open(path, "rt", encoding="utf-8-sig") if path.suffix == ".gz" else path.open(encoding="utf-8-sig")


def _content(line):
    return line.partition("#")[0].strip()


def _header(line, delimiter):
    """Return the number of columns that a first line names; 0 where it is numbers, one mistyped word or not."""
    words = [word.strip().strip("\"'") for word in line.split(delimiter)]
    if len(words) > 1 and all(word and not is_number(word) for word in words):
        return len(words)
    return 0
