"""What the layers of a run's batches exchange, and what caches of embeddings push."""

from collections.abc import Sequence
from contextlib import closing
from typing import Any, NamedTuple

import numpy as np

from sarlite.minibatch.push import message_bytes
from sarlite.sar.cost import Exchanged, exchanged
from sarlite.tape import Tensor
from sarlite.tasks.node_task import NodeTask
from sarlite.train.load import Shard
from sarlite.train.minibatch import loaders
from sarlite.train.settings import Settings
from sarlite.types import Array

MOST = 16
"""Up to so many batches of the first epoch are sampled."""
EDGE_BYTES = 16
"""Of a sampled edge, with its share of the rows."""
Pushed = tuple[list[int], list[int]]


class Layers(NamedTuple):
    """What the layers of a run's batches exchange on one rank: some of a loader's first epoch, or one that stays.

    Attributes
    ----------
    layers : list of list of Exchanged
        By batch and layer.
    sizes : list of (n_src, n_dst, n_edges)
        Of the first batch's layers, of all ranks.
    n_steps : int
        Steps an epoch.
    pushes : list of dict of (list of int, list of int)
        By batch and layer, of caches of embeddings, the rows that go to each peer, and that come.
    moved : (2,) float64, or None
        Bytes that sampling sent and received, a step; None of a message-flow batch.
    cut : (2,) int64
        Bytes sent and received where the epoch's seeds were cut.
    n_seeds : int
        The most that this rank has in a batch.
    ahead_bytes : int
        What the batches take, at most, that a thread samples ahead.
    """

    layers: list[list[Exchanged]]
    sizes: list[tuple[int, int, int]]
    n_steps: int = 1
    pushes: Sequence[dict[int, Pushed]] = ()
    moved: Array | None = None
    cut: Array = np.zeros(2, np.int64)
    n_seeds: int = 0
    ahead_bytes: int = 0

    @property
    def stay(self) -> bool:
        """Whether it is one message-flow batch, which stays."""
        return self.moved is None


def flows(trainer: Any) -> tuple[Layers, Layers]:
    """Return the layers of a trainer's message-flow batches, of its training and its scoring. Collective."""
    training, scoring = (Layers([_exchanged(source.batch.graphs)], [layer.sizes for layer in source.batch.graphs])
                         for source in (trainer.batches, trainer.scoring))
    return training, scoring


def of_run(run: Settings, part: Shard) -> tuple[Layers, Layers | None]:
    """Sample batches of the first epoch, and of an evaluation that samples too, as the run will. Collective."""
    rows: Any = part.rows
    graph, nothing = part.graph, np.zeros((part.graph.n_dst, 1), run.model.dtype)
    with graph.profile.phase("setup"):
        made = loaders(run, part._replace(rows=rows._replace(features=nothing)), NodeTask, nothing, rows_alone=False)
        found = {name: _sampled(graph, loader, run) for name, loader in made.items()}
    return found["batches"], found.get("scoring")


def _sampled(graph, loader, run):
    batches, sizes, pushes, start = [], [], [], _bytes(graph)
    n, n_layers, n_seeds, caches = min(len(loader), MOST), len(run.batches.fanouts), 0, loader.caches
    loader.seeds(0)
    cut = _bytes(graph) - start
    with closing(iter(loader)) as made:
        for _ in range(n):
            batch = next(made)
            layers, n_seeds = batch.layers(n_layers), max(n_seeds, batch.n_dst)
            if caches:
                layers = [_entered(layer, batch, k) for k, layer in enumerate(layers)]
                pushes.append(_pushed(graph.comm, caches))
            sizes = sizes or [layer.sizes for layer in layers]
            batches.append(_exchanged(layers))
            del batch, layers
    loader.drain()
    counted = _bytes(graph) - start - cut
    if caches:
        dtype = caches.stored_dtype(run.model.dtype)
        counted -= sum(pushed_bytes(own, caches.dated, (1,), dtype) for each in pushes for own in each.values())
    n_made = n if n == len(loader) else min(n + loader.sample_ahead, len(loader))
    n_edges = max(sum(sum(map(sum, found.n_edges)) for found in batch) for batch in batches)
    return Layers(batches, sizes, len(loader), pushes, counted / n_made, cut, n_seeds,
                  loader.sample_ahead * EDGE_BYTES * n_edges)


def _exchanged(layers):
    """What the layers of a batch exchange. Collective, where rows of peers come."""
    return [exchanged(layer.schedule.transport.comm, layer.plan) for layer in layers]


def _entered(layer, batch, place):
    """The graph of a layer with the rows that its cache has, as in training."""
    return layer.enter(batch.x if place == 0 else Tensor(np.zeros((layer.n_src, 1), batch.x.dtype)))[0]


def _pushed(comm, caches):
    """By layer the rows that this rank pushed last, and that it got, by peer. Collective."""
    own = {layer: counts for layer, (counts, *_) in caches.pushed.items()}
    ranks, peers = comm.allgather(own), [q for q in range(comm.size) if q != comm.rank]
    return {layer: ([sent[q] for q in peers], [ranks[q][layer][comm.rank] for q in peers])
            for layer, sent in own.items()}


def pushed_bytes(pushed: Pushed, dated: bool, shape: tuple[int, ...], dtype: Any) -> Array:
    """Return the bytes (2,) that go, and that come, of pushed rows of this shape and dtype; `dated` as of `Caches`."""
    return np.array([sum(message_bytes(n, dated, dtype, shape) for n in rows) for rows in pushed])


def _bytes(graph):
    return np.array([graph.profile.sent_bytes["setup"], graph.profile.received_bytes["setup"]])

