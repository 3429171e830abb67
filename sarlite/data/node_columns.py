"""The nodes of one type from the columns of a table: ids, features, labels and splits, a row each."""

import numpy as np

from sarlite.data.cells import Numbers, ids, missing
from sarlite.data.graph_tables import SPLITS
from sarlite.data.label_columns import LabelColumns
from sarlite.data.streams import drawn
from sarlite.errors import ConfigError, DataError

_SPLIT = {"none": 0, "train": 1, "val": 2, "valid": 2, "validation": 2, "test": 3}
_TRUE = {"true": True, "1": True, "1.0": True, "false": False, "0": False, "0.0": False}


class NodeColumns:
    """Nodes as a table has them.

    Parameters
    ----------
    source : columns.Table
    id : str, optional
        The column of their ids; by default the first.
    features : sequence of str, optional
        By default all columns of numbers, and of true and false, that have no other use.
    labels : sequence of str
        One column of classes, numbers or words; or of another task columns of numbers. A missing value is no label.
    split : str, optional
        A column of train, val, test and none; a missing value is none.
    masks : dict of str to str
        Instead: a column of true and false for each split.
    fill : {None, "0", "mean"}
        What missing features become: see `cells.Numbers`.
    task, classes, train, val, seed
        As of readers, which `raw` tells.
    """

    def __init__(self, source, id=None, features=None, labels=(), split=None, masks=(), fill=None, task=None,
                 classes=None, train=0.6, val=0.2, seed=0):
        self.source, self._task, self._classes, self._drawn = source, task or "classify", classes, (train, val, seed)
        self._id, self.labels, self._split = id or source.names[0], tuple(labels), split
        self.listed_in = f"{source.where}, column {self._id!r}"
        self._masks = {name: column for name, column in dict(masks).items() if column}
        if split and self._masks:
            raise ConfigError(f"{source.where}: split and {next(iter(self._masks))}_mask: one of the two")
        if (split or self._masks or task) and not labels:
            raise ConfigError(f"{source.where}: a split, masks and a task need labels=COLUMN")
        if self._task == "classify" and len(self.labels) > 1:
            raise ConfigError(f"{source.where}: labels: {', '.join(labels)}: several columns are read with "
                              "task=multilabel or task=regress")
        taken = {self._id, *self.labels, split, *self._masks.values()}
        if features is None:
            others = [name for name in source.names if name not in taken]
            features = source.numeric(others)
        self.features = tuple(features)
        self._numbers = Numbers(source, self.features, fill) if self.features else None

    def read(self, workspace, finish):
        """Yield the ids of the nodes, a list of str at a time, and keep the rest; `rows` gives it then."""
        columns = [self._id, *self.features, *self.labels, *([self._split] if self._split else []),
                   *self._masks.values()]
        self._x = workspace.spool("features")
        self._y = LabelColumns(self.source, self.labels, workspace, self._task, self._classes)
        self._splits = {name: workspace.spool(name, bool) for name in SPLITS}
        self.n = 0
        n_features, n_labels = 1 + len(self.features), 1 + len(self.features) + len(self.labels)
        for cells in self.source.pieces(columns):
            found = ids(self.source.where, self._id, cells[0], self.n)
            if self.features:
                self._x.write(finish(self._numbers.rows(cells[1:n_features], self.n)))
            if self.labels:
                self._y.add(cells[n_features:n_labels], self.n)
            for name, mask in self._split_rows(cells[n_labels:]).items():
                self._splits[name].write(mask)
            self.n += len(found)
            yield found

    def rows(self, workspace):
        """Return the fields of a `NodeTable` that were read, and class_names where labels are words."""
        found = {"features": self._x.array(), "feature_names": self._numbers.names} if self.features else {}
        if not self.labels:
            return found
        labels, n_classes, names = self._y.read()
        found |= {"labels": labels, "n_classes": n_classes, "task": self._task, "class_names": names}
        if self._split or self._masks:
            return found | {name: spool.array() for name, spool in self._splits.items()}
        return found | dict(zip(SPLITS, drawn(labels, self._task, *self._drawn, workspace, self.source.where)))

    def _split_rows(self, cells):
        where = self.source.where
        if self._split:
            words = ["none" if missing(word) else word.strip().lower() for word in _words(cells[0])]
            odd = next((at for at, word in enumerate(words) if word not in _SPLIT), None)
            if odd is not None:
                raise DataError(f"{where}: row {self.n + odd}, column {self._split!r}: {cells[0][odd]!r} is none of "
                                "train, val, test, none")
            codes = np.array([_SPLIT[word] for word in words], np.int8)
            return {name: codes == at for at, name in enumerate(SPLITS, 1)}
        found = {}
        for (name, column), mask in zip(self._masks.items(), cells):
            words = [word.strip().lower() for word in _words(mask)]
            odd = next((at for at, word in enumerate(words) if word not in _TRUE), None)
            if odd is not None:
                raise DataError(f"{where}: row {self.n + odd}, column {column!r}: {mask[odd]!r} is neither true nor "
                                "false")
            found[name] = np.array([_TRUE[word] for word in words], bool)
        if found:
            found = {name: found.get(name, np.zeros(len(words), bool)) for name in SPLITS}
        return found


def _words(cells):
    """Cells as words."""
    if isinstance(cells, np.ndarray):
        return ["" if value != value else str(value) for value in cells.tolist()]
    return ["" if word is None else word for word in cells]
