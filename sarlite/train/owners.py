"""Transfer of rows between rank 0, where they are in the order of their ids, and the ranks that own the rows, in pieces."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from sarlite.errors import CheckpointError, raise_together
from sarlite.types import Array

PIECE_BYTES = 1 << 21
"""Upper bound of a piece in bytes, as far as rows are not larger."""


class Attempts:
    """Runner of functions on rank 0 that remembers the first error instead of raising it, so that messages to other ranks go on. `end`
    raises it on all ranks.

    Rank 0 sends messages between its actions, and other ranks wait for these. After a failure later actions are
    skipped.

    Examples
    --------
    >>> from sarlite.comm import threads
    >>> def work(comm):
    ...     attempt = Attempts(comm)
    ...     values = [attempt(lambda: 1 / 2), attempt(lambda: 1 / 0), attempt(lambda: 3)]
    ...     try:
    ...         attempt.end()
    ...     except Exception as error:
    ...         return values, "division by zero" in str(error)
    >>> threads.run(2, work)
    [([0.5, None, None], True), ([None, None, None], True)]
    """

    def __init__(self, comm):
        self._comm, self._error = comm, None

    def __call__(self, action: Callable[[], Any]) -> Any:
        """Call the function `action` on rank 0 and return its result. Return None on other ranks, and if this or an earlier action has
        failed.
        """
        if self._comm.rank == 0 and self._error is None:
            try:
                return action()
            except BaseException as error:  # of any type, because other ranks wait for this rank's messages
                self._error = error
        return None

    def end(self):
        """Raise the error of the first action that failed, if any, on every rank. Collective."""
        raise_together(self._comm, self._error)


class Owners:
    """Map from the rows of all ranks, sorted by id, to the ranks that own them. It moves rows between their owners and rank 0. Methods are
    collective.

    Construction is collective, too.

    Parameters
    ----------
    comm : Communicator
    ids : (n_local,) int64
        Ids of this rank's rows, in any order. Each id belongs to one rank.
    name : str
        Name of the rows in error messages.

    Attributes
    ----------
    ids : (n_local,) int64
        The argument.
    n : int
        Number of rows of all ranks.

    Raises
    ------
    CheckpointError
        On every rank: an id occurs twice.

    Notes
    -----
    A piece is a range of ids. The rows of all ranks in it have at most `PIECE_BYTES`, and are at most a sixteenth of all
    rows, or one row of each rank. Memory: 16 bytes for each row of this rank, two numbers for each rank and piece, and
    three pieces on rank 0, one on other ranks. Time: two small allgathers for each piece, once for each width of rows;
    then the transfer of the rows to or from rank 0.

    Examples
    --------
    >>> from sarlite.comm import threads
    >>> def work(comm):
    ...     ids = np.array([4, 0] if comm.rank == 0 else [2])
    ...     return [piece if piece is None else piece.tolist() for piece in Owners(comm, ids, "rows").gather(10 * ids)]
    >>> threads.run(2, work)
    [[[0], [20], [40]], [None, None, None]]
    """

    def __init__(self, comm, ids, name):
        self.comm, self.name, self.ids = comm, name, np.asarray(ids, np.int64)
        self._order = np.argsort(self.ids, kind="stable")
        self._ascending = self.ids[self._order]
        self.n, self._piece_bounds = sum(comm.allgather(len(self.ids))), {}
        attempt = Attempts(comm)
        for piece in self.gather(self.ids):
            attempt(lambda piece=piece: self._check_once(piece))
        attempt.end()

    def _check_once(self, piece):
        twice = np.flatnonzero(piece[1:] == piece[:-1])
        if len(twice):
            raise CheckpointError(f"{self.name!r}: id {piece[twice[0]]} has two owners")

    def _pieces(self, rows: Array) -> list[tuple[int, int, list[int]]]:
        """Divide the ids of all ranks, in ascending order, into ranges whose rows take limited memory; `rows` shows the size of one row.
        Return a list of (low, high, sizes): this rank's rows low .. high - 1 in the order of ids, and the number of rows of each rank.
        Collective.
        """
        row_bytes = 8 + rows.itemsize * math.prod(rows.shape[1:])
        step = max(1, min(PIECE_BYTES // row_bytes, self.n // 16) // self.comm.size)
        if step not in self._piece_bounds:
            self._piece_bounds[step] = list(self._cut(step))
        return self._piece_bounds[step]

    def _cut(self, step):
        low, n = 0, len(self.ids)
        while True:
            ends = self.comm.allgather(int(self._ascending[min(low + step, n) - 1]) if low < n else None)
            ends = [end for end in ends if end is not None]
            if not ends:
                return
            high = int(np.searchsorted(self._ascending, min(ends), "right"))
            yield low, high, self.comm.allgather(high - low)
            low = high

    def gather(self, rows):
        """Yield the rows of all ranks by ascending id in several arrays on rank 0, and None as often on other ranks. `rows` are this rank's
        rows, in the order of its ids.

        Parameters
        ----------
        rows : (n_local, ...) array
            This rank's rows, in the order of `ids`.

        Yields
        ------
        (k, ...) array or None
            The next rows on rank 0; None on other ranks, the same number of times.
        """
        for low, high, sizes in self._pieces(rows):
            ids = self._collect(self._ascending[low:high], sizes)
            gathered = self._collect(rows[self._order[low:high]], sizes)
            yield None if gathered is None else gathered[np.argsort(ids)]

    def scatter(self, stored, rows):
        """Copy this rank's rows of `stored`, a tensor of a checkpoint that rank 0 reads and sends, into `rows`. `stored` is None on other
        ranks. Collective.

        Parameters
        ----------
        stored : tensorfile.Stored or None
            The rows of all ranks by ascending id, on rank 0; None on other ranks.
        rows : (n_local, ...) array
            Rows in the order of `ids`, changed in place.

        Raises
        ------
        CheckpointError
            On every rank: the tensor cannot be read. `rows` may have changed.
        """
        attempt, begin = Attempts(self.comm), 0
        for low, high, sizes in self._pieces(rows):
            ids, end = self._collect(self._ascending[low:high], sizes), begin + sum(sizes)
            piece = attempt(lambda span=(begin, end): stored.rows(*span))
            rows[self._order[low:high]] = self._hand_out(ids, piece, sizes, rows)
            begin = end
        attempt.end()

    def check(self, stored):
        """Raise an error on every rank unless `stored`, the ids in a checkpoint, are exactly the ids of all ranks' rows. `stored` is None
        on ranks other than 0. Collective.

        Parameters
        ----------
        stored : tensorfile.Stored or None
            The checkpoint's ids, (n,) int64 ascending, on rank 0; None on other ranks or if there are none.

        Raises
        ------
        CheckpointError
            On every rank, naming the first id that differs.
        """
        attempt, begin, last = Attempts(self.comm), 0, None
        attempt(lambda: self._check_kind(stored))
        for piece in self.gather(self.ids):
            last = attempt(lambda at=(begin, last), piece=piece: self._check_piece(stored, *at, piece))
            begin += 0 if piece is None else len(piece)
        attempt(lambda: self._check_end(stored, begin, last))
        attempt.end()

    def _check_kind(self, stored):
        if stored is not None and (stored.dtype, len(stored.shape)) != (np.int64, 1):
            raise CheckpointError(f"{self.name!r}: the checkpoint's ids are {stored.dtype} {stored.shape}, but must be "
                                  "one int64 a row")

    def _check_piece(self, stored: Any, begin: int, last: int | None, ids: Array) -> int:
        """Compare one piece of this rank's `ids` with the checkpoint: its array `stored` must have exactly these ids at positions begin ..
        begin + len(ids) - 1, ascending. All ids must be above `last`, the id at position begin - 1 (None for the first piece). Return
        ids[-1], or raise a CheckpointError if a check fails.
        """
        stored_ids = self._read_ids(stored, begin, begin + len(ids), last)
        n = len(stored_ids)
        odd = np.flatnonzero(stored_ids != ids[:n])
        at = int(odd[0]) if len(odd) else n
        if at < n and stored_ids[at] < ids[at]:
            raise CheckpointError(f"{self.name!r}: id {stored_ids[at]} belongs to no rank")
        if at < len(ids):
            raise CheckpointError(f"{self.name!r}: id {ids[at]} is missing from the checkpoint")
        return ids[-1]

    def _check_end(self, stored: Any, begin: int, last: int | None) -> None:
        """Raise a CheckpointError if the checkpoint's ids `stored` go on at position `begin`, after all ids of the ranks. `last` is the id
        at position begin - 1, None for the beginning.
        """
        if stored is not None and begin < stored.shape[0]:
            (more,) = self._read_ids(stored, begin, begin + 1, last)
            raise CheckpointError(f"{self.name!r}: id {more} belongs to no rank")

    def _read_ids(self, stored: Any, begin: int, end: int, last: int | None) -> Array:
        """Return the checkpoint's ids `stored` at positions begin .. end - 1. Raise a CheckpointError unless they ascend and the first is
        above `last`, the id before; None means no id before.
        """
        stored_ids = np.empty(0, np.int64) if stored is None else stored.rows(begin, end)
        if (stored_ids[1:] <= stored_ids[:-1]).any() or (len(stored_ids) and last is not None and stored_ids[0] <= last):
            raise CheckpointError(f"{self.name!r}: the checkpoint's ids do not ascend")
        return stored_ids

    def _collect(self, local_rows: Array, sizes: Sequence[int]) -> Array | None:
        """Gather the arrays `local_rows` of all ranks, sizes[r] rows from rank r. Return all rows in the order of the ranks on rank 0, and
        None on other ranks. Collective.
        """
        if self.comm.rank:
            if len(local_rows):
                self.comm.start_send(np.ascontiguousarray(local_rows), 0).wait()
            return None
        everyone = np.empty((sum(sizes), *local_rows.shape[1:]), local_rows.dtype)
        parts = np.split(everyone, np.cumsum(sizes)[:-1])
        requests = [self.comm.start_recv(part, rank) for rank, part in enumerate(parts) if rank and len(part)]
        parts[0][...] = local_rows
        for request in requests:
            request.wait()
        return everyone

    def _hand_out(self, ids: Any, piece: Array | None, sizes: Sequence[int], like: Array) -> Array:
        """Send rows from rank 0 to the ranks that own them, sizes[r] rows to rank r. On rank 0, `ids` are the rows' ids in rank order, and
        `piece` has the rows by ascending id. Return this rank's rows by ascending id; `like` is an array with their dtype and row shape.
        Collective.

        If reading has failed, `piece` is None, and the returned values are arbitrary.
        """
        if self.comm.rank:
            mine = np.empty((sizes[self.comm.rank], *like.shape[1:]), like.dtype)
            if len(mine):
                self.comm.start_recv(mine, 0).wait()
            return mine
        everyone = np.empty((sum(sizes), *like.shape[1:]), like.dtype)
        if piece is not None:
            everyone[np.argsort(ids)] = piece
        parts = np.split(everyone, np.cumsum(sizes)[:-1])
        for request in [self.comm.start_send(part, rank) for rank, part in enumerate(parts) if rank and len(part)]:
            request.wait()
        return parts[0]
