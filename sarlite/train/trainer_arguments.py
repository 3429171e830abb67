"""What a `Trainer` is given, and what its model returns, checked."""

from sarlite import nn
from sarlite.errors import ConfigError, ShapeError, number
from sarlite.minibatch.batch import Batch
from sarlite.minibatch.graphs import GraphLoader
from sarlite.minibatch.loader import Loader
from sarlite.numerics import NUMERICS
from sarlite.numerics.exact_sum import Exact
from sarlite.sar.graph.graph_set import GraphSet
from sarlite.sar.graph.hetero import NodeType
from sarlite.sar.graph.link_graph import LinkGraph
from sarlite.tape import Tensor
from sarlite.tape.recording import grad_enabled
from sarlite.tape.row_index import row_numbers
from sarlite.train.label_inputs import LabelInputs
from sarlite.train.link_loader import LinkLoader
from sarlite.train.step import Loss, not_finite
from sarlite.train.tasks import Task


def check_arguments(graph, model, x, rng, optimizer, schedule, task, clip_norm, numerics, others):
    """Raise a ConfigError that names an argument of another kind than `Trainer` takes, or that goes with no other."""
    loss, sources = others["loss"], {name: others[name] for name in ("batches", "scoring")}
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
        raise ConfigError(f"task is {task!r}, but must be a Task, such as Task('multilabel')")
    if task is not None and loss is not None:
        raise ConfigError("loss and task: one of them says what is minimised; give a Task a loss by its name")
    if clip_norm is not None:
        number("clip_norm", clip_norm, positive=True)
    for name, source in sources.items():
        if source is not None and not isinstance(source, (Batch, Loader)):
            raise ConfigError(f"{name} is a {type(source).__name__}, but must be a loader or a Batch")
        if source is not None and isinstance(source, GraphLoader) != isinstance(graph, GraphSet):
            raise ConfigError(f"{name}: a {type(source).__name__} does not go with a {type(graph).__name__}: a "
                              "GraphLoader is of a GraphSet")
    if isinstance(others["batches"], Batch) and not others["batches"].n_global:
        raise ConfigError("batches is a Batch of no rows on any rank, so there is nothing to train on")
    if isinstance(graph, GraphSet) and others["label_inputs"] is not None:
        raise ConfigError("label_inputs are of nodes, but graph is a GraphSet")
    _check_links(graph, task, others)
    _check_label_inputs(others["label_inputs"], task, model, x)
    _check_numerics(numerics, loss, *sources.values())


def _check_links(graph, task, others):
    if isinstance(graph, LinkGraph):
        if graph.n_candidates > 1 and (task is None or task.name != "link") and others["loss"] is None:
            raise ConfigError("graph is a LinkGraph of links and negatives, so the task must be Task('link'), or the "
                              "loss your own")
        if task is not None and task.name == "link":
            task.check_candidates(graph.n_candidates)
        for name in ("scoring", "label_inputs"):
            if others[name] is not None:
                raise ConfigError(f"{name}: of links it is not done yet")
        if others["batches"] is not None and not isinstance(others["batches"], LinkLoader):
            raise ConfigError(f"batches is a {type(others['batches']).__name__}, but of links a LinkLoader")
    elif task is not None and task.name == "link":
        raise ConfigError("task link is of a LinkGraph, as split_links makes it, but graph is a "
                          f"{type(graph).__name__}")


def check_takes(model, x):
    """Raise a ShapeError where x has not as many features as the model `takes`, if it says so; by node type as x."""
    takes = getattr(model, "takes", None)
    if takes is None or isinstance(takes, dict) != isinstance(x, dict):
        return
    for (name, rows), n in zip(each_x(x), [takes.get(key) for key in x] if isinstance(x, dict) else [takes]):
        if n is not None and rows.shape[1:] != (n,):
            raise ShapeError(f"{name} has shape {rows.shape}, but the model {type(model).__name__} takes {n} features")


def _check_numerics(numerics, loss, *sources):
    """Raise a ConfigError of another numerics, or where a loss or a source of batches is not exact."""
    if numerics not in NUMERICS and not isinstance(numerics, Exact):
        raise ConfigError(f"numerics {numerics!r} is not one of {', '.join(NUMERICS)}")
    if numerics == "fast":
        return
    if loss is not None:
        raise ConfigError("numerics exact: loss is not exact yet: a mean over a rank's rows depends on how these are "
                          "divided")
    for source in sources:
        if getattr(source, "divided", ""):
            raise ConfigError(f"numerics exact: a loader with {source.divided} has other steps on other numbers of "
                              "ranks")


def rows_of(graph, x, labels, task, splits):
    """Return the row numbers of each split; raise where x, labels or a split do not fit the graph, or the task."""
    nodes = graph.nodes if isinstance(graph, LinkGraph) else graph
    if isinstance(x, dict) and not isinstance(nodes, NodeType):
        raise ConfigError("x is a dict by node type, but graph is no node type of a HeteroGraph, as graph.of(type) "
                          "gives it")
    sources = [nodes.graph.of(name) for name in x] if isinstance(x, dict) else [graph]
    inputs = [(name, rows, nodes.n_src) for (name, rows), nodes in zip(each_x(x), sources)]
    for name, given, n in (*inputs, ("labels", labels, graph.n_dst)):
        if given.shape[:1] != (n,):
            raise ShapeError(f"{name} of shape {given.shape} has not the graph's {n} rows")
    for name, rows in each_x(x):
        if rows.dtype.kind not in "fiub":
            raise ShapeError(f"{name} is {rows.dtype}, but features are numbers, as by x.astype(np.float32)")
        if (error := not_finite(rows, name=name)) is not None:
            raise error
    found = {name: row_numbers(name, split, graph.n_dst) for name, split in splits.items()}
    task.check(labels, found, graph.n_dst)
    return found


def _check_label_inputs(label_inputs, task, model, x):
    """Raise a ConfigError where label inputs are none, or go with something that they do not."""
    if label_inputs is None:
        return
    if not isinstance(label_inputs, LabelInputs):
        raise ConfigError(f"label_inputs is {label_inputs!r}, but must be LabelInputs(share, n_classes)")
    if task is not None and task.name != "classify":
        raise ConfigError(f"label_inputs are classes, but the task is {task.name}")
    if hasattr(model, "powers"):
        raise ConfigError("label_inputs: the model has powers, so it trains on features that were propagated "
                          "before, without labels")
    if isinstance(x, dict):
        raise ConfigError("label_inputs: x is a dict by node type, but labels are shown beside the features of one "
                          "graph's nodes")


def checked_loss(loss: Loss, model: str, n_classes: int) -> Loss:
    """Return `loss` of an output that is checked."""

    def share(output, targets, rows, count):
        check_output(output, model, len(targets), n_classes)
        if grad_enabled() and not output.requires_grad:
            raise ConfigError(f"the output of the model {model} does not depend on its parameters: was it detached, or "
                              "made by NumPy?")
        return loss(output, targets, rows, count)

    return share


def check_output(output, model, n_rows, n_classes):
    """Raise, naming the model, where its output is no Tensor of `n_rows` rows, or narrower than `n_classes`."""
    if not isinstance(output, Tensor):
        raise ConfigError(f"the model {model} returned a {type(output).__name__}, but must return a Tensor")
    if output.shape[:1] != (n_rows,):
        raise ShapeError(f"the model {model} returned shape {output.shape}, but the graph has {n_rows} destination "
                         "rows")
    if n_classes and (output.ndim != 2 or output.shape[1] < n_classes):
        needed = f"labels go up to {n_classes - 1}: it needs {n_classes} columns"
        raise ShapeError(f"the model {model} returned shape {output.shape}, but {needed}")


def each_x(x):
    """Yield (what an error calls it, the tensor) of x, or of each in a dict."""
    yield from ((f"x[{name!r}]", rows) for name, rows in x.items()) if isinstance(x, dict) else [("x", x)]
