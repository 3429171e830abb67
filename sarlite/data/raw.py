"""What readers hand over, and the checks and conversions that all of them share."""

import contextlib
import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from sarlite.data.dataset import Dataset
from sarlite.errors import ConfigError, DataError
from sarlite.graph.edges import csr_by_dst, destinations

_CARRY_VALUES = "edges that carry values cannot be added or merged; drop_edge_values drops them"


@dataclass
class RawGraph:
    """A data set as its source has it: an edge list, not yet CSR.

    `undirected` says what the format means by an edge where the user does not say it.
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

    @classmethod
    def of(cls, dataset):
        """Take a data set apart again, to change its edges."""
        for name in ("edge_weight", "edge_features"):
            if getattr(dataset, name) is not None:
                raise ConfigError(f"{dataset.where(name)}: {_CARRY_VALUES}")
        nodes = {name: getattr(dataset, name) for name in ("features", "labels", "train", "val", "test", "n_classes", "name")}
        return cls(np.asarray(dataset.indices), destinations(np.asarray(dataset.indptr)), **nodes)

    def assemble(self, source, *, undirected=None, self_loops=False, deduplicate=False, normalize=False, provenance=None):
        """Return the Dataset, its edges sorted by destination; see `csr_by_dst` for the options.

        `normalize` divides each row of the features by its sum; rows that sum to 0 stay.
        """
        undirected = self.undirected if undirected is None else undirected
        edges = {"undirected": undirected, "self_loops": self_loops, "deduplicate": deduplicate}
        weighted = self.edge_weight is not None
        if weighted and any(edges.values()):
            raise ConfigError(f"{source}: edge_weight: {_CARRY_VALUES}")
        try:
            indptr, indices, *origin = csr_by_dst(self.src, self.dst, self.labels.shape[0], **edges, edge_index=weighted)
        except DataError as error:
            raise DataError(f"{source}: edges: {error}") from error
        features = row_normalized(self.features) if normalize else self.features
        if features.dtype.name not in ("float32", "float64"):
            features = features.astype(np.float32)
        return Dataset(
            indptr, indices, features, self.labels.astype(np.int64, copy=False), self.train, self.val, self.test,
            n_classes=int(self.n_classes), name=self.name, source=source, provenance=provenance or {},
            edge_weight=self.edge_weight[origin[0]] if weighted else None,
        )  # fmt: skip


def row_normalized(features):
    """Return the features with rows that sum to one; a row that sums to 0 stays as it is."""
    features = np.array(features, np.float64 if features.dtype == np.float64 else np.float32)
    sums = features.sum(axis=1, keepdims=True, dtype=np.float64)
    sums[sums == 0] = 1
    features /= sums.astype(features.dtype)
    return features


def masks(n_nodes, where, **ids):
    """Turn arrays of node ids, train=, val= and test=, into three masks; `where` maps a split to what messages name."""
    found = []
    for name, nodes in ids.items():
        nodes = np.asarray(nodes)
        if nodes.size and nodes.dtype.kind not in "iu":
            raise DataError(f"{where[name]}: {name} split: expected node ids, found dtype {nodes.dtype}")
        bad = (nodes < 0) | (nodes >= n_nodes)
        if bad.any():
            raise DataError(f"{where[name]}: {name} split: node id {nodes[bad][0]} is outside 0 <= id < {n_nodes}")
        mask = np.zeros(n_nodes, bool)
        mask[nodes.astype(np.int64)] = True
        found.append(mask)
    return tuple(found)


def count_classes(labels):
    """Return the number of classes, the largest label + 1."""
    return int(labels.max(initial=-1)) + 1


def whole_labels(labels, where):
    """Return one integer label a node from integers or from floats with NaN for unlabelled (which becomes -1)."""
    labels = np.asarray(labels)
    if labels.ndim == 2 and labels.shape[1] == 1:
        labels = labels[:, 0]
    if labels.ndim != 1:
        raise DataError(f"{where}: labels: expected one label a node, found shape {labels.shape}")
    if labels.dtype.kind in "iub":
        return labels.astype(np.int64)
    if labels.dtype.kind != "f":
        raise DataError(f"{where}: labels: expected numbers, found dtype {labels.dtype}")
    missing = np.isnan(labels)
    bad = ~missing & ((labels != np.floor(labels)) | (np.abs(labels) > 2**31))
    if bad.any():
        at = int(np.argmax(bad))
        raise DataError(f"{where}: labels: node {at} has label {labels[at]}, expected a whole number")
    return np.where(missing, -1, labels).astype(np.int64)


def check_csr(indptr, indices, n_rows, n_columns, where):
    """Raise a DataError unless indptr and indices are a CSR matrix of this shape."""
    for name, array in (("indptr", indptr), ("indices", indices)):
        if array.ndim != 1 or array.dtype.kind not in "iu":
            raise DataError(f"{where}_{name}: expected one dimension of integers, found shape {array.shape}, dtype {array.dtype}")
    if indptr.size != n_rows + 1:
        raise DataError(f"{where}_indptr: {indptr.size} entries, expected {n_rows + 1} for {n_rows} rows")
    if indptr[0] != 0 or indptr[-1] != indices.size:
        raise DataError(f"{where}_indptr: runs from {indptr[0]} to {indptr[-1]}, expected 0 to {indices.size}")
    falls = np.diff(indptr.astype(np.int64)) < 0
    if falls.any():
        at = int(np.argmax(falls)) + 1
        raise DataError(f"{where}_indptr: entry {at} is {indptr[at]}, less than the entry before")
    bad = (indices < 0) | (indices >= n_columns)
    if bad.any():
        at = int(np.argmax(bad))
        raise DataError(f"{where}_indices: entry {at} is {indices[at]}, outside 0 <= column < {n_columns}")


def dense(data, indptr, indices, shape, where):
    """Return a checked CSR matrix as a dense float32 array; entries given twice are added."""
    n_rows, n_columns = (int(length) for length in shape)
    check_csr(indptr, indices, n_rows, n_columns, where)
    if data.shape != indices.shape or data.dtype.kind not in "iufb":
        raise DataError(f"{where}_data: expected {indices.size} numbers, found shape {data.shape}, dtype {data.dtype}")
    check_room(4 * n_rows * n_columns, f"{where}: {n_rows} x {n_columns} features")
    out = np.zeros(n_rows * n_columns, np.float32)
    np.add.at(out, destinations(indptr.astype(np.int64)) * n_columns + indices, data.astype(np.float32))
    return out.reshape(n_rows, n_columns)


def check_room(n_bytes, what):
    """Raise a DataError where an array would not fit into this machine's memory."""
    try:
        memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError, AttributeError):  # not known here; NumPy will say it
        return
    if n_bytes > memory:
        raise DataError(f"{what}: needs {n_bytes} bytes, this machine has {memory}")


@contextlib.contextmanager
def reading(path, field, *also):
    """Turn whatever a parser raises on bad input into a DataError that names the file and the field."""
    try:
        yield
    except DataError:
        raise
    except FileNotFoundError as error:
        raise DataError(f"{path}: {field}: no such file") from error
    except (OSError, EOFError, ValueError, TypeError, IndexError, KeyError, MemoryError, OverflowError, *also) as error:
        text = str(error).strip().splitlines()
        raise DataError(f"{path}: {field}: cannot be read: {text[0] if text else type(error).__name__}") from error


def existing(path):
    """Return the path, or raise a DataError where nothing is there."""
    path = Path(path)
    if not path.exists():
        raise DataError(f"{path}: no such file or directory")
    return path
