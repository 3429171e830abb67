"""Sorting of records by a 64-bit key in bounded memory: sorted runs on disk, merged by ranges of keys."""

from pathlib import Path

import numpy as np

from sarlite.data import budget
from sarlite.data.mapped import copied, fresh
from sarlite.data.spool import Spool
from sarlite.errors import ConfigError
from sarlite.structure.edges import index_dtype

_SAMPLES = 2048  # sampled keys of a run, which the ranges are computed from
_PIECE_BYTES = 1 << 25  # bytes of records that are yielded at a time
_ROWS = 1 << 20  # rows without edges whose entries of indptr are yielded at a time
_LOW = np.uint64(2**32 - 1)


class Sorter:
    """Sorter of records by key. Records with equal keys keep their order of arrival.

    Parameters
    ----------
    folder : path or None
        Existing folder for the runs, which the caller removes.
    n_bytes : int or None
        Memory limit in bytes, exceeded only if more records than fit share one key. None is no limit, and nothing is written.
    **columns : (dtype, tuple of int)
        Dtype and shape of each value that a record has beside its key, by name.

    Raises
    ------
    DataError
        From every method, if a file cannot be written.
    ConfigError
        If `n_bytes` is so small that there would be too many runs to merge.

    Notes
    -----
    Records that fit into the limit are sorted in memory, and nothing is written. Memory per record: the key, the columns, and
    17 bytes if there are columns.

    Examples
    --------
    >>> import numpy as np
    >>> sorter = Sorter(None, None, position=(np.int64, ()))
    >>> sorter.add(np.array([3, 1, 2], np.uint64), position=np.arange(3))
    >>> for keys, columns in sorter.pieces():
    ...     keys.tolist(), columns["position"].tolist()
    ([1, 2, 3], [1, 2, 0])
    """

    def __init__(self, folder, n_bytes, **columns):
        self._folder = folder
        self.columns = {name: (np.dtype(dtype), tuple(shape)) for name, (dtype, shape) in columns.items()}
        each = sum(dtype.itemsize * int(np.prod(shape)) for dtype, shape in self.columns.values())
        self._piece = max(1, min(budget.at_once(n_bytes, each=32), _PIECE_BYTES // (8 + each)))
        self._room = None if n_bytes is None else max(64, n_bytes // (8 + each + (17 if columns else 1)))
        self._buffers, self._filled, self._runs, self._samples = None, 0, [], []

    def add(self, keys, **columns):
        """Add records: keys, (n,) integers that fit uint64, and columns, (n, ...) arrays."""
        at = 0
        while at < keys.size:
            buffers, n = self._take_buffers(), keys.size
            if self._room is None:
                _grow(buffers, self._filled + n)
            else:
                n = min(self._room - self._filled, n - at)
            for name, values in {"": keys, **columns}.items():
                buffers[name][self._filled : self._filled + n] = values[at : at + n]
            self._filled, at = self._filled + n, at + n
            if self._filled == self._room:
                self._spill()

    def pieces(self):
        """Yield (keys, columns by name) of all records in order, about a million at a time; the sorter is empty afterwards."""
        if not self._runs:
            yield from self._sorted(self._filled)
        else:
            self._spill()
            yield from self._merged()
        self._buffers = None

    def _take_buffers(self):
        if self._buffers is None:
            self._buffers = _empty(self._room or 0, self.columns)
        return self._buffers

    def _sorted(self, n):
        """Sort the first n records that are buffered in memory by key, and yield them in pieces."""
        keys = self._take_buffers()[""][:n]
        order = None
        if self.columns:
            order = np.argsort(keys, kind="stable")
        else:
            keys.sort()
        for at in range(0, n, self._piece):
            chosen = slice(at, at + self._piece) if order is None else order[at : at + self._piece]
            yield keys[chosen], {name: self._buffers[name][chosen] for name in self.columns}

    def _spill(self):
        """Sort the buffered records, write them to disk as a sorted run, and empty the buffers."""
        if not self._filled:
            return
        if len(self._runs) >= _SAMPLES // 4:
            raise ConfigError(f"--memory: too small to sort so many records: {self._room:,} of them fit at a time")
        forms = {"": (np.dtype(np.uint64), ()), **self.columns}
        run = {name: Spool(Path(self._folder, f"{name or 'keys'}.{len(self._runs)}.run"), dtype)
               for name, (dtype, _) in forms.items()}
        for keys, columns in self._sorted(self._filled):
            for name, values in {"": keys, **columns}.items():
                run[name].write(values)
        self._runs.append({name: spool.array() for name, spool in run.items()})
        self._samples.append(fresh(self._runs[-1][""])[:: max(1, self._room // _SAMPLES)].copy())
        self._filled = 0

    def _merged(self):
        """Merge the sorted runs on disk, and yield their records in order."""
        samples = np.sort(np.concatenate(self._samples))
        per_range = max(1, self._room // max(1, self._room // _SAMPLES) - len(self._runs))
        begins = [0] * len(self._runs)
        for last in [*samples[per_range::per_range], None]:
            ends = [len(run[""]) if last is None else int(np.searchsorted(fresh(run[""]), last)) for run in self._runs]
            total = sum(ends) - sum(begins)
            if total > len(self._take_buffers()[""]):
                self._buffers = None
                self._buffers = _empty(total, self.columns)
            self._load(begins, ends)
            yield from self._sorted(total)
            begins = ends
        for path in Path(self._folder).glob("*.run"):
            path.unlink()

    def _load(self, begins, ends):
        """Copy records from the sorted runs on disk into the buffers: records begin .. end of each run."""
        at = 0
        for run, begin, end in zip(self._runs, begins, ends):
            for name, buffer in self._buffers.items():
                buffer[at : at + end - begin] = copied(run[name], begin, end)
            at += end - begin


def packed(dst, src):
    """Return keys of edges that sort by destination, then by source; ids are below 2^32."""
    keys = dst.astype(np.uint64) << np.uint64(32)
    keys |= src.astype(np.uint64)
    return keys


def csr(sorter, n_nodes, n_sources):
    """Yield the edges of a sorter with `packed` keys as CSR.

    Parameters
    ----------
    sorter : Sorter
    n_nodes : int
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
    for first in range(row, n_nodes + 1, _ROWS):
        yield np.full(min(_ROWS, n_nodes + 1 - first), n_edges), none, none.astype(index_dtype(n_sources)), columns


def _grow(buffers, n):
    """Enlarge buffers that have no room for n records by a quarter more than n."""
    for buffer in buffers.values():
        if len(buffer) < n:
            buffer.resize((n + n // 4, *buffer.shape[1:]), refcheck=False)  # mremap moves pages without copying bytes


def _empty(n, columns):
    buffers = {name: np.empty((n, *shape), dtype) for name, (dtype, shape) in columns.items()}
    return {"": np.empty(n, np.uint64), **buffers}
