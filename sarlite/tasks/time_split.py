"""Splits by time: rows before a first time are for training, rows from a second time on for testing."""

from dataclasses import dataclass

import numpy as np

from sarlite.comm import Communicator
from sarlite.comm.routing import ask, send
from sarlite.data.times import read_time, show_time
from sarlite.errors import ConfigError, DataError, raise_together
from sarlite.tasks.task import DataPart, RunSettings
from sarlite.types import Array, ArrayLike

TRAIN, VAL, TEST = range(3)
NAMES = ("train", "val", "test")


@dataclass(frozen=True)
class TimeSplit:
    """Two times that separate the training, validation and test rows.

    Attributes
    ----------
    val_from, test_from : int
        First time of the validation rows, and first time of the test rows. Earlier rows are training rows.
    kind : {"dates", "integers"}
        Kind of the times.

    Examples
    --------
    >>> from sarlite.tasks.time_split import TimeSplit
    >>> TimeSplit.of("10,20", "integers")([9, 10, 19, 20]).tolist()
    [0, 1, 1, 2]
    """

    val_from: int
    test_from: int
    kind: str

    @classmethod
    def of(cls, text: str, kind: str | None) -> "TimeSplit":
        """Parse `text`, "A,B": the first time of validation rows and the first time of test rows. `kind` says if the times of the data are
        "dates" or "integers"; None, for data without times, raises a ConfigError.

        Parameters
        ----------
        text : str
            Two times, separated by a comma.
        kind : {"dates", "integers"}, optional
            Kind of the times in the data; None if the data have no times.

        Raises
        ------
        ConfigError
            The data have no times, the text is not two times, or the first time is not before the second.
        """
        if kind is None:
            raise ConfigError(f"time_split {text}: the data have no times: time=COLUMN names them where tables are "
                              "converted", "time_split")
        words = text.split(",")
        if len(words) != 2:
            raise ConfigError(f"time_split {text}: expected two times, A,B: validate from A on, and test from B on",
                              "time_split")
        val_from, test_from = (read_time(word, kind, f"time_split {text}") for word in words)
        if val_from >= test_from:
            raise ConfigError(f"time_split {text}: {words[0]} is not before {words[1]}", "time_split")
        return cls(val_from, test_from, kind)

    def __str__(self) -> str:
        return f"{show_time(self.val_from, self.kind)},{show_time(self.test_from, self.kind)}"

    def __call__(self, times: ArrayLike) -> Array:
        """Return the split code of each of n `times`, (n,) int64: 0 for training, 1 for validation, 2 for test."""
        return np.searchsorted([self.val_from, self.test_from], np.asarray(times, np.int64), side="right")

    def check_counts(self, comm: Communicator, split: Array, what: str) -> None:
        """Raise a DataError on every rank if one of the three splits has no row on any rank. `split` has the split code of each of this
        rank's rows (0 train, 1 val, 2 test), and `what` is the word for a row in the error. Collective.
        """
        counts = comm.allreduce(np.bincount(split, minlength=3)[:3].astype(np.int64))
        lacking = next((name for name, count in zip(NAMES, counts.tolist()) if not count), None)
        verb = {"val": "validate"}.get(lacking or "", lacking)
        counts_text = ", ".join(f"{count:,} {name}" for name, count in zip(NAMES, counts.tolist()))
        raise_together(comm, DataError(f"time_split {self}: no {what} is left to {verb} on ({counts_text})", "time_split")
                       if lacking else None)


def time_split_of(run: RunSettings, part: DataPart) -> TimeSplit | None:
    """Return the `TimeSplit` of the run's option `time_split`, None without the option. The data `part` know whether times are dates or
    integers.
    """
    text = run.training.time_split
    return None if text is None else TimeSplit.of(text, part.time_kind)


class FirstTimes:
    """Function from pairs of nodes to the time of the first edge between them, in either direction. Calls are collective.

    Construction is collective, too.

    Parameters
    ----------
    comm : Communicator
    n : int
        Number of nodes, whose ids are 0 .. n - 1.
    one, other : (k,) int64
        Ids of the ends of this rank's edges.
    times : (k,) int64
        Time of each edge.

    Notes
    -----
    Memory: 32 bytes for each edge, on the rank that stores its range of ids. Bytes sent: 16 for each edge, and 16 for
    each pair of a call.

    Examples
    --------
    >>> from sarlite.comm import Solo
    >>> first = FirstTimes(Solo(), 3, np.array([0, 1, 1]), np.array([1, 0, 2]), np.array([7, 5, 9]))
    >>> first(np.array([0, 2]), np.array([1, 1])).tolist()
    [5, 9]
    """

    def __init__(self, comm: Communicator, n: int, one: Array, other: Array, times: Array) -> None:
        self._comm, self._n, self._range = comm, n, max(-(-n // comm.size), 1)
        keys = self._keys(one, other)
        keys, times = send(comm, self._rank(keys), np.stack([keys, times], 1)).T
        order = np.lexsort((times, keys))
        first = np.diff(keys[order], prepend=-1) > 0
        self._known, self._times = keys[order][first], times[order][first]

    def __call__(self, one: Array, other: Array) -> Array:
        """Return the earliest time of an edge between the nodes with ids one[i] and other[i], in either direction, (n,) int64. Each pair
        must have an edge. Collective.

        Raises
        ------
        DataError
            On every rank: no edge connects a pair.
        """
        keys = self._keys(one, other)
        at = ask(self._comm, self._rank(keys), keys, self._times_of_keys)
        unknown = np.flatnonzero(at[:, 0] == 0)
        raise_together(self._comm, DataError(f"links: the pair {one[unknown[0]]}, {other[unknown[0]]} is not an edge, so it has "
                                             "no time") if len(unknown) else None)
        return at[:, 1]

    def _times_of_keys(self, keys: Array) -> Array:
        """Return (1, time of the first edge) for each pair that another rank asks for, or (0, 0) if no edge joins the pair, (n, 2) int64.
        `keys` are integers that stand for the pairs.
        """
        if not len(self._known):
            return np.zeros((len(keys), 2), np.int64)
        places = np.minimum(np.searchsorted(self._known, keys), len(self._known) - 1)
        is_known = self._known[places] == keys
        return np.stack([is_known, np.where(is_known, self._times[places], 0)], 1).astype(np.int64)

    def _keys(self, one, other):
        return np.minimum(one, other).astype(np.int64) * self._n + np.maximum(one, other)

    def _rank(self, keys):
        return keys // self._n // self._range
