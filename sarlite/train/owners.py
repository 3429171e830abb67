"""Rows that ranks own: collected on rank 0 in the order of their ids, piece by piece, and sent back to their owners."""

import math

import numpy as np

from sarlite.errors import CheckpointError, raise_together

PIECE_BYTES = 1 << 21


class Attempts:
    """Actions of rank 0 between messages that other ranks wait for; after the first failure no more actions run."""

    def __init__(self, comm):
        self._comm, self._error = comm, None

    def __call__(self, action):
        """Run an action on rank 0 and return its result; return None on other ranks and after a failure."""
        if self._comm.rank == 0 and self._error is None:
            try:
                return action()
            except BaseException as error:  # whatever it is: the others wait for the word of this rank
                self._error = error
        return None

    def end(self):
        """Raise the failure of an action, if any, on every rank. Collective."""
        raise_together(self._comm, self._error)


class Owners:
    """Map from ids to the ranks that own them. Construction and every method are collective.

    Parameters
    ----------
    comm : Communicator
    ids : (n_local,) int64
        This rank's, in any order; no id is twice on all ranks together.
    name : str
        What an error calls the rows.

    Attributes
    ----------
    ids : (n_local,) int64
        As given.
    n : int
        The number of all ranks' rows.

    Raises
    ------
    CheckpointError
        On every rank: an id is there twice.

    Notes
    -----
    A piece is a range of ids, of which all ranks together have at most `PIECE_BYTES` and a sixteenth, or a row each.
    Memory: 16 bytes a row of this rank, and two numbers a rank and piece; on rank 0 three pieces, elsewhere one. Time:
    two small allgathers a piece for each width of rows; then what travels, rank 0 being the only one that others wait
    for.
    """

    def __init__(self, comm, ids, name):
        self.comm, self.name, self.ids = comm, name, np.asarray(ids, np.int64)
        self._order = np.argsort(self.ids, kind="stable")
        self._ascending = self.ids[self._order]
        self.n, self._kept = sum(comm.allgather(len(self.ids))), {}
        attempt = Attempts(comm)
        for piece in self.gather(self.ids):
            attempt(lambda piece=piece: self._check_once(piece))
        attempt.end()

    def _check_once(self, piece):
        twice = np.flatnonzero(piece[1:] == piece[:-1])
        if len(twice):
            raise CheckpointError(f"{self.name!r}: id {piece[twice[0]]} has two owners")

    def _pieces(self, rows):
        """Return (low, high, sizes) of each piece: its range of this rank's ascending ids, and each rank's count."""
        row_bytes = 8 + rows.itemsize * math.prod(rows.shape[1:])
        step = max(1, min(PIECE_BYTES // row_bytes, self.n // 16) // self.comm.size)
        if step not in self._kept:
            self._kept[step] = list(self._cut(step))
        return self._kept[step]

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
        """Yield the rows of all ranks by ascending id, in pieces on rank 0; other ranks yield None as often."""
        for low, high, sizes in self._pieces(rows):
            ids = self._collect(self._ascending[low:high], sizes)
            found = self._collect(rows[self._order[low:high]], sizes)
            yield None if found is None else found[np.argsort(ids)]

    def scatter(self, whole, rows):
        """Fill this rank's `rows` from rank 0's `tensorfile.Stored`, which has all by ascending id; None elsewhere.

        Raises
        ------
        CheckpointError
            On every rank: it cannot be read; `rows` may have changed.
        """
        attempt, begin = Attempts(self.comm), 0
        for low, high, sizes in self._pieces(rows):
            ids, end = self._collect(self._ascending[low:high], sizes), begin + sum(sizes)
            piece = attempt(lambda span=(begin, end): whole.rows(*span))
            rows[self._order[low:high]] = self._hand_out(ids, piece, sizes, rows)
            begin = end
        attempt.end()

    def check(self, whole):
        """Raise a CheckpointError where a checkpoint's ids, a `Stored` on rank 0 or None, are not the ranks'."""
        attempt, begin, last = Attempts(self.comm), 0, None
        attempt(lambda: self._check_kind(whole))
        for piece in self.gather(self.ids):
            last = attempt(lambda at=(begin, last), piece=piece: self._compare(whole, *at, piece))
            begin += 0 if piece is None else len(piece)
        attempt(lambda: self._check_end(whole, begin, last))
        attempt.end()

    def _check_kind(self, whole):
        if whole is not None and (whole.dtype, len(whole.shape)) != (np.int64, 1):
            raise CheckpointError(f"{self.name!r}: the checkpoint's ids are {whole.dtype} {whole.shape}, but must be "
                                  "one int64 a row")

    def _compare(self, whole, begin, last, piece):
        """Compare a piece with the checkpoint's ids from `begin` on, and return its last id."""
        there = self._ascends(whole, begin, begin + len(piece), last)
        n = len(there)
        odd = np.flatnonzero(there != piece[:n])
        at = int(odd[0]) if len(odd) else n
        if at < n and there[at] < piece[at]:
            raise CheckpointError(f"{self.name!r}: id {there[at]} is nobody's here")
        if at < len(piece):
            raise CheckpointError(f"{self.name!r}: id {piece[at]} is missing from the checkpoint")
        return piece[-1]

    def _check_end(self, whole, begin, last):
        """Check that the checkpoint has no more ids."""
        if whole is not None and begin < whole.shape[0]:
            (more,) = self._ascends(whole, begin, begin + 1, last)
            raise CheckpointError(f"{self.name!r}: id {more} is nobody's here")

    def _ascends(self, whole, begin, end, last):
        there = np.empty(0, np.int64) if whole is None else whole.rows(begin, end)
        if (there[1:] <= there[:-1]).any() or (len(there) and last is not None and there[0] <= last):
            raise CheckpointError(f"{self.name!r}: the checkpoint's ids do not ascend")
        return there

    def _collect(self, own, sizes):
        """Return every rank's rows, in rank order, on rank 0; None on other ranks."""
        if self.comm.rank:
            if len(own):
                self.comm.start_send(np.ascontiguousarray(own), 0).wait()
            return None
        everyone = np.empty((sum(sizes), *own.shape[1:]), own.dtype)
        parts = np.split(everyone, np.cumsum(sizes)[:-1])
        requests = [self.comm.start_recv(part, rank) for rank, part in enumerate(parts) if rank and len(part)]
        parts[0][...] = own
        for request in requests:
            request.wait()
        return everyone

    def _hand_out(self, ids, piece, sizes, like):
        """This rank's rows of rank 0's piece, by ascending id, or any where it has none; `ids` are in rank order."""
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
