"""The primitive "activate": norm or bias, activation and dropout in one pass, with batch norm's means over all
ranks."""

from typing import NamedTuple

import numpy as np

from sarlite import kernels
from sarlite.numerics import by_numerics
from sarlite.tape.apply import apply, written_over
from sarlite.tape.primitives import primitive
from sarlite.tape.tensor import Tensor


class Statistics(NamedTuple):
    """Batch norm's moments of each column, float64.

    Where the moments are computed from x, `comm` is the ranks' communicator and `n_rows` the number of rows of all
    ranks. Where the moments are constants, `comm` is None. """

    mean: np.ndarray
    inv_std: np.ndarray
    comm: object = None
    n_rows: int = 0


def activate(x: Tensor, *, kind: str = "identity", alpha: float = 1.0, statistics: Statistics | None = None,
             gamma: Tensor | None = None, beta: Tensor | None = None, mask: kernels.Mask | None = None,
             overwrite: bool = False) -> Tensor:
    """Return f(y) * k, where k is the factor of dropout.

    y = (x - mean) * inv_std * gamma + beta with `statistics`, else x + beta or x.

    Parameters
    ----------
    x : Tensor (n, n_feat)
    kind : {"identity", "relu", "elu"}
    statistics : Statistics, optional
        Where they are computed from x and x wants a gradient, the backward pass is collective.
    gamma, beta : Tensor (n_feat,), optional
    mask : kernels.Mask, optional
    overwrite : bool
        The result is written over x's values, unless they are kept for backward. A backward pass that needs x's values
        for another operation raises, as after `Tensor.changed`.

    Notes
    -----
    Kept for backward: the result for relu (which the next layer keeps too); x for elu and with statistics; nothing else
    of x's size. Source: DistGNN-MB 3.3.
    """
    ids, key, p = mask or (None, 0, 0.0)
    out = apply("activate", x, gamma, beta, ids, kind=kind, alpha=alpha, statistics=statistics, key=key, p=p,
                overwrite=overwrite)
    return written_over(x, out) if isinstance(x, Tensor) and out._data is x._data else out


def _forward(wants_grad, x, gamma, beta, ids, kind, alpha, statistics, key, p, overwrite):
    x = np.ascontiguousarray(x)
    ids = None if ids is None else np.ascontiguousarray(ids)
    elu = kind == "elu"
    # beta's gradient, the sum of dy, does not need x
    keeps = (elu and any(wants_grad)) or (statistics is not None and (wants_grad[0] or wants_grad[1]))
    out = x if overwrite and not keeps and x.base is None and x.flags.writeable else np.empty(x.shape, x.dtype)
    normal, mask = _normal(statistics, gamma), _mask(ids, key, p)
    kernels.activate(x, out, kind=kind, alpha=alpha, normal=normal, beta=beta, mask=mask)
    if not any(wants_grad):
        return out, ()
    kept = (x if keeps else None, out if kind == "relu" else None, gamma if keeps else None, beta if elu else None)
    return out, (*kept, ids)


def _vjp(g, wants_grad, residuals, kind, alpha, statistics, key, p, overwrite):
    x, out, gamma, beta, ids = residuals
    g = np.ascontiguousarray(g)
    dx = None if not wants_grad[0] else g if g.flags.writeable else np.empty(g.shape, g.dtype)

    def pull(**outputs):
        kernels.activate_backward(g, kind=kind, alpha=alpha, normal=_normal(statistics, gamma), beta=beta,
                                  mask=_mask(ids, key, p), x=x, out=out, **outputs)

    d_beta, d_gamma = activation_sums(pull, g, dx, x, statistics, wants_grad[1] or wants_grad[2]).astype(g.dtype)
    return dx, d_gamma if wants_grad[1] else None, d_beta if wants_grad[2] else None, None


@by_numerics
def activation_sums(pull, g, dx, x, statistics, wanted):
    """Fill dx where there is one; return the gradients of beta and gamma, (2, n_feat) float64, zeros unless wanted.

    `pull` is `kernels.activate_backward` with what the outputs do not change.
    """
    sums = np.zeros((2, g.shape[1]))
    if dx is None or statistics is None or statistics.comm is None:
        pull(dx=dx, sums=sums if wanted else None, means=np.zeros_like(sums))
        return sums
    pull(sums=sums)
    own = sums.copy()
    pull(dx=dx, means=statistics.comm.allreduce(sums) / statistics.n_rows)
    return own


def _normal(statistics, gamma):
    return None if statistics is None or gamma is None else kernels.Normal(statistics.mean, statistics.inv_std, gamma)


def _mask(ids, key, p):
    return None if ids is None else kernels.Mask(ids, key, p)


primitive("activate", _forward, _vjp)
