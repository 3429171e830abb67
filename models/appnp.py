"""APPNP: predict, then propagate with personalised PageRank (Klicpera, Bojchevski & Guennemann, 2019)."""

import numpy as np
import numpy.typing as npt

from sarlite import Graph, LayerGraph, Tensor, fn, nn
from sarlite.errors import ConfigError, check_number
from sarlite.nn import Dropout, Linear


class APPNP(nn.Module):
    """Predictions H of an MLP, propagated over the graph: Z_{k+1} = (1 - a) D^-1/2 A D^-1/2 Z_k + a H, from Z_0 = H.

    A is the adjacency matrix of the graph as it is: the paper's A + I is a graph with self loops. With edge weights the
    entries of A are the weights, and D are the sums of its rows.

    Parameters
    ----------
    n_in, n_out : int
        Width of the input rows; width of the output rows, such as the number of classes.
    hops : int
        Number of propagation steps. Each step is a layer of the graph, so a minibatch has one fan-out for each.
    teleport : float in [0, 1)
        Weight a of a node's own prediction in each step.
    layers, hidden : int
        Number of layers of the MLP; width between its layers.
    dropout : float in [0, 1)
        Dropout probability of the input of every layer of the MLP.
    input_dropout : float in [0, 1), optional
        Dropout probability of the features; by default `dropout`.
    activation : {"relu", "elu"}
    rng : nn.Random
        Source of the initial values and of the dropout masks.
    dtype : float32 or float64
        Dtype of the parameters.

    Examples
    --------
    >>> import numpy as np
    >>> from sarlite import Graph, Tensor, nn
    >>> from sarlite.models import APPNP
    >>> graph = Graph.from_edges([0, 1, 2], [1, 2, 0], self_loops=True)
    >>> model = APPNP(8, 4, hops=3, rng=nn.Random(0))
    >>> model(graph, Tensor(np.ones((3, 8), np.float32))).shape
    (3, 4)
    """

    self_loops = edge_weights = True

    def __init__(self, n_in: int, n_out: int, *, hops: int = 10, teleport: float = 0.1, layers: int = 2,
                 hidden: int = 64, dropout: float = 0.5, input_dropout: float | None = None, activation: str = "relu",
                 rng: nn.Random, dtype: npt.DTypeLike = np.float32) -> None:
        layers, hidden = nn.check_int("layers", layers, 1), nn.check_int("hidden", hidden, 1)
        self.takes, self.activation, self.hops = n_in, activation, nn.check_int("hops", hops, 1)
        self.teleport = check_number("teleport", teleport, below=1)
        if activation not in ("relu", "elu"):
            raise ConfigError(f"activation {activation!r} is not one of relu, elu")
        widths = [n_in, *[hidden] * (layers - 1), n_out]
        self.linears = [Linear(a, b, rng=rng, dtype=dtype) for a, b in zip(widths, widths[1:])]
        self.dropouts = [Dropout(dropout if k or input_dropout is None else input_dropout, rng) for k in range(layers)]

    def first_layer(self) -> list[nn.Module]:
        """Return the modules of the model's first layer, which a row of features passes first: the first linear layer of the MLP."""
        return [self.linears[0]]

    def __call__(self, graph: Graph, h: Tensor) -> Tensor:
        """Return the propagated predictions, (n_dst, n_out), from the features of the nodes, (n_src, n_in). Collective."""
        first, *others = graph.layers(self.hops)
        g, h = first.enter(h)
        z = prediction = self._predict(h, g.src_ids)
        z, prediction = self._step(g, z, prediction)
        for g in others:
            g, z = g.enter(z)
            z, prediction = self._step(g, z, prediction)
        return z

    def _step(self, g: LayerGraph, z: Tensor, prediction: Tensor) -> tuple[Tensor, Tensor]:
        """Compute one step of propagation: return (Z_{k+1}, H) at the destinations of the layer's graph `g`, from z = Z_k and
        `prediction` = H at its sources.
        """
        prediction = g.dst(prediction)
        return (1 - self.teleport) * g.aggregate(fn.copy_src(z), "sym") + self.teleport * prediction, prediction

    def _predict(self, h: Tensor, ids: npt.NDArray[np.int64]) -> Tensor:
        """Return the output H of the MLP, (n, n_out), for features `h`, (n, n_in), of the nodes with global ids `ids`."""
        for k, (linear, dropout) in enumerate(zip(self.linears, self.dropouts)):
            h = getattr(h, self.activation)() if k else h
            h = linear(dropout(h, ids))
        return h
