"""What a `Trainer` is given, checked."""

from sarlite import nn
from sarlite.errors import ConfigError, ShapeError, number
from sarlite.minibatch.batch import Batch
from sarlite.minibatch.graphs import GraphLoader
from sarlite.minibatch.loader import Loader
from sarlite.sar.graph.graph_set import GraphSet
from sarlite.sar.graph.link_graph import LinkGraph
from sarlite.tape.exact import Exact
from sarlite.tape.numerics import NUMERICS
from sarlite.train.link_loader import LinkLoader
from sarlite.train.tasks import Task


def check_arguments(model, rng, optimizer, schedule, loss, task, clip_norm):
    """Raise a ConfigError that names an argument of another kind than `Trainer` takes."""
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


def check_sources(**given):
    """Raise a ConfigError where something is given that yields no batches, or one without rows to train on."""
    for name, source in given.items():
        if source is not None and not isinstance(source, (Batch, Loader)):
            raise ConfigError(f"{name} is a {type(source).__name__}, but must be a loader or a Batch")
    if isinstance(given["batches"], Batch) and not given["batches"].n_global:
        raise ConfigError("batches is a Batch of no rows on any rank, so there is nothing to train on")


def check_links(graph, task, numerics, others):
    """Raise a ConfigError where links go with something that is not of links, or not done yet."""
    if isinstance(graph, LinkGraph):
        if (task is None or task.name != "link") and others["loss"] is None:
            raise ConfigError("graph is a LinkGraph, so the task must be Task('link'), or the loss your own")
        if task is not None:
            task.check_candidates(graph.n_candidates)
        for name in ("scoring", "label_inputs"):
            if others[name] is not None:
                raise ConfigError(f"{name}: of links it is not done yet")
        if others["batches"] is not None and not isinstance(others["batches"], LinkLoader):
            raise ConfigError(f"batches is a {type(others['batches']).__name__}, but of links a LinkLoader")
        if numerics != "fast":
            raise ConfigError("numerics exact: links are not exact yet")
    elif task is not None and task.name == "link":
        raise ConfigError(f"task link is of a LinkGraph, as split_links makes it, but graph is a {type(graph).__name__}")


def check_graphs(graph, numerics, others):
    """Raise a ConfigError where a set of graphs goes with something that is not of graphs, or not done yet."""
    for name in ("batches", "scoring"):
        source = others[name]
        if source is not None and isinstance(source, GraphLoader) != isinstance(graph, GraphSet):
            raise ConfigError(f"{name}: a {type(source).__name__} does not go with a {type(graph).__name__}: a GraphLoader "
                              "is of a GraphSet")
    if isinstance(graph, GraphSet) and others["label_inputs"] is not None:
        raise ConfigError("label_inputs are of nodes, but graph is a GraphSet")
    if isinstance(graph, GraphSet) and numerics != "fast":
        raise ConfigError("numerics exact: sets of graphs are not exact yet")


def check_takes(model, x):
    """Raise a ShapeError where x has not as many features as the model `takes`, if it says so; by node type as x."""
    takes = getattr(model, "takes", None)
    if takes is None or isinstance(takes, dict) != isinstance(x, dict):
        return
    for (name, rows), n in zip(each_input(x), [takes.get(key) for key in x] if isinstance(x, dict) else [takes]):
        if n is not None and rows.shape[1:] != (n,):
            raise ShapeError(f"{name} has shape {rows.shape}, but the model {type(model).__name__} takes {n} features")


def check_numerics(numerics, loss, *sources):
    """Raise a ConfigError of another numerics, or where a loss or a source of batches is not exact."""
    if numerics not in NUMERICS and not isinstance(numerics, Exact):
        raise ConfigError(f"numerics {numerics!r} is not one of {', '.join(NUMERICS)}")
    if numerics == "fast":
        return
    if loss is not None:
        raise ConfigError("numerics exact: loss is not exact yet: a mean over a rank's rows depends on how these are divided")
    for source in sources:
        if getattr(source, "divided", ""):
            raise ConfigError(f"numerics exact: a loader with {source.divided} has other steps on other numbers of ranks")


def each_input(x):
    """Yield (what an error calls it, the tensor) of x, or of each in a dict."""
    yield from ((f"x[{name!r}]", rows) for name, rows in x.items()) if isinstance(x, dict) else [("x", x)]
