"""GraphSAGE (Hamilton, Ying & Leskovec, 2017; SAR Eq. 2)."""

from functools import partial

import numpy as np
import numpy.typing as npt

from sarlite import LayerGraph, Tensor, fn, nn
from sarlite.errors import ConfigError
from sarlite.models.layered import Conv, Layered
from sarlite.nn import Linear


class SAGEConv(Conv):
    """GraphSAGE layer: h'_i = W_root h_i + b + a_i, where a_i aggregates the rows of i's in-neighbours.

    a_i = mean_j W h_j, or a_i = W max_j relu(W_pool h_j + b_pool). With edge weights the mean is
    sum_j w_ij W h_j / sum_j w_ij; the maximum refuses edge weights.

    Parameters
    ----------
    n_in, n_out : int
        Width of the input rows; width of the output rows.
    aggregator : {"mean", "max-pool"}
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
    >>> from sarlite.models import SAGEConv
    >>> graph = Graph.from_edges([0, 1, 2], [1, 2, 0])
    >>> model = SAGEConv(8, 4, rng=nn.Random(0))
    >>> model(graph, Tensor(np.ones((3, 8), np.float32))).shape
    (3, 4)
    """

    def __init__(self, n_in: int, n_out: int, *, aggregator: str = "mean", bias: bool = True, rng: nn.Random,
                 dtype: npt.DTypeLike = np.float32) -> None:
        if aggregator not in ("mean", "max-pool"):
            raise ConfigError(f"aggregator {aggregator!r} is not one of mean, max-pool")
        self.root = Linear(n_in, n_out, bias=bias, rng=rng, dtype=dtype)
        self.neighbour = Linear(n_in, n_out, bias=False, rng=rng, dtype=dtype)
        self.pool = Linear(n_in, n_in, rng=rng, dtype=dtype) if aggregator == "max-pool" else None

    def __call__(self, graph: LayerGraph, h: Tensor | tuple[Tensor, Tensor]) -> Tensor:
        x, h_dst = graph.src(h), graph.dst(h)
        if self.pool is None:
            return self.root(h_dst, add_to=graph.aggregate(fn.linear(x, self.neighbour.weight), "mean"))
        if graph.edge_weight is not None:
            raise ConfigError("aggregator max-pool takes no edge weights: graph.with_edge_values() has none, "
                              "aggregator mean takes them")
        return self.root(h_dst, add_to=self.neighbour(graph.aggregate(fn.copy_src(self.pool(x).relu()), "max")))


class SAGE(Layered):
    """GraphSAGE network: a sequence of `SAGEConv` layers with activations between them.

    Parameters
    ----------
    n_in, n_out : int
        Width of the input rows; width of the output rows, such as the number of classes.
    layers : int
        Number of layers.
    hidden : int
        Width of the rows between layers.
    dropout : float in [0, 1)
        Dropout probability of the input of every layer but the first.
    aggregator : {"mean", "max-pool"}
        Aggregation of each layer; see `SAGEConv`.
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
    >>> from sarlite.models import SAGE
    >>> graph = Graph.from_edges([0, 1, 2], [1, 2, 0])
    >>> model = SAGE(8, 4, rng=nn.Random(0)).eval()
    >>> model(graph, Tensor(np.ones((3, 8), np.float32))).shape
    (3, 4)

    Two ranks as threads; each passes the rows of its own nodes, and gets their scores:

    >>> def scores(comm):
    ...     part = graph.shard(comm, [0, 0, 1])
    ...     model = SAGE(8, 4, rng=nn.Random(0)).eval()
    ...     return model(part, Tensor(np.ones((part.n_src, 8), np.float32), placement="rows")).shape
    >>> threads.run(2, scores)
    [(2, 4), (1, 4)]
    """

    self_loops = False

    def __init__(self, n_in: int, n_out: int, *, layers: int = 3, hidden: int = 256, dropout: float = 0.5,
                 aggregator: str = "mean", batch_norm: bool = True, activation: str = "relu", rng: nn.Random,
                 dtype: npt.DTypeLike = np.float32) -> None:
        conv = partial(SAGEConv, aggregator=aggregator, rng=rng, dtype=dtype)
        self.make_convs(conv, n_in, n_out, layers, hidden)
        self.make_activations(hidden, activation, batch_norm=batch_norm, dropout=dropout, rng=rng, dtype=dtype)
