"""Elementwise operations and the matrix product, with NumPy's broadcasting.

A float32 operand is never widened: Python and NumPy scalars take the tensor's dtype, integer and bool arrays are
cast to it, and two arrays of different float dtypes are an error.
"""

import math

import numpy as np

from sarlite import kernels
from sarlite.errors import ConfigError, ShapeError
from sarlite.tape.engine import Tensor, apply, as_array, no_grad, primitive, same_layout

# ---- dtypes and broadcasting


def is_float(x):
    return getattr(x, "dtype", np.dtype(object)).kind == "f"


def operands(*values):
    """Bring values to the one float dtype among them, without ever widening a float array."""
    values = [_plain(v) for v in values]
    dtypes = {v.dtype for v in values if is_float(v)}
    if len(dtypes) > 1:
        raise ShapeError(f"operands have dtypes {sorted(map(str, dtypes))}; astype() one of them")
    if not dtypes:
        return values
    return [v if is_float(v) or not hasattr(v, "dtype") else astype(v, *dtypes) for v in values]


def _plain(value):
    """Make NumPy's scalars Python's, which do not widen arrays; make lists arrays."""
    if isinstance(value, np.generic) or (isinstance(value, np.ndarray) and value.ndim == 0):
        return value.item()
    return value if isinstance(value, (Tensor, bool, int, float)) else as_array(value)


def astype(x, dtype):
    """Cast `x`; between floats the gradient is cast back, elsewhere there is none."""
    if not isinstance(x, Tensor):
        return np.asarray(x, dtype)
    if x.dtype == dtype:
        return x
    if np.dtype(dtype).kind == "f":
        return apply("astype", x, dtype=dtype)
    with no_grad():
        return apply("astype", x, dtype=dtype)


primitive("astype", lambda needs, x, dtype: (x.astype(dtype), (x.dtype,)), lambda g, needs, residuals, dtype: (g.astype(residuals[0]),))


def total(x, axis=None, keepdims=False):
    """Sum an ndarray. Float32 rows add up in float64: these are the long sums, and the ones that partitioning reorders."""
    axes = range(x.ndim) if axis is None else np.atleast_1d(axis) % max(x.ndim, 1)
    if x.dtype == np.float32 and 0 in axes:
        return np.add.reduce(x, axis=axis, keepdims=keepdims, dtype=np.float64).astype(np.float32)
    return np.add.reduce(x, axis=axis, keepdims=keepdims)


def unbroadcast(g, shape):
    """Sum `g` down to `shape`: the adjoint of broadcasting from `shape`."""
    if g.shape == shape:
        return g
    extra = g.ndim - len(shape)
    stretched = (i + extra for i, n in enumerate(shape) if n == 1 and g.shape[i + extra] != 1)
    return total(g, (*range(extra), *stretched)).reshape(shape)


# ---- pairs: out = f(a, b)


def pair(name, f, da, db, keep_a, keep_b):
    """Enter out = f(a, b) into the table, with broadcasting.

    Parameters
    ----------
    da, db : callable (g, a, b) -> gradient, before `unbroadcast`
    keep_a, keep_b : callable needs -> whether a gradient will read a (b)
    """

    def forward(needs, a, b):
        kept = (a if keep_a(needs) else None, b if keep_b(needs) else None)
        return np.asarray(f(a, b)), (*kept, np.shape(a), np.shape(b))

    def vjp(g, needs, residuals):
        a, b, shape_a, shape_b = residuals
        return (
            unbroadcast(da(g, a, b), shape_a) if needs[0] else None,
            unbroadcast(db(g, a, b), shape_b) if needs[1] else None,
        )

    primitive(name, forward, vjp)


def _never(needs):
    return False


def _add(a, b):
    """a + b; large equal arrays on all threads."""
    if np.ndim(a) == 0 or not same_layout(a, b):
        return np.add(a, b)
    out = np.empty(a.shape, a.dtype)
    kernels.add(a, b, out)
    return out


pair("add", _add, lambda g, a, b: g, lambda g, a, b: g, _never, _never)
pair("sub", np.subtract, lambda g, a, b: g, lambda g, a, b: -g, _never, _never)
pair("mul", np.multiply, lambda g, a, b: g * b, lambda g, a, b: g * a, lambda needs: needs[1], lambda needs: needs[0])
pair("div", np.divide, lambda g, a, b: g / b, lambda g, a, b: -g * a / (b * b), lambda needs: needs[1], any)
pair("maximum", np.maximum, lambda g, a, b: np.where(a >= b, g, 0), lambda g, a, b: np.where(a >= b, 0, g), any, any)
pair("minimum", np.minimum, lambda g, a, b: np.where(a <= b, g, 0), lambda g, a, b: np.where(a <= b, 0, g), any, any)


def _binary(name):
    def operation(a, b):
        return apply(name, *operands(a, b))

    operation.__name__ = name
    operation.__doc__ = f"Return {name}(a, b) elementwise."
    return operation


add, sub, mul, div = map(_binary, ("add", "sub", "mul", "div"))
maximum, minimum = map(_binary, ("maximum", "minimum"))
maximum.__doc__ = minimum.__doc__ = "Return the larger (smaller) of a and b elementwise; where they are equal, a gets the gradient."


def _where(needs, condition, a, b):
    return np.where(condition, a, b), (condition, np.shape(a), np.shape(b))


def _where_vjp(g, needs, residuals):
    condition, shape_a, shape_b = residuals
    return (
        None,
        unbroadcast(np.where(condition, g, 0), shape_a) if needs[1] else None,
        unbroadcast(np.where(condition, 0, g), shape_b) if needs[2] else None,
    )


primitive("where", _where, _where_vjp)


def where(condition, a, b):
    """Return a where `condition` (bool array or Tensor), else b."""
    condition = condition if isinstance(condition, Tensor) else as_array(condition)
    return apply("where", condition, *operands(a, b))


def _comparison(name, f):
    primitive(name, lambda needs, a, b: (np.asarray(f(a, b)), ()), None)

    def compare(a, b):
        with no_grad():
            return apply(name, *operands(a, b))

    compare.__doc__ = f"Return the bool Tensor {name}(a, b), which has no gradient."
    return compare


greater = _comparison("greater", np.greater)
greater_equal = _comparison("greater_equal", np.greater_equal)
less = _comparison("less", np.less)
less_equal = _comparison("less_equal", np.less_equal)

# ---- one operand: out = f(x)


def unary(name, f, dx, keep):
    """Enter out = f(x) with gradient dx(g, kept, **params), where `keep` says which to keep: "x", "out" or "none"."""

    def forward(needs, x, **params):
        out = np.asarray(f(x, **params))
        return out, ({"x": x, "out": out, "none": None}[keep] if needs[0] else None,)

    def vjp(g, needs, residuals, **params):
        return (dx(g, *residuals, **params),)

    primitive(name, forward, vjp)

    def operation(x):
        return apply(name, x)

    operation.__name__ = name
    operation.__doc__ = f"Return {name}(x) elementwise."
    return operation


def _sigmoid(x):
    """1 / (1 + exp(-x)) from exp(-|x|), which cannot overflow."""
    e = np.exp(-np.abs(x))
    return np.where(x >= 0, 1, e) / (1 + e)


neg = unary("neg", np.negative, lambda g, _: -g, keep="none")
abs = unary("abs", np.abs, lambda g, x: g * np.sign(x), keep="x")
sqrt = unary("sqrt", np.sqrt, lambda g, out: g / (2 * out), keep="out")
exp = unary("exp", np.exp, lambda g, out: g * out, keep="out")
log = unary("log", np.log, lambda g, x: g / x, keep="x")
tanh = unary("tanh", np.tanh, lambda g, out: g * (1 - out * out), keep="out")
sigmoid = unary("sigmoid", _sigmoid, lambda g, out: g * (out * (1 - out)), keep="out")
# the activations that follow read only the sign of x, which out has too
relu = unary("relu", lambda x: np.maximum(x, 0), lambda g, out: g * (out > 0), keep="out")  # np.where takes twice as long
unary("leaky_relu", lambda x, slope: np.where(x > 0, x, slope * x), lambda g, out, slope: np.where(out > 0, g, slope * g), keep="out")


def _elu(x, alpha):
    out = np.minimum(x, 0)
    np.expm1(out, out=out)
    out *= alpha
    out += np.maximum(x, 0)
    return out


def _elu_vjp(g, out, alpha):
    slope = np.minimum(out, 0)
    slope += alpha
    if alpha != 1:
        slope += (out > 0) * slope.dtype.type(1 - alpha)
    slope *= g
    return slope


unary("elu", _elu, _elu_vjp, keep="out")
unary("power", lambda x, exponent: x**exponent, lambda g, x, exponent: g * (exponent * x ** (exponent - 1)), keep="x")


def leaky_relu(x, slope=0.01):
    """Return x where x > 0, else slope * x, for a slope >= 0."""
    if not slope >= 0:
        raise ConfigError(f"leaky_relu's slope is {slope}, but must not be negative")
    return apply("leaky_relu", x, slope=float(slope))


def elu(x, alpha=1.0):
    """Return x where x > 0, else alpha * (exp(x) - 1), for an alpha >= 0."""
    if not alpha >= 0:
        raise ConfigError(f"elu's alpha is {alpha}, but must not be negative")
    return apply("elu", x, alpha=float(alpha))


def power(x, exponent):
    """Return x ** exponent for a scalar exponent."""
    if not np.isscalar(exponent):
        raise TypeError(f"the exponent must be a scalar, not {type(exponent).__name__}")
    exponent = _plain(exponent)
    if exponent == 0:  # the gradient is 0 at x = 0 too, where x ** -1 has no value
        return add(mul(x, 0), 1)
    return apply("power", x, exponent=exponent)


# ---- the matrix product


def _flat(x):
    """View all but the last axis as one."""
    return x.reshape(math.prod(x.shape[:-1]), x.shape[-1])


def _product(a, b, trans_b=False, into=None):
    """a @ b or a @ b.T, or add it to `into`; a matrix on the right takes one product, not one for each leading index."""
    if b.ndim != 2 or a.dtype != b.dtype or not is_float(a):
        return a @ (b.swapaxes(-1, -2) if trans_b else b)
    out = np.empty((*a.shape[:-1], b.shape[0 if trans_b else 1]), a.dtype) if into is None else into
    kernels.gemm(np.ascontiguousarray(_flat(a)), np.ascontiguousarray(b), _flat(out), trans_b=trans_b, accumulate=into is not None)
    return out


def _matmul(needs, a, b):
    return _product(a, b), (a if needs[1] else None, b if needs[0] else None, a.shape, b.shape)


def _matmul_vjp(g, needs, residuals, into):
    a, b, shape_a, shape_b = residuals
    g = np.ascontiguousarray(g)
    adds = len(shape_b) == 2 and into[0] is not None and into[0].flags.c_contiguous
    da = unbroadcast(_product(g, b, trans_b=True, into=into[0] if adds else None), shape_a) if needs[0] else None
    if not needs[1]:
        return da, None
    if len(shape_b) == 2:
        db = np.empty(shape_b, g.dtype)
        kernels.gemm_backward(np.ascontiguousarray(_flat(a)), _flat(g), db)
        return da, db
    return da, unbroadcast(a.swapaxes(-1, -2) @ g, shape_b)


primitive("matmul", _matmul, _matmul_vjp, fresh=True, adds=True)


def matmul(a, b):
    """Return a @ b over the last two axes; leading axes broadcast, 1-D operands are a row (left) or a column (right)."""
    a, b = operands(a, b)
    if a.ndim == 1:
        row = matmul(_reshape(a, (1, len(a))), b)
        return _reshape(row, (*row.shape[:-2], row.shape[-1]) if b.ndim > 1 else ())
    if b.ndim == 1:
        column = matmul(a, _reshape(b, (len(b), 1)))
        return _reshape(column, column.shape[:-1])
    if a.shape[-1] != b.shape[-2]:
        raise ShapeError(f"cannot multiply shapes {a.shape} and {b.shape}")
    return apply("matmul", a, b)


def _reshape(x, shape):
    return apply("reshape", x, shape=shape)
