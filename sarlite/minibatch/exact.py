"""Cooperative minibatches: owners expand and compute what other ranks' picks need; the batch is one rank's on the union
of the seeds.

Rows and gradients travel by the mode of the graph, on a plan made for each layer.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from sarlite.comm import Communicator, together
from sarlite.graph.part import EdgesByOwner, InEdges
from sarlite.minibatch.part_edges import PartEdges, share
from sarlite.minibatch.picked import PickedGraph
from sarlite.minibatch.sampler import Layer, Sampler
from sarlite.sar.schedule.needs import Needs
from sarlite.types import Array


class HaloExchange(NamedTuple):
    """How the halo rows of a layer travel.

    Attributes
    ----------
    needs : list by rank of (n,) int64
        Number in its batch of each of its rows that comes here.
    asked : list by rank of (n,) int64
        Number in this batch of each row that goes there.
    sizes : (size, 3) int64
        By rank n_src, n_dst and edges of the layer.
    """

    needs: list[Array]
    asked: list[Array]
    sizes: Array


class Cooperative(Sampler):
    """A sampler whose halo rows their owners expand. Calling it is collective.

    Parameters
    ----------
    comm : Communicator
        For the sampling thread alone.
    part : PartEdges
    more
        As of `Sampler`.

    Notes
    -----
    Sends 4 bytes for each halo row of a layer, and 8 come back.
    Source: Balin et al. 2023, "Cooperative minibatching in graph neural networks".
    """

    def __init__(self, comm: Communicator, part: PartEdges, *args: Any, **options: Any) -> None:
        super().__init__(part.edges, *args, **options)
        self._comm, self._part = comm, part

    def _checked(self, seeds):
        return together(self._comm, lambda: super(Cooperative, self)._checked(seeds))

    def _layer(self, rows, layer, step, without):
        comm, part = self._comm, self._part
        rows, found = together(comm, lambda: super(Cooperative, self)._layer(rows, layer, step, without))
        n, slots = len(rows), part.slots(found.halo - part.n_local)
        slots = comm.alltoall(slots)
        wanted = np.concatenate([mine[own] for mine, own in zip(part.asked, slots)])
        rows, numbers = together(comm, lambda: self._numbering.add(rows, wanted.astype(rows.dtype)))
        asked = share(numbers, np.cumsum([0, *map(len, slots)]))
        needs = comm.alltoall(asked)
        found.columns[found.columns >= n] += len(rows) - n
        sizes = np.array(comm.allgather((len(rows), found.n_dst, len(found.columns))))
        return rows, found._replace(n_src=len(rows), exchange=HaloExchange(needs, asked, sizes))


def make_sampler(part: PartEdges, fanouts: Sequence[int], kind: str, seed: int = 0, *, comm: Communicator | None = None,
                 one_variate: bool = False) -> Sampler:
    """Return the sampler of a part.

    Parameters
    ----------
    part : PartEdges
    fanouts, kind, seed, one_variate
        See `Sampler`.
    comm : Communicator, optional
        On several ranks: owners expand halo rows, a `Cooperative` on this channel. Without it no halo row is expanded.

    Raises
    ------
    ConfigError
        As `Sampler`.
    """
    options: dict[str, Any] = {"n_columns": len(part.ids), "one_variate": one_variate,
                               "dst_ids": part.ids[: part.n_local], "src_ids": part.ids}
    if comm is None or comm.size == 1:
        return Sampler(part.edges, fanouts, kind, seed, **options)
    return Cooperative(comm, part, fanouts, kind, seed, **options)


def layer_graph(part: PartEdges, layer: Layer, rows: Array, lasting: bool = False) -> PickedGraph:
    """Return the graph of a layer that `make_sampler`'s sampler found, whose `rows` are the local source rows."""
    if layer.exchange is None:
        return PickedGraph(part, layer, rows, lasting=lasting)
    schedule, starts = part.graph.schedule, part.owners(layer.halo - part.n_local)
    found = _needs(part, layer, rows, starts, lasting)
    halo = share(layer.halo, starts)
    n_src, n_dst, n_edges = layer.exchange.sizes.sum(0).tolist()
    return PickedGraph(part, layer, rows, schedule.mode.lay_out(found, schedule.transport.prefetch),
                       np.concatenate([halo[q] for q in found.order]), (n_src, n_dst, n_edges), lasting)


def _needs(part, layer, rows, starts, lasting):
    """What the mode lays out; `starts` say where each owner's halo rows begin."""
    rank, exchange = part.graph.comm.rank, layer.exchange
    src_ids, size = share(part.ids[layer.halo], starts), len(exchange.sizes)
    src_ids[rank] = part.ids[rows]
    first = layer.n_src + np.asarray(starts)  # column of each owner's first row
    owner = np.searchsorted(first, layer.columns, side="right")  # 0: local, else 1 + rank
    owner = owner.astype(np.min_scalar_type(size))
    order = np.argsort(owner, kind="stable")  # a radix sort of such small integers
    ends = np.searchsorted(owner[order], np.arange(size + 2))
    where = [order[a:b] for a, b in zip(ends[1:], ends[2:])]
    where[rank] = order[: ends[1]]
    edges = [layer.columns[places] - (0 if q == rank else first[q]) for q, places in enumerate(where)]
    offsets = np.concatenate([[0], np.cumsum(exchange.sizes[:, 0])])
    cut = EdgesByOwner(InEdges(layer.indptr, layer.columns), where, edges, lasting=lasting, grouped=False)
    return Needs(rank, offsets, [cut], exchange.needs, exchange.asked, src_ids)
