"""Some batches of a run, sampled for what their layers exchange, and what caches of embeddings push and hold."""

import argparse
from contextlib import closing
from typing import Any, NamedTuple

import numpy as np

from sarlite.comm import Solo
from sarlite.minibatch.push import message_bytes
from sarlite.profile import uncounted
from sarlite.sar.cost import Exchanged, exchanged
from sarlite.sar.schedule.messages import row_bytes
from sarlite.tape import Tensor
from sarlite.train.load import Shard
from sarlite.train.minibatch import loaders
from sarlite.train.settings import settings
from sarlite.types import Array

MOST = 16
"""Up to so many batches of the first epoch are sampled."""
LINE_BYTES = 24
"""Of a cache's line beside its row."""


class Pushed(NamedTuple):
    """Rows that a rank pushes of a layer in a step, and gets, by rank; `dated` tells whether the steps that made them go with them."""

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
    lines, newest : list by layer of int
        Rows of caches at the end of a run, at most; and of which the newest is kept for peers.
    delay : int
        Steps for which arrived rows wait.
    """

    batches: list[dict[Any, Exchanged]]
    sizes: dict[Any, tuple[int, int, int]]
    pushes: list[dict[int, Pushed]]
    n_steps: int
    moved: Array
    cut: Array
    n_seeds: int
    lines: list[int] = []
    newest: list[int] = []
    delay: int = 0

    def held_bytes(self, widths: dict[int, Any]) -> int:
        """Return the bytes of caches, newest rows and rows that travel, at most, of rows of these (shape, dtype) by layer."""
        total = sum(self.lines[layer] * (row_bytes(row) + LINE_BYTES) for layer, row in widths.items() if self.lines)
        total += sum(self.newest[layer] * (row_bytes(row) + 8) for layer, row in widths.items() if self.newest)
        travelling = [[own.n_bytes(widths[layer]) for layer, own in each.items() if layer in widths] for each in self.pushes]
        return total + max((sum(sent + self.delay * received for sent, received in each) for each in travelling), default=0)


def of_run(config: argparse.Namespace, part: Shard) -> tuple[Sampled, Sampled | None]:
    """Sample batches of the first epoch, and of an evaluation that samples too, as the run will. Collective."""
    rows: Any = part.rows
    graph, nothing = part.graph, np.zeros((part.graph.n_dst, 1), config.dtype)
    with graph.profile.phase("setup"):
        made = loaders(settings(config), part._replace(rows=rows._replace(features=nothing)), nothing, rows_alone=False)
        found = {name: _sampled(graph, loader, config, name == "scoring") for name, loader in made.items()}
    return found["batches"], found.get("scoring")


def _sampled(graph, loader, config, scores):
    comm = Solo() if config.remote in ("local", "hec") and not scores else graph.comm
    batches, sizes, pushes, start, kind = [], {}, [], _bytes(graph), "scored" if scores else "batch"
    n, n_layers, n_seeds, caches = min(len(loader), MOST), len(config.fanouts), 0, loader.caches
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
    held: dict[str, Any] = {}
    if caches:
        row = (1,), caches.stored_dtype(config.dtype)
        counted -= np.sum([own.n_bytes(row) for each in pushes for own in each.values()], 0, dtype=int)
        arrived = [sum(sum(each[k].received) for each in pushes if k in each) for k in range(n_layers)]
        further = config.epochs * len(loader) - n
        held = {"lines": [min(table.n_lines, round(len(table) + rows / n * further)) for table, rows in zip(caches.tables, arrived)],
                "newest": list(caches.n_newest), "delay": caches.settings.delay}
    n_made = n if n == len(loader) else min(n + loader.sample_ahead, len(loader))
    return Sampled(batches, sizes, pushes, len(loader), counted / n_made, cut, n_seeds, **held)


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

