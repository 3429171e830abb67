"""Functions that find the class of a model, by name or in a file, and make the model of a run with its options.

`model_class` documents the contract of a class in a file. An error in the file is reported as a ConfigError that quotes
the file.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple, Protocol

import numpy as np

from sarlite import nn
from sarlite.command import suggestion
from sarlite.errors import ConfigError, lacks_memory, one_line
from sarlite.graph.graph import Graph
from sarlite.graph.hetero import NodeType
from sarlite.minibatch import NeighborLoader, Temporal
from sarlite.tape import Tensor, no_grad
from sarlite.user_code import errors_of, load_class, names_file


def model_class(spec: str) -> type[nn.Module]:
    """Return the model class that `spec` names: a model of the library, such as "gcn", or `path/to/file.py:Class`.

    Parameters
    ----------
    spec : str
        Name in `models.MODELS` or `models.RELATIONAL`, or a file and a class.

    Returns
    -------
    class
        A subclass of `nn.Module`.

    Raises
    ------
    ConfigError
        The model, file or class does not exist, or the file raises an error.

    Notes
    -----
    A class in a file has to keep this contract:

    - `Class(n_in, n_out, *, rng, dtype, ...)` makes an `nn.Module` from the numbers of features and classes, an
      `nn.Random`, and np.float32 or np.float64. Every rank makes an equal model, so all random values come from `rng`.
      Options of the group "model" that the user sets are further keywords, such as hidden=64. An option that the class
      does not take is an error.
    - `model(graph, h)` returns logits, a Tensor (n_dst, n_out), from h, a Tensor (n_src, n_in). All ranks call the model
      together.
    - `model.powers` (optional): the model takes propagated features. With powers (0, 2), h is [X, S^2 X] side by side,
      with S = D^-1/2 A D^-1/2, computed once before training (`propagated`). The model aggregates nothing. For training
      on minibatches the class has this attribute too: `powers = ()`.
    - `Class.relational` (optional, False): True if the model takes relational graphs, like rgcn. It is made by
      `Class(n_in, n_out, nodes, *, rng, dtype, ...)`, with a dict n_in by node type and the `NodeType` that has labels.
      It is called as `model(nodes, x)`, with a dict x of Tensors for the node types that have features.
    - `Class.self_loops` (optional, False): default of the option --self-loops, which adds missing self loops.
    - `model.first_layer()` (optional): list of the modules and parameters of the first layer. It is required for a
      weight decay of only the first layer.
    - `model.takes` (optional): number of columns of h, for a relational model a dict by node type. A `Trainer` refuses
      input rows of another width.
    - `Class.edge_weights`, `Class.edge_features` (optional): True if the model uses the data's edge values by default,
      as `graph.edge_weight` and `graph.edge_features`. Otherwise data with edge values need the option --edge-weights or
      --edge-features. A class that takes `edge_features` gets their number, which counts the column of --edge-recency.

    Examples
    --------
    >>> model_class("gcn").__name__
    'GCN'
    """
    from sarlite.models import MODELS, RELATIONAL

    models = {**MODELS, **RELATIONAL}
    if spec in models:
        return models[spec]
    if spec.endswith(".py"):
        raise ConfigError(f"model {spec!r} names a file without a class: write {spec}:Class", "model")
    if not names_file(spec):
        raise ConfigError(f"model {spec!r} is not one of {', '.join(models)}, nor path/to/file.py:Class"
                          f"{suggestion(spec, models)}", "model")
    cls: type[nn.Module] = load_class("model", spec, nn.Module)
    if "__call__" not in dir(cls):
        raise _refused(spec, f"{cls.__name__} has no __call__(self, graph, h), which returns the logits")
    return cls


class Fanouts(Protocol):
    """Protocol of the options for minibatches that matter for a model: fan-outs (numbers of sampled neighbours) by layer, sampler, and unit
    of recency of edges.
    """

    @property
    def fanouts(self) -> Sequence[int]: ...
    @property
    def sampler(self) -> str | None: ...
    @property
    def edge_recency(self) -> bool: ...


class ModelSpec(NamedTuple):
    """A model class and the options that the class is called with.

    Attributes
    ----------
    spec : str
        Argument of `model_class`.
    cls : class
        Result of `model_class`.
    options : dict
        Keyword arguments of the class.
    dtype : str
        "float32" or "float64".
    """

    spec: str
    cls: Callable[..., nn.Module]
    options: Mapping[str, object] = MappingProxyType({})
    dtype: str = "float32"


def make_model(spec: ModelSpec, n_in: int | Mapping[str, int], n_out: int, rng: nn.Random, graph: Graph | NodeType | None = None,
               batches: Fanouts | None = None) -> nn.Module:
    """Make the model of `spec` with `n_in` features and `n_out` outputs for this rank's `graph`, whose edge features it may use. `batches`
    are the options of its minibatches, None for the full graph. A user's class is tried on a small graph.

    Parameters
    ----------
    spec : ModelSpec
    n_in : int, or dict of int by node type
        Number of features.
    n_out : int
        Number of outputs.
    rng : nn.Random
    graph : Graph or NodeType, optional
        This rank's part. A class that takes `edge_features` gets their number from the graph. A relational class gets
        the node type after n_out.
    batches : cli.options.MinibatchOptions, optional
        Options of the minibatches that the model will train on; None for training on the whole graph.

    Returns
    -------
    nn.Module
        cls(n_in, n_out, rng=..., dtype=..., **options).

    Raises
    ------
    ConfigError
        The class does not take an option, or does not keep the contract of `model_class`.
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
    width = _edge_width(graph, batches)
    if width is not None and "edge_features" in taken:
        keywords["edge_features"] = width
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


def _edge_width(graph: Graph | NodeType | None, batches: Fanouts | None) -> int | None:
    """Return the number of edge features that a model gets: the columns of `graph`, and one more if the options `batches` add the age of
    edges. None if there are none.
    """
    if not isinstance(graph, Graph):
        return None
    features, recency = graph.edge_features, batches is not None and batches.edge_recency
    return None if features is None and not recency else bool(recency) + (0 if features is None else features.shape[1])


def first_layer(model: nn.Module) -> set[str]:
    """Return the names of the parameters in a model's first layer, as a set. The model's own method `first_layer` lists them.

    Raises
    ------
    ConfigError
        The model has no method `first_layer`, or its result is not a list of modules and parameters of the model.

    Examples
    --------
    >>> from sarlite.models import SAGE
    >>> sorted(first_layer(SAGE(4, 2, layers=1, rng=nn.Random(0))))
    ['convs.0.neighbour.weight', 'convs.0.root.bias', 'convs.0.root.weight']
    """
    name = type(model).__name__
    if not hasattr(model, "first_layer"):
        raise ConfigError(f"weight_decay_on first: the model {name} needs a method first_layer, which returns the "
                          "modules and parameters of the first layer", "weight_decay_on")
    members = model.first_layer()
    if not isinstance(members, (list, tuple)) or not all(isinstance(member, (nn.Module, nn.Parameter))
                                                         for member in members):
        raise ConfigError(f"weight_decay_on first: first_layer of the model {name} returned {members!r}, but must return "
                          "a list of modules and parameters", "weight_decay_on")
    first = {id(p) for member in members for p in ([member] if isinstance(member, nn.Parameter) else member.parameters())}
    names = {name for name, p in model.named_parameters() if id(p) in first}
    if not names or len(names) < len(first):
        mismatch = "a parameter that is not the model's" if names else "no parameter of the model"
        raise ConfigError(f"weight_decay_on first: first_layer of the model {name} returned {mismatch}", "weight_decay_on")
    return names


def _try(model, spec, n_in, n_out, part, batches):
    """Run a new model of the options `spec` on a graph with three nodes, check that its output has `n_out` columns, and restore its state.
    `part` has the edge values to imitate; `batches` are options for minibatches (None: the full graph).

    Raises
    ------
    ConfigError
        The output has the wrong type or shape, or the number of fan-outs differs from the number of layers.
    """
    width = n_in * len(getattr(model, "powers", (0,)))
    state, x = model.state_dict(), np.ones((3, width), spec.dtype)
    graph = Graph.from_edges([0, 1, 2, 0], [1, 2, 0, 0], 3)
    if part is not None:
        theirs = part.edge_weight, part.edge_features
        ones = (None if array is None else np.ones((4, *array.shape[1:]), array.dtype) for array in theirs)
        graph = graph.with_edge_values(*ones, time=np.zeros(4, np.int64))
    if batches is not None and not hasattr(model, "powers"):
        in_time = Temporal(seeds=np.zeros(3, np.int64), recency=1.0) if batches.edge_recency else None
        graph = NeighborLoader(graph, x, None, slice(3), fanouts=batches.fanouts, sampler=batches.sampler or "uniform",
                               batch_size=3, temporal=in_time).batch(np.arange(3))
    try:
        with no_grad():
            output = model.train()(graph, Tensor(x, constant=True, placement="rows"))
    finally:
        model.load_state_dict(state)
    returned = f"shape {output.shape}" if isinstance(output, Tensor) else f"a {type(output).__name__}"
    if not isinstance(output, Tensor) or output.shape != (3, n_out):
        raise _refused(spec.spec, f"for 3 nodes with {n_in} features the model returned {returned}, "
                                  f"but the data have {n_out} classes: it must return a Tensor of shape (3, {n_out})")


def _refused(spec, reason):
    return ConfigError(f"model {spec}: {reason}", "model")
