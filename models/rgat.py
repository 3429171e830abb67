"""Relational graph attention: attention within each relation, as SAR Eq. 3, summed over relations."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from sarlite import HeteroGraph, Tensor, fn, nn
from sarlite.models.rgcn import RGCN
from sarlite.nn import Dropout, Linear, glorot


class RGATConv(nn.Module):
    """h'_i = W_t h_i + b_t + sum_r sum_{j in N_r(i)} a_ij W_r h_j per head.

    a_ij = softmax_j(leaky_relu(a_r . W_r h_j + c_r . h_i)), t is i's type.

    Parameters
    ----------
    n_in : dict of str to int
        Width by node type.
    n_feat, n_heads : int
    relations : sequence of (source type, name, destination type)
    types : sequence of str, optional
        See `RGCNConv`.
    concat : bool
        Heads side by side, (n_dst, n_heads * n_feat); else their mean.
    attention_dropout, slope : float
    rng : nn.Random
    """

    def __init__(self, n_in: Mapping[str, int], n_feat: int, n_heads: int, relations: Any, types: Any = None, *,
                 concat: bool = True, attention_dropout: float = 0.0, slope: float = 0.2, bias: bool = True,
                 rng: nn.Random, dtype: npt.DTypeLike = np.float32) -> None:
        n_feat, n_heads = nn.whole("n_feat", n_feat, 1), nn.whole("n_heads", n_heads, 1)
        self.relations, self.n_heads, self.n_feat = tuple(relations), n_heads, n_feat
        self.concat, self.slope, width = concat, slope, n_heads * n_feat
        self.roots = {name: Linear(n_in[name], width if concat else n_feat, bias=bias, rng=rng, dtype=dtype)
                      for name in (sorted({relation[2] for relation in self.relations}) if types is None else types)}
        self.weights = [glorot(rng, (n_in[source], width), n_in[source], width, dtype)
                        for source, _, _ in self.relations]
        self.attn_src = [glorot(rng, (n_heads, n_feat), 2 * n_feat, 1, dtype) for _ in self.relations]
        self.attn_dst = [glorot(rng, (n_in[to], n_heads), n_in[to], n_heads, dtype) for _, _, to in self.relations]
        self.coefficients = [Dropout(attention_dropout, rng) for _ in self.relations]

    def __call__(self, graph: HeteroGraph, h: Mapping[str, Tensor]) -> dict[str, Tensor]:
        own = graph.dst(h)
        sums = graph.aggregate({relation: self._message(k, h, own) for k, relation in enumerate(self.relations)}, "sum")
        return {name: root(own[name]) + self._joined(sums[name]) if name in sums else root(own[name])
                for name, root in self.roots.items()}

    def _message(self, k, h, own):
        source, _, to = self.relations[k]
        weight = self.weights[k]
        src_weight = (weight.reshape(-1, self.n_heads, self.n_feat) * self.attn_src[k]).sum(-1)  # a . W h = (W a) . h
        return fn.attend_linear(h[source], weight, src_weight, own[to] @ self.attn_dst[k], self.slope,
                                *self.coefficients[k].coin(to))

    def _joined(self, out):
        return out.reshape(-1, self.n_heads * self.n_feat) if self.concat else out.mean(1)


class RGAT(RGCN):
    """R-GAT layers for one node type's labels; what stands around them is as in `RGCN`.

    Parameters
    ----------
    n_in, n_out, nodes, layers, embedding, learned_rows, dropout, activation, rng
        See `RGCN`.
    hidden : int
        Features a head.
    heads, out_heads : int
        Of the hidden layers, side by side; of the last layer, averaged.
    attention_dropout : float
    """

    def __init__(self, n_in: Mapping[str, int], n_out: int, nodes: Any, *, layers: int = 2, hidden: int = 32,
                 heads: int = 4, out_heads: int = 1, embedding: int | None = None,
                 learned_rows: Sequence[str] = (), dropout: float = 0.5, attention_dropout: float = 0.0,
                 activation: str = "elu", rng: nn.Random, dtype: npt.DTypeLike = np.float32) -> None:
        hidden, self.heads = nn.whole("hidden", hidden, 1), nn.whole("heads", heads, 1)
        self.out_heads, self.attention_dropout = nn.whole("out_heads", out_heads, 1), attention_dropout
        super().__init__(n_in, n_out, nodes, layers=layers, hidden=hidden * self.heads, embedding=embedding,
                         learned_rows=learned_rows, dropout=dropout, activation=activation, rng=rng, dtype=dtype)

    def _conv(self, widths, n_out, graph, types, last, *, rng, dtype, **_):
        heads = self.out_heads if last else self.heads
        return RGATConv(widths, n_out if last else n_out // heads, heads, graph.into(types), types, concat=not last,
                        bias=last, attention_dropout=self.attention_dropout, rng=rng, dtype=dtype)
