"""NumPy functions called with tensors: each call runs the corresponding operation of the tape, or raises a TypeError.

So no call loses a gradient silently. Values without gradient are available by `np.asarray(tensor)`, `np.array` of
tensors, `float`, `numpy()`, `a[...] = tensor` and DLPack.
"""

from collections.abc import Callable, Iterable

import numpy as np

from sarlite.tape import axes, elementwise, pairwise, product, shaping
from sarlite.tape.table_rows import TableRows
from sarlite.tape.tensor import Operand, Tensor, as_array


def _power(a, b):
    return elementwise.power(a, b) if isinstance(a, Tensor) else elementwise.rpow(b, a)


def _take(a: Operand, indices: Operand, axis: int | None = None) -> Tensor:
    """Return numpy.take(a, indices, axis) as a recorded tensor. If `axis` is None, the entries of the flattened array are taken."""
    a, indices = (x if isinstance(x, Tensor) else as_array(x) for x in (a, indices))
    if indices.dtype == bool:
        indices = indices.astype(np.int64)  # numpy.take treats bools as the integers 0 and 1, not as a mask
    if axis is None:
        return shaping.getitem(shaping.reshape(a, -1), indices)
    (axis,) = shaping.of_axes(axis, a.ndim)
    rows = shaping.getitem(shaping.transpose(a, axis, *(k for k in range(a.ndim) if k != axis)), indices)
    n = indices.ndim
    return shaping.transpose(rows, *range(n, n + axis), *range(n), *range(n + axis, rows.ndim))


UFUNCS: dict[np.ufunc, Callable[..., Tensor]] = {
    np.add: pairwise.add, np.subtract: pairwise.sub, np.multiply: pairwise.mul, np.divide: pairwise.div,
    np.power: _power, np.maximum: pairwise.maximum, np.minimum: pairwise.minimum, np.matmul: product.matmul,
    np.greater: pairwise.greater, np.greater_equal: pairwise.greater_equal, np.less: pairwise.less,
    np.less_equal: pairwise.less_equal, np.equal: pairwise.equal, np.not_equal: pairwise.not_equal,
    np.bitwise_and: pairwise.bitwise_and, np.bitwise_or: pairwise.bitwise_or, np.invert: pairwise.invert,
    np.negative: elementwise.neg, np.absolute: elementwise.abs, np.sqrt: elementwise.sqrt, np.exp: elementwise.exp,
    np.expm1: elementwise.expm1, np.log: elementwise.log, np.log1p: elementwise.log1p, np.tanh: elementwise.tanh,
}  # fmt: skip

# For each NumPy function: the operation, the number of leading positional arguments with the same meaning for both, and
# the keyword arguments with the same meaning for both.
FUNCTIONS: dict[Callable[..., object], tuple[Callable[..., Tensor], int, tuple[str, ...]]] = {
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

# Functions whose results depend only on shapes and dtypes.
OF_SHAPES: set[Callable[..., object]] = {
    np.shape, np.ndim, np.size, np.zeros_like, np.ones_like, np.empty_like, np.result_type, np.shares_memory,
    np.may_share_memory,
}  # fmt: skip

# Functions that return bools, indices or text, which have no gradient.
OF_VALUES: set[Callable[..., object]] = {
    np.isnan, np.isinf, np.isfinite, np.signbit, np.logical_and, np.logical_or, np.logical_xor, np.logical_not,
    np.allclose, np.isclose, np.array_equal, np.array_equiv, np.any, np.all, np.argmax, np.argmin, np.argsort,
    np.nonzero, np.flatnonzero, np.count_nonzero, np.searchsorted, np.array_repr, np.array_str, np.array2string,
}  # fmt: skip


def array_ufunc(ufunc: np.ufunc, method: str, *inputs: object, **options: object) -> object:
    """Return ufunc(*inputs), recorded on the tape, where at least one input is a tensor; raise a TypeError if the gradient would be
    lost. NumPy calls this function as `Tensor.__array_ufunc__`; a `method` other than "__call__" is refused.

    NumPy calls it for ufuncs, and for operators with an array on the left and a tensor on the right.

    Raises
    ------
    TypeError
        The call would lose the gradient.
    """
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


def array_function(function: Callable[..., object], args: tuple[object, ...], options: dict[str, object]) -> object:
    """Return function(*args, **options), recorded on the tape, for a NumPy `function` called with a tensor; raise a TypeError if
    the gradient would be lost. NumPy calls this function as `Tensor.__array_function__`.

    Raises
    ------
    TypeError
        The call would lose the gradient.
    """
    if function in OF_SHAPES or function in OF_VALUES:
        need_values = function in OF_VALUES
        return function(*_arrays(args, need_values), **dict(zip(options, _arrays(options.values(), need_values))))
    operation, n_positional, names = FUNCTIONS.get(function, (_refuse, -1, ()))
    if len(args) > n_positional or not set(options) <= set(names):
        return _refuse(function.__name__, *options)
    return operation(*args, **options)


def _arrays(arguments: Iterable[object], need_values: bool = True) -> tuple[object, ...]:
    """Return `arguments` with an array in place of each tensor, also in nested tuples and lists. If `need_values` is False, only
    shape and dtype of the arrays must be right.
    """
    return tuple(_array(a, need_values) for a in arguments)


def _array(a, need_values):
    if isinstance(a, Tensor):
        if isinstance(a, TableRows) and not need_values:  # an array of one repeated value, so that no rows are gathered
            return np.broadcast_to(np.empty((), a.dtype), a.shape)
        return a.data if need_values else a._data
    return list(_arrays(a, need_values)) if isinstance(a, list) else _arrays(a, need_values) if isinstance(a, tuple) else a


def _refuse(name, *options):
    with_options = f" with {', '.join(options)}" if options else ""
    raise TypeError(f"{name}{with_options} of a Tensor would lose the gradient: take an operation of sarlite.tape.ops "
                    "or a method of the tensor; np.asarray(tensor) gives the values")
