"""Further forms of graph attention: DistGNN-MB's, and attention whose scores see features of the edges."""

from typing import Any

import numpy as np
import numpy.typing as npt

from sarlite import Graph, Tensor, fn, nn
from sarlite.errors import ConfigError
from sarlite.models.heads import AttentionConv, joined
from sarlite.nn import Activation, Dropout, Linear, glorot


class PaperGATConv(AttentionConv):
    """h'_i = sum_j a_ij z_j per head, z_j = relu(W_u h_j + b), a_ij = softmax_j(leaky_relu(a_src . z_j + a_dst . q_i)).

    q_i = relu(W_v h_i + b) is the destination's side of the scores, with the same b (DistGNN-MB Eq. 2).

    Parameters
    ----------
    bias : bool
        True for the b of z and q; h' has no bias.
    edge_features : int
        Features of each edge, `graph.edge_features`, that the scores see; see `EdgeGATConv`.
    n_in, n_feat, n_heads, concat, residual, attention_dropout, slope, rng, dtype
        As of `GATConv`.
    """

    def __init__(self, n_in: int, n_feat: int, n_heads: int, *, concat: bool = True, residual: bool = False,
                 attention_dropout: float = 0.0, slope: float = 0.2, bias: bool = True, edge_features: int = 0,
                 rng: nn.Random, dtype: npt.DTypeLike = np.float32) -> None:
        super().__init__(n_in, n_feat, n_heads, concat=concat, residual=residual, slope=slope, bias=False, rng=rng,
                         dtype=dtype)
        width = self.n_heads * self.n_feat
        self.linear_dst = Linear(n_in, width, bias=False, rng=rng, dtype=dtype)
        self.update = Activation(width, "relu", bias=bias, rng=rng, dtype=dtype)
        self.coefficients = Dropout(attention_dropout, rng)
        self.attn_edge = _edge_weights(edge_features, self.n_heads, rng, dtype)

    def __call__(self, graph: Graph, h: Any) -> Tensor:
        own = graph.dst(h)
        z = self.update(self.linear(graph.src(h)), graph)
        q = self.update(self.linear_dst(own), graph)
        src, dst = z @ self._by_head(self.attn_src), q @ self._by_head(self.attn_dst)
        message = fn.attend(z.reshape(-1, self.n_heads, self.n_feat), src, dst, self.slope, *self.coefficients.coin(),
                            edge=_features_of(graph, self.attn_edge), attn_edge=self.attn_edge)
        return joined(self, graph.aggregate(message, "sum"), own)

    def _by_head(self, a):
        """Return a matrix (n_heads * n_feat, n_heads) whose product computes a . z of each head."""
        of_heads = Tensor(np.repeat(np.eye(self.n_heads, dtype=a.dtype), self.n_feat, axis=0), placement="replicated")
        return a.reshape(-1, 1) * of_heads


class EdgeGATConv(AttentionConv):
    """`GATConv` whose scores see features e_ij of the edges: leaky_relu(a_src . z_j + a_dst . z_i + a_edge . e_ij).

    Parameters
    ----------
    edge_features : int
        Features of each edge, `graph.edge_features`.
    n_in, n_feat, n_heads, concat, residual, attention_dropout, slope, bias, rng, dtype
        As of `GATConv`.
    """

    def __init__(self, n_in: int, n_feat: int, n_heads: int, *, edge_features: int, concat: bool = True,
                 residual: bool = False, attention_dropout: float = 0.0, slope: float = 0.2, bias: bool = True,
                 rng: nn.Random, dtype: npt.DTypeLike = np.float32) -> None:
        super().__init__(n_in, n_feat, n_heads, concat=concat, residual=residual, slope=slope, bias=bias, rng=rng,
                         dtype=dtype)
        self.coefficients = Dropout(attention_dropout, rng)
        self.attn_edge = _edge_weights(edge_features, self.n_heads, rng, dtype)

    def __call__(self, graph: Graph, h: Any) -> Tensor:
        x, own = graph.src(h), graph.dst(h)
        z = self.linear(x).reshape(-1, self.n_heads, self.n_feat)
        src_weight, dst_weight = self.score_weights()
        message = fn.attend(z, x @ src_weight, own @ dst_weight, self.slope, *self.coefficients.coin(),
                            edge=_features_of(graph, self.attn_edge), attn_edge=self.attn_edge)
        return joined(self, graph.aggregate(message, "sum"), own)


def _edge_weights(n_features, n_heads, rng, dtype):
    """Return a_edge, (n_features, n_heads); None without features."""
    return glorot(rng, (n_features, n_heads), n_features, n_heads, dtype) if n_features else None


def _features_of(graph, attn_edge):
    """Return the edges' features for a_edge; None without a_edge."""
    if attn_edge is None:
        return None
    if graph.edge_features is None:
        raise ConfigError(f"the layer's scores see {len(attn_edge)} edge features, but the graph has none")
    return graph.edge_features
