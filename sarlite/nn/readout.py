"""Readouts make a row of each graph from the rows of its nodes; a GraphPredictor is a model of nodes and a readout."""

from typing import Any

import numpy as np

from sarlite.errors import ConfigError, ShapeError, whole
from sarlite.graph.graph_set import GraphSet
from sarlite.nn.layers import Activation, Linear, glorot
from sarlite.nn.module import Module
from sarlite.nn.random import Random
from sarlite.operators import fn
from sarlite.tape import Tensor
from sarlite.types import DType

__all__ = ["READOUTS", "GraphPredictor", "Readout"]

READOUTS = ("sum", "mean", "max", "attention")


class Readout(Module):
    """Aggregate the rows of each graph's nodes, (n_src, width) to (n_dst, width): one aggregation over `members`.

    Parameters
    ----------
    kind : {"sum", "mean", "max", "attention"}
        "attention" weighs rows by the softmax over a graph's nodes of the scores h_i a, with a learned (width, 1).
    width : int, optional
        Of "attention".
    rng : Random
    dtype : float32 or float64

    Raises
    ------
    ConfigError
        Another kind; attention without a width; in a call: the graph is no `GraphSet`.
    ShapeError
        In a call: h has not a row each node.

    Notes
    -----
    0 for a graph without nodes. Nothing is sent where ranks own whole graphs.
    """

    def __init__(self, kind: str = "sum", width: int | None = None, *, rng: Random | None = None,
                 dtype: DType = np.float32) -> None:
        if kind not in READOUTS:
            raise ConfigError(f"readout {kind!r} is not one of {', '.join(READOUTS)}")
        if kind == "attention" and (width is None or rng is None):
            raise ConfigError("readout attention learns its scores: Readout('attention', width, rng=rng)")
        self.kind, self.scores = kind, None
        if kind == "attention" and width is not None and rng is not None:
            self.scores = glorot(rng, (whole("width", width, 1), 1), width, 1, dtype)

    def __call__(self, graph: object, h: Tensor) -> Tensor:
        """Return the graphs' rows. Collective."""
        graph = _checked(graph, "Readout")
        if h.ndim != 2 or len(h) != graph.n_src:
            raise ShapeError(f"readout: a row each of {graph.n_src} nodes is needed, but h has shape {h.shape}")
        if self.scores is None:
            return graph.members.aggregate(fn.copy_src(h), self.kind)
        zeros = Tensor(np.zeros((graph.n_dst, 1), h.dtype), placement="rows")
        message = fn.attend(h.reshape(len(h), 1, h.shape[1]), h @ self.scores, zeros, slope=1.0)
        return graph.members.aggregate(message, "sum").reshape(graph.n_dst, h.shape[1])


class GraphPredictor(Module):
    """A model of graphs: a model makes a row for each node, a readout a row r for each graph; then relu(r + b) W + c.

    Parameters
    ----------
    encoder : callable Module
        encoder(graph, x) -> (n_dst, width), such as any of `sarlite.models`.
    width, n_out : int
    readout : {"sum", "mean", "max", "attention"}
    rng : Random
    dtype : float32 or float64

    Raises
    ------
    ConfigError
        The encoder takes propagated features; as `Readout`.
    """

    def __init__(self, encoder: Any, width: int, n_out: int, readout: str = "sum", *, rng: Random,
                 dtype: DType = np.float32) -> None:
        if hasattr(encoder, "powers"):
            raise ConfigError(f"graphs: {type(encoder).__name__} trains on features that were propagated before")
        self.encoder, self.takes = encoder, getattr(encoder, "takes", None)
        self.readout = Readout(readout, width, rng=rng, dtype=dtype)
        self.activation = Activation(width, "relu", rng=rng, dtype=dtype)
        self.linear = Linear(width, n_out, rng=rng, dtype=dtype)

    def first_layer(self) -> Any:
        """Return what the encoder says of its first layer."""
        return self.encoder.first_layer()

    def __call__(self, graph: object, h: Tensor) -> Tensor:
        """Return a row each graph, (graph.n_dst, n_out). Collective."""
        graph = _checked(graph, "GraphPredictor")
        return self.linear(self.activation(self.readout(graph, self.encoder(graph.nodes, h)), graph))


def _checked(graph: object, what: str) -> GraphSet:
    if not isinstance(graph, GraphSet):
        raise ConfigError(f"a {what} makes rows of the graphs of a GraphSet, but graph is a {type(graph).__name__}")
    return graph
