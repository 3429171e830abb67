"""Graph attention with dynamic scores (Brody, Alon & Yahav, 2022)."""

from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from sarlite import Graph, Tensor, nn
from sarlite.models.gat import GAT
from sarlite.models.heads import joined
from sarlite.nn import Dropout, Linear, Parameter, glorot


class GATv2Conv(nn.Module):
    """h'_i = sum_j a_ij z_j per head, a_ij = softmax_j(a . leaky_relu(z_j + q_i)).

    z = W_src h + b_src, q = W_dst h + b_dst.

    Parameters
    ----------
    n_in, n_feat, n_heads : int
    concat : bool
        Heads side by side, (n_dst, n_heads * n_feat); else their mean, (n_dst, n_feat).
    residual : bool
        Add h_i, projected where the widths differ.
    slope : float
        Of the leaky ReLU below zero.
    attention_dropout : float
        Of the coefficients.
    bias : bool
        Of z, of q, and one of h'.
    rng : nn.Random

    Notes
    -----
    With edge weights h'_i = sum_j w_ij a_ij z_j.
    A message of the tape, so O(n_edges * n_heads * n_feat) values are held while a block of edges is computed.
    """

    def __init__(self, n_in: int, n_feat: int, n_heads: int, *, concat: bool = True, residual: bool = False,
                 slope: float = 0.2, attention_dropout: float = 0.0, bias: bool = True, rng: nn.Random,
                 dtype: npt.DTypeLike = np.float32) -> None:
        n_feat, n_heads = nn.whole("n_feat", n_feat, 1), nn.whole("n_heads", n_heads, 1)
        self.n_heads, self.n_feat, self.concat, self.slope, self.residual = n_heads, n_feat, concat, slope, residual
        width, n_out = n_heads * n_feat, n_heads * n_feat if concat else n_feat
        self.linear_src = Linear(n_in, width, bias=bias, rng=rng, dtype=dtype)
        self.linear_dst = Linear(n_in, width, bias=bias, rng=rng, dtype=dtype)
        self.attn = glorot(rng, (n_heads, n_feat), n_feat, 1, dtype)
        self.root = Linear(n_in, n_out, bias=False, rng=rng, dtype=dtype) if residual and n_in != n_out else None
        self.bias = Parameter(np.zeros(n_out, dtype)) if bias else None
        self.coefficients = Dropout(attention_dropout, rng)

    def __call__(self, graph: Graph, h: Any) -> Tensor:
        own = graph.dst(h)
        z = self.linear_src(graph.src(h)).reshape(-1, self.n_heads, self.n_feat)
        q = self.linear_dst(own).reshape(-1, self.n_heads, self.n_feat)
        weight = {}
        if graph.edge_weight is not None:
            weight["weight"] = graph.edge_weight.astype(z.dtype, copy=False).reshape(-1, 1, 1)
        return joined(self, graph.aggregate(self._message, "softmax", src={"z": z}, dst={"q": q}, edge=weight), own)

    def _message(self, src, dst, edge):
        """Scores, (n_edges, n_heads), and the values that they weigh."""
        score, value = ((src["z"] + dst["q"]).leaky_relu(self.slope) * self.attn).sum(-1), src["z"]
        if self.coefficients.coin()[0]:
            kept = self.coefficients(Tensor(np.ones(score.shape, score.dtype), placement="rows"), edge.ids)
            value = value * kept.reshape(-1, self.n_heads, 1)
        return score, value * edge["weight"] if "weight" in edge else value


class GATv2(GAT):
    """GATv2 layers with dropout of inputs and coefficients; between them batch norm or bias, and activation.

    Parameters
    ----------
    n_in, n_out, layers, hidden, heads, out_heads, out_concat, dropout, input_dropout, attention_dropout
        As of `GAT`.
    residual, batch_norm, activation, rng
        As of `GAT`, which has `form` and `edge_features` beside.
    """

    def __init__(self, n_in: int, n_out: int, *, layers: int = 2, hidden: int = 8, heads: int = 8, out_heads: int = 1,
                 out_concat: bool = False, dropout: float = 0.6, input_dropout: float | None = None,
                 attention_dropout: float = 0.6, residual: bool = False, batch_norm: bool = False,
                 activation: str = "elu", rng: nn.Random, dtype: npt.DTypeLike = np.float32) -> None:
        conv = partial(GATv2Conv, attention_dropout=attention_dropout, residual=residual, rng=rng, dtype=dtype)
        self._make(conv, n_in, n_out, layers, hidden, heads, out_heads, out_concat, bias_inside=True)
        self.input_dropout = Dropout(dropout if input_dropout is None else input_dropout, rng)
        self.make_activations(hidden * heads, activation, batch_norm=batch_norm, bias=False, dropout=dropout, rng=rng,
                              dtype=dtype)
