"""Graph attention with dynamic scores (Brody, Alon & Yahav, 2022)."""

from typing import Any

import numpy as np
import numpy.typing as npt

from sarlite import Graph, Tensor, nn
from sarlite.nn import Linear, Parameter, glorot


class GATv2Conv(nn.Module):
    """h'_i = sum_j a_ij z_j per head, a_ij = softmax_j(a . leaky_relu(z_j + q_i)), z = W_src h + b_src, q = W_dst h + b_dst.

    Parameters
    ----------
    n_in, n_feat, n_heads : int
    concat : bool
        Heads side by side, (n_dst, n_heads * n_feat); else their mean, (n_dst, n_feat).
    residual : bool
        Add h_i, projected where the widths differ.
    slope : float
        Of the leaky ReLU below zero.
    bias : bool
        Of z, of q, and one of h'.
    rng : nn.Random

    Notes
    -----
    With edge weights h'_i = sum_j w_ij a_ij z_j.
    A message of the tape, so O(n_edges * n_heads * n_feat) values are held while a block of edges is computed.
    """

    def __init__(self, n_in: int, n_feat: int, n_heads: int, *, concat: bool = True, residual: bool = False, slope: float = 0.2,
                 bias: bool = True, rng: nn.Random, dtype: npt.DTypeLike = np.float32) -> None:
        n_feat, n_heads = nn.whole("n_feat", n_feat, 1), nn.whole("n_heads", n_heads, 1)
        self.n_heads, self.n_feat, self.concat, self.slope, self.residual = n_heads, n_feat, concat, slope, residual
        width, n_out = n_heads * n_feat, n_heads * n_feat if concat else n_feat
        self.linear_src = Linear(n_in, width, bias=bias, rng=rng, dtype=dtype)
        self.linear_dst = Linear(n_in, width, bias=bias, rng=rng, dtype=dtype)
        self.attn = glorot(rng, (n_heads, n_feat), n_feat, 1, dtype)
        self.root = Linear(n_in, n_out, bias=False, rng=rng, dtype=dtype) if residual and n_in != n_out else None
        self.bias = Parameter(np.zeros(n_out, dtype)) if bias else None

    def __call__(self, graph: Graph, h: Any) -> Tensor:
        own = graph.dst(h)
        z = self.linear_src(graph.src(h)).reshape(-1, self.n_heads, self.n_feat)
        q = self.linear_dst(own).reshape(-1, self.n_heads, self.n_feat)
        weight = {} if graph.edge_weight is None else {"weight": graph.edge_weight.astype(z.dtype, copy=False).reshape(-1, 1, 1)}
        out = graph.aggregate(self._message, "softmax", src={"z": z}, dst={"q": q}, edge=weight)
        out = out.reshape(-1, self.n_heads * self.n_feat) if self.concat else out.mean(1)
        if self.residual:
            out = out + (own if self.root is None else self.root(own))
        return out if self.bias is None else out + self.bias

    def _message(self, src, dst, edge):
        """Scores, (n_edges, n_heads), and the values that they weigh."""
        score = ((src["z"] + dst["q"]).leaky_relu(self.slope) * self.attn).sum(-1)
        return score, src["z"] * edge["weight"] if "weight" in edge else src["z"]
