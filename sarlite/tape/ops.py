"""Every dense operation under one name, and the operators and methods of Tensor.

    from sarlite.tape import ops
    ops.concat([ops.relu(h), h @ w])

The modules imported here enter the primitives into the table. A distributed aggregation is one more, in `sarlite.sar`.
"""

import math
from collections.abc import Callable
from typing import Any

from sarlite.tape.pairwise import (
    add,
    astype,
    bitwise_and,
    bitwise_or,
    div,
    equal,
    greater,
    greater_equal,
    invert,
    less,
    less_equal,
    maximum,
    minimum,
    mul,
    not_equal,
    sub,
    where,
)
from sarlite.tape.axes import (
    cumsum,
    log_softmax,
    logsumexp,
    max,
    mean,
    min,
    softmax,
    std,
    sum,
    var,
)
from sarlite.tape.elementwise import (
    abs,
    clip,
    elu,
    exp,
    expm1,
    gelu,
    leaky_relu,
    log,
    log1p,
    neg,
    power,
    relu,
    rpow,
    sigmoid,
    silu,
    softplus,
    sqrt,
    tanh,
)
from sarlite.tape.tensor import Tensor, as_array
from sarlite.tape.losses import bce_with_logits, cross_entropy, mae, mse, nll
from sarlite.tape.neural import dropout, layer_norm
from sarlite.tape.numpy_calls import array_function, array_ufunc
from sarlite.tape.product import einsum, matmul, matmul_by_head
from sarlite.tape.shaping import (
    concat,
    expand_dims,
    getitem,
    reshape,
    scatter_add,
    squeeze,
    stack,
    take,
    transpose,
)
from sarlite.types import Array

# fmt: off
__all__ = [
    "abs", "add", "astype", "bce_with_logits", "bitwise_and", "bitwise_or", "clip", "concat", "cross_entropy", "cumsum",
    "div", "dropout", "einsum", "elu", "equal", "exp", "expand_dims", "expm1", "flatten", "gelu", "getitem", "greater",
    "greater_equal", "invert", "layer_norm", "leaky_relu", "less", "less_equal", "log", "log1p", "log_softmax",
    "logsumexp", "mae", "matmul", "matmul_by_head", "max", "maximum", "mean", "min", "minimum", "mse", "mul", "neg",
    "nll", "not_equal", "power", "relu", "reshape", "rpow", "scatter_add", "sigmoid", "silu", "softmax", "softplus",
    "sqrt", "squeeze", "stack", "std", "sub", "sum", "take", "tanh", "transpose", "var", "where",
]
# fmt: on


def flatten(x: Tensor | Array) -> Tensor:
    """Join all axes but the first: (n, ...) to (n, width)."""
    return reshape(x, len(x), math.prod(x.shape[1:]))


def _swap(operation: Callable[[Any, Any], Tensor]) -> Callable[[Any, Any], Tensor]:
    def swapped(a: Any, b: Any) -> Tensor:
        return operation(b, a)

    return swapped


def _with_numbers(comparison: Callable[[Any, Any], Tensor]) -> Callable[[Any, Any], Tensor]:
    """`==` or `!=`.

    A tensor and what is neither a number nor an array of numbers are compared by identity, as in Python.
    """

    def compare(a: Tensor, b: Any) -> Any:
        if not isinstance(b, (Tensor, bool, int, float)) and as_array(b).dtype.kind not in "biuf":
            return NotImplemented
        return comparison(a, b)

    return compare


class Methods:
    """The operators and methods that Tensor has by these operations. For a type checker it is a base of Tensor."""

    __slots__ = ()

    __array_ufunc__ = array_ufunc
    __array_function__ = array_function
    __add__ = add
    __radd__ = _swap(add)
    __sub__ = sub
    __rsub__ = _swap(sub)
    __mul__ = mul
    __rmul__ = _swap(mul)
    __truediv__ = div
    __rtruediv__ = _swap(div)
    __matmul__ = matmul
    __rmatmul__ = _swap(matmul)
    __pow__ = power
    __rpow__ = rpow
    __neg__ = neg
    __abs__ = abs
    __getitem__ = getitem
    __and__ = __rand__ = bitwise_and
    __or__ = __ror__ = bitwise_or
    __invert__ = invert
    __eq__ = _with_numbers(equal)  # type: ignore[assignment]
    __ne__ = _with_numbers(not_equal)  # type: ignore[assignment]
    __gt__ = greater
    __ge__ = greater_equal
    __lt__ = less
    __le__ = less_equal

    @property
    def T(self: Any) -> Tensor:
        return transpose(self)

    abs = abs
    astype = astype
    clip = clip
    cumsum = cumsum
    elu = elu
    exp = exp
    flatten = flatten
    leaky_relu = leaky_relu
    log = log
    log_softmax = log_softmax
    logsumexp = logsumexp
    matmul_by_head = matmul_by_head
    max = max
    mean = mean
    min = min
    relu = relu
    reshape = reshape
    sigmoid = sigmoid
    softmax = softmax
    sqrt = sqrt
    squeeze = squeeze
    std = std
    sum = sum
    take = take
    tanh = tanh
    transpose = transpose
    var = var


for _name, _method in vars(Methods).items():
    if callable(_method) or isinstance(_method, property):
        setattr(Tensor, _name, _method)
