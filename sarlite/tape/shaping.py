"""Operations that move values: shapes, slices, concatenation, and rows selected by number."""

from collections.abc import Iterable, Sequence
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
from sarlite.tape.tensor import Index, Operand, Tensor, as_array
from sarlite.types import Array, Axis

# ---- shapes


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


def _unpacked(arguments: tuple[Any, ...]) -> tuple[int, ...]:
    """Return the integers that a function was called with as a tuple: (2, 3) for f(2, 3), and the same for f((2, 3))."""
    return tuple(arguments[0] if len(arguments) == 1 and not np.isscalar(arguments[0]) else arguments)


def reshape(x: Tensor | Array, *shape: int | Sequence[int]) -> Tensor:
    """Return x in another shape, given as one tuple or as several integers, of which one may be -1.

    Parameters
    ----------
    x : Tensor or array
    shape : int or sequence of int

    Examples
    --------
    >>> import numpy as np
    >>> from sarlite.tape import ops
    >>> ops.reshape(np.arange(6.0), 2, -1).shape, ops.reshape(np.arange(6.0), (3, 2)).shape
    ((2, 3), (3, 2))
    """
    return apply("reshape", x, shape=_unpacked(shape))


def transpose(x: Tensor | Array, *axes: int | Sequence[int]) -> Tensor:
    """Return x with permuted axes, given as one tuple or as several integers; by default in reverse order.

    Parameters
    ----------
    x : Tensor or array
    axes : int or sequence of int
        For each axis of the result, the axis of x.

    Examples
    --------
    >>> import numpy as np
    >>> from sarlite.tape import ops
    >>> ops.transpose(np.zeros((2, 3, 4)), 0, 2, 1).shape
    (2, 4, 3)
    """
    order = tuple(a % x.ndim for a in _unpacked(axes))
    return apply("transpose", x, axes=order or tuple(range(x.ndim))[::-1])


def squeeze(x: Tensor | Array, axis: Axis = None) -> Tensor:
    """Return x without axes of length 1: without the axes `axis`, or by default without all axes of length 1.

    Parameters
    ----------
    x : Tensor or array
    axis : int, tuple of int or None

    Raises
    ------
    ShapeError
        An axis in `axis` has another length.

    Examples
    --------
    >>> import numpy as np
    >>> from sarlite.tape import ops
    >>> ops.squeeze(np.zeros((2, 1, 3, 1))).shape
    (2, 3)
    """
    axes = [a for a, n in enumerate(x.shape) if n == 1] if axis is None else of_axes(axis, x.ndim)
    if any(x.shape[a] != 1 for a in axes):
        raise ShapeError(f"cannot squeeze axis {axis} of shape {x.shape}: its length is not 1")
    return reshape(x, tuple(n for a, n in enumerate(x.shape) if a not in axes))


def expand_dims(x: Tensor | Array, axis: int | tuple[int, ...]) -> Tensor:
    """Return x with new axes of length 1, at the positions `axis` of the result.

    Parameters
    ----------
    x : Tensor or array
    axis : int or tuple of int

    Examples
    --------
    >>> import numpy as np
    >>> from sarlite.tape import ops
    >>> ops.expand_dims(np.zeros((2, 3)), 1).shape
    (2, 1, 3)
    """
    axes = of_axes(axis, x.ndim + np.size(axis))
    rest = iter(x.shape)
    return reshape(x, tuple(1 if a in axes else next(rest) for a in range(x.ndim + len(axes))))


def of_axes(axis: Axis | list[int], ndim: int) -> tuple[int, ...]:
    """Return `axis` as a tuple of axis numbers, 0 .. ndim - 1; None stands for all axes, and negative numbers count from the end.

    Raises
    ------
    ShapeError
        An axis is out of range or given twice.
    """
    axes = range(ndim) if axis is None else axis if isinstance(axis, (tuple, list)) else (axis,)
    for a in axes:
        if not -ndim <= a < ndim:
            raise ShapeError(f"axis {a} is not one of {ndim} axes")
    positive = tuple(int(a) % ndim for a in axes)
    if len(set(positive)) < len(positive):
        raise ShapeError(f"axis {axis} names an axis twice")
    return positive


# ---- slices and joins


def _getitem(wants_grad, x, index):
    return x[index], (x.shape,)


def _getitem_vjp(g, wants_grad, residuals, index):
    return (SliceGradient(index, g, residuals[0]),)


primitive("getitem", _getitem, _getitem_vjp)


def getitem(x: Tensor, index: Index) -> Tensor:
    """Return x[index], recorded on the tape, for an index of integers and slices, a mask of rows, or an array of row numbers.

    Parameters
    ----------
    x : Tensor
    index : int, slice, None, Ellipsis, a tuple of these, an array or a list
        The first kinds select a view. An array of integers selects rows, as in `take`, but numbers may be negative. An
        array of bools selects the rows where it is True.

    Raises
    ------
    TypeError
        A tuple contains an array.

    Notes
    -----
    In fast numerics an index that selects everything, such as `x[:]`, returns x itself.

    Examples
    --------
    >>> import numpy as np
    >>> from sarlite.tape import Tensor, ops
    >>> ops.getitem(Tensor(np.array([[1.0], [2.0], [3.0]])), np.array([2, 0])).data.tolist()
    [[3.0], [1.0]]
    """
    if isinstance(index, (list, np.ndarray, Tensor)):
        return take(x, _row_numbers(x, index))
    parts = index if isinstance(index, tuple) else (index,)
    for part in parts:
        if not (part is None or part is Ellipsis or isinstance(part, (int, np.integer, slice))):
            raise TypeError(f"cannot index a Tensor with a {type(part).__name__} here; use take()")
    everything = parts and all(_is_all(part, n) for part, n in zip(parts, x.shape)) and len(parts) <= x.ndim
    if rank_invariant(everything, False):  # gradients are added in the order of the tape, which must not depend on rows
        return x
    return apply("getitem", x, index=index)


def _is_all(part, n):
    return isinstance(part, slice) and part.indices(n) == (0, n, 1)


def _concat(wants_grad, *arrays, axis):
    return np.concatenate(arrays, axis), (tuple(a.shape[axis] for a in arrays),)


def _concat_vjp(g, wants_grad, residuals, axis):
    return np.split(g, np.cumsum(residuals[0])[:-1], axis)


primitive("concat", _concat, _concat_vjp)


def concat(tensors: Iterable[Operand], axis: int = 0) -> Tensor:
    """Return tensors of one dtype concatenated along an axis.

    Parameters
    ----------
    tensors : iterable of Tensor or array
        They have the same shape except along `axis`.
    axis : int

    Raises
    ------
    ShapeError
        The dtypes differ.

    Examples
    --------
    >>> import numpy as np
    >>> from sarlite.tape import ops
    >>> ops.concat([np.array([[1.0], [2.0]]), np.array([[3.0], [4.0]])], axis=1).data.tolist()
    [[1.0, 3.0], [2.0, 4.0]]
    """
    parts = [t if isinstance(t, Tensor) else as_array(t) for t in tensors]
    if len({t.dtype for t in parts}) > 1:
        raise ShapeError(f"cannot join dtypes {[str(t.dtype) for t in parts]}; astype() some")
    return apply("concat", *parts, axis=axis)


def stack(tensors: Iterable[Operand], axis: int = 0) -> Tensor:
    """Return tensors of one shape and dtype stacked along a new axis.

    Parameters
    ----------
    tensors : iterable of Tensor or array
    axis : int
        Position of the new axis in the result.

    Examples
    --------
    >>> import numpy as np
    >>> from sarlite.tape import ops
    >>> ops.stack([np.array([1.0, 2.0]), np.array([3.0, 4.0])]).data.tolist()
    [[1.0, 2.0], [3.0, 4.0]]
    """
    parts = [t if isinstance(t, Tensor) else Tensor(t) for t in tensors]
    axis %= parts[0].ndim + 1
    return concat([expand_dims(t, axis) for t in parts], axis)


# ---- rows


def _peek(index: Operand) -> Array:
    """Return `index` as an array for a check alone: if it is a tensor, this does not count as a read of its values (`recording.Reads`)."""
    return index._data if isinstance(index, Tensor) else as_array(index)


def _row_numbers(x: Tensor, index: Operand) -> Operand:
    """Return the row numbers, 0 .. len(x) - 1, that `index` selects of x: a bool mask, or integers, where negative ones count from
    the end.
    """
    array = _peek(index)
    if array.dtype == bool:
        if array.shape != x.shape[:1]:
            raise ShapeError(f"a bool index of shape {array.shape} does not fit the {len(x)} rows")
        return np.flatnonzero(as_array(index))
    if array.size and array.min() < 0:
        array = as_array(index)
        return np.where(array < 0, array + len(x), array)
    return index if array.size else array.astype(np.int64)


def gather_rows(x: Array, index: Array) -> Array:
    """Return x[index] for a float array x and an integer array `index` of any shape, computed by a kernel.

    The kernel raises a ShapeError for row numbers out of range.
    """
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
    """Return rows of x: out[i] = x[index[i]]. A row that is taken several times receives the sum of the gradients.

    Parameters
    ----------
    x : Tensor, (n, ...)
    index : array or Tensor of integers, any shape
        Row numbers in [0, n).

    Returns
    -------
    Tensor, index.shape + x.shape[1:]

    Raises
    ------
    ShapeError
        `index` does not hold integers.
    IndexError
        A row number is out of range.

    Examples
    --------
    >>> import numpy as np
    >>> from sarlite.tape import ops
    >>> ops.take(np.array([[1.0], [2.0], [3.0]]), [2, 0, 2]).data.tolist()
    [[3.0], [1.0], [3.0]]
    """
    return apply("take", x, _checked(index, len(x)))


def _checked(index: Operand, n_rows: int) -> Any:
    """Return the row numbers `index` as int32 or int64, in a Tensor if `index` is one; raise an error unless they are integers in 0
    .. n_rows - 1.
    """
    array = _peek(index)
    if array.dtype.kind not in "iu":
        raise ShapeError(f"row numbers must be integers, not {array.dtype}")
    if array.size and not (0 <= array.min() and array.max() < n_rows):
        raise IndexError(f"row numbers {array.min()}..{array.max()} are out of range for {n_rows} rows")
    index = index if isinstance(index, Tensor) else array
    return index if array.dtype in (np.int32, np.int64) else astype(index, np.int64)


def _scatter_add(wants_grad, x, index, n_rows):
    rows = x.reshape(index.size, *x.shape[index.ndim :])
    return scatter_rows(rows, index.reshape(-1), n_rows), (index if wants_grad[0] else None,)


def _scatter_add_vjp(g, wants_grad, residuals, n_rows):
    return gather_rows(g, residuals[0]), None


primitive("scatter_add", _scatter_add, _scatter_add_vjp)


def scatter_add(x: Operand, index: Operand, n_rows: int) -> Tensor:
    """Return `n_rows` sums of rows of x: out[index[i]] += x[i], starting from zeros. It is the adjoint of `take`.

    Parameters
    ----------
    x : float Tensor, index.shape + (...)
        Rows.
    index : array or Tensor of integers, any shape
        Row numbers in [0, n_rows).
    n_rows : int
        Number of rows of the result.

    Returns
    -------
    Tensor (n_rows, ...)
        Each row is summed in the order of x, for any number of threads.

    Raises
    ------
    ShapeError
        `index` does not hold integers or does not fit x.
    IndexError
        A row number is out of range.

    Examples
    --------
    >>> import numpy as np
    >>> from sarlite.tape import ops
    >>> ops.scatter_add(np.array([[1.0], [2.0], [4.0]]), [1, 0, 1], 2).data.tolist()
    [[2.0], [5.0]]
    """
    rows = x if isinstance(x, Tensor) else Tensor(x)
    numbers = _checked(index, n_rows)
    if rows.shape[: numbers.ndim] != numbers.shape or not is_float(rows):
        raise ShapeError(f"x of {rows.dtype} {rows.shape} are not float rows for an index of shape {numbers.shape}")
    return apply("scatter_add", rows, numbers, n_rows=int(n_rows))
