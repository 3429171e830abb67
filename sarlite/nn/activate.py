"""The primitive "activate": batch norm or a bias, an activation function and dropout, in one pass over memory."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from sarlite import kernels
from sarlite.comm import Communicator
from sarlite.numerics import by_numerics
from sarlite.tape.apply import apply, written_over
from sarlite.tape.primitives import primitive
from sarlite.tape.tensor import Tensor
from sarlite.types import Array


class Statistics(NamedTuple):
    """Mean and inverse standard deviation of each column of a batch norm's input, with which the columns are normalised.

    Attributes
    ----------
    mean, inv_std : (n_feat,) float64
    comm : Communicator, or None
        Communicator of the ranks whose rows the moments were computed from; None if the moments are constants, as in
        evaluation.
    n_rows : int
        Number of rows of all ranks.
    """

    mean: Array
    inv_std: Array
    comm: Communicator | None = None
    n_rows: int = 0


def activate(x: Tensor, *, kind: str = "identity", alpha: float = 1.0, statistics: Statistics | None = None,
             gamma: Tensor | None = None, beta: Tensor | None = None, mask: kernels.Mask | None = None,
             overwrite: bool = False) -> Tensor:
    """Return dropout(f(y + beta)). y is x, or with `statistics` the normalised (x - mean) * inv_std * gamma; f is the function
    `kind`, "identity", "relu" or "elu" (with factor `alpha`). `mask` is the dropout mask (None: no dropout); `overwrite` writes the
    result over x.

    Parameters
    ----------
    x : Tensor (n, n_feat)
    kind : {"identity", "relu", "elu"}
        Function f.
    alpha : float
        Factor of elu: f(y) = alpha * (exp(y) - 1) for negative y.
    statistics : Statistics, optional
        If they were computed from x and x wants a gradient, the backward pass is collective.
    gamma, beta : Tensor (n_feat,), optional
    mask : kernels.Mask, optional
        Row ids, key and probability of dropout; by default no dropout.
    overwrite : bool
        True to write the result over x's values, unless backward needs them. If another operation then needs x's
        values in backward, it raises, as after `Tensor.changed`.

    Notes
    -----
    Residuals of x's size: the result for relu, which the next layer keeps too; x for elu and with statistics.

    References
    ----------
    DistGNN-MB, section 3.3.

    Examples
    --------
    >>> import numpy as np
    >>> from sarlite import Tensor
    >>> x, bias = Tensor(np.array([[-1.0, 2.0]])), Tensor(np.array([0.5, 0.5]))
    >>> activate(x, kind="relu", beta=bias).data.tolist()
    [[0.0, 2.5]]
    """
    ids, key, p = mask or (None, 0, 0.0)
    out = apply("activate", x, gamma, beta, ids, kind=kind, alpha=alpha, statistics=statistics, key=key, p=p,
                overwrite=overwrite)
    return written_over(x, out) if isinstance(x, Tensor) and out._data is x._data else out


def _forward(wants_grad, x, gamma, beta, ids, kind, alpha, statistics, key, p, overwrite):
    x = np.ascontiguousarray(x)
    ids = None if ids is None else np.ascontiguousarray(ids)
    elu = kind == "elu"
    # the gradient of beta is the sum of dy, which does not need x
    needs_x = (elu and any(wants_grad)) or (statistics is not None and (wants_grad[0] or wants_grad[1]))
    out = x if overwrite and not needs_x and x.base is None and x.flags.writeable else np.empty(x.shape, x.dtype)
    normal, mask = _normal(statistics, gamma), _mask(ids, key, p)
    kernels.activate(x, out, kind=kind, alpha=alpha, normal=normal, beta=beta, mask=mask)
    if not any(wants_grad):
        return out, ()
    arrays = (x if needs_x else None, out if kind == "relu" else None, gamma if needs_x else None, beta if elu else None)
    return out, (*arrays, ids)


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
def activation_sums(pull: Callable[..., None], g: Array, dx: Array | None, x: Array | None, statistics: Statistics | None,
                    wanted: bool) -> Array:
    """Backward pass of `activate`: write the gradient of x to `dx` (None: not wanted), and return the gradients of beta and gamma,
    (2, n_feat), maybe as zeros unless `wanted`. pull(dx, sums, means) calls the backward kernel for `g`, the gradient of the
    output. `statistics` belong to a batch norm (None: no batch norm).

    Collective if `statistics` have a communicator, for batch norm in training.

    Parameters
    ----------
    pull : callable
        `kernels.activate_backward` with all arguments but its outputs dx, sums and means.
    g, x : (n, n_feat) arrays
        Gradient of the output, and the input.
    dx : (n, n_feat) array, or None
        Filled with the gradient of x; None if x wants no gradient.
    statistics : Statistics, or None
    wanted : bool
        True if beta or gamma wants a gradient; without it the result may be zeros.
    """
    sums = np.zeros((2, g.shape[1]))
    if dx is None or statistics is None or statistics.comm is None:
        pull(dx=dx, sums=sums if wanted else None, means=np.zeros_like(sums))
        return sums
    pull(sums=sums)
    local_sums = sums.copy()
    pull(dx=dx, means=statistics.comm.allreduce(sums) / statistics.n_rows)
    return local_sums


def _normal(statistics, gamma):
    return None if statistics is None or gamma is None else kernels.Normal(statistics.mean, statistics.inv_std, gamma)


def _mask(ids, key, p):
    return None if ids is None else kernels.Mask(ids, key, p)


primitive("activate", _forward, _vjp)
