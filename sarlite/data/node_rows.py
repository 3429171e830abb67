"""A .npy file of one row a node, by original id: each rank reads and writes its own rows, and none holds them all."""

import contextlib
import io
import os

import numpy as np

from sarlite.comm import agree, together
from sarlite.data import npyfile
from sarlite.data.mapped import take
from sarlite.errors import DataError, writing
from sarlite.files import no_follow, whole


def read(path, field, ids, n_nodes, n_columns=None, dtype=None):
    """Return the rows of `ids` of an (n_nodes, n_columns) array of floats, as a new C-contiguous array of `dtype`.

    Parameters
    ----------
    path : path
    field : str
        What the rows are, for messages.
    ids : (n,) int array
        Original ids: row i of the file is node i's.
    n_nodes : int
    n_columns : int, optional
        Any number without it.
    dtype : dtype, optional
        The file's without it.

    Raises
    ------
    DataError
        No such file, no .npy file, or of another shape or dtype.

    Notes
    -----
    The file is mapped, a piece at a time. Memory: the result, 8 bytes an id, and 32 MiB.
    """
    array = npyfile.load(path, field)
    shape = (n_nodes, n_columns if n_columns is not None else array.shape[1] if array.ndim == 2 else "columns")
    if array.shape != shape:
        raise DataError(f"{path}: {field}: shape {array.shape}, but the data need {str(shape).replace(chr(39), '')}")
    if array.dtype.kind != "f" or array.dtype.itemsize not in (4, 8):
        raise DataError(f"{path}: {field}: dtype {array.dtype}, but float32 or float64 is needed")
    return take(array, np.asarray(ids), dtype or array.dtype.newbyteorder("="))


def write(comm, path, ids, rows, n_nodes):
    """Write every rank's rows into one .npy file, (n_nodes, n_columns), which appears whole or not at all. Collective.

    Parameters
    ----------
    comm : Communicator
        Its ranks all see `path`'s folder, and together have each id once.
    path : path
        What stands there is replaced.
    ids : (n,) int array
    rows : (n, n_columns) array
        Of one dtype and width on every rank.
    n_nodes : int

    Raises
    ------
    DataError
        On every rank: it cannot be written, or not all rows are there. What stood there before is intact.

    Notes
    -----
    Rank 0 makes a private file beside `path`; each rank writes its rows at their places and fsyncs; then rank 0 renames
    the file. Rows whose ids follow each other are one write. Memory: a copy of the rows.
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


def _begin(held, path, shape, dtype, rank):
    """Return on rank 0 the private file's name and the offset of its rows in bytes."""
    if rank:
        return None
    header = io.BytesIO()
    little = np.dtype(dtype).newbyteorder("<")
    descr = np.lib.format.dtype_to_descr(little)
    np.lib.format.write_array_header_1_0(header, {"descr": descr, "fortran_order": False, "shape": shape})
    with writing(path):
        name, file = held.enter_context(whole(path))
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
