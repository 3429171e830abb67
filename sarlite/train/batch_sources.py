"""Batches of a run, for training and scoring: the whole graph, message-flow batches, or the batches of loaders."""

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from sarlite.comm import Communicator, together
from sarlite.graph.hetero import NodeType
from sarlite.minibatch import RowLoader, message_flow
from sarlite.minibatch.batch import Batch, Features
from sarlite.minibatch.flow import count_layers
from sarlite.minibatch.loader import Loader
from sarlite.minibatch.temporal import Temporal
from sarlite.tape import Tensor, no_grad
from sarlite.tape.row_index import row_numbers
from sarlite.tasks.task import Task
from sarlite.train.load import Shard

SPLITS = ("train", "val", "test")
UNITS = {"dates": (86_400e9, "days"), "integers": (1.0, "units of time")}
"""Unit of recency by the kind of times, in the unit in which the times are kept, and its name."""
LR_SCALES: dict[str, Callable[[int], float]] = {"none": lambda n: 1.0, "sqrt": math.sqrt, "linear": float}
"""Functions from the number of ranks to a factor of the learning rate, for a batch size that grows with the ranks."""


def batches(comm: Communicator, run: Any, part: Shard, task: type[Task], model: Callable[..., Tensor],
            features: Features) -> Mapping[str, Batch | Loader]:
    """Make the batches or loaders that a run's options ask for, as a dict with the arguments `batches` and `scoring` of `Trainer`; {} for
    training on the full graph. `part` is this rank's data, and `features` are the model's input rows. Collective.

    Parameters
    ----------
    comm : Communicator
    run : cli.settings.Settings
    part : load.Shard
    task : Task, or its class
        Its `make_loader` makes the loader.
    model : callable Module
    features : (n, ...) array, or dict of arrays by node type
        The model's input rows, without label columns.

    Returns
    -------
    dict
        Keyword arguments; empty for full-batch training.

    Raises
    ------
    ConfigError, DataError
        On every rank, as NeighborLoader, RowLoader or message_flow. Or the run needs message-flow batches, and the model
        does not ask the graph for layers.
    """
    if run.training.mfg:
        more = task.n_more_inputs(run.training, part.n_classes)
        with no_grad():
            n_layers = together(comm, lambda: count_layers(model, part.graph, _zeros(features, more)))
        return flows(part, n_layers, features)
    return loaders(run, part, task, features, hasattr(model, "powers")) if run.batches else {}


def _zeros(features: Any, n_more_columns: int = 0) -> Any:
    """Return a Tensor of zeros with the shape of `features` and `n_more_columns` more columns. For a dict of arrays return a dict of
    Tensors, without more columns.
    """
    if isinstance(features, dict):
        return {name: _zeros(x) for name, x in features.items()}
    return Tensor(np.zeros((len(features), features.shape[1] + n_more_columns), features.dtype))


def flows(part: Shard, n_layers: int, features: Features) -> dict[str, Batch]:
    """Return {"batches": a message-flow batch for the training rows, "scoring": one for the rows of all splits}, for a model with
    `n_layers` layers on the input rows `features`. A message-flow batch has only the rows and edges that its outputs depend on. Collective.
    """
    graph, rows = part.graph, part.rows
    splits = [row_numbers(name, getattr(rows, name), graph.n_dst) for name in SPLITS]
    row_numbers_of = {"batches": splits[0], "scoring": np.concatenate(splits)}
    return {name: message_flow(graph, seeds, n_layers, features, rows.labels) for name, seeds in row_numbers_of.items()}


def loaders(run: Any, part: Shard, task: type[Task], features: Any, rows_alone: bool) -> dict[str, Loader]:
    """Return {"batches": loader of training batches} and, if the run samples neighbours in evaluation, too, "scoring": a loader of
    evaluation batches. If `rows_alone`, training batches have rows without neighbours (`RowLoader`). Collective.
    """
    graph, rows, minibatch = part.graph, part.rows, run.batches
    common = {"batch_size": minibatch.batch_size, "seed": run.training.seed}
    divided = {"batches": minibatch.batches} if minibatch.batches else {}  # else as the loader divides by default
    timed: dict[str, Any] = {"temporal": temporal_of(minibatch, part)} if minibatch.temporal else {}
    if rows_alone:
        return {"batches": RowLoader(graph, features, rows.labels, rows.train, **common, **divided)}
    loader = task.make_loader(minibatch, graph, features, rows.labels, rows.train, **common, **divided, **timed)
    if minibatch.eval_fanouts is None and not timed:
        return {"batches": loader}
    return {"batches": loader, "scoring": task.make_scoring(minibatch, graph, loader.x, rows.labels, rows, **common, **timed)}


def temporal_of(minibatch: Any, part: Shard) -> Temporal:
    """Return a `Temporal`, the options of a loader that samples edges in time: the times of the nodes and seeds in this rank's data `part`,
    and how to pick among earlier edges, by the run's options `minibatch`.

    No picked edge is later than the seed.

    Parameters
    ----------
    minibatch : cli.options.MinibatchOptions
        Options whose `temporal` says how edges are picked. With `edge_recency` the unit of recency is one day for dates,
        and 1 for whole numbers.
    part : load.Shard
    """
    nodes_of = getattr(part.graph, "nodes", part.graph)  # the rows of a LinkGraph are links
    nodes = part.times if isinstance(nodes_of, NodeType) else part.times.get(part.target)
    return Temporal(minibatch.temporal, nodes, part.seed_times, UNITS[part.time_kind or "integers"][0] if minibatch.edge_recency else None)
