"""Readout: aggregation of node rows to rows of graphs; GraphPredictor: a model of nodes followed by a readout."""

from collections.abc import Sequence

import numpy as np

from sarlite.errors import ConfigError, ShapeError, check_int
from sarlite.graph.graph_set import GraphSet
from sarlite.nn.layers import Activation, Linear, glorot
from sarlite.nn.module import Encoder, Module, Parameter
from sarlite.nn.random import Random
from sarlite.operators import fn
from sarlite.tape import Tensor
from sarlite.types import DType

__all__ = ["READOUTS", "GraphPredictor", "Readout"]

READOUTS = ("sum", "mean", "max", "attention")


class Readout(Module):
    """Aggregation of node rows to graph rows: from one row for each node, (n_src, width), to one row for each graph, (n_dst, width).

    Parameters
    ----------
    kind : {"sum", "mean", "max", "attention"}
        "attention" is the mean weighted by the softmax, over a graph's nodes, of the scores h_i a, where a is learned.
    width : int, optional
        Width of the rows; needed for "attention".
    rng : Random, optional
        Source of the initial values of a; needed for "attention".
    dtype : float32 or float64

    Attributes
    ----------
    scores : Parameter (width, 1), or None
        a, for "attention".

    Raises
    ------
    ConfigError
        The kind is unknown, or "attention" lacks `width` or `rng`.

    Notes
    -----
    The row of a graph without nodes is 0. Nothing is sent, because a rank owns all nodes of its graphs.

    Examples
    --------
    >>> import numpy as np
    >>> from sarlite import Graph, GraphSet, Tensor, nn
    >>> graphs = GraphSet.of(Graph.from_edges([0, 1, 3], [1, 2, 4]), [0, 0, 0, 1, 1])
    >>> nn.Readout("mean")(graphs, Tensor(np.arange(5.0)[:, None])).data.tolist()
    [[1.0], [3.5]]
    """

    def __init__(self, kind: str = "sum", width: int | None = None, *, rng: Random | None = None,
                 dtype: DType = np.float32) -> None:
        if kind not in READOUTS:
            raise ConfigError(f"readout {kind!r} is not one of {', '.join(READOUTS)}")
        if kind == "attention" and (width is None or rng is None):
            raise ConfigError("readout attention learns its scores: Readout('attention', width, rng=rng)")
        self.kind, self.scores = kind, None
        if kind == "attention" and width is not None and rng is not None:
            self.scores = glorot(rng, (check_int("width", width, 1), 1), width, 1, dtype)

    def __call__(self, graph: object, h: Tensor) -> Tensor:
        """Return one row for each graph of `graph`, a GraphSet, (n_dst, width), aggregated from the rows of its nodes, h, (n_src,
        width). Collective.

        Parameters
        ----------
        graph : GraphSet
        h : Tensor (n_src, width)
            One row for each node.

        Raises
        ------
        ConfigError, ShapeError
            `graph` is no GraphSet, or h has not one row for each node.
        """
        graph = _checked(graph, "Readout")
        if h.ndim != 2 or len(h) != graph.n_src:
            raise ShapeError(f"readout: h has shape {h.shape}, but must have one row for each of {graph.n_src} nodes")
        if self.scores is None:
            return graph.members.aggregate(fn.copy_src(h), self.kind)
        zeros = Tensor(np.zeros((graph.n_dst, 1), h.dtype), placement="rows")
        message = fn.attend(h.reshape(len(h), 1, h.shape[1]), h @ self.scores, zeros, slope=1.0)
        return graph.members.aggregate(message, "sum").reshape(graph.n_dst, h.shape[1])


class GraphPredictor(Module):
    """Model of graphs: an encoder computes rows of nodes, a readout aggregates them to a row r of each graph, and the result is
    relu(r + b) W + c.

    Parameters
    ----------
    encoder : callable Module
        Model of nodes, such as those of `sarlite.models`: encoder(graph, x) -> (n_src, width).
    width, n_out : int
        Width of the encoder's output; width of the output rows, such as the number of classes.
    readout : {"sum", "mean", "max", "attention"}
        See `Readout`.
    rng : Random
    dtype : float32 or float64

    Raises
    ------
    ConfigError
        The encoder takes propagated features, as SGC and SIGN do, or an error of `Readout`.

    Examples
    --------
    >>> import numpy as np
    >>> from sarlite import Graph, GraphSet, Tensor, nn
    >>> from sarlite.models import GIN
    >>> graphs = GraphSet.of(Graph.from_edges([0, 1, 3], [1, 2, 4]), [0, 0, 0, 1, 1])
    >>> model = nn.GraphPredictor(GIN(8, 16, rng=nn.Random(0)), 16, 3, rng=nn.Random(1))
    >>> model(graphs, Tensor(np.ones((5, 8), np.float32))).shape
    (2, 3)
    """

    def __init__(self, encoder: Encoder, width: int, n_out: int, readout: str = "sum", *, rng: Random,
                 dtype: DType = np.float32) -> None:
        if hasattr(encoder, "powers"):
            raise ConfigError(f"graphs: {type(encoder).__name__} trains on features that were propagated before")
        self.encoder, self.takes = encoder, getattr(encoder, "takes", None)
        self.readout = Readout(readout, width, rng=rng, dtype=dtype)
        self.activation = Activation(width, "relu", rng=rng, dtype=dtype)
        self.linear = Linear(width, n_out, rng=rng, dtype=dtype)

    def first_layer(self) -> Sequence[Module | Parameter]:
        """Return the modules and parameters of the encoder's first layer."""
        return self.encoder.first_layer()

    def __call__(self, graph: object, h: Tensor) -> Tensor:
        """Return one row for each graph of `graph`, a GraphSet, (n_dst, n_out), computed from the features of its nodes, h, (n_src,
        n_in). Collective.
        """
        graph = _checked(graph, "GraphPredictor")
        return self.linear(self.activation(self.readout(graph, self.encoder(graph.nodes, h)), graph))


def _checked(graph: object, module: str) -> GraphSet:
    """Return `graph`; raise a ConfigError that names `module` if `graph` is not a GraphSet."""
    if not isinstance(graph, GraphSet):
        raise ConfigError(f"a {module} makes rows of the graphs of a GraphSet, but graph is a {type(graph).__name__}")
    return graph
