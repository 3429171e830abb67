"""All operations on dense tensors in one namespace.

    from sarlite.tape import ops
    ops.concat([ops.relu(h), h @ w])

Operations take Tensors, arrays or numbers, and return Tensors. The modules that are imported here register their
primitives in the table `PRIMITIVES`. The operators and methods of `Tensor` call these operations by name.
"""

import math

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
from sarlite.tape.losses import bce_with_logits, cross_entropy, focal, mae, mean_share, mse, nll
from sarlite.tape.neural import dropout, layer_norm
from sarlite.tape.numpy_calls import array_function, array_ufunc
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
from sarlite.tape.primitives import OPERATIONS
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
from sarlite.tape.tensor import Tensor
from sarlite.types import Array

# fmt: off
__all__ = [
    "abs", "add", "astype", "bce_with_logits", "bitwise_and", "bitwise_or", "clip", "concat", "cross_entropy", "cumsum",
    "div", "dropout", "einsum", "elu", "equal", "exp", "expand_dims", "expm1", "flatten", "focal", "gelu", "getitem",
    "greater", "greater_equal", "invert", "layer_norm", "leaky_relu", "less", "less_equal", "log", "log1p",
    "log_softmax", "logsumexp", "mae", "matmul", "matmul_by_head", "max", "maximum", "mean", "mean_share", "min",
    "minimum", "mse", "mul", "neg", "nll", "not_equal", "power", "relu", "reshape", "rpow", "scatter_add", "sigmoid",
    "silu", "softmax", "softplus", "sqrt", "squeeze", "stack", "std", "sub", "sum", "take", "tanh", "transpose", "var",
    "where",
]
# fmt: on


def flatten(x: Tensor | Array) -> Tensor:
    """Return x with all axes but the first merged into one: (n, ...) becomes (n, width).

    Examples
    --------
    >>> import numpy as np
    >>> from sarlite.tape import ops
    >>> ops.flatten(np.zeros((5, 2, 3))).shape
    (5, 6)
    """
    return reshape(x, len(x), math.prod(x.shape[1:]))


OPERATIONS.update({name: globals()[name] for name in __all__}, array_ufunc=array_ufunc, array_function=array_function)
