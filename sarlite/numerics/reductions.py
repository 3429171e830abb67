"""Sums over axes of dense arrays. All dense operations of the tape compute their sums by these functions.

In exact numerics, a function that is decorated by `by_numerics` calls the method of `Exact` with the same name.
"""

import math

import numpy as np

from sarlite import kernels
from sarlite.numerics.selection import by_numerics


def is_float(x):
    """Return True if x has a float dtype; False for objects without a dtype."""
    return getattr(x, "dtype", np.dtype(object)).kind == "f"


def axes_of(axis, ndim):
    """Convert `axis`, an int, several ints or None for all axes, to a tuple of ascending ints from 0 to `ndim` - 1, for an array of
    `ndim` axes.
    """
    return tuple(range(ndim)) if axis is None else tuple(sorted(int(a) % max(ndim, 1) for a in np.atleast_1d(axis)))


def wide(x, axis):
    """Return the dtype for accumulating a sum of x over `axis`; None stands for x's own dtype. Sums of float32 over axis 0 are
    accumulated in float64: they are long, and their order depends on the partition.
    """
    return np.float64 if x.dtype == np.float32 and 0 in axes_of(axis, x.ndim) else None


@by_numerics
def total(x, axis=None, keepdims=False):
    """Return the sum of x over `axis`, an int, several ints or None for all axes, in x's dtype. With `keepdims`, the summed
    axes stay with length 1.
    """
    dtype = wide(x, axis)
    out = np.add.reduce(x, axis=axis, keepdims=keepdims, dtype=dtype)
    return out if dtype is None else out.astype(x.dtype)


@by_numerics
def share(x):
    """Return this rank's summand for an allreduce of the sum of x over all ranks: in fast numerics, the sum of this rank's
    values. In exact numerics, whose sums already include all ranks, rank 0 passes the global sum and the other ranks pass 0.
    """
    return total(x)


def count(x, axis=None):
    """Return the number of values that `total(x, axis)` adds up for each value of its result."""
    return math.prod(x.shape[a] for a in axes_of(axis, x.ndim))


def mean(x, axis=None, keepdims=False):
    """Return the mean of x over `axis`, an int, several ints or None for all axes; 0 if there are no values. With `keepdims`,
    these axes stay with length 1.
    """
    return total(x, axis, keepdims) / max(count(x, axis), 1)


@by_numerics
def running(x, axis):
    """Return the cumulative sums of x along one axis, as `numpy.cumsum` does, in x's shape and dtype.

    Examples
    --------
    >>> running(np.array([1.0, 2.0, 3.0]), 0)
    array([1., 3., 6.])
    """
    dtype = wide(x, axis)
    out = np.add.accumulate(x, axis=axis, dtype=dtype)
    return out if dtype is None else out.astype(x.dtype)


def surely_finite(x):
    """Return True if the sum of x is finite, which proves that every value of x is finite. False proves nothing, as the sum of
    finite values may overflow.
    """
    return bool(np.isfinite(np.add.reduce(x, axis=None)))


def unbroadcast(g, shape):
    """Return the sum of `g` over the axes along which `shape` was broadcast to g's shape, in the shape `shape`.

    Examples
    --------
    >>> unbroadcast(np.ones((2, 3)), (3,)), unbroadcast(np.ones((2, 3)), (2, 1))
    (array([2., 2., 2.]), array([[3.],
           [3.]]))
    """
    if g.shape == shape:
        return g
    extra = g.ndim - len(shape)
    stretched = (i + extra for i, n in enumerate(shape) if n == 1 and g.shape[i + extra] != 1)
    return total(g, (*range(extra), *stretched)).reshape(shape)


# ---- sums of products


def flat(x):
    """Return a view of x as a matrix, with all axes but the last merged into one."""
    return x.reshape(math.prod(x.shape[:-1]), x.shape[-1])


@by_numerics
def product(a, b, trans_b=False, into=None):
    """Return a @ b, or a @ b.T with `trans_b`; with `into`, the product is added to this array.

    Parameters
    ----------
    a : (..., k) array, or kernels.Rows
        `kernels.Rows` only if b is a matrix of the same float dtype.
    b : (k, n) array, or (n, k) with `trans_b`; or a stack of matrices
    trans_b : bool
        True to transpose the last two axes of b.
    into : (..., n) array, optional
        Array that the product is added to, and that is returned; only with a matrix b.
    """
    if b.ndim != 2 or a.dtype != b.dtype or not is_float(a):
        return a @ (b.swapaxes(-1, -2) if trans_b else b)
    out = np.empty((*a.shape[:-1], b.shape[0 if trans_b else 1]), a.dtype) if into is None else into
    a, rows = taken(a)
    kernels.gemm(a, np.ascontiguousarray(b), flat(out), trans_b=trans_b, accumulate=into is not None, rows=rows)
    return out


@by_numerics
def product_over_rows(a, g):
    """Return the gradient of the matrix b in a @ b, (k, n), where `g` is the gradient of a @ b: a.T @ g, summed over all axes but the last.

    Parameters
    ----------
    a : (..., k) array, or kernels.Rows
    g : (..., n) array
        Gradient of a @ b.
    """
    out = np.empty((a.shape[-1], g.shape[-1]), g.dtype)
    a, rows = taken(a)
    kernels.gemm_backward(a, flat(g), out, rows=rows)
    return out


@by_numerics
def product_by_head(x, w, trans_b=False):
    """Return out[i,h] = x[i,h] @ w[h], (n, n_heads, n_out), one product for each head h; with `trans_b` each w[h] is transposed.

    Parameters
    ----------
    x : (n, n_heads, n_in) array
    w : (n_heads, n_in, n_out) array, or (n_heads, n_out, n_in) with `trans_b`
    trans_b : bool
        True to transpose each w[h].
    """
    return by_heads(x, w, trans_b)


def by_heads(x, w, trans_b, fused=False):
    """Return out[i,h] = x[i,h] @ w[h], (n, n_heads, n_out), or with `trans_b` x[i,h] @ w[h].T. With `fused`, each multiply-add
    is rounded once, so that the result does not depend on the instruction set.
    """
    n, n_heads, _ = x.shape
    out = np.empty((n, n_heads, w.shape[1 if trans_b else 2]), x.dtype)
    for h in range(n_heads):
        kernels.gemm(x[:, h], w[h], out[:, h], trans_b=trans_b, fused=fused)
    return out


@by_numerics
def product_by_head_over_rows(x, g):
    """Return out[h] = x[:,h].T @ g[:,h], (n_heads, n_in, n_out): the gradient of w in `product_by_head(x, w)`, where `g` is the
    gradient of its result.
    """
    out = np.empty((x.shape[1], x.shape[2], g.shape[2]), x.dtype)
    for h in range(x.shape[1]):
        kernels.gemm_backward(x[:, h], g[:, h], out[h])
    return out


def taken(a):
    """Return (matrix, row numbers), the arguments of `kernels.gemm` that stand for `a` = matrix[row numbers]. If `a` is an
    array, it is returned as a matrix, and the row numbers are None.
    """
    if isinstance(a, kernels.Rows):
        return np.ascontiguousarray(a.table), a.numbers
    return np.ascontiguousarray(flat(a)), None


@by_numerics
def contract(subscripts, *arrays):
    """Return the sum of products of `arrays` in Einstein notation, as `numpy.einsum` does."""
    return np.einsum(subscripts, *arrays, optimize=len(arrays) > 1)


# ---- sums over rows picked by number


@by_numerics
def scatter_rows(g, index, n_rows):
    """Return the array `out`, (n_rows, ...), of sums out[index[i]] += g[i], starting from zeros.

    Parameters
    ----------
    g : (k, ...) array
    index : (k,) int
        Row numbers in [0, n_rows), which may repeat.
    n_rows : int

    Notes
    -----
    Each row is summed in the order of `g`, so the result does not depend on the number of threads.
    """
    indptr, order, _ = kernels.transpose(np.arange(index.size + 1), np.ascontiguousarray(index), n_rows)
    out = np.zeros((n_rows, *g.shape[1:]), g.dtype)
    kernels.spmm(indptr, order, np.ascontiguousarray(g), out)
    return out


def add_equal_rows(out, index, values):
    """Add values[i] to out[index[i]] in place. Values with the same index must be equal, so that the order of the additions
    does not change the result.
    """
    np.add.at(out, index, values)


@by_numerics
def add_at(out, index, values):
    """Add values[i] to the element `index[i]` of `out` in place. Values for the same element are added in float64.

    Parameters
    ----------
    out : array
    index : tuple of (k,) int
        One array for each axis of `out`.
    values : (k,) array
    """
    elements, position = np.unique(np.ravel_multi_index(index, out.shape), return_inverse=True)
    sums = np.bincount(position, np.broadcast_to(values, position.shape), len(elements))
    out.reshape(-1)[elements] += sums.astype(out.dtype)
