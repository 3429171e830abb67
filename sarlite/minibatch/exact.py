"""Cooperative minibatches: owners expand and compute what other ranks' picks need; the batch is one rank's on the union of the seeds.

Rows and gradients travel by the mode of the graph, on a plan made for each layer.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from sarlite.comm import Communicator, together
from sarlite.graph.part import Cut, InEdges
from sarlite.minibatch.batch import LayerGraph
from sarlite.minibatch.columns import Columns, share
from sarlite.minibatch.sampler import Layer, Sampler
from sarlite.sar.graph.graph import Graph
from sarlite.sar.schedule.needs import Needs
from sarlite.types import Array


class Rows(NamedTuple):
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
    columns : Columns
    more
        As of `Sampler`.

    Notes
    -----
    Sends 4 bytes for each halo row of a layer, and 8 come back.
    Source: Balin et al. 2023, "Cooperative minibatching in graph neural networks".
    """

    def __init__(self, comm: Communicator, columns: Columns, *args: Any, **options: Any) -> None:
        super().__init__(columns.edges, *args, **options)
        self._comm, self._columns = comm, columns

    def _checked(self, seeds):
        return together(self._comm, lambda: super(Cooperative, self)._checked(seeds))

    def _layer(self, rows, layer, step):
        comm, columns = self._comm, self._columns
        rows, found = together(comm, lambda: super(Cooperative, self)._layer(rows, layer, step))
        n, halo = len(rows), found.halo - columns.n_local
        starts = columns.owners(halo)
        slots = [part - start for part, start in zip(share(halo, starts), columns.halo_starts)]
        slots = comm.alltoall([part.astype(np.int32) for part in slots])
        wanted = np.concatenate([mine[part] for mine, part in zip(columns.asked, slots)])
        rows, numbers = together(comm, lambda: self._numbering.add(rows, wanted.astype(rows.dtype)))
        asked = share(numbers, np.cumsum([0, *map(len, slots)]))
        needs = comm.alltoall(asked)
        found.columns[found.columns >= n] += len(rows) - n
        sizes = np.array(comm.allgather((len(rows), found.n_dst, len(found.columns))))
        return rows, found._replace(n_src=len(rows), exchange=Rows(needs, asked, sizes))


def make_sampler(columns: Columns, fanouts: Sequence[int], kind: str, seed: int = 0, *, comm: Communicator | None = None,
                 one_variate: bool = False) -> Sampler:
    """Return the sampler of a part.

    Parameters
    ----------
    columns : Columns
    fanouts, kind, seed, one_variate
        See `Sampler`.
    comm : Communicator, optional
        On several ranks: owners expand halo rows, a `Cooperative` on this channel. Without it no halo row is expanded.

    Raises
    ------
    ConfigError
        As `Sampler`.
    """
    options: dict[str, Any] = {"n_columns": len(columns.ids), "one_variate": one_variate, "dst_ids": columns.ids[: columns.n_local],
                               "src_ids": columns.ids}
    if comm is None or comm.size == 1:
        return Sampler(columns.edges, fanouts, kind, seed, **options)
    return Cooperative(comm, columns, fanouts, kind, seed, **options)


def layer_graph(graph: Graph, columns: Columns, layer: Layer, rows: Array, lasting: bool = False) -> LayerGraph:
    """Return the graph of a layer that `make_sampler`'s sampler found, whose `rows` are the local source rows."""
    if layer.exchange is None:
        return LayerGraph(graph, columns, layer, rows, lasting=lasting)
    starts = columns.owners(layer.halo - columns.n_local)
    found = _exchange(graph.comm.rank, layer, columns.ids[rows], columns.ids[layer.halo], starts, lasting)
    halo = share(layer.halo, starts)
    n_src, n_dst, n_edges = layer.exchange.sizes.sum(0).tolist()
    return LayerGraph(graph, columns, layer, rows, graph.schedule.mode.lay_out(found, graph.schedule.transport.prefetch),
                      np.concatenate([halo[q] for q in found.order]), (n_src, n_dst, n_edges), lasting)


def _exchange(rank, layer, ids, halo_ids, starts, lasting):
    """What the mode lays out; `starts` say where each owner's halo rows begin."""
    rows = layer.exchange
    src_ids, size = share(halo_ids, starts), len(rows.sizes)
    src_ids[rank] = ids
    first = layer.n_src + np.asarray(starts)  # column of each owner's first row
    owner = np.searchsorted(first, layer.columns, side="right").astype(np.min_scalar_type(size))  # 0: local, else 1 + rank
    order = np.argsort(owner, kind="stable")  # a radix sort of such small integers
    ends = np.searchsorted(owner[order], np.arange(size + 2))
    where = [order[a:b] for a, b in zip(ends[1:], ends[2:])]
    where[rank] = order[: ends[1]]
    edges = [layer.columns[places] - (0 if q == rank else first[q]) for q, places in enumerate(where)]
    offsets = np.concatenate([[0], np.cumsum(rows.sizes[:, 0])])
    cut = Cut(InEdges(layer.indptr, layer.columns), where, edges, lasting=lasting, grouped=False)
    return Needs(rank, offsets, [cut], rows.needs, rows.asked, src_ids)
