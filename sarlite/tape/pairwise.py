"""Conversion and broadcasting of operands, and elementwise operations on two operands: + - * /, maximum, where, comparisons.

Operands are never widened from float32 to float64. Python and NumPy scalars take the dtype of the float operand,
integer and bool arrays are cast to that dtype, and operands of different float dtypes raise a ShapeError.
"""

import inspect
from collections.abc import Callable, Sequence
from typing import overload

import numpy as np

from sarlite.errors import ShapeError
from sarlite.numerics.reductions import is_float, unbroadcast
from sarlite.tape.apply import apply
from sarlite.tape.primitives import primitive
from sarlite.tape.recording import no_grad
from sarlite.tape.summands import added
from sarlite.tape.tensor import Operand, Tensor, as_array
from sarlite.types import Array, DType

# ---- dtypes and broadcasting


def operands(*values):
    """Return a list of the values, converted for one operation: integer and bool arrays are cast to the one float dtype among the
    values. Python numbers stay numbers.

    Raises
    ------
    ShapeError
        The values have several float dtypes.
    """
    values = [plain(v) for v in values]
    dtypes = {v.dtype for v in values if is_float(v)}
    if len(dtypes) > 1:
        raise ShapeError(f"operands have dtypes {sorted(map(str, dtypes))}; astype() one of them")
    if not dtypes:
        return values
    return [v if is_float(v) or not hasattr(v, "dtype") else astype(v, *dtypes) for v in values]


def plain(value: object) -> Tensor | Array | float:
    """Return a NumPy scalar or 0-d array as a Python number, and a list as an array; other arrays, tensors and numbers unchanged.

    Unlike NumPy scalars, Python numbers do not widen arrays.
    """
    if isinstance(value, np.generic) or (isinstance(value, np.ndarray) and value.ndim == 0):
        return value.item()
    return value if isinstance(value, (Tensor, bool, int, float)) else as_array(value)


@overload
def astype(x: Tensor, dtype: DType) -> Tensor: ...
@overload
def astype(x: Array | float | Sequence[object], dtype: DType) -> Array: ...
def astype(x: object, dtype: DType) -> Tensor | Array:
    """Return `x` cast to `dtype`: a Tensor for a Tensor, else an array.

    Between float dtypes the gradient is cast back. Casts from or to other dtypes have no gradient.

    Examples
    --------
    >>> import numpy as np
    >>> from sarlite.tape import Tensor, ops
    >>> ops.astype(Tensor(np.array([1.5, 2.0])), np.float32).dtype
    dtype('float32')
    """
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


def pair(name: str, f: Callable[..., Array], da: Callable[..., Array], db: Callable[..., Array],
         keep_a: Callable[[Sequence[bool]], bool],
         keep_b: Callable[[Sequence[bool]], bool]) -> Callable[[Operand, Operand], Tensor]:
    """Register the primitive `name` that computes f(a, b), and return it as an operation on tensors. The gradients are da(g, a, b)
    and db(g, a, b); keep_a(wants_grad) (and keep_b) returns True if a wanted gradient reads a (or b).

    Parameters
    ----------
    name : str
        Name of the primitive and of the operation.
    f : callable (a, b) -> array
    da, db : callable (g, a, b) -> array
        Gradients of a and of b, given the gradient g of the output, all in the broadcast shape.
    keep_a, keep_b : callable (wants_grad) -> bool
        Return True if a gradient that is wanted reads the values of a (of b), which are then kept.

    Returns
    -------
    callable (a, b) -> Tensor
    """

    def forward(wants_grad, a, b):
        residuals = (a if keep_a(wants_grad) else None, b if keep_b(wants_grad) else None)
        return np.asarray(f(a, b)), (*residuals, np.shape(a), np.shape(b))

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
    return operation


def document(operation: Callable[..., Tensor], summary: str, call: str, result: str) -> None:
    """Set the docstring of `operation`: the line `summary`, its parameters, and an example, the code `call` and the values `result`
    that it returns.

    Parameters
    ----------
    operation : callable
    summary : str
        First line of the docstring.
    call, result : str
        Example: a call of the operation in the namespace `ops`, and the values of its result.
    """
    parameters = ", ".join(inspect.signature(operation).parameters)
    operation.__doc__ = f"""{summary}

    Parameters
    ----------
    {parameters} : Tensor, array or number

    Returns
    -------
    Tensor

    Examples
    --------
    >>> import numpy as np
    >>> from sarlite.tape import ops
    >>> {call}.data.tolist()
    {result}
    """


def _never(wants_grad):
    return False


def _first(wants_grad):
    return wants_grad[0]


def _second(wants_grad):
    return wants_grad[1]


add = pair("add", added, lambda g, a, b: g, lambda g, a, b: g, _never, _never)
sub = pair("sub", np.subtract, lambda g, a, b: g, lambda g, a, b: -g, _never, _never)
pair("mul", np.multiply, lambda g, a, b: g * b, lambda g, a, b: g * a, _second, _first)
# the gradient of b is not divided by b * b, which could underflow
div = pair("div", np.divide, lambda g, a, b: g / b, lambda g, a, b: -(g / b) * (a / b), _second, any)
maximum = pair("maximum", np.maximum, lambda g, a, b: np.where(a >= b, g, 0), lambda g, a, b: np.where(a >= b, 0, g),
               any, any)
minimum = pair("minimum", np.minimum, lambda g, a, b: np.where(a <= b, g, 0), lambda g, a, b: np.where(a <= b, 0, g),
               any, any)
document(add, "Return a + b elementwise, with broadcasting.", "ops.add(np.array([1.0, 2.0]), 3.0)", "[4.0, 5.0]")
document(sub, "Return a - b elementwise, with broadcasting.", "ops.sub(np.array([1.0, 2.0]), 3.0)", "[-2.0, -1.0]")
document(div, "Return a / b elementwise, with broadcasting.", "ops.div(np.array([1.0, 2.0]), 4.0)", "[0.25, 0.5]")
document(maximum, "Return the larger of a and b elementwise. Where a = b, a receives the gradient.",
         "ops.maximum(np.array([1.0, 5.0]), 3.0)", "[3.0, 5.0]")
document(minimum, "Return the smaller of a and b elementwise. Where a = b, a receives the gradient.",
         "ops.minimum(np.array([1.0, 5.0]), 3.0)", "[1.0, 3.0]")


def mul(a: Operand, b: Operand) -> Tensor:
    """Return a * b elementwise, with broadcasting.

    Parameters
    ----------
    a, b : Tensor, array or number

    Raises
    ------
    TypeError
        An operand is an `np.matrix`, whose own `*` is the matrix product.

    Examples
    --------
    >>> import numpy as np
    >>> from sarlite.tape import ops
    >>> ops.mul(np.array([1.0, 2.0]), 3.0).data.tolist()
    [3.0, 6.0]
    """
    if isinstance(a, np.matrix) or isinstance(b, np.matrix):
        raise TypeError("* of a tensor and an np.matrix is ambiguous: convert the matrix by np.asarray for the "
                        "elementwise product, or use @ for the matrix product")
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
    """Return a where `condition`, a bool array or Tensor, is True, else b; elementwise, with broadcasting.

    Parameters
    ----------
    condition : bool array or Tensor
    a, b : Tensor, array or number

    Examples
    --------
    >>> import numpy as np
    >>> from sarlite.tape import ops
    >>> ops.where(np.array([True, False]), np.array([1.0, 2.0]), 0.0).data.tolist()
    [1.0, 0.0]
    """
    condition = condition if isinstance(condition, Tensor) else as_array(condition)
    return apply("where", condition, *operands(a, b))


# ---- without gradient


def _constant(name: str, f: Callable[..., Array], call: str, result: str) -> Callable[..., Tensor]:
    """Return NumPy's `f` as an operation on tensors without gradient, whose docstring has the example code `call` with its `result`."""
    primitive(name, lambda wants_grad, *arrays: (np.asarray(f(*arrays)), ()), None)

    def operation(*values: Operand) -> Tensor:
        with no_grad():
            return apply(name, *operands(*values))

    operation.__name__ = name
    document(operation, f"Return `numpy.{name}` of the operands elementwise. The result has no gradient.", call, result)
    return operation


_TWO, _MASK = "np.array([1, 2])", "np.array([True, False])"
greater = _constant("greater", np.greater, f"ops.greater({_TWO}, 1)", "[False, True]")
greater_equal = _constant("greater_equal", np.greater_equal, f"ops.greater_equal({_TWO}, 2)", "[False, True]")
less = _constant("less", np.less, f"ops.less({_TWO}, 2)", "[True, False]")
less_equal = _constant("less_equal", np.less_equal, f"ops.less_equal({_TWO}, 1)", "[True, False]")
equal = _constant("equal", np.equal, f"ops.equal({_TWO}, 1)", "[True, False]")
not_equal = _constant("not_equal", np.not_equal, f"ops.not_equal({_TWO}, 1)", "[False, True]")
bitwise_and = _constant("bitwise_and", np.bitwise_and, f"ops.bitwise_and({_MASK}, True)", "[True, False]")
bitwise_or = _constant("bitwise_or", np.bitwise_or, f"ops.bitwise_or({_MASK}, True)", "[True, True]")
invert = _constant("invert", np.invert, f"ops.invert({_MASK})", "[False, True]")
