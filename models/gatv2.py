"""GATv2: graph attention with dynamic scores (Brody, Alon & Yahav, 2022)."""

from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from sarlite import LayerGraph, Tensor, nn
from sarlite.models.gat import GAT
from sarlite.models.heads import join_heads
from sarlite.models.layered import Conv
from sarlite.nn import Dropout, Linear, Parameter, glorot


class GATv2Conv(Conv):
    """Graph attention layer with dynamic scores: for each head h'_i = sum_j a_ij z_j with a_ij = softmax_j(a . leaky_relu(z_j + q_i)).

    z = W_src h + b_src and q = W_dst h + b_dst. With edge weights h'_i = sum_j w_ij a_ij z_j.

    Parameters
    ----------
    n_in, n_feat, n_heads : int
        Width of the input rows; width of each head's output; number of heads.
    concat : bool
        True to put the heads side by side, (n_dst, n_heads * n_feat); False to average them, (n_dst, n_feat).
    residual : bool
        True to add the destination's input row h_i, multiplied by a learned matrix if the widths differ.
    slope : float
        Slope of the leaky ReLU below zero.
    attention_dropout : float in [0, 1)
        Probability of dropping a coefficient a_ij in training.
    bias : bool
        True for b_src, b_dst and a bias of the output.
    rng : nn.Random
        Source of the initial values and of the dropout masks.
    dtype : float32 or float64
        Dtype of the parameters.

    Notes
    -----
    The scores are a Python message, not a fused kernel: O(n_edges * n_heads * n_feat) values are held for one block of
    edges at a time.

    Examples
    --------
    >>> import numpy as np
    >>> from sarlite import Graph, Tensor, nn
    >>> from sarlite.models import GATv2Conv
    >>> graph = Graph.from_edges([0, 1, 2], [1, 2, 0], self_loops=True)
    >>> model = GATv2Conv(8, n_feat=2, n_heads=2, rng=nn.Random(0))
    >>> model(graph, Tensor(np.ones((3, 8), np.float32))).shape
    (3, 4)
    """

    def __init__(self, n_in: int, n_feat: int, n_heads: int, *, concat: bool = True, residual: bool = False,
                 slope: float = 0.2, attention_dropout: float = 0.0, bias: bool = True, rng: nn.Random,
                 dtype: npt.DTypeLike = np.float32) -> None:
        n_feat, n_heads = nn.check_int("n_feat", n_feat, 1), nn.check_int("n_heads", n_heads, 1)
        self.n_heads, self.n_feat, self.concat, self.slope, self.residual = n_heads, n_feat, concat, slope, residual
        width, n_out = n_heads * n_feat, n_heads * n_feat if concat else n_feat
        self.linear_src = Linear(n_in, width, bias=bias, rng=rng, dtype=dtype)
        self.linear_dst = Linear(n_in, width, bias=bias, rng=rng, dtype=dtype)
        self.attn = glorot(rng, (n_heads, n_feat), n_feat, 1, dtype)
        self.root = Linear(n_in, n_out, bias=False, rng=rng, dtype=dtype) if residual and n_in != n_out else None
        self.bias = Parameter(np.zeros(n_out, dtype)) if bias else None
        self.attention_dropout = Dropout(attention_dropout, rng)

    def __call__(self, graph: LayerGraph, h: Tensor | tuple[Tensor, Tensor]) -> Tensor:
        h_dst = graph.dst(h)
        z = self.linear_src(graph.src(h)).reshape(-1, self.n_heads, self.n_feat)
        q = self.linear_dst(h_dst).reshape(-1, self.n_heads, self.n_feat)
        weight = {}
        if graph.edge_weight is not None:
            weight["weight"] = graph.edge_weight.astype(z.dtype, copy=False).reshape(-1, 1, 1)
        return join_heads(self, graph.aggregate(self._message, "softmax", src={"z": z}, dst={"q": q}, edge=weight), h_dst)

    def _message(self, src: dict[str, Tensor], dst: dict[str, Tensor], edge: Any) -> tuple[Tensor, Tensor]:
        """Return (attention scores (n_edges, n_heads), values (n_edges, n_heads, n_feat)) of the edges. `src` has the rows z of the
        edges' sources, `dst` the rows q of their destinations, and `edge` the edge weights.
        """
        score, value = ((src["z"] + dst["q"]).leaky_relu(self.slope) * self.attn).sum(-1), src["z"]
        if self.attention_dropout.mask_key()[0]:
            mask = self.attention_dropout(Tensor(np.ones(score.shape, score.dtype), placement="rows"), edge.ids)
            value = value * mask.reshape(-1, self.n_heads, 1)
        return score, value * edge["weight"] if "weight" in edge else value


class GATv2(GAT):
    """Graph attention network with dynamic scores: a sequence of `GATv2Conv` layers with activations between them.

    Parameters
    ----------
    n_in, n_out : int
        Width of the input rows; width of the output rows, such as the number of classes.
    layers : int
        Number of layers.
    hidden : int
        Width of each head's output in every layer but the last.
    heads, out_heads : int
        Number of heads of every layer but the last, which stand side by side; number of heads of the last layer.
    out_concat : bool
        True to put the last layer's heads side by side, n_out / out_heads values each; False to average heads of n_out
        values.
    dropout : float in [0, 1)
        Dropout probability of the input of every layer.
    input_dropout : float in [0, 1), optional
        Dropout probability of the features; by default `dropout`. With 0 the aggregation of constant features is
        computed only once.
    attention_dropout : float in [0, 1)
        Probability of dropping a coefficient a_ij in training.
    residual : bool
        True to add the destination's input row to the output of each layer; see `GATv2Conv`.
    batch_norm : bool
        True for batch norm before each activation.
    activation : {"relu", "elu"}
    rng : nn.Random
        Source of the initial values and of the dropout masks.
    dtype : float32 or float64
        Dtype of the parameters.

    Examples
    --------
    >>> import numpy as np
    >>> from sarlite import Graph, Tensor, nn
    >>> from sarlite.models import GATv2
    >>> graph = Graph.from_edges([0, 1, 2], [1, 2, 0], self_loops=True)
    >>> model = GATv2(8, 4, rng=nn.Random(0))
    >>> model(graph, Tensor(np.ones((3, 8), np.float32))).shape
    (3, 4)
    """

    def __init__(self, n_in: int, n_out: int, *, layers: int = 2, hidden: int = 8, heads: int = 8, out_heads: int = 1,
                 out_concat: bool = False, dropout: float = 0.6, input_dropout: float | None = None,
                 attention_dropout: float = 0.6, residual: bool = False, batch_norm: bool = False,
                 activation: str = "elu", rng: nn.Random, dtype: npt.DTypeLike = np.float32) -> None:
        conv = partial(GATv2Conv, attention_dropout=attention_dropout, residual=residual, rng=rng, dtype=dtype)
        self._make(conv, n_in, n_out, layers, hidden, heads, out_heads, out_concat, hidden_bias=True)
        self.input_dropout = Dropout(dropout if input_dropout is None else input_dropout, rng)
        self.make_activations(hidden * heads, activation, batch_norm=batch_norm, bias=False, dropout=dropout, rng=rng,
                              dtype=dtype)
