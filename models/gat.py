"""Graph attention network (Velickovic et al., 2018), as SAR Eq. 3."""

from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from sarlite import Graph, Tensor, fn, nn
from sarlite.errors import ConfigError
from sarlite.models.gat_forms import EdgeGATConv, PaperGATConv
from sarlite.models.heads import AttentionConv, joined
from sarlite.models.layered import Layered
from sarlite.nn import Dropout


class GATConv(AttentionConv):
    """h'_i = sum_j a_ij z_j per head, a_ij = softmax_j(leaky_relu(a_src . z_j + a_dst . z_i)), z = W h.

    With edge weights h'_i = sum_j w_ij a_ij z_j; see `fn.attend`.

    Parameters
    ----------
    n_in, n_feat, n_heads : int
        Features of the input; features of each head's output; heads.
    concat : bool
        True to put heads side by side, (n_dst, n_heads * n_feat); False to average the heads, (n_dst, n_feat).
    residual : bool
        True to add h_i, projected where the widths differ.
    attention_dropout : float
        Probability of dropping a coefficient a_ij in training.
    slope : float
        Slope of the leaky ReLU below zero.
    bias : bool
        True to add a bias to h'.
    rng : nn.Random
    dtype : float32 or float64
    """

    def __init__(self, n_in: int, n_feat: int, n_heads: int, *, concat: bool = True, residual: bool = False,
                 attention_dropout: float = 0.0, slope: float = 0.2, bias: bool = True, rng: nn.Random,
                 dtype: npt.DTypeLike = np.float32) -> None:
        super().__init__(n_in, n_feat, n_heads, concat=concat, residual=residual, slope=slope, bias=bias, rng=rng,
                         dtype=dtype)
        self.coefficients = Dropout(attention_dropout, rng)

    def __call__(self, graph: Graph, h: Any) -> Tensor:
        x, own = graph.src(h), graph.dst(h)
        src_weight, dst_weight = self.score_weights()
        message = fn.attend_linear(x, self.linear.weight, src_weight, own, self.slope, *self.coefficients.coin(),
                                   dst_weight)
        return joined(self, graph.aggregate(message, "sum"), own)


FORMS = {"standard": GATConv, "paper": PaperGATConv}
"""Forms of the layer by name."""


class GAT(Layered):
    """GAT layers with dropout of inputs and coefficients; between them batch norm or bias, and activation.

    In the paper's form (DistGNN-MB Eq. 2) bias and relu are in each layer, the last one too, and batch norm, where
    asked for, and the activation still stand between them; with neither batch norm nor a residual that activation
    changes nothing, since all is >= 0.

    Parameters
    ----------
    form : {"standard", "paper"}
        "paper" is DistGNN-MB's, `PaperGATConv`.
    edge_features : int
        Features of each edge that the scores see; see `EdgeGATConv`.
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
    hidden_options = ("hidden", "heads", "batch_norm", "activation")

    def __init__(self, n_in: int, n_out: int, *, form: str = "standard", layers: int = 2, hidden: int = 8,
                 heads: int = 8, out_heads: int = 1, out_concat: bool = False, dropout: float = 0.6,
                 input_dropout: float | None = None, attention_dropout: float = 0.6, residual: bool = False,
                 batch_norm: bool = False, activation: str = "elu", edge_features: int = 0, rng: nn.Random,
                 dtype: npt.DTypeLike = np.float32) -> None:
        if form not in FORMS:
            raise ConfigError(f"form {form!r} is not one of {', '.join(FORMS)}")
        conv: Any = FORMS[form]
        if edge_features:
            conv = partial(EdgeGATConv if conv is GATConv else conv, edge_features=edge_features)
        conv = partial(conv, attention_dropout=attention_dropout, residual=residual, rng=rng, dtype=dtype)
        self._make(conv, n_in, n_out, layers, hidden, heads, out_heads, out_concat, bias_inside=form == "paper")
        self.input_dropout = Dropout(dropout if input_dropout is None else input_dropout, rng)
        self.make_activations(hidden * heads, activation, batch_norm=batch_norm, bias=form == "standard",
                              dropout=dropout, rng=rng, dtype=dtype)

    def _make(self, conv, n_in, n_out, layers, hidden, heads, out_heads, out_concat, bias_inside):
        """Make the layers; `conv` is the function that makes one layer."""
        self.takes, layers, hidden = n_in, nn.whole("layers", layers, 1), nn.whole("hidden", hidden, 1)
        heads, out_heads = nn.whole("heads", heads, 1), nn.whole("out_heads", out_heads, 1)
        if out_concat and n_out % out_heads:
            raise ConfigError(f"out_concat: {n_out} outputs cannot be divided among {out_heads} heads")
        last, width = layers - 1, hidden * heads
        self.convs = [conv(width if i else n_in, hidden, heads, bias=bias_inside) for i in range(last)]
        n_feat = n_out // out_heads if out_concat else n_out
        self.convs.append(conv(width if last else n_in, n_feat, out_heads, concat=out_concat))
