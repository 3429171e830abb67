"""Splits by time: rows before a time train, later rows validate, and rows from a second time on test."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from sarlite.comm import Communicator
from sarlite.data.times import read_time, show_time
from sarlite.errors import ConfigError, DataError, raise_together
from sarlite.types import Array

TRAIN, VAL, TEST = range(3)
NAMES = ("train", "val", "test")


@dataclass(frozen=True)
class TimeSplit:
    """Two times between which splits lie.

    Attributes
    ----------
    val_from, test_from : int
        The first time that is validated on, and the first time that is tested on. Earlier times are trained on.
    kind : {"dates", "integers"}

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
        """Return the split that A,B means for data whose times are of a kind; None if the data have no times.

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

    def __call__(self, times: Any) -> Array:
        """Return the split of each time, (n,) int64: 0 train, 1 val, 2 test."""
        return np.searchsorted([self.val_from, self.test_from], np.asarray(times, np.int64), side="right")

    def check_counts(self, comm: Communicator, split: Array, what: str) -> None:
        """Raise a DataError on every rank if a split has no row on any rank; `what` names the rows. Collective."""
        counts = comm.allreduce(np.bincount(split, minlength=3)[:3].astype(np.int64))
        lacking = next((name for name, count in zip(NAMES, counts.tolist()) if not count), None)
        verb = {"val": "validate"}.get(lacking or "", lacking)
        told = ", ".join(f"{count:,} {name}" for name, count in zip(NAMES, counts.tolist()))
        raise_together(comm, DataError(f"time_split {self}: no {what} is left to {verb} on ({told})", "time_split")
                       if lacking else None)
