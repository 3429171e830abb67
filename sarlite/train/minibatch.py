"""What a run trains and scores on, by its options: the whole graph, message-flow batches, or the batches of loaders."""

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from sarlite.comm import together
from sarlite.errors import ConfigError
from sarlite.minibatch import HEC, NeighborLoader, RowLoader, message_flow
from sarlite.minibatch.flow import count_layers
from sarlite.sar.graph.graph import Graph
from sarlite.tape import Tensor, no_grad
from sarlite.tape.rows import row_numbers
from sarlite.train.config import HEC_OPTIONS, MINIBATCH_OPTIONS

SPLITS = ("train", "val", "test")
LR_SCALES: dict[str, Callable[[int], float]] = {"none": lambda n: 1.0, "sqrt": math.sqrt, "linear": float}
"""Factors of the learning rate by the number of ranks, for a batch size that grows with it."""


def remote(options: Mapping[str, Any]) -> Any:
    """Return what NeighborLoader takes as `remote`, of the command's options.

    Raises
    ------
    ConfigError
        What `HEC` refuses.
    """
    if options.get("remote") != "hec":
        return options.get("remote") or "exact"
    return HEC(**{name: options[option] for option, name in HEC_OPTIONS.items() if options.get(option) is not None})


_OF_ROWS = ("batches", "lr_scale")


def check(config, cls):
    """Raise ConfigError where options of minibatches do not go with the model's class: one that has `powers` samples
    nothing.

    Parameters
    ----------
    config : Namespace of `config.OPTIONS`
    cls : class
    """
    if not config.batch_size:
        return
    if not hasattr(cls, "powers"):
        if config.fanouts is None:
            raise ConfigError("--batch-size needs --fanouts: the in-edges picked a row, one number a layer")
        return
    for name in MINIBATCH_OPTIONS:
        if name not in _OF_ROWS and getattr(config, name) is not None:
            flag = "--" + name.replace("_", "-")
            raise ConfigError(f"{flag}: the model {config.model} needs no neighbours in training, so nothing is "
                              "sampled")


def batches(comm, config, part, model, features):
    """Return what a Trainer goes over, by its arguments' names: nothing, or `batches` and maybe `scoring`. Collective.

    Parameters
    ----------
    comm : Communicator
    config : Namespace of `config.OPTIONS`
    part : load.Part
    model : callable Module
    features : (n, ...) array
        The model's input rows, without labels.

    Raises
    ------
    ConfigError, DataError
        As of NeighborLoader, RowLoader, or message_flow; --mfg of a relational graph, or of a model that asks for no
        layers.
    """
    if config.mfg:
        if not isinstance(part.graph, Graph):
            raise ConfigError(f"message flow is over a Graph, but graph is a {type(part.graph).__name__}")
        shape = len(features), features.shape[1] + (part.n_classes if config.label_inputs else 0)
        with no_grad():
            n_layers = together(comm, lambda: count_layers(model, part.graph, Tensor(np.zeros(shape, features.dtype))))
        return flows(part, n_layers, features)
    return loaders(config, part, features, hasattr(model, "powers")) if config.batch_size else {}


def flows(part, n_layers, features):
    """Return the message-flow batches of the training rows, and of the rows of all splits. Collective."""
    graph, rows = part.graph, part.rows
    splits = [row_numbers(name, getattr(rows, name), graph.n_dst) for name in SPLITS]
    made = {"batches": splits[0], "scoring": np.concatenate(splits)}
    return {name: message_flow(graph, own, n_layers, features, rows.labels) for name, own in made.items()}


def loaders(config, part, features, rows_alone):
    """Return the loaders of minibatches; of rows alone where the model needs no neighbours. Collective."""
    graph, rows, common = part.graph, part.rows, {"batch_size": config.batch_size, "seed": config.seed}
    own = {name: getattr(config, name) for name in ("sampler", "sample_ahead", "batches")}
    own = {name: value for name, value in own.items() if value is not None}
    if rows_alone:
        return {"batches": RowLoader(graph, features, rows.labels, rows.train, **common, **own)}
    loader = NeighborLoader(graph, rows.features, rows.labels, rows.train, fanouts=config.fanouts,
                            remote=remote(vars(config)), **common, **own)
    if config.eval_fanouts is None:
        return {"batches": loader}
    scored = sum(np.asarray(getattr(rows, name)) for name in SPLITS) > 0
    scoring = NeighborLoader(graph, loader.x, rows.labels, scored, fanouts=config.eval_fanouts, **common)
    return {"batches": loader, "scoring": scoring}
