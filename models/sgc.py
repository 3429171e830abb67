"""Simplified graph convolution: SGC (Wu et al., 2019)."""

import numpy as np
import numpy.typing as npt

from sarlite import Graph, Tensor, nn
from sarlite.nn import Dropout, Linear


class SGC(nn.Module):
    """S^K X W + b, with S = D^-1/2 A D^-1/2; the graph's self loops make A the paper's A + I.

    It is given S^K X, and needs no neighbours.

    Parameters
    ----------
    n_in, n_out : int
        Features and classes.
    hops : int
        K.
    dropout : float
        Of the propagated features.
    rng : nn.Random

    Attributes
    ----------
    powers : tuple of int
        What the model is given: (K,).
    """

    self_loops = edge_weights = True
    powers: tuple[int, ...] = ()

    def __init__(self, n_in: int, n_out: int, *, hops: int = 2, dropout: float = 0.0, rng: nn.Random,
                 dtype: npt.DTypeLike = np.float32) -> None:
        self.takes, self.powers = n_in, (nn.whole("hops", hops, 1),)
        self.linear, self.dropout = Linear(n_in, n_out, rng=rng, dtype=dtype), Dropout(dropout, rng)

    def first_layer(self) -> list[nn.Module]:
        """Return the one layer."""
        return [self.linear]

    def __call__(self, graph: Graph, h: Tensor) -> Tensor:
        return self.linear(self.dropout(h, graph.src_ids))
