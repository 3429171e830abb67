"""Norm or bias, activation and dropout in one pass."""

from typing import NamedTuple

import numpy as np

from sarlite.errors import ShapeError
from sarlite.kernels.column_moments import columns
from sarlite.kernels.native import FLOATS, call, check, check_apart, key64, probability, team

ACTIVATIONS = {"identity": 0, "relu": 1, "elu": 2}


class Normal(NamedTuple):
    """Batch norm's affine map of each column: ``(x - mean) * inv_std * gamma``.

    mean and inv_std are (F,) float64, gamma is (F,) of x's dtype.
    """

    mean: np.ndarray
    inv_std: np.ndarray
    gamma: np.ndarray


class Mask(NamedTuple):
    """Dropout: ids (n,) int64 of the rows, a 64-bit key, and the probability p of dropping."""

    ids: np.ndarray
    key: int
    p: float


def activate(x, out, *, kind, alpha=1.0, normal=None, beta=None, mask=None):
    """Overwrite ``out = f(y) * k``.

    ``y = (x - mean) * inv_std * gamma + beta`` with a `normal`, else ``x + beta`` or x. k is `dropout`'s factor;
    without a `mask` it is 1.

    Parameters
    ----------
    x : (n, F) float32 or float64
    out : (n, F), x's dtype
        It may be x itself: each value is read before it is written.
    kind : {"identity", "relu", "elu"}
        f. elu is y where y > 0, else ``alpha * (exp(y) - 1)``.
    alpha : float
    normal : Normal, optional
    beta : (F,), x's dtype
        Needed with a `normal`.
    mask : Mask, optional

    Notes
    -----
    O(n * F) time, no memory; one pass. Ioffe and Szegedy 2015; SAR sec. 3.4; fused as in DistGNN-MB sec. 3.3.
    """
    n, n_feat = columns(x)
    activation = _activation(kind, alpha, normal, beta, mask, x.dtype, n, n_feat)
    check("out", out, dtype=x.dtype, shape=x.shape, out=True)
    check_apart(out, x=None if out is x else x)
    call(f"sar_activate_forward_{FLOATS[x.dtype]}", out, {**activation, "x": x})


def activate_backward(g, *, kind, alpha=1.0, normal=None, beta=None, mask=None, x=None, out=None, means=None, dx=None,
                      sums=None):
    """Overwrite the gradient of x, or the column sums that this gradient needs, or both; ``dy = g * k * f'(y)``.

    ``sums[0] = sum_r dy`` and ``sums[1] = sum_r dy * xhat`` are the gradients of beta and gamma;
    ``dx = gamma * inv_std * (dy - means[0] - xhat * means[1])``; without a `normal`, sums[1] is 0 and ``dx = dy``.

    Parameters
    ----------
    g : (n, F) float32 or float64
    kind, alpha, normal, beta, mask
        As in `activate`. beta is read for "elu" alone, and so is gamma unless dx is asked for.
    x : g's shape and dtype
        The input, needed with a `normal` and for "elu".
    out : g's shape and dtype
        The result, needed for "relu": the mask is where the result is above 0, so no random numbers are drawn.
    means : (2, F) float64
        For dx with a `normal`: the `sums` of all ranks, divided by the number of rows of all ranks; zeros where mean
        and inv_std are constants. Without means dx is dy.
    dx : g's shape and dtype, optional
        It may be g itself.
    sums : (2, F) float64, optional

    Notes
    -----
    O(n * F) time; one pass a call. With sums 16 * threads * F bytes; the result depends on the number of threads alone.
    """
    n, n_feat = columns(g, "g")
    activation = _activation(kind, alpha, normal, beta, mask, g.dtype, n, n_feat, "elu")
    if normal is not None or kind == "elu":
        check("x", x, dtype=g.dtype, shape=g.shape)
    if kind == "relu":
        check("out", out, dtype=g.dtype, shape=g.shape)
    if dx is not None:
        check("dx", dx, dtype=g.dtype, shape=g.shape, out=True)
        check_apart(dx, g=None if dx is g else g, x=x, out=out)
        if normal is not None and means is not None:
            check("means", means, dtype=np.float64, shape=(2, n_feat))
    check("sums", sums, dtype=np.float64, shape=(2, n_feat), out=True, optional=True)
    n_threads = team(g.size)
    workspace = None if sums is None else np.empty((n_threads, 2, n_feat))
    call(f"sar_activate_backward_{FLOATS[g.dtype]}", dx, sums, workspace, g, out, means, {**activation, "x": x},
         n_threads)


def _activation(kind, alpha, normal, beta, mask, dtype, n, n_feat, with_beta=None):
    """Check the arguments of both directions; return the fields of sar_activation.

    `with_beta`: the one kind that reads beta.
    """
    if kind not in ACTIVATIONS:
        raise ShapeError(f"kind must be one of {', '.join(ACTIVATIONS)}, got {kind!r}")
    if normal is not None:
        for name, a, t in zip(Normal._fields, normal, (np.float64, np.float64, dtype)):
            check(name, a, dtype=t, shape=(n_feat,))
    if beta is not None or (normal is not None and with_beta in (None, kind)):
        check("beta", beta, dtype=dtype, shape=(n_feat,))
    drop = {}
    if mask is not None:
        check("ids", mask.ids, dtype=np.int64, shape=(n,))
        drop = {"ids": mask.ids, "key": key64(mask.key), "p": probability(mask.p)}
    affine = {} if normal is None else normal._asdict()
    return {**affine, "beta": beta, "dropout": drop, "kind": ACTIVATIONS[kind], "alpha": float(alpha), "n_rows": n,
            "n_feat": n_feat}
