"""GIN: graph isomorphism network (Xu, Hu, Leskovec & Jegelka, 2019)."""

from functools import partial

import numpy as np
import numpy.typing as npt

from sarlite import LayerGraph, Tensor, fn, nn
from sarlite.models.layered import Conv, Layered
from sarlite.nn import Activation, Linear, Parameter


class GINConv(Conv):
    """Graph isomorphism layer: h'_i = f((1 + eps) h_i W_1 + sum_j h_j W_1) W_2 + b, where f is an activation (Eq. 4.1).

    f is batch norm or a bias, and then the activation. With edge weights the sum is sum_j w_ij h_j W_1.

    Parameters
    ----------
    n_in, n_out, hidden : int
        Width of the input rows; width of the output rows; width between W_1 and W_2.
    batch_norm : bool
        True for batch norm in f, False for a bias.
    activation : {"relu", "elu"}
    bias : bool
        True for the bias b.
    rng : nn.Random
        Source of the initial values.
    dtype : float32 or float64
        Dtype of the parameters.

    Attributes
    ----------
    eps : Parameter, ()
        Learned weight of the node's own row; starts at 0.

    Examples
    --------
    >>> import numpy as np
    >>> from sarlite import Graph, Tensor, nn
    >>> from sarlite.models import GINConv
    >>> graph = Graph.from_edges([0, 1, 2], [1, 2, 0])
    >>> model = GINConv(8, 4, hidden=16, rng=nn.Random(0))
    >>> model(graph, Tensor(np.ones((3, 8), np.float32))).shape
    (3, 4)
    """

    def __init__(self, n_in: int, n_out: int, hidden: int, *, batch_norm: bool = True, activation: str = "relu",
                 bias: bool = True, rng: nn.Random, dtype: npt.DTypeLike = np.float32) -> None:
        self.inner = Linear(n_in, hidden, bias=False, rng=rng, dtype=dtype)
        self.between = Activation(hidden, activation, batch_norm=batch_norm, rng=rng, dtype=dtype)
        self.outer = Linear(hidden, n_out, bias=bias, rng=rng, dtype=dtype)
        self.eps = Parameter(np.zeros((), dtype))

    def __call__(self, graph: LayerGraph, h: Tensor | tuple[Tensor, Tensor]) -> Tensor:
        self_term = self.inner(graph.dst(h)) * (self.eps + 1)
        sums = graph.aggregate(fn.linear(graph.src(h), self.inner.weight), "sum")
        return self.outer(self.between(self_term + sums, graph))


class GIN(Layered):
    """Graph isomorphism network: a sequence of `GINConv` layers with activations between them.

    Parameters
    ----------
    n_in, n_out : int
        Width of the input rows; width of the output rows, such as the number of classes.
    layers : int
        Number of layers.
    hidden : int
        Width of the rows between layers, and inside each layer.
    dropout : float in [0, 1)
        Dropout probability of the input of every layer but the first.
    batch_norm : bool
        True for batch norm before each activation, between layers and inside them; False for a bias.
    activation : {"relu", "elu"}
    rng : nn.Random
        Source of the initial values and of the dropout masks.
    dtype : float32 or float64
        Dtype of the parameters.

    Examples
    --------
    >>> import numpy as np
    >>> from sarlite import Graph, Tensor, nn
    >>> from sarlite.models import GIN
    >>> graph = Graph.from_edges([0, 1, 2], [1, 2, 0])
    >>> model = GIN(8, 4, rng=nn.Random(0))
    >>> model(graph, Tensor(np.ones((3, 8), np.float32))).shape
    (3, 4)
    """

    self_loops = False
    hidden_options = ("dropout",)  # the other options also act inside a layer

    def __init__(self, n_in: int, n_out: int, *, layers: int = 3, hidden: int = 64, dropout: float = 0.5,
                 batch_norm: bool = True, activation: str = "relu", rng: nn.Random,
                 dtype: npt.DTypeLike = np.float32) -> None:
        conv = partial(GINConv, hidden=hidden, batch_norm=batch_norm, activation=activation, rng=rng, dtype=dtype)
        self.make_convs(conv, n_in, n_out, layers, hidden)
        self.make_activations(hidden, activation, batch_norm=batch_norm, dropout=dropout, rng=rng, dtype=dtype)
