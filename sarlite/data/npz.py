"""NumPy archives: the CSR form of shchur/gnn-benchmark, and members that are mapped instead of loaded."""

import math
import shutil
import zipfile
from pathlib import Path

import numpy as np

from sarlite.data import npyfile
from sarlite.data.mapped import pieces
from sarlite.data.raw import (
    RawGraph,
    check_csr,
    check_room,
    dense,
    existing,
    read_labels,
    strata,
)
from sarlite.errors import DataError, reading, regular, writing
from sarlite.graph import validation
from sarlite.graph.edges import destinations
from sarlite.graph.generate import random_split


def read(path, classes=None, task=None, train=20, val=30, seed=0):
    """Read adj_indptr, adj_indices, adj_shape, adj_data (weights if not all are 1), attr_* or attr_matrix, and labels.

    Parameters
    ----------
    path : path
    classes : int, optional
        By default the largest label + 1.
    task : str, optional
        What the labels are, as of `raw.read_labels`.
    train, val : int or float
        The file has no split, so one is drawn: nodes a class, or with a decimal point the share of each class; of a
        task other than classify all labelled nodes are one class.
    seed : int

    Returns
    -------
    RawGraph
        Directed, from row to column, as the file has it.

    Raises
    ------
    DataError
        The archive or a member is damaged, has another shape than the other members need, or holds Python objects.
    """
    path = existing(path)
    adj = {name: member(path, f"adj_{name}") for name in ("indptr", "indices", "shape")}
    n_nodes = square(adj["shape"], f"{path}: adj_shape")
    indptr, indices = check_csr(adj["indptr"], adj["indices"], n_nodes, n_nodes, f"{path}: adj")
    features = _features(path)
    labels, n_classes = read_labels(member(path, "labels"), path, classes, task)
    for name, array in (("features", features), ("labels", labels)):
        if array.shape[0] != n_nodes:
            raise DataError(f"{path}: {name}: {array.shape[0]} rows, but adj_shape says {n_nodes} nodes")
    src = destinations(indptr)  # a CSR row of the file holds a node's outgoing edges
    split = random_split(strata(labels, task), train, val, seed)
    return RawGraph(src, indices, features, labels, *split, n_classes=n_classes, name=path.stem, edges_in=path,
                    edge_weight=edge_weight(path, "adj_data", indices.size), task=task or "classify")


def edge_weight(path, name, n_edges):
    """Return the edges' weights, or None where the member is not there or all ones."""
    values = weights(f"{path}: {name}", member(path, name, optional=True), n_edges)
    return None if values is None else validation.weights(f"{path}: {name}", values, n_edges)


def weights(where, values, n_edges):
    """Return weights as they are, or None where there are none or all are 1; raises a DataError for another shape."""
    if values is None or (values.shape == (n_edges,) and all((piece == 1).all() for _, piece in pieces(values))):
        return None
    if values.shape != (n_edges,):
        validation.weights(where, values, n_edges)
    return values


def member(path, name, optional=False, folder=None):
    """Return one array of an .npz file, mapped read-only; of a compressed member that takes a folder.

    Parameters
    ----------
    folder : path, optional
        Where to unpack what is compressed, to be mapped.

    Raises
    ------
    DataError
        The archive cannot be read, has no such member, or the member's size is not what its header says.
    """
    with reading(path, name):
        with zipfile.ZipFile(regular(path)) as archive:
            if f"{name}.npy" not in archive.namelist():
                if optional:
                    return None
                raise DataError(f"{path}: {name}: no such array in the file")
            info = archive.getinfo(f"{name}.npy")
            with archive.open(info) as file:
                dtype, shape, fortran, offset = npyfile.header(file.read(npyfile.HEAD))
                n_bytes = dtype.itemsize * math.prod(shape)
                if offset + n_bytes != info.file_size:
                    raise DataError(f"{path}: {name}: {info.file_size} bytes, but its header needs {offset + n_bytes}")
                if info.compress_type != zipfile.ZIP_STORED and n_bytes >= 1 << 20 and folder is not None:
                    return _unpacked(file, Path(folder, f"{name}.npy"), dtype, shape, fortran, offset)
                if info.compress_type != zipfile.ZIP_STORED or n_bytes < 1 << 20:
                    check_room(n_bytes, f"{path}: {name}")
                    file.seek(offset)
                    data = file.read()  # to the end, where its checksum is compared
                    found = np.frombuffer(data, dtype) if data else np.empty(0, dtype)
                    return found.reshape(shape, order="F" if fortran else "C")
            return np.memmap(path, dtype, "r", _data_offset(path, info) + offset, shape, "F" if fortran else "C")


def _unpacked(file, path, dtype, shape, fortran, offset):
    """Write a member to a file of its own, which is mapped."""
    file.seek(0)
    with writing(path), path.open("wb") as out:
        shutil.copyfileobj(file, out, 1 << 20)  # to the end, where its checksum is compared
    return np.memmap(path, dtype, "r", offset, shape, "F" if fortran else "C")


def _data_offset(path, info):
    """Return where a stored member's bytes begin: after its local header, whose name and extra field vary in length."""
    with Path(path).open("rb") as file:
        file.seek(info.header_offset + 26)
        lengths = np.frombuffer(file.read(4), "<u2")
    return info.header_offset + 30 + int(lengths.sum())


def square(shape, where):
    """Return the number of nodes of a square matrix's shape, or raise a DataError."""
    if shape.shape != (2,) or shape.dtype.kind not in "iu" or shape[0] != shape[1] or shape[0] < 0:
        raise DataError(f"{where}: {shape.ravel()[:3].tolist()}, expected the number of nodes twice")
    return int(shape[0])


def _features(path):
    matrix = member(path, "attr_matrix", optional=True)
    if matrix is not None:
        check_matrix(path, matrix)
        return matrix
    parts = [member(path, f"attr_{name}") for name in ("data", "indptr", "indices", "shape")]
    check_attributes(path, parts[3])
    return dense(*parts, f"{path}: attr")


def check_matrix(path, matrix):
    """Raise a DataError unless `attr_matrix` is a matrix of numbers."""
    if matrix.ndim != 2 or matrix.dtype.kind not in "iuf":
        raise DataError(f"{path}: attr_matrix: expected a matrix of numbers, found shape {matrix.shape}, dtype "
                        f"{matrix.dtype}")


def check_attributes(path, shape):
    """Raise a DataError unless `attr_shape` is two numbers."""
    if shape.shape != (2,) or shape.dtype.kind not in "iu" or shape.min() < 0:
        raise DataError(f"{path}: attr_shape: {shape.ravel()[:3].tolist()}, expected the numbers of nodes and of "
                        "features")
