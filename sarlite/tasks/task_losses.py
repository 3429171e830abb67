"""Losses of numbers and of links, as a rank's share of the mean over the rows of all ranks, and losses of a user."""

from collections.abc import Callable

import numpy as np

from sarlite.errors import ConfigError, ShapeError
from sarlite.tape import Tensor, ops
from sarlite.types import Array

Loss = Callable[[Tensor, Array, Array, float], Tensor]
"""(output, targets, rows, count) -> this rank's share, a scalar Tensor. `rows` are the rows of `output` that count, and
`count` is their number over all ranks."""


def mean_over_values(loss: Callable[..., Tensor]) -> Loss:
    """Return the loss whose mean runs over the rows and columns of `loss`."""

    def share(output, targets, rows, count):
        chosen = targets[rows] if targets.ndim == 2 else targets[rows, None]
        if output.shape[1:] != chosen.shape[1:]:
            raise ShapeError(f"the model's output is {output.shape}, but the labels are {targets.shape}")
        return loss(ops.take(output, rows), chosen, count=count * output.shape[1])

    return share


def _candidate_scores(output, rows):
    """Return the chosen rows of scores, (k, 1 + n_negatives): a link and its negatives."""
    if output.ndim != 2 or output.shape[1] < 2:
        raise ShapeError(f"links: the model's output is {output.shape}, but must be a link's score and its negatives' "
                         "a row")
    return ops.take(output, rows)


def link_cross_entropy(output: Tensor, targets: Array, rows: Array, count: float) -> Tensor:
    """Return the binary cross entropy, the mean over links and negatives."""
    scores = _candidate_scores(output, rows)
    truth = np.zeros(scores.shape, scores.dtype)
    truth[:, 0] = 1
    return ops.bce_with_logits(scores, truth, count=count * scores.shape[1])


def of_differences(loss: Callable[..., Tensor]) -> Loss:
    """Return the mean over negatives of `loss` of a negative's score less the score of its link, and of zeros."""

    def share(output, targets, rows, count):
        scores = _candidate_scores(output, rows)
        differences = scores[:, 1:] - scores[:, :1]
        zeros = np.zeros(differences.shape, differences.dtype)
        return loss(differences, zeros, count=count * differences.shape[1])

    return share


def contrastive(output: Tensor, targets: Array, rows: Array, count: float) -> Tensor:
    """Return the cross entropy of the link among its candidates."""
    return ops.cross_entropy(_candidate_scores(output, rows), targets[rows], count=count)


def margin(differences: Tensor, zeros: Array, count: float) -> Tensor:
    """Return the mean of max(0, 1 + difference)."""
    return ops.mae((differences + 1).relu(), zeros, count=count)


def mean_over_rows(loss: Callable[[Tensor, Array], Tensor]) -> Loss:
    """Return `loss`, a mean over the rows that it is given, as a rank's share of the mean over the rows of all ranks.

    Parameters
    ----------
    loss : callable
        (output, targets) -> scalar Tensor. It sees the chosen rows alone, and is not called where there are none.

    Returns
    -------
    callable
        (output, targets, rows, count) -> scalar Tensor, as `TrainingStep` takes: loss(output[rows], targets[rows]) *
        len(rows) / count.
    """

    def share(output, targets, rows, count):
        chosen = ops.take(output, rows)
        if not len(rows):
            return chosen.sum()  # 0, but the backward pass must reach the layers: other ranks wait for their rows
        value = loss(chosen, targets[rows])
        if not isinstance(value, Tensor) or value.size != 1:
            words = f"a Tensor of shape {value.shape}" if isinstance(value, Tensor) else f"a {type(value).__name__}"
            raise ConfigError(f"the loss returned {words}, but must return a Tensor of one value, the mean over the "
                              "rows that it gets")
        return value * (len(rows) / count)

    return share
