"""Operations of neural networks: softmax, cross entropy, layer norm, dropout."""

import numpy as np

from sarlite import kernels
from sarlite.errors import ConfigError, DataError, ShapeError
from sarlite.tape.arithmetic import operands, total, unary
from sarlite.tape.engine import Tensor, apply, as_array, primitive
from sarlite.tape.shaping import gather_rows, scatter_rows

# ---- softmax


def _log_softmax(x, axis):
    """x - log sum exp x, from the maximum down, so that nothing overflows."""
    z = x - x.max(axis, keepdims=True, initial=-np.inf)
    return z - np.log(np.exp(z).sum(axis, keepdims=True))


def _softmax(x, axis):
    e = np.exp(x - x.max(axis, keepdims=True, initial=-np.inf))
    return e / e.sum(axis, keepdims=True)


unary("log_softmax", _log_softmax, lambda g, out, axis: g - np.exp(out) * g.sum(axis, keepdims=True), keep="out")
unary("softmax", _softmax, lambda g, out, axis: out * (g - (g * out).sum(axis, keepdims=True)), keep="out")


def log_softmax(x, axis=-1):
    """Return log(softmax(x)) over an axis."""
    return apply("log_softmax", x, axis=axis)


def softmax(x, axis=-1):
    """Return exp(x) / sum(exp(x)) over an axis."""
    return apply("softmax", x, axis=axis)


# ---- cross entropy


def _cross_entropy(needs, logits, labels, rows, count):
    log_p = _log_softmax(gather_rows(logits, rows), -1)
    loss = -total(log_p[np.arange(len(rows)), labels[rows]].astype(np.float64)) / count
    return np.asarray(loss, logits.dtype), (logits, labels, rows) if needs[0] else ()


def _cross_entropy_vjp(g, needs, residuals, count):
    logits, labels, rows = residuals
    d_rows = _softmax(gather_rows(logits, rows), -1)
    d_rows[np.arange(len(rows)), labels[rows]] -= 1
    d_rows *= float(g) / count
    if (np.diff(rows) <= 0).any():
        return scatter_rows(d_rows, rows, len(logits)), None, None
    d_logits = np.zeros(logits.shape, logits.dtype)
    kernels.scatter_add_rows(d_rows, rows, d_logits)  # no row twice
    return d_logits, None, None


primitive("cross_entropy", _cross_entropy, _cross_entropy_vjp)


def cross_entropy(logits, labels, rows=None, count=None):
    """Return -1/count * sum over the selected rows of log softmax(logits)[row, labels[row]].

    Parameters
    ----------
    logits : Tensor, (n, n_classes)
    labels : (n,) array of integers
        In [0, n_classes) on the selected rows; not read elsewhere.
    rows : (k,) array of row numbers or (n,) of bools, optional
        The rows that count; all of them without it.
    count : int, optional
        The divisor: the number of selected rows over all ranks. This rank's own, k, without it.

    Returns
    -------
    Tensor, scalar
        This rank's share of the loss; no rows give 0, with gradient 0. The sum over ranks is the mean.

    Raises
    ------
    ShapeError, DataError
        If the shapes disagree; if a selected label is not a class.

    Notes
    -----
    Local, not collective. Softmax is computed again in the backward pass, so only `logits` is kept.
    """
    labels, n = as_array(labels), len(logits)
    if logits.ndim != 2 or labels.shape != (n,):
        raise ShapeError(f"logits {logits.shape} and labels {labels.shape} are not (n, n_classes) and (n,)")
    rows = np.arange(n) if rows is None else _row_numbers(as_array(rows), n)
    _check_labels(labels, rows, logits.shape[1])
    return apply("cross_entropy", logits, labels, rows, count=max(len(rows) if count is None else int(count), 1))


def _row_numbers(rows, n):
    rows = np.flatnonzero(rows) if rows.dtype == bool and rows.shape == (n,) else rows
    if rows.ndim != 1 or (rows.size and rows.dtype.kind not in "iu"):
        raise ShapeError(f"rows of shape {rows.shape} and {rows.dtype} are neither row numbers nor {n} bools")
    if rows.size and not (0 <= rows.min() and rows.max() < n):
        raise IndexError(f"row numbers {rows.min()}..{rows.max()} are out of range for {n} rows")
    return rows.astype(np.int64, copy=False)


def _check_labels(labels, rows, n_classes):
    selected = labels[rows]
    wrong = rows[(selected < 0) | (selected >= n_classes)]
    if labels.dtype.kind not in "iu" or len(wrong):
        found = f"labels[{wrong[0]}] = {labels[wrong[0]]}" if len(wrong) else f"labels of {labels.dtype}"
        raise DataError(f"{found}: not an integer in [0, {n_classes})")


# ---- layer norm


def _layer_norm(needs, x, gamma, beta, eps):
    mean = x.mean(-1, keepdims=True)
    centred = x - mean
    inv_std = 1 / np.sqrt((centred * centred).mean(-1, keepdims=True) + eps)
    out = centred * inv_std * gamma + beta
    kept = (x, mean, inv_std) if needs[0] or needs[1] else (None, None, None)
    return out, (*kept, gamma if needs[0] else None)


def _layer_norm_vjp(g, needs, residuals, eps):
    x, mean, inv_std, gamma = residuals
    over_rows = tuple(range(g.ndim - 1))
    d_beta = total(g, over_rows) if needs[2] else None
    if not (needs[0] or needs[1]):
        return None, None, d_beta
    normal = (x - mean) * inv_std
    d_gamma = total(g * normal, over_rows) if needs[1] else None
    return _layer_norm_dx(g * gamma, normal, inv_std) if needs[0] else None, d_gamma, d_beta


def _layer_norm_dx(g, normal, inv_std):
    """dx = (g - mean(g) - normal * mean(g normal)) / std."""
    return inv_std * (g - g.mean(-1, keepdims=True) - normal * (g * normal).mean(-1, keepdims=True))


primitive("layer_norm", _layer_norm, _layer_norm_vjp)


def layer_norm(x, gamma, beta, eps=1e-5):
    """Return (x - mean) / sqrt(var + eps) * gamma + beta with the moments of the last axis (biased variance).

    Parameters
    ----------
    x : Tensor, (..., n_feat)
    gamma, beta : Tensor, (n_feat,)
    eps : float
    """
    x, gamma, beta = operands(x, gamma, beta)
    if gamma.shape != x.shape[-1:] or beta.shape != x.shape[-1:]:
        raise ShapeError(f"gamma {gamma.shape} and beta {beta.shape} do not fit the last axis of x {x.shape}")
    return apply("layer_norm", x, gamma, beta, eps=float(eps))


# ---- dropout


def _masked(x, ids, key, p):
    out = np.empty(x.shape, x.dtype)
    kernels.dropout(np.ascontiguousarray(x), ids, key, p, out)
    return out


def _dropout(needs, x, ids, key, p):
    return _masked(x, ids, key, p), (ids if needs[0] else None,)


def _dropout_vjp(g, needs, residuals, key, p):
    return _masked(g, *residuals, key, p), None


primitive("dropout", _dropout, _dropout_vjp, fresh=True)


def dropout(x, ids, key, p):
    """Return x * mask / (1 - p), where mask[r, c] is 0 with probability p.

    Parameters
    ----------
    x : Tensor, (n, ...)
        Its trailing axes count as one, of columns c.
    ids : (n,) array or Tensor of int64
        Global numbers of the rows. The mask of a row depends on its number, `key` and c alone, so it is the same
        for every partitioning and order of the rows.
    key : int
        64 bits; see `sarlite.nn.Random.key`.
    p : float in [0, 1)

    Notes
    -----
    The mask is not stored but drawn again in the backward pass.
    """
    if not 0 <= p < 1:
        raise ConfigError(f"dropout's p is {p}, but must be in [0, 1)")
    ids = ids if isinstance(ids, Tensor) else np.ascontiguousarray(ids)
    if ids.dtype != np.int64 or ids.shape != x.shape[:1]:
        raise ShapeError(f"ids of {ids.dtype} {ids.shape} are not one int64 for each row of x {x.shape}")
    return x if p == 0 else apply("dropout", x, ids, key=int(key), p=float(p))
