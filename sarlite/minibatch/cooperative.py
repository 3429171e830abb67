"""Cooperative minibatches: owners sample and compute the rows that other ranks need.

The result equals the batch of one rank for the seeds of all ranks.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from sarlite.comm import Communicator, together
from sarlite.minibatch.batch_layers import TypedRows
from sarlite.minibatch.part_edges import PartEdges, split_by_rank
from sarlite.minibatch.sampler import EdgeSet, HaloExchange, Sampler


class Cooperative(Sampler):
    """Sampler for batches over several ranks. If a rank needs a row of another rank, the rank that owns the row samples its in-edges.
    Calls are collective.

    Parameters
    ----------
    comm : Communicator
        For the sampling thread alone.
    part : PartEdges
    sets, args, options
        See `Sampler`.

    Notes
    -----
    Sends 4 bytes for each halo row of a layer, and 8 come back.
    Source: Balin et al. 2023, "Cooperative minibatching in graph neural networks".
    """

    def __init__(self, comm: Communicator, part: PartEdges, sets: Sequence[EdgeSet], *args: Any, **options: Any) -> None:
        super().__init__(sets, *args, **options)
        self._comm, self._part = comm, part

    def _checked(self, seeds):
        return together(self._comm, lambda: super(Cooperative, self)._checked(seeds))

    def _layer(self, rows, layer, request):
        comm, part = self._comm, self._part
        rows, sampled = together(comm, lambda: super(Cooperative, self)._layer(rows, layer, request))
        n, slots = len(rows), part.slots(sampled.halo // request.n_times - part.n_local)
        slots = comm.alltoall(slots)
        wanted = np.concatenate([local_rows[positions] for local_rows, positions in zip(part.asked, slots)])
        if len(request.times):
            of_owners = split_by_rank(sampled.halo % request.n_times, part.owners(sampled.halo // request.n_times - part.n_local))
            wanted = wanted * request.n_times + np.concatenate(comm.alltoall(of_owners))
        rows, numbers = together(comm, lambda: self._numbering.add(rows, wanted.astype(rows.dtype)))
        asked = split_by_rank(numbers, np.cumsum([0, *map(len, slots)]))
        typed = TypedRows(part, rows // request.n_times, sampled.n_dst)
        needs = comm.alltoall([typed.numbers_of(batch_rows) for batch_rows in asked])
        for picked in sampled.sets:
            picked.columns[picked.columns >= n] += len(rows) - n
        sizes = [*typed.n_rows, *typed.n_dst, *(len(picked.columns) for picked in sampled.sets)]
        exchange = HaloExchange(needs, asked, np.array(comm.allgather(sizes)))
        return rows, sampled._replace(n_src=len(rows), exchange=exchange)
