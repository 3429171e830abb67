"""PNA: principal neighbourhood aggregation (Corso, Cavalleri, Beaini, Lio & Velickovic, 2020)."""

from functools import partial
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from sarlite import LayerGraph, Tensor, fn, nn
from sarlite.errors import ConfigError
from sarlite.models.layered import Conv, Layered
from sarlite.nn import Linear


class PNAConv(Conv):
    """Layer that concatenates mean, max, min and standard deviation of the in-neighbours, each unscaled, times s and divided by s,
    where s grows with the in-degree (Eq. 8).

    h'_i = U [h_i, a_i, s_i a_i, a_i / s_i] with a_i = [mean, max, min, std]_j (M h_j) and s_i = log(d_i + 1) / delta.
    d_i is the in-degree, and delta is the mean of log(d + 1) over the nodes of all ranks. If a node has no in-edges,
    all its terms but h_i are 0.

    Parameters
    ----------
    n_in, n_out : int
        Width of the input rows; width of the output rows.
    bias : bool
        True for a bias of the output.
    rng : nn.Random
        Source of the initial values.
    dtype : float32 or float64
        Dtype of the parameters.

    Notes
    -----
    A mean of M h and of (M h)^2, a maximum and a minimum are three aggregations, which fetch 4 times the bytes of one
    mean. A graph with edge weights is refused, because a maximum has no weights. In a batch d_i is the number of
    sampled in-edges, and delta is the mean over the batch.

    Examples
    --------
    >>> import numpy as np
    >>> from sarlite import Graph, Tensor, nn
    >>> from sarlite.models import PNAConv
    >>> graph = Graph.from_edges([0, 1, 2], [1, 2, 0])
    >>> model = PNAConv(8, 4, rng=nn.Random(0))
    >>> model(graph, Tensor(np.ones((3, 8), np.float32))).shape
    (3, 4)
    """

    def __init__(self, n_in: int, n_out: int, *, bias: bool = True, rng: nn.Random,
                 dtype: npt.DTypeLike = np.float32) -> None:
        self.message = Linear(n_in, n_in, rng=rng, dtype=dtype)
        self.update = Linear(13 * n_in, n_out, bias=bias, rng=rng, dtype=dtype)

    def __call__(self, graph: LayerGraph, h: Tensor | tuple[Tensor, Tensor]) -> Tensor:
        if graph.edge_weight is not None:
            raise ConfigError("pna takes no edge weights: graph.with_edge_values() has none")
        z = self.message(graph.src(h))
        means = graph.aggregate(fn.copy_src(_concat(z, z * z)), "mean")
        mean, square = means[:, : z.shape[1]], means[:, z.shape[1] :]
        std = ((square - mean * mean).relu() + 1e-5).sqrt() * (graph.in_degrees[:, None] > 0)
        aggregates = _concat(mean, *(graph.aggregate(fn.copy_src(z), reducer) for reducer in ("max", "min")), std)
        scale, inverse = _scalers(graph, z.dtype)
        return self.update(_concat(graph.dst(h), aggregates, aggregates * scale, aggregates * inverse))


def _concat(*tensors: Tensor) -> Tensor:
    """Return the tensors concatenated along axis 1, recorded on the tape."""
    return cast(Tensor, np.concatenate(tensors, axis=1))


def _scalers(graph: LayerGraph, dtype: npt.DTypeLike) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """Return (s, 1 / s) for each destination, two arrays (n_dst, 1) of `dtype`. s = log(d + 1) / delta, where d is the in-degree
    and delta the mean of log(d + 1) over the rows of all ranks. Collective.
    """
    delta = graph.memo.get("mean of log(d + 1)", lambda: _delta(graph))
    scale = (np.log1p(graph.in_degrees.astype(np.float64)) / delta)[:, None]
    return scale.astype(dtype), np.divide(1, scale, out=np.zeros_like(scale), where=scale > 0).astype(dtype)


def _delta(graph: LayerGraph) -> float:
    """Return the mean of log(d + 1) over the rows of all ranks, where d is the in-degree; 1 if no row has an in-edge. Rows are
    counted by degree before the sum, so its bits do not depend on the number of ranks. Collective.
    """
    most = int(graph.comm.allreduce(np.array([graph.in_degrees.max(initial=0)]), "max")[0])
    n_rows = graph.comm.allreduce(np.bincount(graph.in_degrees, minlength=most + 1))
    total = (n_rows * np.log1p(np.arange(most + 1))).sum()
    return total / n_rows.sum() if total else 1.0


class PNA(Layered):
    """Principal neighbourhood aggregation network: a sequence of `PNAConv` layers with activations between them.

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
    >>> from sarlite.models import PNA
    >>> graph = Graph.from_edges([0, 1, 2], [1, 2, 0])
    >>> model = PNA(8, 4, rng=nn.Random(0))
    >>> model(graph, Tensor(np.ones((3, 8), np.float32))).shape
    (3, 4)
    """

    self_loops = False

    def __init__(self, n_in: int, n_out: int, *, layers: int = 3, hidden: int = 64, dropout: float = 0.5,
                 batch_norm: bool = True, activation: str = "relu", rng: nn.Random,
                 dtype: npt.DTypeLike = np.float32) -> None:
        self.make_convs(partial(PNAConv, rng=rng, dtype=dtype), n_in, n_out, layers, hidden)
        self.make_activations(hidden, activation, batch_norm=batch_norm, dropout=dropout, rng=rng, dtype=dtype)
