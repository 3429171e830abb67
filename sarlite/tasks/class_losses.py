"""Losses of classes and of several labels, with weights of classes and with focal loss, for classes that are rare."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from sarlite.comm import Communicator
from sarlite.errors import ConfigError, number
from sarlite.tape import ops
from sarlite.tasks.task_losses import Loss, mean_over_values
from sarlite.types import Array

ClassWeights = str | Mapping[int, float] | Sequence[float] | Array
"""Weights of classes: "balanced", a weight of each class from 0, or a dict of class to weight, where others have 1."""


def class_loss(weights: Array | None = None, gamma: float = 0.0) -> Loss:
    """Return the mean over rows of the cross entropy, times the weight of the row's class.

    Parameters
    ----------
    weights : (n_classes,) float64, optional
        Classes beyond have weight 1.
    gamma : float
        Above 0 the loss is the focal loss (`ops.focal`).
    """
    if weights is None and not gamma:
        return ops.cross_entropy

    def share(output, targets, rows, count):
        losses = ops.cross_entropy(output, targets, rows, reduction="none")
        losses = ops.focal(losses, gamma) if gamma else losses
        if weights is not None:
            losses = losses * _as_wide(weights, output.shape[1]).astype(output.dtype)[targets[rows]]
        return ops.mean_share(losses, count)

    return share


def label_loss(weights: Array | None = None, gamma: float = 0.0) -> Loss:
    """Return the mean over rows and labels of the binary cross entropy, times the label's weight where it is 1.

    Parameters
    ----------
    weights : (n_labels,) float64, optional
    gamma : float
        Above 0 the loss is the focal loss (`ops.focal`).
    """

    def loss(logits, truth, count):
        losses = ops.bce_with_logits(logits, truth, reduction="none")
        losses = ops.focal(losses, gamma) if gamma else losses
        if weights is not None:
            losses = losses * np.where(truth == 1, _as_wide(weights, truth.shape[1]), 1).astype(logits.dtype)
        return ops.mean_share(losses, count)

    return mean_over_values(loss)


def _as_wide(weights, n):
    """Return the weights of n classes; classes without one have 1."""
    if len(weights) > n:
        raise ConfigError(f"class_weights: {len(weights)} weights, but the model's output has {n} columns")
    return np.concatenate([weights, np.ones(n - len(weights))])


def checked_weights(given: ClassWeights | None) -> ClassWeights | None:
    """Return class weights as they are, or raise a ConfigError if one is not above 0, or is no weight at all."""
    if given is None or isinstance(given, str) and given == "balanced":
        return given
    if isinstance(given, str) or not isinstance(given, Mapping | Sequence | np.ndarray):
        raise ConfigError(f"class_weights: {given!r} is neither balanced, nor weights by class")
    items = given.items() if isinstance(given, Mapping) else enumerate(given)
    return {_class_number(name): number(f"class_weights: the weight of class {name}", value, positive=True)
            for name, value in items}


def _class_number(value: Any) -> int:
    """Return the number of a class, or raise a ConfigError."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 0:
        raise ConfigError(f"class_weights: {value!r} is no class: classes are integers from 0")
    return int(value)


def class_counts(comm: Communicator, targets: Array, rows: Array, n_classes: int | None) -> Array:
    """Return the rows of each class, or rows with each label, over all ranks. Collective.

    Parameters
    ----------
    comm : Communicator
    targets : (n,) integers, or (n, n_labels) of 0 and 1
    rows : (k,) int64
        This rank's rows that count.
    n_classes : int, optional
        Number of classes, the same on every rank; None for several labels.

    Returns
    -------
    (n_classes,) or (n_labels,) int64
    """
    if n_classes is not None:
        own = np.bincount(targets[rows], minlength=n_classes)
    else:
        own = ((targets if targets.ndim == 2 else targets[:, None])[rows] == 1).sum(0)
    return np.rint(comm.allreduce(own.astype(np.float64))).astype(np.int64)


def scaled_weights(given: ClassWeights, counts: Array, n: int, several: bool) -> Array:
    """Return the weights of classes as the loss takes them.

    Parameters
    ----------
    given : as `checked_weights` returns
    counts : (k,) int64
        Training rows of each class, or with each label, over all ranks.
    n : int
        Training rows over all ranks.
    several : bool
        True if a row has several labels.

    Returns
    -------
    (k,) float64
        For classes "balanced" is n / (classes that occur * rows of the class), as in scikit-learn. Weights of classes
        are divided by their mean over the training rows, so that the loss stays a weighted mean. For labels "balanced"
        is rows with 0 / rows with 1. A weight of a label is a factor of the loss of a 1, as PyTorch's `pos_weight`. A
        class or label without training rows has weight 1.
    """
    there = counts > 0
    if isinstance(given, Mapping):
        found = np.ones(max([len(counts), *(k + 1 for k in given)]))
        found[list(given)] = list(given.values())
    elif several:
        return np.where(there & (counts < n), (n - counts) / np.maximum(counts, 1), 1.0)
    else:
        found = np.where(there, n / (max(there.sum(), 1) * np.maximum(counts, 1)), 1.0)
    return found if several else found / (np.dot(found[: len(counts)], counts) / max(n, 1) or 1.0)
