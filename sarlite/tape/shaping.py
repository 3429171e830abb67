"""Reductions, shapes, and rows picked by number."""

import numpy as np

from sarlite import kernels
from sarlite.errors import ShapeError
from sarlite.tape.arithmetic import astype, div, is_float, total
from sarlite.tape.engine import Tensor, apply, as_array, primitive

# ---- reductions


def _restore(g, axis, keepdims):
    """Put the reduced axes back as axes of length one."""
    return g if keepdims or axis is None else np.expand_dims(g, axis)


def _sum(needs, x, axis, keepdims):
    return total(x, axis, keepdims), (x.shape,)


def _sum_vjp(g, needs, residuals, axis, keepdims):
    return (np.broadcast_to(_restore(g, axis, keepdims), residuals[0]),)


primitive("sum", _sum, _sum_vjp)


def sum(x, axis=None, keepdims=False):
    """Sum over an axis, a tuple of axes, or all. Nothing is kept for the backward pass."""
    return apply("sum", x, axis=axis, keepdims=keepdims)


def mean(x, axis=None, keepdims=False):
    """Average over an axis, a tuple of axes, or all."""
    out = sum(x, axis, keepdims)
    return div(out, as_array(x).size // (out.data.size or 1))


def _extremum(name, arg):
    """Enter max or min over one axis; `arg` is NumPy's argmax or argmin, which finds the first."""

    def forward(needs, x, axis, keepdims):
        at = arg(x, axis=axis, keepdims=True)
        out = np.take_along_axis(x, at, axis)
        return out if keepdims else out.squeeze(axis), (at if needs[0] else None, x.shape)

    def vjp(g, needs, residuals, axis, keepdims):
        at, shape = residuals
        dx = np.zeros(shape, g.dtype)
        np.put_along_axis(dx, at, _restore(g, axis, keepdims), axis)
        return (dx,)

    primitive(name, forward, vjp)

    def reduce(x, axis=None, keepdims=False):
        if axis is None:
            out = apply(name, reshape(x, -1), axis=0, keepdims=False)
            return reshape(out, (1,) * x.ndim) if keepdims else out
        return apply(name, x, axis=axis, keepdims=keepdims)

    reduce.__name__ = name
    reduce.__doc__ = f"Return the {name} over one axis or all; of equal entries the first gets the whole gradient."
    return reduce


max = _extremum("max", np.argmax)
min = _extremum("min", np.argmin)

# ---- shapes: nothing but shapes is kept


primitive(
    "reshape",
    lambda needs, x, shape: (x.reshape(shape), (x.shape,)),
    lambda g, needs, residuals, shape: (g.reshape(residuals[0]),),
    fresh=None,
)
primitive(
    "transpose",
    lambda needs, x, axes: (x.transpose(axes), ()),
    lambda g, needs, residuals, axes: (g.transpose(np.argsort(axes)),),
)


def reshape(x, *shape):
    """Return `x` in another shape, given as one tuple or as several integers, of which one may be -1."""
    shape = shape[0] if len(shape) == 1 and not np.isscalar(shape[0]) else shape
    return apply("reshape", x, shape=tuple(shape))


def transpose(x, *axes):
    """Permute the axes, given as one tuple or as several integers; without any, reverse them."""
    axes = axes[0] if len(axes) == 1 and not np.isscalar(axes[0]) else axes
    return apply("transpose", x, axes=tuple(a % x.ndim for a in axes) or tuple(range(x.ndim))[::-1])


def _getitem(needs, x, index):
    return x[index], (x.shape,)


def _getitem_vjp(g, needs, residuals, index):
    dx = np.zeros(residuals[0], g.dtype)
    dx[index] = g
    return (dx,)


primitive("getitem", _getitem, _getitem_vjp)


def getitem(x, index):
    """Return x[index].

    Integers, slices, None and Ellipsis give a view; an array of integers picks rows, as `take`, and one of bools
    picks the rows where it is true. A slice of everything is `x` itself.
    """
    if isinstance(index, (list, np.ndarray, Tensor)):
        return take(x, _row_numbers(x, index))
    parts = index if isinstance(index, tuple) else (index,)
    for part in parts:
        if not (part is None or part is Ellipsis or isinstance(part, (int, np.integer, slice))):
            raise TypeError(f"cannot index a Tensor with a {type(part).__name__} here; use take()")
    if parts and all(_is_all(part, n) for part, n in zip(parts, x.shape)) and len(parts) <= x.ndim:
        return x
    return apply("getitem", x, index=index)


def _is_all(part, n):
    return isinstance(part, slice) and part.indices(n) == (0, n, 1)


def _row_numbers(x, index):
    """Turn NumPy's ways to pick rows into numbers from 0."""
    array = as_array(index)
    if array.dtype == bool:
        if array.shape != x.shape[:1]:
            raise ShapeError(f"a bool index of shape {array.shape} does not fit the {len(x)} rows")
        return np.flatnonzero(array)
    if array.size and array.min() < 0:
        return np.where(array < 0, array + len(x), array)
    return index if array.size else array.astype(np.int64)


def _concat(needs, *arrays, axis):
    return np.concatenate(arrays, axis), (tuple(a.shape[axis] for a in arrays),)


def _concat_vjp(g, needs, residuals, axis):
    return np.split(g, np.cumsum(residuals[0])[:-1], axis)


primitive("concat", _concat, _concat_vjp)


def concat(tensors, axis=0):
    """Join tensors of one dtype along an axis."""
    tensors = [t if isinstance(t, Tensor) else as_array(t) for t in tensors]
    if len({t.dtype for t in tensors}) > 1:
        raise ShapeError(f"cannot join dtypes {[str(t.dtype) for t in tensors]}; astype() some")
    return apply("concat", *tensors, axis=axis)


def stack(tensors, axis=0):
    """Join tensors of one shape along a new axis."""
    tensors = [t if isinstance(t, Tensor) else Tensor(t) for t in tensors]
    axis %= tensors[0].ndim + 1
    return concat([reshape(t, (*t.shape[:axis], 1, *t.shape[axis:])) for t in tensors], axis)


# ---- rows


def gather_rows(x, index):
    """Return x[index] for a float ndarray; the kernel refuses row numbers out of range."""
    out = np.empty((index.size, *x.shape[1:]), x.dtype)
    kernels.gather_rows(np.ascontiguousarray(x), np.ascontiguousarray(index).reshape(-1), out)
    return out.reshape(*index.shape, *x.shape[1:])


def scatter_rows(g, index, n_rows):
    """Return out with out[index[i]] += g[i], the adjoint of a gather: a product with the sparse matrix of picks.

    Each row is summed in the order of `g`, so the result does not depend on threads.
    """
    indptr, order, _ = kernels.transpose(np.arange(index.size + 1), np.ascontiguousarray(index), n_rows)
    out = np.zeros((n_rows, *g.shape[1:]), g.dtype)
    kernels.spmm(indptr, order, np.ascontiguousarray(g), out)
    return out


def _take(needs, x, index):
    return gather_rows(x, index) if is_float(x) else x[index], (index if needs[0] else None, x.shape)


def _take_vjp(g, needs, residuals):
    index, shape = residuals
    return scatter_rows(g.reshape(index.size, *shape[1:]), index.reshape(-1), shape[0]), None


primitive("take", _take, _take_vjp)


def take(x, index):
    """Gather rows: out[i] = x[index[i]]; repeated rows get the sum of their gradients.

    Parameters
    ----------
    x : Tensor, (n, ...)
    index : array or Tensor of int32 or int64, any shape
        Row numbers in [0, n).

    Returns
    -------
    Tensor, index.shape + x.shape[1:]

    Raises
    ------
    ShapeError
        If `index` is not of integers.
    IndexError
        If a row number is out of range.
    """
    index = index if isinstance(index, Tensor) else as_array(index)
    array = as_array(index)
    if array.dtype.kind not in "iu":
        raise ShapeError(f"row numbers must be integers, not {array.dtype}")
    if array.dtype not in (np.int32, np.int64):
        index = astype(index, np.int64)
    if array.size and not (0 <= array.min() and array.max() < len(x)):
        raise IndexError(f"row numbers {array.min()}..{array.max()} are out of range for {len(x)} rows")
    return apply("take", x, index)
