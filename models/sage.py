"""GraphSAGE (Hamilton, Ying & Leskovec, 2017), as SAR Eq. 2."""

from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from sarlite import Graph, Tensor, fn, nn
from sarlite.errors import ConfigError
from sarlite.models.layered import Layered
from sarlite.nn import Linear


class SAGEConv(nn.Module):
    """h'_i = W_root h_i + b + mean_j W h_j, or W_root h_i + b + W max_j relu(W_pool h_j + b_pool).

    With edge weights the mean is sum_j w_ij W h_j / sum_j w_ij; the maximum takes none.

    Parameters
    ----------
    n_in, n_out : int
    aggregator : {"mean", "max-pool"}
    rng : nn.Random
    """

    def __init__(self, n_in: int, n_out: int, *, aggregator: str = "mean", bias: bool = True, rng: nn.Random,
                 dtype: npt.DTypeLike = np.float32) -> None:
        if aggregator not in ("mean", "max-pool"):
            raise ConfigError(f"aggregator {aggregator!r} is not one of mean, max-pool")
        self.root = Linear(n_in, n_out, bias=bias, rng=rng, dtype=dtype)
        self.neighbour = Linear(n_in, n_out, bias=False, rng=rng, dtype=dtype)
        self.pool = Linear(n_in, n_in, rng=rng, dtype=dtype) if aggregator == "max-pool" else None

    def __call__(self, graph: Graph, h: Any) -> Tensor:
        x, own = graph.src(h), graph.dst(h)
        if self.pool is None:
            return self.root(own, add_to=graph.aggregate(fn.linear(x, self.neighbour.weight), "mean"))
        if graph.edge_weight is not None:
            raise ConfigError("aggregator max-pool takes no edge weights: graph.with_edge_values() has none, "
                              "aggregator mean takes them")
        return self.root(own, add_to=self.neighbour(graph.aggregate(fn.copy_src(self.pool(x).relu()), "max")))


class SAGE(Layered):
    """GraphSAGE layers; between them batch norm or bias, activation and dropout.

    Parameters
    ----------
    aggregator : {"mean", "max-pool"}
    n_in, n_out, layers, hidden, dropout, batch_norm, activation, rng
        As of `Layered`; the features are not dropped.
    """

    self_loops = False

    def __init__(self, n_in: int, n_out: int, *, layers: int = 3, hidden: int = 256, dropout: float = 0.5,
                 aggregator: str = "mean", batch_norm: bool = True, activation: str = "relu", rng: nn.Random,
                 dtype: npt.DTypeLike = np.float32) -> None:
        conv = partial(SAGEConv, aggregator=aggregator, rng=rng, dtype=dtype)
        self.make_convs(conv, n_in, n_out, layers, hidden)
        self.make_activations(hidden, activation, batch_norm=batch_norm, dropout=dropout, rng=rng, dtype=dtype)
