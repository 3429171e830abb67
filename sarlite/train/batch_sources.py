"""Batches for training and scoring: the whole graph, message-flow batches, or the batches of loaders."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from sarlite.comm import together
from sarlite.graph.hetero import NodeType
from sarlite.minibatch import RowLoader, message_flow
from sarlite.minibatch.flow import count_layers
from sarlite.minibatch.temporal import Temporal
from sarlite.tape import Tensor, no_grad
from sarlite.tape.row_index import row_numbers

SPLITS = ("train", "val", "test")
LR_SCALES: dict[str, Callable[[int], float]] = {"none": lambda n: 1.0, "sqrt": math.sqrt, "linear": float}
"""Factors of the learning rate by the number of ranks, for a batch size that grows with it."""


def batches(comm: Any, run: Any, part: Any, task: Any, model: Any, features: Any) -> dict[str, Any]:
    """Return the Trainer's arguments `batches` and `scoring`, as far as a run needs them, by name. Collective.

    Parameters
    ----------
    comm : Communicator
    run : Settings
    part : load.Shard
    task : Task, or its class
        Makes the loader.
    model : callable Module
    features : (n, ...) array
        The model's input rows, without labels.

    Raises
    ------
    ConfigError, DataError
        As of NeighborLoader, RowLoader, or message_flow; message flow of a model that asks for no layers.
    """
    if run.training.mfg:
        more = task.n_more_inputs(run.training, part.n_classes)
        with no_grad():
            n_layers = together(comm, lambda: count_layers(model, part.graph, _zeros(features, more)))
        return flows(part, n_layers, features)
    return loaders(run, part, task, features, hasattr(model, "powers")) if run.batches else {}


def _zeros(features, more=0):
    """Rows like some features, `more` columns wider; of relational data by type."""
    if isinstance(features, dict):
        return {name: _zeros(x) for name, x in features.items()}
    return Tensor(np.zeros((len(features), features.shape[1] + more), features.dtype))


def flows(part: Any, n_layers: int, features: Any) -> dict[str, Any]:
    """Return the message-flow batches of the training rows, and of the rows of all splits. Collective."""
    graph, rows = part.graph, part.rows
    splits = [row_numbers(name, getattr(rows, name), graph.n_dst) for name in SPLITS]
    made = {"batches": splits[0], "scoring": np.concatenate(splits)}
    return {name: message_flow(graph, own, n_layers, features, rows.labels) for name, own in made.items()}


def loaders(run: Any, part: Any, task: Any, features: Any, rows_alone: bool) -> dict[str, Any]:
    """Return the task's loaders of minibatches, or loaders of rows if the model needs no neighbours. Collective."""
    graph, rows, asked = part.graph, part.rows, run.batches
    common = {"batch_size": asked.batch_size, "seed": run.training.seed}
    divided = {"batches": asked.batches} if asked.batches else {}  # else as the loader divides by default
    timed: dict[str, Any] = {"temporal": temporal_of(asked.temporal, part)} if asked.temporal else {}
    if rows_alone:
        return {"batches": RowLoader(graph, features, rows.labels, rows.train, **common, **divided)}
    loader = task.make_loader(asked, graph, features, rows.labels, rows.train, **common, **divided, **timed)
    if asked.eval_fanouts is None and not timed:
        return {"batches": loader}
    return {"batches": loader, "scoring": task.make_scoring(asked, graph, loader.x, rows.labels, rows, **common, **timed)}


def temporal_of(pick: str, part: Any) -> Temporal:
    """Return the times in a run's part, for sampling its batches."""
    nodes_of = getattr(part.graph, "nodes", part.graph)  # of a graph whose rows are links
    nodes = part.times if isinstance(nodes_of, NodeType) else part.times.get(part.target)
    return Temporal(pick, nodes, part.seed_times)
