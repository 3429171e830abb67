"""Sums over edges: sum, mean and sym, of rows as they are or weighted by edge."""

import numpy as np

from sarlite import kernels
from sarlite.sar.aggregate import Operator


class Sum(Operator):
    """out_i = s_i sum_j w_ij t_j x_j: s = 1, or 1 / degree (mean, SAR Eq. 2), or with t 1 / sqrt(degree) (sym).

    Parameters
    ----------
    n_dst : int
    weighted : bool
        Whether there is a w, the second input.
    dst_scale : (n_dst,) float64, optional
        s.
    src_scale : (n_columns,) float64, optional
        t by column, unique over all blocks.
    into : (n_dst, ...) array, optional
        What the sums are added to; by default a new array.
    """

    keeps_result = False
    overwrites = may_narrow = True

    def __init__(self, n_dst, weighted=False, dst_scale=None, src_scale=None, into=None):
        self.n_dst, self.weighted, self.into = n_dst, weighted, into
        self.dst_scale, self.src_scale = dst_scale, src_scale
        self.reverses = not weighted
        self.takes_rows = src_scale is None  # which is by column

    def output(self, arrays):
        return (self.n_dst, *arrays[0].shape[1:]), arrays[0].dtype

    def begin(self, needs, arrays, keep):
        self.needs_rows = self.weighted and needs[1]
        self.weight = arrays[1] if self.weighted else None
        self.scale = None if self.dst_scale is None else self.dst_scale.astype(kernels.wide(arrays[0].dtype))
        self.out, self.begun = self.into, self.into is not None
        if self.into is None:
            self.out = np.empty(*self.output(arrays))

    def forward(self, block, rows):
        if not self.begun and block.rows is not None:
            self.out[...] = 0
            self.begun = True
        src_scale = columns_of(block, self.src_scale, kernels.wide(rows[0].dtype))
        kernels.spmm(block.indptr, *_columns(block, rows[0]), self.out, rows=block.rows, src_scale=src_scale,
                     dst_scale=self.scale, accumulate=self.begun, **self.weights(block, "eid"))
        self.begun = True
        return rows if self.needs_rows else None

    def end(self):
        out, self.out, self.into = self.out, None, None
        return out

    def begin_backward(self, g):
        g = np.ascontiguousarray(g)
        own = g.flags.writeable  # this pass's
        self.g, self.g_scale = (self.gathered(g, self.scale, own), None) if self.narrow else (g, self.scale)
        self.d_weight = np.zeros_like(self.weight) if self.needs_rows else None

    def backward(self, block, rows, kept, d_rows):
        if d_rows[0] is not None:
            kernels.spmm(*block.transpose, self.g, d_rows[0], src_scale=self.g_scale,
                         dst_scale=columns_of(block, self.src_scale, d_rows[0].dtype), accumulate=self.accumulate,
                         **self.weights(block, "transpose_eid"))
        if self.needs_rows:
            (x,) = rows or kept
            indices, x = _columns(block, x)
            kernels.edge_dot(block.indptr, indices, self.g, x, self.d_weight, rows=block.rows, eid=block.eid,
                             dst_scale=self.g_scale)

    def reversed_operator(self, rows, d_rows):
        """The gradient of x is t A^T (s g), which MG-GCN Eq. 9 aggregates as it does x."""
        d_x, g = d_rows[0], self.g
        if not self.accumulate:
            d_x.fill(0)
        if self.g_scale is not None:  # over g, where that is this pass's own
            g = np.multiply(g, self.g_scale.reshape(-1, *[1] * (g.ndim - 1)), out=g if g.flags.writeable else None)
        return Sum(len(d_x), dst_scale=self._local_scale(d_x), into=d_x), (g,), []

    def _local_scale(self, rows):
        """t of the local source rows, in their dtype."""
        return None if self.src_scale is None else self.src_scale[: len(rows)].astype(rows.dtype)

    def end_backward(self):
        return [self.d_weight] if self.weighted else []

    def weights(self, block, order):
        """The weights and where each edge's stands; `order` names the block's attribute that says so."""
        return {"weight": self.weight, "eid": getattr(block, order)} if self.weighted else {}


def _columns(block, x):
    """(indices, array): a block's columns in x; where x is rows of a table, in that."""
    if not isinstance(x, kernels.Rows):
        return block.indices, x
    return x.numbers_at(block.indices), x.table


def columns_of(block, scale, dtype):
    """A scale's part of the columns of a block."""
    return None if scale is None else scale[block.offset : block.offset + block.n_src].astype(dtype)
