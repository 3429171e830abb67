"""Losses for regression and link prediction, and losses made of a user's function. Each returns this rank's summand: the sum over ranks is
the mean loss over the rows of all ranks.
"""

from collections.abc import Callable

import numpy as np

from sarlite.errors import ConfigError, ShapeError
from sarlite.tape import Tensor, ops
from sarlite.types import Array

Loss = Callable[[Tensor, Array, Array, float], Tensor]
"""Function (output, targets, rows, count) -> this rank's share of the loss, a scalar Tensor.

`rows` are the row numbers of `output` that the loss runs over, and `count` is their number over all ranks.
"""


def mean_over_values(loss: Callable[..., Tensor]) -> Loss:
    """Make a `Loss` from `loss`, a function of arrays of numbers such as `ops.mse`. The result returns this rank's summand; the sum over
    ranks is the mean over all numbers in the chosen rows of all ranks.

    Parameters
    ----------
    loss : callable
        Function (output, targets, count=number of values) -> scalar Tensor, such as `ops.mse`.

    Examples
    --------
    >>> loss = mean_over_values(ops.mse)
    >>> loss(Tensor(np.array([[1.0], [3.0]])), np.array([0.0, 1.0]), np.array([0, 1]), 2).item()
    2.5
    """

    def share(output, targets, rows, count):
        chosen = targets[rows] if targets.ndim == 2 else targets[rows, None]
        if output.shape[1:] != chosen.shape[1:]:
            raise ShapeError(f"the model's output is {output.shape}, but the labels are {targets.shape}")
        return loss(ops.take(output, rows), chosen, count=count * output.shape[1])

    return share


def _candidate_scores(output: Tensor, rows: Array) -> Tensor:
    """Return output[rows], (k, 1 + n_negatives), after a check of the shape. Each row has the score of a link, followed by the scores of
    its negatives.
    """
    if output.ndim != 2 or output.shape[1] < 2:
        raise ShapeError(f"links: the model's output is {output.shape}, but each row must have the scores of a link and "
                         "its negatives")
    return ops.take(output, rows)


def link_cross_entropy(output: Tensor, targets: Array, rows: Array, count: float) -> Tensor:
    """Return this rank's summand of the mean binary cross entropy of links (class 1) and negatives (class 0); the sum over ranks is the
    mean. A row of `output` has the scores of a link and of its negatives. `rows` are this rank's chosen links, and `count` is the number of
    chosen links, summed over ranks.

    Examples
    --------
    >>> round(link_cross_entropy(Tensor(np.zeros((1, 3))), np.zeros(1, np.int64), np.array([0]), 1).item(), 4)
    0.6931
    """
    scores = _candidate_scores(output, rows)
    truth = np.zeros(scores.shape, scores.dtype)
    truth[:, 0] = 1
    return ops.bce_with_logits(scores, truth, count=count * scores.shape[1])


def of_differences(loss: Callable[..., Tensor]) -> Loss:
    """Make a `Loss` of links from `loss`, a function of differences: the mean of `loss` over all differences (score of a negative - score
    of its link).

    Parameters
    ----------
    loss : callable
        Function (differences, zeros, count=number of negatives) -> scalar Tensor. A difference is the score of a negative
        minus the score of its link.

    Examples
    --------
    >>> loss = of_differences(margin)
    >>> loss(Tensor(np.array([[2.0, 1.5, 0.0]])), np.zeros(1, np.int64), np.array([0]), 1).item()
    0.25
    """

    def share(output, targets, rows, count):
        scores = _candidate_scores(output, rows)
        differences = scores[:, 1:] - scores[:, :1]
        zeros = np.zeros(differences.shape, differences.dtype)
        return loss(differences, zeros, count=count * differences.shape[1])

    return share


def contrastive(output: Tensor, targets: Array, rows: Array, count: float) -> Tensor:
    """Return this rank's summand of the mean cross entropy of links; the sum over ranks is the mean. A row of `output` has the scores of a
    link, which is the true class, and of its negatives, the other classes. `rows` are this rank's chosen rows, and `count` is the number of
    chosen rows, summed over ranks.

    Examples
    --------
    >>> round(contrastive(Tensor(np.zeros((1, 4))), np.zeros(1, np.int64), np.array([0]), 1).item(), 4)
    1.3863
    """
    return ops.cross_entropy(_candidate_scores(output, rows), targets[rows], count=count)


def margin(differences: Tensor, zeros: Array, count: float) -> Tensor:
    """Return the margin loss: the sum over `differences`, each the score of a negative minus the score of its link, of max(0, 1 +
    difference), divided by `count`. `zeros` is an array of 0 with the shape of `differences`: the target of max(0, 1 + difference) is 0.
    """
    return ops.mae((differences + 1).relu(), zeros, count=count)


def mean_over_rows(loss: Callable[[Tensor, Array], Tensor]) -> Loss:
    """Make a `Loss` from `loss`, a user's function (output, targets) -> mean over the rows it gets. The result returns this rank's summand;
    the sum over ranks is the mean over the rows of all ranks.

    Parameters
    ----------
    loss : callable
        Function (output, targets) -> scalar Tensor, the mean over its rows. It receives only the chosen rows, and is not
        called without rows.

    Returns
    -------
    Loss
        Function (output, targets, rows, count) -> loss(output[rows], targets[rows]) * len(rows) / count.

    Examples
    --------
    >>> share = mean_over_rows(lambda output, targets: ((output[:, 0] - Tensor(targets)) ** 2.0).mean())
    >>> share(Tensor(np.array([[1.0], [3.0]])), np.array([0.0, 1.0]), np.array([1]), 2).item()
    2.0
    """

    def share(output, targets, rows, count):
        chosen = ops.take(output, rows)
        if not len(rows):
            return chosen.sum()  # 0 with a gradient: other ranks wait for messages of this rank's backward pass
        value = loss(chosen, targets[rows])
        if not isinstance(value, Tensor) or value.size != 1:
            words = f"a Tensor of shape {value.shape}" if isinstance(value, Tensor) else f"a {type(value).__name__}"
            raise ConfigError(f"the loss returned {words}, but must return a Tensor of one value, the mean over its "
                              "rows")
        return value * (len(rows) / count)

    return share
