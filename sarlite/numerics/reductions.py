"""Every sum of the tape: the functions of this module make each sum over an axis of a dense array.

A numerics may replace each function by a method with the same name. The functions do not know the tape.
"""

import math

import numpy as np

from sarlite import kernels
from sarlite.numerics.selection import by_numerics


def is_float(x):
    return getattr(x, "dtype", np.dtype(object)).kind == "f"


def axes_of(axis, ndim):
    """Return one axis, several axes or all axes (None) as a tuple of ascending non-negative integers."""
    return tuple(range(ndim)) if axis is None else tuple(sorted(int(a) % max(ndim, 1) for a in np.atleast_1d(axis)))


def wide(x, axis):
    """Return the dtype for accumulating a sum of x over `axis`; None for x's own dtype.

    A float32 sum over axis 0 accumulates in float64: such sums are long, and partitioning reorders them.
    """
    return np.float64 if x.dtype == np.float32 and 0 in axes_of(axis, x.ndim) else None


@by_numerics
def total(x, axis=None, keepdims=False):
    """Return the sum over one axis, several axes or all axes."""
    dtype = wide(x, axis)
    out = np.add.reduce(x, axis=axis, keepdims=keepdims, dtype=dtype)
    return out if dtype is None else out.astype(x.dtype)


@by_numerics
def share(x):
    """Return this rank's share of the sum of all values over all ranks."""
    return total(x)


def count(x, axis=None):
    """Return the number of values that each entry of `total` adds."""
    return math.prod(x.shape[a] for a in axes_of(axis, x.ndim))


def mean(x, axis=None, keepdims=False):
    """Return the mean over one axis, several axes or all axes; 0 if there are no values."""
    return total(x, axis, keepdims) / max(count(x, axis), 1)


@by_numerics
def running(x, axis):
    """Return the cumulative sums along one axis."""
    dtype = wide(x, axis)
    out = np.add.accumulate(x, axis=axis, dtype=dtype)
    return out if dtype is None else out.astype(x.dtype)


def surely_finite(x):
    """Return True if the sum of all values is finite, which implies that each value is finite.

    The sum of finite values may overflow; then the result is False.
    """
    return bool(np.isfinite(np.add.reduce(x, axis=None)))


def unbroadcast(g, shape):
    """Sum `g` down to `shape`: the adjoint of broadcasting from `shape`."""
    if g.shape == shape:
        return g
    extra = g.ndim - len(shape)
    stretched = (i + extra for i, n in enumerate(shape) if n == 1 and g.shape[i + extra] != 1)
    return total(g, (*range(extra), *stretched)).reshape(shape)


# ---- sums of products


def flat(x):
    """Return a view with all axes but the last merged into one."""
    return x.reshape(math.prod(x.shape[:-1]), x.shape[-1])


@by_numerics
def product(a, b, trans_b=False, into=None):
    """Return a @ b or a @ b.T, or add the product to `into` and return `into`.

    With a matrix b it is one product over all leading axes of a. If a and b are matrices of one dtype, a may be
    `kernels.Rows`.
    """
    if b.ndim != 2 or a.dtype != b.dtype or not is_float(a):
        return a @ (b.swapaxes(-1, -2) if trans_b else b)
    out = np.empty((*a.shape[:-1], b.shape[0 if trans_b else 1]), a.dtype) if into is None else into
    a, rows = taken(a)
    kernels.gemm(a, np.ascontiguousarray(b), flat(out), trans_b=trans_b, accumulate=into is not None, rows=rows)
    return out


@by_numerics
def product_over_rows(a, g):
    """Return a.T @ g, summed over all axes but the last: the gradient of the matrix b in a @ b."""
    out = np.empty((a.shape[-1], g.shape[-1]), g.dtype)
    a, rows = taken(a)
    kernels.gemm_backward(a, flat(g), out, rows=rows)
    return out


@by_numerics
def product_by_head(x, w, trans_b=False):
    """Return out[i,h] = x[i,h] @ w[h], or @ w[h].T, one product per head; x is (n, n_heads, n_in)."""
    return by_heads(x, w, trans_b)


def by_heads(x, w, trans_b, fused=False):
    """Compute `product_by_head`; see `kernels.gemm` for `fused`."""
    n, n_heads, _ = x.shape
    out = np.empty((n, n_heads, w.shape[1 if trans_b else 2]), x.dtype)
    for h in range(n_heads):
        kernels.gemm(x[:, h], w[h], out[:, h], trans_b=trans_b, fused=fused)
    return out


@by_numerics
def product_by_head_over_rows(x, g):
    """Return out[h] = x[:,h].T @ g[:,h], the gradient of w in `product_by_head`."""
    out = np.empty((x.shape[1], x.shape[2], g.shape[2]), x.dtype)
    for h in range(x.shape[1]):
        kernels.gemm_backward(x[:, h], g[:, h], out[h])
    return out


def taken(a):
    """Return a matrix, and the numbers of the rows of it that make up `a`; None if `a` is the whole matrix."""
    if isinstance(a, kernels.Rows):
        return np.ascontiguousarray(a.table), a.numbers
    return np.ascontiguousarray(flat(a)), None


@by_numerics
def contract(subscripts, *arrays):
    """Return the sum of products in Einstein's notation."""
    return np.einsum(subscripts, *arrays, optimize=len(arrays) > 1)


# ---- sums over rows picked by number


@by_numerics
def scatter_rows(g, index, n_rows):
    """Return out with out[index[i]] += g[i], the adjoint of a gather.

    It is computed as a product with a sparse matrix. Each row is summed in the order of `g`, so the result does not
    depend on the number of threads.
    """
    indptr, order, _ = kernels.transpose(np.arange(index.size + 1), np.ascontiguousarray(index), n_rows)
    out = np.zeros((n_rows, *g.shape[1:]), g.dtype)
    kernels.spmm(indptr, order, np.ascontiguousarray(g), out)
    return out


def add_equal_rows(out, index, values):
    """Add values[i] to out[index[i]].

    Values with the same index must be equal, so that the order of additions changes no bit.
    """
    np.add.at(out, index, values)


@by_numerics
def add_at(out, index, values):
    """Add values[i] to out[index[i]]; sums are float64, and `index` holds one integer array per axis of `out`."""
    picked, place = np.unique(np.ravel_multi_index(index, out.shape), return_inverse=True)
    out.reshape(-1)[picked] += np.bincount(place, np.broadcast_to(values, place.shape), len(picked)).astype(out.dtype)
