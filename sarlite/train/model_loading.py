"""Loading of a run's model: its class, by name or from a file, and the options that the class takes.

A file's class keeps a contract: `model_class` tells it. What fails in the file is a ConfigError that quotes the file,
not sarlite.
"""

import inspect
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from sarlite import nn
from sarlite.command import suggestion
from sarlite.errors import ConfigError, lacks_memory, one_line
from sarlite.graph.graph import Graph
from sarlite.graph.hetero import NodeType
from sarlite.minibatch import NeighborLoader
from sarlite.tape import Tensor, no_grad
from sarlite.user_code import errors_of, load_class, names_file


def model_class(spec: str) -> Any:
    """Return a model's class: by name, or by path/to/file.py:Class.

    Notes
    -----
    The contract of a class in a file:

    - `Class(n_in, n_out, *, rng, dtype, ...)` makes an `nn.Module` from the numbers of features and classes, an
      `nn.Random` and np.float32 or np.float64. Every rank makes the same one: all that is random comes from `rng`. The
      flags of group "model" that were given come as further keywords, as hidden=64; one that the class does not take is
      refused.
    - `model(graph, h)` returns logits, a Tensor (n_dst, n_out), from h, a Tensor (n_src, n_in). Every rank calls it
      alike.
    - `model.powers` (optional): the model takes propagated features. With powers (0, 2), h is [X, S^2 X] side by side,
      S = D^-1/2 A D^-1/2, made once before training (`propagated`); it aggregates nothing. For minibatches the class
      says so too: `powers = ()`.
    - `Class.relational` (optional, False): the model takes relational graphs, as rgcn: `Class(n_in, n_out, nodes, *,
      rng, dtype, ...)` with n_in a dict by node type and `nodes` the `NodeType` that has labels; `model(nodes, x)` with
      x a dict of Tensors by type, those that have features.
    - `Class.self_loops` (optional, False): whether missing self loops are added where --self-loops does not say.
    - `model.first_layer()` (optional): a list of the modules and parameters of the first layer. Without it a weight
      decay of the first layer alone is refused.
    - `model.takes` (optional): the number of columns of h, of a relational model by node type. A `Trainer` refuses
      others.
    - `Class.edge_weights`, `Class.edge_features` (optional): True uses the data's where they are and --edge-weights or
      --edge-features do not say; without them such data are refused. They are `graph.edge_weight` and
      `graph.edge_features`. A class that takes `edge_features` gets their number.

    Raises
    ------
    ConfigError
        No such model, file or class; what is wrong in the file.
    """
    from sarlite.models import MODELS, RELATIONAL

    known = {**MODELS, **RELATIONAL}
    if spec in known:
        return known[spec]
    if spec.endswith(".py"):
        raise ConfigError(f"model {spec!r} names no class: {spec}:Class", "model")
    if not names_file(spec):
        raise ConfigError(f"model {spec!r} is not one of {', '.join(known)}, nor path/to/file.py:Class"
                          f"{suggestion(spec, known)}", "model")
    cls: Any = load_class("model", spec, nn.Module)
    if "__call__" not in dir(cls):
        raise _refused(spec, f"{cls.__name__} has no __call__(self, graph, h), which returns the logits")
    return cls


class ModelSpec(NamedTuple):
    """Model class and the options that it is constructed with.

    Attributes
    ----------
    spec : str
        As for `model_class`.
    cls : class
    options : dict
        Keyword arguments of the class.
    dtype : str
    """

    spec: str
    cls: Any
    options: Mapping[str, Any] = MappingProxyType({})
    dtype: str = "float32"


def make_model(spec: ModelSpec, n_in: Any, n_out: int, rng: nn.Random, graph: Graph | NodeType | None = None,
               batches: Any = None) -> Any:
    """Return cls(n_in, n_out, rng=..., dtype=..., **spec.options), once it works on a small graph.

    Parameters
    ----------
    spec : ModelSpec
    n_in : int, or dict of int by node type
    n_out : int
    rng : nn.Random
    graph : Graph, or NodeType, optional
        This rank's part, for the values on its edges: a class that takes `edge_features` gets how many an edge has. A
        relational class is given it after n_out.
    batches : cli.options.MinibatchOptions, optional
        What the model will train on; by default the whole graph.

    Raises
    ------
    ConfigError
        An option is told that the model does not take; or its file does not keep the contract of `model_class`.
    """
    taken = inspect.signature(spec.cls).parameters
    any_name = any(p.kind is p.VAR_KEYWORD for p in taken.values())
    for name in spec.options:
        if name not in taken and not any_name:
            raise ConfigError(f"{name}: the model {spec.spec} takes no {name}", name)
    missing = [name for name in ("rng", "dtype") if name not in taken and not any_name]
    if missing:
        raise _refused(spec.spec, f"the class must take {' and '.join(missing)}: Class(n_in, n_out, *, rng, dtype)")
    keywords = {**spec.options}
    if isinstance(graph, Graph) and graph.edge_features is not None and "edge_features" in taken:
        keywords["edge_features"] = graph.edge_features.shape[1]
    with errors_of(spec.spec):
        relational = isinstance(graph, NodeType)
        more = [graph] if relational else []
        try:
            model = spec.cls(n_in, n_out, *more, rng=rng, dtype=np.dtype(spec.dtype).type, **keywords)
        except (MemoryError, ValueError) as error:
            if not lacks_memory(error):
                raise
            raise ConfigError(one_line(f"model {spec.spec}: no memory for its parameters: {error}"), "model") from error
        if not relational and (".py:" in spec.spec or batches is not None):
            _try(model, spec, n_in, n_out, graph, batches)
    return model


def first_layer(model: nn.Module) -> set[str]:
    """Return the names of the parameters of a model's first layer, as its class says.

    Raises
    ------
    ConfigError
        The class does not say it, or what it says is no list of modules and parameters of the model.
    """
    name = type(model).__name__
    if not hasattr(model, "first_layer"):
        raise ConfigError(f"weight_decay_on first: the model {name} does not say which layer is its first, "
                          "as by a method first_layer, which returns modules and parameters", "weight_decay_on")
    told = model.first_layer()
    if not isinstance(told, (list, tuple)) or not all(isinstance(own, (nn.Module, nn.Parameter)) for own in told):
        raise ConfigError(f"weight_decay_on first: first_layer of the model {name} returned {told!r}, but must return "
                          "a list of modules and parameters", "weight_decay_on")
    first = {id(p) for own in told for p in ([own] if isinstance(own, nn.Parameter) else own.parameters())}
    names = {name for name, p in model.named_parameters() if id(p) in first}
    if not names or len(names) < len(first):
        found = "a parameter that is not the model's" if names else "no parameter of the model"
        raise ConfigError(f"weight_decay_on first: first_layer of the model {name} returned {found}", "weight_decay_on")
    return names


def _try(model, spec, n_in, n_out, part, batches):
    """Run a model on three nodes, of a batch if that is how it trains, and leave it as it was.

    Raises
    ------
    ConfigError
        Its output is not what training needs, or the fan-outs are not its layers'.
    """
    width = n_in * len(getattr(model, "powers", (0,)))
    state, x = model.state_dict(), np.ones((3, width), spec.dtype)
    graph = Graph.from_edges([0, 1, 2, 0], [1, 2, 0, 0], 3)
    if part is not None:
        theirs = part.edge_weight, part.edge_features
        ones = (None if array is None else np.ones((4, *array.shape[1:]), array.dtype) for array in theirs)
        graph = graph.with_edge_values(*ones)
    if batches is not None and not hasattr(model, "powers"):
        graph = NeighborLoader(graph, x, None, slice(3), fanouts=batches.fanouts, sampler=batches.sampler or "uniform",
                               batch_size=3).batch(np.arange(3))
    try:
        with no_grad():
            output = model.train()(graph, Tensor(x, constant=True, placement="rows"))
    finally:
        model.load_state_dict(state)
    found = f"shape {output.shape}" if isinstance(output, Tensor) else f"a {type(output).__name__}"
    if not isinstance(output, Tensor) or output.shape != (3, n_out):
        raise _refused(spec.spec, f"of 3 nodes with {n_in} features the model made {found}, "
                                  f"but the data have {n_out} classes: a Tensor of shape (3, {n_out}) is needed")


def _refused(spec, reason):
    return ConfigError(f"model {spec}: {reason}", "model")
