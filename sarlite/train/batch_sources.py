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
    """Make the batches for training and for scoring that a run's options request. Collective.

    The result is the arguments `batches` and `scoring` of `Trainer`.

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


def _zeros(features, more=0):
    """Return zeros of the shape and dtype of features, with `more` additional columns; for a dict, a dict of zeros by type."""
    if isinstance(features, dict):
        return {name: _zeros(x) for name, x in features.items()}
    return Tensor(np.zeros((len(features), features.shape[1] + more), features.dtype))


def flows(part: Shard, n_layers: int, features: Features) -> dict[str, Batch]:
    """Return two message-flow batches, which contain only rows and edges that their outputs depend on. Collective.

    The batch "batches" computes the training rows, and "scoring" computes the rows of all splits.
    """
    graph, rows = part.graph, part.rows
    splits = [row_numbers(name, getattr(rows, name), graph.n_dst) for name in SPLITS]
    row_numbers_of = {"batches": splits[0], "scoring": np.concatenate(splits)}
    return {name: message_flow(graph, seeds, n_layers, features, rows.labels) for name, seeds in row_numbers_of.items()}


def loaders(run: Any, part: Shard, task: type[Task], features: Any, rows_alone: bool) -> dict[str, Loader]:
    """Make the loader "batches" for training, of rows alone or with neighbours, and "scoring" if evaluation samples. Collective.

    With `rows_alone` the model needs no neighbours, and "batches" is a RowLoader.
    """
    graph, rows, asked = part.graph, part.rows, run.batches
    common = {"batch_size": asked.batch_size, "seed": run.training.seed}
    divided = {"batches": asked.batches} if asked.batches else {}  # else as the loader divides by default
    timed: dict[str, Any] = {"temporal": temporal_of(asked, part)} if asked.temporal else {}
    if rows_alone:
        return {"batches": RowLoader(graph, features, rows.labels, rows.train, **common, **divided)}
    loader = task.make_loader(asked, graph, features, rows.labels, rows.train, **common, **divided, **timed)
    if asked.eval_fanouts is None and not timed:
        return {"batches": loader}
    return {"batches": loader, "scoring": task.make_scoring(asked, graph, loader.x, rows.labels, rows, **common, **timed)}


def temporal_of(asked: Any, part: Shard) -> Temporal:
    """Return the times of a rank's nodes and seeds, and how a loader picks edges that are not later than a seed.

    Parameters
    ----------
    asked : cli.options.MinibatchOptions
        Options whose `temporal` says how edges are picked. With `edge_recency` the unit of recency is one day for dates,
        and 1 for whole numbers.
    part : load.Shard
    """
    nodes_of = getattr(part.graph, "nodes", part.graph)  # the rows of a LinkGraph are links
    nodes = part.times if isinstance(nodes_of, NodeType) else part.times.get(part.target)
    return Temporal(asked.temporal, nodes, part.seed_times, UNITS[part.time_kind or "integers"][0] if asked.edge_recency else None)
