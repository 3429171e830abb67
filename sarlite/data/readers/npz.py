"""Reader of NumPy archives with a graph in CSR, as in shchur/gnn-benchmark; uncompressed arrays are memory-mapped."""

import math
import shutil
import zipfile
from functools import partial
from pathlib import Path

import numpy as np

from sarlite.data import npyfile
from sarlite.data.graph_tables import NODE, RELATION
from sarlite.data.mapped import copied, pieces
from sarlite.data.raw import check_csr, check_room, dense, existing
from sarlite.data.tables.description import Description, EdgeSource, NodeSource
from sarlite.data.tables.memory_tables import Named, Pieces
from sarlite.data.tables.node_columns import FeatureRows
from sarlite.errors import DataError, reading, regular, writing
from sarlite.structure import validation
from sarlite.structure.edges import destinations, row_chunks


def describe(path, workspace, options):
    """Return a Description of the tables in `path`, a NumPy archive with a graph in CSR, which DuckDB then reads. Compressed arrays are
    unpacked into the folder of `workspace`. `options` may have classes and task of the labels, and train, val and seed of a random split.

    The members are adj_indptr, adj_indices, adj_shape, optionally adj_data (weights, unless all are 1), attr_* or
    attr_matrix, and labels.

    Parameters
    ----------
    path : path
    workspace : Workspace
        Compressed members are unpacked into its folder.
    options : dict
        classes, task, and the size and seed of the split, which is drawn as the file has none: train (by default 20 nodes
        per class), val (by default 30) and seed. `data.raw` explains these options.

    Returns
    -------
    Description
        Directed, from row to column, as stored.

    Raises
    ------
    DataError
        If the archive or a member is damaged, a member's shape does not fit the other members, or a member holds Python
        objects.
    """
    path = existing(path)
    get, chunk_size = partial(member, path, folder=workspace.within("members").folder), workspace.at_once()
    indptr, indices = get("adj_indptr"), get("adj_indices")
    n_nodes = square(get("adj_shape"), f"{path}: adj_shape")
    values = weights(f"{path}: adj_data", get("adj_data", optional=True), indices.size)

    def edges():
        dtype = None if values is None else values.dtype if values.dtype in (np.float32, np.float64) else np.float64
        none = np.empty(0, np.int64)
        yield {"source": none, "destination": none, **({} if values is None else {"weight": np.empty(0, dtype)})}
        for first, ends, a, b in _csr_pieces(indptr, indices, n_nodes, f"{path}: adj", chunk_size):
            here = f"{path}: from row {first} on: adj"
            columns = check_csr(ends, copied(indices, a, b), ends.size - 1, n_nodes, here)[1]
            weight = {} if values is None else {"weight": validation.weights(f"{path}: adj_data", copied(values, a, b), b - a)}
            yield {"source": destinations(ends) + first, "destination": columns.astype(np.int64), **weight}

    labels = get("labels")
    features = FeatureRows(path, _n_feature_rows(path, get), _feature_pieces(path, get, chunk_size))
    rows = {"features": features, "labels": Named(str(path), {"labels": labels[:, 0] if labels.shape[1:] == (1,)
                                                              else labels})}
    nodes = NodeSource(**{"train": 20, "val": 30, **options}, count=n_nodes, counted_in=(path, "adj_shape"), rows=rows)
    dtype = values.dtype if values is not None and values.dtype == np.float32 else np.float64
    edge_source = EdgeSource(RELATION, Pieces(str(path), edges()), src="source", dst="destination",
                             weight=None if values is None else "weight", weight_dtype=dtype, reverse=False)
    return Description({NODE: nodes}, [edge_source], NODE, path.stem)


def edge_weight(path, name, n_edges):
    """Return the array `name` of the archive `path` as edge weights, (n_edges,); None if there is no such array or all weights are 1."""
    values = weights(f"{path}: {name}", member(path, name, optional=True), n_edges)
    return None if values is None else validation.weights(f"{path}: {name}", values, n_edges)


def weights(where, values, n_edges):
    """Return `values` as edge weights, or None if they are None or all 1. Raise an error that begins with `where` unless there are
    `n_edges`.
    """
    if values is None or (values.shape == (n_edges,) and all((piece == 1).all() for _, piece in pieces(values))):
        return None
    if values.shape != (n_edges,):
        validation.weights(where, values, n_edges)
    return values


def member(path, name, optional=False, folder=None):
    """Return the array `name` in the archive `path`, read-only; None if it is missing and `optional`. Large arrays are memory-mapped. A
    large compressed array is first unpacked into `folder`, or read into memory if `folder` is None.

    A member of 1 MiB or more that is stored without compression is mapped. Other members are read into memory.

    Parameters
    ----------
    path : path
    name : str
        Name of the array, without `.npy`.
    optional : bool
        If True, return None for a missing member.
    folder : path, optional
        Folder that compressed members of 1 MiB or more are unpacked into, to be mapped.

    Raises
    ------
    DataError
        If the archive cannot be read, has no such member, or the member's size is not what its header says.
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
                    data = file.read()  # zipfile compares the checksum at the end of the member
                    values = np.frombuffer(data, dtype) if data else np.empty(0, dtype)
                    return values.reshape(shape, order="F" if fortran else "C")
            return np.memmap(path, dtype, "r", _data_offset(path, info) + offset, shape, "F" if fortran else "C")


def _unpacked(file, path, dtype, shape, fortran, offset):
    """Unpack a compressed array from the open archive `file` to the file `path`, and return its memory map. The array has `dtype` and
    `shape`, is in Fortran order if `fortran`, and begins at byte `offset` of its .npy file.
    """
    file.seek(0)
    with writing(path), path.open("wb") as out:
        shutil.copyfileobj(file, out, 1 << 20)  # zipfile compares the checksum at the end of the member
    return np.memmap(path, dtype, "r", offset, shape, "F" if fortran else "C")


def _data_offset(path, zip_info):
    """Return the byte in the zip archive `path` where the uncompressed array `zip_info` begins, behind a header of variable length."""
    with Path(path).open("rb") as file:
        file.seek(zip_info.header_offset + 26)
        lengths = np.frombuffer(file.read(4), "<u2")
    return zip_info.header_offset + 30 + int(lengths.sum())


def square(shape, where):
    """Return the number of rows of a square matrix from its stored `shape`, an array of two integers. Raise a DataError that begins with
    `where` if it is not square.
    """
    if shape.shape != (2,) or shape.dtype.kind not in "iu" or shape[0] != shape[1] or shape[0] < 0:
        raise DataError(f"{where}: {shape.ravel()[:3].tolist()}, expected the number of nodes twice")
    return int(shape[0])


def check_matrix(path, matrix):
    """Raise a DataError unless `matrix`, the features `attr_matrix`, is a two-dimensional array of numbers."""
    if matrix.ndim != 2 or matrix.dtype.kind not in "iuf":
        raise DataError(f"{path}: attr_matrix: expected a matrix of numbers, found shape {matrix.shape}, dtype {matrix.dtype}")


def check_attributes(path, shape):
    """Raise a DataError unless `shape`, the features' shape `attr_shape`, holds two numbers that are not negative."""
    if shape.shape != (2,) or shape.dtype.kind not in "iu" or shape.min() < 0:
        raise DataError(f"{path}: attr_shape: {shape.ravel()[:3].tolist()}, expected the numbers of nodes and of features")


def _csr_pieces(indptr, indices, n_rows, matrix_name, chunk_size):
    """Yield (first row, `indptr` of the rows counted from 0, first entry, entry after the last) for pieces of a CSR matrix with
    about `chunk_size` entries each. Messages call the matrix `matrix_name`.

    Yields
    ------
    first : int
        First row of the piece.
    ends : (n_rows of the piece + 1,) int64
        indptr of the piece, from 0 on.
    a, b : int
        The entries a .. b of the matrix belong to the piece.
    """
    if indptr.ndim != 1 or indptr.dtype.kind not in "iu" or indptr.size != n_rows + 1:
        raise DataError(f"{matrix_name}_indptr: shape {indptr.shape}, dtype {indptr.dtype}, "
                        f"expected {n_rows + 1} integers for {n_rows} rows")
    if indptr[0] != 0 or indptr[-1] != indices.size:
        raise DataError(f"{matrix_name}_indptr: runs from {indptr[0]} to {indptr[-1]}, expected 0 to {indices.size}")
    for low in range(0, n_rows, chunk_size):
        ends = copied(indptr, low, min(low + chunk_size, n_rows) + 1, np.int64)
        if (np.diff(ends) < 0).any() or ends[0] < 0 or ends[-1] > indices.size:
            at = int(np.argmax(np.diff(ends, append=indices.size) < 0))
            raise DataError(f"{matrix_name}_indptr: entry {low + at + 1} is less than the entry before")
        for first, last in row_chunks(ends, chunk_size):
            a, b = int(ends[first]), int(ends[last])
            yield low + first, ends[first : last + 1] - a, a, b


def _n_feature_rows(path, member):
    """Return the number of rows of the features in the archive `path`; `member(name)` returns an array of the archive."""
    matrix = member("attr_matrix", optional=True)
    if matrix is not None:
        check_matrix(path, matrix)
        return len(matrix)
    shape = member("attr_shape")
    check_attributes(path, shape)
    return int(shape[0])


def _feature_pieces(path, member, chunk_size):
    """Yield pieces of rows of the features in the archive `path` as dense arrays, with about `chunk_size` entries each, at least
    one piece. `member(name)` returns an array of the archive.
    """
    matrix = member("attr_matrix", optional=True)
    if matrix is not None:
        check_matrix(path, matrix)
        step = max(1, (1 << 25) // max(1, matrix.dtype.itemsize * matrix.shape[1]))
        yield from (copied(matrix, at, min(at + step, len(matrix))) for at in range(0, max(len(matrix), 1), step))
        return
    data, indptr, indices, shape = (member(f"attr_{name}") for name in ("data", "indptr", "indices", "shape"))
    check_attributes(path, shape)
    n_rows, width = map(int, shape)
    if data.shape != indices.shape:
        raise DataError(f"{path}: attr_data: shape {data.shape}, but attr_indices has {indices.shape}")
    step = max(1, (1 << 23) // max(1, width))
    rows = None
    for first, ends, a, _ in _csr_pieces(indptr, indices, n_rows, f"{path}: attr", chunk_size):
        for at in range(0, ends.size - 1, step):
            part = ends[at : at + step + 1]
            here = slice(a + int(part[0]), a + int(part[-1]))
            rows = dense(copied(data, here.start, here.stop), part - part[0], copied(indices, here.start, here.stop),
                          (part.size - 1, width), f"{path}: from row {first + at} on: attr")  # fmt: skip
            yield rows
    if rows is None:
        yield np.empty((0, width), np.float32)
