"""AttentionConv, the base class of attention layers, and join_heads, which concatenates or averages the heads' outputs."""

from typing import Protocol

import numpy as np
import numpy.typing as npt

from sarlite import Tensor, nn
from sarlite.models.layered import Conv
from sarlite.nn import Linear, Parameter, glorot


class AttentionConv(Conv):
    """Base class of attention layers, which holds their parameters: W, a_src and a_dst of the heads, the residual matrix and the
    bias.

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
    bias : bool
        True to add a bias to the output.
    rng : nn.Random
        Source of the initial values.
    dtype : float32 or float64
        Dtype of the parameters.
    """

    def __init__(self, n_in: int, n_feat: int, n_heads: int, *, concat: bool, residual: bool, slope: float, bias: bool,
                 rng: nn.Random, dtype: npt.DTypeLike) -> None:
        n_feat, n_heads = nn.check_int("n_feat", n_feat, 1), nn.check_int("n_heads", n_heads, 1)
        self.n_heads, self.n_feat, self.concat, self.slope, self.residual = n_heads, n_feat, concat, slope, residual
        n_out = n_heads * n_feat if concat else n_feat
        self.linear = Linear(n_in, n_heads * n_feat, bias=False, rng=rng, dtype=dtype)
        self.attn_src = glorot(rng, (n_heads, n_feat), 2 * n_feat, 1, dtype)
        self.attn_dst = glorot(rng, (n_heads, n_feat), 2 * n_feat, 1, dtype)
        self.root = Linear(n_in, n_out, bias=False, rng=rng, dtype=dtype) if residual and n_in != n_out else None
        self.bias = Parameter(np.zeros(n_out, dtype)) if bias else None

    def score_weights(self) -> tuple[Tensor, Tensor]:
        """Return two matrices, each (n_in, n_heads): W a_src and W a_dst, by head. The products of rows h with them are the attention
        scores of the rows as sources and as destinations.
        """
        weight = self.linear.weight.reshape(-1, self.n_heads, self.n_feat)
        return (weight * self.attn_src).sum(-1), (weight * self.attn_dst).sum(-1)


class MultiHead(Protocol):
    """Interface of an attention layer with several heads: the attributes that `join_heads` reads."""

    n_heads: int
    n_feat: int
    concat: bool
    residual: bool
    root: Linear | None
    bias: Parameter | None


def join_heads(conv: MultiHead, out: Tensor, h_dst: Tensor) -> Tensor:
    """Return the output rows of layer `conv`: its heads' outputs `out`, concatenated or averaged, plus the residual and the bias.
    The residual is computed from `h_dst`, the input rows of the destinations.

    Parameters
    ----------
    conv : MultiHead
    out : Tensor (n_dst, n_heads, n_feat)
    h_dst : Tensor (n_dst, n_in)
        Input rows of the destinations, for the residual.
    """
    out = out.reshape(-1, conv.n_heads * conv.n_feat) if conv.concat else out.mean(1)
    if conv.residual:
        out = out + (h_dst if conv.root is None else conv.root(h_dst))
    return out if conv.bias is None else out + conv.bias
