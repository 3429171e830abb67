"""Elementwise operations on one operand: roots, exponentials, powers, activations."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from sarlite import kernels, numerics
from sarlite.errors import ConfigError
from sarlite.numerics import reductions
from sarlite.tape.apply import apply
from sarlite.tape.pairwise import plain
from sarlite.tape.primitives import primitive
from sarlite.tape.tensor import Operand, Tensor


def unary(name: str, f: Callable[..., Any], dx: Callable[..., Any], keep: str) -> Callable[[Operand], Tensor]:
    """Register the primitive out = f(x) with gradient dx(g, kept, **params), and return the operation.

    `keep` names the residual `kept`: "x", "out" or "none".
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
    operation.__doc__ = f"Return {name}(x) elementwise."
    return operation


def sigmoid_of(x):
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
softplus.__doc__ = "Return log(1 + exp(x)) elementwise; large x do not overflow."


# ---- powers


def _power_vjp(g, x, exponent):
    if exponent == 0:  # at 0 and at infinity too, where x ** -1 has no use
        return np.zeros_like(g)
    return g * (exponent * x ** (exponent - 1))


def _exponential_vjp(g, out, base):
    slope = math.log(base) if base > 0 else 0.0 if base == 0 else math.nan
    return g * (out * slope)


unary("power", lambda x, exponent: x**exponent, _power_vjp, keep="x")
unary("exponential", lambda x, base: base**x, _exponential_vjp, keep="out")


def _scalar(value, what):
    value = plain(value)
    if not np.isscalar(value):
        raise TypeError(f"the {what} must be a scalar, not {type(value).__name__}")
    return value


def power(x: Operand, exponent: float) -> Tensor:
    """Return x ** exponent for a scalar exponent."""
    return apply("power", x, exponent=_scalar(exponent, "exponent"))


def rpow(x: Operand, base: float) -> Tensor:
    """Return base ** x for a scalar base, which must not be negative if the gradient is wanted."""
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
    """Return x limited to [low, high], scalars or None for no limit. The gradient is 0 outside."""
    low, high = (None if bound is None else _scalar(bound, "bound") for bound in (low, high))
    if low is not None and high is not None and low > high:
        raise ConfigError(f"clip's low {low} is above its high {high}")
    return apply("clip", x, low=low, high=high)


# ---- activations. Sigmoid, tanh and the normal distribution have reached their limits long before |x| = _FAR. So a
# factor x is bounded there, since infinity times a limit of 0 is NaN. The vjps of relu, leaky relu and elu need the
# sign of x alone, which out has too


_FAR = 1e4


def _relu(x):
    """Return max(x, 0); NaN stays NaN, and -0.0 becomes 0.0, as in `np.maximum(x, 0)`."""
    if not reductions.is_float(x) or not x.ndim:
        return np.where(x <= 0, x.dtype.type(0), x)
    rows = np.ascontiguousarray(x).reshape(len(x), math.prod(x.shape[1:]))
    out = np.empty(rows.shape, x.dtype)
    kernels.activate(rows, out, kind="relu")
    return out.reshape(x.shape)


def _relu_vjp(g, out):
    """Return g where out > 0, else 0.

    A product takes half the time of `np.where`, but turns an infinite g into NaN, so `np.where` is the fallback.
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
silu.__doc__ = "Return x * sigmoid(x) elementwise (Elfwing, Uchibe and Doya 2018; also swish)."


def leaky_relu(x: Operand, slope: float = 0.01) -> Tensor:
    """Return x where x > 0, else slope * x, for a slope >= 0."""
    if not slope >= 0:
        raise ConfigError(f"leaky_relu's slope is {slope}, but must not be negative")
    return apply("leaky_relu", x, slope=float(slope)) if slope else relu(x)  # 0 * inf is NaN


def elu(x: Operand, alpha: float = 1.0) -> Tensor:
    """Return x where x > 0, else alpha * (exp(x) - 1), for an alpha >= 0."""
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
    """Return x * P(Z <= x), Z standard normal: exactly, or by Hendrycks and Gimpel's (2016) formula with tanh."""
    return apply("gelu_tanh" if approximate else "gelu", x)
