"""Every dense operation under one name, and the operators and methods of Tensor.

    from sarlite.tape import ops
    ops.concat([ops.relu(h), h @ w])

The primitives are entered in `arithmetic`, `shaping` and `neural`; a distributed aggregation is one more, in `sarlite.sar`.
"""

import math

from sarlite.tape.arithmetic import (
    abs,
    add,
    astype,
    div,
    elu,
    exp,
    greater,
    greater_equal,
    leaky_relu,
    less,
    less_equal,
    log,
    matmul,
    maximum,
    minimum,
    mul,
    neg,
    power,
    relu,
    sigmoid,
    sqrt,
    sub,
    tanh,
    where,
)
from sarlite.tape.engine import Tensor
from sarlite.tape.neural import cross_entropy, dropout, layer_norm, log_softmax, softmax
from sarlite.tape.shaping import concat, getitem, max, mean, min, reshape, stack, sum, take, transpose

# fmt: off
__all__ = [
    "abs", "add", "astype", "concat", "cross_entropy", "div", "dropout", "elu", "exp", "flatten", "getitem",
    "greater", "greater_equal", "layer_norm", "leaky_relu", "less", "less_equal", "log", "log_softmax", "matmul",
    "max", "maximum", "mean", "min", "minimum", "mul", "neg", "power", "relu", "reshape", "sigmoid", "softmax",
    "sqrt", "stack", "sub", "sum", "take", "tanh", "transpose", "where",
]
# fmt: on


def flatten(x):
    """Join all axes but the first: (n, ...) to (n, width)."""
    return reshape(x, len(x), math.prod(x.shape[1:]))


def _swap(operation):
    return lambda a, b: operation(b, a)


_METHODS = {
    "__add__": add,
    "__radd__": _swap(add),
    "__sub__": sub,
    "__rsub__": _swap(sub),
    "__mul__": mul,
    "__rmul__": _swap(mul),
    "__truediv__": div,
    "__rtruediv__": _swap(div),
    "__matmul__": matmul,
    "__rmatmul__": _swap(matmul),
    "__pow__": power,
    "__neg__": neg,
    "__abs__": abs,
    "__getitem__": getitem,
    "__gt__": greater,
    "__ge__": greater_equal,
    "__lt__": less,
    "__le__": less_equal,
    "T": property(transpose),
}
_NAMED = (
    astype, elu, exp, flatten, leaky_relu, log, log_softmax, max, mean, min, relu, reshape, sigmoid, softmax, sqrt, sum, take,
    tanh, transpose,
)  # fmt: skip

for _name, _method in _METHODS.items():
    setattr(Tensor, _name, _method)
for _method in _NAMED:
    setattr(Tensor, _method.__name__, _method)
