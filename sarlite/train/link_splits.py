"""Which split each link is of: drawn from the ids of its ends, or told by the user, as pairs, by edge or by time."""

from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from sarlite.comm import Communicator, Solo
from sarlite.data import columns
from sarlite.data.cells import ids, numbers, whole_ids
from sarlite.errors import ConfigError, DataError, raise_together
from sarlite.keys import key, splitmix64
from sarlite.minibatch.part_edges import share
from sarlite.train.link_scores import read_pairs
from sarlite.types import Array

NAMES = ("train", "val", "test")
TRAIN, VAL, TEST = range(3)


def variates(one: Array, other: Array, seed: int) -> Array:
    """Return 64 random bits for each pair of ids, the same in either order."""
    low, high = np.minimum(one, other).astype(np.uint64), np.maximum(one, other).astype(np.uint64)
    return splitmix64(splitmix64(low ^ np.uint64(key(seed, "links", "", 0, 0))) ^ high)


def uniform(bits: Array) -> Array:
    """Return random bits as numbers of [0, 1)."""
    return (bits >> np.uint64(11)) * 2.0**-53


class DrawnSplits(NamedTuple):
    """Splits drawn by the ids of a link's ends: the shares `val` and `test`, and the others to train on."""

    val: float
    test: float
    seed: int

    def __call__(self, one: Array, other: Array) -> Array:
        """Return the split of each pair of ids, in either order, (n,) int64."""
        at = uniform(variates(one, other, self.seed))
        return np.where(at < self.test, TEST, np.where(at < self.test + self.val, VAL, TRAIN))

    def listed(self) -> tuple[Array, Array]:
        """Return this rank's pairs that are links whether or not they are edges, and their splits: none."""
        return np.empty((0, 2), np.int64), np.empty(0, np.int64)


class ToldSplits:
    """Splits as pairs of nodes have them; pairs that are not listed are of training. Construction and calls are collective.

    Parameters
    ----------
    comm : Communicator
    n : int
        Nodes, whose ids are 0 .. n - 1.
    pairs : (k, 2) int64
        Ids of both ends, in either order; each rank gives some. Self loops are no links, and not looked at.
    split : (k,) int64
        Of `TRAIN`, `VAL` and `TEST`.

    Raises
    ------
    DataError
        On every rank: a pair, in either direction, is in two splits.

    Notes
    -----
    Memory: 24 bytes a listed pair, of which each rank keeps those of a range of ids. A call sends 16 bytes a pair.
    """

    def __init__(self, comm: Communicator, n: int, pairs: Array, split: Array) -> None:
        proper = pairs[:, 0] != pairs[:, 1]
        self._comm, self._n, self._range = comm, n, max(-(-n // comm.size), 1)
        self._pairs, self._of_pairs = pairs[proper], split[proper]
        keys = self._keys(*self._pairs.T)
        order, starts = self._by_rank(keys)
        found = np.concatenate(comm.alltoall(share(np.stack([keys, self._of_pairs], 1)[order], starts)))
        self._known, self._split = found[np.lexsort(found.T[::-1])].T
        same = self._known[1:] == self._known[:-1]
        twice = np.flatnonzero(same & (self._split[1:] != self._split[:-1]))
        raise_together(comm, self._error(twice[0]) if len(twice) else None)

    def __call__(self, one: Array, other: Array) -> Array:
        """Return the split of each pair of ids, in either order, (n,) int64. Collective."""
        keys, found = self._keys(one, other), np.empty(len(one), np.int64)
        order, starts = self._by_rank(keys)
        told = [self._of(asked) for asked in self._comm.alltoall(share(keys[order], starts))]
        found[order] = np.concatenate(self._comm.alltoall(told))
        return found

    def listed(self) -> tuple[Array, Array]:
        """Return the pairs to validate and to test on that this rank gave, and their splits; they need not be edges."""
        chosen = self._of_pairs != TRAIN
        return self._pairs[chosen], self._of_pairs[chosen]

    def _of(self, keys):
        places = np.minimum(np.searchsorted(self._known, keys), max(len(self._known) - 1, 0))
        return np.where(self._known[places] == keys, self._split[places], TRAIN) if len(self._known) else \
            np.full(len(keys), TRAIN)

    def _keys(self, one, other):
        return np.minimum(one, other).astype(np.int64) * self._n + np.maximum(one, other)

    def _by_rank(self, keys):
        """In which order pairs go to the ranks that keep them, and where each rank's begin."""
        rank = keys // self._n // self._range
        order = np.argsort(rank, kind="stable")
        return order, np.searchsorted(rank[order], np.arange(self._comm.size + 1))

    def _error(self, at):
        ends, splits = divmod(int(self._known[at]), self._n), sorted(self._split[at : at + 2].tolist())
        return DataError(f"links: the pair {ends[0]}, {ends[1]} is in the splits {NAMES[splits[0]]} and {NAMES[splits[1]]}, in one "
                         "direction or the other, but all edges between two nodes must be of one split")


def digest(comm: Communicator, val: Any, test: Any) -> str | None:
    """Return what tells rank 0's pairs of both splits from others; None of shares, which the options tell. Collective."""
    if not isinstance(val, np.ndarray):
        return None
    rows = [np.column_stack([np.sort(pairs, 1), np.full(len(pairs), split)]) for pairs, split in ((val, VAL), (test, TEST))]
    return str(comm.bcast(sha256(np.unique(np.concatenate(rows), axis=0).tobytes()).hexdigest()[:32]))


def read(val: Any, test: Any, table: str | None, n_nodes: int, names: Any = None) -> tuple[Array, Array]:
    """Return the pairs that files tell the splits of, (k, 2) int64 ids, and their splits, (k,) int64.

    Parameters
    ----------
    val, test : path or float
        Files of pairs, as `read_pairs` takes; with `table` shares.
    table : str, optional
        FILE,split=COLUMN: a table with a row an edge, whose column has train, val or test; or FILE,time=COLUMN: the
        latest links are to test on, a share `test` of all, and those before to validate on. src=COLUMN and dst=COLUMN
        name the ends; by default the first two columns.
    n_nodes : int
    names : Names, optional
        Of the nodes.

    Raises
    ------
    ConfigError, DataError
        Naming the file and the value.
    """
    if table is not None:
        return _of_table(val, test, table, n_nodes, names)
    found = [np.empty((0, 2), np.int64) if not isinstance(file, str) else read_pairs(file, n_nodes, names) for file in (val, test)]
    return np.concatenate(found), np.repeat([VAL, TEST], [len(pairs) for pairs in found])


def _of_table(val, test, spec, n_nodes, names):
    file, *words = spec.split(",")
    told = dict(word.partition("=")[::2] for word in words)
    wrong = sorted(told.keys() - {"split", "time", "src", "dst"})
    if wrong or ("split" in told) == ("time" in told):
        raise ConfigError(f"split {spec}: expected FILE,split=COLUMN or FILE,time=COLUMN, and src= and dst= where they are not the "
                          f"first two columns{f'; {wrong[0]!r} is none of these' if wrong else ''}", "split")
    by_time = "time" in told
    column = told["time" if by_time else "split"]
    source = columns.table(file, asked=[column])
    if len(source.names) < 3:
        raise DataError(f"{source.where}: {len(source.names)} columns, expected a source, a destination and {column}")
    used = [told.get("src", source.names[0]), told.get("dst", source.names[1]), column]
    pairs, values, row = [], [], 0
    for *ends, cells in source.pieces(used):
        pairs.append(np.stack([_nodes(source, name, own, row, n_nodes, names) for name, own in zip(used, ends)], 1))
        values.append((_times if by_time else _words)(source, column, cells, row))
        row += len(cells)
    pairs, values = np.concatenate(pairs), np.concatenate(values)
    if by_time:
        return _by_time(source, pairs, values, val, test)
    ToldSplits(Solo(), n_nodes, pairs, values)  # refuses a pair of two splits, one of which may be train
    return pairs, values


def _nodes(source, column, cells, row, n_nodes, names):
    if names is not None:
        return names.ids(ids(source.where, column, cells, row))
    found = whole_ids(source.where, column, cells, row)
    bad = np.flatnonzero(found >= n_nodes)
    if len(bad):
        raise DataError(f"{source.where}: row {row + bad[0]}, column {column!r}: {found[bad[0]]} is outside 0 <= node < {n_nodes}")
    return found


def _words(source, column, cells, row):
    bad = next((at for at, word in enumerate(cells) if word not in NAMES), None)
    if bad is not None:
        raise DataError(f"{source.where}: row {row + bad}, column {column!r}: {cells[bad]!r} is none of {', '.join(NAMES)}")
    return np.array([NAMES.index(word) for word in cells], np.int64)


def _times(source, column, cells, row):
    found = numbers(source.where, column, cells, row).astype(np.float64)
    bad = np.flatnonzero(~np.isfinite(found))
    if len(bad):
        raise DataError(f"{source.where}: row {row + bad[0]}, column {column!r}: {cells[bad[0]]!r} is no time, which is a finite number")
    return found


def _by_time(source, pairs, times, val, test):
    """The splits of pairs, each of which is as old as its first edge in either direction; links of one time are of one split."""
    proper = pairs[:, 0] != pairs[:, 1]
    pairs, times = np.sort(pairs[proper], 1), times[proper]
    order = np.lexsort((times, pairs[:, 1], pairs[:, 0]))
    pairs, times = pairs[order], times[order]
    first = np.concatenate([[True], (pairs[1:] != pairs[:-1]).any(1)]) if len(pairs) else np.empty(0, bool)
    pairs, times, split = pairs[first], times[first], np.full(int(first.sum()), TRAIN)
    ascending = np.sort(times)
    for of, after in ((VAL, val + test), (TEST, test)):
        n_before = len(times) - round(after * len(times))
        if 0 < n_before < len(times):
            split[times > ascending[n_before - 1]] = of
    for of, asked in ((VAL, val), (TEST, test), (TRAIN, 1)):
        if asked and not (split == of).any():
            raise DataError(f"{Path(source.where).name}: times: no link is left to {NAMES[of]} on, as links of one time are of one split")
    return pairs, split
