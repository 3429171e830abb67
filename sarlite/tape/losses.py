"""Losses: cross entropy, negative log-likelihood, binary cross entropy, focal loss, squared and absolute error.

Each loss takes a selection of rows, weights, and a reduction. If `count` is the number of rows over all ranks, the
result is this rank's share of the mean over all ranks: the sum of the ranks' results is the mean.
"""

from typing import Any

import numpy as np

from sarlite import numerics
from sarlite.errors import ConfigError, DataError, ShapeError, check_number
from sarlite.numerics import reductions
from sarlite.tape.apply import apply
from sarlite.tape.axes import log_softmax_of, softmax_of
from sarlite.tape.elementwise import sigmoid_of, unary
from sarlite.tape.pairwise import div, mul, pair
from sarlite.tape.primitives import primitive
from sarlite.tape.row_index import selected_rows
from sarlite.tape.shaping import take
from sarlite.tape.tensor import Operand, Tensor, as_array
from sarlite.types import Array

PART_VALUES = 1 << 15
"""Number of logits that are processed at a time, so that softmax's temporary arrays are small and stay in the cache."""

# ---- losses of classes


def _label_index(labels: Array, rows: Array | None) -> tuple[Array, Array]:
    """Return the pair (row numbers, labels) that indexes logits, (n, n_classes), at the labels of the selected `rows` (None: of all
    rows). `labels` has the class of each of the n rows.
    """
    return np.arange(len(labels)) if rows is None else rows, labels if rows is None else labels[rows]


def _reduced(losses: Array, weight: Array | None, divisor: float | None) -> Array:
    """Return losses * weight if `divisor` is None, else their sum divided by `divisor`. A `weight` of None stands for 1."""
    losses = losses if weight is None else losses * weight
    if divisor is None:
        return losses
    return np.asarray(reductions.share(losses.astype(np.float64)) / divisor, losses.dtype)


def _row_factor(g: Array, weight: Array | None, divisor: float | None) -> Array | float:
    """Return the gradient of a reduced loss with respect to the k losses that were reduced: (k, 1), or one number that is equal for
    all losses. The reduced loss, with the gradient `g`, is sum(losses * weight) / divisor, or losses * weight if `divisor` is None.
    A `weight` of None stands for 1.
    """
    factor = float(g) / divisor if divisor is not None else g[:, None]
    return factor if weight is None else (factor * weight[:, None]).astype(weight.dtype, copy=False)


def _cross_entropy(wants_grad, logits, labels, rows, weight, divisor, part_values=PART_VALUES):
    chosen = labels if rows is None else labels[rows]
    losses = np.empty(len(chosen), logits.dtype)
    for part in _parts(len(chosen), logits, part_values):
        log_p = log_softmax_of(_picked(logits, rows, part), -1)
        losses[part] = -log_p[np.arange(len(log_p)), chosen[part]]
    return _reduced(losses, weight, divisor), (logits, labels, rows, weight) if wants_grad[0] else ()


def _cross_entropy_vjp(g, wants_grad, residuals, divisor, part_values=PART_VALUES):
    logits, labels, rows, weight = residuals
    chosen, factor = labels if rows is None else labels[rows], _row_factor(g, weight, divisor)
    distinct = rows is None or (np.diff(rows) > 0).all() or len(np.unique(rows)) == len(rows)
    d = np.empty(logits.shape, logits.dtype) if rows is None else np.zeros(logits.shape, logits.dtype)
    for part in _parts(len(chosen), logits, part_values) if distinct else [slice(None)]:
        d_rows = softmax_of(_picked(logits, rows, part), -1)
        d_rows[np.arange(len(d_rows)), chosen[part]] -= 1
        d_rows *= factor if np.ndim(factor) == 0 else factor[part]
        if rows is None:
            d[part] = d_rows
        elif distinct:
            d[rows[part]] = np.add(d_rows, 0, out=d_rows)  # -0.0 becomes 0.0, the same bits as by `add_equal_rows`
        else:  # must not be collective, because rows may be distinct on other ranks
            reductions.add_equal_rows(d, rows, d_rows)
    return d, None, None, None


def _parts(n_rows: int, logits: Array, part_values: int) -> list[slice]:
    """Return slices that divide `n_rows` rows, each as wide as `logits`, into parts of about `part_values` values and at least one row."""
    part_rows = max(part_values // max(logits.shape[1], 1), 1)
    return [slice(start, start + part_rows) for start in range(0, n_rows, part_rows)]


def _picked(logits, rows, part):
    return logits[part if rows is None else rows[part]]


def _nll(wants_grad, log_p, labels, rows, weight, divisor):
    residuals = (labels, rows, weight, log_p.shape, log_p.dtype) if wants_grad[0] else ()
    return _reduced(-log_p[_label_index(labels, rows)], weight, divisor), residuals


def _nll_vjp(g, wants_grad, residuals, divisor):
    labels, rows, weight, shape, dtype = residuals
    where = _label_index(labels, rows)
    d = np.zeros(shape, dtype)
    reductions.add_at(d, where, -np.reshape(_row_factor(g, weight, divisor), -1))  # a row may be picked twice
    return d, None, None, None


primitive("cross_entropy", _cross_entropy, _cross_entropy_vjp)
primitive("nll", _nll, _nll_vjp)


def cross_entropy(logits: Tensor | Array, labels: Operand, rows: Operand | None = None, count: float | None = None, *,
                  weight: Operand | None = None, row_weight: Operand | None = None, reduction: str = "mean") -> Tensor:
    """Return the sum of -w log softmax(logits)[label] over the selected `rows`, divided by `count` (None: the sum of this rank's
    w). w is the class's `weight` times the row's `row_weight`, 1 if None. `reduction` "sum" leaves out the division, "none" the sum
    too.

    Parameters
    ----------
    logits : Tensor, (n, n_classes)
        float32 or float64.
    labels : (n,) array of integers
        Class of each row, in [0, n_classes). Labels of rows that are not selected are ignored.
    rows : (n,) array of bools, slice, or (k,) array of row numbers, optional
        Selected rows; by default all rows.
    count : float, optional
        Divisor of "mean": the number of selected rows over all ranks, or with weights the sum of their weights. By
        default the number or the sum of this rank.
    weight : (n_classes,) array, optional
        Weight of each class, finite and not negative.
    row_weight : (n,) array, optional
        Weight of each row; weights of rows that are not selected are ignored. w_r is the product of row r's weight and
        the weight of the row's class.
    reduction : {"mean", "sum", "none"}
        "sum" leaves out the factor 1/count; "none" returns the loss of each selected row.

    Returns
    -------
    Tensor
        0-d, or (k,) with the reduction "none". Without selected rows the result is 0, and so is the gradient.

    Raises
    ------
    ConfigError
        The reduction is unknown, `count` is negative, not finite or given with a reduction other than "mean", or a
        weight is a Tensor that wants a gradient.
    ShapeError
        Shapes do not fit together.
    DataError
        A selected label is not a class, or a weight is negative or not finite.

    Notes
    -----
    Not collective: the result is this rank's share of the loss. The backward pass computes the softmax again, so only
    `logits` are kept.

    Examples
    --------
    >>> import numpy as np
    >>> from sarlite.tape import Tensor, ops
    >>> logits = Tensor(np.log(np.array([[0.5, 0.5], [0.1, 0.9]])))
    >>> ops.cross_entropy(logits, [0, 1], reduction="none").data.round(4).tolist()
    [0.6931, 0.1054]
    >>> round(ops.cross_entropy(logits, [0, 1], rows=[1]).item(), 4)
    0.1054
    """
    return _of_classes("cross_entropy", logits, labels, rows, count, weight, row_weight, reduction)


def nll(log_p: Tensor | Array, labels: Operand, rows: Operand | None = None, count: float | None = None, *,
        weight: Operand | None = None, row_weight: Operand | None = None, reduction: str = "mean") -> Tensor:
    """Return the sum of -w log_p[row, label] over the selected `rows`, divided by `count` (None: the sum of this rank's w). w is
    the class's `weight` times the row's `row_weight`, 1 if None. `reduction` "sum" leaves out the division, "none" the sum too.

    `cross_entropy` documents the parameters, the result and the errors. No array of log_p's size is kept for the
    backward pass.

    Examples
    --------
    >>> import numpy as np
    >>> from sarlite.tape import Tensor, ops
    >>> round(ops.nll(Tensor(np.log(np.array([[0.5, 0.5], [0.1, 0.9]]))), [0, 1]).item(), 4)
    0.3993
    """
    return _of_classes("nll", log_p, labels, rows, count, weight, row_weight, reduction)


def _of_classes(name, x, labels, rows, count, weight, row_weight, reduction):
    _check_reduction(reduction, count)
    labels, n = as_array(labels), len(x)
    if x.ndim != 2 or labels.shape != (n,):
        raise ShapeError(f"logits {x.shape} and labels {labels.shape} are not (n, n_classes) and (n,)")
    rows = None if rows is None else selected_rows("rows", rows, n)
    chosen = labels if rows is None else labels[rows]
    _check_labels(labels, chosen, rows, x.shape[1])
    weights = _row_weights(x, chosen, rows, weight, row_weight)
    divisor = None if reduction == "none" else 1
    if reduction == "mean":
        local_count = len(chosen) if weights is None else float(reductions.total(weights.astype(np.float64)))
        divisor = (local_count if count is None else float(count)) or 1
    return apply(name, x, labels, rows, weights, divisor=divisor)


def _row_weights(logits: Tensor, row_labels: Array, rows: Array | None, class_weight: Operand | None, row_weight: Operand | None) -> Any:
    """Return the weight of each of the k selected `rows`, (k,): class_weight[its label] * row_weight[its row number]. One argument
    of None stands for 1; if both are None, return None. `row_labels` holds the k labels.
    """
    product, x = None, logits
    for name, values, n, index in (("weight", class_weight, x.shape[1], row_labels), ("row_weight", row_weight, len(x), rows)):
        if values is not None:
            factor = _fixed(name, values)
            if factor.shape != (n,):
                raise ShapeError(f"{name} has shape {factor.shape}, not ({n},)")
            factor = factor.astype(x.dtype)
            _check_weights(name, factor, slice(None) if name == "weight" or rows is None else rows)
            factor = factor if index is None else factor[index]
            product = factor if product is None else product * factor
    return product


def _fixed(name: str, values: Operand) -> Array:
    """Return a loss's weights, `values`, as an array; raise a ConfigError that starts with `name` for a Tensor that wants a gradient."""
    if isinstance(values, Tensor) and values.requires_grad:
        raise ConfigError(f"{name} requires a gradient, but losses have no gradient of weights: multiply the losses of "
                          "reduction='none' by the weights, or detach() the weights")
    return as_array(values)


def _check_weights(name: str, weights: Array, rows: Any) -> None:
    """Raise a DataError if a weight in weights[rows] is negative or not finite; the error gives `name` and the position of the
    first such weight.
    """
    chosen = weights[rows]
    wrong = np.flatnonzero(~((chosen >= 0) & (chosen < np.inf)))
    if len(wrong):
        row, *columns = map(int, np.unravel_index(wrong[0], chosen.shape))
        row = row if isinstance(rows, slice) else rows[row]
        raise DataError(f"{name}[{', '.join(map(str, [row, *columns]))}] is {chosen.flat[wrong[0]]}, "
                        "but weights of a loss must be finite and not negative")


def _check_reduction(reduction, count):
    if reduction not in ("mean", "sum", "none"):
        raise ConfigError(f"reduction {reduction!r} is not one of mean, sum, none")
    if count is not None and reduction != "mean":
        raise ConfigError(f"count is the divisor of a mean, but the reduction is {reduction!r}")
    if count is not None:
        check_number("count", float(count))


def _check_labels(labels, chosen, rows, n_classes):
    if labels.dtype.kind not in "iu":
        raise DataError(f"labels of {labels.dtype}: not integers in [0, {n_classes})")
    wrong = np.flatnonzero((chosen < 0) | (chosen >= n_classes))
    if len(wrong):
        first = wrong[0] if rows is None else rows[wrong[0]]
        raise DataError(f"labels[{first}] = {labels[first]}: not an integer in [0, {n_classes}), "
                        "as wide as the logits are")


# ---- losses of values and targets


def _bce(x: Array, t: Array) -> Array:
    """Return the binary cross entropy log(1 + exp(x)) - x t of logits x and targets t, elementwise, without computing inf * 0."""
    size, miss = np.abs(x), np.where(x > 0, 1 - t, t)
    return np.multiply(size, miss, out=np.zeros_like(size), where=miss != 0) + numerics.log1p(numerics.exp(-size))


_bce_with_logits = pair(
    "bce_with_logits",
    _bce,
    lambda g, x, t: g * (sigmoid_of(x) - t),
    lambda g, x, t: -g * x,
    any,
    lambda wants_grad: wants_grad[0],
)
_squared_error = pair(
    "squared_error",
    lambda x, t: np.square(np.subtract(x, t)),
    lambda g, x, t: 2 * g * (x - t),
    lambda g, x, t: 2 * g * (t - x),
    any,
    any,
)
_absolute_error = pair(
    "absolute_error",
    lambda x, t: np.abs(np.subtract(x, t)),
    lambda g, x, t: g * np.sign(x - t),
    lambda g, x, t: g * np.sign(t - x),
    any,
    any,
)


primitive(  # the sum of a rank's values
    "share",
    lambda wants_grad, x: (np.asarray(reductions.share(x), x.dtype), (x.shape,)),
    lambda g, wants_grad, residuals: (np.broadcast_to(g, residuals[0]),),
)


def bce_with_logits(logits: Tensor | Array, targets: Operand, rows: Operand | None = None, count: float | None = None,
                    *, weight: Operand | None = None, reduction: str = "mean") -> Tensor:
    """Return the sum of -weight (t log p + (1 - t) log(1 - p)) over the values in the selected `rows` (None: all), divided by
    `count` (None: the number of these values on this rank). t are the targets and p = sigmoid(logits). `reduction` "sum" leaves out
    the division, "none" the sum too.

    Parameters
    ----------
    logits : Tensor, (n,) or (n, n_classes)
        float32 or float64.
    targets : array or Tensor, of logits' shape
        Values in [0, 1]; bools and integers are allowed.
    rows, reduction
        See `cross_entropy`.
    count : float, optional
        Divisor of "mean": the number of selected values over all ranks, whatever their weights; by default the number
        on this rank.
    weight : array, optional
        Weights w, broadcast to logits' shape: (n_classes,) for weights of classes; (n, 1), or (n,) for 1-D logits, for
        weights of rows.

    Returns
    -------
    Tensor
        0-d, or with the reduction "none" the losses of the selected rows. Without selected rows the result is 0, and so
        is the gradient.

    Raises
    ------
    ConfigError
        The reduction is unknown, `count` is negative, not finite or given with a reduction other than "mean", or a
        weight is a Tensor that wants a gradient.
    ShapeError
        Shapes do not fit together.
    DataError
        A target is not in [0, 1], or a weight is negative or not finite.

    Notes
    -----
    Not collective: the result is this rank's share of the loss. Large logits do not overflow.

    Examples
    --------
    >>> import numpy as np
    >>> from sarlite.tape import Tensor, ops
    >>> ops.bce_with_logits(Tensor(np.zeros(2)), [0, 1], reduction="none").data.round(4).tolist()
    [0.6931, 0.6931]
    """
    values = as_array(targets) if not isinstance(targets, Tensor) else targets._data
    outside = values[~((values >= 0) & (values <= 1))]
    if outside.size:
        raise DataError(f"targets: {outside.flat[0]} is not in [0, 1]")
    return _of_values(_bce_with_logits, logits, targets, rows, count, weight, reduction)


def mse(x: Tensor | Array, targets: Operand, rows: Operand | None = None, count: float | None = None, *,
        weight: Operand | None = None, reduction: str = "mean") -> Tensor:
    """Return the sum of weight (x - targets)^2 over the values in the selected `rows`, divided by `count` (None: the number of
    these values on this rank). `weight` is 1 by default. `reduction` "sum" leaves out the division, "none" the sum too.

    `targets` is an array or a Tensor of x's shape, which may want a gradient. See `bce_with_logits` for the other
    parameters, the result and the errors.

    Examples
    --------
    >>> import numpy as np
    >>> from sarlite.tape import Tensor, ops
    >>> ops.mse(Tensor(np.array([1.0, 4.0])), [0.0, 1.0]).item()
    5.0
    """
    return _of_values(_squared_error, x, targets, rows, count, weight, reduction)


def mae(x: Tensor | Array, targets: Operand, rows: Operand | None = None, count: float | None = None, *,
        weight: Operand | None = None, reduction: str = "mean") -> Tensor:
    """Return the sum of weight |x - targets| over the values in the selected `rows`, divided by `count` (None: the number of these
    values on this rank). `weight` is 1 by default. `reduction` "sum" leaves out the division, "none" the sum too.

    The gradient is 0 where x and the target are equal. See `mse` for the parameters, the result and the errors.

    Examples
    --------
    >>> import numpy as np
    >>> from sarlite.tape import Tensor, ops
    >>> ops.mae(Tensor(np.array([1.0, 4.0])), [0.0, 1.0]).item()
    2.0
    """
    return _of_values(_absolute_error, x, targets, rows, count, weight, reduction)


def _of_values(operation, x, targets, rows, count, weight, reduction):
    _check_reduction(reduction, count)
    targets = targets if isinstance(targets, Tensor) else as_array(targets).astype(x.dtype, copy=False)
    if targets.shape != x.shape:
        raise ShapeError(f"targets {targets.shape} do not have the shape {x.shape}")
    rows = None if rows is None else selected_rows("rows", rows, len(x))
    if weight is not None:
        weight = _broadcast("weight", _fixed("weight", weight).astype(x.dtype, copy=False), x.shape)
        _check_weights("weight", np.atleast_1d(weight), slice(None) if rows is None else rows)
    if rows is not None:
        x, targets, weight = take(x, rows), take(targets, rows), None if weight is None else weight[rows]
    losses = operation(x, targets)
    losses = losses if weight is None else mul(losses, weight)
    if reduction == "none":
        return losses
    return mean_share(losses, count) if reduction == "mean" else apply("share", losses)


def _broadcast(name: str, array: Array, shape: tuple[int, ...]) -> Array:
    """Return a view of `array` broadcast to `shape`; raise a ShapeError that names `name` if the shapes do not fit."""
    try:
        return np.broadcast_to(array, shape)
    except ValueError:
        raise ShapeError(f"{name} of shape {array.shape} does not broadcast to the shape {shape}") from None


def mean_share(losses: Tensor, count: float | None = None) -> Tensor:
    """Return sum(losses) / count, this rank's summand of a mean over ranks. If `count` is the number of losses of all ranks, the
    sum over ranks is the mean of all losses; by default `count` is this rank's number.

    Parameters
    ----------
    losses : Tensor
        Any shape.
    count : float, optional
        Number of losses over all ranks; by default the number on this rank.

    Returns
    -------
    Tensor, 0-d
        0 without losses. In exact numerics the sum of all ranks' shares has the same bits for any division of rows.

    Examples
    --------
    >>> import numpy as np
    >>> from sarlite.tape import Tensor, ops
    >>> ops.mean_share(Tensor(np.array([1.0, 3.0])), count=8).item()
    0.5
    """
    return div(apply("share", losses), (losses.size if count is None else float(count)) or 1)


# ---- focal loss, for rare classes


def _focal_factor(x: Array, gamma: float) -> tuple[Array, Array, Array]:
    """Return (q^gamma, p, x / q) elementwise for cross entropies x >= 0, where p = exp(-x) is the probability of the label, and q
    is 1 - p. At x = 0, x / q is 1.
    """
    p, q = numerics.exp(-x), -numerics.expm1(-x)
    positive = q > 0
    safe = np.where(positive, q, q.dtype.type(1))
    factor = np.where(positive, numerics.exp(x.dtype.type(gamma) * numerics.log(safe)), x.dtype.type(0))
    return factor, p, np.where(positive, x / safe, x.dtype.type(1))


def _focal_vjp(g, x, gamma):
    factor, p, ratio = _focal_factor(x, gamma)
    return g * (factor * (1 + x.dtype.type(gamma) * p * ratio))


unary("focal", lambda x, gamma: _focal_factor(x, gamma)[0] * x, _focal_vjp, keep="x")


def focal(cross_entropies: Tensor, gamma: float = 2.0) -> Tensor:
    """Return the focal losses (1 - p)^gamma * -log p, in the shape of `cross_entropies`; p = exp(-x) is the probability behind a
    cross entropy x.

    Rows that the model classifies correctly count less than in the cross entropy: with p = 0.9 and gamma = 2, by a
    factor of 100.

    Parameters
    ----------
    cross_entropies : Tensor
        Values x >= 0, as `cross_entropy` and `bce_with_logits` return with the reduction "none".
    gamma : float
        Exponent, above 0.

    Returns
    -------
    Tensor
        The losses, in the shape of `cross_entropies`.

    References
    ----------
    Lin et al., "Focal Loss for Dense Object Detection" (ICCV 2017), Eq. 4.

    Examples
    --------
    >>> import numpy as np
    >>> from sarlite.tape import Tensor, ops
    >>> float(np.round(ops.focal(Tensor(-np.log(np.array([0.9]))), 2.0).data[0], 6))
    0.001054
    """
    if not gamma > 0:
        raise ConfigError(f"focal's gamma is {gamma}, but must be above 0")
    return apply("focal", cross_entropies, gamma=float(gamma))
