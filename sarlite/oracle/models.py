"""Whole models, and a training step: layers in sequence, masked cross entropy, its gradients, and Adam."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Generic, TypeVar

import numpy as np

from sarlite.errors import ConfigError, DataError, check_int
from sarlite.oracle import dialects
from sarlite.oracle.case import AttributeDict, Attributes, State
from sarlite.oracle.choices import check_choice
from sarlite.oracle.definition import Definition, Inputs, Shapes, define
from sarlite.oracle.edge_structure import EdgeList, Index
from sarlite.oracle.expression import Expr, barrier, constant, elu, exp, gather, log, relu, scatter_max, scatter_sum, sqrt, stop_gradient
from sarlite.oracle.gradient import gradient
from sarlite.oracle.layer import ARRAYS, DRAWN, FIXED, LayerFormula, check_consistent, resolve_attributes, shared_weight_copies
from sarlite.oracle.layer_formulas import LAYERS
from sarlite.types import Array

ACTIVATIONS = {"relu": relu, "elu": elu}
NORM = LAYERS["batch_norm"]


V = TypeVar("V")


@dataclass
class ModelState(Generic[V]):
    """State dict of a model, split into one dict for each layer and one for each norm between layers. Keys are the names within
    the layer or norm.
    """

    layers: list[dict[str, V]]
    norms: list[dict[str, V]]


def split_state(kind: str, state: Mapping[str, V]) -> ModelState[V]:
    """Split the state dict of a whole model, with layers of one `kind` such as "gat", into a dict for each layer and each norm.

    A name is a word, the layer's number, and the name within the layer, such as "convs.0.lin.weight" or
    "conv1.lin.weight". Words with "norm" or "bn" are batch norms. sarlite's models have the biases and norms of hidden
    layers as "activations.0.bias" and "activations.0.norm.gamma".

    Raises
    ------
    DataError
        A name that belongs to no layer, or numbers of layers and norms that do not agree.
    """
    layers: dict[int, dict[str, V]] = {}
    norms: dict[int, dict[str, V]] = {}
    words = set()
    for name, value in state.items():
        match = re.match(r"(.*?\D)(\d+)\.(.+)$", name)
        if not match:
            raise DataError(f"{name!r} belongs to no layer: a name is a word, a number and the layer's own name, "
                            "such as 'convs.0.bias'")
        word, number, inner, group = match[1], int(match[2]), match[3], layers
        if word == "activations." and inner == "bias":
            inner = "root.bias" if kind == "sage" else "bias"
        elif word == "activations." and inner.startswith("norm."):
            inner, group = inner.removeprefix("norm."), norms
        elif "norm" in word or "bn" in word:
            group = norms
        else:
            words.add(word)
        group.setdefault(number, {})[inner] = value
    if len(words) > 1:
        raise DataError(f"the names of all layers must begin with one word, not with {', '.join(sorted(words))}")
    if norms and len(norms) != len(layers) - 1:
        raise DataError(f"between {len(layers)} layers stand {len(layers) - 1} norms, not {len(norms)}")
    return ModelState(*([group[k] for k in sorted(group)] for group in (layers, norms)))


def _forward(kind: str, inputs: Inputs, edges: EdgeList, attributes: Attributes) -> list[Expr]:
    """Return the result of each convolution, before norm and activation, of a model with layers of one `kind`, such as "gat", on
    the graph `edges`. The last result is the logits. `inputs` holds the arrays and the parameters by name.
    """
    state = {name: value for name, value in inputs.items() if name not in ARRAYS}
    arrays = {name: value for name, value in inputs.items() if name in ARRAYS}
    split, dialect, h, convolved = split_state(kind, state), attributes["dialect"], inputs["x"], []
    for k, (part, layer_attributes) in enumerate(zip(split.layers, attributes["each"])):
        h = LAYERS[kind].formula({**arrays, "x": h, **dialects.read(kind, dialect, part)}, edges, layer_attributes)
        last = k == len(split.layers) - 1
        if len(h.shape) == 3:  # DGL's layers return heads as an axis
            h = h.mean(1) if last else h.reshape(h.shape[0], h.shape[1] * h.shape[2])
        convolved.append(h)
        if last:
            break
        if split.norms:
            norm = dialects.read("batch_norm", dialect, split.norms[k])
            h = NORM.formula({"x": h, **norm}, edges, {"training": attributes["training"], "eps": attributes["eps"]})
        h = ACTIVATIONS[attributes["activation"]](h)
    return convolved


def cross_entropy(logits: Expr, labels: Array, mask: Array) -> Expr:
    """Return the mean of -log softmax(logits)[label] over the rows that `mask` selects; 0 if `mask` selects no row."""
    n, n_classes = logits.shape
    flat, by_row = logits.reshape(n * n_classes), Index(np.repeat(np.arange(n), n_classes), n)
    top = stop_gradient(scatter_max(flat, by_row))
    total = top + log(scatter_sum(exp(flat - gather(top, by_row)), by_row))
    rows = np.flatnonzero(mask)
    labels = np.asarray(labels)[rows]
    if len(rows) and (labels.min() < 0 or labels.max() >= n_classes):
        odd = labels.min() if labels.min() < 0 else labels.max()
        raise DataError(f"labels: the model has {n_classes} classes, but there is {odd}")
    picked = gather(flat, Index(rows * n_classes + labels, n * n_classes))
    return (gather(total, Index(rows, n)) - picked).sum(0) / max(len(rows), 1)


def adam(parameter: Expr, g: Expr, first: Expr | None, second: Expr | None, step: int, attributes: Attributes
         ) -> tuple[Expr, Expr, Expr]:
    """Return (parameter, first, second) after Adam's step number `step`, from 1, with the gradient `g`. `first` and `second` are
    the moments, None before step 1. attributes["weight_decay"] times the parameter is added to the gradient.

    Source: Kingma and Ba 2015, alg. 1.
    """
    beta1, beta2 = attributes["beta1"], attributes["beta2"]
    g = g + parameter * attributes["weight_decay"] if attributes["weight_decay"] else g
    first = g * (1 - beta1) if first is None else first * beta1 + g * (1 - beta1)
    second = g * g * (1 - beta2) if second is None else second * beta2 + g * g * (1 - beta2)
    change = first / (1 - beta1**step) / (sqrt(second / (1 - beta2**step)) + attributes["epsilon_adam"])
    # the next step may not reassociate this sum with its own
    return barrier(parameter - change * attributes["lr"]), first, second


def _trained(kind: str, inputs: Inputs, edges: EdgeList, attributes: Attributes) -> dict[str, Expr]:
    """Return the values of a model after attributes["steps"] training steps, as expressions by name: "loss" and the gradients
    "d<name>" of the last step, and the parameters after this step. The layers are of one `kind`, such as "gat".
    """
    now = {name: value for name, value in inputs.items() if name not in ARRAYS
           and name.rpartition(".")[2] not in BUFFERS}
    moments: dict[str, tuple[Expr | None, Expr | None]] = {name: (None, None) for name in now}
    outputs: dict[str, Expr] = {}
    for step in range(1, attributes["steps"] + 1):
        logits = _forward(kind, {**inputs, **now}, edges, attributes)[-1]
        loss = cross_entropy(logits, inputs["labels"], inputs["mask"])
        g = gradient({"loss": loss}, {"loss": constant(1.0)}, now)
        for name in now:
            now[name], first, second = adam(now[name], g[name], *moments[name], step, attributes)
            moments[name] = first, second
        outputs = {"loss": loss, **{f"d{name}": value for name, value in g.items()}, **now}
    return outputs


BUFFERS = ("running_mean", "running_var", *dialects.COUNTERS)
SIZES = {"layers": 2, "hidden": 8, "n_classes": 4, "steps": 1}
OPTIONS: dict[str, tuple[object, ...]] = {"activation": ("relu", "elu"), "batch_norm": (False, True),
                                       "training": (True, False)}
NUMBERS = {"eps": 1e-5, "lr": 0.01, "beta1": 0.9, "beta2": 0.999, "epsilon_adam": 1e-8, "weight_decay": 0.0}
_DEFAULTS = {**SIZES, **NUMBERS, **{name: values[0] for name, values in OPTIONS.items()}}
_TRAINING = ("steps", "lr", "beta1", "beta2", "epsilon_adam", "weight_decay")


def _attribute_names(kind: str, training: bool) -> list[str]:
    layer = LAYERS[kind]
    model_names = [name for name in _DEFAULTS if training or name not in _TRAINING]
    return [*model_names, "n_in", "each",
            *(name for name in (*layer.sizes, *layer.options, *layer.numbers) if name not in ("n_out", *model_names))]


def resolve(kind: str, attributes: Attributes, state: State | None) -> tuple[AttributeDict, State | None]:
    """Complete the attributes (hyperparameters, such as widths) of a model whose layers have one `kind`, such as "gat"; return (attributes,
    state). A value comes from the caller's `attributes`, else from the shapes in `state`, else from a default; attributes["each"] is a list
    of one dict for each layer. The returned state has a weight that a layer stores twice only once; it is None if `state` is None.
    """
    requested = {name: value for name, value in attributes.items() if value is not None and name != "each"}
    for name, choices in OPTIONS.items():
        check_choice(name, requested.get(name, choices[0]), choices)
    sizes = {name: check_int(name, requested[name], 1) for name in SIZES if name in requested}
    merged = {**_DEFAULTS, **requested, **sizes}
    of_layer = {name: value for name, value in requested.items() if name not in _DEFAULTS and name != "n_in"}
    if state is None:
        return {**attributes, **_known_attributes(attributes, merged), "each": _layers_without_state(kind, merged, of_layer)}, None
    state = dialects.arrays(state)
    named = split_state(kind, {name: name for name in state})
    twice = {names[name] for names, part in zip(named.layers, split_state(kind, state).layers)
             for name in shared_weight_copies(LAYERS[kind], of_layer, part)}
    state = {name: value for name, value in state.items() if name not in twice}
    split = split_state(kind, state)
    each = [resolve_attributes(LAYERS[kind], _for_layer(kind, of_layer, k == len(split.layers) - 1), part)
            for k, part in enumerate(split.layers)]  # fmt: skip
    inferred = {"layers": len(each), "batch_norm": bool(split.norms), "n_classes": _width(each[-1]),
            "n_in": each[0]["n_in"]}
    inferred |= {"hidden": each[0].get("n_feat", each[0].get("n_out"))} if len(each) > 1 else {}
    check_consistent(requested, inferred)
    for before, after in zip(each, each[1:]):
        if _width(before) != after["n_in"]:
            raise DataError(f"a layer gives {_width(before)} columns, but the next one takes {after['n_in']}")
    for norm, before in zip(split.norms, each):
        resolve_attributes(NORM, {"dialect": requested["dialect"], "n_in": _width(before)}, norm)
    return {**attributes, **_known_attributes(attributes, merged), **inferred, "each": each}, state


def _known_attributes(attributes, values):
    return {name: value for name, value in values.items() if name in attributes}


def _for_layer(kind: str, requested: Attributes, last: bool) -> Attributes:
    """Return the attributes in `requested`, which the caller set for a model of layers of one `kind`, as they hold for one layer.
    GAT's `last` layer averages the heads, and other layers concatenate them (DGL's keep an axis of heads). The caller's numbers of
    heads and features hold for hidden layers only.
    """
    if kind not in ("gat", "gatv2"):
        return requested
    selected = {name: value for name, value in requested.items() if not last or name not in ("n_heads", "n_feat")}
    return selected if requested["dialect"] == "dgl" else {**selected, "heads": "mean" if last else "concat"}


def _width(layer_attributes: Attributes) -> int:
    """Return the number of columns of a layer's output, the input width of the next layer, from the layer's attributes."""
    if "n_heads" not in layer_attributes:
        return layer_attributes["n_out"]
    return layer_attributes["n_feat"] if layer_attributes["heads"] == "mean" else layer_attributes["n_heads"] * layer_attributes["n_feat"]


def _layers_without_state(kind: str, model_sizes: Attributes, requested: Attributes) -> list[AttributeDict]:
    """Return the attributes of each layer of a model that has no state dict, with layers of one `kind`, such as "gat".
    `model_sizes` has "layers", "hidden" and "n_classes"; `requested` has the caller's attributes of layers.
    """
    each: list[AttributeDict] = []
    for k in range(model_sizes["layers"]):
        last = k == model_sizes["layers"] - 1
        width = model_sizes["n_classes"] if last else model_sizes["hidden"]
        layer_attributes = {**_for_layer(kind, requested, last)}
        if kind in ("gat", "gatv2"):
            layer_attributes = {"n_feat": width, **layer_attributes, **({"n_heads": 1} if last else {})}
        else:
            layer_attributes["n_out"] = width
        each.append(resolve_attributes(LAYERS[kind], {**layer_attributes, **({"n_in": _width(each[-1])} if each else {})}, None))
    return each


def _parameters(kind: str, width: int, attributes: Attributes) -> Shapes:
    shapes: Shapes = {}
    dialect = attributes["dialect"]
    for k, layer_attributes in enumerate(attributes["each"]):
        n_in = next(n for n in (layer_attributes["n_in"], attributes["n_in"], width) if n is not None)
        of_layer = dialects.shapes_in(kind, dialect, LAYERS[kind].shapes(n_in, layer_attributes))
        shapes |= {f"convs.{k}.{name}": shape for name, shape in of_layer.items()}
        if attributes["batch_norm"] and k < len(attributes["each"]) - 1:
            of_norm = NORM.shapes(_width(layer_attributes), {"affine": True, "tracked": True})
            theirs = dialects.shapes_in("batch_norm", dialect, of_norm)
            shapes |= {f"norms.{k}.{name}": shape for name, shape in theirs.items()}
    return shapes


def _definition(kind: str, training: bool) -> Definition:
    layer: LayerFormula = LAYERS[kind]

    def formula(inputs: Inputs, edges: EdgeList, attributes: Attributes) -> dict[str, Expr]:
        if training:
            return _trained(kind, inputs, edges, attributes)
        return {"out": _forward(kind, inputs, edges, attributes)[-1]}

    def arrays(edges, width, attributes):
        if edges.n_src != edges.n_dst:
            raise ConfigError(f"a model's layers are of one set of nodes, not {edges.n_src} source rows "
                              f"and {edges.n_dst} destination rows")
        first = attributes["each"][0]
        shapes = layer.arrays(edges, width if attributes["n_in"] is None else attributes["n_in"], first)
        return {**shapes, **({"labels": (edges.n_dst,), "mask": (edges.n_dst,)} if training else {})}

    def refuses(edges, attributes):
        why = dialects.refuses(kind, edges, attributes["each"][0])
        if why or not attributes["batch_norm"]:
            return why
        norm = {"dialect": attributes["dialect"], "training": attributes["training"]}
        return dialects.refuses("batch_norm", edges, norm)

    return Definition(
        f"{kind}-training" if training else f"{kind}-model", formula, arrays,
        dict.fromkeys(_attribute_names(kind, training)),
        partial(_parameters, kind), {} if training else {"out": "dst"}, FIXED,
        {**DRAWN, "labels": _labels, "mask": _mask}, partial(resolve, kind), refuses, not training,
        None if training else partial(_forward, kind),
    )  # fmt: skip


def _labels(rng, shape, attributes):
    return rng.integers(0, attributes["n_classes"], shape)


def _mask(rng, shape, attributes):
    mask = rng.random(shape) < 0.6
    mask[:1] = True
    return mask


for _kind in ("gcn", "sage", "gat", "gatv2", "rgcn"):
    define(_definition(_kind, False))
    define(_definition(_kind, True))
