"""Rows that ranks own: all of them to rank 0, by id, and back to whoever owns them now."""

import numpy as np

from sarlite.errors import CheckpointError, raise_together


class Owners:
    """Which rank has which ids. Construction and every method are collective.

    Parameters
    ----------
    comm : Communicator
    ids : (n_local,) int64
        This rank's, in any order; no id is twice on all ranks together.
    name : str
        What an error calls the rows.

    Attributes
    ----------
    ids : (n,) int64 on rank 0, None elsewhere
        Those of all ranks, ascending: the order of the whole arrays.

    Raises
    ------
    CheckpointError
        On every rank: an id is there twice.

    Notes
    -----
    Rank 0 holds one whole array and one rank's rows at a time; the other ranks hold nothing beside their own.
    """

    def __init__(self, comm, ids, name):
        self.comm, self.name, self.own = comm, name, np.ascontiguousarray(ids, np.int64)
        self.sizes = comm.allgather(len(ids))
        self.ids = error = None
        everyone = list(self._collect(self.own))
        if comm.rank == 0:
            everyone = np.concatenate(everyone)
            order = np.argsort(everyone, kind="stable")
            self.ids, places = everyone[order], np.empty_like(order)
            places[order] = np.arange(len(order))
            self.places = np.split(places, np.cumsum(self.sizes)[:-1])
            twice = np.flatnonzero(self.ids[1:] == self.ids[:-1])
            error = CheckpointError(f"{name!r}: id {self.ids[twice[0]]} has two owners") if len(twice) else None
        raise_together(comm, error)

    def _collect(self, rows):
        """On rank 0 yield each rank's rows, in rank order; elsewhere send them."""
        if self.comm.rank:
            if len(rows):
                self.comm.start_send(rows, 0).wait()
            return
        for rank, size in enumerate(self.sizes):
            if rank == 0:
                yield rows
                continue
            buffer = np.empty((size, *rows.shape[1:]), rows.dtype)
            if size:
                self.comm.start_recv(buffer, rank).wait()
            yield buffer

    def gather(self, rows):
        """Return the rows of all ranks by ascending id on rank 0, None elsewhere; `rows` are this rank's, by its own ids."""
        parts = self._collect(np.ascontiguousarray(rows))
        if self.comm.rank:
            return next(parts, None)
        whole = np.empty((len(self.ids), *rows.shape[1:]), rows.dtype)
        for place, part in zip(self.places, parts):
            whole[place] = part
        return whole

    def scatter(self, whole, like):
        """Return this rank's rows of rank 0's `whole`, as `gather` made it; `like` has their shape and dtype."""
        if self.comm.rank == 0:
            for rank in range(1, self.comm.size):
                if self.sizes[rank]:
                    self.comm.start_send(np.ascontiguousarray(whole[self.places[rank]]), rank).wait()
            return whole[self.places[0]]
        rows = np.empty_like(like, order="C")
        if len(rows):
            self.comm.start_recv(rows, 0).wait()
        return rows

    def check(self, ids):
        """Raise on every rank where rank 0's `ids`, of a whole array that is to be scattered, are not these."""
        error = None
        if self.comm.rank == 0 and not np.array_equal(ids, self.ids):
            error = CheckpointError(f"{self.name!r}: {self._difference(ids)}")
        raise_together(self.comm, error)

    def _difference(self, ids):
        odd = np.setxor1d(ids, self.ids).tolist()
        if not odd:
            return "the checkpoint's ids do not ascend"
        return f"id {odd[0]} is " + ("missing from the checkpoint" if odd[0] in self.ids else "nobody's here")
