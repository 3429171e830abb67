"""Two variants of `GATConv`: the attention layer of the paper DistGNN-MB, and a layer whose scores depend on edge features."""

from typing import Any

import numpy as np
import numpy.typing as npt

from sarlite import LayerGraph, Tensor, fn, nn
from sarlite.errors import ConfigError
from sarlite.models.heads import AttentionConv, join_heads
from sarlite.nn import Activation, Dropout, Linear, glorot


class PaperGATConv(AttentionConv):
    """Graph attention layer of DistGNN-MB Eq. 2: bias and relu are applied before attention, not after the sum.

    For each head h'_i = sum_j a_ij z_j with a_ij = softmax_j(leaky_relu(a_src . z_j + a_dst . q_i)), where
    z_j = relu(W_u h_j + b) and q_i = relu(W_v h_i + b).

    Parameters
    ----------
    n_in, n_feat, n_heads : int
        Width of the input rows; width of each head's output; number of heads.
    concat : bool
        True to put the heads side by side, (n_dst, n_heads * n_feat); False to average them, (n_dst, n_feat).
    residual : bool
        True to add the destination's input row h_i, multiplied by a learned matrix if the widths differ.
    attention_dropout : float in [0, 1)
        Probability of dropping a coefficient a_ij in training.
    slope : float
        Slope of the leaky ReLU below zero.
    bias : bool
        True for the bias b of z and q; h' has no bias.
    edge_features : int
        Number of features of each edge, `graph.edge_features`, that the scores depend on; see `EdgeGATConv`.
    rng : nn.Random
        Source of the initial values and of the dropout masks.
    dtype : float32 or float64
        Dtype of the parameters.

    Examples
    --------
    >>> import numpy as np
    >>> from sarlite import Graph, Tensor, nn
    >>> from sarlite.models import PaperGATConv
    >>> graph = Graph.from_edges([0, 1, 2], [1, 2, 0], self_loops=True)
    >>> model = PaperGATConv(8, n_feat=2, n_heads=2, rng=nn.Random(0))
    >>> model(graph, Tensor(np.ones((3, 8), np.float32))).shape
    (3, 4)
    """

    def __init__(self, n_in: int, n_feat: int, n_heads: int, *, concat: bool = True, residual: bool = False,
                 attention_dropout: float = 0.0, slope: float = 0.2, bias: bool = True, edge_features: int = 0,
                 rng: nn.Random, dtype: npt.DTypeLike = np.float32) -> None:
        super().__init__(n_in, n_feat, n_heads, concat=concat, residual=residual, slope=slope, bias=False, rng=rng,
                         dtype=dtype)
        width = self.n_heads * self.n_feat
        self.linear_dst = Linear(n_in, width, bias=False, rng=rng, dtype=dtype)
        self.update = Activation(width, "relu", bias=bias, rng=rng, dtype=dtype)
        self.attention_dropout = Dropout(attention_dropout, rng)
        self.attn_edge = _edge_weights(edge_features, self.n_heads, rng, dtype)

    def __call__(self, graph: LayerGraph, h: Tensor | tuple[Tensor, Tensor]) -> Tensor:
        h_dst = graph.dst(h)
        z = self.update(self.linear(graph.src(h)), graph)
        q = self.update(self.linear_dst(h_dst), graph)
        src, dst = z @ self._by_head(self.attn_src), q @ self._by_head(self.attn_dst)
        message = fn.attend(z.reshape(-1, self.n_heads, self.n_feat), src, dst, self.slope, *self.attention_dropout.mask_key(),
                            edge=_features_of(graph, self.attn_edge), attn_edge=self.attn_edge)
        return join_heads(self, graph.aggregate(message, "sum"), h_dst)

    def _by_head(self, a: Tensor) -> Tensor:
        """Return attention vectors `a`, (n_heads, n_feat), as a matrix M with a column for each head: rows z times M are the
        scores a . z. M is block-diagonal, (n_heads * n_feat, n_heads).
        """
        of_heads = Tensor(np.repeat(np.eye(self.n_heads, dtype=a.dtype), self.n_feat, axis=0), placement="replicated")
        return a.reshape(-1, 1) * of_heads


class EdgeGATConv(AttentionConv):
    """Graph attention layer whose scores depend on edge features e_ij too.

    The layer is a `GATConv` with a_ij = softmax_j(leaky_relu(a_src . z_j + a_dst . z_i + a_edge . e_ij)).

    Parameters
    ----------
    n_in, n_feat, n_heads : int
        Width of the input rows; width of each head's output; number of heads.
    edge_features : int
        Number of features of each edge, `graph.edge_features`.
    concat : bool
        True to put the heads side by side, (n_dst, n_heads * n_feat); False to average them, (n_dst, n_feat).
    residual : bool
        True to add the destination's input row h_i, multiplied by a learned matrix if the widths differ.
    attention_dropout : float in [0, 1)
        Probability of dropping a coefficient a_ij in training.
    slope : float
        Slope of the leaky ReLU below zero.
    bias : bool
        True to add a bias to the output.
    rng : nn.Random
        Source of the initial values and of the dropout masks.
    dtype : float32 or float64
        Dtype of the parameters.

    Examples
    --------
    >>> import numpy as np
    >>> from sarlite import Graph, Tensor, nn
    >>> from sarlite.models import EdgeGATConv
    >>> graph = Graph.from_edges([0, 1], [1, 0]).with_edge_values(features=np.ones((2, 5), np.float32))
    >>> layer = EdgeGATConv(8, n_feat=2, n_heads=2, edge_features=5, rng=nn.Random(0))
    >>> layer(graph, Tensor(np.ones((2, 8), np.float32))).shape
    (2, 4)
    """

    def __init__(self, n_in: int, n_feat: int, n_heads: int, *, edge_features: int, concat: bool = True,
                 residual: bool = False, attention_dropout: float = 0.0, slope: float = 0.2, bias: bool = True,
                 rng: nn.Random, dtype: npt.DTypeLike = np.float32) -> None:
        super().__init__(n_in, n_feat, n_heads, concat=concat, residual=residual, slope=slope, bias=bias, rng=rng,
                         dtype=dtype)
        self.attention_dropout = Dropout(attention_dropout, rng)
        self.attn_edge = _edge_weights(edge_features, self.n_heads, rng, dtype)

    def __call__(self, graph: LayerGraph, h: Tensor | tuple[Tensor, Tensor]) -> Tensor:
        x, h_dst = graph.src(h), graph.dst(h)
        z = self.linear(x).reshape(-1, self.n_heads, self.n_feat)
        src_weight, dst_weight = self.score_weights()
        message = fn.attend(z, x @ src_weight, h_dst @ dst_weight, self.slope, *self.attention_dropout.mask_key(),
                            edge=_features_of(graph, self.attn_edge), attn_edge=self.attn_edge)
        return join_heads(self, graph.aggregate(message, "sum"), h_dst)


def _edge_weights(n_features: int, n_heads: int, rng: nn.Random, dtype: npt.DTypeLike) -> nn.Parameter | None:
    """Return the learned attention weights of edge features, (n_features, n_heads), initialised by `rng`; None if n_features is 0."""
    return glorot(rng, (n_features, n_heads), n_features, n_heads, dtype) if n_features else None


def _features_of(graph: LayerGraph, attn_edge: Tensor | None) -> Any:
    """Return the graph's edge features, or None if `attn_edge`, the layer's attention weights of edge features, is None. Raise a
    ConfigError if the layer needs edge features and the graph has none.
    """
    if attn_edge is None:
        return None
    if graph.edge_features is None:
        raise ConfigError(f"the layer's scores see {len(attn_edge)} edge features, but the graph has none")
    return graph.edge_features
