"""Labels from the columns of a table: one of classes, which are numbers or words, or several of numbers."""

import numpy as np

from sarlite.data.cells import are_numbers, missing, numbers
from sarlite.data.graph_tables import MAX_CLASSES
from sarlite.data.streams import spooled_labels
from sarlite.errors import ConfigError, DataError


class LabelColumns:
    """Labels, taken a piece of the table at a time. A missing value is no label.

    Parameters
    ----------
    source : columns.Table
    columns : sequence of str
        One of classes; or of another task columns of numbers.
    workspace : Workspace
    task : {"classify", "multilabel", "regress"}
    classes : int, optional
        As of `raw.read_labels`; of words it means nothing, and is refused.
    what : str
        What a row is called in messages.
    """

    def __init__(self, source, columns, workspace, task="classify", classes=None, what="node"):
        self._source, self._columns, self._task, self._classes, self._what = source, columns, task, classes, what
        self._workspace, self._raw, self._codes = workspace, workspace.spool("labels"), {}

    def add(self, cells, first):
        """Take the cells of the columns, of rows from `first` on."""
        self._raw.write(self._rows(cells, first))

    def read(self):
        """Return the labels in the task's form; the number of a model's outputs; the names of classes, or None."""
        where, raw = f"{self._source.where}: column {self._columns[0]!r}", self._raw.array()
        words, names, values = [*self._codes], None, None
        if words and (self._source.typed or not are_numbers(words)):
            if self._classes is not None:
                raise ConfigError(f"classes: {self._classes} means nothing where {where} has words")
            names = sorted(words)
            place = {word: at for at, word in enumerate(names)}
            values = np.array([*(place[word] for word in words), -1])
        elif words:
            values = np.array([*map(float, words), np.nan])
        pieces = (raw[at : at + (1 << 20)] for at in range(0, max(len(raw), 1), 1 << 20))
        pieces = pieces if values is None else (values[piece] for piece in pieces)
        return *spooled_labels(pieces, where, self._workspace, self._classes, self._task, self._what,
                               "labels-in-form"), names

    def _rows(self, cells, first):
        where = self._source.where
        if self._task != "classify":
            found = [numbers(where, *pair, first).astype(np.float64) for pair in zip(self._columns, cells)]
            return np.concatenate([one if one.ndim == 2 else one[:, None] for one in found], 1)
        if isinstance(cells[0], np.ndarray):
            return cells[0].astype(np.float64)  # one dtype in every piece, whether it has missing ones or not
        words = [None if missing(word) else word.strip() for word in cells[0]]
        for word in dict.fromkeys(words):
            if word is not None:
                self._codes.setdefault(word, len(self._codes))
        if len(self._codes) > MAX_CLASSES:
            raise DataError(f"{where}: column {self._columns[0]!r}: more than {MAX_CLASSES} classes")
        codes = {**self._codes, None: -1}
        return np.array([codes[word] for word in words], np.int64)
