"""Splits of links into training, validation and test: random by the ids of the ends, listed in files, or by times of edges."""

import contextlib
import sys
from collections.abc import Collection, Iterator, Sequence
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

import numpy as np

from sarlite.comm import Communicator, Solo
from sarlite.comm.routing import ask, send
from sarlite.command import show, suggestion
from sarlite.data.tables.checks import CellCheck, check_cells, split_code
from sarlite.data.tables.description import reading_of
from sarlite.data.tables.sources import Table, connect, unnamed
from sarlite.data.tables.sources import read as read_table
from sarlite.data.tables.time_columns import times
from sarlite.errors import ConfigError, DataError, raise_together
from sarlite.keys import key, splitmix64
from sarlite.tasks.link_edges import Ends
from sarlite.tasks.link_files import column_ids, read_pairs
from sarlite.types import Array

NAMES = ("train", "val", "test")
TRAIN, VAL, TEST = range(3)
"""Numbers of the splits, the positions in `NAMES`."""
_READING = ("null", "decimal", "comment")


def variates(one: Array, other: Array, seed: int) -> Array:
    """Return 64 random bits for each pair of ids (one[i], other[i]), (n,) uint64, the same in either order.

    Examples
    --------
    >>> one, other = np.array([3, 5]), np.array([5, 3])
    >>> bits = variates(one, other, seed=0)
    >>> bits.dtype, bool(bits[0] == bits[1])
    (dtype('uint64'), True)
    """
    low, high = np.minimum(one, other).astype(np.uint64), np.maximum(one, other).astype(np.uint64)
    return splitmix64(splitmix64(low ^ np.uint64(key(seed, "links", "", 0, 0))) ^ high)


def uniform(bits: Array) -> Array:
    """Convert 64 random bits for each element, uint64, into uniform numbers in [0, 1), float64."""
    return (bits >> np.uint64(11)) * 2.0**-53


class DrawnSplits(NamedTuple):
    """Random splits of links: a function that draws the split of a link from a seed and the ids of its ends.

    Attributes
    ----------
    val, test : float
        Shares of the validation links and test links. Other links are training links.
    seed : int

    Examples
    --------
    >>> splits = DrawnSplits(0.1, 0.2, seed=0)
    >>> np.bincount(splits(np.arange(10000), np.arange(10000) + 1)).tolist()
    [7043, 1020, 1937]
    """

    val: float
    test: float
    seed: int

    def __call__(self, one: Array, other: Array) -> Array:
        """Return the split code, 0 train, 1 val or 2 test, of each pair of ids (one[i], other[i]), in either order, (n,) int64."""
        at = uniform(variates(one, other, self.seed))
        return np.where(at < self.test, TEST, np.where(at < self.test + self.val, VAL, TRAIN))

    def listed(self) -> tuple[Array, Array]:
        """Return two empty arrays, pairs (0, 2) and split codes (0,), because random splits list no pairs. Splits of other classes return
        the pairs that a user listed, which need not be edges, and the split codes.
        """
        return np.empty((0, 2), np.int64), np.empty(0, np.int64)


class ListedSplits:
    """Splits of links that are listed by node pair. An instance is a function from pairs to split codes; pairs that no rank listed are for
    training. Calls are collective.

    Construction is collective, too.

    Parameters
    ----------
    comm : Communicator
    n : int
        Number of nodes, whose ids are 0 .. n - 1.
    pairs : (k, 2) int64
        Ids of both ends, in either order. Each rank passes some of the pairs. Self loops are ignored.
    split : (k,) int64
        `TRAIN`, `VAL` or `TEST` for each pair.

    Raises
    ------
    DataError
        On every rank: a pair, in either direction, is in two splits.

    Notes
    -----
    Each rank stores the pairs of a range of ids. Memory: 24 bytes for each listed pair. Bytes sent by a call: 16 for each
    pair.

    Examples
    --------
    >>> from sarlite.comm import Solo
    >>> splits = ListedSplits(Solo(), 4, np.array([[0, 1], [2, 3]]), np.array([VAL, TEST]))
    >>> splits(np.array([1, 2, 0]), np.array([0, 3, 3])).tolist()
    [1, 2, 0]
    """

    def __init__(self, comm: Communicator, n: int, pairs: Array, split: Array) -> None:
        proper = pairs[:, 0] != pairs[:, 1]
        self._comm, self._n, self._range = comm, n, max(-(-n // comm.size), 1)
        self._pairs, self._of_pairs = pairs[proper], split[proper]
        keys = self._keys(*self._pairs.T)
        received = send(comm, self._storing_rank(keys), np.stack([keys, self._of_pairs], 1))
        self._keys_stored, self._split = received[np.lexsort(received.T[::-1])].T
        same = self._keys_stored[1:] == self._keys_stored[:-1]
        twice = np.flatnonzero(same & (self._split[1:] != self._split[:-1]))
        raise_together(comm, self._error(twice[0]) if len(twice) else None)

    def __call__(self, one: Array, other: Array) -> Array:
        """Return the split code, 0 train, 1 val or 2 test, of pairs of ids (one[i], other[i]), in either order, (n,) int64. Collective."""
        keys = self._keys(one, other)
        return ask(self._comm, self._storing_rank(keys), keys, self._splits_of)

    def listed(self) -> tuple[Array, Array]:
        """Return (pairs of ids, split code of each: 1 val, 2 test) of the validation and test pairs that this rank gave to the constructor.
        A pair need not be an edge.
        """
        chosen = self._of_pairs != TRAIN
        return self._pairs[chosen], self._of_pairs[chosen]

    def _splits_of(self, keys: Array) -> Array:
        """Return the split code of each pair that this rank stores: 0 train, 1 val or 2 test, and train for a pair that no rank listed.
        `keys` are the pairs as integers.
        """
        places = np.minimum(np.searchsorted(self._keys_stored, keys), max(len(self._keys_stored) - 1, 0))
        return np.where(self._keys_stored[places] == keys, self._split[places], TRAIN) if len(self._keys_stored) else \
            np.full(len(keys), TRAIN)

    def _keys(self, one: Array, other: Array) -> Array:
        """Return an integer for each pair of ids (one[i], other[i]), the same in either order, (n,)."""
        return np.minimum(one, other).astype(np.int64) * self._n + np.maximum(one, other)

    def _storing_rank(self, keys: Array) -> Array:
        """Return the MPI rank that stores the pair with each integer key, (n,)."""
        return keys // self._n // self._range

    def _error(self, at):
        ends, splits = divmod(int(self._keys_stored[at]), self._n), sorted(self._split[at : at + 2].tolist())
        return DataError(f"links: the pair {ends[0]}, {ends[1]} is in the splits {NAMES[splits[0]]} and "
                         f"{NAMES[splits[1]]}, in one direction or the other, but all edges between two nodes must be "
                         "in one split")


def digest(comm: Communicator, *arguments: object) -> str | None:
    """Return a hash, 32 hexadecimal digits, of the node pairs among rank 0's `arguments`, the same on every rank; None if no argument has
    pairs. Values without pairs, such as a share, are ignored. Collective.

    Parameters
    ----------
    comm : Communicator
    *arguments : (n, 2) array, dict of arrays by relation, or other values
        Pairs of one purpose, such as a split, in any order and direction. Values that are not pairs, such as a share, are
        ignored.
    """
    rows = [np.column_stack([np.sort(pairs, 1), np.full(len(pairs), use + 10 * at)])
            for use, argument in enumerate(arguments, VAL) if isinstance(argument, (dict, np.ndarray))
            for at, pairs in enumerate(argument.values() if isinstance(argument, dict) else [argument])]
    if not rows:
        return None
    return str(comm.bcast(sha256(np.unique(np.concatenate(rows), axis=0).tobytes()).hexdigest()[:32]))


def read(val: str | float, test: str | float, table: str | None, ends: Sequence[Ends]) -> tuple[Array, Array]:
    """Read links of the validation and test splits from files; return (pairs of ids within the node types `ends`, split code of each: 0
    train, 1 val, 2 test). Without a `table`, `val` and `test` are file names. A `table` is "FILE,split=COLUMN", or "FILE,time=COLUMN" with
    the shares `val` and `test` of the latest links.

    Parameters
    ----------
    val, test : path or float
        Files of pairs for `read_pairs`; shares if `table` has times. A pair in both files is a test link, and a warning
        reports the number of these pairs.
    table : str, optional
        FILE,split=COLUMN: a table with one row for each edge, whose column contains train, val or test. Or
        FILE,time=COLUMN: the latest share `test` of the links are test links, and the share `val` before are validation
        links. src=COLUMN and dst=COLUMN name the columns of the ends, by default the first two columns.
    ends : (Ends, Ends)
        Nodes that sources and destinations can be.

    Returns
    -------
    pairs : (k, 2) int64
        Ids within the node types.
    split : (k,) int64
        `TRAIN`, `VAL` or `TEST` for each pair.

    Raises
    ------
    ConfigError, DataError
        A file cannot be read, or a value is wrong. The error names the file and the value.
    """
    if table is not None:
        return _of_table(val, test, table, ends)
    pairs_of = [np.empty((0, 2), np.int64) if not isinstance(file, str) else read_pairs(file, ends)
             for file in (val, test)]
    keys = [np.sort(pairs + [end.first for end in ends], 1) @ [max(end.first + end.n for end in ends), 1]
            for pairs in pairs_of]
    twice = np.isin(keys[0], keys[1])
    if twice.any():
        show(f"warning: {np.count_nonzero(twice):,} of {len(twice):,} links of {val} are also links of {test}, in "
             "one direction or the other: they are only test links", sys.stderr)
    pairs_of[0] = pairs_of[0][~twice]
    return np.concatenate(pairs_of), np.repeat([VAL, TEST], [len(pairs) for pairs in pairs_of])


def _of_table(val, test, spec, ends):
    """Return (pairs of ids within the node types `ends`, split code of each: 0 train, 1 val, 2 test) of the table `spec`,
    "FILE,split=COLUMN" or "FILE,time=COLUMN". By time, the latest share `test` of the pairs is test, and the share `val` before them is
    val.
    """
    form = "split=COLUMN or FILE,time=COLUMN"
    with pairs_table("split", spec, form, READERS) as opened:
        if len(opened.columns) != 1:
            raise ConfigError(f"split {spec}: expected FILE,{form}", "split")
        ((by, column),) = opened.columns.items()
        first = np.array([end.first for end in ends])
        pairs, values = opened.pairs(ends) + first, READERS[by](opened.table, column)
        where = opened.table.where
    if by == "time":
        pairs, values = _split_by_time(where, pairs, values, val, test)
    else:
        # raises an error if a pair is in two splits, train included
        ListedSplits(Solo(), max(end.first + end.n for end in ends), pairs, values)
    return pairs - first, values


class PairsTable(NamedTuple):
    """Open table with a pair of nodes in each row, and the names of its columns.

    Attributes
    ----------
    table : Table
    ends : list of str
        Names of the columns of the source and of the destination.
    columns : dict of str to str
        Names of the other columns, by their word in the option, such as "split".
    """

    table: Table
    ends: list[str]
    columns: dict[str, str]

    def pairs(self, ends: Sequence[Ends]) -> Array:
        """Return (source, destination) of each link of the table, (n, 2) int64, as ids within the two node types that `ends` describes."""
        return np.stack([column_ids(self.table, column, end) for column, end in zip(self.ends, ends)], 1)


@contextlib.contextmanager
def pairs_table(argument: str, spec: str, form: str, words_known: Collection[str]) -> Iterator[PairsTable]:
    """Return a context that opens the table named in `spec`, "FILE,WORD=COLUMN,...", as a `PairsTable`; each WORD must be in `words_known`.
    For error messages, `argument` is the name of the option and `form` the text expected after "FILE,".

    Parameters
    ----------
    argument, spec : str
        Name and value of the option. The words src= and dst= name the columns of the ends, by default the first two.
    form : str
        Description of the value after FILE, for error messages.
    words_known : collection of str
        Further words that the value may have.

    Yields
    ------
    PairsTable

    Raises
    ------
    ConfigError, DataError
        A word is unknown, or the table has too few columns. The error names the argument and the word, or the file.
    """
    file, *words = spec.split(",")
    columns = dict(word.partition("=")[::2] for word in words)
    reading = reading_of({name: columns.pop(name) for name in _READING if name in columns})
    wrong = sorted(columns.keys() - {*words_known, "src", "dst"}) or sorted(name for name, column in columns.items() if not column)
    if wrong:
        raise ConfigError(f"{argument} {spec}: expected FILE,{form}, and src= and dst= if the ends are not the first "
                          f"two columns; {wrong[0]!r} is not expected"
                          f"{suggestion(wrong[0], {*words_known, 'src', 'dst'})}", argument)
    ends = [columns.pop(end, None) for end in ("src", "dst")]
    others = [name for column in columns.values() for name in column.split("+")]
    with connect() as connection:

        def hold(names: list[str]) -> list[str]:
            shown = [name for name in names if not unnamed(name)]
            if len(shown) < 3:
                raise DataError(f"{file}: {len(shown)} columns, expected a source, a destination and "
                                f"{' and '.join(columns.values())}")
            ends[:] = [end or shown[at] for at, end in enumerate(ends)]
            return list(dict.fromkeys([*map(str, ends), *others]))

        table = read_table(connection, file, reading, [*ends, *others], file, hold)
        yield PairsTable(table, [str(end) for end in ends], columns)


def _split_codes(table: Table, column: str) -> Array:
    """Return the split codes 0, 1 and 2 of the rows, (n,) int64, from a column of the words train, val and test."""
    code, check = split_code(table, column)
    check_cells(table, [check, CellCheck(column, f"{code} = 0", f"VALUE is not one of {', '.join(NAMES)}")])
    pieces = [np.asarray(cells) for (cells,) in table.batches(code)]
    return np.concatenate([np.empty(0, np.int64), *pieces]).astype(np.int64) - 1


READERS = {"split": _split_codes, "time": times}
"""Functions (table, column) -> array, which read a column of splits or a column of times."""


def _split_by_time(where: str, pairs: Array, times: Array, val: float, test: float) -> tuple[Array, Array]:
    """Split node `pairs` by their `times`: the latest share `test` of the pairs is test, the share `val` just before them is val, and the
    rest is train. Return (distinct pairs, split code of each: 0 train, 1 val, 2 test). For rows with the same two nodes, in either
    direction, the earliest time counts. Errors name the table `where`.
    """
    proper = pairs[:, 0] != pairs[:, 1]
    pairs, times = np.sort(pairs[proper], 1), times[proper]
    order = np.lexsort((times, pairs[:, 1], pairs[:, 0]))
    pairs, times = pairs[order], times[order]
    first = np.concatenate([[True], (pairs[1:] != pairs[:-1]).any(1)]) if len(pairs) else np.empty(0, bool)
    return pairs[first], of_times(where, times[first], val, test)


def of_times(where: str, times: Array, val: float, test: float) -> Array:
    """Return the split code of each link, 0 train, 1 val or 2 test, by its time in `times`. The latest share `test` of all links is test,
    the share `val` just before them is val, and all earlier links are train. Errors name the table `where`.

    Links with the same time are in the same split.

    Parameters
    ----------
    where : str
        Name of the table in error messages.
    times : (n,) array
    val, test : float

    Raises
    ------
    DataError
        A split with a share above 0 has no link.

    Examples
    --------
    >>> of_times("pairs.csv", np.array([1, 5, 2, 4, 3]), 0.2, 0.2).tolist()
    [0, 2, 0, 1, 0]
    """
    ascending, split = np.sort(times), np.full(len(times), TRAIN)
    for of, after in ((VAL, val + test), (TEST, test)):
        n_before = len(times) - round(after * len(times))
        if 0 < n_before < len(times):
            split[times > ascending[n_before - 1]] = of
    for of, asked in ((VAL, val), (TEST, test), (TRAIN, 1)):
        if asked and not (split == of).any():
            raise DataError(f"{Path(where).name}: times: no link is left for the split {NAMES[of]}, as links with the "
                            "same time are in the same split")
    return split
