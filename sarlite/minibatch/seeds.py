"""Which seeds each step of an epoch has, of all ranks' training rows."""

from collections.abc import Callable
from typing import Any

import numpy as np

from sarlite.comm import Communicator
from sarlite.errors import ConfigError, DataError, raise_together
from sarlite.keys import key, splitmix64
from sarlite.minibatch.part_edges import share
from sarlite.types import Array


class Seeds:
    """Cuts an epoch's seeds into steps. Construction is collective.

    Parameters
    ----------
    comm : Communicator
    ids : (n,) int64
        Global ids of this rank's training rows; what is there twice counts twice.
    batch_size : int
        Seeds a step, of all ranks.
    seed : int

    Attributes
    ----------
    n_steps : int
        Steps an epoch, the same on every rank.
    count : callable
        Step -> number of its seeds of all ranks.

    Raises
    ------
    DataError
        On every rank: none has a training row.
    """

    count: Callable[[int], int]
    _cut: Callable[[Array], list[Array]]

    def __init__(self, comm: Communicator, ids: Array, batch_size: int, seed: int) -> None:
        self._comm, self._ids, self._batch_size, self._seed = comm, ids.astype(np.uint64), batch_size, seed
        self._counts = comm.allgather(len(ids))
        if not sum(self._counts):
            raise_together(comm, DataError("train: the training split is empty"))
        self.n_steps = -(-sum(self._counts) // batch_size)
        self._epoch: tuple[int, list[Array]] = -1, []

    def __call__(self, step: int) -> Array:
        """Return the places among this rank's training rows of a global step's seeds, (k,) int64.

        Collective once an epoch.
        """
        epoch, place = divmod(step, self.n_steps)
        if self._epoch[0] != epoch:
            self._epoch = epoch, self._cut(splitmix64(self._ids ^ np.uint64(key(self._seed, "batches", "", epoch, 0))))
        return self._epoch[1][place]


class Global(Seeds):
    """All ranks' seeds in the order of a variate of (seed, epoch, global id), cut every `batch_size`: a step has the
    same seeds whatever N.

    Notes
    -----
    A rank receives the variates of a range, which it orders: 16 bytes a training row travel once an epoch, and nothing
    is O(all rows).
    """

    def count(self, step: int) -> int:
        return min(self._batch_size, sum(self._counts) - step % self.n_steps * self._batch_size)

    def _cut(self, variates):
        order = np.argsort(variates, kind="stable")
        step = self._positions(variates[order]) // self._batch_size
        return np.split(order, np.searchsorted(step, np.arange(1, self.n_steps)))

    def _positions(self, variates):
        """The place of each of these variates, which ascend, among those of all ranks."""
        comm = self._comm
        if comm.size == 1:
            return np.arange(len(variates))
        bounds = (np.arange(1, comm.size, dtype=np.uint64) * np.uint64(2**64 // comm.size)).astype(np.uint64)
        starts = np.concatenate([[0], np.searchsorted(variates, bounds), [len(variates)]])
        found = comm.alltoall(share(variates, starts))
        places = np.empty(sum(map(len, found)), np.int64)
        places[np.argsort(np.concatenate(found), kind="stable")] = np.arange(len(places))
        places += sum(comm.allgather(len(places))[: comm.rank])
        return np.concatenate(comm.alltoall(share(places, np.cumsum([0, *map(len, found)]))))


class Balanced(Seeds):
    """Each rank's seeds in the order of the variate, cut into parts that differ by at most one seed; so do the steps.

    What a rank has beyond an equal number a step stands in steps that follow each other, a seed in each. They follow
    those of the rank before, so that no step has more than one such seed above another.
    """

    def count(self, step: int) -> int:
        each, more = divmod(sum(self._counts), self.n_steps)
        return each + (step % self.n_steps < more)

    def _cut(self, variates):
        return np.split(np.argsort(variates, kind="stable"), np.cumsum(self._sizes())[:-1])

    def _sizes(self):
        """How many of this rank's seeds each step has, (n_steps,) int."""
        rank, steps = self._comm.rank, np.arange(self.n_steps)
        each, more = divmod(self._counts[rank], self.n_steps)
        return each + ((steps - sum(self._counts[:rank])) % self.n_steps < more)


BATCHES = {"global": Global, "balanced": Balanced}


def divide(how: Any, *args: Any) -> Seeds:
    """Return the division of that name."""
    if how not in BATCHES:
        raise ConfigError(f"batches {how!r} is not one of {', '.join(BATCHES)}")
    return BATCHES[how](*args)
