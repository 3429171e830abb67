"""Operations that move values: shapes, slices, joins, and rows selected by number."""

from collections.abc import Iterable
from typing import Any

import numpy as np

from sarlite import kernels
from sarlite.errors import ShapeError
from sarlite.numerics import rank_invariant
from sarlite.numerics.reductions import is_float, scatter_rows
from sarlite.tape.apply import apply
from sarlite.tape.pairwise import astype
from sarlite.tape.primitives import primitive
from sarlite.tape.summands import RowGradient, SliceGradient
from sarlite.tape.tensor import Operand, Tensor, as_array
from sarlite.types import Array, Axis

# ---- shapes: nothing but shapes is kept


primitive(
    "reshape",
    lambda wants_grad, x, shape: (x.reshape(shape), (x.shape,)),
    lambda g, wants_grad, residuals, shape: (g.reshape(residuals[0]),),
)
primitive(
    "transpose",
    lambda wants_grad, x, axes: (x.transpose(axes), ()),
    lambda g, wants_grad, residuals, axes: (g.transpose(np.argsort(axes)),),
)


def reshape(x: Tensor | Array, *shape: Any) -> Tensor:
    """Return `x` in another shape, given as one tuple or as several integers, of which one may be -1."""
    shape = shape[0] if len(shape) == 1 and not np.isscalar(shape[0]) else shape
    return apply("reshape", x, shape=tuple(shape))


def transpose(x: Tensor | Array, *axes: Any) -> Tensor:
    """Permute the axes, given as one tuple or as several integers; without any, reverse them."""
    axes = axes[0] if len(axes) == 1 and not np.isscalar(axes[0]) else axes
    return apply("transpose", x, axes=tuple(a % x.ndim for a in axes) or tuple(range(x.ndim))[::-1])


def squeeze(x: Tensor | Array, axis: Axis = None) -> Tensor:
    """Remove axes of length 1: the named axes, or all such axes.

    Raises
    ------
    ShapeError
        If a named axis is longer.
    """
    axes = [a for a, n in enumerate(x.shape) if n == 1] if axis is None else of_axes(axis, x.ndim)
    if any(x.shape[a] != 1 for a in axes):
        raise ShapeError(f"cannot squeeze axis {axis} of shape {x.shape}: its length is not 1")
    return reshape(x, tuple(n for a, n in enumerate(x.shape) if a not in axes))


def expand_dims(x: Tensor | Array, axis: int | tuple[int, ...]) -> Tensor:
    """Insert axes of length 1 at the positions `axis` of the result."""
    axes = of_axes(axis, x.ndim + np.size(axis))
    rest = iter(x.shape)
    return reshape(x, tuple(1 if a in axes else next(rest) for a in range(x.ndim + len(axes))))


def of_axes(axis: Any, ndim: int) -> tuple[int, ...]:
    """Return one axis, several axes or all axes (None) as a tuple of non-negative integers."""
    axes = range(ndim) if axis is None else axis if isinstance(axis, (tuple, list)) else (axis,)
    for a in axes:
        if not -ndim <= a < ndim:
            raise ShapeError(f"axis {a} is not one of {ndim} axes")
    axes = tuple(int(a) % ndim for a in axes)
    if len(set(axes)) < len(axes):
        raise ShapeError(f"axis {axis} names an axis twice")
    return axes


# ---- slices and joins


def _getitem(wants_grad, x, index):
    return x[index], (x.shape,)


def _getitem_vjp(g, wants_grad, residuals, index):
    return (SliceGradient(index, g, residuals[0]),)


primitive("getitem", _getitem, _getitem_vjp)


def getitem(x: Tensor, index: Any) -> Tensor:
    """Return x[index].

    Integers, slices, None and Ellipsis return a view. An array of integers selects rows, as `take` does; an array of
    bools selects the rows where it is true. In fast numerics a slice of everything returns `x` itself.
    """
    if isinstance(index, (list, np.ndarray, Tensor)):
        return take(x, _row_numbers(x, index))
    parts = index if isinstance(index, tuple) else (index,)
    for part in parts:
        if not (part is None or part is Ellipsis or isinstance(part, (int, np.integer, slice))):
            raise TypeError(f"cannot index a Tensor with a {type(part).__name__} here; use take()")
    everything = parts and all(_is_all(part, n) for part, n in zip(parts, x.shape)) and len(parts) <= x.ndim
    if rank_invariant(everything, False):  # another tape would add up gradients in another order
        return x
    return apply("getitem", x, index=index)


def _is_all(part, n):
    return isinstance(part, slice) and part.indices(n) == (0, n, 1)


def _concat(wants_grad, *arrays, axis):
    return np.concatenate(arrays, axis), (tuple(a.shape[axis] for a in arrays),)


def _concat_vjp(g, wants_grad, residuals, axis):
    return np.split(g, np.cumsum(residuals[0])[:-1], axis)


primitive("concat", _concat, _concat_vjp)


def concat(tensors: Iterable[Any], axis: int = 0) -> Tensor:
    """Concatenate tensors of one dtype along an axis."""
    tensors = [t if isinstance(t, Tensor) else as_array(t) for t in tensors]
    if len({t.dtype for t in tensors}) > 1:
        raise ShapeError(f"cannot join dtypes {[str(t.dtype) for t in tensors]}; astype() some")
    return apply("concat", *tensors, axis=axis)


def stack(tensors: Iterable[Any], axis: int = 0) -> Tensor:
    """Stack tensors of one shape along a new axis."""
    tensors = [t if isinstance(t, Tensor) else Tensor(t) for t in tensors]
    axis %= tensors[0].ndim + 1
    return concat([expand_dims(t, axis) for t in tensors], axis)


# ---- rows


def _peek(index):
    """Return the values of an index for a check alone; no result depends on them, so no read is reported."""
    return index._data if isinstance(index, Tensor) else as_array(index)


def _row_numbers(x, index):
    """Convert a NumPy row index, a mask or integers that may be negative, to non-negative row numbers."""
    array = _peek(index)
    if array.dtype == bool:
        if array.shape != x.shape[:1]:
            raise ShapeError(f"a bool index of shape {array.shape} does not fit the {len(x)} rows")
        return np.flatnonzero(as_array(index))
    if array.size and array.min() < 0:
        array = as_array(index)
        return np.where(array < 0, array + len(x), array)
    return index if array.size else array.astype(np.int64)


def gather_rows(x, index):
    """Return x[index] for a float ndarray; the kernel raises for row numbers out of range."""
    out = np.empty((index.size, *x.shape[1:]), x.dtype)
    kernels.gather_rows(np.ascontiguousarray(x), np.ascontiguousarray(index).reshape(-1), out)
    return out.reshape((*index.shape, *x.shape[1:]))


def _take(wants_grad, x, index):
    return gather_rows(x, index) if is_float(x) else x[index], (index if wants_grad[0] else None, x.shape)


def _take_vjp(g, wants_grad, residuals):
    index, shape = residuals
    return RowGradient(index.reshape(-1), g.reshape(index.size, *shape[1:]), shape[0]), None


primitive("take", _take, _take_vjp)


def take(x: Tensor | Array, index: Operand) -> Tensor:
    """Gather rows: out[i] = x[index[i]]. A row that is gathered several times receives the sum of its gradients.

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
    return apply("take", x, _checked(index, len(x)))


def _checked(index, n):
    """Check that row numbers are in [0, n); return them as int32 or int64, still on the tape if they were a Tensor."""
    array = _peek(index)
    if array.dtype.kind not in "iu":
        raise ShapeError(f"row numbers must be integers, not {array.dtype}")
    if array.size and not (0 <= array.min() and array.max() < n):
        raise IndexError(f"row numbers {array.min()}..{array.max()} are out of range for {n} rows")
    index = index if isinstance(index, Tensor) else array
    return index if array.dtype in (np.int32, np.int64) else astype(index, np.int64)


def _scatter_add(wants_grad, x, index, n_rows):
    rows = x.reshape(index.size, *x.shape[index.ndim :])
    return scatter_rows(rows, index.reshape(-1), n_rows), (index if wants_grad[0] else None,)


def _scatter_add_vjp(g, wants_grad, residuals, n_rows):
    return gather_rows(g, residuals[0]), None


primitive("scatter_add", _scatter_add, _scatter_add_vjp)


def scatter_add(x: Any, index: Any, n_rows: int) -> Tensor:
    """Sum rows by index: out[index[i]] += x[i], starting from zeros; the adjoint of `take`.

    Parameters
    ----------
    x : float Tensor, index.shape + (...)
    index : array or Tensor of integers
        Row numbers in [0, n_rows).
    n_rows : int

    Returns
    -------
    Tensor (n_rows, ...)
        Each row is summed in the order of x, whatever the number of threads.

    Raises
    ------
    ShapeError, IndexError
        If `index` is not of integers or does not fit x; if a row number is out of range.
    """
    x = x if isinstance(x, Tensor) else Tensor(x)
    index = _checked(index, n_rows)
    if x.shape[: index.ndim] != index.shape or not is_float(x):
        raise ShapeError(f"x of {x.dtype} {x.shape} are not float rows for an index of shape {index.shape}")
    return apply("scatter_add", x, index, n_rows=int(n_rows))
