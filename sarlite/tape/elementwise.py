"""Elementwise operations on one operand: roots, exponentials, powers, activations."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from sarlite import kernels, numerics
from sarlite.errors import ConfigError
from sarlite.numerics import reductions
from sarlite.tape.apply import apply
from sarlite.tape.pairwise import document, plain
from sarlite.tape.primitives import primitive
from sarlite.tape.tensor import Operand, Tensor
from sarlite.types import Array


def unary(name: str, f: Callable[..., Array], dx: Callable[..., Array], keep: str) -> Callable[[Operand], Tensor]:
    """Register the primitive `name` that computes f(x), with the gradient dx(g, residual), and return it as an operation on
    tensors. `keep` says which residual is kept for the gradient: "x" (the input), "out" (the output) or "none".

    Parameters
    ----------
    name : str
        Name of the primitive and of the operation.
    f : callable (x, **params) -> array
    dx : callable (g, residual, **params) -> array
        Gradient of x, given the gradient g of the output.
    keep : {"x", "out", "none"}
        The residual: the input, the output, or None.

    Returns
    -------
    callable (x) -> Tensor
        Operation for a primitive without `params`.
    """

    def forward(wants_grad, x, **params):
        out = np.asarray(f(x, **params))
        return out, ({"x": x, "out": out, "none": None}[keep] if wants_grad[0] else None,)

    def vjp(g, wants_grad, residuals, **params):
        return (dx(g, *residuals, **params),)

    primitive(name, forward, vjp)

    def operation(x: Operand) -> Tensor:
        return apply(name, x)

    operation.__name__ = name
    return operation


def sigmoid_of(x: Array) -> Array:
    """Return 1 / (1 + exp(-x)) of an ndarray, computed from exp(-|x|), which cannot overflow."""
    e = numerics.exp(-np.abs(x))
    return np.where(x >= 0, 1, e) / (1 + e)


def _softplus(x):
    return np.maximum(x, 0) + numerics.log1p(numerics.exp(-np.abs(x)))


def _abs_vjp(g, x):
    return np.multiply(g, np.sign(x), out=np.zeros_like(g), where=x != 0)  # inf * 0 is NaN


neg = unary("neg", np.negative, lambda g, _: -g, keep="none")
abs = unary("abs", np.abs, _abs_vjp, keep="x")
sqrt = unary("sqrt", np.sqrt, lambda g, out: g / (2 * out), keep="out")
exp = unary("exp", numerics.exp, lambda g, out: g * out, keep="out")
expm1 = unary("expm1", np.expm1, lambda g, x: g * np.exp(x), keep="x")  # out + 1 would lose small values of exp(x)
log = unary("log", numerics.log, lambda g, x: g / x, keep="x")
log1p = unary("log1p", np.log1p, lambda g, x: g / (1 + x), keep="x")
tanh = unary("tanh", np.tanh, lambda g, out: g * (1 - out * out), keep="out")
sigmoid = unary("sigmoid", sigmoid_of, lambda g, out: g * (out * (1 - out)), keep="out")
softplus = unary("softplus", _softplus, lambda g, x: g * sigmoid_of(x), keep="x")

_ZERO_ONE = "np.array([0.0, 1.0])"
document(neg, "Return -x elementwise.", "ops.neg(np.array([1.0, -2.0]))", "[-1.0, 2.0]")
document(abs, "Return |x| elementwise. At x = 0 the gradient is 0.", "ops.abs(np.array([1.0, -2.0]))", "[1.0, 2.0]")
document(sqrt, "Return the square root elementwise.", "ops.sqrt(np.array([4.0, 9.0]))", "[2.0, 3.0]")
document(exp, "Return e**x elementwise.", "ops.exp(np.array([0.0]))", "[1.0]")
document(expm1, "Return exp(x) - 1 elementwise, accurate for x near 0.", "ops.expm1(np.array([0.0]))", "[0.0]")
document(log, "Return the natural logarithm elementwise.", "ops.log(np.array([1.0]))", "[0.0]")
document(log1p, "Return log(1 + x) elementwise, accurate for x near 0.", "ops.log1p(np.array([0.0]))", "[0.0]")
document(tanh, "Return the hyperbolic tangent elementwise.", "ops.tanh(np.array([0.0]))", "[0.0]")
document(sigmoid, "Return 1 / (1 + exp(-x)) elementwise.", "ops.sigmoid(np.array([0.0]))", "[0.5]")
document(softplus, "Return log(1 + exp(x)) elementwise. Large x do not overflow.", "ops.softplus(np.array([1000.0]))",
         "[1000.0]")


# ---- powers


def _power_vjp(g, x, exponent):
    if exponent == 0:  # also at x = 0 and at infinity, where 0 * x ** -1 would be NaN
        return np.zeros_like(g)
    return g * (exponent * x ** (exponent - 1))


def _exponential_vjp(g, out, base):
    slope = math.log(base) if base > 0 else 0.0 if base == 0 else math.nan
    return g * (out * slope)


unary("power", lambda x, exponent: x**exponent, _power_vjp, keep="x")
unary("exponential", lambda x, base: base**x, _exponential_vjp, keep="out")


def _scalar(value: object, argument: str) -> Any:
    """Return the scalar `value` as a Python number; raise a TypeError, which calls the value `argument`, for anything else."""
    value = plain(value)
    if not np.isscalar(value):
        raise TypeError(f"the {argument} must be a scalar, not {type(value).__name__}")
    return value


def power(x: Operand, exponent: float) -> Tensor:
    """Return x ** exponent elementwise, for a scalar exponent.

    Parameters
    ----------
    x : Tensor or array
    exponent : scalar

    Examples
    --------
    >>> import numpy as np
    >>> from sarlite.tape import ops
    >>> ops.power(np.array([2.0, 3.0]), 2).data.tolist()
    [4.0, 9.0]
    """
    return apply("power", x, exponent=_scalar(exponent, "exponent"))


def rpow(x: Operand, base: float) -> Tensor:
    """Return base ** x elementwise, for a scalar base. The gradient is NaN for a negative base.

    Parameters
    ----------
    x : Tensor or array
    base : scalar

    Examples
    --------
    >>> import numpy as np
    >>> from sarlite.tape import ops
    >>> ops.rpow(np.array([1.0, 3.0]), 2).data.tolist()
    [2.0, 8.0]
    """
    return apply("exponential", x, base=_scalar(base, "base"))


# ---- bounds


def _clip_vjp(g, x, low, high):
    inside = np.ones(np.shape(x), bool)
    if low is not None:
        inside &= x >= low
    if high is not None:
        inside &= x <= high
    return np.where(inside, g, 0)


unary("clip", lambda x, low, high: np.clip(x, low, high), _clip_vjp, keep="x")


def clip(x: Operand, low: float | None = None, high: float | None = None) -> Tensor:
    """Return x limited to [low, high], where None means no limit. The gradient is 0 for values outside of the limits.

    Parameters
    ----------
    x : Tensor or array_like
    low, high : scalar, optional
        Limits; None for no limit.

    Raises
    ------
    ConfigError
        `low` is above `high`.

    Examples
    --------
    >>> import numpy as np
    >>> from sarlite.tape import ops
    >>> ops.clip(np.array([-1.0, 0.5, 2.0]), 0, 1).data.tolist()
    [0.0, 0.5, 1.0]
    """
    low, high = (None if bound is None else _scalar(bound, "bound") for bound in (low, high))
    if low is not None and high is not None and low > high:
        raise ConfigError(f"clip's low {low} is above its high {high}")
    return apply("clip", x, low=low, high=high)


# ---- activations. Sigmoid, tanh and the normal distribution equal their limits for |x| > _FAR. A factor x is bounded
# by _FAR, because an infinite x times a limit of 0 would be NaN. The vjps of relu, leaky relu and elu need only the sign
# of x, which is the sign of out


_FAR = 1e4


def _relu(x: Array) -> Array:
    """Return max(x, 0) elementwise. As in `np.maximum(x, 0)`, NaN stays NaN, and -0.0 becomes 0.0."""
    if not reductions.is_float(x) or not x.ndim:
        return np.where(x <= 0, x.dtype.type(0), x)
    rows = np.ascontiguousarray(x).reshape(len(x), math.prod(x.shape[1:]))
    out = np.empty(rows.shape, x.dtype)
    kernels.activate(rows, out, kind="relu")
    return out.reshape(x.shape)


def _relu_vjp(g: Array, out: Array) -> Array:
    """Return the gradient of relu's input from g, the gradient of relu's output `out`: g where `out` is above 0, else 0. The
    product g * mask takes half the time of `np.where`, but an infinite g times 0 is NaN. So `np.where` is used if the product has
    a value that is not finite.
    """
    mask = out > 0
    with np.errstate(invalid="ignore", over="ignore"):
        dx = g * mask
        return dx if reductions.surely_finite(dx) else np.where(mask, g, 0)


def _elu(x, alpha):
    out = np.minimum(x, 0, out=np.empty(np.shape(x), x.dtype))
    numerics.expm1(out, out=out)
    out *= alpha
    out += np.maximum(x, 0)
    return out


def _elu_vjp(g, out, alpha):
    slope = np.minimum(out, 0, out=np.empty(np.shape(out), out.dtype))
    slope += alpha
    if alpha != 1:
        slope += (out > 0) * slope.dtype.type(1 - alpha)
    slope *= g
    return slope


def _silu_vjp(g, x):
    x = np.clip(x, -_FAR, _FAR)
    s = sigmoid_of(x)
    return g * (s * (1 + x * (1 - s)))


def _leaky_relu_vjp(g, out, slope):
    return np.where(out > 0, g, slope * g)


relu = unary("relu", _relu, _relu_vjp, keep="out")
unary("leaky_relu", lambda x, slope: np.where(x > 0, x, slope * x), _leaky_relu_vjp, keep="out")
unary("elu", _elu, _elu_vjp, keep="out")
silu = unary("silu", lambda x: np.maximum(x, -_FAR) * sigmoid_of(x), _silu_vjp, keep="x")
document(relu, "Return max(x, 0) elementwise.", "ops.relu(np.array([-1.0, 2.0]))", "[0.0, 2.0]")
document(silu, "Return x * sigmoid(x) elementwise, also called swish (Elfwing, Uchibe and Doya 2018).",
         "ops.silu(np.array([0.0]))", "[0.0]")


def leaky_relu(x: Operand, slope: float = 0.01) -> Tensor:
    """Return x where x > 0, else slope * x, elementwise.

    Parameters
    ----------
    x : Tensor or array
    slope : float
        Slope below zero, not negative.

    Raises
    ------
    ConfigError
        The slope is negative.

    Examples
    --------
    >>> import numpy as np
    >>> from sarlite.tape import ops
    >>> ops.leaky_relu(np.array([-1.0, 2.0]), 0.5).data.tolist()
    [-0.5, 2.0]
    """
    if not slope >= 0:
        raise ConfigError(f"leaky_relu's slope is {slope}, but must not be negative")
    return apply("leaky_relu", x, slope=float(slope)) if slope else relu(x)  # 0 * inf is NaN


def elu(x: Operand, alpha: float = 1.0) -> Tensor:
    """Return x where x > 0, else alpha * (exp(x) - 1), elementwise.

    Parameters
    ----------
    x : Tensor or array
    alpha : float
        Minus the limit for x -> -infinity, not negative.

    Raises
    ------
    ConfigError
        `alpha` is negative.

    Examples
    --------
    >>> import numpy as np
    >>> from sarlite.tape import ops
    >>> ops.elu(np.array([-1.0, 2.0])).data.round(4).tolist()
    [-0.6321, 2.0]
    """
    if not alpha >= 0:
        raise ConfigError(f"elu's alpha is {alpha}, but must not be negative")
    return apply("elu", x, alpha=float(alpha)) if alpha else relu(x)  # 0 * inf is NaN


# ---- gelu


def _normal_cdf(x):
    from scipy.special import ndtr  # slow to import, so at first use

    return ndtr(x)


def _gelu_vjp(g, x):
    x = np.clip(x, -_FAR, _FAR)
    density = np.exp(-0.5 * x * x) * (1 / math.sqrt(2 * math.pi))
    return g * (_normal_cdf(x) + x * density)


_C, _D = math.sqrt(2 / math.pi), 0.044715


def _gelu_tanh(x):
    c = np.clip(x, -_FAR, _FAR)
    return 0.5 * np.maximum(x, -_FAR) * (1 + np.tanh(_C * (c + _D * c * c * c)))


def _gelu_tanh_vjp(g, x):
    x = np.clip(x, -_FAR, _FAR)
    t = np.tanh(_C * (x + _D * x * x * x))
    return g * (0.5 * (1 + t) + 0.5 * x * (1 - t * t) * (_C * (1 + 3 * _D * x * x)))


unary("gelu", lambda x: np.maximum(x, -_FAR) * _normal_cdf(x), _gelu_vjp, keep="x")
unary("gelu_tanh", _gelu_tanh, _gelu_tanh_vjp, keep="x")


def gelu(x: Operand, approximate: bool = False) -> Tensor:
    """Return x * P(Z <= x) elementwise for a standard normal Z; if `approximate`, return the usual approximation with tanh.

    Parameters
    ----------
    x : Tensor or array_like
    approximate : bool
        True for the approximation with tanh.

    References
    ----------
    Hendrycks and Gimpel, "Gaussian Error Linear Units (GELUs)" (2016).

    Examples
    --------
    >>> import numpy as np
    >>> from sarlite.tape import ops
    >>> ops.gelu(np.array([0.0, 1.0])).data.round(4).tolist()
    [0.0, 0.8413]
    """
    return apply("gelu_tanh" if approximate else "gelu", x)
