"""Base class of attention layers: the weights of the heads, and the combination of the heads' outputs."""

from typing import Any

import numpy as np
import numpy.typing as npt

from sarlite import Tensor, nn
from sarlite.nn import Linear, Parameter, glorot


class AttentionConv(nn.Module):
    """Weights W, a_src and a_dst of an attention layer with several heads, and its residual and bias.

    Parameters
    ----------
    n_in, n_feat, n_heads : int
        Features of the input; features of each head's output; heads.
    concat : bool
        True to put heads side by side, (n_dst, n_heads * n_feat); False to average the heads, (n_dst, n_feat).
    residual : bool
        True to add h_i, projected where the widths differ.
    slope : float
        Slope of the leaky ReLU below zero.
    bias : bool
        True to add a bias to h'.
    rng : nn.Random
    dtype : float32 or float64
    """

    def __init__(self, n_in: int, n_feat: int, n_heads: int, *, concat: bool, residual: bool, slope: float, bias: bool,
                 rng: nn.Random, dtype: npt.DTypeLike) -> None:
        n_feat, n_heads = nn.whole("n_feat", n_feat, 1), nn.whole("n_heads", n_heads, 1)
        self.n_heads, self.n_feat, self.concat, self.slope, self.residual = n_heads, n_feat, concat, slope, residual
        n_out = n_heads * n_feat if concat else n_feat
        self.linear = Linear(n_in, n_heads * n_feat, bias=False, rng=rng, dtype=dtype)
        self.attn_src = glorot(rng, (n_heads, n_feat), 2 * n_feat, 1, dtype)
        self.attn_dst = glorot(rng, (n_heads, n_feat), 2 * n_feat, 1, dtype)
        self.root = Linear(n_in, n_out, bias=False, rng=rng, dtype=dtype) if residual and n_in != n_out else None
        self.bias = Parameter(np.zeros(n_out, dtype)) if bias else None

    def score_weights(self) -> tuple[Tensor, Tensor]:
        """Return W a_src and W a_dst by head, each of shape (n_in, n_heads): a . W h = (W a) . h."""
        weight = self.linear.weight.reshape(-1, self.n_heads, self.n_feat)
        return (weight * self.attn_src).sum(-1), (weight * self.attn_dst).sum(-1)


def joined(conv: Any, out: Tensor, own: Any) -> Tensor:
    """Return the output of a layer, of its heads' (n_dst, n_heads, n_feat): side by side or averaged.

    The residual, of the destinations' own rows, and the bias are added.
    """
    out = out.reshape(-1, conv.n_heads * conv.n_feat) if conv.concat else out.mean(1)
    if conv.residual:
        out = out + (own if conv.root is None else conv.root(own))
    return out if conv.bias is None else out + conv.bias
