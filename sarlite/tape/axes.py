"""Operations that reduce axes: sums, moments, extrema, softmax."""

import math
from collections.abc import Callable, Sequence

import numpy as np

from sarlite import numerics
from sarlite.errors import ShapeError
from sarlite.numerics import reductions
from sarlite.tape.apply import apply
from sarlite.tape.elementwise import unary
from sarlite.tape.pairwise import div
from sarlite.tape.primitives import primitive
from sarlite.tape.shaping import of_axes, reshape, transpose
from sarlite.tape.tensor import Operand, Tensor
from sarlite.types import Array, Axis

# ---- sums


def _restore(g: Array, axis: Axis, keepdims: bool) -> Array:
    """Return g, the gradient of a reduction's output, in a shape that broadcasts with the input. Unless `keepdims`, the reduced
    `axis` is put back with length 1.
    """
    return g if keepdims or axis is None else np.expand_dims(g, axis)


def _sum(wants_grad, x, axis, keepdims):
    return reductions.total(x, axis, keepdims), (x.shape,)


def _sum_vjp(g, wants_grad, residuals, axis, keepdims):
    return (np.broadcast_to(_restore(g, axis, keepdims), residuals[0]),)


primitive("sum", _sum, _sum_vjp)


def sum(x: Operand, axis: Axis = None, keepdims: bool = False) -> Tensor:
    """Return the sum over an axis, a tuple of axes, or all axes (None), as `numpy.sum` does.

    A float32 sum over axis 0 is accumulated in float64. No values are kept for the backward pass.

    Parameters
    ----------
    x : Tensor or array
    axis : int, tuple of int or None
        Axes to reduce; None for all axes.
    keepdims : bool
        True to keep the reduced axes with length 1.

    Examples
    --------
    >>> import numpy as np
    >>> from sarlite.tape import ops
    >>> ops.sum(np.array([[1.0, 2.0], [3.0, 4.0]]), axis=0).data.tolist()
    [4.0, 6.0]
    """
    return apply("sum", x, axis=axis, keepdims=keepdims)


def mean(x: Tensor | Array, axis: Axis = None, keepdims: bool = False) -> Tensor:
    """Return the mean over an axis, a tuple of axes, or all axes (None).

    Parameters
    ----------
    x : Tensor or array
    axis : int, tuple of int or None
        Axes to reduce; None for all axes.
    keepdims : bool
        True to keep the reduced axes with length 1.

    Examples
    --------
    >>> import numpy as np
    >>> from sarlite.tape import ops
    >>> ops.mean(np.array([[1.0, 2.0], [3.0, 4.0]]), axis=1).data.tolist()
    [1.5, 3.5]
    """
    return div(sum(x, axis, keepdims), reductions.count(x, axis))


primitive(
    "cumsum",
    lambda wants_grad, x, axis: (reductions.running(x, axis), ()),
    lambda g, wants_grad, residuals, axis: (np.flip(reductions.running(np.flip(g, axis), axis), axis),),
)


def cumsum(x: Tensor | Array, axis: int | None = None) -> Tensor:
    """Return the cumulative sums along an axis, or of the flattened x if `axis` is None.

    Parameters
    ----------
    x : Tensor or array
    axis : int, optional

    Examples
    --------
    >>> import numpy as np
    >>> from sarlite.tape import ops
    >>> ops.cumsum(np.array([1.0, 2.0, 3.0])).data.tolist()
    [1.0, 3.0, 6.0]
    """
    return apply("cumsum", reshape(x, -1) if axis is None else x, axis=0 if axis is None else axis)


# ---- moments


def _var(x: Array, axis: Axis, keepdims: bool, ddof: int) -> tuple[Array, Array, np.float64]:
    """Return (variance, mean, divisor) of x over `axis`: the mean keeps its axes (keepdims=True), and the divisor of the variance
    is n - ddof, or 0 if that is negative.
    """
    mean = reductions.mean(x, axis, keepdims=True)
    n, centred = reductions.count(x, axis), x - mean
    divisor = np.float64(n - ddof if n > ddof else 0)  # a NumPy scalar, because division by Python's 0 would raise
    return (reductions.total(centred * centred, axis, keepdims) / divisor).astype(centred.dtype), mean, divisor


def _var_forward(wants_grad, x, axis, keepdims, ddof):
    out, mean, divisor = _var(x, axis, keepdims, ddof)
    return out, (x, mean, divisor) if wants_grad[0] else ()


def _var_vjp(g, wants_grad, residuals, axis, keepdims, ddof):
    x, mean, divisor = residuals
    return ((x - mean) * (_restore(g, axis, keepdims) * (2 / float(divisor) if divisor else math.nan)),)


def _std_forward(wants_grad, x, axis, keepdims, ddof):
    out, mean, divisor = _var(x, axis, keepdims, ddof)
    out = np.sqrt(out)
    return out, (x, mean, divisor, out) if wants_grad[0] else ()


def _std_vjp(g, wants_grad, residuals, axis, keepdims, ddof):
    x, mean, divisor, out = residuals
    slope = np.divide(g, out * float(divisor), out=np.zeros_like(g), where=out != 0)
    return ((x - mean) * _restore(slope, axis, keepdims),)


primitive("var", _var_forward, _var_vjp)
primitive("std", _std_forward, _std_vjp)


def var(x: Operand, axis: Axis = None, ddof: int = 0, keepdims: bool = False) -> Tensor:
    """Return the variance over an axis, a tuple of axes, or all axes (None): sum((x - mean)^2) / (n - ddof) for n values.

    Parameters
    ----------
    x : Tensor or array
    axis : int, tuple of int or None
        Axes to reduce; None for all axes.
    ddof : int
        The divisor is n - ddof, where n is the number of values.
    keepdims : bool
        True to keep the reduced axes with length 1.

    Examples
    --------
    >>> import numpy as np
    >>> from sarlite.tape import ops
    >>> ops.var(np.array([1.0, 3.0])).item()
    1.0
    """
    return apply("var", x, axis=axis, keepdims=keepdims, ddof=ddof)


def std(x: Operand, axis: Axis = None, ddof: int = 0, keepdims: bool = False) -> Tensor:
    """Return the standard deviation over an axis, a tuple of axes, or all axes (None): sqrt(sum((x - mean)^2) / (n - ddof)). Where
    the result is 0, the gradient is 0.

    Parameters
    ----------
    x : Tensor or array
    axis : int, tuple of int or None
        Axes to reduce; None for all axes.
    ddof : int
        The divisor is n - ddof, where n is the number of values.
    keepdims : bool
        True to keep the reduced axes with length 1.

    Examples
    --------
    >>> import numpy as np
    >>> from sarlite.tape import ops
    >>> ops.std(np.array([1.0, 5.0])).item()
    2.0
    """
    return apply("std", x, axis=axis, keepdims=keepdims, ddof=ddof)


# ---- extrema


def _register_extremum(name: str, arg_extremum: Callable[..., Array]) -> None:
    """Register the primitive `name` ("max" or "min"), the extremum over one axis. `arg_extremum` is `np.argmax` or `np.argmin`,
    which returns the position of the first of equal values; that value gets the gradient.
    """

    def forward(wants_grad, x, axis, keepdims):
        at = arg_extremum(x, axis=axis, keepdims=True)
        out = np.take_along_axis(x, at, axis)
        return out if keepdims else out.squeeze(axis), (at if wants_grad[0] else None, x.shape)

    def vjp(g, wants_grad, residuals, axis, keepdims):
        at, shape = residuals
        dx = np.zeros(shape, g.dtype)
        np.put_along_axis(dx, at, _restore(g, axis, keepdims), axis)
        return (dx,)

    primitive(name, forward, vjp)


_register_extremum("max", np.argmax)
_register_extremum("min", np.argmin)


def max(x: Tensor | Array, axis: Axis = None, keepdims: bool = False) -> Tensor:
    """Return the maximum over an axis, a tuple of axes, or all axes (None).

    The first of several equal maxima receives the whole gradient.

    Parameters
    ----------
    x : Tensor or array
    axis : int, tuple of int or None
        Axes to reduce; None for all axes.
    keepdims : bool
        True to keep the reduced axes with length 1.

    Raises
    ------
    ShapeError
        A reduced axis has length 0.

    Examples
    --------
    >>> import numpy as np
    >>> from sarlite.tape import ops
    >>> ops.max(np.array([[1.0, 5.0], [3.0, 4.0]]), axis=0).data.tolist()
    [3.0, 5.0]
    """
    return _extremum("max", x, axis, keepdims)


def min(x: Tensor | Array, axis: Axis = None, keepdims: bool = False) -> Tensor:
    """Return the minimum over an axis, a tuple of axes, or all axes (None).

    The first of several equal minima receives the whole gradient.

    Parameters
    ----------
    x : Tensor or array
    axis : int, tuple of int or None
        Axes to reduce; None for all axes.
    keepdims : bool
        True to keep the reduced axes with length 1.

    Raises
    ------
    ShapeError
        A reduced axis has length 0.

    Examples
    --------
    >>> import numpy as np
    >>> from sarlite.tape import ops
    >>> ops.min(np.array([[1.0, 5.0], [3.0, 4.0]]), axis=0).data.tolist()
    [1.0, 4.0]
    """
    return _extremum("min", x, axis, keepdims)


def _extremum(name, x, axis, keepdims):
    axes = of_axes(axis, x.ndim)
    if not math.prod(x.shape[a] for a in axes):
        raise ShapeError(f"{name}: axis {axis} of shape {x.shape} has no values")
    if len(axes) == 1:
        return apply(name, x, axis=axes[0], keepdims=keepdims)
    out = apply(name, _joined(x, axes), axis=-1, keepdims=False)
    return reshape(out, tuple(1 if a in axes else n for a, n in enumerate(x.shape))) if keepdims else out


def _joined(x: Tensor | Array, axes: Sequence[int]) -> Tensor | Array:
    """Return x with the axes `axes` moved to the end and merged into one axis."""
    axes = sorted(axes)
    rest = [a for a in range(x.ndim) if a not in axes]
    moved = x if [*rest, *axes] == list(range(x.ndim)) else transpose(x, *rest, *axes)
    return reshape(moved, (*(x.shape[a] for a in rest), math.prod(x.shape[a] for a in axes)))



# ---- softmax, log_softmax and logsumexp


def top(x: Array, axis: Axis) -> Array:
    """Return the maximum of x over `axis`, with keepdims=True; a maximum of -inf is replaced by 0.

    exp(x - top(x, axis)) does not overflow, and is not NaN for values of -inf.
    """
    largest = x.max(axis, keepdims=True, initial=-np.inf)
    return np.where(np.isneginf(largest), 0, largest)


def log_softmax_of(x: Array, axis: int) -> Array:
    """Return log(softmax(x)) over `axis`, x - log(sum(exp(x))), without overflow."""
    z = x - top(x, axis)
    with np.errstate(divide="ignore"):  # log 0, if the axis has length 0
        return z - numerics.log(reductions.total(numerics.exp(z), axis, keepdims=True))


def softmax_of(x: Array, axis: int) -> Array:
    """Return softmax(x) over `axis`, exp(x) / sum(exp(x)), without overflow."""
    e = numerics.exp(x - top(x, axis))
    return e / reductions.total(e, axis, keepdims=True)


def _log_softmax_vjp(g, out, axis):
    return g - numerics.exp(out) * reductions.total(g, axis, keepdims=True)


def _softmax_vjp(g, out, axis):
    return out * (g - reductions.total(g * out, axis, keepdims=True))


unary("log_softmax", log_softmax_of, _log_softmax_vjp, keep="out")
unary("softmax", softmax_of, _softmax_vjp, keep="out")


def log_softmax(x: Operand, axis: int = -1) -> Tensor:
    """Return log(softmax(x)) over an axis, computed without overflow.

    Parameters
    ----------
    x : Tensor or array
    axis : int

    Examples
    --------
    >>> import numpy as np
    >>> from sarlite.tape import ops
    >>> ops.log_softmax(np.array([0.0, 0.0])).data.round(4).tolist()
    [-0.6931, -0.6931]
    """
    return apply("log_softmax", x, axis=axis)


def softmax(x: Operand, axis: int = -1) -> Tensor:
    """Return exp(x) / sum(exp(x)), with the sum over an axis, computed without overflow.

    Parameters
    ----------
    x : Tensor or array
    axis : int

    Examples
    --------
    >>> import numpy as np
    >>> from sarlite.tape import ops
    >>> ops.softmax(np.array([0.0, 0.0])).data.tolist()
    [0.5, 0.5]
    """
    return apply("softmax", x, axis=axis)


def _logsumexp(wants_grad, x, axis, keepdims):
    largest = top(x, axis)
    largest = np.where(np.isposinf(largest), 0, largest)  # inf - inf would be NaN, but exp(inf - 0) is inf
    with np.errstate(divide="ignore"):  # log 0, if all values are -inf
        out = numerics.log(reductions.total(numerics.exp(x - largest), axis, keepdims=True)) + largest
    return out if keepdims else np.squeeze(out, axis), (x if wants_grad[0] else None,)


def _logsumexp_vjp(g, wants_grad, residuals, axis, keepdims):
    e = numerics.exp(residuals[0] - top(residuals[0], axis))
    sums = reductions.total(e, axis, keepdims=True)
    return (e * (_restore(g, axis, keepdims) / np.where(sums == 0, 1, sums)),)


primitive("logsumexp", _logsumexp, _logsumexp_vjp)


def logsumexp(x: Tensor | Array, axis: Axis = None, keepdims: bool = False) -> Tensor:
    """Return log(sum(exp(x))) over an axis, a tuple of axes, or all axes (None), computed without overflow.

    A value of -inf contributes 0 to the sum.

    Parameters
    ----------
    x : Tensor or array
    axis : int, tuple of int or None
        Axes to reduce; None for all axes.
    keepdims : bool
        True to keep the reduced axes with length 1.

    Examples
    --------
    >>> import numpy as np
    >>> from sarlite.tape import ops
    >>> ops.logsumexp(np.array([1000.0, 1000.0])).data.round(4).tolist()
    1000.6931
    """
    return apply("logsumexp", x, axis=of_axes(axis, x.ndim), keepdims=keepdims)
