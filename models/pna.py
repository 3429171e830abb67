"""Principal neighbourhood aggregation: PNA (Corso, Cavalleri, Beaini, Lio & Velickovic, 2020)."""

from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from sarlite import Graph, Tensor, fn, nn
from sarlite.errors import ConfigError
from sarlite.models.layered import Layered
from sarlite.nn import Linear


class PNAConv(nn.Module):
    """h'_i = U [h_i, a_i, s_i a_i, a_i / s_i], a_i = [mean, max, min, std]_j (M h_j), s_i = log(d_i + 1) / delta.

    Source: Eq. 8. d_i is the in-degree, delta the mean of log(d + 1) over the nodes of all ranks. A node without
    in-edges has a = 0 and no 1 / s.

    Parameters
    ----------
    n_in, n_out : int
    rng : nn.Random

    Notes
    -----
    M h, (M h)^2 for the std, and M h again for max and for min are fetched: 4 times the bytes of a mean. The maximum
    and the minimum take no edge weights, so a graph with weights is refused. In a batch degrees are those of the picks,
    and delta is their mean.
    """

    def __init__(self, n_in: int, n_out: int, *, bias: bool = True, rng: nn.Random,
                 dtype: npt.DTypeLike = np.float32) -> None:
        self.message = Linear(n_in, n_in, rng=rng, dtype=dtype)
        self.update = Linear(13 * n_in, n_out, bias=bias, rng=rng, dtype=dtype)

    def __call__(self, graph: Graph, h: Any) -> Tensor:
        if graph.edge_weight is not None:
            raise ConfigError("pna takes no edge weights: graph.with_edge_values() has none")
        z = self.message(graph.src(h))
        both = graph.aggregate(fn.copy_src(_beside(z, z * z)), "mean")
        mean, square = both[:, : z.shape[1]], both[:, z.shape[1] :]
        std = ((square - mean * mean).relu() + 1e-5).sqrt() * (graph.in_degrees[:, None] > 0)
        found = _beside(mean, *(graph.aggregate(fn.copy_src(z), reducer) for reducer in ("max", "min")), std)
        scale, inverse = _scalers(graph, z.dtype)
        return self.update(_beside(graph.dst(h), found, found * scale, found * inverse))


def _beside(*tensors: Tensor) -> Any:
    return np.concatenate(tensors, axis=1)


def _scalers(graph, dtype):
    """Return s and 1 / s of each row, (n_dst, 1); 0 where a row has no in-edge. Collective."""
    delta = graph.memo.get("mean of log(d + 1)", lambda: _delta(graph))
    scale = (np.log1p(graph.in_degrees.astype(np.float64)) / delta)[:, None]
    return scale.astype(dtype), np.divide(1, scale, out=np.zeros_like(scale), where=scale > 0).astype(dtype)


def _delta(graph):
    """Return the mean of log(d + 1) over the rows of all ranks, 1 if no row has an in-edge. Collective.

    Rows are counted by degree, so that the sum is the same on any number of ranks, in every bit.
    """
    most = int(graph.comm.allreduce(np.array([graph.in_degrees.max(initial=0)]), "max")[0])
    n_rows = graph.comm.allreduce(np.bincount(graph.in_degrees, minlength=most + 1))
    total = (n_rows * np.log1p(np.arange(most + 1))).sum()
    return total / n_rows.sum() if total else 1.0


class PNA(Layered):
    """PNA layers; between them batch norm or bias, activation and dropout.

    Parameters
    ----------
    n_in, n_out : int
        Features and classes.
    layers, hidden : int
    dropout : float
        Of each layer's input, but the first one's.
    batch_norm : bool
        Normalise before each activation.
    activation : {"relu", "elu"}
    rng : nn.Random
    """

    self_loops = False

    def __init__(self, n_in: int, n_out: int, *, layers: int = 3, hidden: int = 64, dropout: float = 0.5,
                 batch_norm: bool = True, activation: str = "relu", rng: nn.Random,
                 dtype: npt.DTypeLike = np.float32) -> None:
        self.make_convs(partial(PNAConv, rng=rng, dtype=dtype), n_in, n_out, layers, hidden)
        self.make_activations(hidden, activation, batch_norm=batch_norm, dropout=dropout, rng=rng, dtype=dtype)
