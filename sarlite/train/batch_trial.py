"""Tiny graphs whose batches have given sizes, for `trial.program`; and some batches of a run, sampled for their counts."""

import argparse
import weakref
from collections.abc import Iterator, Mapping
from contextlib import closing
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from sarlite.comm import Solo
from sarlite.graph.edges import add_self_loops
from sarlite.minibatch.batch import Batch
from sarlite.profile import resident, trim
from sarlite.sar.cost import counts_of_plan
from sarlite.sar.listening import Listening
from sarlite.sar.program import Tape
from sarlite.tape import Tensor
from sarlite.train import cached_trial
from sarlite.train.facts import Facts
from sarlite.train.load import Part
from sarlite.train.minibatch import loaders
from sarlite.types import Array

MOST = 16
"""Up to so many batches of the first epoch are sampled."""
_SPLITS = {"train": 40, "val": 6, "test": 5}
_JOINED = 14  # rows that a cache adds; with up to 5 layers no grown size passes a multiple of 128, the rows of a part of a product
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
    moved : (2,) float64
        Bytes that sampling sent and received, a step.
    cut : (2,) int64
        Bytes sent and received where the epoch's seeds were cut.
    ahead : int
        Further batches that are there beside the one in use.
    held : cached_trial.Held, or None
        Of caches of embeddings.
    """

    batches: list[Any]
    sizes: list[dict[Any, tuple[int, int, int]]]
    n_steps: int
    moved: Array
    cut: Array
    ahead: int
    held: cached_trial.Held | None = None


def rows_of(layer: int) -> str:
    """Return the name of the size that the source rows of a layer are."""
    return f"batch rows {layer}"


def joined_of(layer: int) -> str:
    """Return the name of the size that the source rows of a layer are with those from a cache."""
    return f"batch joined {layer}"


def edges_of(layer: int) -> str:
    """Return the name of the size that a layer's picks are."""
    return f"batch edges {layer}"


def sizes(n_layers: int, loops: bool, cached: bool) -> list[dict[str, int]]:
    """Return the sizes of tiny graphs: one, then each size grown alone, and a check. Training rows are the seeds of the one step.

    With `cached` layers the rows that caches have are sizes more.
    """
    first, levels = dict(_SPLITS, train=_SPLITS["train"] + _FALL * n_layers), []
    for level in range(n_layers + 1):
        levels.append(first["train"] - _FALL * level)
    for layer in range(n_layers):
        first[rows_of(layer)] = sum(levels[: n_layers - layer + 1])
        first[edges_of(layer)] = sum((1 + loops) * n + _MORE for n in levels[: n_layers - layer])
        if cached:
            first[joined_of(layer)] = first[rows_of(layer)] + _JOINED
    n_rows = sum(levels) + first["val"] + first["test"] + 9
    first = {"rows": n_rows, "edges": 3 * sum(levels) + loops * n_rows + 150, **first}
    return [first, *({**first, name: n + 3} for name, n in first.items()), {name: n + k % 3 for k, (name, n) in enumerate(first.items())}]


def options(config: argparse.Namespace) -> dict[str, Any]:
    """Return the options of a run on a tiny graph: two picks a row, unless all edges are taken."""
    full = all(k < 0 for k in config.fanouts)
    fanouts = (-1 if full else 2,) * len(config.fanouts)
    return {"batch_size": 1 << 30, "fanouts": fanouts, "sampler": "full" if full else "uniform", "sample_ahead": 0,
            "eval_fanouts": fanouts if config.eval_fanouts else None, "remote": "local" if config.remote == "hec" else config.remote}


def edges(n_rows: int, n_edges: int, train: int, others: int, at: Mapping[str, int], fanouts: Any, loops: bool) -> Any:
    """Return (indptr, indices, added loops) of a part whose batch of the training rows has the sizes `at`.

    Rows stand by how many layers they are away, but for the other splits' behind the training rows. All in-edges of a row are from one
    row of the next level, so that what is picked does not decide what is reached; some rows have more of them than are picked.
    """
    at = {name: n for name, n in at.items() if not name.startswith("batch joined")}
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
    """A loader whose batches' layers tell what they aggregate, and whose input rows are recorded; `cached` ones as they are entered."""

    sampled = True

    def __init__(self, loader, tape, mode, told, cached=False):
        self._loader, self._told = loader, (tape, mode, told, cached)

    def __len__(self):
        return len(self._loader)

    def __setattr__(self, name, value):
        setattr(self._loader, name, value) if name == "step" else super().__setattr__(name, value)

    def __iter__(self) -> Iterator[Batch]:
        tape, mode, told, cached = self._told

        def name(graph, layer):
            mode.named[id(graph.plan)] = ("batch", layer), (joined_of if cached else rows_of)(layer), (edges_of(layer),)
            graph.all_sizes = told["batch", layer]

        def enter(graph, layer, h):
            found = type(graph()).enter(graph(), h)
            name(found[0], layer)
            return found

        batches = iter(self._loader)
        while True:
            with tape.profile.phase("alltoall"):  # what a tiny batch's sampling sends is no size of the run's
                batch = next(batches, None)
            if batch is None:
                return
            batch.buffers = tape.recorder.beside()
            for layer, graph in enumerate(batch.layers(len(told))):
                if cached:
                    graph.enter = partial(enter, weakref.ref(graph), layer)
                else:
                    name(graph, layer)
                del graph
            yield batch
            del batch


def listen(tape: Tape, trainer: Any, mode: Listening, facts: Facts, at: Mapping[str, int]) -> None:
    """Let the layers of a tiny trainer's batches tell what they aggregate, with a batch's sizes where an order of products is chosen.

    `at` are the tiny graph's sizes.
    """
    loader = trainer.batches
    if facts.kept is not None:
        n_halo = [at[joined_of(k)] - at[rows_of(k)] for k in range(len(loader.sampler.fanouts))]
        loader.sampler = cached_trial.WithHalo(loader.sampler, n_halo)
        loader.historical = cached_trial.Caches(tape.recorder, loader.x if facts.kept else None)
    trainer.batches = _Named(loader, tape, mode, facts.batch, facts.kept is not None)
    if trainer.scoring.sampled:
        trainer.scoring = _Named(trainer.scoring, tape, mode, facts.scored)


def of_run(config: argparse.Namespace, part: Part) -> tuple[Sampled, Sampled | None, int]:
    """Sample batches of the first epoch, and of an evaluation that samples too, as the run will. Collective.

    Returns
    -------
    sampled, scored : Sampled
        `scored` is None of an exact evaluation.
    grown : int
        What the loaders take of memory.
    """
    trim()
    there = resident()
    rows: Any = part.rows
    graph, nothing = part.graph, np.zeros((part.graph.n_dst, 1), config.dtype)
    with graph.profile.phase("setup"):
        made = loaders(config, part._replace(rows=rows._replace(features=nothing)), nothing, False)
        found = {name: _sampled(graph, loader, config, name == "scoring") for name, loader in made.items()}
    return found["batches"], found.get("scoring"), max(0, resident() - there)  # with what sampling keeps free


def _sampled(graph, loader, config, scores):
    comm = Solo() if config.remote in ("local", "hec") and not scores else graph.comm
    batches, of_all, pushes, start = [], [], [], _bytes(graph)
    n, n_layers, none = min(len(loader), MOST), len(config.fanouts), {"val": 0, "test": 0} if scores else {}
    loader.seeds(0)
    cut = _bytes(graph) - start
    with closing(iter(loader)) as made:
        for _ in range(n):
            batch = next(made)
            layers: Any = batch.layers(n_layers)
            own, counts = {rows_of(k): g.n_src for k, g in enumerate(layers)}, {}
            if loader.historical:
                sources = [g.n_src for g in layers]
                layers = [_entered(g, batch, k) for k, g in enumerate(layers)]
                own |= {joined_of(k): g.n_src for k, g in enumerate(layers)}
                counts = cached_trial.pushed(graph.comm, loader.historical, sources)
                pushes.append(counts)
            own |= {edges_of(k): g.n_edges for k, g in enumerate(layers)}
            counts = counts | {("batch", k): counts_of_plan(comm, g.plan, [(g.n_dst, g.n_edges)]) for k, g in enumerate(layers)}
            batches.append((counts, {**own, "train": batch.n_dst, **none}))
            of_all.append({("batch", k): g.sizes for k, g in enumerate(layers)})
            del batch, layers
    loader.drain()
    moved, held = _bytes(graph) - start, None
    if loader.historical:
        shape, dtype = (1,), np.dtype(config.dtype)
        moved -= np.sum([own.n_bytes(shape, dtype) for each in pushes for own in each.values()], 0, dtype=int)
        received = [sum(sum(each["pushed", k].received) for each in pushes if ("pushed", k) in each) for k in range(n_layers)]
        held = cached_trial.held(loader.historical, received, n, config.epochs * len(loader))
    n_made = n if n == len(loader) else min(n + loader.sample_ahead, len(loader))
    return Sampled(batches, of_all, len(loader), (moved - cut) / n_made, cut, loader.sample_ahead, held)


def _entered(graph, batch, layer):
    """The graph of a layer with the rows that its cache has, as in training."""
    return graph.enter(batch.x if layer == 0 else Tensor(np.zeros((graph.n_src, 1), batch.x.dtype)))[0]


def _bytes(graph):
    return np.array([graph.profile.sent_bytes["setup"], graph.profile.received_bytes["setup"]])
