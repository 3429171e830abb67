"""State dicts of DGL's and PyG's layers, read into sarlite's own layers and models, and written from them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from sarlite.errors import ConfigError, DataError
from sarlite.oracle import dialects
from sarlite.oracle.models import parts
from sarlite.types import Array

KINDS = {"GCNConv": "gcn", "SAGEConv": "sage", "GATConv": "gat", "EdgeGATConv": "gat", "PaperGATConv": "gat",
         "GATv2Conv": "gatv2", "RGCNConv": "rgcn", "BatchNorm": "batch_norm"}


class Piece(NamedTuple):
    """A layer or norm of a sarlite module: its kind, and sarlite's name of each of its parameters by the paper's name.
    """

    kind: str
    names: dict[str, str]


def load_state(module: Any, state: Mapping[str, Any], dialect: str) -> None:
    """Copy the state dict of another library's layer or model into sarlite's.

    Parameters
    ----------
    module : sarlite.nn.Module
        A GCNConv, SAGEConv, GATConv, GATv2Conv or BatchNorm, or a model of one kind of layers with batch norms between
        them.
    state : dict of str to array
        As `module.state_dict()` of torch gives it: torch tensors, arrays, or anything with `__array__` or `__dlpack__`.
        Of a model the names are a word, the layer's number and the layer's own name, as "convs.0.lin.weight",
        "norms.0.module.weight".
    dialect : "dgl", "pyg" or "paper" (sarlite's own names)

    Raises
    ------
    DataError
        A name that is missing or unknown, a wrong shape, or values that the module's dtype cannot hold; nothing is
        changed then.
    ConfigError
        An unknown dialect, or a module without such layers.

    Notes
    -----
    Parameters alone: PyG's GCNConv, GATConv and GATv2Conv add self loops by themselves, sarlite's graph does
    (`self_loops=True`). DGL's GATv2Conv has no bias of its result; sarlite's becomes 0 then.
    """
    layers, norms = _pieces(module)
    arrays, own = dialects.arrays(state), module.state_dict()
    if isinstance(layers, Piece):
        new = _renamed(layers, own, dialect, arrays, "")
    else:
        found = parts(layers[0].kind, arrays)
        there, here = (len(found.layers), len(found.norms)), (len(layers), len(norms))
        if there != here:
            counts = f"{there[0]} layers and {there[1]} norms, but the model has {here[0]} and {here[1]}"
            raise DataError(f"a state of {counts}")
        new = {}
        for k, (piece, part) in enumerate([*zip(layers, found.layers), *zip(norms, found.norms)]):
            where = f"layer {k}: " if k < len(layers) else f"norm {k - len(layers)}: "
            new |= _renamed(piece, own, dialect, part, where)
    for name in sorted(own.keys() - new.keys()):
        raise DataError(f"{name!r} of the model is in no layer that {dialect} has")
    module.load_state_dict({name: _fitting(name, new[name], array) for name, array in own.items()})


def state_of(module: Any, dialect: str) -> dict[str, Array]:
    """The state dict that another library's layer or model reads: the inverse of `load_state`.

    Parameters
    ----------
    module : sarlite.nn.Module
    dialect : "dgl", "pyg" or "paper"

    Returns
    -------
    dict of str to array
        Copies; of a model by the names "convs.0.<name>" and "norms.0.<name>".

    Raises
    ------
    DataError
        A parameter that the other library's layer has no place for.
    ConfigError
        As `load_state`.
    """
    layers, norms = _pieces(module)
    own = module.state_dict()
    if isinstance(layers, Piece):
        return _written(layers, dialect, own)
    numbered = [(f"convs.{k}", piece) for k, piece in enumerate(layers)] + [(f"norms.{k}", piece)
                                                                            for k, piece in enumerate(norms)]
    return {f"{where}.{name}": value for where, piece in numbered
            for name, value in _written(piece, dialect, own).items()}


def _pieces(module: Any) -> tuple[Any, list[Piece]]:
    """The piece that a layer is; or the layers and the norms of a model, in order."""
    own = list(module.state_dict())
    found = [(name, _kind(inner), inner) for name, inner in module.named_modules()]
    if found[0][1]:
        return Piece(found[0][1], {name: name for name in own}), []
    layers: list[Piece] = []
    norms: list[Piece] = []
    for name, kind, _ in found:
        if kind:
            names = {full.removeprefix(f"{name}."): full for full in own if full.startswith(f"{name}.")}
            (norms if kind == "batch_norm" else layers).append(Piece(kind, names))
    kinds = sorted({piece.kind for piece in layers})
    if len(kinds) != 1:
        found_kinds = " and ".join(kinds) or "no kind that is known"
        raise ConfigError(f"{type(module).__name__} has layers of {found_kinds}; one is asked for")
    between = [name for name, _, inner in found if type(inner).__name__ == "Activation"]
    for piece, name in zip(layers, between):  # sarlite's models keep a hidden layer's bias where it is added
        if f"{name}.bias" in own:
            piece.names["root.bias" if piece.kind == "sage" else "bias"] = f"{name}.bias"
    return layers, norms


def _kind(module):
    return next((KINDS[base.__name__] for base in type(module).__mro__ if base.__name__ in KINDS), "")


def _renamed(piece: Piece, own: Mapping[str, Array], dialect: str, state: Mapping[str, Array], where: str
             ) -> dict[str, Array]:
    """A layer's state by sarlite's names."""
    read = dict(dialects.read(piece.kind, dialect, state))
    table = dialects.places(piece.kind, dialect, state)
    if (piece.kind, dialect) == ("gatv2", "dgl") and "bias" in piece.names and "bias" not in table:
        read["bias"] = np.zeros_like(own[piece.names["bias"]])
    for name in sorted(piece.names.keys() - read.keys()):
        raise DataError(f"{where}{table[name].name if name in table else name!r} is missing from the state")
    for name in sorted(read.keys() - piece.names.keys()):
        known = ", ".join(piece.names)
        raise DataError(f"{where}{table[name].name!r} has no place in sarlite's layer, which has {known}")
    return {piece.names[name]: value for name, value in read.items()}


def _written(piece: Piece, dialect: str, own: Mapping[str, Array]) -> dict[str, Array]:
    state = {name: own[full] for name, full in piece.names.items()}
    if (piece.kind, dialect) == ("gatv2", "dgl") and "root.weight" not in state and not np.any(state.get("bias", 1)):
        del state["bias"]
    return {name: np.array(value, order="C") for name, value in dialects.write(piece.kind, dialect, state).items()}


def _fitting(name, value, own):
    """A parameter in the dtype of the module's."""
    if value.shape != own.shape:
        raise DataError(f"{name!r} is {value.shape} in the state, in sarlite's layout, but {own.shape} in the model")
    if not np.can_cast(value.dtype, own.dtype, "safe"):
        raise DataError(f"{name!r} is {value.dtype} in the state, but {own.dtype} in the model, which would round it")
    return value.astype(own.dtype)
