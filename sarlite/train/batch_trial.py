"""Tiny graphs whose batches have given sizes, for `trial.program`; and some batches of a run, sampled for their counts."""

import argparse
from collections.abc import Iterator, Mapping
from contextlib import closing
from typing import Any, NamedTuple

import numpy as np

from sarlite.comm import Solo
from sarlite.graph.edges import add_self_loops
from sarlite.minibatch.batch import Batch
from sarlite.profile import resident, trim
from sarlite.sar.cost import counts_of_plan
from sarlite.sar.listening import Listening
from sarlite.sar.program import Tape
from sarlite.train.load import Part
from sarlite.train.minibatch import BatchTrainer, loaders

MOST = 16
"""Up to so many batches of the first epoch are sampled."""
_SPLITS = {"train": 40, "val": 6, "test": 5}
_FALL, _MORE = 12, 12  # rows that a level has less than the one before, and rows of a level that have more in-edges


class Sampled(NamedTuple):
    """Batches of a run's first epoch on one rank.

    Attributes
    ----------
    batches : list of (dict of PartCounts, dict of str to int)
        Of each the exchanges of its layers, by "batch" and layer, and its sizes.
    sizes : list of dict
        Of each (n_src, n_dst, n_edges) of all ranks, by "batch" and layer.
    n_steps : int
        Steps an epoch.
    moved : (float, float)
        Bytes that sampling sent and received, a step.
    ahead : int
        Further batches that are there beside the one in use.
    """

    batches: list[Any]
    sizes: list[dict[Any, tuple[int, int, int]]]
    n_steps: int
    moved: tuple[float, float]
    ahead: int


def rows_of(layer: int) -> str:
    """Return the name of the size that the source rows of a layer are."""
    return f"batch rows {layer}"


def edges_of(layer: int) -> str:
    """Return the name of the size that a layer's picks are."""
    return f"batch edges {layer}"


def sizes(n_layers: int, loops: bool) -> list[dict[str, int]]:
    """Return the sizes of tiny graphs: one, then each size grown alone, and a check. Training rows are the seeds of the one step."""
    first, levels = dict(_SPLITS, train=_SPLITS["train"] + _FALL * n_layers), []
    for level in range(n_layers + 1):
        levels.append(first["train"] - _FALL * level)
    for layer in range(n_layers):
        first[rows_of(layer)] = sum(levels[: n_layers - layer + 1])
        first[edges_of(layer)] = sum((1 + loops) * n + _MORE for n in levels[: n_layers - layer])
    n_rows = sum(levels) + first["val"] + first["test"] + 9
    first = {"rows": n_rows, "edges": 3 * sum(levels) + loops * n_rows + 150, **first}
    return [first, *({**first, name: n + 3} for name, n in first.items()), {name: n + k % 3 for k, (name, n) in enumerate(first.items())}]


def options(config: argparse.Namespace) -> dict[str, Any]:
    """Return the options of a run on a tiny graph: two picks a row, unless all edges are taken."""
    full = all(k < 0 for k in config.fanouts)
    return {"batch_size": 1 << 30, "fanouts": (-1 if full else 2,) * len(config.fanouts), "sampler": "full" if full else "uniform",
            "sample_ahead": 0}


def edges(n_rows: int, n_edges: int, train: int, others: int, at: Mapping[str, int], fanouts: Any, loops: bool) -> Any:
    """Return (indptr, indices, added loops) of a part whose batch of the training rows has the sizes `at`.

    Rows stand by how many layers they are away, but for the other splits' behind the training rows. All in-edges of a row are from one
    row of the next level, so that what is picked does not decide what is reached; some rows have more of them than are picked.
    """
    n_layers, most = len(at) // 2, 2 if fanouts[0] < 0 else 3
    counts = np.diff([0, train, *(at[rows_of(layer)] for layer in reversed(range(n_layers)))])
    picks = np.diff([0, *(at[edges_of(layer)] for layer in reversed(range(n_layers)))])
    starts = np.concatenate([[0], np.cumsum(counts)])
    starts[1:] += others
    degrees, sources = np.zeros(n_rows, np.int64), []
    for level in range(n_layers):
        n, start = int(counts[level]), 0 if level == 0 else int(starts[level])
        own = np.ones(n, np.int64)
        own[: picks[level] - (1 + loops) * n] = most
        degrees[start : start + n] = own
        sources.append(np.repeat(starts[level + 1] + np.arange(n) * counts[level + 1] // n, own))
        if level == 0:
            sources.append(np.empty(0, np.int64))
    rest = n_edges - sum(map(len, sources)) - loops * n_rows
    degrees[-1] = rest
    indptr, indices = np.concatenate([[0], np.cumsum(degrees)]), np.concatenate([*sources, np.zeros(rest, np.int64)])
    return add_self_loops(indptr, indices, 0) if loops else (indptr, indices, None)


class _Named:
    """A loader whose batches' layers tell what they aggregate, and whose input rows are recorded."""

    def __init__(self, loader, tape, mode, told):
        self._loader, self._told = loader, (tape, mode, told)

    def __len__(self):
        return len(self._loader)

    def __setattr__(self, name, value):
        setattr(self._loader, name, value) if name == "step" else super().__setattr__(name, value)

    def __iter__(self) -> Iterator[Batch]:
        tape, mode, told = self._told
        for batch in self._loader:
            batch.buffers = tape.recorder.beside()
            for layer, graph in enumerate(batch.layers(len(told))):
                mode.named[id(graph.plan)] = ("batch", layer), rows_of(layer), (edges_of(layer),)
                graph.all_sizes = told["batch", layer]
            yield batch
            del batch


def listen(tape: Tape, trainer: BatchTrainer, mode: Listening, told: Mapping[tuple[str, int], tuple[int, int, int]]) -> None:
    """Let the layers of a tiny trainer's batches tell what they aggregate, with a batch's sizes where an order of products is chosen."""
    trainer.loader = _Named(trainer.loader, tape, mode, told)


def of_run(config: argparse.Namespace, part: Part) -> tuple[Sampled, int]:
    """Sample batches of the first epoch as the run will; return them, and what the loader takes of memory. Collective."""
    trim()
    there = resident()
    rows: Any = part.rows
    graph, nothing = part.graph, np.empty((part.graph.n_dst, 0), config.dtype)
    with graph.profile.phase("setup"):
        loader = loaders(config, part._replace(rows=rows._replace(features=nothing)), nothing)["loader"]
        comm = Solo() if config.remote == "local" else graph.comm
        before, batches, of_all = _bytes(graph), [], []
        n, n_layers = min(len(loader), MOST), len(config.fanouts)
        with closing(iter(loader)) as made:
            for _ in range(n):
                batch = next(made)
                layers: Any = batch.layers(n_layers)
                counts = {("batch", k): counts_of_plan(comm, g.plan, [(g.n_dst, g.n_edges)]) for k, g in enumerate(layers)}
                own = {rows_of(k): g.n_src for k, g in enumerate(layers)} | {edges_of(k): g.n_edges for k, g in enumerate(layers)}
                batches.append((counts, {**own, "train": batch.n_dst}))
                of_all.append({("batch", k): g.sizes for k, g in enumerate(layers)})
                del batch, layers
    n_made = min(n + loader.sample_ahead, len(loader))
    moved = tuple((b - a) / n_made for a, b in zip(before, _bytes(graph)))
    return Sampled(batches, of_all, len(loader), moved, loader.sample_ahead), max(0, resident() - there)  # with what sampling keeps free


def _bytes(graph):
    return graph.profile.sent_bytes["setup"], graph.profile.received_bytes["setup"]
