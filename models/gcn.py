"""Graph convolutional network (Kipf & Welling, 2017)."""

from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from sarlite import Graph, Tensor, fn, nn
from sarlite.models.layered import Layered
from sarlite.nn import Dropout, Linear, Parameter


class GCNConv(nn.Module):
    """H' = D^-1/2 A D^-1/2 H W + b, with D the in-degrees; the graph's self loops make A the paper's A + I.

    With edge weights A has these, and D the sums of its rows.

    Parameters
    ----------
    n_in, n_out : int
    rng : nn.Random
    """

    def __init__(self, n_in: int, n_out: int, *, bias: bool = True, rng: nn.Random,
                 dtype: npt.DTypeLike = np.float32) -> None:
        self.linear = Linear(n_in, n_out, bias=False, rng=rng, dtype=dtype)
        self.bias = Parameter(np.zeros(n_out, dtype)) if bias else None

    def __call__(self, graph: Graph, h: Any) -> Tensor:
        h = graph.aggregate(fn.linear(graph.src(h), self.linear.weight), "sym")
        return h if self.bias is None else h + self.bias


class GCN(Layered):
    """GCN layers with dropout on every layer's input; between them batch norm or bias, and activation.

    Parameters
    ----------
    n_in, n_out : int
        Features and classes.
    layers, hidden : int
    dropout : float
    input_dropout : float, optional
        Of the first layer's input; as `dropout` without it. With 0 a constant input is aggregated only once.
    batch_norm : bool
        Normalise before each activation, in place of the bias of the layer below.
    activation : {"relu", "elu"}
    rng : nn.Random
    """

    self_loops = edge_weights = True
    hidden_options = ("hidden", "batch_norm", "activation")

    def __init__(self, n_in: int, n_out: int, *, layers: int = 2, hidden: int = 16, dropout: float = 0.5,
                 input_dropout: float | None = None, batch_norm: bool = False, activation: str = "relu", rng: nn.Random,
                 dtype: npt.DTypeLike = np.float32) -> None:
        self.make_convs(partial(GCNConv, rng=rng, dtype=dtype), n_in, n_out, layers, hidden)
        self.input_dropout = Dropout(dropout if input_dropout is None else input_dropout, rng)
        self.make_activations(hidden, activation, batch_norm=batch_norm, dropout=dropout, rng=rng, dtype=dtype)
