"""GCNII: deep graph convolution with initial residuals and identity maps (Chen, Wei, Huang, Ding & Li, 2020)."""

import math

import numpy as np
import numpy.typing as npt

from sarlite import Graph, LayerGraph, Tensor, fn, nn
from sarlite.errors import ConfigError, check_number
from sarlite.nn import Dropout, Linear


class GCNII(nn.Module):
    """Deep graph convolutional network whose layers mix in the first layer's rows H_0 and stay near the identity.

    H_0 = f(X W + b); H_l = f(((1 - a) S H_{l-1} + a H_0)((1 - b_l) I + b_l W_l)) with b_l = log(t / l + 1), for
    l = 1 .. L; the output is H_L W' + b' (Eq. 5). S = D^-1/2 A D^-1/2, where A is the adjacency matrix of the graph as
    it is: the paper's A + I is a graph with self loops. With edge weights the entries of A are the weights, and D are
    the sums of its rows.

    Parameters
    ----------
    n_in, n_out : int
        Width of the input rows; width of the output rows, such as the number of classes.
    layers, hidden : int
        Number L of graph layers; width of every H.
    teleport : float in [0, 1)
        Weight a of H_0 in each layer.
    identity_decay : float above 0
        t, lambda in the paper: the larger t, the more W_l changes the rows of layer l.
    dropout : float in [0, 1)
        Dropout probability of X, of the input of every layer, and of H_L.
    activation : {"relu", "elu"}
        Function f.
    rng : nn.Random
        Source of the initial values and of the dropout masks.
    dtype : float32 or float64
        Dtype of the parameters.

    Examples
    --------
    >>> import numpy as np
    >>> from sarlite import Graph, Tensor, nn
    >>> from sarlite.models import GCNII
    >>> graph = Graph.from_edges([0, 1, 2], [1, 2, 0], self_loops=True)
    >>> model = GCNII(8, 4, layers=4, rng=nn.Random(0))
    >>> model(graph, Tensor(np.ones((3, 8), np.float32))).shape
    (3, 4)
    """

    self_loops = edge_weights = True

    def __init__(self, n_in: int, n_out: int, *, layers: int = 16, hidden: int = 64, teleport: float = 0.1,
                 identity_decay: float = 0.5, dropout: float = 0.6, activation: str = "relu", rng: nn.Random,
                 dtype: npt.DTypeLike = np.float32) -> None:
        layers, hidden = nn.check_int("layers", layers, 1), nn.check_int("hidden", hidden, 1)
        self.takes, self.teleport, self.activation = n_in, check_number("teleport", teleport, below=1), activation
        identity_decay = check_number("identity_decay", identity_decay, positive=True)
        if activation not in ("relu", "elu"):
            raise ConfigError(f"activation {activation!r} is not one of relu, elu")
        self.shares = [math.log(identity_decay / number + 1) for number in range(1, layers + 1)]
        self.first, self.last = Linear(n_in, hidden, rng=rng, dtype=dtype), Linear(hidden, n_out, rng=rng, dtype=dtype)
        self.linears = [Linear(hidden, hidden, bias=False, rng=rng, dtype=dtype) for _ in range(layers)]
        self.dropouts = [Dropout(dropout, rng) for _ in range(layers + 2)]

    def first_layer(self) -> list[nn.Module]:
        """Return the modules of the model's first layer, which a row of features passes first: the linear map of the features."""
        return [self.first]

    def __call__(self, graph: Graph, h: Tensor) -> Tensor:
        """Return the output rows, (n_dst, n_out), from the features of the nodes, (n_src, n_in). Collective."""
        graphs = graph.layers(len(self.linears))
        for k, g in enumerate(graphs):
            g, h = g.enter(h)
            if not k:
                h = initial = self._activated(self.first(self.dropouts[0](h, g.src_ids)))
            h, initial = self._layer(k, g, h, initial)
        return self.last(self.dropouts[-1](h, g.dst_ids))

    def _layer(self, k: int, g: LayerGraph, h: Tensor, initial: Tensor) -> tuple[Tensor, Tensor]:
        """Compute layer number `k`: return (output, H_0) at the destinations of the layer's graph `g`, from the input rows h and
        `initial` = H_0 at its sources.
        """
        initial = g.dst(initial)
        spread = g.aggregate(fn.copy_src(self.dropouts[k + 1](h, g.src_ids)), "sym")
        mixed = (1 - self.teleport) * spread + self.teleport * initial
        return self._activated((1 - self.shares[k]) * mixed + self.shares[k] * self.linears[k](mixed)), initial

    def _activated(self, h):
        return getattr(h, self.activation)()
