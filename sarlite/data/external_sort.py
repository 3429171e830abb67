"""Sorting of records by a 64-bit key in bounded memory: each range of keys has a file, and one file is sorted at a time."""

from pathlib import Path

import numpy as np

from sarlite.data import budget
from sarlite.data.mapped import copied
from sarlite.data.spool import Spool
from sarlite.errors import ConfigError
from sarlite.structure.edges import index_dtype

_PIECE_BYTES = 1 << 25  # bytes of records that are yielded at a time
_ROWS = 1 << 20  # rows without edges whose entries of indptr are yielded at a time
_LOW = np.uint64(2**32 - 1)
_SAMPLES = 1 << 16  # keys that the ranges are computed from
_MOST_RANGES = 512  # files that are open at once
_FILLED = 0.8  # share of the memory that a range fills if the sample is exact


class Sorter:
    """Sorter of records by a 64-bit key, which keeps records in files of a folder; records with equal keys keep their order of arrival.

    Parameters
    ----------
    folder : path
        Existing folder for the files, which the caller removes.
    n_bytes : int
        Memory limit in bytes, exceeded only if more records than fit share one key.
    n : int
        Number of records.
    sample : iterable of (k,) array
        Keys of records that are evenly spread over all records, in pieces; `sampled` makes them.
    **columns : (dtype, tuple of int)
        Dtype and shape of each value that a record has beside its key, by name.

    Raises
    ------
    DataError
        From every method, if a file cannot be written.
    ConfigError
        If `n_bytes` is so small that there would be too many files.

    Notes
    -----
    Memory per record of a range: the key, the columns, and 24 bytes.

    Examples
    --------
    >>> import tempfile
    >>> import numpy as np
    >>> keys = np.array([3, 1, 2], np.uint64)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     sorter = Sorter(folder, 1000, 3, [keys], position=(np.int64, ()))
    ...     sorter.add(keys, position=np.arange(3))
    ...     [(keys.tolist(), columns["position"].tolist()) for keys, columns in sorter.pieces()]
    [([1, 2, 3], [1, 2, 0])]
    """

    def __init__(self, folder, n_bytes, n, sample, **columns):
        self.columns = {name: (np.dtype(dtype), tuple(shape)) for name, (dtype, shape) in columns.items()}
        self._record = np.dtype([("key", np.uint64), *((name, *form) for name, form in self.columns.items())])
        each = self._record.itemsize
        self._piece = max(1, min(budget.at_once(n_bytes, each=32), _PIECE_BYTES // each))
        n_ranges = max(1, -(-n // max(1, int(_FILLED * n_bytes) // (each + 24))))
        if n_ranges > _MOST_RANGES:
            raise ConfigError(f"--memory: too small to sort {n:,} records of {each} bytes")
        sample = np.sort(np.concatenate([np.empty(0, np.uint64), *sample]))
        self._starts = sample[np.arange(1, n_ranges) * sample.size // n_ranges]
        self._paths = [Path(folder, f"{at}.range") for at in range(n_ranges)]
        self._files = [Spool(path, self._record) for path in self._paths]

    def add(self, keys, **columns):
        """Add n records: their `keys`, (n,) integers from 0 to 2^64 - 1, and their values, `columns` of shape (n, ...)."""
        keys = np.asarray(keys, np.uint64)
        at = np.searchsorted(self._starts, keys, "right")
        order = np.argsort(at, kind="stable")
        for file, chosen in zip(self._files, np.split(order, np.cumsum(np.bincount(at, minlength=len(self._files)))[:-1])):
            records = np.empty(chosen.size, self._record)
            for name, values in {"key": keys, **columns}.items():
                records[name] = values[chosen]
            file.write(records)

    def pieces(self):
        """Yield (keys, {name: column}) of all records in ascending order of keys, about a million at a time. The sorter is empty
        afterwards.
        """
        for file, path in zip(self._files, self._paths):
            records = file.array()
            records = copied(records, 0, len(records))
            path.unlink()
            order = np.argsort(records["key"], kind="stable")
            for at in range(0, order.size, self._piece):
                chosen = records[order[at : at + self._piece]]
                yield chosen["key"], {name: chosen[name] for name in self.columns}


def sampled(key_pieces, n):
    """Yield every k-th of `n` keys that arrive in pieces, so that about 65,536 keys are yielded. `Sorter` derives its ranges of
    keys from them.
    """
    first, step = 0, max(1, n // _SAMPLES)
    for keys in key_pieces:
        yield np.asarray(keys[-first % step :: step], np.uint64)
        first += len(keys)


def packed(dst, src):
    """Return edge keys, (dst << 32) + src as uint64, which sort by destination, then by source; ids are below 2^32."""
    keys = dst.astype(np.uint64) << np.uint64(32)
    keys |= src.astype(np.uint64)
    return keys


def csr(sorter, n_destinations, n_sources):
    """Yield (entries of `indptr`, destinations, sources, {column: values}) for one piece of the edges in `sorter` after another, sorted by
    destination, then source. The function `packed` must have made the keys of the sorter.

    Parameters
    ----------
    sorter : Sorter
    n_destinations : int
        Number of destinations.
    n_sources : int

    Yields
    ------
    ends : (any,) int64
        The next entries of indptr, n_nodes + 1 in all.
    dst, src : (n,) int
    columns : dict of str to array
        The sorter's columns.
    """
    row = n_edges = 0  # entries of indptr up to `row` were yielded
    for keys, columns in sorter.pieces():
        dst = (keys >> np.uint64(32)).astype(np.int64)
        nothing, last = slice(0, 0), int(dst[-1]) + 1
        while row < last - _ROWS:  # many rows without edges
            ends = np.searchsorted(dst, np.arange(row, row + _ROWS)) + n_edges
            yield ends, dst[nothing], dst[nothing], {name: values[nothing] for name, values in columns.items()}
            row += _ROWS
        src = (keys & _LOW).astype(index_dtype(n_sources))
        yield np.searchsorted(dst, np.arange(row, last)) + n_edges, dst, src, columns
        row, n_edges = last, n_edges + keys.size
    none = np.empty(0, np.int64)
    columns = {name: np.empty((0, *shape), dtype) for name, (dtype, shape) in sorter.columns.items()}
    for first in range(row, n_destinations + 1, _ROWS):
        yield np.full(min(_ROWS, n_destinations + 1 - first), n_edges), none, none.astype(index_dtype(n_sources)), columns
