"""The operator for graph attention, whose scores, softmax and sum run in one fused kernel (SAR paper, section 3.3)."""

from dataclasses import dataclass

import numpy as np

from sarlite import kernels
from sarlite.operators.contract import ROWS, SCORES
from sarlite.types import Array


@dataclass(frozen=True, eq=False)
class Attention:
    """Attention operator: out_i = sum_j a_ij z_j, a_ij = softmax_j(leaky_relu(src_j + dst_i)) (SAR paper, equation 3, sections 3.3 and
    3.4).

    The inputs are the rows z, (n_src, n_heads, n_feat), the source scores src, (n_src, n_heads), and the destination
    scores dst, (n_dst, n_heads). All heads may share a z of one head, (n_src, 1, n_feat). In numerics "exact", on several
    ranks or relations, a fourth input holds the largest source score of each destination, (n_dst, n_heads), and has no
    gradient.

    Attributes
    ----------
    slope : float
        Slope of the leaky ReLU below zero.
    dropout : float
        Probability of dropping a coefficient after the softmax.
    key : int
        Key of the dropout's random numbers.
    dst_ids, src_ids : (n_dst,), (n_src,) int64
        Global ids of the local destination rows and of the local source rows.
    n_nodes : int
        Number of nodes of the whole graph.
    """

    slope: float
    dropout: float
    key: int
    dst_ids: Array
    n_nodes: int
    src_ids: Array

    fetched = (ROWS, SCORES)
    captured = ()

    def output(self, arrays):
        z, _, dst, *_ = arrays
        return (*dst.shape, z.shape[2]), z.dtype

    def needs_rows(self, context):
        return True

    def forward(self, inputs, context):
        return _AttendForward(self, inputs, context)

    def backward(self, residuals, g, context):
        return AttendBackward(self, residuals, g, context)

    def dropout_mask(self, src_ids: Array, dst_ids: Array) -> kernels.EdgeDropout | None:
        """Return the `EdgeDropout` that tells kernels which attention coefficients to drop; None if the dropout is 0. `src_ids` and
        `dst_ids` are the global ids of the sources (CSR columns) and of the destinations (CSR rows).

        Parameters
        ----------
        src_ids, dst_ids : (n_columns,), (n_rows,) int64
            Global ids of the nodes that the edges' columns and rows stand for.
        """
        return kernels.EdgeDropout(self.key, self.dropout, src_ids, dst_ids, self.n_nodes) if self.dropout else None


class _AttendForward:
    def __init__(self, operator, inputs, context):
        z, _, self.dst, *top = inputs
        self.operator, self.z_row = operator, z.shape[1:]
        self.sum = context.sums.softmax_sum(z, self.dst, top[0] if top else None, operator.dropout, operator.slope,
                                            context.single_block)

    def sweeps(self, rows):
        yield rows

    def add(self, block, rows):
        operator = self.operator
        mask = operator.dropout_mask(block.src_ids, operator.dst_ids) if operator.dropout else None
        self.sum.add(block, *rows, operator.slope, mask)

    def finish(self):
        out, m, inverse_sum, largest = self.sum.finish()
        return out, (self.z_row, self.dst, m, inverse_sum, out, largest)


class AttendBackward:
    """Backward pass of `Attention`, which computes the gradients of its inputs z, src and dst.

    Attributes
    ----------
    g : (n_dst, n_heads, n_feat) array
        Gradient of the output, in the row format that edges gather.
    ends : (n_dst, n_heads, 4) array
        Four numbers for each destination and head that its sources' gradients need beside `g`; see
        `kernels.attend_ends`.
    sum : SoftmaxGradient
        Accumulator of the three gradients.
    """

    def __init__(self, operator, residuals, g, context):
        z_row, dst, m, inverse_sum, out, largest = residuals
        self.operator, self.n_constant_inputs = operator, len(context.wants_grad) - 3
        self.g, _ = context.row_format.gradient(np.ascontiguousarray(g))
        self.ends = kernels.attend_ends(dst, m, inverse_sum, self.g, out)
        self.sum = context.sums.softmax_gradient(z_row, dst, self.g, largest, operator.dropout, operator.slope,
                                                 context.single_block)
        self.accumulators = self.sum.accumulators

    def add(self, block, rows, accumulators):
        operator = self.operator
        # the kernel computes all gradients together, so an unwanted gradient gets a temporary accumulator
        accumulators = [template.start(block.n_src) if accumulator is None else accumulator
                        for template, accumulator in zip(self.accumulators, accumulators)]
        mask = operator.dropout_mask(block.src_ids, operator.dst_ids) if operator.dropout else None
        self.sum.add(block.transpose, *rows, self.ends, self.g, accumulators, operator.slope, mask)

    def finish(self):
        return [self.sum.dst_gradient(), *[None] * self.n_constant_inputs]
