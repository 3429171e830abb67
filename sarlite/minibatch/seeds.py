"""Division of an epoch's seeds, the training rows of all ranks, into steps."""

from collections.abc import Callable

import numpy as np

from sarlite.comm import Communicator
from sarlite.errors import ConfigError, DataError, raise_together
from sarlite.keys import key, splitmix64
from sarlite.minibatch.part_edges import split_by_rank
from sarlite.types import Array


class Seeds:
    """Base class that divides an epoch's seeds, the training rows of all ranks, into steps. Construction is collective.

    Parameters
    ----------
    comm : Communicator
    ids : (n,) int64
        Global ids of this rank's training rows; a repeated id counts as often as it occurs.
    batch_size : int
        Number of seeds per step, over all ranks.
    seed : int

    Attributes
    ----------
    n_steps : int
        Number of steps per epoch, the same on every rank.
    count : callable
        Maps a step to the number of its seeds over all ranks.

    Raises
    ------
    DataError
        On every rank: no rank has a training row.
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
        """Return this rank's seeds of the training step `step`, counted over all epochs, as positions among the rank's training
        rows, (k,) int64.

        The first call of each epoch is collective.
        """
        epoch, place = divmod(step, self.n_steps)
        if self._epoch[0] != epoch:
            self._epoch = epoch, self._cut(splitmix64(self._ids ^ np.uint64(key(self._seed, "batches", "", epoch, 0))))
        return self._epoch[1][place]


class Global(Seeds):
    """Division that shuffles the seeds of all ranks together, and cuts this order into steps of `batch_size` seeds.

    The order is by a hash of (seed, epoch, global id), so a step has the same seeds for any number of ranks.

    Notes
    -----
    Each rank sorts one range of the hashes. 16 bytes per training row travel once per epoch, and nothing is O(all
    rows).
    """

    def count(self, step: int) -> int:
        return min(self._batch_size, sum(self._counts) - step % self.n_steps * self._batch_size)

    def _cut(self, variates):
        order = np.argsort(variates, kind="stable")
        step = self._positions(variates[order]) // self._batch_size
        return np.split(order, np.searchsorted(step, np.arange(1, self.n_steps)))

    def _positions(self, variates: Array) -> Array:
        """Return the position of each of this rank's hashes, the ascending array `variates`, in the sorted list of the hashes of all
        ranks. Collective.
        """
        comm = self._comm
        if comm.size == 1:
            return np.arange(len(variates))
        bounds = (np.arange(1, comm.size, dtype=np.uint64) * np.uint64(2**64 // comm.size)).astype(np.uint64)
        starts = np.concatenate([[0], np.searchsorted(variates, bounds), [len(variates)]])
        received = comm.alltoall(split_by_rank(variates, starts))
        places = np.empty(sum(map(len, received)), np.int64)
        places[np.argsort(np.concatenate(received), kind="stable")] = np.arange(len(places))
        places += sum(comm.allgather(len(places))[: comm.rank])
        return np.concatenate(comm.alltoall(split_by_rank(places, np.cumsum([0, *map(len, received)]))))


class Balanced(Seeds):
    """Division that shuffles each rank's seeds separately, and cuts them into steps whose sizes differ by at most one.

    The same holds for the total over ranks. If a rank's seeds do not divide evenly, consecutive steps get one extra
    seed each. They continue after the extra seeds of the previous rank, so the extra seeds of all ranks are spread
    evenly.
    """

    def count(self, step: int) -> int:
        each, more = divmod(sum(self._counts), self.n_steps)
        return each + (step % self.n_steps < more)

    def _cut(self, variates):
        return np.split(np.argsort(variates, kind="stable"), np.cumsum(self._sizes())[:-1])

    def _sizes(self) -> Array:
        """Return the number of this rank's seeds in each step, (n_steps,) int."""
        rank, steps = self._comm.rank, np.arange(self.n_steps)
        each, more = divmod(self._counts[rank], self.n_steps)
        return each + ((steps - sum(self._counts[:rank])) % self.n_steps < more)


BATCHES = {"global": Global, "balanced": Balanced}


def divide(how: str, comm: Communicator, ids: Array, batch_size: int, seed: int) -> Seeds:
    """Return the division of this rank's training rows, with the global ids `ids`, into steps of `batch_size` rows over all ranks.
    `how` is "global" (shuffled over all ranks) or "balanced" (over each rank). Collective.
    """
    if how not in BATCHES:
        raise ConfigError(f"batches {how!r} is not one of {', '.join(BATCHES)}")
    return BATCHES[how](comm, ids, batch_size, seed)
