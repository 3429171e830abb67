"""GCN: graph convolutional network (Kipf & Welling, 2017)."""

from functools import partial

import numpy as np
import numpy.typing as npt

from sarlite import LayerGraph, Tensor, fn, nn
from sarlite.models.layered import Conv, Layered
from sarlite.nn import Dropout, Linear, Parameter


class GCNConv(Conv):
    """Graph convolution: H' = D^-1/2 A D^-1/2 H W + b, where D are the in-degrees.

    A is the adjacency matrix of the graph as it is: the paper's A + I is a graph with self loops. With edge weights the
    entries of A are the weights, and D are the sums of its rows.

    Parameters
    ----------
    n_in, n_out : int
        Width of the input rows; width of the output rows.
    bias : bool
        True for the bias b.
    rng : nn.Random
        Source of the initial values.
    dtype : float32 or float64
        Dtype of the parameters.

    Examples
    --------
    >>> import numpy as np
    >>> from sarlite import Graph, Tensor, nn
    >>> from sarlite.models import GCNConv
    >>> graph = Graph.from_edges([0, 1, 2], [1, 2, 0], self_loops=True)
    >>> model = GCNConv(8, 4, rng=nn.Random(0))
    >>> model(graph, Tensor(np.ones((3, 8), np.float32))).shape
    (3, 4)
    """

    def __init__(self, n_in: int, n_out: int, *, bias: bool = True, rng: nn.Random,
                 dtype: npt.DTypeLike = np.float32) -> None:
        self.linear = Linear(n_in, n_out, bias=False, rng=rng, dtype=dtype)
        self.bias = Parameter(np.zeros(n_out, dtype)) if bias else None

    def __call__(self, graph: LayerGraph, h: Tensor | tuple[Tensor, Tensor]) -> Tensor:
        out = graph.aggregate(fn.linear(graph.src(h), self.linear.weight), "sym")
        return out if self.bias is None else out + self.bias


class GCN(Layered):
    """Graph convolutional network: a sequence of `GCNConv` layers with activations between them.

    Parameters
    ----------
    n_in, n_out : int
        Width of the input rows; width of the output rows, such as the number of classes.
    layers : int
        Number of layers.
    hidden : int
        Width of the rows between layers.
    dropout : float in [0, 1)
        Dropout probability of the input of every layer.
    input_dropout : float in [0, 1), optional
        Dropout probability of the features; by default `dropout`. With 0 the aggregation of constant features is
        computed only once.
    batch_norm : bool
        True for batch norm before each activation, in place of the bias of the layer below.
    activation : {"relu", "elu"}
    rng : nn.Random
        Source of the initial values and of the dropout masks.
    dtype : float32 or float64
        Dtype of the parameters.

    Examples
    --------
    >>> import numpy as np
    >>> from sarlite import Graph, Tensor, nn
    >>> from sarlite.comm import threads
    >>> from sarlite.models import GCN
    >>> graph = Graph.from_edges([0, 1, 2], [1, 2, 0], self_loops=True)
    >>> model = GCN(8, 4, rng=nn.Random(0)).eval()
    >>> model(graph, Tensor(np.ones((3, 8), np.float32))).shape
    (3, 4)

    Two ranks as threads; each passes the rows of its own nodes, and gets their scores:

    >>> def scores(comm):
    ...     part = graph.shard(comm, [0, 0, 1])
    ...     model = GCN(8, 4, rng=nn.Random(0)).eval()
    ...     return model(part, Tensor(np.ones((part.n_src, 8), np.float32), placement="rows")).shape
    >>> threads.run(2, scores)
    [(2, 4), (1, 4)]
    """

    self_loops = edge_weights = True
    hidden_options = ("hidden", "batch_norm", "activation")

    def __init__(self, n_in: int, n_out: int, *, layers: int = 2, hidden: int = 16, dropout: float = 0.5,
                 input_dropout: float | None = None, batch_norm: bool = False, activation: str = "relu", rng: nn.Random,
                 dtype: npt.DTypeLike = np.float32) -> None:
        self.make_convs(partial(GCNConv, rng=rng, dtype=dtype), n_in, n_out, layers, hidden)
        self.input_dropout = Dropout(dropout if input_dropout is None else input_dropout, rng)
        self.make_activations(hidden, activation, batch_norm=batch_norm, dropout=dropout, rng=rng, dtype=dtype)
