"""The largest and the smallest message."""

import numpy as np

from sarlite import kernels
from sarlite.sar.aggregate import Operator


class Extremum(Operator):
    """out_i = max_j x_j (sign = 1) or min_j x_j (sign = -1), per column; 0 where i has no edges.

    `argument` is the column, unique over all blocks, that won; ties go to the lowest global node id. The largest of
    narrow rows is one of them; a gradient goes to one row a column, so nothing gathers it, and it is not rounded.
    """

    may_narrow = True

    def __init__(self, n_dst, sign, column_ids, itype):
        self.n_dst, self.sign, self.column_ids, self.itype = n_dst, sign, column_ids, itype

    def output(self, arrays):
        return (self.n_dst, *arrays[0].shape[1:]), arrays[0].dtype

    def begin(self, needs, arrays, keep):
        self.shape, dtype = self.output(arrays)
        flat = (self.n_dst, int(np.prod(self.shape[1:])))
        self.out = np.full(flat, -self.sign * np.inf, dtype)
        self.argument = np.full(flat, -1, self.itype)

    def forward(self, block, rows):
        x = self.widened(rows[0]).reshape(len(rows[0]), self.out.shape[1])
        kernels.extremum(block.indptr, block.indices, x, self.out, self.argument, rows=block.rows,
                         sign=self.sign, offset=block.offset, order=self.column_ids)

    def end(self):
        out, self.out = self.out, None
        out[self.argument < 0] = 0
        return out.reshape(self.shape)

    def begin_backward(self, g):
        self.g = np.ascontiguousarray(g).reshape(self.argument.shape)

    def backward(self, block, rows, kept, d_rows):
        if d_rows[0] is not None:
            d_x, rows = d_rows[0].reshape(len(d_rows[0]), self.g.shape[1]), block.rows
            g, argument = (self.g, self.argument) if rows is None else (self.g[rows], self.argument[rows])
            kernels.extremum_backward(g, argument, d_x, block.offset, block.long_columns)  # of the block's rows alone
