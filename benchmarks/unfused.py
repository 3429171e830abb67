"""Attention in two steps, as in libraries without a fused kernel: coefficients in memory, then a weighted sum (SAR 3.3).

`paper.py` compares the fused operator with this one. `GAT` is `sarlite.models.GAT` with this operator; the training
command takes it as `--model benchmarks/unfused.py:GAT`. Coefficients have no dropout.
"""

import numpy as np

from sarlite import kernels, models
from sarlite.errors import ConfigError
from sarlite.models.gat import GATConv
from sarlite.numerics.edge_sums import FloatSum
from sarlite.operators.aggregate import aggregate
from sarlite.operators.attend import Attention


class TwoSteps(Attention):
    """Attention operator that stores all edges' coefficients, (n_edges, n_heads), in memory, and computes them again in backward."""

    def forward(self, inputs, context):
        return TwoStepsForward(self.slope, inputs)

    def backward(self, residuals, g, context):
        return TwoStepsBackward(self.slope, residuals, g)


class TwoStepsForward:
    """Forward pass of `TwoSteps`: coefficients of a block's edges (softmax with a running maximum), then the weighted sum of rows."""

    def __init__(self, slope, inputs):
        z, _, self.dst = inputs
        self.slope, self.z_row = slope, z.shape[1:]
        self.m, self.l = np.full_like(self.dst, -np.inf), np.zeros_like(self.dst)
        self.out = np.zeros((*self.dst.shape, z.shape[2]), z.dtype)

    def sweeps(self, rows):
        yield rows

    def add(self, block, rows):
        z, src = rows
        score = scores(block, src, self.dst, self.slope)
        rows_of = slice(None) if block.rows is None else block.rows
        top = self.m.copy()
        kernels.extremum(block.indptr, None, score, top, np.zeros(top.shape, block.indices.dtype), rows=block.rows,
                         sign=1, label=block.edge_index_array)
        shift = np.where(np.isneginf(top), 0, top)
        shrink = np.exp(self.m[rows_of] - shift[rows_of])
        self.l[rows_of] *= shrink
        self.out[rows_of] *= shrink[:, :, None]
        weight = np.exp(score - block.at_dst(shift))
        block.sum_to_dst(weight, self.l)
        kernels.spmm(block.indptr, block.indices, z, self.out, rows=block.rows, weight=weight)
        self.m = top

    def finish(self):
        kernels.attend_finish(self.m, self.l, self.out)
        return self.out, (self.z_row, self.dst, self.m, self.l, self.out)


class TwoStepsBackward:
    """Backward pass of `TwoSteps`: computes a block's coefficients in memory again, and the gradients from them."""

    def __init__(self, slope, residuals, g):
        z_row, self.dst, self.m, self.l, out = residuals
        self.slope, self.g = slope, np.ascontiguousarray(g)
        self.delta = np.empty_like(self.m)
        kernels.row_dot(self.g, out, self.delta)
        self.d_dst = np.zeros_like(self.dst)
        self.accumulators = [FloatSum(z_row, self.dst.dtype), FloatSum(self.dst.shape[1:], self.dst.dtype)]

    def add(self, block, rows, accumulators):
        z, src = rows
        score = scores(block, src, self.dst, self.slope)
        weight = np.exp(score - block.at_dst(self.m))
        weight *= block.at_dst(self.l)
        d_score = np.zeros_like(weight)
        kernels.edge_dot(block.indptr, block.indices, self.g, z, d_score, rows=block.rows)
        d_score -= block.at_dst(self.delta)
        d_score *= weight
        d_score[score < 0] *= self.slope
        block.sum_to_dst(d_score, self.d_dst)
        order, (d_z, d_src) = block.transpose_position, accumulators
        if d_z is not None:
            d_z.add_rows(block.transpose, self.g, weight=weight, eid=order)
        if d_src is not None:
            d_src.add_rows((block.transpose[0], order), d_score)

    def finish(self):
        return [self.d_dst]


def scores(block, src, dst, slope):
    """Return the attention scores LeakyReLU(src + dst) of a block's edges, (n_edges, n_heads), with the slope `slope` below zero."""
    score = block.at_src(src)
    score += block.at_dst(dst)
    np.maximum(score, slope * score, out=score)
    return score


def attend(graph, z, src, dst, slope=0.2):
    """Return attention as `graph.aggregate(fn.attend(z, src, dst, slope), "sum")` does, but computed in two steps, (n_dst, ...)."""
    return aggregate(graph.schedule, TwoSteps(slope, 0.0, 0, graph.dst_ids, graph.n_nodes, graph.src_ids), [z, src, dst])


class Conv(GATConv):
    def __call__(self, graph, h):
        x, dst_rows = graph.src(h), graph.dst(h)
        z = self.linear(x).reshape(-1, self.n_heads, self.n_feat)
        out = attend(graph, z, x @ self.by_input(self.attn_src), dst_rows @ self.by_input(self.attn_dst), self.slope)
        out = out.reshape(-1, self.n_heads * self.n_feat) if self.concat else out.mean(1)
        return out if self.bias is None else out + self.bias


class GAT(models.GAT):
    """`sarlite.models.GAT` with unfused attention: first the coefficients of all edges of a block, then the weighted sum."""

    def __init__(self, *args, **options):
        if options.get("form", "standard") != "standard" or options.get("residual") or options.get("attention_dropout"):
            raise ConfigError("attention in two steps: standard form, no residual connection, no dropout of "
                              "coefficients")
        super().__init__(*args, **options)
        for conv in self.convs:
            conv.__class__ = Conv
