"""NumPy functions called with tensors: each runs the tape operation of the same meaning, or raises a TypeError.

Thus no call loses a gradient silently. Values without gradient are available by `np.asarray(tensor)`, `np.array` of
tensors, `float`, `numpy()`, `a[...] = tensor` and DLPack.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from sarlite.tape import axes, elementwise, pairwise, product, shaping
from sarlite.tape.table_rows import TableRows
from sarlite.tape.tensor import Tensor, as_array


def _power(a, b):
    return elementwise.power(a, b) if isinstance(a, Tensor) else elementwise.rpow(b, a)


def _take(a, indices, axis=None):
    """Implement NumPy's `take`, from any axis, or by default from the flattened array."""
    a, indices = (x if isinstance(x, Tensor) else as_array(x) for x in (a, indices))
    if indices.dtype == bool:
        indices = indices.astype(np.int64)  # 0 and 1 to NumPy's take, no mask
    if axis is None:
        return shaping.getitem(shaping.reshape(a, -1), indices)
    (axis,) = shaping.of_axes(axis, a.ndim)
    rows = shaping.getitem(shaping.transpose(a, axis, *(k for k in range(a.ndim) if k != axis)), indices)
    n = indices.ndim
    return shaping.transpose(rows, *range(n, n + axis), *range(n), *range(n + axis, rows.ndim))


UFUNCS: dict[Any, Callable[..., Any]] = {
    np.add: pairwise.add, np.subtract: pairwise.sub, np.multiply: pairwise.mul, np.divide: pairwise.div,
    np.power: _power, np.maximum: pairwise.maximum, np.minimum: pairwise.minimum, np.matmul: product.matmul,
    np.greater: pairwise.greater, np.greater_equal: pairwise.greater_equal, np.less: pairwise.less,
    np.less_equal: pairwise.less_equal, np.equal: pairwise.equal, np.not_equal: pairwise.not_equal,
    np.bitwise_and: pairwise.bitwise_and, np.bitwise_or: pairwise.bitwise_or, np.invert: pairwise.invert,
    np.negative: elementwise.neg, np.absolute: elementwise.abs, np.sqrt: elementwise.sqrt, np.exp: elementwise.exp,
    np.expm1: elementwise.expm1, np.log: elementwise.log, np.log1p: elementwise.log1p, np.tanh: elementwise.tanh,
}  # fmt: skip

# function: (operation, the most positional arguments that mean the same to both, keywords that mean the same to both)
FUNCTIONS: dict[Any, tuple[Callable[..., Any], int, tuple[str, ...]]] = {
    np.where: (pairwise.where, 3, ()),
    np.concatenate: (shaping.concat, 2, ("axis",)),
    np.stack: (shaping.stack, 2, ("axis",)),
    np.reshape: (shaping.reshape, 2, ()),
    np.transpose: (shaping.transpose, 1, ()),
    np.squeeze: (shaping.squeeze, 2, ("axis",)),
    np.expand_dims: (shaping.expand_dims, 2, ("axis",)),
    np.take: (_take, 3, ("axis",)),
    np.clip: (elementwise.clip, 3, ()),
    np.sum: (axes.sum, 2, ("axis", "keepdims")),
    np.mean: (axes.mean, 2, ("axis", "keepdims")),
    np.max: (axes.max, 2, ("axis", "keepdims")),
    np.min: (axes.min, 2, ("axis", "keepdims")),
    np.var: (axes.var, 2, ("axis", "ddof", "keepdims")),
    np.std: (axes.std, 2, ("axis", "ddof", "keepdims")),
    np.cumsum: (axes.cumsum, 2, ("axis",)),
    np.einsum: (product.einsum, 32, ()),
}

# Functions whose results do not depend on values.
OF_SHAPES: set[Any] = {
    np.shape, np.ndim, np.size, np.zeros_like, np.ones_like, np.empty_like, np.result_type, np.shares_memory,
    np.may_share_memory,
}  # fmt: skip

# Functions that return bools, indices or text, which have no gradient to lose.
OF_VALUES: set[Any] = {
    np.isnan, np.isinf, np.isfinite, np.signbit, np.logical_and, np.logical_or, np.logical_xor, np.logical_not,
    np.allclose, np.isclose, np.array_equal, np.array_equiv, np.any, np.all, np.argmax, np.argmin, np.argsort,
    np.nonzero, np.flatnonzero, np.count_nonzero, np.searchsorted, np.array_repr, np.array_str, np.array2string,
}  # fmt: skip


def array_ufunc(ufunc: np.ufunc, method: str, *inputs: Any, **options: Any) -> Any:
    """Return ufunc(*inputs) if an input is a tensor. NumPy also calls this function for `array <operator> tensor`."""
    if method != "__call__":
        return _refuse(f"{ufunc.__name__}.{method}")
    if options.get("out") is not None:
        raise TypeError(f"{ufunc.__name__} of a Tensor into an array (out=, or a += tensor) would lose the gradient; "
                        "a = a + tensor keeps it, np.asarray(tensor) gives the values")
    if ufunc in OF_VALUES:
        return ufunc(*_arrays(inputs), **options)
    if ufunc not in UFUNCS or options:
        return _refuse(ufunc.__name__, *options)
    return UFUNCS[ufunc](*inputs)


def array_function(function: Callable[..., Any], args: tuple[Any, ...], options: dict[str, Any]) -> Any:
    """Return the NumPy call function(*args, **options) if an argument contains a tensor."""
    if function in OF_SHAPES or function in OF_VALUES:
        read = function in OF_VALUES
        return function(*_arrays(args, read), **dict(zip(options, _arrays(options.values(), read))))
    operation, most, names = FUNCTIONS.get(function, (_refuse, -1, ()))
    if len(args) > most or not set(options) <= set(names):
        return _refuse(function.__name__, *options)
    return operation(*args, **options)


def _arrays(arguments, read=True):
    """Replace tensors by arrays. `read` is True if the caller reads their values, which `note_read` then reports."""
    return tuple(_array(a, read) for a in arguments)


def _array(a, read):
    if isinstance(a, Tensor):
        if isinstance(a, TableRows) and not read:  # nobody reads the values, so one stands for all
            return np.broadcast_to(np.empty((), a.dtype), a.shape)
        return a.data if read else a._data
    return list(_arrays(a, read)) if isinstance(a, list) else _arrays(a, read) if isinstance(a, tuple) else a


def _refuse(name, *options):
    with_options = f" with {', '.join(options)}" if options else ""
    raise TypeError(f"{name}{with_options} of a Tensor would lose the gradient: take an operation of sarlite.tape.ops "
                    "or a method of the tensor; np.asarray(tensor) gives the values")
