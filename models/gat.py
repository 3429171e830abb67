"""Graph attention network (Velickovic et al., 2018), as SAR Eq. 3."""

from typing import Any

import numpy as np
import numpy.typing as npt

from sarlite import Graph, Tensor, fn, nn
from sarlite.errors import ConfigError
from sarlite.nn import Activation, Dropout, Linear, Parameter, glorot


class GATConv(nn.Module):
    """h'_i = sum_j a_ij z_j per head, a_ij = softmax_j(leaky_relu(a_src . z_j + a_dst . z_i)), z = W h.

    Parameters
    ----------
    n_in, n_feat, n_heads : int
    concat : bool
        Heads side by side, (n_dst, n_heads * n_feat); else their mean, (n_dst, n_feat).
    residual : bool
        Add h_i, projected where the widths differ.
    attention_dropout : float
    rng : nn.Random
    """

    def __init__(self, n_in: int, n_feat: int, n_heads: int, *, concat: bool = True, residual: bool = False,
                 attention_dropout: float = 0.0, slope: float = 0.2, bias: bool = True, rng: nn.Random,
                 dtype: npt.DTypeLike = np.float32) -> None:
        self.n_heads, self.n_feat, self.concat, self.slope = n_heads, n_feat, concat, slope
        n_out = n_heads * n_feat if concat else n_feat
        self.linear = Linear(n_in, n_heads * n_feat, bias=False, rng=rng, dtype=dtype)
        self.attn_src = glorot(rng, (n_heads, n_feat), 2 * n_feat, 1, dtype)
        self.attn_dst = glorot(rng, (n_heads, n_feat), 2 * n_feat, 1, dtype)
        self.root = Linear(n_in, n_out, bias=False, rng=rng, dtype=dtype) if residual and n_in != n_out else None
        self.residual = residual
        self.bias = Parameter(np.zeros(n_out, dtype)) if bias else None
        self.coefficients = Dropout(attention_dropout, rng)

    def __call__(self, graph: Graph, h: Any) -> Tensor:
        x, own = graph.src(h), graph.dst(h)
        z = self.linear(x).reshape(-1, self.n_heads, self.n_feat)
        w = self.linear.weight.reshape(-1, self.n_heads, self.n_feat)
        src, dst = x @ (w * self.attn_src).sum(-1), own @ (w * self.attn_dst).sum(-1)  # a . W h = (W a) . h
        out = graph.aggregate(fn.attend(z, src, dst, self.slope, *self.coefficients.coin()), "sum")
        out = out.reshape(-1, self.n_heads * self.n_feat) if self.concat else out.mean(1)
        if self.residual:
            out = out + (own if self.root is None else self.root(own))
        return out if self.bias is None else out + self.bias


class GAT(nn.Module):
    """GAT layers with dropout on every layer's input and on the coefficients; between them batch norm or bias, and activation.

    Parameters
    ----------
    n_in, n_out : int
        Features and classes.
    layers : int
    hidden : int
        Features a head.
    heads, out_heads : int
        Of the hidden layers, side by side; of the last layer.
    out_concat : bool
        Put the last layer's heads side by side, n_out / out_heads features each; else average heads of n_out features.
    dropout, attention_dropout : float
    input_dropout : float, optional
        Of the first layer's input; as `dropout` without it.
    residual : bool
    batch_norm : bool
        Normalise before each activation, in place of the bias of the layer below.
    activation : {"elu", "relu"}
    rng : nn.Random
    """

    self_loops = True

    def __init__(self, n_in: int, n_out: int, *, layers: int = 2, hidden: int = 8, heads: int = 8, out_heads: int = 1,
                 out_concat: bool = False, dropout: float = 0.6, input_dropout: float | None = None, attention_dropout: float = 0.6,
                 residual: bool = False, batch_norm: bool = False, activation: str = "elu", rng: nn.Random,
                 dtype: npt.DTypeLike = np.float32) -> None:
        layers, hidden, heads = nn.whole("layers", layers, 1), nn.whole("hidden", hidden, 1), nn.whole("heads", heads, 1)
        out_heads = nn.whole("out_heads", out_heads, 1)
        last, width = layers - 1, hidden * heads
        options: dict[str, Any] = dict(residual=residual, attention_dropout=attention_dropout, rng=rng, dtype=dtype)
        self.convs = [GATConv(width if i else n_in, hidden, heads, bias=False, **options) for i in range(last)]
        if out_concat and n_out % out_heads:
            raise ConfigError(f"out_concat: {n_out} outputs cannot be divided among {out_heads} heads")
        n_feat = n_out // out_heads if out_concat else n_out
        self.convs.append(GATConv(width if last else n_in, n_feat, out_heads, concat=out_concat, **options))
        self.input_dropout = Dropout(dropout if input_dropout is None else input_dropout, rng)
        self.activations = [Activation(width, activation, batch_norm=batch_norm, dropout=dropout, rng=rng, dtype=dtype)
                            for _ in range(last)]

    def __call__(self, graph: Graph, h: Any) -> Tensor:
        for k, g in enumerate(graph.layers(len(self.convs))):
            g, h = g.enter(h)
            h = self.convs[k](g, h if k else self.input_dropout(h, g.src_ids))
            h = self.activations[k](h, g) if k < len(self.activations) else h
        return h
