"""Layer norm and dropout."""

import numpy as np

from sarlite import kernels
from sarlite.errors import ConfigError, ShapeError, check_number
from sarlite.numerics import reductions
from sarlite.tape.apply import apply
from sarlite.tape.pairwise import operands
from sarlite.tape.primitives import primitive
from sarlite.tape.tensor import Tensor
from sarlite.types import Array

# ---- layer norm


def _layer_norm(wants_grad, x, gamma, beta, eps):
    mean = reductions.mean(x, -1, keepdims=True)
    centred = x - mean
    inv_std = 1 / np.sqrt(reductions.mean(centred * centred, -1, keepdims=True) + eps)
    out = centred * inv_std * gamma + beta
    statistics = (x, mean, inv_std) if wants_grad[0] or wants_grad[1] else (None, None, None)
    return out, (*statistics, gamma if wants_grad[0] else None)


def _layer_norm_vjp(g, wants_grad, residuals, eps):
    x, mean, inv_std, gamma = residuals
    over_rows = tuple(range(g.ndim - 1))
    d_beta = reductions.total(g, over_rows) if wants_grad[2] else None
    if not (wants_grad[0] or wants_grad[1]):
        return None, None, d_beta
    normal = (x - mean) * inv_std
    d_gamma = reductions.total(g * normal, over_rows) if wants_grad[1] else None
    return _layer_norm_dx(g * gamma, normal, inv_std) if wants_grad[0] else None, d_gamma, d_beta


def _layer_norm_dx(g: Array, normal: Array, inv_std: Array) -> Array:
    """Return the gradient with respect to x from g, the gradient with respect to normal = (x - mean) * inv_std: inv_std * (g -
    mean(g) - normal * mean(g normal)).
    """
    mean_g, mean_gn = (reductions.mean(a, -1, keepdims=True) for a in (g, g * normal))
    return inv_std * (g - mean_g - normal * mean_gn)


primitive("layer_norm", _layer_norm, _layer_norm_vjp)


def layer_norm(x: Tensor | Array, gamma: Tensor | Array, beta: Tensor | Array, eps: float = 1e-5) -> Tensor:
    """Return (x - mean) / sqrt(var + eps) * gamma + beta, with the mean and the biased variance (divisor n) of x over its last axis.

    Parameters
    ----------
    x : Tensor, (..., n_feat)
        float32 or float64.
    gamma, beta : Tensor, (n_feat,)
        Scale and shift of each column.
    eps : float
        Added to the variance, not negative.

    Raises
    ------
    ConfigError
        `eps` is negative or not finite.
    ShapeError
        `gamma` or `beta` does not have the length of x's last axis.

    References
    ----------
    Ba, Kiros and Hinton, "Layer Normalization" (2016).

    Examples
    --------
    >>> import numpy as np
    >>> from sarlite.tape import ops
    >>> ops.layer_norm(np.array([[1.0, 3.0]]), np.ones(2), np.zeros(2), eps=0.0).data.tolist()
    [[-1.0, 1.0]]
    """
    x, gamma, beta = operands(x, gamma, beta)
    if gamma.shape != x.shape[-1:] or beta.shape != x.shape[-1:]:
        raise ShapeError(f"gamma {gamma.shape} and beta {beta.shape} do not fit the last axis of x {x.shape}")
    return apply("layer_norm", x, gamma, beta, eps=check_number("eps", eps))


# ---- dropout


def _masked(x, ids, key, p):
    out = np.empty(x.shape, x.dtype)
    kernels.dropout(np.ascontiguousarray(x), ids, key, p, out)
    return out


def _dropout(wants_grad, x, ids, key, p):
    return _masked(x, ids, key, p), (ids if wants_grad[0] else None,)


def _dropout_vjp(g, wants_grad, residuals, key, p):
    return _masked(g, *residuals, key, p), None


primitive("dropout", _dropout, _dropout_vjp)


def dropout(x: Tensor, ids: Tensor | Array, key: int, p: float) -> Tensor:
    """Return x * mask / (1 - p), where each mask entry is 0 with probability p, else 1. A row's mask depends only on `key` and on
    the row's global id in `ids`, not on the partition.

    Parameters
    ----------
    x : Tensor, (n, ...)
        float32 or float64.
    ids : (n,) array or Tensor of int64
        Global ids of the rows. The mask at a value depends only on `key`, on the row's id and on the value's position
        in the row, so it does not depend on the partition or the order of the rows.
    key : int
        64-bit key of the random numbers; see `sarlite.nn.Random.key`.
    p : float in [0, 1)
        Probability of dropping a value.

    Raises
    ------
    ConfigError
        `p` is out of range.
    ShapeError
        `ids` are not one int64 for each row.

    Notes
    -----
    The mask is not stored. The backward pass draws it again.

    Examples
    --------
    >>> import numpy as np
    >>> from sarlite.tape import ops
    >>> out = ops.dropout(np.ones((1, 1000)), np.arange(1), key=0, p=0.5)
    >>> sorted(set(out.data.ravel().tolist())), bool(400 < (out.data > 0).sum() < 600)
    ([0.0, 2.0], True)
    """
    if not 0 <= p < 1:
        raise ConfigError(f"dropout's p is {p}, but must be in [0, 1)")
    ids = ids if isinstance(ids, Tensor) else np.ascontiguousarray(ids)
    if ids.dtype != np.int64 or ids.shape != x.shape[:1]:
        raise ShapeError(f"ids of {ids.dtype} {ids.shape} are not one int64 for each row of x {x.shape}")
    return x if p == 0 else apply("dropout", x, ids, key=int(key), p=float(p))
