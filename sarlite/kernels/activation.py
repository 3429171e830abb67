"""Batch norm or bias, activation and dropout, fused into one pass over memory."""

from typing import Any, NamedTuple

import numpy as np

from sarlite.errors import ShapeError
from sarlite.kernels.column_moments import columns
from sarlite.kernels.native import FLOATS, call, check, check_apart, key64, probability, team
from sarlite.types import Array, ArrayDType

ACTIVATIONS = {"identity": 0, "relu": 1, "elu": 2}


class Normal(NamedTuple):
    """The three arrays, (n_columns,) each, of batch norm's map ``(x - mean) * inv_std * gamma``; the shift beta is a separate
    argument.

    Attributes
    ----------
    mean, inv_std : (F,) float64
    gamma : (F,), x's dtype
    """

    mean: np.ndarray
    inv_std: np.ndarray
    gamma: np.ndarray


class Mask(NamedTuple):
    """Parameters of a dropout mask; `dropout` computes the mask from them.

    Attributes
    ----------
    ids : (n,) int64
        Global ids of the rows.
    key : int
        64-bit key of the random numbers.
    p : float
        Probability of dropping a value, in [0, 1).
    """

    ids: np.ndarray
    key: int
    p: float


def activate(x: Array, out: Array, *, kind: str, alpha: float = 1.0, normal: Normal | None = None,
             beta: Array | None = None, mask: Mask | None = None) -> None:
    """Write act(norm(x)) to `out` in one pass: batch norm by `normal` and `beta`, or only the bias `beta`; then the activation
    `kind`, "identity", "relu" or "elu" (`alpha` is ELU's parameter); then the dropout `mask`. None leaves a step out.

    The result is ``f(y) * k``. ``y = (x - mean) * inv_std * gamma + beta`` with a `normal`, ``y = x + beta`` with only a
    `beta`, else ``y = x``. The dropout factor k is 0 or 1 / (1 - p), as in `dropout`; without a `mask` it is 1.

    Parameters
    ----------
    x : (n, F) float32 or float64
    out : (n, F), x's dtype
        It may be x itself, because each value is read before it is written.
    kind : {"identity", "relu", "elu"}
        The activation f. "elu" is y where y > 0, else ``alpha * (exp(y) - 1)``.
    alpha : float
        Parameter of "elu".
    normal : Normal, optional
        Batch norm's map.
    beta : (F,), x's dtype
        Bias; needed with a `normal`.
    mask : Mask, optional
        Dropout.

    Notes
    -----
    O(n * F) time in one pass, no memory.

    References
    ----------
    Ioffe and Szegedy 2015; SAR sec. 3.4; fused as in DistGNN-MB sec. 3.3.

    Examples
    --------
    >>> x = np.array([[-1.0, 2.0]])
    >>> activate(x, x, kind="relu", beta=np.array([0.5, 0.5]))
    >>> x
    array([[0. , 2.5]])
    """
    n, n_feat = columns(x)
    activation = _activation(kind, alpha, normal, beta, mask, x.dtype, n, n_feat)
    check("out", out, dtype=x.dtype, shape=x.shape, out=True)
    check_apart(out, x=None if out is x else x)
    call(f"sar_activate_forward_{FLOATS[x.dtype]}", out, {**activation, "x": x})


def activate_backward(g: Array, *, kind: str, alpha: float = 1.0, normal: Normal | None = None,
                      beta: Array | None = None, mask: Mask | None = None, x: Array | None = None,
                      out: Array | None = None, means: Array | None = None, dx: Array | None = None,
                      sums: Array | None = None) -> None:
    """Compute the backward pass of `activate`, called with the same `kind` to `mask`, from `g`, the gradient of its result `out`.
    `dx` is overwritten with the gradient of x, and `sums` with the gradients of beta and gamma over this rank's rows. For the
    gradient of x in batch norm, `means` must hold these sums over all ranks, divided by the number of rows of all ranks.

    With ``dy = g * k * f'(y)`` and ``xhat = (x - mean) * inv_std``: ``sums[0] = sum_r dy`` is the gradient of beta,
    ``sums[1] = sum_r dy * xhat`` is the gradient of gamma, and
    ``dx = gamma * inv_std * (dy - means[0] - xhat * means[1])``. Without a `normal`, sums[1] is 0 and ``dx = dy``.

    Parameters
    ----------
    g : (n, F) float32 or float64
        Gradient of the result of `activate`.
    kind, alpha, normal, beta, mask
        See `activate`. beta is only read for "elu", and gamma only for "elu" or dx.
    x : g's shape and dtype
        The input, needed with a `normal` and for "elu".
    out : g's shape and dtype
        The result, needed for "relu". A value was not dropped if it is above 0, so no random numbers are drawn.
    means : (2, F) float64
        For dx with a `normal`: the `sums` over the rows of all ranks, divided by the number of these rows; zeros if
        mean and inv_std are constants. Without means dx is dy.
    dx : g's shape and dtype, optional
        Gradient of x; it may be g itself. None if it is not wanted.
    sums : (2, F) float64, optional
        Sums over the rows of this rank. None if they are not wanted.

    Notes
    -----
    O(n * F) time, one pass for each call. With sums, 16 * threads * F bytes, and the result depends on the number of
    threads.
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


def _activation(kind: str, alpha: float, normal: Normal | None, beta: Array | None, mask: Mask | None,
                dtype: ArrayDType, n: int, n_feat: int, only_kind_with_beta: str | None = None) -> dict[str, Any]:
    """Check the arguments of `activate` or `activate_backward` for an input (n, n_feat) of `dtype`, and return the fields of their
    C struct as a dict. `only_kind_with_beta` names the only kind for which the kernel reads beta; None means that it reads beta for
    all kinds.
    """
    if kind not in ACTIVATIONS:
        raise ShapeError(f"kind must be one of {', '.join(ACTIVATIONS)}, got {kind!r}")
    if normal is not None:
        for name, a, t in zip(Normal._fields, normal, (np.float64, np.float64, dtype)):
            check(name, a, dtype=t, shape=(n_feat,))
    if beta is not None or (normal is not None and only_kind_with_beta in (None, kind)):
        check("beta", beta, dtype=dtype, shape=(n_feat,))
    drop = {}
    if mask is not None:
        check("ids", mask.ids, dtype=np.int64, shape=(n,))
        drop = {"ids": mask.ids, "key": key64(mask.key), "p": probability(mask.p)}
    affine = {} if normal is None else normal._asdict()
    return {**affine, "beta": beta, "dropout": drop, "kind": ACTIVATIONS[kind], "alpha": float(alpha), "n_rows": n,
            "n_feat": n_feat}
