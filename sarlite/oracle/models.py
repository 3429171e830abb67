"""Whole models, and a training step: layers one after the other, cross entropy over a mask, its gradients, Adam."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from sarlite.errors import ConfigError, DataError, whole
from sarlite.oracle import dialects
from sarlite.oracle.choices import among
from sarlite.oracle.definition import Attributes, Definition, Shapes, define
from sarlite.oracle.edge_structure import EdgeList, Index
from sarlite.oracle.expression import (
    Expr,
    constant,
    elu,
    exp,
    fixed,
    gather,
    log,
    relu,
    scatter_max,
    scatter_sum,
    settled,
    sqrt,
)
from sarlite.oracle.gradient import gradient
from sarlite.oracle.layer import ARRAYS, DRAWN, FIXED, Layer, agree, doubled, settle
from sarlite.oracle.layer_formulas import LAYERS

ACTIVATIONS = {"relu": relu, "elu": elu}
NORM = LAYERS["batch_norm"]


class Parts(NamedTuple):
    """A model's state by layers and norms between them: {the name in the layer: value}."""

    layers: list[dict[str, Any]]
    norms: list[dict[str, Any]]


def parts(kind: str, state: Mapping[str, Any]) -> Parts:
    """Sort a model's state by layers; `kind` is of LAYERS.

    Names are a word, the layer's number, and the name in the layer, as "convs.0.lin.weight" or "conv1.lin.weight";
    words with "norm" or "bn" are batch norms. sarlite's models keep hidden layers' biases and norms in
    "activations.0.bias", "activations.0.norm.gamma".

    Raises DataError naming what is of no layer, or numbers of layers and norms that do not agree.
    """
    layers: dict[int, dict[str, Any]] = {}
    norms: dict[int, dict[str, Any]] = {}
    words = set()
    for name, value in state.items():
        found = re.match(r"(.*?\D)(\d+)\.(.+)$", name)
        if not found:
            raise DataError(f"{name!r} is of no layer: such names are a word, a number and the layer's own name, "
                            "as 'convs.0.bias'")
        word, number, inner, group = found[1], int(found[2]), found[3], layers
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
        raise DataError(f"layers are of one word, not of {', '.join(sorted(words))}")
    if norms and len(norms) != len(layers) - 1:
        raise DataError(f"between {len(layers)} layers stand {len(layers) - 1} norms, not {len(norms)}")
    return Parts(*([group[k] for k in sorted(group)] for group in (layers, norms)))


def _forward(kind: str, inputs: Mapping[str, Any], edges: EdgeList, attributes: Attributes) -> list[Expr]:
    """Return the result of each convolution; the last result is the logits."""
    state = {name: value for name, value in inputs.items() if name not in ARRAYS}
    arrays = {name: value for name, value in inputs.items() if name in ARRAYS}
    found, dialect, h, convolved = parts(kind, state), attributes["dialect"], inputs["x"], []
    for k, (part, own) in enumerate(zip(found.layers, attributes["each"])):
        h = LAYERS[kind].formula({**arrays, "x": h, **dialects.read(kind, dialect, part)}, edges, own)
        last = k == len(found.layers) - 1
        if len(h.shape) == 3:  # DGL's heads
            h = h.mean(1) if last else h.reshape(h.shape[0], h.shape[1] * h.shape[2])
        convolved.append(h)
        if last:
            break
        if found.norms:
            norm = dialects.read("batch_norm", dialect, found.norms[k])
            h = NORM.formula({"x": h, **norm}, edges, {"training": attributes["training"], "eps": attributes["eps"]})
        h = ACTIVATIONS[attributes["activation"]](h)
    return convolved


def cross_entropy(logits: Expr, labels: Any, mask: Any) -> Expr:
    """The mean over the rows of the mask of -log softmax(logits)[label]; 0 where there is none."""
    n, n_classes = logits.shape
    flat, by_row = logits.reshape(n * n_classes), Index(np.repeat(np.arange(n), n_classes), n)
    top = fixed(scatter_max(flat, by_row))
    total = top + log(scatter_sum(exp(flat - gather(top, by_row)), by_row))
    rows = np.flatnonzero(mask)
    labels = np.asarray(labels)[rows]
    if len(rows) and (labels.min() < 0 or labels.max() >= n_classes):
        odd = labels.min() if labels.min() < 0 else labels.max()
        raise DataError(f"labels: the model has {n_classes} classes, but there is {odd}")
    picked = gather(flat, Index(rows * n_classes + labels, n * n_classes))
    return (gather(total, Index(rows, n)) - picked).sum(0) / max(len(rows), 1)


def adam(parameter: Expr, g: Expr, first: Any, second: Any, step: int, attributes: Attributes) -> tuple[Expr, Any, Any]:
    """One step of Adam, and its two moments (Kingma and Ba 2015, alg. 1); weight decay is added to the gradient."""
    beta1, beta2 = attributes["beta1"], attributes["beta2"]
    g = g + parameter * attributes["weight_decay"] if attributes["weight_decay"] else g
    first = g * (1 - beta1) if first is None else first * beta1 + g * (1 - beta1)
    second = g * g * (1 - beta2) if second is None else second * beta2 + g * g * (1 - beta2)
    change = first / (1 - beta1**step) / (sqrt(second / (1 - beta2**step)) + attributes["epsilon_adam"])
    # settled: a sum would dissolve in the next step's sums
    return settled(parameter - change * attributes["lr"]), first, second


def _trained(kind: str, inputs: Mapping[str, Any], edges: EdgeList, attributes: Attributes) -> dict[str, Expr]:
    """The loss and the gradients of the last step, and the parameters after it."""
    now = {name: value for name, value in inputs.items() if name not in ARRAYS
           and name.rpartition(".")[2] not in BUFFERS}
    moments: dict[str, tuple[Any, Any]] = {name: (None, None) for name in now}
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
OPTIONS: dict[str, tuple[Any, ...]] = {"activation": ("relu", "elu"), "batch_norm": (False, True),
                                       "training": (True, False)}
NUMBERS = {"eps": 1e-5, "lr": 0.01, "beta1": 0.9, "beta2": 0.999, "epsilon_adam": 1e-8, "weight_decay": 0.0}
_OWN = {**SIZES, **NUMBERS, **{name: values[0] for name, values in OPTIONS.items()}}
_TRAINING = ("steps", "lr", "beta1", "beta2", "epsilon_adam", "weight_decay")


def _attribute_names(kind: str, training: bool) -> list[str]:
    layer = LAYERS[kind]
    own = [name for name in _OWN if training or name not in _TRAINING]
    return [*own, "n_in", "each",
            *(name for name in (*layer.sizes, *layer.options, *layer.numbers) if name not in ("n_out", *own))]


def resolve(kind: str, attributes: Attributes, state: Mapping[str, Any] | None) -> tuple[dict[str, Any], Any]:
    """All attributes of a model; `each` has the attributes of each layer, found anew where they are given."""
    given = {name: value for name, value in attributes.items() if value is not None and name != "each"}
    for name, values in OPTIONS.items():
        among(name, given.get(name, values[0]), values)
    sizes = {name: whole(name, given[name], 1) for name in SIZES if name in given}
    own = {**_OWN, **given, **sizes}
    of_layer = {name: value for name, value in given.items() if name not in _OWN and name != "n_in"}
    if state is None:
        return {**attributes, **_asked(attributes, own), "each": _planned(kind, own, of_layer)}, None
    state = dialects.arrays(state)
    named = parts(kind, {name: name for name in state})
    twice = {names[name] for names, part in zip(named.layers, parts(kind, state).layers)
             for name in doubled(LAYERS[kind], of_layer, part)}
    state = {name: value for name, value in state.items() if name not in twice}
    found = parts(kind, state)
    each = [settle(LAYERS[kind], _for_layer(kind, of_layer, k == len(found.layers) - 1), part)
            for k, part in enumerate(found.layers)]  # fmt: skip
    told = {"layers": len(each), "batch_norm": bool(found.norms), "n_classes": _width(each[-1]),
            "n_in": each[0]["n_in"]}
    told |= {"hidden": each[0].get("n_feat", each[0].get("n_out"))} if len(each) > 1 else {}
    agree(given, told)
    for before, after in zip(each, each[1:]):
        if _width(before) != after["n_in"]:
            raise DataError(f"a layer gives {_width(before)} columns, but the next one takes {after['n_in']}")
    for norm, before in zip(found.norms, each):
        settle(NORM, {"dialect": given["dialect"], "n_in": _width(before)}, norm)
    return {**attributes, **_asked(attributes, own), **told, "each": each}, state


def _asked(attributes, own):
    return {name: value for name, value in own.items() if name in attributes}


def _for_layer(kind, of_layer, last):
    """Return the attributes of a layer: heads are side by side, in the last layer their mean.

    Numbers of heads and features are the hidden layers'.
    """
    if kind not in ("gat", "gatv2"):
        return of_layer
    told = {name: value for name, value in of_layer.items() if not last or name not in ("n_heads", "n_feat")}
    return told if of_layer["dialect"] == "dgl" else {**told, "heads": "mean" if last else "concat"}


def _width(own: Attributes) -> int:
    """Columns of a layer's result, as the next layer gets it."""
    if "n_heads" not in own:
        return own["n_out"]
    return own["n_feat"] if own["heads"] == "mean" else own["n_heads"] * own["n_feat"]


def _planned(kind, own, of_layer):
    """The layers' attributes where there is no state."""
    each: list[dict[str, Any]] = []
    for k in range(own["layers"]):
        last = k == own["layers"] - 1
        width = own["n_classes"] if last else own["hidden"]
        told = {**_for_layer(kind, of_layer, last)}
        if kind in ("gat", "gatv2"):
            told = {"n_feat": width, **told, **({"n_heads": 1} if last else {})}
        else:
            told["n_out"] = width
        each.append(settle(LAYERS[kind], {**told, **({"n_in": _width(each[-1])} if each else {})}, None))
    return each


def _parameters(kind: str, width: int, attributes: Attributes) -> Shapes:
    shapes: Shapes = {}
    dialect = attributes["dialect"]
    for k, own in enumerate(attributes["each"]):
        n_in = next(n for n in (own["n_in"], attributes["n_in"], width) if n is not None)
        of_layer = dialects.shapes_in(kind, dialect, LAYERS[kind].shapes(n_in, own))
        shapes |= {f"convs.{k}.{name}": shape for name, shape in of_layer.items()}
        if attributes["batch_norm"] and k < len(attributes["each"]) - 1:
            of_norm = NORM.shapes(_width(own), {"affine": True, "tracked": True})
            theirs = dialects.shapes_in("batch_norm", dialect, of_norm)
            shapes |= {f"norms.{k}.{name}": shape for name, shape in theirs.items()}
    return shapes


def _definition(kind: str, training: bool) -> Definition:
    layer: Layer = LAYERS[kind]

    def formula(inputs: Mapping[str, Any], edges: EdgeList, attributes: Attributes) -> dict[str, Expr]:
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
