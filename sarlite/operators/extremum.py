"""The operator for the reducers max and min."""

from dataclasses import dataclass

import numpy as np

from sarlite import kernels
from sarlite.operators.contract import ROWS
from sarlite.types import Array, DType


@dataclass(frozen=True, eq=False)
class Extremum:
    """Maximum (sign = 1) or minimum (sign = -1) of the sources' rows, for each feature column; 0 for a destination without edges.

    The single input is x, (n_src, ...). A tie goes to the source with the lowest global id. Each value of the gradient
    goes to one source row, so edges do not gather rows of the gradient, and the gradient is not rounded.

    Attributes
    ----------
    n_dst : int
        Number of destination rows of this rank.
    sign : {1, -1}
        1 for the maximum, -1 for the minimum.
    column_ids : (n_columns,) int64, or None
        Global id of each column of all blocks; None if the ids ascend.
    index_dtype : dtype
        Dtype of the blocks' indices.
    """

    n_dst: int
    sign: int
    column_ids: Array | None
    index_dtype: DType

    fetched = (ROWS,)
    captured = ()

    def output(self, arrays):
        return (self.n_dst, *arrays[0].shape[1:]), arrays[0].dtype

    def needs_rows(self, context):
        return False

    def forward(self, inputs, context):
        return _ExtremumForward(self, inputs[0])

    def backward(self, residuals, g, context):
        return _ExtremumBackward(residuals, g, context)


class _ExtremumForward:
    """Forward pass of max or min, which also finds the source that each value of the output comes from. `argument`, of the
    output's shape, holds the source as a CSR column over all blocks; -1 for a destination without edges.
    """

    def __init__(self, operator, x):
        self.operator, self.shape = operator, operator.output([x])[0]
        flat = self.shape[0], int(np.prod(self.shape[1:]))
        self.out = np.full(flat, -operator.sign * np.inf, kernels.wide(x.dtype))
        self.argument = np.full(flat, -1, operator.index_dtype)

    def sweeps(self, rows):
        yield rows

    def add(self, block, rows):
        x = rows[0].reshape(len(rows[0]), self.out.shape[1])
        kernels.extremum(block.indptr, block.indices, x, self.out, self.argument, rows=block.rows,
                         sign=self.operator.sign, offset=block.offset, order=self.operator.column_ids)

    def finish(self):
        self.out[self.argument < 0] = 0
        return self.out.reshape(self.shape), (self.argument, self.shape)


class _ExtremumBackward:
    def __init__(self, residuals, g, context):
        self.argument, shape = residuals
        self.g = np.ascontiguousarray(g).reshape(self.argument.shape)
        self.accumulators = [context.sums.picked_gradient(self.g, shape[1:], g.dtype)]

    def add(self, block, rows, accumulators):
        if accumulators[0] is not None:
            accumulators[0].add_picked(self.g, self.argument, block)

    def finish(self):
        return []
