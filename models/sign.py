"""SIGN: scalable inception graph network (Rossi et al., 2020)."""

from typing import cast

import numpy as np
import numpy.typing as npt

from sarlite import Graph, Tensor, nn
from sarlite.errors import ShapeError
from sarlite.nn import Activation, Dropout, Linear


class Inception(nn.Module):
    """First layer of SIGN: the products of each propagated feature matrix S^k X with its own weights W_k, side by side.

    The input is [X, S X, .., S^K X], and the output is [X W_0, S X W_1, .., S^K X W_K].

    Parameters
    ----------
    n_in : int
        Width of X.
    n_feat : int
        Width of each product.
    n_powers : int
        K + 1.
    rng : nn.Random
        Source of the initial values.
    dtype : float32 or float64
        Dtype of the parameters.
    """

    def __init__(self, n_in: int, n_feat: int, n_powers: int, *, rng: nn.Random,
                 dtype: npt.DTypeLike = np.float32) -> None:
        self.n_in = n_in
        self.linears = [Linear(n_in, n_feat, bias=False, rng=rng, dtype=dtype) for _ in range(n_powers)]

    def __call__(self, h: Tensor) -> Tensor:
        width = len(self.linears) * self.n_in
        if h.shape[1:] != (width,):
            raise ShapeError(f"SIGN: x has shape {h.shape}, but {width} columns are needed: {self.n_in} features propagated "
                             f"0 to {len(self.linears) - 1} times, side by side")
        powers = [h[:, k * self.n_in : (k + 1) * self.n_in] for k in range(len(self.linears))]
        return cast(Tensor, np.concatenate([linear(power) for linear, power in zip(self.linears, powers)], axis=1))


class SIGN(nn.Module):
    """MLP over features propagated 0 to K times: MLP(act([X W_0, S X W_1, .., S^K X W_K])), S = D^-1/2 A D^-1/2.

    The input of the model is [X, S X, .., S^K X] side by side, which is computed once before training; so the model
    aggregates nothing.

    Parameters
    ----------
    n_in, n_out : int
        Number of features; number of classes.
    hops : int
        Number K of propagations.
    layers : int
        Number of layers, 2 or more: `Inception` and the layers of the MLP.
    hidden : int
        Width of each product S^k X W_k, and of the rows between the layers of the MLP.
    dropout : float in [0, 1)
        Dropout probability of the input of every layer but the first.
    input_dropout : float in [0, 1)
        Dropout probability of the propagated features.
    batch_norm : bool
        True for batch norm before each activation, in place of the bias of the layer below.
    activation : {"relu", "elu"}
    rng : nn.Random
        Source of the initial values and of the dropout masks.
    dtype : float32 or float64
        Dtype of the parameters.

    Attributes
    ----------
    powers : tuple of int
        Powers of S whose products with X the input has side by side: (0, 1, .., K).

    Examples
    --------
    >>> import numpy as np
    >>> from sarlite import Graph, Tensor, nn
    >>> from sarlite.models import SIGN
    >>> graph = Graph.from_edges([0, 1, 2], [1, 2, 0], self_loops=True)
    >>> model = SIGN(8, 4, hops=2, rng=nn.Random(0))
    >>> model(graph, Tensor(np.ones((3, 24), np.float32))).shape
    (3, 4)
    """

    self_loops, edge_weights = False, True
    powers: tuple[int, ...] = ()

    def __init__(self, n_in: int, n_out: int, *, hops: int = 3, layers: int = 2, hidden: int = 64, dropout: float = 0.5,
                 input_dropout: float = 0.0, batch_norm: bool = True, activation: str = "relu", rng: nn.Random,
                 dtype: npt.DTypeLike = np.float32) -> None:
        hops, layers, hidden = nn.check_int("hops", hops, 1), nn.check_int("layers", layers, 2), nn.check_int("hidden", hidden, 1)
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
        """Return the modules of the model's first layer, which a row of features passes before the second layer of the MLP."""
        return [self.inception, self.activations[0]]

    def __call__(self, graph: Graph, h: Tensor) -> Tensor:
        """Return the output rows, (n, n_out), from the propagated features, (n, n_in * (K + 1))."""
        z = self.inception(self.input_dropout(h, graph.src_ids))
        for activation, linear in zip(self.activations, self.linears):
            z = linear(activation(z, graph))
        return z
