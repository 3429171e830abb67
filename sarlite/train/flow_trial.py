"""Tiny graphs whose message-flow graphs have given sizes, for `trial.program`; and the flow graphs of a run, for their counts."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from sarlite.minibatch.batch import LayerGraph
from sarlite.sar.cost import PartCounts, counts_of_plan
from sarlite.sar.listening import Listening
from sarlite.sar.program import Tape
from sarlite.train.load import Part
from sarlite.train.minibatch import flows
from sarlite.types import Array

NAMES = "training", "scoring"
_SPLITS = {"train": 8, "val": 6, "test": 5}
_LEVEL_ROWS, _LEVEL_EDGES = 13, 40  # more than sizes grow by


def rows_of(name: str, layer: int) -> str:
    """Return the name of the size that the source rows of a layer are."""
    return f"{name} rows {layer}"


def edges_of(name: str, layer: int) -> str:
    """Return the name of the size that a layer's edges are."""
    return f"{name} edges {layer}"


def sizes(n_layers: int) -> list[dict[str, int]]:
    """Return the sizes of tiny graphs: one, then each size grown alone, and a check."""
    first, seeds = dict(_SPLITS), (_SPLITS["train"], sum(_SPLITS.values()))
    for factor, name in enumerate(NAMES, 1):
        for layer in range(n_layers):
            first[rows_of(name, layer)] = seeds[factor - 1] + factor * (n_layers - layer) * _LEVEL_ROWS
            first[edges_of(name, layer)] = factor * (n_layers - layer) * _LEVEL_EDGES
    first = {"rows": first[rows_of(NAMES[1], 0)] + 7, "edges": first[edges_of(NAMES[1], 0)] + 9, **first}
    return [first, *({**first, name: n + 3} for name, n in first.items()), {name: n + k % 4 for k, (name, n) in enumerate(first.items())}]


def edges(n_rows: int, n_edges: int, n_train: int, n_others: int, at: Mapping[str, int]) -> tuple[Array, Array]:
    """Return (indptr, indices) of a part whose message-flow graphs have the sizes `at`, of training rows that come first, then others.

    Rows stand by how many layers they are away: a layer's further rows, and their in-edges, are those that it has more than the next.
    """
    n_layers = len(at) // 4
    counts, in_edges = [], []
    for k, seeds in enumerate((n_train, n_train + n_others)):
        rows = np.array([seeds, *(at[rows_of(NAMES[k], layer)] for layer in reversed(range(n_layers)))])
        found = np.array([0, *(at[edges_of(NAMES[k], layer)] for layer in reversed(range(n_layers)))])
        counts.append(np.diff(rows, prepend=0))
        in_edges.append(np.diff(found))
    counts[1], in_edges[1] = counts[1] - counts[0], in_edges[1] - in_edges[0]
    starts = np.concatenate([[0], np.cumsum(np.stack(counts, 1))])
    degrees, sources = np.zeros(n_rows, np.int64), []
    for level in range(n_layers):
        for k in range(2):
            place, n = 2 * level + k, int(in_edges[k][level])
            degrees[starts[place] : starts[place + 1]] = np.diff(np.arange(counts[k][level] + 1) * n // counts[k][level])
            sources.append(starts[place + 2] + np.arange(n) * counts[k][level + 1] // n)
    rest = n_edges - sum(map(len, sources))  # which reach no seed
    degrees[-1] = rest
    return np.concatenate([[0], np.cumsum(degrees)]), np.concatenate([*sources, np.arange(rest) % n_rows])


def listen(tape: Tape, trainer: Any, mode: Listening, told: Mapping[tuple[str, int], tuple[int, int, int]]) -> None:
    """Let the layers of a tiny trainer tell what they aggregate, with the sizes of the run's where an order of products is chosen."""
    for name, flow in zip(NAMES, (trainer.batches.batch, trainer.scoring.batch)):
        flow.buffers = tape.recorder.beside()  # type: ignore[assignment]
        for layer, graph in enumerate(flow.graphs):
            mode.named[id(graph.plan)] = (name, layer), rows_of(name, layer), (edges_of(name, layer),)
            graph.all_sizes = told[name, layer]  # type: ignore[attr-defined]


def of_trainer(trainer: Any) -> dict[str, list[LayerGraph]]:
    """Return the layers of a trainer's message-flow graphs."""
    return {name: flow.graphs for name, flow in zip(NAMES, (trainer.batches.batch, trainer.scoring.batch))}  # type: ignore[misc]


def of_run(part: Part, n_layers: int) -> dict[str, list[LayerGraph]]:
    """Return the layers of the message-flow graphs that a run trains and scores on. Collective."""
    rows: Any = part.rows
    found = flows(part, n_layers, rows.features)
    return {name: flow.layers(n_layers) for name, flow in zip(NAMES, found.values())}  # type: ignore[misc]


def of_all_ranks(found: Mapping[str, list[LayerGraph]]) -> dict[tuple[str, int], tuple[int, int, int]]:
    """Return what `Facts.flows` is of the run's message-flow graphs."""
    return {(name, layer): graph.sizes for name, graphs in found.items() for layer, graph in enumerate(graphs)}


def counts_of(found: Mapping[str, list[LayerGraph]]) -> dict[Any, PartCounts]:
    """Return the `PartCounts` of each layer, as `listen` names them. Collective."""
    return {(name, layer): counts_of_plan(graph.comm, graph.plan, [(graph.n_dst, graph.n_edges)])
            for name, graphs in found.items() for layer, graph in enumerate(graphs)}


def sizes_of(found: Mapping[str, list[LayerGraph]]) -> dict[str, int]:
    """Return this rank's source rows and edges of each layer, by their names."""
    of: dict[str, int] = {}
    for name, graphs in found.items():
        for layer, graph in enumerate(graphs):
            of |= {rows_of(name, layer): graph.n_src, edges_of(name, layer): graph.n_edges}
    return of
