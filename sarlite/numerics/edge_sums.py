"""Accumulators of sums over edges for numerics "fast": sums in the rows' own dtype, in the order of the edges.

`exact_edge_sums` has the corresponding classes for numerics "exact". An operator gets its accumulators from
`Context.sums`, and works with both numerics.
"""

from collections.abc import Iterator, Sequence
from typing import Any, Protocol, cast

import numpy as np

from sarlite import kernels
from sarlite.types import Array, DType


class CsrBlock(Protocol):
    """Protocol for a block of edges in CSR form: the members that accumulators read.

    `structure.block.Edges` implements and documents the members.
    """

    rows: Array | None
    indptr: Array
    indices: Array
    offset: int

    @property
    def long_columns(self) -> Array | None: ...


class EdgeSums:
    """Factory of accumulators, which are objects that sum values over edges, for numerics "fast". Their sums are rounded at
    each addition.
    """

    over_all_edges = False
    """True if a Python message is called once for all edges of a rank, so that no sum depends on the blocks."""

    def scaled(self, g: Array, scale: Array | None) -> tuple[Array, Array | None]:
        """Begin the backward pass of sums that were multiplied by `scale`, a factor for each row (None: 1), and whose gradient is
        `g`. Return (gradient, factors): the rows of the gradient must yet be multiplied by the factors, if not None. Here this is
        (g, scale), in exact numerics (g * scale, None).

        Parameters
        ----------
        g : (n_dst, ...) array
        scale : (n_dst,) array, or None
        """
        return g, scale

    def row_sum(self, x: Array, n_dst: int, *, weight: Array | None = None, src_scale: Array | None = None,
                dst_scale: Array | None = None, single_block: bool = False, keeps_rows: bool = False,
                out: Array | None = None) -> "RowSum":
        """Return the accumulator of dst_scale * sum of weight * src_scale * x over the in-edges of each of `n_dst` destinations.
        Omitted factors are 1. If `out` is passed, the sums are added to it. `single_block` (one block holds all edges) and
        `keeps_rows` (rows of blocks are kept for backward) matter to exact numerics alone.

        Parameters
        ----------
        x : (n_src, ...) array
            The local source rows.
        n_dst : int
            Number of destination rows.
        weight : (n_edges,) or (n_edges, n_heads) array, optional
            Weight of each edge, or of each edge and head.
        src_scale : (n_columns,) float64, optional
            Factor of each column of all blocks, the local rows first.
        dst_scale : (n_dst,) float64, optional
            Factor of each sum.
        single_block : bool
            True if one block holds all edges.
        keeps_rows : bool
            True if the schedule keeps the rows of each block for backward.
        out : (n_dst, ...) array, optional
            Array that the sums are added to.
        """
        return RowSum((n_dst, *x.shape[1:]), kernels.wide(x.dtype), dst_scale, out)

    def row_sum_like(self, gradient: "FloatSum", n_dst: int, dst_scale: Array | None, single_block: bool) -> "RowSum":
        """Return a `RowSum` over the reversed edges (sources and destinations exchanged) with the row shape, dtype and, in exact numerics,
        rounding of the accumulator `gradient`. It has `n_dst` rows, each multiplied by its factor in `dst_scale` (None: 1). `single_block`,
        True if one block holds all edges, lets exact numerics round the sums at once; other numerics ignore it.

        Parameters
        ----------
        gradient : FloatSum
            Accumulator of the gradients of source rows.
        n_dst : int
            Number of destination rows of the reversed edges.
        dst_scale : (n_dst,) float64, or None
            Factor of each sum.
        single_block : bool
            True if one block holds all reversed edges.
        """
        return RowSum((n_dst, *gradient.shape), gradient.dtype, dst_scale, None)

    def row_gradient(self, g: Array, dtype: DType, *, weight: Array | None = None, weight_bound: Array | None = None,
                     final_scale: Array | None = None, single_block: bool = False) -> "FloatSum":
        """Return the accumulator of the gradients of source rows: final_scale * sum of weight * g[destination] over the out-edges
        of each source. Omitted factors are 1; the finished sums have the dtype `dtype`. `weight_bound` and `single_block` matter to
        exact numerics alone.

        Parameters
        ----------
        g : (n_dst, ...) array
            Gradient of the output.
        dtype : dtype
            Dtype of the source rows.
        weight : (n_edges,) or (n_edges, n_heads) array, optional
            Weight of each edge, or of each edge and head.
        weight_bound : array, optional
            `RowSum.weight_bound` of the forward pass, so that ranks need not compute the bound again.
        final_scale : (n_src,) float64, optional
            Factor of each finished sum.
        single_block : bool
            True if one block holds all edges.
        """
        return FloatSum(g.shape[1:], dtype)

    def picked_gradient(self, g: Array, row_shape: tuple[int, ...], dtype: DType) -> "FloatSum":
        """Return the accumulator of the gradients of source rows, each of shape `row_shape`, in a maximum or minimum over in-edges.
        Its method `add_picked` adds each value of `g`, the output's gradient, to the source row that the maximum or minimum came
        from.

        Parameters
        ----------
        g : (n_dst, n_values) array
            Gradient of the output.
        row_shape : tuple of int
            Shape of a source row, with n_values values.
        dtype : dtype
            Dtype of the source rows.
        """
        return FloatSum(row_shape, dtype)

    def message_gradients(self, d_edges: Sequence[Array | None]) -> "list[FloatSum | None]":
        """Return a list with an accumulator for the gradient of each source input of a message function. `d_edges` holds for each
        input an array whose rows have the shape and dtype of the gradient. For an input whose gradient is not wanted, `d_edges` and
        the list have None.
        """
        return [None if d is None else FloatSum(d.shape[1:], d.dtype) for d in d_edges]

    def softmax_sum(self, z: Array, dst_scores: Array, largest_src_scores: Array | None, dropout: float, slope: float,
                    single_block: bool) -> "SoftmaxSum":
        """Return the accumulator of attention's output: the sum of z over each destination's sources, weighted by a softmax of
        scores. A score is leaky_relu(source score + destination score, `slope`). Other arguments than z and `dst_scores` matter to
        exact numerics alone.

        Parameters
        ----------
        z : (n_src, n_heads or 1, n_feat) array
            The local source rows.
        dst_scores : (n_dst, n_heads) array
            Scores of the destinations.
        largest_src_scores : (n_dst, n_heads) array, or None
            Largest score among each destination's sources, which numerics "exact" needs unless one block holds all
            edges. Numerics "fast" computes a running maximum instead.
        dropout : float
            Probability of dropping a coefficient.
        slope : float
            Slope of the leaky ReLU below zero.
        single_block : bool
            True if one block holds all edges.
        """
        return SoftmaxSum(z, dst_scores)

    def softmax_gradient(self, z_row_shape: tuple[int, ...], dst_scores: Array, g: Array, largest_z: Array | None, dropout: float,
                         slope: float, single_block: bool) -> "SoftmaxGradient":
        """Return the accumulators for attention's gradients of z, of the source scores and of the destination scores. Here only the
        shape of a row of z and `dst_scores` matter; exact numerics bounds the gradients by the other arguments.

        Parameters
        ----------
        z_row_shape : (n_heads or 1, n_feat)
            Shape of a row of z.
        dst_scores : (n_dst, n_heads) array
            Scores of the destinations.
        g : (n_dst, n_heads, n_feat) array
            Gradient of the output.
        largest_z : (n_heads or 1, n_feat) float64, or None
            Largest absolute value of each column of z over all ranks, which the forward pass in numerics "exact" keeps.
        dropout, slope, single_block
            See `softmax_sum`.
        """
        return SoftmaxGradient(z_row_shape, dst_scores)


FAST = EdgeSums()


class FloatSum:
    """Accumulator for the gradients of rows. It sums terms of edges in the dtype of the result, so that each addition rounds.

    Attributes
    ----------
    shape : tuple of int
        Shape of one row.
    dtype : dtype
        Dtype of the finished sums.
    array : (n_rows, ...) array
        Sums so far; None until `start`.
    """

    def __init__(self, shape: tuple[int, ...], dtype: DType, array: Array | None = None) -> None:
        self.shape, self.dtype, self.array = tuple(shape), np.dtype(dtype), cast(Array, array)

    def start(self, n_rows: int, earlier: Array | None = None) -> "FloatSum":
        """Return an accumulator for sums of `n_rows` rows. It adds to `earlier`, an array of sums so far, in place if the array's
        dtype and layout fit. Otherwise, or if `earlier` is None, its sums start at zero.
        """
        if earlier is not None and earlier.dtype == self.dtype and earlier.flags.c_contiguous:
            return self.over(earlier)
        return self.over(np.zeros((n_rows, *self.shape), self.dtype))

    def over(self, array: Array | None) -> "FloatSum":
        """Return an accumulator for rows of the same shape and dtype that adds to `array` in place; None if there is no array until
        `start`.
        """
        return self if array is self.array else FloatSum(self.shape, self.dtype, array)

    def join(self, others: "list[FloatSum]") -> "FloatSum":
        """Return one accumulator for the sum of all terms of this accumulator and of the accumulators `others`. Call the method
        before `start` of any of them.
        """
        return self

    def add_rows(self, csr: tuple[Array, Array], x: Array, *, src_scale: Array | None = None,
                 dst_scale: Array | None = None, **weights: Any) -> None:
        """Add rows of `x` to the sums: for `csr` = (indptr, indices), row i of the sums gets x[indices[e]] for each e from
        indptr[i] to indptr[i + 1] - 1. The rows are multiplied by the optional `src_scale`, `dst_scale` and edge weights, as in
        `kernels.spmm`.

        Parameters
        ----------
        csr : (indptr, indices)
        x : (n, ...) array
        src_scale, dst_scale, weights
            See `kernels.spmm`.
        """
        kernels.spmm(*csr, x, self.array, src_scale=src_scale, dst_scale=dst_scale, **weights)

    def add_picked(self, g: Array, argument: Array, block: CsrBlock) -> None:
        """Scatter `g`, the gradient of a maximum or minimum over edges: add each value to the sum of the source row that the
        maximum came from. `argument`, shape of `g`, has the column number of this source row; values whose column is not in `block`
        are skipped.

        The rows of the sums are the columns of `block`.

        Parameters
        ----------
        g : (n_dst, n_values) array
        argument : (n_dst, n_values) int
            Column of each value, numbered over all blocks. Values for columns of other blocks are skipped.
        block : Edges
        """
        g, argument = in_rows(block, g, argument)
        array = self.array.reshape(len(self.array), g.shape[1])
        kernels.extremum_backward(g, argument, array, block.offset, block.long_columns)

    def rounded(self) -> Array:
        """Return the sums, (n_rows, ...). This class returns its array of sums itself; the subclass for exact numerics rounds its
        exact sums once to `dtype`.
        """
        return self.array


class RowSum:
    """Accumulator for the weighted sum of each destination's source rows, (n_dst, ...).

    Attributes
    ----------
    weight_bound : array, or None
        Largest absolute edge weight over all ranks for each head, which numerics "exact" computes; else None.
    """

    weight_bound: Array | None = None

    def __init__(self, shape: tuple[int, ...], dtype: DType, dst_scale: Array | None, out: Array | None) -> None:
        self._out: Array = np.empty(shape, dtype) if out is None else out
        self._begun = out is not None
        self._scale = None if dst_scale is None else dst_scale.astype(dtype)

    def sweeps(self, x: Array) -> Iterator[Array]:
        """Yield the local rows to send in each pass over all blocks. There is one pass, which sends all of `x`."""
        yield x

    def add(self, block: CsrBlock, x: Array, *, src_scale: Array | None = None, **weights: Any) -> None:
        """Add the source rows `x` of a block, (n_columns, ...), to the sums of their destinations. Each row is multiplied by its
        factor in `src_scale` (None: 1), and by the weight of its edge if `weights`, further arguments of `kernels.spmm`, include
        edge weights.
        """
        if not self._begun and block.rows is not None:
            self._out[...] = 0
            self._begun = True
        scale = None if src_scale is None else src_scale.astype(self._out.dtype)
        kernels.spmm(block.indptr, *columns_in(block, x), self._out, rows=block.rows, src_scale=scale,
                     dst_scale=self._scale, accumulate=self._begun, **weights)
        self._begun = True

    def finish(self) -> Array:
        """Return the sums over the edges of all added blocks, (n_dst, ...)."""
        return self._out


class SoftmaxSum:
    """Accumulator for attention's output, with a running maximum of the scores (section 3.4 of the SAR paper)."""

    def __init__(self, z: Array, dst: Array) -> None:
        self._dst, self._m, self._l, self._begun = dst, np.empty_like(dst), np.empty_like(dst), False
        self._out = np.empty((*dst.shape, z.shape[2]), kernels.wide(z.dtype))

    def add(self, block: CsrBlock, z: Array, src: Array, slope: float, dropout: kernels.EdgeDropout | None) -> None:
        """Add a block's edges to the softmax sums of their destinations; `z` and `src` have the rows and the source scores of the
        block's columns. `slope` is the slope of the leaky ReLU, and `dropout` drops coefficients unless it is None.
        """
        if not self._begun and block.rows is not None:
            self._m[...], self._l[...], self._out[...], self._begun = -np.inf, 0, 0, True
        kernels.attend(block.indptr, block.indices, z, src, self._dst, self._m, self._l, self._out, rows=block.rows,
                       slope=slope, dropout=dropout, accumulate=self._begun)
        self._begun = True

    def finish(self) -> tuple[Array, Array, Array, None]:
        """Return (output, m, 1 / l, largest): first attention's output; then, (n_dst, n_heads) each, the largest score m and the
        inverse of the sum of exponentials l; then the largest absolute value of each column of z in exact numerics, None here.
        """
        kernels.attend_finish(self._m, self._l, self._out)
        return self._out, self._m, self._l, None


class SoftmaxGradient:
    """Accumulators for attention's gradients of z, of the source scores, and of the destination scores.

    Attributes
    ----------
    accumulators : list of FloatSum
        Accumulators for the gradients of z and of the source scores, not started yet. The gradient of the destination
        scores is accumulated in this object.
    """

    def __init__(self, z_row: tuple[int, ...], dst: Array) -> None:
        self._dst, self._parts = dst, cast(Array, None)
        self.accumulators = [FloatSum(z_row, dst.dtype), FloatSum(dst.shape[1:], dst.dtype)]

    def add(self, csr: tuple[Array, Array], z: Array, src: Array, ends: Array, g: Array, accumulators: list[FloatSum],
            slope: float, dropout: kernels.EdgeDropout | None) -> None:
        """Add attention's gradients over the edges of a block: of z and of the source scores `src` to the two `accumulators`, of
        the destination scores to this object. `csr` lists each source's destinations. `ends` is the result of
        `kernels.attend_ends`, and `g` the output's gradient.
        """
        if self._parts is None:
            self._parts = np.zeros((kernels.threads(), *self._dst.shape))
        dz, d_src = accumulators
        kernels.attend_backward(*csr, z, src, ends, g, dz.array, d_src.array, None, sums=self._parts, slope=slope,
                                dropout=dropout)

    def add_by_source(self, csr: tuple[Array, Array], z: Array, src: Array, ends: Array, g: Array,
                      accumulators: list[FloatSum], d_dst: Array, slope: float, dropout: kernels.EdgeDropout | None) -> None:
        """Add attention's gradients over edges from this rank's sources to destinations that may belong to a peer. The gradients of
        z and of the source scores `src` go to the two `accumulators`, and the gradient of the destination scores to `d_dst`,
        (n_dst, n_heads). The other arguments are as in `add`.
        """
        dz, d_src = accumulators
        kernels.attend_backward(*csr, z, src, ends, g, dz.array, d_src.array, d_dst, slope=slope, dropout=dropout)

    def dst_sums(self) -> Array:
        """Return a zero array, (n_dst, ...), to which `add_by_source` adds gradients of the destinations' scores."""
        return np.zeros_like(self._dst)

    def dst_gradient(self, sums: Array | None = None) -> Array:
        """Return the gradient of the destinations' scores, (n_dst, n_heads): `sums`, an array from `dst_sums`, or if it is None the
        sum over all calls of `add`.
        """
        if sums is None:
            sums = np.zeros_like(self._dst)
            if self._parts is not None:
                kernels.attend_backward_finish(self._parts, sums)
        return sums


def in_rows(block: CsrBlock, *arrays: Array) -> tuple[Array, ...]:
    """Return from each (n_dst, ...) array the rows that are the destination rows of the block, `block.rows` (None: all rows)."""
    return arrays if block.rows is None else tuple(array[block.rows] for array in arrays)


def columns_in(block: CsrBlock, x: Array | kernels.Rows) -> tuple[Array, Array]:
    """Return (indices, array) such that array[indices[e]] is the row of `x` for the source of edge e of `block`. If x is an array
    with a row for each column of the block, the result is (block.indices, x). If x is a `kernels.Rows`, the array is its table of
    rows.
    """
    if not isinstance(x, kernels.Rows):
        return block.indices, x
    return x.numbers_at(block.indices), x.table
