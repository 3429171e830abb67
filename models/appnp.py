"""Predict, then propagate: APPNP (Klicpera, Bojchevski & Guennemann, 2019)."""

from typing import Any

import numpy as np
import numpy.typing as npt

from sarlite import Graph, Tensor, fn, nn
from sarlite.errors import ConfigError, number
from sarlite.nn import Dropout, Linear


class APPNP(nn.Module):
    """Z_0 = H = MLP(X); Z_{k+1} = (1 - a) D^-1/2 A D^-1/2 Z_k + a H; the graph's self loops make A the paper's A + I.

    With edge weights A has these, and D the sums of its rows.

    Parameters
    ----------
    n_in, n_out : int
        Features and classes.
    hops : int
        Steps of propagation, each a layer of the graph: a minibatch has as many fan-outs.
    teleport : float in [0, 1)
        a: the share of its own prediction that a node has in each step.
    layers, hidden : int
        Of the MLP.
    dropout : float
        Of each layer's input in the MLP.
    input_dropout : float, optional
        Of the features; as `dropout` without it.
    activation : {"relu", "elu"}
    rng : nn.Random
    """

    self_loops = edge_weights = True

    def __init__(self, n_in: int, n_out: int, *, hops: int = 10, teleport: float = 0.1, layers: int = 2,
                 hidden: int = 64, dropout: float = 0.5, input_dropout: float | None = None, activation: str = "relu",
                 rng: nn.Random, dtype: npt.DTypeLike = np.float32) -> None:
        layers, hidden = nn.whole("layers", layers, 1), nn.whole("hidden", hidden, 1)
        self.takes, self.activation, self.hops = n_in, activation, nn.whole("hops", hops, 1)
        self.teleport = number("teleport", teleport, below=1)
        if activation not in ("relu", "elu"):
            raise ConfigError(f"activation {activation!r} is not one of relu, elu")
        widths = [n_in, *[hidden] * (layers - 1), n_out]
        self.linears = [Linear(a, b, rng=rng, dtype=dtype) for a, b in zip(widths, widths[1:])]
        self.dropouts = [Dropout(dropout if k or input_dropout is None else input_dropout, rng) for k in range(layers)]

    def first_layer(self) -> list[nn.Module]:
        """Return the modules that precede the second layer."""
        return [self.linears[0]]

    def __call__(self, graph: Graph, h: Any) -> Tensor:
        first, *others = graph.layers(self.hops)
        g, h = first.enter(h)
        z = own = self._predict(h, g.src_ids)
        z, own = self._step(g, z, own)
        for g in others:
            g, z = g.enter(z)
            z, own = self._step(g, z, own)
        return z

    def _step(self, g, z, own):
        """Return the destinations' next Z, and their own predictions."""
        own = g.dst(own)
        return (1 - self.teleport) * g.aggregate(fn.copy_src(z), "sym") + self.teleport * own, own

    def _predict(self, h, ids):
        for k, (linear, dropout) in enumerate(zip(self.linears, self.dropouts)):
            h = getattr(h, self.activation)() if k else h
            h = linear(dropout(h, ids))
        return h
