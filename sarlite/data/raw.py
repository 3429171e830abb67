"""Results of the readers, and the checks and conversions that all readers share.

A reader takes the path of a file or a folder, and some of the options

classes     int, the number of classes; by default the largest label + 1
task        {"classify", "multilabel", "regress"}, what the labels are: see `read_labels`
train, val  of a split that is drawn: an int is a number of nodes a class, a float a share of each class; of a task
            other than classify all labelled nodes are one class
seed        int, of the drawn split

A reader raises a DataError, which names the file and the field: a file is missing or damaged, or files disagree in
their numbers of nodes, edges or columns.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from sarlite.data.dataset import Dataset
from sarlite.data.graph_tables import MAX_CLASSES, SPLITS, EdgeTable
from sarlite.data.mapped import pieces, widened
from sarlite.data.targets import MISSING, TASKS, labelled, n_outputs
from sarlite.errors import ConfigError, DataError
from sarlite.profile import free_memory
from sarlite.structure import validation
from sarlite.structure.edges import csr_by_dst, destinations

MAX_GAP = 100
"""Where more labels in a row belong to no node, the number of classes must be told: they are codes, or a mistake."""

_SAY = "; what is not one class a {what} is read with task=multilabel or task=regress"
CARRY_VALUES = "edges that carry values cannot be added or merged; drop_edge_values drops them"


@dataclass
class RawGraph:
    """A data set as its source has it: an edge list, not yet CSR.

    `undirected` says what the format means by an edge where the user does not say it; `edges_in` names the edges' file
    for messages.
    """

    src: np.ndarray
    dst: np.ndarray
    features: np.ndarray
    labels: np.ndarray
    train: np.ndarray
    val: np.ndarray
    test: np.ndarray
    n_classes: int
    name: str
    undirected: bool = False
    edge_weight: np.ndarray | None = None
    edges_in: object = None
    task: str = "classify"
    edge_features: np.ndarray | None = None

    @classmethod
    def of(cls, dataset):
        """Take a data set apart again, to change its edges."""
        for name in EdgeTable.VALUES:
            if getattr(dataset, name) is not None:
                raise ConfigError(f"{dataset.where(name)}: {CARRY_VALUES}")
        if dataset.target_nodes.time is not None:
            raise ConfigError(f"{dataset.target_nodes.where('time')}: edges of nodes with times cannot be added or merged")
        names = ("features", "labels", *SPLITS, "n_classes", "name", "task")
        nodes = {name: getattr(dataset, name) for name in names}
        return cls(np.asarray(dataset.indices), destinations(np.asarray(dataset.indptr)), **nodes)

    def assemble(self, source, *, undirected=None, self_loops=False, deduplicate=False, normalize=False,
                 provenance=None):
        """Return the Dataset, its edges sorted by destination; see `csr_by_dst` for the options.

        `normalize` divides each row of the features by its sum; rows that sum to 0 stay.
        """
        undirected = self.undirected if undirected is None else undirected
        edges = {"undirected": undirected, "self_loops": self_loops, "deduplicate": deduplicate}
        arrays = {"edge_weight": self.edge_weight, "edge_features": self.edge_features}
        values = {name: array for name, array in arrays.items() if array is not None}
        if values and any(edges.values()):
            raise ConfigError(f"{source}: {next(iter(values))}: {CARRY_VALUES}")
        try:
            n_nodes = self.labels.shape[0]
            indptr, indices, *origin = csr_by_dst(self.src, self.dst, n_nodes, **edges, edge_index=bool(values))
        except DataError as error:
            raise DataError(f"{self.edges_in or source}: edges: {error}") from error
        return Dataset(
            indptr, indices, as_features(self.features, normalize), self.labels, self.train, self.val, self.test,
            n_classes=int(self.n_classes), name=self.name, source=source, provenance=provenance or {}, task=self.task,
            **{name: array[origin[0]] for name, array in values.items()},
        )  # fmt: skip


def as_features(rows, normalize):
    """Return rows as float32 or float64, normalized where that is asked for."""
    rows = row_normalized(rows) if normalize else rows
    return rows if rows.dtype.name in ("float32", "float64") else narrowed(rows)


def row_normalized(features):
    """Return the features with rows that sum to one; a row that sums to 0 stays as it is."""
    features = features.astype(np.float64) if features.dtype == np.float64 else narrowed(features, copy=True)
    with np.errstate(all="ignore"):  # what is not finite is refused by the data set's check
        sums = features.sum(axis=1, keepdims=True, dtype=np.float64)
        sums[sums == 0] = 1
        features /= sums.astype(features.dtype)
    return features


def narrowed(numbers, copy=False):
    """Return numbers as float32; those too large become infinite, which the data set's check refuses."""
    with np.errstate(all="ignore"):
        return widened(numbers).astype(np.float32, copy=copy)


def masks(n_nodes, where, **ids):
    """Turn arrays of node ids, train=, val= and test=, into three masks; `where` maps a split to what messages name."""
    return tuple(mask(n_nodes, f"{where.get(name)}: {name} split", [np.asarray(nodes)]) for name, nodes in ids.items())


def mask(n_nodes, what, id_pieces):
    """Return the (n_nodes,) bool of node ids that come in pieces; raises a DataError for no node's, or one twice."""
    found = np.zeros(n_nodes, bool)
    for nodes in id_pieces:
        nodes = np.sort(validation.integers(what, nodes, stop=n_nodes, entry="node id {value} is"))
        if (at := validation.first_true(found[nodes] | (np.diff(nodes, prepend=-1) == 0))) is not None:
            raise DataError(f"{what}: node id {nodes[at]} is given twice")
        found[nodes] = True
    return found


def count_classes(labels, where, told=None):
    """Return the number of classes.

    Parameters
    ----------
    labels : (n_nodes,) int64
        -1 where unlabelled.
    where : str or path
        What messages name.
    told : int, optional
        By default the largest label + 1.

    Raises
    ------
    DataError
        There are more than `MAX_CLASSES`, or without `told` more than `MAX_GAP` labels in a row that no node has, from
        0 on.
    ConfigError
        `told` does not reach the largest label.
    """
    top = max((int(piece.max()) for _, piece in pieces(labels)), default=-1)
    if told is not None:
        if not top < told <= MAX_CLASSES:
            raise ConfigError(f"classes: {told} cannot work, expected {top + 1} to {MAX_CLASSES}: "
                              f"{where} has labels up to {top}")
        return told
    if top >= MAX_CLASSES:
        raise DataError(f"{where}: labels: the largest is {top}: number the classes from 0 on, at most {MAX_CLASSES}")
    seen = np.zeros(top + 1, bool)
    for _, piece in pieces(labels):
        seen[piece[piece >= 0]] = True
    there = np.concatenate(([-1], np.flatnonzero(seen)))
    gaps = np.diff(there) - 1
    if gaps.max(initial=0) > MAX_GAP:
        low = int(there[np.argmax(gaps)]) + 1
        raise DataError(f"{where}: labels: no node has one of {low} to {low + int(gaps.max()) - 1}, but one has {top}, "
                        f"which would make {top + 1} classes: number them from 0 on, or say classes={top + 1}")
    return top + 1


def read_labels(labels, where, classes=None, task=None):
    """Return labels in the task's form, as `Dataset` has them, and the number of a model's outputs.

    Parameters
    ----------
    labels : (n,) or (n, k) array of numbers
        NaN is unlabelled, of classes -1 too.
    where : str or path
        What messages name.
    classes : int, optional
        The number of classes; by default the largest label + 1.
    task : {"classify", "multilabel", "regress"}, optional
        By default "classify"; the others are never guessed.

    Raises
    ------
    DataError
        Not numbers of such a form; as `count_classes`.
    ConfigError
        Another task; `classes` of another task than "classify"; as `count_classes`.
    """
    found = in_form(labels, where, task)
    return found, count_outputs(found, where, classes, task)


def in_form(labels, where, task, first=0, what="node"):
    """Return labels in the task's form; messages count rows from `first` and call a row `what`."""
    if task not in (None, *TASKS):
        raise ConfigError(f"task: {task!r} is not one of {', '.join(TASKS)}")
    if task in (None, "classify"):
        return whole_labels(labels, where, first, what)
    labels = np.asarray(labels)
    if labels.ndim not in (1, 2) or labels.dtype.kind not in "iubf":
        raise DataError(f"{where}: labels: expected rows of numbers, found shape {labels.shape}, dtype {labels.dtype}")
    if task == "regress":
        labels = labels[:, 0] if labels.shape[1:] == (1,) else labels
        return labels if labels.dtype == np.float64 else narrowed(labels)
    return _zeros_and_ones(labels.reshape(len(labels), -1), where, first, what)


def count_outputs(labels, where, classes, task):
    """Return the number of a model's outputs for labels in the task's form."""
    if task in (None, "classify"):
        return count_classes(labels, where, classes)
    if classes is not None:
        raise ConfigError(f"classes: {classes} means nothing where task={task}")
    return n_outputs(labels, task)


def _zeros_and_ones(labels, where, first, what):
    missing = np.isnan(labels) if labels.dtype.kind == "f" else np.zeros(labels.shape, bool)
    if (at := validation.first_true(~(missing | (labels == 0) | (labels == 1)))) is not None:
        raise DataError(f"{where}: labels: {what} {first + at[0]} has {labels[at]} in column {at[1]}, "
                        "expected 0, 1, or NaN where unknown")
    return np.where(missing, MISSING, np.where(missing, 0, labels)).astype(np.uint8)


def strata(labels, task):
    """Return what `random_split` draws from evenly: the classes; of another task all labelled nodes alike."""
    return labels if task in (None, "classify") else np.where(labelled(labels, task), 0, -1)


def whole_labels(labels, where, first=0, what="node"):
    """Return one integer label a row, from row `first` on, of integers or floats; NaN, unlabelled, becomes -1."""
    labels = np.asarray(labels)
    if labels.ndim == 2 and labels.shape[1] == 1:
        labels = labels[:, 0]
    if labels.ndim != 1:
        raise DataError(f"{where}: labels: expected one label a {what}, found shape "
                        f"{labels.shape}{_SAY.format(what=what)}")
    if labels.dtype.kind not in "iubf":
        raise DataError(f"{where}: labels: expected numbers, found dtype {labels.dtype}")
    missing = np.isnan(labels) if labels.dtype.kind == "f" else np.zeros(labels.shape, bool)
    odd = missing
    if labels.dtype.kind != "b":
        odd = ~missing & ((labels != np.floor(labels)) | (labels > 2**31) | (labels < -1))
    if (at := validation.first_true(odd)) is not None:
        raise DataError(f"{where}: labels: {what} {first + at} has label {labels[at]}, "
                        f"expected a whole number, or -1 where it has none{_SAY.format(what=what)}")
    return np.where(missing, -1, labels).astype(np.int64)


def check_csr(indptr, indices, n_rows, n_columns, where):
    """Return indptr and indices, int32 or int64; raises a DataError unless they are CSR of this shape."""
    starts = check_indptr(indptr, n_rows, indices.size, f"{where}_indptr")
    return starts, validation.integers(f"{where}_indices", indices, stop=n_columns, what="column")


def check_indptr(indptr, n_rows, n_entries, where):
    """Return indptr as int64; raises a DataError unless it has `n_rows` + 1 entries that rise from 0 to `n_entries`."""
    starts = validation.integers(where, indptr).astype(np.int64, copy=False)
    if indptr.size != n_rows + 1:
        raise DataError(f"{where}: {indptr.size} entries, expected {n_rows + 1} for {n_rows} rows")
    if indptr[0] != 0 or indptr[-1] != n_entries:
        raise DataError(f"{where}: runs from {indptr[0]} to {indptr[-1]}, expected 0 to {n_entries}")
    if (at := validation.first_true(np.diff(starts) < 0)) is not None:
        raise DataError(f"{where}: entry {at + 1} is {indptr[at + 1]}, less than the entry before")
    return starts


def dense(data, indptr, indices, shape, where):
    """Return a checked CSR matrix as a dense float32 array; entries given twice are added."""
    n_rows, n_columns = (int(length) for length in shape)
    if min(n_rows, n_columns) < 0:
        raise DataError(f"{where}_shape: {n_rows} x {n_columns}, expected the numbers of nodes and of features")
    indptr, indices = check_csr(indptr, indices, n_rows, n_columns, where)
    if data.shape != indices.shape or data.dtype.kind not in "iufb":
        raise DataError(f"{where}_data: expected {indices.size} numbers, found shape {data.shape}, dtype {data.dtype}")
    check_room(4 * n_rows * n_columns, f"{where}: {n_rows} x {n_columns} features")
    out = np.zeros(n_rows * n_columns, np.float32)
    with np.errstate(all="ignore"):
        np.add.at(out, destinations(indptr) * n_columns + indices, data.astype(np.float32))
    return out.reshape(n_rows, n_columns)


def one_hot(numbers, what):
    """Return (n, any) float32: a column for each number that is there, ascending."""
    known = np.unique(numbers)
    check_room(5 * numbers.size * known.size, f"{what}: {known.size} in {numbers.size} rows")
    return (numbers[:, None] == known).astype(np.float32)


def check_room(n_bytes, what):
    """Raise a DataError where an array would not fit into the memory that this process can still take."""
    free = free_memory()
    if n_bytes > free:
        raise DataError(f"{what}: needs {n_bytes} bytes, but {int(free)} are free")


def check_nodes(n_nodes, n_features, what):
    """Raise a DataError if the number of nodes is too large, or if their arrays would not fit into memory.

    With None for `n_features` the arrays are not in memory.
    """
    if not 0 <= n_nodes <= validation.MOST_NODES:
        raise DataError(f"{what}: {n_nodes} nodes, expected 0 to {validation.MOST_NODES}")
    if n_features is not None:
        check_room(n_nodes * (4 * n_features + 19), f"{what}: {n_nodes} nodes")


def existing(path):
    """Return the path, or raise a DataError where nothing is there."""
    path = Path(path)
    if not path.exists():
        raise DataError(f"{path}: no such file or directory")
    return path
