"""The operator for sums over edges: reducers sum, mean and sym, with or without one weight for each edge."""

from dataclasses import dataclass

import numpy as np

from sarlite import kernels
from sarlite.numerics.edge_sums import columns_in
from sarlite.operators.contract import ROWS
from sarlite.structure.block import Edges
from sarlite.types import Array


@dataclass(frozen=True, eq=False)
class Sum:
    """Sum operator: out_i = s_i sum_j w_ij t_j x_j, with edge weights w and factors s and t of destinations and sources.

    s = t = 1 gives reducer "sum". s = 1 / degree gives "mean" (SAR Eq. 2). s = t = 1 / sqrt(degree) gives "sym".
    The inputs are x, (n_src, ...), and w, (n_edges,) or (n_edges, n_heads), if `weighted`.

    Attributes
    ----------
    n_dst : int
        Number of destination rows of this rank.
    weighted : bool
        True if the second input w holds one weight for each edge; else w = 1.
    dst_scale : (n_dst,) float64, or None
        The factors s; None if all are 1.
    src_scale : (n_columns,) float64, or None
        The factor t of each column of all blocks, the local rows first; None if all are 1.
    """

    n_dst: int
    weighted: bool = False
    dst_scale: Array | None = None
    src_scale: Array | None = None

    fetched = (ROWS,)
    captured = ()

    def output(self, arrays):
        return (self.n_dst, *arrays[0].shape[1:]), arrays[0].dtype

    def needs_rows(self, context):
        return self.weighted and context.wants_grad[1]

    def forward(self, inputs, context):
        return _SumForward(self, inputs, context)

    def backward(self, residuals, g, context):
        return SumBackward(self, residuals, g, context)

    def edge_weights(self, weight: Array | None, index: Array | None) -> dict[str, Array | None]:
        """Return the keyword arguments for edge weights of a kernel, {"weight": weight, "eid": index}, where edge e has the weight in
        row index[e]; {} if this sum has no edge weights.

        Parameters
        ----------
        weight : (n_edges of the part, ...) array, or None
        index : (n_edges of the block,) int, or None
            Row of `weight` for each edge of the block.
        """
        return {"weight": weight, "eid": index} if self.weighted else {}

    def columns_scale(self, block: Edges) -> Array | None:
        """Return the factors of the block's sources (CSR columns), (n_columns,) float64, taken from `src_scale`, the factors of all
        sources; None if the sum has no such factors.
        """
        return None if self.src_scale is None else self.src_scale[block.offset : block.offset + block.n_src]


class _SumForward:
    def __init__(self, operator, inputs, context):
        self.operator, x = operator, inputs[0]
        self.weight = inputs[1] if operator.weighted else None
        self.sum = context.sums.row_sum(x, operator.n_dst, weight=self.weight, src_scale=operator.src_scale,
                                        dst_scale=operator.dst_scale, single_block=context.single_block,
                                        keeps_rows=context.keeps_rows, out=context.out)

    def sweeps(self, rows):
        for x in self.sum.sweeps(rows[0]):
            yield (x,)

    def add(self, block, rows):
        weights = self.operator.edge_weights(self.weight, block.edge_index if self.operator.weighted else None)
        self.sum.add(block, rows[0], src_scale=self.operator.columns_scale(block), **weights)

    def finish(self):
        return self.sum.finish(), (self.weight, self.sum.weight_bound)


class SumBackward:
    """Backward pass of `Sum`, y_i = s_i sum_j w_ij t_j x_j, with a scale s_i of destination i, a scale t_j of source j and an edge weight
    w_ij. For the gradient g of y it computes d x_j = t_j sum_i w_ij s_i g_i, and d w_ij = s_i t_j g_i . x_j.

    Attributes
    ----------
    g : (n_dst, ...) array
        Gradient of the output, in the row format that edges gather.
    g_scale : (n_dst,) array, or None
        Factor s of each row of `g`, if `g` does not contain the factor yet.
    """

    def __init__(self, operator, residuals, g, context):
        self.operator, (self.weight, weight_bound), g = operator, residuals, np.ascontiguousarray(g)
        scale = None if operator.dst_scale is None else operator.dst_scale.astype(g.dtype)
        self.g, self.g_scale = context.row_format.gradient(*context.sums.scaled(g, scale))
        self.accumulators = [context.sums.row_gradient(
            self.g, g.dtype, weight=self.weight, weight_bound=weight_bound, final_scale=operator.src_scale,
            single_block=context.single_block)]
        self.d_weight = np.zeros_like(self.weight) if operator.needs_rows(context) else None

    def add(self, block, rows, accumulators):
        operator, (d_x,) = self.operator, accumulators
        if d_x is not None:
            t = operator.columns_scale(block)
            weights = operator.edge_weights(self.weight, block.transpose_edge_index if operator.weighted else None)
            d_x.add_rows(block.transpose, self.g, src_scale=self.g_scale,
                         dst_scale=None if t is None else t.astype(d_x.dtype), **weights)
        if self.d_weight is not None:
            (x,) = rows
            indices, x = columns_in(block, x)
            kernels.edge_dot(block.indptr, indices, self.g, x, self.d_weight, rows=block.rows, eid=block.edge_index,
                             dst_scale=self.g_scale)

    def finish(self):
        return [self.d_weight] if self.operator.weighted else []
