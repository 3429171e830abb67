"""Deep graph convolution with initial residuals and identity maps: GCNII (Chen, Wei, Huang, Ding & Li, 2020)."""

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from sarlite import Graph, Tensor, fn, nn
from sarlite.errors import ConfigError, number
from sarlite.nn import Dropout, Linear


class GCNII(nn.Module):
    """H_0 = f(X W + b); H_l = f(((1 - a) S H_{l-1} + a H_0)((1 - b_l) I + b_l W_l)), b_l = log(t / l + 1); H_L W' + b'.

    Source: Eq. 5. S = D^-1/2 A D^-1/2; the graph's self loops make A the paper's A + I. With edge weights A has these,
    and D the sums of its rows.

    Parameters
    ----------
    n_in, n_out : int
        Features and classes.
    layers, hidden : int
        L, and the width of every H.
    teleport : float in [0, 1)
        a: the share of H_0 in each layer.
    identity_decay : float above 0
        t, the paper's lambda: how fast later layers come near the identity.
    dropout : float
        Of each layer's input, the first and the last map's too.
    activation : {"relu", "elu"}
        f.
    rng : nn.Random
    """

    self_loops = edge_weights = True

    def __init__(self, n_in: int, n_out: int, *, layers: int = 16, hidden: int = 64, teleport: float = 0.1,
                 identity_decay: float = 0.5, dropout: float = 0.6, activation: str = "relu", rng: nn.Random,
                 dtype: npt.DTypeLike = np.float32) -> None:
        layers, hidden = nn.whole("layers", layers, 1), nn.whole("hidden", hidden, 1)
        self.takes, self.teleport, self.activation = n_in, number("teleport", teleport, below=1), activation
        identity_decay = number("identity_decay", identity_decay, positive=True)
        if activation not in ("relu", "elu"):
            raise ConfigError(f"activation {activation!r} is not one of relu, elu")
        self.shares = [math.log(identity_decay / number + 1) for number in range(1, layers + 1)]
        self.first, self.last = Linear(n_in, hidden, rng=rng, dtype=dtype), Linear(hidden, n_out, rng=rng, dtype=dtype)
        self.linears = [Linear(hidden, hidden, bias=False, rng=rng, dtype=dtype) for _ in range(layers)]
        self.dropouts = [Dropout(dropout, rng) for _ in range(layers + 2)]

    def first_layer(self) -> list[nn.Module]:
        """Return the map of the features."""
        return [self.first]

    def __call__(self, graph: Graph, h: Any) -> Tensor:
        graphs = graph.layers(len(self.linears))
        for k, g in enumerate(graphs):
            g, h = g.enter(h)
            if not k:
                h = own = self._activated(self.first(self.dropouts[0](h, g.src_ids)))
            h, own = self._layer(k, g, h, own)
        return self.last(self.dropouts[-1](h, g.dst_ids))

    def _layer(self, k, g, h, own):
        """Return the destinations' next H, and their H_0."""
        own = g.dst(own)
        spread = g.aggregate(fn.copy_src(self.dropouts[k + 1](h, g.src_ids)), "sym")
        mixed = (1 - self.teleport) * spread + self.teleport * own
        return self._activated((1 - self.shares[k]) * mixed + self.shares[k] * self.linears[k](mixed)), own

    def _activated(self, h):
        return getattr(h, self.activation)()
