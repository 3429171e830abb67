"""Graph attention network (Velickovic et al., 2018), as SAR Eq. 3."""

from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from sarlite import Graph, Tensor, fn, nn
from sarlite.errors import ConfigError
from sarlite.models.layered import Layered
from sarlite.nn import Activation, Dropout, Linear, Parameter, glorot


class GATConv(nn.Module):
    """h'_i = sum_j a_ij z_j per head, a_ij = softmax_j(leaky_relu(a_src . z_j + a_dst . z_i)), z = W h.

    In the paper's form (DistGNN-MB Eq. 2) z_j = relu(W_u h_j + b) of sources, and the z_i of a destination's score is
    relu(W_v h_i + b). With edge features e_ij each score is leaky_relu(a_src . z_j + a_dst . z_i + a_edge . e_ij); with
    edge weights h'_i = sum_j w_ij a_ij z_j. See `fn.attend`.

    Parameters
    ----------
    n_in, n_feat, n_heads : int
    edge_features : int
        Features of each edge, `graph.edge_features`, that the scores see.
    form : {"standard", "paper"}
    concat : bool
        Heads side by side, (n_dst, n_heads * n_feat); else their mean, (n_dst, n_feat).
    residual : bool
        Add h_i, projected where the widths differ.
    attention_dropout : float
    bias : bool
        A bias of h', in the paper's form the b of z.
    rng : nn.Random
    """

    def __init__(self, n_in: int, n_feat: int, n_heads: int, *, form: str = "standard", concat: bool = True,
                 residual: bool = False, attention_dropout: float = 0.0, slope: float = 0.2, bias: bool = True,
                 edge_features: int = 0, rng: nn.Random, dtype: npt.DTypeLike = np.float32) -> None:
        if form not in ("standard", "paper"):
            raise ConfigError(f"form {form!r} is not one of standard, paper")
        n_feat, n_heads = nn.whole("n_feat", n_feat, 1), nn.whole("n_heads", n_heads, 1)
        self.n_heads, self.n_feat, self.concat, self.slope, self.form = n_heads, n_feat, concat, slope, form
        width, n_out = n_heads * n_feat, n_heads * n_feat if concat else n_feat
        self.linear = Linear(n_in, width, bias=False, rng=rng, dtype=dtype)
        self.attn_src = glorot(rng, (n_heads, n_feat), 2 * n_feat, 1, dtype)
        self.attn_dst = glorot(rng, (n_heads, n_feat), 2 * n_feat, 1, dtype)
        self.root = Linear(n_in, n_out, bias=False, rng=rng, dtype=dtype) if residual and n_in != n_out else None
        self.residual = residual
        self.bias = Parameter(np.zeros(n_out, dtype)) if bias and form == "standard" else None
        self.linear_dst = Linear(n_in, width, bias=False, rng=rng, dtype=dtype) if form == "paper" else None
        self.update = Activation(width, "relu", bias=bias, rng=rng, dtype=dtype) if form == "paper" else None
        self.coefficients = Dropout(attention_dropout, rng)
        self.attn_edge = glorot(rng, (edge_features, n_heads), edge_features, n_heads, dtype) if edge_features else None

    def __call__(self, graph: Graph, h: Any) -> Tensor:
        own = graph.dst(h)
        return joined(self, self._attend(graph, graph.src(h), own), own)

    def _attend(self, graph, x, own):
        """(n_dst, n_heads, n_feat). In a method, z goes before heads are averaged where the tape does not need z."""
        fused = self.update is None and self.attn_edge is None
        product_last = fused and not graph.attends_products(x, self.n_heads, self.n_feat)
        z, src, dst = self._standard(x, own, product_last) if self.update is None else self._paper(x, own, graph)
        edge = None if self.attn_edge is None else graph.edge_features
        if self.attn_edge is not None and edge is None:
            raise ConfigError(f"the layer's scores see {len(self.attn_edge)} edge features, but the graph has none")
        message = fn.attend(z, src, dst, self.slope, *self.coefficients.coin(), edge=edge, attn_edge=self.attn_edge)
        out = graph.aggregate(message, "sum")
        if product_last:
            out = out.matmul_by_head(self.linear.weight.reshape(-1, self.n_heads, self.n_feat).transpose(1, 0, 2))
        return out

    def _standard(self, x, own, product_last):
        w = self.linear.weight.reshape(-1, self.n_heads, self.n_feat)
        z = x.reshape(-1, 1, x.shape[1]) if product_last else self.linear(x).reshape(-1, self.n_heads, self.n_feat)
        return z, x @ (w * self.attn_src).sum(-1), own @ (w * self.attn_dst).sum(-1)  # a . W h = (W a) . h

    def _paper(self, x, own, graph):
        z, z_dst = self.update(self.linear(x), graph), self.update(self.linear_dst(own), graph)
        src, dst = z @ self._by_head(self.attn_src), z_dst @ self._by_head(self.attn_dst)
        return z.reshape(-1, self.n_heads, self.n_feat), src, dst

    def _by_head(self, a):
        """(n_heads * n_feat, n_heads): a head's vector in its column, else 0: a product is each head's a . z."""
        return (a.reshape(-1, 1) * np.repeat(np.eye(self.n_heads, dtype=a.dtype), self.n_feat, axis=0))


def joined(conv: Any, out: Tensor, own: Any) -> Tensor:
    """Return the output of a layer of attention, of its heads' (n_dst, n_heads, n_feat): side by side or averaged, and
    with the residual and the bias.
    """
    out = out.reshape(-1, conv.n_heads * conv.n_feat) if conv.concat else out.mean(1)
    if conv.residual:
        out = out + (own if conv.root is None else conv.root(own))
    return out if conv.bias is None else out + conv.bias


class GAT(Layered):
    """GAT layers with dropout of inputs and coefficients; between them batch norm or bias, and activation.

    In the paper's form (DistGNN-MB Eq. 2) bias and relu are in each layer, the last one too, and batch norm, where
    asked for, and the activation still stand between them; with neither batch norm nor a residual that activation
    changes nothing, since all is >= 0.

    Parameters
    ----------
    form : {"standard", "paper"}
    edge_features : int
        See `GATConv`.
    hidden : int
        Features a head.
    heads, out_heads : int
        Of the hidden layers, side by side; of the last layer.
    out_concat : bool
        Put the last layer's heads side by side, n_out / out_heads features each; else average heads of n_out features.
    attention_dropout, residual
        See `GATConv`.
    n_in, n_out, layers, dropout, input_dropout, batch_norm, activation, rng
        See `Layered`.
    """

    self_loops = True
    overwrites = False  # attention's gradient reads its output

    def __init__(self, n_in: int, n_out: int, *, form: str = "standard", layers: int = 2, hidden: int = 8,
                 heads: int = 8, out_heads: int = 1, out_concat: bool = False, dropout: float = 0.6,
                 input_dropout: float | None = None, attention_dropout: float = 0.6, residual: bool = False,
                 batch_norm: bool = False, activation: str = "elu", edge_features: int = 0, rng: nn.Random,
                 dtype: npt.DTypeLike = np.float32) -> None:
        conv = partial(GATConv, form=form, attention_dropout=attention_dropout, edge_features=edge_features,
                       residual=residual, rng=rng, dtype=dtype)
        self._make(conv, n_in, n_out, layers, hidden, heads, out_heads, out_concat, bias_inside=form == "paper")
        self.input_dropout = Dropout(dropout if input_dropout is None else input_dropout, rng)
        self.make_activations(hidden * heads, activation, batch_norm=batch_norm, bias=form == "standard",
                              dropout=dropout, rng=rng, dtype=dtype)

    def _make(self, conv, n_in, n_out, layers, hidden, heads, out_heads, out_concat, bias_inside):
        """Make the layers, of what `conv` makes one."""
        self.takes, layers, hidden = n_in, nn.whole("layers", layers, 1), nn.whole("hidden", hidden, 1)
        heads, out_heads = nn.whole("heads", heads, 1), nn.whole("out_heads", out_heads, 1)
        if out_concat and n_out % out_heads:
            raise ConfigError(f"out_concat: {n_out} outputs cannot be divided among {out_heads} heads")
        last, width = layers - 1, hidden * heads
        self.convs = [conv(width if i else n_in, hidden, heads, bias=bias_inside) for i in range(last)]
        n_feat = n_out // out_heads if out_concat else n_out
        self.convs.append(conv(width if last else n_in, n_feat, out_heads, concat=out_concat))
