"""Attention's gradients where the sources are: the owner of source rows fetches what it must know of their destinations."""

import numpy as np

from sarlite import kernels
from sarlite.sar.aggregate import Operator


class AttendBySource(Operator):
    """Adds dz and dsrc of local source rows to `d_rows`, over the reversed edges; each block's ddst is its columns' gradient.

    The kernel is that of `Attend.backward`, which walks the edges by source anyway.

    Parameters
    ----------
    rows : (z, src)
        The local source rows.
    d_rows : [dz, dsrc], of arrays or None
    slope : float
    coins : (key, p, src_ids, n_nodes)
        As `kernels.Dropout` has them; src_ids are the local rows'.
    """

    def __init__(self, rows, d_rows, slope, coins):
        self.rows, self.slope, self.coins = rows, slope, coins
        self.d_rows = [np.zeros_like(x) if d is None else d for x, d in zip(rows, d_rows)]

    def backward(self, block, rows, kept, d_rows):
        """`rows` are (g, ends) of the block's columns, destinations."""
        (g, ends), (d_dst,), (key, p, src_ids, n_nodes) = rows, d_rows, self.coins
        block = block.anew()  # a CSR of some columns is made here, and freed with the rows
        dropout = kernels.Dropout(key, p, src_ids, block.src_ids, n_nodes) if p else None
        d_dst = np.zeros(ends.shape[:2], ends.dtype) if d_dst is None else d_dst
        kernels.attend_backward(block.whole_indptr, block.indices, *self.rows, ends, g, *self.d_rows, d_dst, slope=self.slope,
                                dropout=dropout)
