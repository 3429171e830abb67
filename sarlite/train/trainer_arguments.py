"""Checks of a `Trainer`'s arguments and of its model's output."""

import numpy as np

from sarlite import nn
from sarlite.errors import ConfigError, DataError, ShapeError, check_number
from sarlite.graph.hetero import NodeType
from sarlite.graph.link_graph import LinkGraph
from sarlite.minibatch.batch import Batch
from sarlite.minibatch.loader import Loader
from sarlite.numerics import NUMERICS
from sarlite.numerics.exact_sum import Exact
from sarlite.tape import Tensor
from sarlite.tape.recording import grad_enabled
from sarlite.tape.row_index import selected_rows
from sarlite.tasks.task import Task
from sarlite.tasks.task_losses import Loss
from sarlite.train.step import not_finite


def check_arguments(graph, model, rng, optimizer, schedule, loss, task, clip_norm, sources):
    """Raise a ConfigError if an argument of `Trainer` has the wrong type or does not fit another argument. The arguments are called as in
    `Trainer`, but `sources` is a dict with its arguments `batches` and `scoring`.
    """
    if not callable(model):
        raise ConfigError(f"model is a {type(model).__name__} that cannot be called: a model defines "
                          "__call__(self, graph, h)")
    if not isinstance(rng, nn.Random):
        raise ConfigError(f"rng is a {type(rng).__name__}, but must be the nn.Random that the model was made with")
    for name, function, example in (("optimizer", optimizer, "lambda flat: optim.Adam(flat, 0.01)"),
                                    ("schedule", schedule, "optim.schedule('cosine', epochs)"),
                                    ("loss", loss, "lambda output, targets: ((output - targets) ** 2).mean()")):
        if not callable(function) and not (name == "loss" and loss is None):
            raise ConfigError(f"{name} is {function!r}, but must be a function, such as {example}")
    if task is not None and not isinstance(task, Task):
        raise ConfigError(f"task is {task!r}, but must be a Task, such as NodeTask('multilabel')")
    if task is not None and loss is not None:
        raise ConfigError("loss and task are both given: pass the loss to the task, such as "
                          "NodeTask('classify', loss=function)")
    if clip_norm is not None:
        check_number("clip_norm", clip_norm, positive=True)
    for name, source in sources.items():
        if source is not None and not isinstance(source, (Batch, Loader)):
            raise ConfigError(f"{name} is a {type(source).__name__}, but must be a loader or a Batch")
        if source is not None and not isinstance(graph, source.graph_types):
            types = " or ".join(graph_type.__name__ for graph_type in source.graph_types)
            raise ConfigError(f"{name}: a {type(source).__name__} cannot be used with a {type(graph).__name__}, only with "
                              f"a {types}")
    if getattr(sources["batches"], "temporal", None) and not getattr(sources["scoring"], "temporal", None):
        raise ConfigError("scoring: batches are sampled in time, but the full batch has later edges: pass a loader with "
                          "temporal here, too")
    if isinstance(sources["batches"], Batch) and not sources["batches"].n_global:
        raise ConfigError("batches is a Batch without rows on any rank, so there is nothing to train on")


def check_loaders(graph, rows, sources):
    """Raise an error unless each loader in `sources`, a dict with the Trainer's arguments `batches` and `scoring`, has this `graph`,
    labels, and the Trainer's `rows`: the training rows, or for scoring the rows of all splits, each once. Loaders of links are not
    checked.
    """
    wanted = {"batches": np.sort(rows["train"]), "scoring": np.unique(np.concatenate(list(rows.values())))}
    for name, loader in sources.items():
        if not isinstance(loader, Loader) or isinstance(graph, LinkGraph):  # a loader of links has the graph and rows of their nodes
            continue
        if loader.graph is not graph:
            raise ConfigError(f"{name}: the loader was made from another graph than the Trainer")
        if loader.labels is None:
            raise ConfigError(f"{name}: the loader has no labels")
        if not np.array_equal(np.sort(loader.train), wanted[name]):
            split = "training rows" if name == "batches" else "rows of the splits, each once"
            raise DataError(f"{name}: the loader has {len(loader.train)} rows, which are not the {len(wanted[name])} {split}")


def check_takes(model, x):
    """Raise a ShapeError unless the input rows x have the number of features in the model's attribute `takes`.

    If x is a dict, the number of each node type is checked.
    """
    takes = getattr(model, "takes", None)
    if takes is None or isinstance(takes, dict) != isinstance(x, dict):
        return
    for (name, rows), n in zip(each_x(x), [takes.get(key) for key in x] if isinstance(x, dict) else [takes]):
        if n is not None and rows.shape[1:] != (n,):
            raise ShapeError(f"{name} has shape {rows.shape}, but the model {type(model).__name__} takes {n} features")


def check_numerics(numerics, comm, task, *sources):
    """Raise a ConfigError unless `numerics` is "fast", "exact" or an `Exact`. Exact numerics must be possible with the loss of `task` and
    with `sources`, the sources of batches.

    Exact numerics need a task and batches with an exact version. An `Exact` instance must belong to this communicator.
    """
    if isinstance(numerics, Exact):
        numerics.check_comm(comm)
    elif numerics not in NUMERICS:
        raise ConfigError(f"numerics {numerics!r} is not one of {', '.join(NUMERICS)}")
    if numerics == "fast":
        return
    if not task.exact:
        raise ConfigError("numerics exact: a loss function has no exact version, because a mean over a rank's rows depends on the "
                          "division of the rows")
    for source in sources:
        if getattr(source, "divided", ""):
            raise ConfigError(f"numerics exact: the steps of a loader with {source.divided} depend on the number of "
                              "ranks")


def rows_of(graph, x, labels, task, splits):
    """Return {split: this rank's row numbers} from `splits`, masks or row numbers by split. Raise an error unless the input rows x, the
    labels and the splits fit the graph, and the labels fit the task.
    """
    nodes = getattr(graph, "nodes", graph)  # the rows of a GraphSet or a LinkGraph are graphs or links
    if isinstance(x, dict) and not isinstance(nodes, NodeType):
        raise ConfigError("x is a dict by node type, but graph is not a node type of a HeteroGraph, such as "
                          "graph.of(type)")
    sources = [nodes.graph.of(name) for name in x] if isinstance(x, dict) else [graph]
    inputs = [(name, rows, nodes.n_src) for (name, rows), nodes in zip(each_x(x), sources)]
    for name, array, n in (*inputs, ("labels", labels, graph.n_dst)):
        if array.shape[:1] != (n,):
            raise ShapeError(f"{name} has shape {array.shape}, but the graph has {n} rows")
    for name, rows in each_x(x):
        if rows.dtype.kind not in "fiub":
            raise ShapeError(f"{name} is {rows.dtype}, but features must be numbers, such as x.astype(np.float32)")
        if (error := not_finite(rows, name=name)) is not None:
            raise error
    split_rows = {name: selected_rows(name, split, graph.n_dst) for name, split in splits.items()}
    task.check(labels, split_rows, graph.n_dst)
    return split_rows


def checked_loss(loss: Loss, model: str, n_classes: int) -> Loss:
    """Return a loss function that first checks the model's output, which needs `n_classes` columns, and then returns `loss`. `model` is the
    model's name in errors.
    """

    def share(output, targets, rows, count):
        check_output(output, model, len(targets), n_classes)
        if grad_enabled() and not output.requires_grad:
            raise ConfigError(f"the output of the model {model} does not depend on its parameters: was it detached, or "
                              "made by NumPy?")
        return loss(output, targets, rows, count)

    return share


def check_output(output, model, n_rows, n_classes):
    """Raise an error unless `output` is a Tensor of `n_rows` rows and at least `n_classes` columns. The error names the model `model`."""
    if not isinstance(output, Tensor):
        raise ConfigError(f"the model {model} returned a {type(output).__name__}, but must return a Tensor")
    if output.shape[:1] != (n_rows,):
        raise ShapeError(f"the model {model} returned shape {output.shape}, but the graph has {n_rows} destination "
                         "rows")
    if n_classes and (output.ndim != 2 or output.shape[1] < n_classes):
        needed = f"labels go up to {n_classes - 1}: it needs {n_classes} columns"
        raise ShapeError(f"the model {model} returned shape {output.shape}, but {needed}")


def each_x(x):
    """Yield (name in error messages, Tensor) for the input rows x: one pair, or one for each node type if x is a dict."""
    yield from ((f"x[{name!r}]", rows) for name, rows in x.items()) if isinstance(x, dict) else [("x", x)]
