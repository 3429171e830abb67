"""Built-in messages rewritten as Python functions of tape tensors, for the cases that have no fused kernel."""

import functools

import numpy as np

from sarlite.errors import ShapeError
from sarlite.operators import fn
from sarlite.operators.layer_contract import LayerContract
from sarlite.tape import Tensor, ops
from sarlite.tape.tensor import as_array
from sarlite.types import Array

_FACTOR = "sarlite.factor"


def counted(message: fn.Message, factors: Array | Tensor) -> fn.Message:
    """Return a copy of `message` that multiplies the result of its function by `factors`, (n_edges,). If the result is a pair
    (score, value), only the value is multiplied.
    """

    def scaled(out, edge):
        return out * edge[_FACTOR].reshape(-1, *[1] * (out.ndim - 1)).astype(out.dtype)

    @functools.wraps(message.function)
    def times(src, dst, edge):
        out = message.function(src, dst, edge)
        return (out[0], scaled(out[1], edge)) if isinstance(out, tuple) else scaled(out, edge)

    return message._replace(function=times, edge={**message.edge, _FACTOR: factors})


def multiplied(message: fn.MulEdge) -> fn.Message:
    """Return a `fn.mul_edge` message written as a Python function of tape operations, for reducers without a fused kernel."""
    function = lambda s, d, e: s["x"] * e["weight"]  # noqa: E731
    return fn.message(function, {"x": message.x}, {}, {"weight": _per_row(message.weight, message.x)})


def _per_row(weight: Tensor | Array, x: Tensor | Array) -> Tensor | Array:
    """Return the edge weights `weight` with axes of length 1 appended, so that they have as many axes as the rows x that they multiply."""
    missing = as_array(x).ndim - as_array(weight).ndim
    return weight.reshape(*weight.shape, *[1] * missing) if missing > 0 else weight


def attended(graph: LayerContract, message: fn.Attend) -> fn.Message:
    """Return a `fn.attend` message as a Python function that returns (score, value), for graphs with edge features or weights.

    Edge features times `attn_edge` are added to the score. The graph's edge weight multiplies the value.
    """
    values, features = {}, message.edge
    if features is not None:
        graph.check("fn.attend", edge={"edge": features})
        if message.attn_edge is None or message.attn_edge.shape != (features.shape[1], message.src.shape[1]):
            shape = None if message.attn_edge is None else message.attn_edge.shape
            needed = f"({features.shape[1]}, {message.src.shape[1]})"
            raise ShapeError(f"fn.attend: attn_edge {shape} is not {needed}, one row for each edge feature")
        if not isinstance(features, Tensor):
            features = as_array(features).astype(message.z.dtype, copy=False)
        values["features"] = features
    if graph.edge_weight is not None:
        values["weight"] = graph.weight_as(message.z.dtype).reshape(-1, 1, 1)

    def weigh(src, dst, edge):
        score, value = src["src"] + dst["dst"], src["z"]
        if "features" in edge:
            score = score + edge["features"] @ message.attn_edge
        if "weight" in edge:
            value = value * edge["weight"]
        if message.dropout:
            ones = Tensor(np.ones(score.shape, score.dtype), placement="rows")
            mask = ops.dropout(ones, edge.ids, message.key, message.dropout)
            value = value * mask.reshape(*score.shape, 1)
        return score.leaky_relu(message.slope), value

    return fn.message(weigh, {"z": message.z, "src": message.src}, {"dst": message.dst}, values)
