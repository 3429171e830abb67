"""Choice of the rows that are pushed: lists of the rows that each peer has as halo, and two rules for sending them."""

from collections.abc import Mapping, Sequence

import numpy as np

from sarlite.errors import ConfigError, DataError, ShapeError
from sarlite.keys import key, splitmix64
from sarlite.minibatch.hec.row_table import Ordered, RowTable
from sarlite.minibatch.part_edges import PartEdges
from sarlite.types import Array

WEIGHTS = ("degree", "cut-degree", "uniform")
Message = tuple[Array, Array | None, Array]
"""Rows for one peer: (slots (m,) int32, steps that computed the rows (m,) int64 or None for the current step, rows (m, ...))."""


class SendLists:
    """Lists of the local rows that each peer has as halo (db_halo in algorithm 1 of the DistGNN-MB paper).

    The lists are stored as a CSR with an entry (peer, slot) for each listed row and peer. A *slot* is the position of a
    row in a peer's list.

    Parameters
    ----------
    asked : list by rank of (m,) int arrays
        Local rows that each rank has as halo, ascending, as in `Needs.asked`; empty for this rank.

    Attributes
    ----------
    lengths : list by rank of int
        Number of rows in each rank's list.
    rows : (n_listed,) int64
        Local rows that at least one peer has as halo, ascending.

    Raises
    ------
    DataError
        A list does not ascend, or has a negative row.

    Notes
    -----
    Memory: 4 bytes per local row, 20 per row of `rows`, and 9 or 10 per entry; there is one entry per row and peer.
    """

    def __init__(self, asked: Sequence[Array]) -> None:
        for peer, rows in enumerate(asked):
            if len(rows) and (rows[0] < 0 or (np.diff(rows) <= 0).any()):
                raise DataError(f"the rows that rank {peer} asks for are negative or do not ascend")
        self.size, self.lengths = len(asked), [len(rows) for rows in asked]
        lengths = self.lengths
        entries = np.concatenate([np.asarray(rows, np.int64) for rows in asked])
        self.rows, numbers = np.unique(entries, return_inverse=True)
        self._numbers = np.split(numbers.astype(np.int32), np.cumsum(lengths)[:-1])
        n_numbered = int(self.rows[-1]) + 2 if len(self.rows) else 1  # the last one is for all further rows
        self._number_of = np.full(n_numbered, -1, np.int32)
        self._number_of[self.rows] = np.arange(len(self.rows))
        by_row = np.argsort(numbers, kind="stable")
        self._starts = np.concatenate([[0], np.cumsum(np.bincount(numbers, minlength=len(self.rows)))])
        self._peers = np.repeat(np.arange(self.size, dtype=np.min_scalar_type(self.size)), lengths)[by_row]
        self._slots = np.concatenate([np.arange(n, dtype=np.int32) for n in lengths])[by_row]

    def of(self, rows: Array) -> list[tuple[Array, Array]]:
        """Return for each rank a pair about those local `rows` that are halo rows there: first their positions in `rows`; then
        their positions in the rank's list, which has all of this rank's rows that are halo rows there.

        Parameters
        ----------
        rows : (n,) int array
            Distinct local rows, in any order.

        Returns
        -------
        list by rank of (places (m,) int64, slots (m,) int32)
            Positions in `rows` of the rows that the rank has as halo, and their slots, ascending.

        Notes
        -----
        O(n + entries of the rows) memory, and as much time beside two sorts.
        """
        number, places = self._listed(rows)
        order = np.argsort(number, kind="stable")
        number, places = number[order], places[order]
        counts = self._starts[number + 1] - self._starts[number]
        entries = np.repeat(self._starts[number] - (np.cumsum(counts) - counts), counts) + np.arange(counts.sum())
        peers = self._peers[entries]
        by_peer = np.argsort(peers, kind="stable")
        ends = np.cumsum(np.bincount(peers, minlength=self.size))[:-1]
        sorted_entries = np.repeat(places, counts)[by_peer], self._slots[entries[by_peer]]
        return list(zip(*(np.split(array, ends) for array in sorted_entries)))

    def numbers(self, rows: Array) -> Array:
        """Return the position of each of the local rows in the array `self.rows`, (n,) int32; -1 if no peer has the row as halo."""
        return self._number_of.take(rows, mode="clip")

    def numbers_at(self, peer: int, slots: Array) -> Array:
        """Return the positions in `self.rows`, (m,) int32, of the rows at the positions `slots` of the list of rows that `peer` has
        as halo.
        """
        return self._numbers[peer][slots]

    def cut_degree(self, rows: Array) -> Array:
        """Return the number of peers that have each of the local `rows` as halo, (n,) int64."""
        number, places = self._listed(rows)
        degrees = np.zeros(len(rows), np.int64)
        degrees[places] = self._starts[number + 1] - self._starts[number]
        return degrees

    def weights(self, by: str, rows: Array, in_degrees: Array) -> Array:
        """Return weights of `rows` for a random choice, (n,) float64, by "degree" (in-degree + 1), "cut-degree" or "uniform" (1).

        Parameters
        ----------
        by : {"degree", "cut-degree", "uniform"}
            Weight of a row: in-degree + 1, `cut_degree`, or 1. The paper draws by degree; 1 is added because a weight
            must not be 0.
        rows : (n,) int array
        in_degrees : (n_local,) int array
            In-degrees of all local rows in the whole graph.

        Returns
        -------
        (n,) float64

        Raises
        ------
        ConfigError
            `by` is none of these.
        """
        if by not in WEIGHTS:
            raise ConfigError(f"push_by {by!r} is not one of {', '.join(WEIGHTS)}")
        if by == "uniform":
            return np.ones(len(rows))
        return in_degrees[rows] + 1.0 if by == "degree" else self.cut_degree(rows).astype(np.float64)

    def _listed(self, rows: Array) -> tuple[Array, Array]:
        """Return two arrays about the rows that are halo rows of some peer: their positions in `self.rows`, and their positions in
        `rows`.
        """
        number = self.numbers(rows)
        places = np.flatnonzero(number >= 0)
        return number[places], places


class PaperPush:
    """DistGNN-MB's rule for the pushes of one layer: send each peer the rows just computed that are halo rows of this peer.

    At most `limit` rows are sent to each peer.

    Parameters
    ----------
    lists : SendLists
    part : PartEdges
    limit : int
    by : {"degree", "cut-degree", "uniform"}
        Weight of a row if there are more than `limit`: see `SendLists.weights`.
    seed, layer : int
        Keys of the random choice, with the step and the peer.
    """

    def __init__(self, lists: SendLists, part: PartEdges, limit: int, by: str, seed: int, layer: int) -> None:
        self._lists, self._part, self._limit, self._by, self._seed, self._layer = lists, part, limit, by, seed, layer

    def messages(self, step: int, rows: Array, h: Array, asked: Sequence[Array] | None) -> list[Message]:
        """Return for each rank a message (positions, None, values): first the positions, in the rank's halo list, of those `rows`
        that are halo rows there; then None, as `step` computed all of them; then their values from `h`. `asked` is not used,
        because peers request nothing.

        At most `limit` rows are drawn for each rank.
        """
        messages: list[Message] = []
        for peer, (places, slots) in enumerate(self._lists.of(rows)):
            mine = rows[places]
            weights = self._lists.weights(self._by, mine, self._part.edges.degrees)
            variates_key = key(self._seed, "push", str(peer), step, self._layer)
            places, slots = choose(places, slots, self._limit, weights, variates_key, self._part.ids[mine])
            messages.append((slots, None, h[places]))
        return messages


class DemandPush:
    """The rule "demand" for the pushes of one layer: send each peer the rows that it requests, in their newest version.

    Parameters
    ----------
    lists : SendLists
    life : int, optional
        Largest age of a row that is sent, in steps; by default unlimited.
    once : bool
        True if each version of a row is sent only once to each peer, because peers keep all rows. Else a row is sent
        as often as it is requested.
    features : (n_local, ...) array, optional
        The layer's rows, if they are the same in every step.

    Notes
    -----
    Memory: that of a `RowTable` with a line for each row of the lists; with `once` 8 bytes an entry of the lists. Local:
    no rank waits for another.
    """

    def __init__(self, lists: SendLists, life: int | None = None, once: bool = False,
                 features: Array | None = None) -> None:
        self._lists, self._once, self._constant = lists, once, features is not None
        self.table = RowTable(max(len(lists.rows), 1), len(lists.rows), life)
        self._sent = self._new_sent_record()
        if features is not None:
            self._put(lists.rows, 0, features[lists.rows])

    def _new_sent_record(self) -> list[Array]:
        """Return a list with an array for each peer that records which rows were sent to it: an entry for each row of the peer's
        list, the step that computed the sent row, or -1 if it was not sent. Return [] if the same version of a row may be sent
        again.
        """
        return [np.full(n, -1, np.int64) for n in self._lists.lengths] if self._once else []

    def messages(self, step: int, rows: Array, h: Array, asked: Sequence[Array] | None) -> list[Message]:
        """Store `h`, the values of `rows` that `step` computed. Return for each rank a message (positions, steps, values) about the
        rows that the rank has asked for (`asked`, None: nothing): first their positions in the rank's halo list; then the steps
        that computed them; then their values.

        Parameters
        ----------
        step : int
        rows : (n,) int array
            Distinct local rows of the batch; rows that no peer has as halo are skipped.
        h : (n, ...) array
            Values of `rows`, with the same dtype and row shape in all calls. Copied.
        asked : list by rank of (m,) int arrays, or None
            Slots that peers request.

        Returns
        -------
        list by rank of (slots (k,) int32, steps (k,) int64, rows (k, ...))
            Requested rows that are young enough, in the order of the requests, as new arrays. `steps` are the steps
            that computed the rows. With `once`, versions that the peer has already received are left out.

        Raises
        ------
        ShapeError
            `h` does not have a row for each of `rows`, or has another row shape or dtype than in earlier calls.
        """
        if not self._constant:
            self._put(rows, step, h)
        messages: list[Message] = []
        for peer, slots in enumerate(asked or [np.empty(0, np.int32)] * self._lists.size):
            lines = self.table.find(self._lists.numbers_at(peer, slots), step)
            hits = np.flatnonzero(lines >= 0)
            steps = self.table.made(lines[hits])
            if self._once:
                new = steps != self._sent[peer][slots[hits]]
                hits, steps = hits[new], steps[new]
                self._sent[peer][slots[hits]] = steps
            values = np.empty((len(hits), *h.shape[1:]), h.dtype)
            self.table.take(lines[hits], values)
            messages.append((slots[hits].astype(np.int32), steps, values))
        return messages

    def _put(self, rows, step, values):
        if len(values) != len(rows):
            raise ShapeError(f"{values.dtype} {values.shape} are not {len(rows)} rows")
        numbers = self._lists.numbers(rows)
        places = np.flatnonzero(numbers >= 0)
        self.table.put(numbers[places], step, values[places])

    def contents(self) -> dict[str, Ordered]:
        """Return the arrays of the table of newest rows, without a copy, as `RowTable.contents` does."""
        return self.table.contents()

    def load(self, state: Mapping[str, Array]) -> None:
        """Restore the table of newest rows from `state`, a copy of `contents`. A row that a peer has already may be sent once more.

        Raises
        ------
        CheckpointError, ShapeError
            The state was saved with other lists.
        """
        self.table.load(state if "halo" in state else self._by_age(state))
        self._sent = self._new_sent_record()

    def _by_age(self, state: Mapping[str, Array]) -> dict[str, Array]:
        """Convert `state`, the table of newest rows in the format of older checkpoints, to the format that `RowTable.load` takes,
        with the rows ordered by age. state["made"] has the step that computed each listed row, -1 for a row that was not computed.
        """
        steps, rows = state["made"].astype(np.int64), state.get("rows", np.zeros(0, np.float32))
        computed = np.flatnonzero(steps >= 0)
        if len(steps) != len(self._lists.rows) or len(computed) != len(rows):
            raise ShapeError(f"newest rows of {len(steps)} border rows do not fit the {len(self._lists.rows)} of this "
                             "part")
        order = np.argsort(steps[computed], kind="stable")
        return {"halo": computed[order].astype(np.int32), "made": steps[computed][order], "rows": rows[order]}


def choose(places: Array, slots: Array, limit: int | None, weights: Array, variates_key: int, ids: Array) -> tuple[Array, Array]:
    """Choose at most `limit` rows (None: all) at random, with probabilities in proportion to `weights`; return the chosen entries
    of `places` and `slots`, the rows' positions in two lists. The choice depends on `variates_key` and on the rows' global `ids`,
    not on their order.

    Rows are drawn without replacement: the chosen rows have the smallest -log(u) / weight, where u in (0, 1) is a hash of
    (variates_key, id).

    Parameters
    ----------
    places, slots : (m,) int arrays
        Entries for one peer, as `SendLists.of` returns them.
    limit : int or None
        Largest number of entries; None chooses all.
    weights : (m,) array
        Positive weights.
    variates_key : int
        64-bit key of seed, step, layer and peer: `keys.key(seed, "push", str(peer), step, layer)`.
    ids : (m,) int array
        Distinct global ids.

    Returns
    -------
    places, slots : (k,) arrays, k = min(m, limit)
        Chosen entries in the order of ascending slots.

    Notes
    -----
    The choice depends only on the key and on the (id, weight) of the entries, not on their order, ranks or threads.
    O(m) time, and a sort of k entries. Source: DistGNN-MB alg. 2, line 20; Efraimidis and Spirakis 2006, "Weighted random
    sampling with a reservoir".
    """
    if limit is None or len(slots) <= limit:
        taken = np.arange(len(slots))
    else:
        taken = smallest(scores(weights, variates_key, ids), limit, ids)
    taken = taken[np.argsort(slots[taken], kind="stable")]
    return places[taken], slots[taken]


def scores(weights: Array | float, variates_key: int, ids: Array) -> Array:
    """Return a random number for each id, exponentially distributed with rate `weights`; it is a function of `variates_key` and the id."""
    bits = splitmix64(ids.astype(np.uint64) ^ np.uint64(variates_key)) >> np.uint64(12)
    u = (bits + 0.5) * 2.0**-52  # 53 bits: neither 0 nor 1
    return -np.log(u) / weights


def smallest(scores: Array, n: int, ids: Array) -> Array:
    """Return the positions of the `n` smallest of `scores`; of equal scores the one with the lowest id counts as smaller."""
    if n == 0:
        return np.arange(0)
    last = np.partition(scores, n - 1)[n - 1]
    below, like = np.flatnonzero(scores < last), np.flatnonzero(scores == last)
    return np.concatenate([below, like[np.argsort(ids[like])][: n - len(below)]])
