"""Dtypes, broadcasting, and elementwise operations on pairs: + - * /, maximum, where, comparisons.

A float32 operand is never widened: Python and NumPy scalars take the tensor's dtype, integer and bool arrays are
cast to it, and two arrays of different float dtypes are an error.
"""

from collections.abc import Callable
from typing import Any, overload

import numpy as np

from sarlite.errors import ShapeError
from sarlite.numerics.reductions import is_float, unbroadcast
from sarlite.tape.apply import apply
from sarlite.tape.primitives import primitive
from sarlite.tape.recording import no_grad
from sarlite.tape.summands import added
from sarlite.tape.tensor import Operand, Tensor, as_array
from sarlite.types import DType

# ---- dtypes and broadcasting


def operands(*values):
    """Cast values to the one float dtype among them; a float array is never widened."""
    values = [plain(v) for v in values]
    dtypes = {v.dtype for v in values if is_float(v)}
    if len(dtypes) > 1:
        raise ShapeError(f"operands have dtypes {sorted(map(str, dtypes))}; astype() one of them")
    if not dtypes:
        return values
    return [v if is_float(v) or not hasattr(v, "dtype") else astype(v, *dtypes) for v in values]


def plain(value: Any) -> Any:
    """Convert NumPy scalars to Python scalars, which do not widen arrays, and lists to arrays."""
    if isinstance(value, np.generic) or (isinstance(value, np.ndarray) and value.ndim == 0):
        return value.item()
    return value if isinstance(value, (Tensor, bool, int, float)) else as_array(value)


@overload
def astype(x: Tensor, dtype: DType) -> Tensor: ...
@overload
def astype(x: Any, dtype: DType) -> Any: ...
def astype(x: Any, dtype: DType) -> Any:
    """Cast `x`. The gradient is cast back between float dtypes; casts from or to other dtypes have no gradient."""
    if not isinstance(x, Tensor):
        return np.asarray(x, dtype)
    if x.dtype == dtype:
        return x
    if np.dtype(dtype).kind == "f":
        return apply("astype", x, dtype=dtype)
    with no_grad():
        return apply("astype", x, dtype=dtype)


primitive(
    "astype",
    lambda wants_grad, x, dtype: (x.astype(dtype), (x.dtype,)),
    lambda g, wants_grad, residuals, dtype: (g.astype(residuals[0]),),
)


# ---- pairs: out = f(a, b)


def pair(name: str, f: Callable[..., Any], da: Callable[..., Any], db: Callable[..., Any],
         keep_a: Callable[[Any], bool], keep_b: Callable[[Any], bool]) -> Callable[[Operand, Operand], Tensor]:
    """Register the primitive out = f(a, b), with broadcasting, and return the operation.

    Parameters
    ----------
    da, db : callable (g, a, b) -> gradient, before `unbroadcast`
    keep_a, keep_b : callable
        Given `wants_grad`, return True if a gradient will read a (b).
    """

    def forward(wants_grad, a, b):
        kept = (a if keep_a(wants_grad) else None, b if keep_b(wants_grad) else None)
        return np.asarray(f(a, b)), (*kept, np.shape(a), np.shape(b))

    def vjp(g, wants_grad, residuals):
        a, b, shape_a, shape_b = residuals
        return (
            unbroadcast(da(g, a, b), shape_a) if wants_grad[0] else None,
            unbroadcast(db(g, a, b), shape_b) if wants_grad[1] else None,
        )

    primitive(name, forward, vjp)

    def operation(a: Operand, b: Operand) -> Tensor:
        return apply(name, *operands(a, b))

    operation.__name__ = name
    operation.__doc__ = f"Return {name}(a, b) elementwise."
    return operation


def _never(wants_grad):
    return False


def _first(wants_grad):
    return wants_grad[0]


def _second(wants_grad):
    return wants_grad[1]


add = pair("add", added, lambda g, a, b: g, lambda g, a, b: g, _never, _never)
sub = pair("sub", np.subtract, lambda g, a, b: g, lambda g, a, b: -g, _never, _never)
pair("mul", np.multiply, lambda g, a, b: g * b, lambda g, a, b: g * a, _second, _first)
# not by b * b, which could underflow
div = pair("div", np.divide, lambda g, a, b: g / b, lambda g, a, b: -(g / b) * (a / b), _second, any)
maximum = pair("maximum", np.maximum, lambda g, a, b: np.where(a >= b, g, 0), lambda g, a, b: np.where(a >= b, 0, g),
               any, any)
minimum = pair("minimum", np.minimum, lambda g, a, b: np.where(a <= b, g, 0), lambda g, a, b: np.where(a <= b, 0, g),
               any, any)
maximum.__doc__ = "Return the larger of a and b elementwise; where they are equal, a gets the gradient."
minimum.__doc__ = "Return the smaller of a and b elementwise; where they are equal, a gets the gradient."


def mul(a: Operand, b: Operand) -> Tensor:
    """Return a * b elementwise.

    Raises
    ------
    TypeError
        Of an `np.matrix`, whose own `*` is the matrix product.
    """
    if isinstance(a, np.matrix) or isinstance(b, np.matrix):
        raise TypeError("* of a tensor and an np.matrix: np.asarray(matrix) has an elementwise product, @ is the other")
    return apply("mul", *operands(a, b))


def _where(wants_grad, condition, a, b):
    return np.where(condition, a, b), (condition, np.shape(a), np.shape(b))


def _where_vjp(g, wants_grad, residuals):
    condition, shape_a, shape_b = residuals
    return (
        None,
        unbroadcast(np.where(condition, g, 0), shape_a) if wants_grad[1] else None,
        unbroadcast(np.where(condition, 0, g), shape_b) if wants_grad[2] else None,
    )


primitive("where", _where, _where_vjp)


def where(condition: Operand, a: Operand, b: Operand) -> Tensor:
    """Return a where `condition` (bool array or Tensor) is true, else b."""
    condition = condition if isinstance(condition, Tensor) else as_array(condition)
    return apply("where", condition, *operands(a, b))


# ---- without gradient


def _constant(name: str, f: Callable[..., Any]) -> Callable[..., Tensor]:
    """Register the function f, whose result has no gradient, and return the operation."""
    primitive(name, lambda wants_grad, *arrays: (np.asarray(f(*arrays)), ()), None)

    def operation(*values: Operand) -> Tensor:
        with no_grad():
            return apply(name, *operands(*values))

    operation.__name__ = name
    operation.__doc__ = f"Return {name} elementwise, as NumPy's function of this name; it has no gradient."
    return operation


greater, greater_equal = _constant("greater", np.greater), _constant("greater_equal", np.greater_equal)
less, less_equal = _constant("less", np.less), _constant("less_equal", np.less_equal)
equal, not_equal = _constant("equal", np.equal), _constant("not_equal", np.not_equal)
bitwise_and, bitwise_or = _constant("bitwise_and", np.bitwise_and), _constant("bitwise_or", np.bitwise_or)
invert = _constant("invert", np.invert)
