"""Which local rows are halo of which peers, and which of them are pushed where there are more than may travel."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from sarlite.errors import ConfigError, DataError
from sarlite.keys import splitmix64
from sarlite.types import Array

WEIGHTS = ("degree", "cut-degree", "uniform")


class Borders:
    """The local rows that peers have as halo (DistGNN-MB's db_halo, alg. 1): a CSR of local row -> (peer, slot).

    Parameters
    ----------
    asked : list by rank of (m,) int arrays
        The local rows that go there, ascending, as `Needs.asked` has them; none for this rank. A row's *slot* is its place in that list.

    Attributes
    ----------
    lengths : list by rank of int
        How many rows go there.
    rows : (n_border,) int64
        The local rows that some peer has as halo, ascending.

    Raises
    ------
    DataError
        Rows that do not ascend, or are negative.

    Notes
    -----
    Memory: 4 bytes a local row, 20 a row of `rows`, and 9 or 10 an entry, of which there is one a row and peer.
    """

    def __init__(self, asked: Sequence[Array]) -> None:
        for peer, rows in enumerate(asked):
            if len(rows) and (rows[0] < 0 or (np.diff(rows) <= 0).any()):
                raise DataError(f"the rows that rank {peer} asks for are negative or do not ascend")
        self.size, self.lengths = len(asked), [len(rows) for rows in asked]
        lengths = self.lengths
        self.rows, numbers = np.unique(np.concatenate([np.asarray(rows, np.int64) for rows in asked]), return_inverse=True)
        self._numbers = np.split(numbers.astype(np.int32), np.cumsum(lengths)[:-1])
        self._number_of = np.full(int(self.rows[-1]) + 2 if len(self.rows) else 1, -1, np.int32)  # the last one is for all further rows
        self._number_of[self.rows] = np.arange(len(self.rows))
        by_row = np.argsort(numbers, kind="stable")
        self._starts = np.concatenate([[0], np.cumsum(np.bincount(numbers, minlength=len(self.rows)))])
        self._peers = np.repeat(np.arange(self.size, dtype=np.min_scalar_type(self.size)), lengths)[by_row]
        self._slots = np.concatenate([np.arange(n, dtype=np.int32) for n in lengths])[by_row]

    def of(self, rows: Array) -> list[tuple[Array, Array]]:
        """Find what goes where.

        Parameters
        ----------
        rows : (n,) int array
            Distinct local rows, in any order.

        Returns
        -------
        list by rank of (places (m,) int64, slots (m,) int32)
            The entries of `rows` that are halo there, by ascending slot; `places` are into `rows`.

        Notes
        -----
        O(n + entries of the rows) time, but for two sorts, and as much memory.
        """
        number, places = self._border(rows)
        order = np.argsort(number, kind="stable")
        number, places = number[order], places[order]
        counts = self._starts[number + 1] - self._starts[number]
        entries = np.repeat(self._starts[number] - (np.cumsum(counts) - counts), counts) + np.arange(counts.sum())
        peers = self._peers[entries]
        by_peer = np.argsort(peers, kind="stable")
        ends = np.cumsum(np.bincount(peers, minlength=self.size))[:-1]
        found = np.repeat(places, counts)[by_peer], self._slots[entries[by_peer]]
        return list(zip(*(np.split(array, ends) for array in found)))

    def numbers(self, rows: Array) -> Array:
        """Return the place of each local row in `self.rows`, (n,) int32; -1 where no peer has it as halo."""
        return self._number_of.take(rows, mode="clip")

    def asked(self, peer: int, slots: Array) -> Array:
        """Return the places in `self.rows` of a peer's slots, (m,) int32."""
        return self._numbers[peer][slots]

    def cut_degree(self, rows: Array) -> Array:
        """Return how many peers have each local row as halo, (n,) int64."""
        number, places = self._border(rows)
        found = np.zeros(len(rows), np.int64)
        found[places] = self._starts[number + 1] - self._starts[number]
        return found

    def weights(self, by: str, rows: Array, in_degrees: Array) -> Array:
        """Return the weights with which `choose` takes local rows.

        Parameters
        ----------
        by : {"degree", "cut-degree", "uniform"}
            In-degree + 1 (the paper's, and not 0), `cut_degree`, or 1.
        rows : (n,) int array
        in_degrees : (n_local,) int array
            In-degrees of all local rows in the whole graph.

        Returns
        -------
        (n,) float64

        Raises
        ------
        ConfigError
            Another `by`.
        """
        if by not in WEIGHTS:
            raise ConfigError(f"push_by {by!r} is not one of {', '.join(WEIGHTS)}")
        if by == "uniform":
            return np.ones(len(rows))
        return in_degrees[rows] + 1.0 if by == "degree" else self.cut_degree(rows).astype(np.float64)

    def _border(self, rows):
        """The numbers of the rows that are in `self.rows`, and their places."""
        number = self.numbers(rows)
        places = np.flatnonzero(number >= 0)
        return number[places], places


def choose(places: Array, slots: Array, limit: int | None, weights: Array, key: int, ids: Array) -> tuple[Array, Array]:
    """Take at most `limit` entries without replacement, each draw with probability in proportion to the weights of those left.

    Those of the smallest -log(u) / weight, where u in (0, 1) is a hash of (key, id).

    Parameters
    ----------
    places, slots : (m,) int arrays
        As `Borders.of` returns them for one peer.
    limit : int or None
        None: all.
    weights : (m,) array
        Above 0.
    key : int
        64 bits that tell seed, step, layer and peer: `keys.key(seed, "push", str(peer), step, layer)`.
    ids : (m,) int array
        Global ids, all different.

    Returns
    -------
    places, slots : (k,) arrays, k = min(m, limit)
        By ascending slot.

    Notes
    -----
    What is taken depends on the key and on (id, weight) of the entries alone: not on their order, nor on rank or threads. O(m) time, and a
    sort of k. Source: DistGNN-MB alg. 2, line 20; Efraimidis and Spirakis 2006, "Weighted random sampling with a reservoir".
    """
    if limit is None or len(slots) <= limit:
        taken = np.arange(len(slots))
    else:
        taken = _smallest(_scores(weights, key, ids), limit, ids)
    taken = taken[np.argsort(slots[taken], kind="stable")]
    return places[taken], slots[taken]


def _scores(weights: Any, key: int, ids: Array) -> Array:
    """Exponential variates of rate `weights`."""
    u = ((splitmix64(ids.astype(np.uint64) ^ np.uint64(key)) >> np.uint64(12)) + 0.5) * 2.0**-52  # 53 bits: neither 0 nor 1
    return -np.log(u) / weights


def _smallest(scores, n, ids):
    """The places of the n smallest scores; of like ones that of the lowest id."""
    if n == 0:
        return np.arange(0)
    last = np.partition(scores, n - 1)[n - 1]
    below, like = np.flatnonzero(scores < last), np.flatnonzero(scores == last)
    return np.concatenate([below, like[np.argsort(ids[like])][: n - len(below)]])
