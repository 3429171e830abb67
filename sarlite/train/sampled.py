"""Some batches of a run, sampled for what their layers exchange, and what caches of embeddings push."""

from contextlib import closing
from typing import Any, NamedTuple

import numpy as np

from sarlite.comm import Solo
from sarlite.minibatch.push import message_bytes
from sarlite.profile import uncounted
from sarlite.sar.cost import Exchanged, exchanged
from sarlite.tape import Tensor
from sarlite.train.load import Shard
from sarlite.train.minibatch import loaders
from sarlite.train.settings import Settings
from sarlite.types import Array

MOST = 16
"""Up to so many batches of the first epoch are sampled."""
EDGE_BYTES = 16
"""Of a sampled edge, with its share of the rows."""


class Pushed(NamedTuple):
    """Rows that a rank pushes of a layer in a step, and gets, by rank; where `dated` with the steps that made them."""

    rank: int
    sent: list[int]
    received: list[int]
    dated: bool

    def n_bytes(self, row: tuple[tuple[int, ...], Any]) -> tuple[int, int]:
        """Return the bytes that go, and that come, of rows of this (shape, dtype)."""
        own = [[message_bytes(n, self.dated, row[1], row[0]) for q, n in enumerate(rows) if q != self.rank]
               for rows in (self.sent, self.received)]
        return sum(own[0]), sum(own[1])


class Sampled(NamedTuple):
    """Batches of a run's first epoch on one rank.

    Attributes
    ----------
    batches : list of dict of Exchanged
        Of each what its layers exchange, by (kind, layer).
    sizes : dict of (n_src, n_dst, n_edges)
        Of the first batch's layers, of all ranks.
    pushes : list of dict of Pushed
        Of each by layer; of caches of embeddings.
    n_steps : int
        Steps an epoch.
    moved : (2,) float64
        Bytes that sampling sent and received, a step.
    cut : (2,) int64
        Bytes sent and received where the epoch's seeds were cut.
    n_seeds : int
        The most that this rank has in a batch.
    ahead_bytes : int
        What the batches take, at most, that a thread samples ahead.
    """

    batches: list[dict[Any, Exchanged]]
    sizes: dict[Any, tuple[int, int, int]]
    pushes: list[dict[int, Pushed]]
    n_steps: int
    moved: Array
    cut: Array
    n_seeds: int
    ahead_bytes: int = 0


def of_run(run: Settings, part: Shard) -> tuple[Sampled, Sampled | None]:
    """Sample batches of the first epoch, and of an evaluation that samples too, as the run will. Collective."""
    rows: Any = part.rows
    graph, nothing = part.graph, np.zeros((part.graph.n_dst, 1), run.model.dtype)
    with graph.profile.phase("setup"):
        made = loaders(run, part._replace(rows=rows._replace(features=nothing)), nothing, rows_alone=False)
        found = {name: _sampled(graph, loader, run, name == "scoring") for name, loader in made.items()}
    return found["batches"], found.get("scoring")


def _sampled(graph, loader, run, scores):
    comm = graph.comm if scores or run.batches.remote == "exact" else Solo()
    batches, sizes, pushes, start, kind = [], {}, [], _bytes(graph), "scored" if scores else "batch"
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
            sizes = sizes or {(kind, k): layer.sizes for k, layer in enumerate(layers)}
            batches.append({(kind, k): exchanged(uncounted(comm), layer.plan) for k, layer in enumerate(layers)})
            del batch, layers
    loader.drain()
    counted = _bytes(graph) - start - cut
    if caches:
        row = (1,), caches.stored_dtype(run.model.dtype)
        counted -= np.sum([own.n_bytes(row) for each in pushes for own in each.values()], 0, dtype=int)
    n_made = n if n == len(loader) else min(n + loader.sample_ahead, len(loader))
    n_edges = max(sum(sum(map(sum, found.n_edges)) for found in batch.values()) for batch in batches)
    return Sampled(batches, sizes, pushes, len(loader), counted / n_made, cut, n_seeds,
                   loader.sample_ahead * EDGE_BYTES * n_edges)


def _entered(layer, batch, place):
    """The graph of a layer with the rows that its cache has, as in training."""
    return layer.enter(batch.x if place == 0 else Tensor(np.zeros((layer.n_src, 1), batch.x.dtype)))[0]


def _pushed(comm, caches):
    """By layer the last push, as this rank and its peers know it. Collective."""
    ranks = comm.allgather(caches.pushed)
    return {layer: Pushed(comm.rank, sent, [own[layer][comm.rank] for own in ranks], caches.dated)
            for layer, sent in caches.pushed.items()}


def _bytes(graph):
    return np.array([graph.profile.sent_bytes["setup"], graph.profile.received_bytes["setup"]])

