"""Results of the readers, and the checks and conversions that the readers share.

A reader takes the path of a file or a folder, and some of these options:

classes
    int, number of classes; by default the largest label + 1.
task
    {"classify", "multilabel", "regress"}, meaning of the labels: see `read_labels`.
train, val
    Sizes of a drawn split. An int is a number of nodes per class, a float the share of each class. For a task other than
    "classify" all labelled nodes count as one class.
seed
    int, seed of a drawn split.

A reader raises a DataError that names the file and the field if a file is missing or damaged, or if files disagree in
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
"""Longest run of consecutive unused labels that is accepted; a longer run suggests codes instead of class numbers."""

_SAY = "; labels that are not one class per {what} are read with task=multilabel or task=regress"
CARRY_VALUES = "edges that carry values cannot be added or merged; drop_edge_values drops them"


@dataclass
class RawGraph:
    """A data set as a reader returns it: an edge list, not yet sorted into CSR.

    Attributes
    ----------
    src, dst : (n_edges,) int
    features : (n_nodes, n_features) array of numbers
    labels : (n_nodes, ...) array
        In the form of the task, as in `NodeTable`.
    train, val, test : (n_nodes,) bool
    n_classes : int
        Number of outputs of a model.
    name : str
    undirected : bool
        True if the format stores each edge in one direction only, so that the reverse edges are added by default.
    edge_weight : (n_edges,) float, optional
    edges_in : path, optional
        File of the edges, for messages.
    task : {"classify", "multilabel", "regress"}
    edge_features : (n_edges, n_edge_features) float, optional
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
        """Return `dataset` as a RawGraph, so that edges can be added or removed. A ConfigError is raised if its edges have weights,
        features or times.
        """
        for name in EdgeTable.VALUES:
            if getattr(dataset, name) is not None:
                raise ConfigError(f"{dataset.where(name)}: {CARRY_VALUES}")
        if dataset.target_nodes.time is not None:
            raise ConfigError(f"{dataset.target_nodes.where('time')}: edges of nodes with times cannot be added or merged")
        names = ("features", "labels", *SPLITS, "n_classes", "name", "task")
        nodes = {name: getattr(dataset, name) for name in names}
        return cls(np.asarray(dataset.indices), destinations(np.asarray(dataset.indptr)), **nodes)

    def assemble(self, source, *, undirected=None, self_loops=False, deduplicate=False, normalize=False, provenance=None):
        """Return the Dataset of this graph, with edges sorted by destination. `undirected`, `self_loops` and `deduplicate` add or merge
        edges, and `normalize` divides rows of features by their sum. Messages call the data `source`, and `provenance` is a dict about
        their origin.

        Parameters
        ----------
        source : str
            Name of the data in messages.
        undirected : bool, optional
            If True, add the reverse edges; by default `self.undirected`.
        self_loops, deduplicate : bool
            Options of `structure.edges.csr_by_dst`.
        normalize : bool
            If True, divide each row of the features by its sum; rows that sum to 0 stay unchanged.
        provenance : dict, optional

        Raises
        ------
        ConfigError
            If edges with values would be added or merged.
        DataError
            If an edge has an end that is no node.
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
    """Return the feature rows `rows` as float32 or float64. If `normalize` is True, each row is divided by its sum."""
    rows = row_normalized(rows) if normalize else rows
    return rows if rows.dtype.name in ("float32", "float64") else narrowed(rows)


def row_normalized(features):
    """Return the features, float32 or float64, with each row divided by its sum; a row that sums to 0 stays unchanged."""
    features = features.astype(np.float64) if features.dtype == np.float64 else narrowed(features, copy=True)
    with np.errstate(all="ignore"):  # `Dataset.check` refuses results that are not finite
        sums = features.sum(axis=1, keepdims=True, dtype=np.float64)
        sums[sums == 0] = 1
        features /= sums.astype(features.dtype)
    return features


def narrowed(numbers, copy=False):
    """Return `numbers` as float32, as a new array if `copy` is True. A number beyond the range of float32 becomes infinite, and
    `Dataset.check` refuses it later.
    """
    with np.errstate(all="ignore"):
        return widened(numbers).astype(np.float32, copy=copy)


def masks(n_nodes, where, **ids):
    """Return the train, val and test masks, (n_nodes,) bool each. `ids` has the node ids of each split, and `where` the source of
    each split for messages.

    Parameters
    ----------
    n_nodes : int
    where : dict of str to (str or path)
        Name of each split's source in messages.
    **ids : (n,) int array
        Node ids of each split.
    """
    return tuple(mask(n_nodes, f"{where.get(name)}: {name} split", [np.asarray(nodes)]) for name, nodes in ids.items())


def mask(n_nodes, what, id_pieces):
    """Return the mask, (n_nodes,) bool, that is True at the node ids in `id_pieces`, an iterable of arrays. Messages about an
    invalid or repeated id begin with `what`.

    Raises
    ------
    DataError
        If an id is outside 0 <= id < n_nodes or appears twice. The message starts with `what`.
    """
    in_mask = np.zeros(n_nodes, bool)
    for nodes in id_pieces:
        nodes = np.sort(validation.integers(what, nodes, stop=n_nodes, entry="node id {value} is"))
        if (at := validation.first_true(in_mask[nodes] | (np.diff(nodes, prepend=-1) == 0))) is not None:
            raise DataError(f"{what}: node id {nodes[at]} appears twice")
        in_mask[nodes] = True
    return in_mask


def count_classes(labels, where, n_classes=None):
    """Return the number of classes of `labels`: `n_classes`, if it is large enough, or by default the largest label + 1. Messages
    name the labels' source `where`.

    Parameters
    ----------
    labels : (n_nodes,) int64
        -1 where unlabelled.
    where : str or path
        Name of the labels in messages.
    n_classes : int, optional
        The user's number of classes; by default the largest label + 1.

    Raises
    ------
    DataError
        If there are more than `MAX_CLASSES` classes, or if without `n_classes` a run of more than `MAX_GAP` consecutive
        labels is used by no node.
    ConfigError
        If `n_classes` is not above the largest label.
    """
    top = max((int(piece.max()) for _, piece in pieces(labels)), default=-1)
    if n_classes is not None:
        if not top < n_classes <= MAX_CLASSES:
            raise ConfigError(f"classes is {n_classes}, but must be {top + 1} to {MAX_CLASSES}: {where} has labels up to {top}")
        return n_classes
    if top >= MAX_CLASSES:
        raise DataError(f"{where}: labels: the largest is {top}: number the classes from 0 on, at most {MAX_CLASSES}")
    seen = np.zeros(top + 1, bool)
    for _, piece in pieces(labels):
        seen[piece[piece >= 0]] = True
    used = np.concatenate(([-1], np.flatnonzero(seen)))
    gaps = np.diff(used) - 1
    if gaps.max(initial=0) > MAX_GAP:
        low = int(used[np.argmax(gaps)]) + 1
        raise DataError(f"{where}: labels: no node has a label from {low} to {low + int(gaps.max()) - 1}, but a node has "
                        f"{top}, which would make {top + 1} classes: number the classes from 0 on, or pass "
                        f"classes={top + 1}")
    return top + 1


def read_labels(labels, where, classes=None, task=None):
    """Return (`labels` in the form that `task` needs, number of a model's outputs). The number of `classes` is by default the
    largest label + 1; messages name the labels' source `where`.

    Parameters
    ----------
    labels : (n,) or (n, k) array of numbers
        NaN marks a missing label; with "classify", -1 does too.
    where : str or path
        Name of the labels in messages.
    classes : int, optional
        Number of classes; by default the largest label + 1.
    task : {"classify", "multilabel", "regress"}, optional
        By default "classify"; the other tasks are never guessed.

    Returns
    -------
    labels : (n,) or (n, k) array
    n_outputs : int

    Raises
    ------
    DataError
        If the labels do not have the form of the task; also as `count_classes`.
    ConfigError
        If the task is unknown, or `classes` is passed with a task other than "classify"; also as `count_classes`.
    """
    formed = in_form(labels, where, task)
    return formed, count_outputs(formed, where, classes, task)


def in_form(labels, where, task, first_row=0, what="node"):
    """Return `labels` in the form that `task` needs: int64 classes ("classify" or None), uint8 columns of 0 and 1, or floats. Messages name
    the source `where`, call a row `what`, and count rows from `first_row`.

    Parameters
    ----------
    labels : (n,) or (n, k) array of numbers
    where : str or path
        Name of the labels in messages.
    task : {"classify", "multilabel", "regress"} or None
    first_row : int
        Number of the first row in messages.
    what : str
        Word for a row in messages.
    """
    if task not in (None, *TASKS):
        raise ConfigError(f"task: {task!r} is not one of {', '.join(TASKS)}")
    if task in (None, "classify"):
        return whole_labels(labels, where, first_row, what)
    labels = np.asarray(labels)
    if labels.ndim not in (1, 2) or labels.dtype.kind not in "iubf":
        raise DataError(f"{where}: labels: expected rows of numbers, found shape {labels.shape}, dtype {labels.dtype}")
    if task == "regress":
        labels = labels[:, 0] if labels.shape[1:] == (1,) else labels
        return labels if labels.dtype == np.float64 else narrowed(labels)
    return _binary_labels(labels.reshape(len(labels), -1), where, first_row, what)


def count_outputs(labels, where, classes, task):
    """Return a model's number of outputs per node. For the `task` "classify" or None this is `classes` or, if that is None, the largest
    label + 1; for other tasks it is the number of columns of `labels`. Messages name the labels' source `where`.
    """
    if task in (None, "classify"):
        return count_classes(labels, where, classes)
    if classes is not None:
        raise ConfigError(f"classes: {classes} goes with task=classify only, not with task={task}")
    return n_outputs(labels, task)


def _binary_labels(labels, where, first_row, what):
    """Return `labels`, which must be 0, 1 or NaN, as uint8 with `MISSING` for NaN. Raise a DataError for another value; the message names
    the source `where`, calls a row `what`, and counts rows from `first_row`.
    """
    missing = np.isnan(labels) if labels.dtype.kind == "f" else np.zeros(labels.shape, bool)
    if (at := validation.first_true(~(missing | (labels == 0) | (labels == 1)))) is not None:
        raise DataError(f"{where}: labels: {what} {first_row + at[0]} has {labels[at]} in column {at[1]}, "
                        "expected 0, 1, or NaN where unknown")
    return np.where(missing, MISSING, np.where(missing, 0, labels)).astype(np.uint8)


def strata(labels, task):
    """Return for each node its group in a stratified split, (n,): its class if `task` is "classify" or None, else 0. A node without a label
    has -1.
    """
    return labels if task in (None, "classify") else np.where(labelled(labels, task), 0, -1)


def whole_labels(labels, where, first_row=0, what="node"):
    """Return `labels` as one class number per row, (n,) int64, with -1 for NaN, which is no label. Messages name the source `where`
    and call a row `what`, with its number counted from `first_row`.

    Parameters
    ----------
    labels : (n,) or (n, 1) array of numbers
    where : str or path
        Name of the labels in messages.
    first_row : int
        Number of the first row in messages.
    what : str
        Word for a row in messages.

    Raises
    ------
    DataError
        If a label is not a whole number from -1 to 2^31, or if a row has several labels.
    """
    labels = np.asarray(labels)
    if labels.ndim == 2 and labels.shape[1] == 1:
        labels = labels[:, 0]
    if labels.ndim != 1:
        raise DataError(f"{where}: labels: expected one label per {what}, found shape {labels.shape}{_SAY.format(what=what)}")
    if labels.dtype.kind not in "iubf":
        raise DataError(f"{where}: labels: expected numbers, found dtype {labels.dtype}")
    missing = np.isnan(labels) if labels.dtype.kind == "f" else np.zeros(labels.shape, bool)
    odd = missing
    if labels.dtype.kind != "b":
        odd = ~missing & ((labels != np.floor(labels)) | (labels > 2**31) | (labels < -1))
    if (at := validation.first_true(odd)) is not None:
        raise DataError(f"{where}: labels: {what} {first_row + at} has label {labels[at]}, "
                        f"expected a whole number, or -1 where it has none{_SAY.format(what=what)}")
    return np.where(missing, -1, labels).astype(np.int64)


def check_csr(indptr, indices, n_rows, n_columns, where):
    """Return (`indptr` as int64, `indices` as integers) of a CSR matrix of shape (n_rows, n_columns). Raise a DataError that begins
    with `where` if they are invalid.
    """
    starts = check_indptr(indptr, n_rows, indices.size, f"{where}_indptr")
    return starts, validation.integers(f"{where}_indices", indices, stop=n_columns, what="column")


def check_indptr(indptr, n_rows, n_entries, where):
    """Return `indptr` as int64. Raise a DataError that begins with `where` unless it has `n_rows` + 1 entries that rise from 0 to
    `n_entries`.
    """
    starts = validation.integers(where, indptr).astype(np.int64, copy=False)
    if indptr.size != n_rows + 1:
        raise DataError(f"{where}: {indptr.size} entries, expected {n_rows + 1} for {n_rows} rows")
    if indptr[0] != 0 or indptr[-1] != n_entries:
        raise DataError(f"{where}: runs from {indptr[0]} to {indptr[-1]}, expected 0 to {n_entries}")
    if (at := validation.first_true(np.diff(starts) < 0)) is not None:
        raise DataError(f"{where}: entry {at + 1} is {indptr[at + 1]}, less than the entry before")
    return starts


def dense(data, indptr, indices, shape, where):
    """Return the CSR matrix (`data`, `indptr`, `indices`) as a dense float32 array of `shape`. Values at the same place are added,
    and messages begin with `where`.

    Raises
    ------
    DataError
        If the arrays do not form a CSR matrix of this shape, or the dense array does not fit into free memory. The message
        starts with `where`.
    """
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
    """Return one-hot rows for `numbers`, float32, shape (n, number of distinct values); columns follow the values in ascending
    order. A message about memory begins with `what`.
    """
    values = np.unique(numbers)
    check_room(5 * numbers.size * values.size, f"{what}: {values.size} in {numbers.size} rows")
    return (numbers[:, None] == values).astype(np.float32)


def check_room(n_bytes, what):
    """Raise a DataError that begins with `what` if `n_bytes` are more than the bytes that this process can still allocate."""
    free = free_memory()
    if n_bytes > free:
        raise DataError(f"{what}: needs {n_bytes} bytes, but {int(free)} are free")


def check_nodes(n_nodes, n_features, message_start):
    """Raise a DataError that begins with `message_start` if `n_nodes` is too large, or if `n_features` float32 features of each
    node (None: not held in memory) would not fit into memory.

    Parameters
    ----------
    n_nodes : int
    n_features : int or None
        Columns of float32 features; None if the arrays are not held in memory.
    message_start : str
        Start of the message.
    """
    if not 0 <= n_nodes <= validation.MOST_NODES:
        raise DataError(f"{message_start}: {n_nodes} nodes, expected 0 to {validation.MOST_NODES}")
    if n_features is not None:
        check_room(n_nodes * (4 * n_features + 19), f"{message_start}: {n_nodes} nodes")


def existing(path):
    """Return the path as a `pathlib.Path`; raise a DataError if nothing exists there."""
    path = Path(path)
    if not path.exists():
        raise DataError(f"{path}: no such file or directory")
    return path
