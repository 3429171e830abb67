"""Accumulators of sums over edges, as numerics "fast" makes them: in the rows' own dtype, in the order of the edges.

`exact_edge_sums` has the same classes for numerics "exact". An operator asks its `Context.sums` for an accumulator and
never asks which of the two it got.
"""

from typing import Any, cast

import numpy as np

from sarlite import kernels
from sarlite.types import Array, DType


class EdgeSums:
    """Sums over edges that kernels round as they add: the accumulators of numerics "fast"."""

    over_all_edges = False
    """True if a Python message runs once over all edges of a rank, so that no sum depends on the blocks."""

    def scaled(self, g: Array, scale: Array | None) -> tuple[Array, Array | None]:
        """Return rows of a gradient, and the scale (n_dst,) that kernels still have to multiply the rows by."""
        return g, scale

    def row_sum(self, x: Array, n_dst: int, *, weight: Array | None = None, src_scale: Array | None = None,
                dst_scale: Array | None = None, single_block: bool = False, keeps_rows: bool = False,
                out: Array | None = None) -> "RowSum":
        """Return the accumulator of a weighted sum of each destination's source rows.

        Parameters
        ----------
        x : (n_src, ...) array
            The local source rows.
        n_dst : int
        weight : (n_edges,) or (n_edges, n_heads) array, optional
        src_scale : (n_columns,) float64, optional
            Factor of each column of all blocks, the local rows first.
        dst_scale : (n_dst,) float64, optional
        single_block : bool
            True if all edges come in one block.
        keeps_rows : bool
            True if the rows of each block are kept for backward.
        out : (n_dst, ...) array, optional
            Array that the sums are added to.
        """
        return RowSum((n_dst, *x.shape[1:]), kernels.wide(x.dtype), dst_scale, out)

    def row_sum_like(self, gradient: "FloatSum", n_dst: int, dst_scale: Array | None, single_block: bool) -> "RowSum":
        """Return the accumulator of a sum over the reversed edges that adds the same terms as `gradient`."""
        return RowSum((n_dst, *gradient.shape), gradient.dtype, dst_scale, None)

    def row_gradient(self, g: Array, dtype: DType, *, weight: Array | None = None, weight_bound: Any = None,
                     final_scale: Array | None = None, single_block: bool = False) -> "FloatSum":
        """Return the accumulator of the gradients of source rows, which sum rows of `g`.

        Parameters
        ----------
        g : (n_dst, ...) array
        dtype : dtype of the source rows
        weight : (n_edges,) or (n_edges, n_heads) array, optional
        weight_bound : optional
            `RowSum.weight_bound` of the forward pass, so that ranks need not find the bound again.
        final_scale : (n_src,) float64, optional
            Factor of each finished sum.
        single_block : bool
        """
        return FloatSum(g.shape[1:], dtype)

    def picked_gradient(self, g: Array, row: tuple[int, ...], dtype: DType) -> "FloatSum":
        """Return the accumulator of source gradients for which each entry of `g` goes to one source row."""
        return FloatSum(row, dtype)

    def message_gradients(self, d_edges: list[Any]) -> "list[FloatSum | None]":
        """Return an accumulator for each array in `d_edges`, gradients with one row per edge; None stays None."""
        return [None if d is None else FloatSum(d.shape[1:], d.dtype) for d in d_edges]

    def softmax_sum(self, z: Array, dst: Array, top: Array | None, dropout: float, slope: float,
                    single_block: bool) -> "SoftmaxSum":
        """Return the accumulator of attention: the softmax of each destination's scores, and the weighted sum.

        Parameters
        ----------
        z : (n_src, n_heads or 1, n_feat) array
            The local source rows.
        dst : (n_dst, n_heads) array
            Scores of the destinations.
        top : (n_dst, n_heads) array, or None
            Largest score of each destination's sources; numerics "fast" finds it while it adds.
        dropout, slope : float
        single_block : bool
        """
        return SoftmaxSum(z, dst)

    def softmax_gradient(self, z_row: tuple[int, ...], dst: Array, g: Array, largest: Array | None, dropout: float,
                         slope: float, single_block: bool) -> "SoftmaxGradient":
        """Return the accumulators of attention's gradients.

        Parameters
        ----------
        z_row : (n_heads or 1, n_feat)
            Shape of a row of z.
        dst : (n_dst, n_heads) array
        g : (n_dst, n_heads, n_feat) array
            Gradient of the output.
        largest : residual of `SoftmaxSum`
        dropout, slope : float
        single_block : bool
        """
        return SoftmaxGradient(z_row, dst)


FAST = EdgeSums()


class FloatSum:
    """Accumulator of gradient rows that edges add to, in the dtype of the result.

    Attributes
    ----------
    shape : tuple of int
        Shape of one row.
    dtype : dtype
    array : (n, ...) array
        Sums; None until `start`.
    """

    def __init__(self, shape: tuple[int, ...], dtype: DType, array: Array | None = None) -> None:
        self.shape, self.dtype, self.array = tuple(shape), np.dtype(dtype), cast(Array, array)

    def start(self, n_rows: int, earlier: Array | None = None) -> "FloatSum":
        """Return this accumulator with an array of `n_rows` rows: `earlier` sums that it may add to, or zeros."""
        if earlier is not None and earlier.dtype == self.dtype and earlier.flags.c_contiguous:
            return self.over(earlier)
        return self.over(np.zeros((n_rows, *self.shape), self.dtype))

    def over(self, array: Array | None) -> "FloatSum":
        """Return an accumulator of the same kind that adds to `array`, which holds zeros or earlier sums."""
        return self if array is self.array else FloatSum(self.shape, self.dtype, array)

    def join(self, others: "list[FloatSum]") -> "FloatSum":
        """Return one accumulator that takes the terms of this one and of `others`."""
        return self

    def add_rows(self, csr: tuple[Array, Array], x: Array, *, src_scale: Array | None = None,
                 dst_scale: Array | None = None, **weights: Any) -> None:
        """Add the weighted sum of rows of `x` for each row of a CSR, given as (indptr, indices)."""
        kernels.spmm(*csr, x, self.array, src_scale=src_scale, dst_scale=dst_scale, **weights)

    def add_picked(self, g: Array, argument: Array, block: Any) -> None:
        """Add each entry of `g`, (n_dst, n), to the block's column that `argument` names for the entry."""
        g, argument = in_rows(block, g, argument)
        array = self.array.reshape(len(self.array), g.shape[1])
        kernels.extremum_backward(g, argument, array, block.offset, block.long_columns)

    def rounded(self) -> Array:
        """Return the finished sums."""
        return self.array


class RowSum:
    """The weighted sum of each destination's source rows, (n_dst, ...).

    Attributes
    ----------
    weight_bound : array, or None
        Largest edge weight over all ranks, by head, in numerics "exact"; None without weights.
    """

    weight_bound: Any = None

    def __init__(self, shape: tuple[int, ...], dtype: DType, dst_scale: Array | None, out: Array | None) -> None:
        self._out: Array = np.empty(shape, dtype) if out is None else out
        self._begun = out is not None
        self._scale = None if dst_scale is None else dst_scale.astype(dtype)

    def sweeps(self, x: Array) -> Any:
        """Yield the rows for each sweep over the blocks: one sweep with all columns."""
        yield x

    def add(self, block: Any, x: Array, *, src_scale: Array | None = None, **weights: Any) -> None:
        """Add the rows of a block's columns."""
        if not self._begun and block.rows is not None:
            self._out[...] = 0
            self._begun = True
        scale = None if src_scale is None else src_scale.astype(self._out.dtype)
        kernels.spmm(block.indptr, *columns_in(block, x), self._out, rows=block.rows, src_scale=scale,
                     dst_scale=self._scale, accumulate=self._begun, **weights)
        self._begun = True

    def finish(self) -> Array:
        """Return the sums."""
        return self._out


class SoftmaxSum:
    """Attention's output, with a running maximum of the scores (SAR 3.4)."""

    def __init__(self, z: Array, dst: Array) -> None:
        self._dst, self._m, self._l, self._begun = dst, np.empty_like(dst), np.empty_like(dst), False
        self._out = np.empty((*dst.shape, z.shape[2]), kernels.wide(z.dtype))

    def add(self, block: Any, z: Array, src: Array, slope: float, dropout: Any) -> None:
        """Add the edges of a block."""
        if not self._begun and block.rows is not None:
            self._m[...], self._l[...], self._out[...], self._begun = -np.inf, 0, 0, True
        kernels.attend(block.indptr, block.indices, z, src, self._dst, self._m, self._l, self._out, rows=block.rows,
                       slope=slope, dropout=dropout, accumulate=self._begun)
        self._begun = True

    def finish(self) -> tuple[Array, Array, Array, None]:
        """Return the output, the largest score and 1 / sum of exponentials of each destination and head, and None."""
        kernels.attend_finish(self._m, self._l, self._out)
        return self._out, self._m, self._l, None


class SoftmaxGradient:
    """Gradients of attention for z and the source scores, in `sinks`, and for the destination scores, held here.

    Attributes
    ----------
    sinks : list of FloatSum
        Accumulators of dz and of d_src.
    """

    def __init__(self, z_row: tuple[int, ...], dst: Array) -> None:
        self._dst, self._parts = dst, cast(Array, None)
        self.sinks = [FloatSum(z_row, dst.dtype), FloatSum(dst.shape[1:], dst.dtype)]

    def add(self, csr: tuple[Array, Array], z: Array, src: Array, ends: Array, g: Array, sinks: list[FloatSum],
            slope: float, dropout: Any) -> None:
        """Add the gradients of the edges of a CSR whose rows are sources."""
        if self._parts is None:
            self._parts = np.zeros((kernels.threads(), *self._dst.shape))
        dz, d_src = sinks
        kernels.attend_backward(*csr, z, src, ends, g, dz.array, d_src.array, None, sums=self._parts, slope=slope,
                                dropout=dropout)

    def add_by_source(self, csr: tuple[Array, Array], z: Array, src: Array, ends: Array, g: Array,
                      sinks: list[FloatSum], d_dst: Array, slope: float, dropout: Any) -> None:
        """Add the gradients of edges whose sources all belong to this rank.

        The gradients of the destinations' scores are added to `d_dst`.
        """
        dz, d_src = sinks
        kernels.attend_backward(*csr, z, src, ends, g, dz.array, d_src.array, d_dst, slope=slope, dropout=dropout)

    def dst_sums(self) -> Array:
        """Return the array (n_dst, ...) that peers' gradients of the destinations' scores are added to."""
        return np.zeros_like(self._dst)

    def dst_gradient(self, sums: Array | None = None) -> Array:
        """Return the gradient of the destinations' scores, (n_dst, n_heads)."""
        if sums is None:
            sums = np.zeros_like(self._dst)
            if self._parts is not None:
                kernels.attend_backward_finish(self._parts, sums)
        return sums


def in_rows(block: Any, *arrays: Array) -> tuple[Array, ...]:
    """Return the rows of (n_dst, ...) arrays that belong to the rows of a block's CSR."""
    return arrays if block.rows is None else tuple(array[block.rows] for array in arrays)


def columns_in(block: Any, x: Any) -> tuple[Array, Array]:
    """Return the column of each edge of a block, and the array that the columns index.

    If x is `kernels.Rows`, the array is its table and the columns are row numbers of the table.
    """
    if not isinstance(x, kernels.Rows):
        return block.indices, x
    return x.numbers_at(block.indices), x.table
