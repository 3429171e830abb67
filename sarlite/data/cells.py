"""Cells of a table's columns as numbers, as node numbers or as names of nodes.

Cells are an array of numbers, one a row or, of a column of lists, several, NaN where there is none; or a sequence of
words, None, empty, nan or null where there is none.
"""

import numpy as np

from sarlite.errors import ConfigError, DataError

MISSING = frozenset(("", "nan", "null"))
"""Words that are no value, in small letters or capitals."""
TRUTHS = {"true": 1.0, "false": 0.0}
"""Words that are numbers where numbers are asked for, in small letters or capitals: bool, as Parquet has it."""


def numbers(where, column, cells, first=0):
    """Return cells as an array of numbers, (n,) or (n, k), floats with NaN where there is none; `TRUTHS` says what true
    and false are. A DataError names a word that is no number by its row, counted from `first`.
    """
    if isinstance(cells, np.ndarray):
        return cells
    try:
        if "_" not in "".join(cells):
            return np.fromiter(map(float, cells), np.float64, len(cells))
    except (ValueError, TypeError):  # the first word that is none is looked for
        pass
    bad = next((at for at, word in enumerate(cells) if not _has_number(word, TRUTHS)), None)
    if bad is not None:
        raise DataError(f"{where}: row {first + bad}, column {column!r}: {cells[bad]!r} is no number; words become "
                        "numbers as columns of 0 and 1, as by pandas.get_dummies")
    return np.array([np.nan if missing(word) else TRUTHS.get(word.strip().lower(), word) for word in cells], np.float64)


def missing(word):
    """Tell whether a word is no value."""
    return word is None or word.strip().lower() in MISSING


def are_numbers(cells, words=()):
    """Tell whether cells are numbers, or some of `words`, but for missing ones; where all are missing, they are."""
    return isinstance(cells, np.ndarray) or all(_has_number(word, words) for word in cells)


def _has_number(word, words):
    return missing(word) or is_number(word) or word.strip().lower() in words


def _whole(word):
    digits = word.strip()
    return digits.isascii() and digits.removeprefix("-").isdigit()


def _is_node_number(word):
    digits = word.strip().lstrip("0") or "0"
    return _whole(word) and len(digits) < 20 and 0 <= int(digits) < 1 << 63


def whole_ids(where, column, cells, first=0):
    """Return cells as node numbers, (n,) int64; a DataError names the row of another one."""
    if isinstance(cells, np.ndarray):
        if cells.ndim != 1 or cells.dtype.kind not in "iu":
            raise DataError(f"{where}: column {column!r}: {_what(cells)} are no node ids, which are whole numbers or "
                            "words")
        bad, found = np.flatnonzero((cells < 0) | (cells > np.iinfo(np.int64).max)), cells
    else:
        try:
            odd = not "".join(cells).isascii() or "_" in "".join(cells)
            found = None if odd else np.fromiter(map(int, cells), np.int64, len(cells))
        except (ValueError, TypeError, OverflowError):
            found = None
        bad = np.flatnonzero(found < 0) if found is not None else [
            at for at, word in enumerate(cells) if word is None or not _is_node_number(word)]
    if len(bad):
        raise DataError(f"{where}: row {first + int(bad[0])}, column {column!r}: {cells[bad[0]]!r} is no node number, "
                        "but the ids before are; names=edges takes all ids for names")
    return found.astype(np.int64, copy=False)


def ids(where, column, cells, first=0):
    """Return cells as names of nodes, a list of str; a whole number is its digits. A DataError names a missing one."""
    if isinstance(cells, np.ndarray):
        if cells.ndim != 1 or (cells.size and cells.dtype.kind not in "iu"):
            raise DataError(f"{where}: column {column!r}: {_what(cells)} are no ids of nodes, which are words or whole "
                            "numbers")
        return list(map(str, cells.tolist()))
    found = list(map(str.strip, cells)) if None not in cells else [word and word.strip() for word in cells]
    if None in found or "" in found:
        at = next(at for at, word in enumerate(found) if not word)
        raise DataError(f"{where}: row {first + at}, column {column!r}: no id")
    return found


def _what(cells):
    return "numbers with some missing or with fractions" if cells.dtype.kind == "f" else f"cells of {cells.dtype}"


class Numbers:
    """Columns of numbers as rows of floats, where each has a value or gets one.

    Parameters
    ----------
    source : Table
    columns : sequence of str
    fill : {None, "0", "mean"}
        What a missing value becomes; None refuses it. The mean is of the column, which is read once more for it.
    dtype : dtype

    Attributes
    ----------
    names : list of str
        The name of each column of the rows that were made last: of a column of lists COLUMN.0, COLUMN.1, ...

    Raises
    ------
    DataError
        From every method: a word is no number; without `fill` a value is missing: row and column are named.
    """

    def __init__(self, source, columns, fill=None, dtype=np.float32):
        self._source, self.columns, self.dtype, self.names = source, tuple(columns), dtype, list(columns)
        if fill not in (None, "0", "mean"):
            raise ConfigError(f"fill: {fill!r} is not one of 0, mean")
        self._fill = None if fill is None else 0.0 if fill == "0" else self._means()

    def rows(self, cells, first=0):
        """Return the cells of the columns as (n, any) floats."""
        columns = [self._matrix(column, found, first) for column, found in zip(self.columns, cells)]
        self.names = [name for column, found in zip(self.columns, columns) for name in _names(column, found.shape[1])]
        x = np.concatenate(columns, 1)
        empty = np.isnan(x)
        if empty.any():
            if self._fill is None:
                row, at = np.argwhere(empty)[0]
                widths = np.cumsum([found.shape[1] for found in columns])
                column = self.columns[int(np.searchsorted(widths, at, side="right"))]
                raise DataError(f"{self._source.where}: row {first + int(row)}, column {column!r}: no value; fill=0 or "
                                "fill=mean says what it shall be")
            x = np.where(empty, self._fill, x)
        with np.errstate(over="ignore"):  # what becomes infinite is refused by the data set's check
            return x.astype(self.dtype, copy=False)

    def _matrix(self, column, cells, first):
        found = numbers(self._source.where, column, cells, first)
        return found if found.ndim == 2 else found[:, None]

    def _means(self):
        total, count, first = 0.0, 0, 0
        for cells in self._source.pieces(self.columns):
            x = np.concatenate([self._matrix(*pair, first) for pair in zip(self.columns, cells)], 1).astype(np.float64)
            known = ~np.isnan(x)
            total, count, first = total + np.where(known, x, 0).sum(0), count + known.sum(0), first + len(x)
        if first and not np.all(count):
            at = int(np.argmin(count))
            raise DataError(f"{self._source.where}: column {at + 1} of {', '.join(self.columns)}: no row has a value, "
                            "so there is no mean")
        return total / np.maximum(count, 1)


def _names(column, width):
    return [column] if width == 1 else [f"{column}.{at}" for at in range(width)]


def is_number(word):
    """Tell whether a word is a number."""
    try:
        return "_" not in word and float(word) is not None
    except ValueError:
        return False
