"""Graph isomorphism network (Xu, Hu, Leskovec & Jegelka, 2019)."""

from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from sarlite import Graph, Tensor, fn, nn
from sarlite.models.layered import Layered
from sarlite.nn import Activation, Linear, Parameter


class GINConv(nn.Module):
    """h'_i = W_2 f((1 + eps) h_i W_1 + sum_j h_j W_1) + b, f being batch norm or a bias, and the activation (Eq. 4.1).

    With edge weights the sum is sum_j w_ij h_j W_1.

    Parameters
    ----------
    n_in, n_out, hidden : int
    batch_norm : bool
    activation : {"relu", "elu"}
    rng : nn.Random

    Attributes
    ----------
    eps : Parameter, ()
        Learned, from 0.
    """

    def __init__(self, n_in: int, n_out: int, hidden: int, *, batch_norm: bool = True, activation: str = "relu",
                 bias: bool = True, rng: nn.Random, dtype: npt.DTypeLike = np.float32) -> None:
        self.inner = Linear(n_in, hidden, bias=False, rng=rng, dtype=dtype)
        self.between = Activation(hidden, activation, batch_norm=batch_norm, rng=rng, dtype=dtype)
        self.outer = Linear(hidden, n_out, bias=bias, rng=rng, dtype=dtype)
        self.eps = Parameter(np.zeros((), dtype))

    def __call__(self, graph: Graph, h: Any) -> Tensor:
        own = self.inner(graph.dst(h)) * (self.eps + 1)
        sums = graph.aggregate(fn.linear(graph.src(h), self.inner.weight), "sum")
        return self.outer(self.between(own + sums, graph))


class GIN(Layered):
    """GIN layers; between them, and inside them, batch norm or bias and activation; between them dropout.

    Parameters
    ----------
    n_in, n_out : int
        Features and classes.
    layers, hidden : int
    dropout : float
        Of each layer's input, but the first one's.
    batch_norm : bool
        Normalise before each activation, between layers and inside them.
    activation : {"relu", "elu"}
    rng : nn.Random
    """

    self_loops = False
    hidden_options = ("dropout",)  # others also act inside a layer

    def __init__(self, n_in: int, n_out: int, *, layers: int = 3, hidden: int = 64, dropout: float = 0.5,
                 batch_norm: bool = True, activation: str = "relu", rng: nn.Random,
                 dtype: npt.DTypeLike = np.float32) -> None:
        conv = partial(GINConv, hidden=hidden, batch_norm=batch_norm, activation=activation, rng=rng, dtype=dtype)
        self.make_convs(conv, n_in, n_out, layers, hidden)
        self.make_activations(hidden, activation, batch_norm=batch_norm, dropout=dropout, rng=rng, dtype=dtype)
