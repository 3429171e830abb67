"""SGC: simplified graph convolution (Wu et al., 2019)."""

import numpy as np
import numpy.typing as npt

from sarlite import Graph, Tensor, nn
from sarlite.nn import Dropout, Linear


class SGC(nn.Module):
    """Linear classifier of features propagated K times: S^K X W + b with S = D^-1/2 A D^-1/2.

    The input of the model is S^K X, which is computed once before training; so the model aggregates nothing. A is the
    adjacency matrix of the graph as it is: the paper's A + I is a graph with self loops.

    Parameters
    ----------
    n_in, n_out : int
        Number of features; number of classes.
    hops : int
        Number K of propagations.
    dropout : float in [0, 1)
        Dropout probability of the propagated features.
    rng : nn.Random
        Source of the initial values and of the dropout masks.
    dtype : float32 or float64
        Dtype of the parameters.

    Attributes
    ----------
    powers : tuple of int
        Powers of S whose products with X the input has side by side: (K,).

    Examples
    --------
    >>> import numpy as np
    >>> from sarlite import Graph, Tensor, nn
    >>> from sarlite.models import SGC
    >>> graph = Graph.from_edges([0, 1, 2], [1, 2, 0], self_loops=True)
    >>> model = SGC(8, 4, hops=2, rng=nn.Random(0))
    >>> model(graph, Tensor(np.ones((3, 8), np.float32))).shape
    (3, 4)
    """

    self_loops = edge_weights = True
    powers: tuple[int, ...] = ()

    def __init__(self, n_in: int, n_out: int, *, hops: int = 2, dropout: float = 0.0, rng: nn.Random,
                 dtype: npt.DTypeLike = np.float32) -> None:
        self.takes, self.powers = n_in, (nn.check_int("hops", hops, 1),)
        self.linear, self.dropout = Linear(n_in, n_out, rng=rng, dtype=dtype), Dropout(dropout, rng)

    def first_layer(self) -> list[nn.Module]:
        """Return the modules of the model's first layer: a list with the only layer."""
        return [self.linear]

    def __call__(self, graph: Graph, h: Tensor) -> Tensor:
        """Return the output rows, (n, n_out), from the propagated features S^K X, (n, n_in)."""
        return self.linear(self.dropout(h, graph.src_ids))
