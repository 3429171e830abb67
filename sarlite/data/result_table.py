"""Results as tables for other programs: text, JSON lines or Parquet."""

import csv
import io
import json
import math
from pathlib import Path

import numpy as np

from sarlite.errors import import_optional, writing
from sarlite.files import atomic_file

_ROWS = 1 << 16


def headings(task, n_columns, class_names, embeddings):
    """Return (headings of the label columns, headings of the number columns) of a table of a model's results with `n_columns` numbers per
    row. If `embeddings`, the numbers are the outputs of a layer, else predictions for `task` with the classes `class_names` (None: 0, 1,
    ...).

    Examples
    --------
    >>> headings("classify", 2, ["cat", "dog"], embeddings=False)
    (['class'], ['p_cat', 'p_dog'])
    """
    if task == "link" and not embeddings:
        return [], ["score", "rank"][:n_columns]
    if embeddings or task == "regress":
        word = "x" if embeddings else "value"
        return [], [f"{word}_{at}" for at in range(n_columns)]
    names = class_names or range(n_columns)
    return ["class"] if task == "classify" else [f"label_{name}" for name in names], [f"p_{name}" for name in names]


def write(path, ids, labels, numbers, task, class_names=None, embeddings=False, id_headings=("id",)):
    """Write a model's results to `path` as a table of ids, `labels` (None: no such columns) and `numbers`, such as probabilities.
    `ids(first, last)` returns the columns of ids of rows `first` to `last` - 1, whose headings are `id_headings`. If `embeddings`, the
    numbers are the outputs of a layer, else predictions for `task` with the classes `class_names` (None: 0, 1, ...).

    The columns are the id, the class or the 0/1 labels, and the numbers. A table of links has the columns source and
    destination in place of id, with relation between them if there are several relations; links have a score and possibly a
    rank.

    Parameters
    ----------
    path : path
        Ends in one of `SUFFIXES`. An existing file is replaced.
    ids : callable
        ids(first, last) returns the id columns of rows first .. last, each a list of str or of int.
    labels : (n, ...) int array or None
        The most likely classes, or 0 and 1.
    numbers : (n, ...) float array
        Probabilities, or other outputs of the model.
    task : str
    class_names : list of str, optional
        Names of the classes.
    embeddings : bool
        True if the numbers are rows of a layer.
    id_headings : sequence of str
        Names of the id columns.

    Raises
    ------
    DataError
        If the file cannot be written.
    """
    n, wide = len(numbers), _columns(numbers)
    label_headings, number_headings = headings(task, wide.shape[1], class_names, embeddings)

    def pieces():
        for at in range(0, max(n, 1), _ROWS):
            rows = slice(at, min(at + _ROWS, n))
            columns = [*ids(rows.start, rows.stop)]
            if labels is not None:
                chosen = np.asarray(labels[rows])
                named = class_names if task == "classify" else None
                columns += [[named[label] for label in chosen.tolist()]] if named else list(_columns(chosen).T)
            yield [*columns, *np.asarray(wide[rows]).T]

    write_pieces(path, [*id_headings, *label_headings, *number_headings], pieces())


def write_pieces(path, names, pieces):
    """Write a table with columns called `names` to `path`, completely or not at all. `pieces` yields the next rows of the table, as a list
    of columns.

    Parameters
    ----------
    path : path
        Ends in .csv, .jsonl, or .parquet (written by pyarrow). An existing file is replaced.
    names : sequence of str
        Names of the columns.
    pieces : iterable of sequences
        The columns of consecutive rows, each a list of str or an array. There is at least one piece, which may be empty.

    Raises
    ------
    DataError
        If the file cannot be written.
    """
    with writing(path), atomic_file(path) as (_, file):
        put = _FORMATS[Path(path).suffix](file, path, names)
        for columns in pieces:
            put(columns)
        put(None)


def _columns(array):
    """Return an array of rows reshaped to two dimensions, even if it has no rows."""
    return array.reshape(len(array), math.prod(array.shape[1:]))


def _text(file, path, names):
    text = io.TextIOWrapper(file, encoding="utf-8", newline="", write_through=True)
    rows = csv.writer(text, lineterminator="\n")
    rows.writerow(names)

    def put(columns):
        if columns is None:
            text.flush()
            text.detach()  # `atomic_file` closes the file
            return
        rows.writerows(zip(*(map(str, column) for column in columns)))

    return put


def _lines(file, path, names):
    def put(columns):
        rows = zip(*(column.tolist() if isinstance(column, np.ndarray) else column for column in columns or ()))
        file.writelines(f"{json.dumps(dict(zip(names, row)), ensure_ascii=False)}\n".encode() for row in rows)

    return put


def _parquet(file, path, names):
    arrow, parquet = import_optional("pyarrow", str(path)), import_optional("pyarrow.parquet", str(path))
    held = []

    def put(columns):
        if columns is None:
            held[0].close()
            return
        table = arrow.table([arrow.array(np.ascontiguousarray(column) if isinstance(column, np.ndarray) else column)
                             for column in columns], names=names)
        if not held:
            held.append(parquet.ParquetWriter(file, table.schema))
        held[0].write_table(table)

    return put


_FORMATS = {".csv": _text, ".jsonl": _lines, ".parquet": _parquet}
SUFFIXES = tuple(_FORMATS)
"""Accepted endings of paths."""
