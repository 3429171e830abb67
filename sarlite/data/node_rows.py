"""A .npy file with one row per node, in the order of the original ids; each rank reads and writes its own rows only."""

import contextlib
import io
import os

import numpy as np

from sarlite.comm import agree, together
from sarlite.data import npyfile
from sarlite.data.mapped import take
from sarlite.errors import DataError, writing
from sarlite.files import atomic_file, no_follow


def read(path, field, ids, n_nodes, n_columns=None, dtype=None):
    """Return the rows `ids` of a .npy file of floats with one row per node, as a new array, (n, n_columns). None for `n_columns` or
    `dtype` accepts any; messages call the rows `field`.

    Parameters
    ----------
    path : path
    field : str
        Name of the rows in messages.
    ids : (n,) int array
        Original ids: row i of the file belongs to node i.
    n_nodes : int
        Number of rows that the file must have.
    n_columns : int, optional
        Number of columns that the file must have; by default any.
    dtype : dtype, optional
        Dtype of the result; by default the file's.

    Raises
    ------
    DataError
        If the file cannot be read, is no .npy file, or has another shape or dtype.

    Notes
    -----
    The file is mapped in pieces. Memory: the result, 8 bytes per id, and 32 MiB.
    """
    array = npyfile.load(path, field)
    shape = (n_nodes, n_columns if n_columns is not None else array.shape[1] if array.ndim == 2 else "columns")
    if array.shape != shape:
        raise DataError(f"{path}: {field}: shape {array.shape}, but the data need {str(shape).replace(chr(39), '')}")
    if array.dtype.kind != "f" or array.dtype.itemsize not in (4, 8):
        raise DataError(f"{path}: {field}: dtype {array.dtype}, but float32 or float64 is needed")
    return take(array, np.asarray(ids), dtype or array.dtype.newbyteorder("="))


def write(comm, path, ids, rows, n_nodes):
    """Write `rows`, each rank's rows of the nodes `ids`, into one .npy file of shape (n_nodes, n_columns). The file appears whole
    or not at all. Collective.

    Parameters
    ----------
    comm : Communicator
        All ranks see the folder of `path`. Together their ids are 0 .. n_nodes - 1, each once.
    path : path
        An existing file is replaced.
    ids : (n,) int array
    rows : (n, n_columns) array
        Dtype and width are the same on every rank.
    n_nodes : int

    Raises
    ------
    DataError
        On every rank, if the file cannot be written or rows are missing. An existing file then stays intact.

    Notes
    -----
    Rank 0 creates a private file beside `path`. Each rank writes its rows into the file and fsyncs it; then rank 0 renames
    the file. Rows with consecutive ids take a single write. Memory: a copy of the rows.
    """
    agree(comm, (rows.shape[1:], str(rows.dtype)), f"{path}: width and dtype of the rows")
    n_rows = sum(comm.allgather(len(ids)))
    if n_rows != n_nodes:
        raise DataError(f"{path}: {n_rows} rows of {n_nodes} nodes")
    with contextlib.ExitStack() as held:
        shape = (n_nodes, *rows.shape[1:])
        name, offset = comm.bcast(together(comm, lambda: _begin(held, path, shape, rows.dtype, comm.rank)))
        together(comm, lambda: _put(path, name, offset, np.asarray(ids), rows))
        together(comm, lambda: _end(held, path))


def _begin(exit_stack, path, shape, dtype, rank):
    """Create the output file, under a temporary name, with a .npy header for `shape` and `dtype` on rank 0, and return (temporary
    name, offset of the rows in bytes). Return None on other ranks.
    """
    if rank:
        return None
    header = io.BytesIO()
    little = np.dtype(dtype).newbyteorder("<")
    descr = np.lib.format.dtype_to_descr(little)
    np.lib.format.write_array_header_1_0(header, {"descr": descr, "fortran_order": False, "shape": shape})
    with writing(path):
        name, file = exit_stack.enter_context(atomic_file(path))
        file.write(header.getvalue())
        file.flush()
        os.ftruncate(file.fileno(), header.tell() + little.itemsize * int(np.prod(shape)))
    return name, header.tell()


def _put(path, name, offset, ids, rows):
    order = np.argsort(ids, kind="stable")
    ids, rows = ids[order], np.ascontiguousarray(rows[order], rows.dtype.newbyteorder("<"))
    row_bytes = rows.itemsize * int(np.prod(rows.shape[1:]))
    firsts = np.flatnonzero(np.diff(ids, prepend=-2) != 1)
    with writing(path):
        handle = no_follow(name, os.O_WRONLY)
        try:
            for first, last in zip(firsts, [*firsts[1:], len(ids)]):
                _pwrite(handle, memoryview(rows[first:last]).cast("B"), offset + int(ids[first]) * row_bytes)
            os.fsync(handle)
        finally:
            os.close(handle)


def _pwrite(handle, data, offset):
    while data:
        done = os.pwrite(handle, data, offset)
        data, offset = data[done:], offset + done


def _end(held, path):
    with writing(path):
        held.close()
