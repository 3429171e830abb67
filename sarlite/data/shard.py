"""The rows and edges that one rank owns, read from a data set without touching the rest of it."""

from typing import NamedTuple

import numpy as np

from sarlite.data.mapped import CHUNK_BYTES, part, take
from sarlite.errors import DataError


class Rows(NamedTuple):
    """The node data of one rank, row i for its i-th node."""

    features: np.ndarray
    labels: np.ndarray
    train: np.ndarray
    val: np.ndarray
    test: np.ndarray


def local_rows(dataset, node_ids, dtype=None):
    """Read the features, labels and masks of some nodes.

    Parameters
    ----------
    dataset : Dataset
    node_ids : (n_local,) integer array of global ids, in any order
    dtype : dtype, optional
        Of the features; the data set's own by default.

    Returns
    -------
    Rows
        New C-contiguous arrays: features (n_local, n_features), labels (n_local,) int64, train, val, test (n_local,) bool.

    Raises
    ------
    DataError
        An id is not a node, or appears twice.

    Notes
    -----
    Memory: n_local * (n_features * itemsize + 19) bytes and one chunk of 32 MiB; pages of a memory map do not stay.
    """
    ids = _checked(dataset, node_ids)
    return Rows(take(dataset.features, ids, dtype), *(take(getattr(dataset, name), ids) for name in ("labels", "train", "val", "test")))


def local_edges(dataset, node_ids):
    """Read the incoming edges of some nodes.

    Parameters
    ----------
    dataset : Dataset
    node_ids : (n_local,) integer array of global ids, in any order

    Returns
    -------
    indptr : (n_local + 1,) int64
    indices : (local edges,) the data set's int32 or int64
        Global source ids, in the data set's order.

    Raises
    ------
    DataError
        As for `local_rows`.

    Notes
    -----
    Memory: the result, 48 bytes a local node and one chunk of 32 MiB.
    """
    return local_edge_values(dataset, node_ids, dataset.indices)


def local_edge_values(dataset, node_ids, values):
    """Read one value or row an edge, as `local_edges` does: (indptr, values of the local edges).

    `values` is the data set's `indices`, `edge_weight` or `edge_features`, or any array with one row an edge.
    """
    ids = _checked(dataset, node_ids)
    starts = take(dataset.indptr, ids)
    counts = take(dataset.indptr, ids + 1) - starts
    indptr = np.concatenate(([0], np.cumsum(counts))).astype(np.int64)
    out = np.empty((int(indptr[-1]), *values.shape[1:]), values.dtype)
    rows = np.argsort(ids, kind="stable")  # read in the order of the file, for its pages come one after the other
    read = np.concatenate(([0], np.cumsum(counts[rows])))
    row_bytes = max(1, values.nbytes // max(1, values.shape[0]))
    step = max(1, CHUNK_BYTES // (row_bytes + 32))
    for first in range(0, out.shape[0], step):
        last = min(first + step, out.shape[0])
        positions = _positions(starts[rows], read, first, last)
        out[_positions(indptr[rows], read, first, last)] = _at(values, positions)
    return indptr, out


def _positions(starts, indptr, first, last):
    """Return where edges first..last stand, if those of row i stand from starts[i] on."""
    row_first = int(np.searchsorted(indptr, first, side="right")) - 1
    row_last = int(np.searchsorted(indptr, last, side="left"))
    shift = starts[row_first:row_last] - indptr[row_first:row_last]
    counts = np.diff(np.clip(indptr[row_first : row_last + 1], first, last))
    return np.arange(first, last) + np.repeat(shift, counts)


def _at(values, positions):
    """Return values[positions], ascending positions, of a map of its own."""
    low, high = int(positions[0]), int(positions[-1]) + 1
    if high - low == positions.size:
        return part(values, low, high)
    return part(values, low, high)[positions - low]


def _checked(dataset, node_ids):
    ids = np.asarray(node_ids)
    if ids.ndim != 1 or (ids.dtype.kind not in "iu" and ids.size):
        raise DataError(f"node_ids: expected one dimension of integers, found shape {ids.shape}, dtype {ids.dtype}")
    ids = ids.astype(np.int64)
    if ids.size and (ids.min() < 0 or ids.max() >= dataset.n_nodes):
        bad = ids[(ids < 0) | (ids >= dataset.n_nodes)][0]
        raise DataError(f"node_ids: {bad} is outside 0 <= id < {dataset.n_nodes}")
    ascending = np.sort(ids)
    twice = ascending[1:][np.diff(ascending) == 0]
    if twice.size:
        raise DataError(f"node_ids: {twice[0]} appears twice")
    return ids
