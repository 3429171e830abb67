"""Scalable inception graph network: SIGN (Rossi et al., 2020)."""

from typing import Any

import numpy as np
import numpy.typing as npt

from sarlite import Graph, Tensor, nn
from sarlite.nn import Activation, Dropout, Linear


class SIGN(nn.Module):
    """MLP(act([X W_0, S X W_1, .., S^K X W_K])), with S = D^-1/2 A D^-1/2. It is given [X, S X, .., S^K X], and needs no neighbours.

    Parameters
    ----------
    n_in, n_out : int
        Features and classes.
    hops : int
        K.
    layers : int
        2 or more: the hops' one, those between, and the last one.
    hidden : int
        Features of each hop, and of each layer between.
    dropout : float
        Of the input of every layer but the first.
    input_dropout : float
        Of the propagated features.
    batch_norm : bool
        Normalise before each activation, in place of the bias of the layer below.
    activation : {"relu", "elu"}
    rng : nn.Random

    Attributes
    ----------
    powers : tuple of int
        What the model is given: (0, 1, .., K).
    """

    self_loops = False

    def __init__(self, n_in: int, n_out: int, *, hops: int = 3, layers: int = 2, hidden: int = 64, dropout: float = 0.5,
                 input_dropout: float = 0.0, batch_norm: bool = True, activation: str = "relu", rng: nn.Random,
                 dtype: npt.DTypeLike = np.float32) -> None:
        hops, layers, hidden = nn.whole("hops", hops, 1), nn.whole("layers", layers, 2), nn.whole("hidden", hidden, 1)
        self.n_in, self.powers = n_in, tuple(range(hops + 1))
        self.hops = [Linear(n_in, hidden, bias=False, rng=rng, dtype=dtype) for _ in self.powers]
        widths = [hidden * len(self.powers), *[hidden] * (layers - 2)]
        self.linears = [Linear(a, b, bias=i == layers - 2, rng=rng, dtype=dtype)
                        for i, (a, b) in enumerate(zip(widths, [*widths[1:], n_out]))]
        self.input_dropout = Dropout(input_dropout, rng)
        self.activations = [Activation(width, activation, batch_norm=batch_norm, dropout=dropout, rng=rng, dtype=dtype)
                            for width in widths]

    def __call__(self, graph: Graph, h: Tensor) -> Tensor:
        h = self.input_dropout(h, graph.src_ids)
        powers = [h[:, k * self.n_in : (k + 1) * self.n_in] for k in range(len(self.hops))]
        z: Any = np.concatenate([hop(power) for hop, power in zip(self.hops, powers)], axis=1)  # a Tensor, as those are
        for activation, linear in zip(self.activations, self.linears):
            z = linear(activation(z, graph))
        return z
