"""Attention with fused kernels, and its gradients where the destinations are or where the sources are."""

import numpy as np

from sarlite import kernels
from sarlite.sar.aggregate import Operator
from sarlite.tape.recording import retained

WIDENED_ROWS = 4096
"""Rows of a gradient that are made float32 again at a time."""


class Attend(Operator):
    """out_i = sum_j a_ij z_j, a_ij = softmax_j(leaky_relu(src_j + dst_i)) (SAR Eq. 3, 3.3, 3.4).

    Heads may share a z of one head.
    """

    n_fetched = 2
    needs_rows = reverses = overwrites = may_narrow = True

    def __init__(self, slope, dropout=0.0, key=0, dst_ids=None, n_nodes=0, src_ids=None):
        self.slope, self.p, self.key = slope, dropout, key
        self.dst_ids, self.n_nodes, self.src_ids = dst_ids, n_nodes, src_ids

    def output(self, arrays):
        z, _, dst = arrays
        return (*dst.shape, z.shape[2]), z.dtype

    def begin(self, needs, arrays, keep):
        self.needs, self.dst = needs, arrays[2]
        self.m, self.l = np.empty_like(self.dst), np.empty_like(self.dst)
        self.out, self.begun = np.empty(*self.output(arrays)), False

    def forward(self, block, rows):
        if not self.begun and block.rows is not None:
            self.m[...], self.l[...], self.out[...], self.begun = -np.inf, 0, 0, True
        kernels.attend(block.indptr, block.indices, *rows, self.dst, self.m, self.l, self.out, rows=block.rows,
                       slope=self.slope, dropout=self.coins(block), accumulate=self.begun)
        self.begun = True
        return rows

    def end(self):
        kernels.attend_finish(self.m, self.l, self.out)  # l is 1 / l from here on
        return self.out

    def begin_backward(self, g):
        self.g = np.ascontiguousarray(g)
        if self.narrow:
            self.g = self.gathered(self.g, over=self.g.flags.writeable)  # of this pass alone
        self.ends = self._ends()
        if not retained():
            self.out = self.m = self.l = None
        self.sums, self.d_dst = None, np.zeros_like(self.dst)

    def _ends(self):
        """What the kernel reads of each destination.

        Its delta is of the gradient that edges gather, some rows at a time: of one that is not rounded the scores'
        gradients would not cancel.
        """
        if not self.narrow:
            return kernels.attend_ends(self.dst, self.m, self.l, self.g, self.out)
        found, ends = np.empty((*self.dst.shape, 4), self.dst.dtype), (self.dst, self.m, self.l)
        for a in range(0, len(found), WIDENED_ROWS):
            some = slice(a, a + WIDENED_ROWS)
            found[some] = kernels.attend_ends(*(end[some] for end in ends), kernels.widen(self.g[some]), self.out[some])
        return found

    def backward(self, block, rows, kept, d_rows):
        if self.sums is None:
            self.sums = np.zeros((kernels.threads(), *self.dst.shape))
        z, src = rows or kept
        dz, d_src = (_zeros(x) if d is None else d for x, d in zip((z, src), d_rows))
        kernels.attend_backward(*block.transpose, z, src, self.ends, self.g, dz, d_src, None, sums=self.sums,
                                slope=self.slope, dropout=self.coins(block), accumulate=self.accumulate)

    def reversed_operator(self, rows, d_rows):
        """Of a destination g and `ends` say all that its sources' owners need of it."""
        d_rows = [self.accumulator(len(x), x.shape[1:], kernels.wide(x.dtype), None) if d is None else d
                  for x, d in zip(rows, d_rows)]
        return AttendBySource(self, rows, d_rows), (self.g, self.ends), [self.d_dst if self.needs[2] else None]

    def add_by_source(self, csr, rows, ends, g, d_rows, d_dst, dropout):
        """Add dz and dsrc to `d_rows`, and ddst of the columns, which are destinations, to `d_dst`."""
        d_dst = np.zeros(ends.shape[:2], ends.dtype) if d_dst is None else d_dst
        kernels.attend_backward(*csr, *rows, ends, g, *d_rows, d_dst, slope=self.slope, dropout=dropout)

    def end_backward(self):
        if self.sums is not None:
            kernels.attend_backward_finish(self.sums, self.d_dst)
        return [self.d_dst]

    def coins(self, block):
        return kernels.Dropout(self.key, self.p, block.src_ids, self.dst_ids, self.n_nodes) if self.p else None


class AttendBySource(Operator):
    """Adds dz and dsrc of local source rows to `d_rows`, over the reversed edges.

    The ddst of each block is the gradient of its columns. The kernel is that of `Attend.backward`, which walks the
    edges by source anyway.

    Parameters
    ----------
    attend : Attend
        After its `begin_backward`.
    rows : (z, src)
        The local source rows.
    d_rows : [dz, dsrc]
    """

    def __init__(self, attend, rows, d_rows):
        self.attend, self.rows, self.d_rows = attend, rows, d_rows

    def backward(self, block, rows, kept, d_rows):
        """`rows` are (g, ends) of the block's columns, destinations."""
        (g, ends), attend = rows, self.attend
        block = block.anew()  # a CSR of some columns is made here, and freed with the rows
        coins = attend.key, attend.p, attend.src_ids, block.src_ids, attend.n_nodes
        dropout = kernels.Dropout(*coins) if attend.p else None
        attend.add_by_source((block.whole_indptr, block.indices), self.rows, ends, g, self.d_rows, d_rows[0], dropout)


def _zeros(rows):
    """What gradients of rows are added up in."""
    return np.zeros(rows.shape, kernels.wide(rows.dtype))
