"""Reading state dicts of DGL's and PyG's layers into sarlite's own layers and models, and writing them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple, Protocol

import numpy as np

from sarlite.errors import ConfigError, DataError
from sarlite.oracle import dialects
from sarlite.oracle.models import split_state
from sarlite.types import Array

KINDS = {"GCNConv": "gcn", "SAGEConv": "sage", "GATConv": "gat", "EdgeGATConv": "gat", "PaperGATConv": "gat",
         "GATv2Conv": "gatv2", "RGCNConv": "rgcn", "BatchNorm": "batch_norm"}


class ModuleLike(Protocol):
    """Protocol of a sarlite.nn.Module: the methods that this file calls, since the oracle imports no layers."""

    def state_dict(self) -> dict[str, Array]: ...

    def load_state_dict(self, state: Mapping[str, Array]) -> None: ...

    def named_modules(self) -> Iterator[tuple[str, object]]: ...


class LayerNames(NamedTuple):
    """Names of the parameters of one layer or norm of a sarlite module. `kind` is its kind, such as "gat"; `names` is {name of a parameter
    in the formula of the paper that introduced the kind: name of the parameter in the module}.
    """

    kind: str
    names: dict[str, str]


def load_state(module: ModuleLike, state: Mapping[str, object], dialect: str) -> None:
    """Copy `state`, the state dict of a layer or model of the library `dialect`, into a sarlite module.

    Parameters
    ----------
    module : sarlite.nn.Module
        A GCNConv, SAGEConv, GATConv, GATv2Conv or BatchNorm, or a model of one kind of layers, with or without batch
        norms between them.
    state : dict of str to array
        As torch's `module.state_dict()` returns it: torch tensors, or any arrays with `__array__` or `__dlpack__`. The
        names of a model's parameters are a word, the layer's number and the layer's own name, such as
        "convs.0.lin.weight" or "norms.0.module.weight".
    dialect : "dgl", "pyg" or "paper"
        "paper" has sarlite's own names.

    Raises
    ------
    DataError
        A missing or unknown name, a wrong shape, or values that the module's dtype cannot hold. The module is
        unchanged.
    ConfigError
        An unknown dialect, or a module without such layers.

    Notes
    -----
    Only parameters are copied. PyG's GCNConv, GATConv and GATv2Conv add self loops; in sarlite the graph has them
    (`self_loops=True`). DGL's GATv2Conv has no bias of its result; sarlite's becomes 0.

    Examples
    --------
    >>> import numpy as np
    >>> from sarlite import nn, oracle
    >>> from sarlite.models import GCNConv
    >>> layer = GCNConv(3, 2, rng=nn.Random(0))
    >>> state = {"lin.weight": np.ones((2, 3), np.float32), "bias": np.zeros(2, np.float32)}   # PyG's layout
    >>> oracle.load_state(layer, state, "pyg")
    >>> {name: value.shape for name, value in layer.state_dict().items()}
    {'bias': (2,), 'linear.weight': (3, 2)}
    """
    layers, norms = _layers_and_norms(module)
    arrays, current = dialects.arrays(state), module.state_dict()
    if isinstance(layers, LayerNames):
        new = _renamed(layers, current, dialect, arrays, "")
    else:
        split = split_state(layers[0].kind, arrays)
        state_counts, model_counts = (len(split.layers), len(split.norms)), (len(layers), len(norms))
        if state_counts != model_counts:
            counts = f"{state_counts[0]} layers and {state_counts[1]} norms, but the model has {model_counts[0]} and {model_counts[1]}"
            raise DataError(f"a state of {counts}")
        new = {}
        for k, (piece, part) in enumerate([*zip(layers, split.layers), *zip(norms, split.norms)]):
            where = f"layer {k}: " if k < len(layers) else f"norm {k - len(layers)}: "
            new |= _renamed(piece, current, dialect, part, where)
    for name in sorted(current.keys() - new.keys()):
        raise DataError(f"{name!r} of the model is in no layer that {dialect} has")
    module.load_state_dict({name: _fitting(name, new[name], array) for name, array in current.items()})


def state_of(module: ModuleLike, dialect: str) -> dict[str, Array]:
    """Return a sarlite module's parameters as the state dict of a layer or model of the library `dialect`: the inverse of `load_state`.

    Parameters
    ----------
    module : sarlite.nn.Module
    dialect : "dgl", "pyg" or "paper"

    Returns
    -------
    dict of str to array
        Copies. A model's names are "convs.0.<name>" and "norms.0.<name>".

    Raises
    ------
    DataError
        The other library's layer has no such parameter.
    ConfigError
        See `load_state`.

    Examples
    --------
    >>> from sarlite import nn, oracle
    >>> from sarlite.models import GCNConv
    >>> layer = GCNConv(3, 2, rng=nn.Random(0))
    >>> {name: value.shape for name, value in oracle.state_of(layer, "pyg").items()}
    {'bias': (2,), 'lin.weight': (2, 3)}
    """
    layers, norms = _layers_and_norms(module)
    current = module.state_dict()
    if isinstance(layers, LayerNames):
        return _written(layers, dialect, current)
    numbered = [(f"convs.{k}", piece) for k, piece in enumerate(layers)] + [(f"norms.{k}", piece)
                                                                            for k, piece in enumerate(norms)]
    return {f"{where}.{name}": value for where, piece in numbered
            for name, value in _written(piece, dialect, current).items()}


def _layers_and_norms(module: ModuleLike) -> tuple[LayerNames | list[LayerNames], list[LayerNames]]:
    """Return (layers, norms) of a model, a list of LayerNames for its layers and one for its norms. For a module that is a single
    layer, return (its LayerNames, []).
    """
    names_of_all = list(module.state_dict())
    modules = [(name, _kind(inner), inner) for name, inner in module.named_modules()]
    if modules[0][1]:
        return LayerNames(modules[0][1], {name: name for name in names_of_all}), []
    layers: list[LayerNames] = []
    norms: list[LayerNames] = []
    for name, kind, _ in modules:
        if kind:
            names = {full.removeprefix(f"{name}."): full for full in names_of_all if full.startswith(f"{name}.")}
            (norms if kind == "batch_norm" else layers).append(LayerNames(kind, names))
    kinds = sorted({piece.kind for piece in layers})
    if len(kinds) != 1:
        found_kinds = " and ".join(kinds) or "no kind that is known"
        raise ConfigError(f"{type(module).__name__} has layers of {found_kinds}, but must have layers of one kind")
    between = [name for name, _, inner in modules if type(inner).__name__ == "Activation"]
    for piece, name in zip(layers, between):  # in sarlite's models the activation holds a hidden layer's bias
        if f"{name}.bias" in names_of_all:
            piece.names["root.bias" if piece.kind == "sage" else "bias"] = f"{name}.bias"
    return layers, norms


def _kind(module):
    return next((KINDS[base.__name__] for base in type(module).__mro__ if base.__name__ in KINDS), "")


def _renamed(layer: LayerNames, current: Mapping[str, Array], dialect: str, state: Mapping[str, Array],
             error_prefix: str) -> dict[str, Array]:
    """Return {name in the sarlite module: array} for `state`, one layer's parameters in the names and layouts of the library
    `dialect`. `layer` has the module's names of these parameters, and `current` the module's arrays, for the shape of a bias that
    the library lacks. DataErrors start with `error_prefix`.
    """
    read = dict(dialects.read(layer.kind, dialect, state))
    table = dialects.state_entries(layer.kind, dialect, state)
    if (layer.kind, dialect) == ("gatv2", "dgl") and "bias" in layer.names and "bias" not in table:
        read["bias"] = np.zeros_like(current[layer.names["bias"]])
    for name in sorted(layer.names.keys() - read.keys()):
        raise DataError(f"{error_prefix}{table[name].name if name in table else name!r} is missing from the state")
    for name in sorted(read.keys() - layer.names.keys()):
        names = ", ".join(layer.names)
        raise DataError(f"{error_prefix}{table[name].name!r} has no place in sarlite's layer, which has {names}")
    return {layer.names[name]: value for name, value in read.items()}


def _written(piece: LayerNames, dialect: str, current: Mapping[str, Array]) -> dict[str, Array]:
    state = {name: current[full] for name, full in piece.names.items()}
    if (piece.kind, dialect) == ("gatv2", "dgl") and "root.weight" not in state and not np.any(state.get("bias", 1)):
        del state["bias"]
    return {name: np.array(value, order="C") for name, value in dialects.write(piece.kind, dialect, state).items()}


def _fitting(name: str, value: Array, current: Array) -> Array:
    """Return the parameter `value` in the dtype of `current`, the module's array with this name. Raise DataError if the shape
    differs or values would be rounded.
    """
    if value.shape != current.shape:
        raise DataError(f"{name!r} is {value.shape} in the state, in sarlite's layout, but {current.shape} in the model")
    if not np.can_cast(value.dtype, current.dtype, "safe"):
        raise DataError(f"{name!r} is {value.dtype} in the state, but {current.dtype} in the model, which would round it")
    return value.astype(current.dtype)
