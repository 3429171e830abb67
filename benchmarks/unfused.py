"""Attention in two steps, as libraries without a fused kernel compute it: coefficients written to memory, then a
weighted sum (SAR 3.3).

What `paper.py` compares the fused operator with. `GAT` is `sarlite.models.GAT` with this operator; the training command
takes it as `--model benchmarks/unfused.py:GAT`. No dropout of coefficients.
"""

import numpy as np

from sarlite import kernels, models
from sarlite.errors import ConfigError
from sarlite.models.gat import GATConv
from sarlite.operators.aggregate import aggregate
from sarlite.operators.attend import Attend


class TwoSteps(Attend):
    """`Attend` by (n_edges, n_heads) coefficients.

    A mode that keeps what blocks need keeps them, the others compute them again.
    """

    overwrites = False

    def begin(self, needs, arrays, keep):
        super().begin(needs, arrays, keep)
        self.m[...], self.l[...], self.out[...], self.keep = -np.inf, 0, 0, keep

    def forward(self, block, rows):
        z, src = rows
        score = self.scores(block, src)
        rows_of = slice(None) if block.rows is None else block.rows
        top = self.m.copy()
        kernels.extremum(block.indptr, None, score, top, np.zeros(top.shape, block.indices.dtype), rows=block.rows,
                         sign=1,
                         label=block.labels)
        shift = np.where(np.isneginf(top), 0, top)
        shrink = np.exp(self.m[rows_of] - shift[rows_of])
        self.l[rows_of] *= shrink
        self.out[rows_of] *= shrink[:, :, None]
        weight = np.exp(score - block.at_dst(shift))
        block.sum_to_dst(weight, self.l)
        kernels.spmm(block.indptr, block.indices, z, self.out, rows=block.rows, weight=weight)
        self.m = top
        return (z, src, score) if self.keep else None

    def scores(self, block, src):
        score = block.at_src(src)
        score += block.at_dst(self.dst)
        np.maximum(score, self.slope * score, out=score)
        return score

    def begin_backward(self, g):
        self.g = np.ascontiguousarray(g)
        self.delta = np.empty_like(self.m)
        kernels.row_dot(self.g, self.out, self.delta)
        self.d_dst = np.zeros_like(self.dst)

    def backward(self, block, rows, kept, d_rows):
        z, src, score = kept or (*rows, None)
        score = self.scores(block, src) if score is None else score
        weight = np.exp(score - block.at_dst(self.m))
        weight *= block.at_dst(self.l)
        d_score = np.zeros_like(weight)
        kernels.edge_dot(block.indptr, block.indices, self.g, z, d_score, rows=block.rows)
        d_score -= block.at_dst(self.delta)
        d_score *= weight
        d_score[score < 0] *= self.slope
        block.sum_to_dst(d_score, self.d_dst)
        order = block.transpose_position
        if d_rows[0] is not None:
            kernels.spmm(*block.transpose, self.g, d_rows[0], weight=weight, eid=order)
        if d_rows[1] is not None:
            kernels.spmm(block.transpose[0], order, d_score, d_rows[1])

    def end_backward(self):
        return [self.d_dst]


def attend(graph, z, src, dst, slope=0.2):
    """As `graph.aggregate(fn.attend(z, src, dst, slope), "sum")`."""
    return aggregate(graph.schedule, TwoSteps(slope), [z, src, dst])


class Conv(GATConv):
    def __call__(self, graph, h):
        z, src, dst = self._standard(graph.src(h), graph.dst(h))
        out = attend(graph, z.reshape(-1, self.n_heads, self.n_feat), src, dst, self.slope)
        out = out.reshape(-1, self.n_heads * self.n_feat) if self.concat else out.mean(1)
        return out if self.bias is None else out + self.bias


class GAT(models.GAT):
    """Of `sarlite.models.GAT`'s options those that the benchmark uses; others are refused."""

    def __init__(self, *args, **options):
        if options.get("form", "standard") != "standard" or options.get("residual") or options.get("attention_dropout"):
            raise ConfigError("attention in two steps: standard form, no residual connection, no dropout of "
                              "coefficients")
        super().__init__(*args, **options)
        for conv in self.convs:
            conv.__class__ = Conv
