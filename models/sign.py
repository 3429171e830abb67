"""Scalable inception graph network: SIGN (Rossi et al., 2020)."""

from typing import Any

import numpy as np
import numpy.typing as npt

from sarlite import Graph, Tensor, nn
from sarlite.nn import Activation, Dropout, Linear


class Inception(nn.Module):
    """[X W_0, S X W_1, .., S^K X W_K], of X, S X, .., S^K X side by side, each `n_in` wide.

    Parameters
    ----------
    n_in, n_feat, n_powers : int
        n_powers is K + 1.
    rng : nn.Random
    """

    def __init__(self, n_in: int, n_feat: int, n_powers: int, *, rng: nn.Random,
                 dtype: npt.DTypeLike = np.float32) -> None:
        self.n_in = n_in
        self.linears = [Linear(n_in, n_feat, bias=False, rng=rng, dtype=dtype) for _ in range(n_powers)]

    def __call__(self, h: Tensor) -> Any:
        powers = [h[:, k * self.n_in : (k + 1) * self.n_in] for k in range(len(self.linears))]
        return np.concatenate([linear(power) for linear, power in zip(self.linears, powers)], axis=1)


class SIGN(nn.Module):
    """MLP(act([X W_0, S X W_1, .., S^K X W_K])), with S = D^-1/2 A D^-1/2.

    It is given [X, S X, .., S^K X], and needs no neighbours.

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

    self_loops, edge_weights = False, True
    powers: tuple[int, ...] = ()

    def __init__(self, n_in: int, n_out: int, *, hops: int = 3, layers: int = 2, hidden: int = 64, dropout: float = 0.5,
                 input_dropout: float = 0.0, batch_norm: bool = True, activation: str = "relu", rng: nn.Random,
                 dtype: npt.DTypeLike = np.float32) -> None:
        hops, layers, hidden = nn.whole("hops", hops, 1), nn.whole("layers", layers, 2), nn.whole("hidden", hidden, 1)
        self.powers = tuple(range(hops + 1))
        self.takes = n_in * len(self.powers)
        self.inception = Inception(n_in, hidden, len(self.powers), rng=rng, dtype=dtype)
        widths = [hidden * len(self.powers), *[hidden] * (layers - 2)]
        self.linears = [Linear(a, b, bias=i == layers - 2, rng=rng, dtype=dtype)
                        for i, (a, b) in enumerate(zip(widths, [*widths[1:], n_out]))]
        self.input_dropout = Dropout(input_dropout, rng)
        self.activations = [Activation(width, activation, batch_norm=batch_norm, dropout=dropout, rng=rng, dtype=dtype)
                            for width in widths]

    def first_layer(self) -> list[nn.Module]:
        """Return the modules that precede the second layer."""
        return [self.inception, self.activations[0]]

    def __call__(self, graph: Graph, h: Tensor) -> Tensor:
        z = self.inception(self.input_dropout(h, graph.src_ids))
        for activation, linear in zip(self.activations, self.linears):
            z = linear(activation(z, graph))
        return z
