"""Losses for classes and for several labels per row, with class weights and focal loss for rare classes."""

from collections.abc import Mapping, Sequence

import numpy as np

from sarlite.comm import Communicator
from sarlite.errors import ConfigError, check_number
from sarlite.tape import ops
from sarlite.tasks.task_losses import Loss, mean_over_values
from sarlite.types import Array

ClassWeights = str | Mapping[int, float] | Sequence[float] | Array
"""Class weights: "balanced", a sequence with the weight of each class from 0, or a dict from class to weight.

A class that the sequence or the dict leaves out has the weight 1.
"""


def class_loss(weights: Array | None = None, gamma: float = 0.0) -> Loss:
    """Return a loss function for class labels: the mean cross entropy, or the focal loss with exponent `gamma` if it is above 0. `weights`
    has a factor for each class; None means 1 for all.

    Parameters
    ----------
    weights : (k,) float64, optional
        Class weights. Classes from k on have the weight 1.
    gamma : float
        If above 0, the loss is the focal loss with this exponent (`ops.focal`).

    Examples
    --------
    >>> from sarlite import Tensor
    >>> output, labels, rows = Tensor(np.zeros((2, 2))), np.array([0, 1]), np.array([0, 1])
    >>> [round(class_loss(weights)(output, labels, rows, 2).item(), 4) for weights in (None, np.array([1.0, 3.0]))]
    [0.6931, 1.3863]
    """
    if weights is None and not gamma:
        return ops.cross_entropy

    def share(output, targets, rows, count):
        losses = ops.cross_entropy(output, targets, rows, reduction="none")
        losses = ops.focal(losses, gamma) if gamma else losses
        if weights is not None:
            losses = losses * _padded(weights, output.shape[1]).astype(output.dtype)[targets[rows]]
        return ops.mean_share(losses, count)

    return share


def label_loss(weights: Array | None = None, gamma: float = 0.0) -> Loss:
    """Return a loss function for several 0/1 labels per row: the mean binary cross entropy, or the focal loss with exponent `gamma` if it
    is above 0. `weights` has a factor for the loss of each label that is 1; None means 1.

    Parameters
    ----------
    weights : (k,) float64, optional
        Factor of the loss of each label that is 1. Labels from k on have the weight 1.
    gamma : float
        If above 0, the loss is the focal loss with this exponent (`ops.focal`).

    Examples
    --------
    >>> from sarlite import Tensor
    >>> output, labels, rows = Tensor(np.zeros((1, 2))), np.array([[1, 0]]), np.array([0])
    >>> [round(label_loss(weights)(output, labels, rows, 1).item(), 4) for weights in (None, np.array([3.0, 3.0]))]
    [0.6931, 1.3863]
    """

    def loss(logits, truth, count):
        losses = ops.bce_with_logits(logits, truth, reduction="none")
        losses = ops.focal(losses, gamma) if gamma else losses
        if weights is not None:
            losses = losses * np.where(truth == 1, _padded(weights, truth.shape[1]), 1).astype(logits.dtype)
        return ops.mean_share(losses, count)

    return mean_over_values(loss)


def _padded(weights: Array, n_classes: int) -> Array:
    """Append ones to class weights until there are `n_classes`; raise a ConfigError if there are more weights than classes."""
    if len(weights) > n_classes:
        raise ConfigError(f"class_weights: {len(weights)} weights, but the model's output has {n_classes} columns")
    return np.concatenate([weights, np.ones(n_classes - len(weights))])


def checked_weights(weights: ClassWeights | None) -> ClassWeights | None:
    """Check class weights, which are None, "balanced", or numbers in a sequence or a dict by class. Return None and "balanced" unchanged,
    and numbers as a dict {class: weight}.

    Raises
    ------
    ConfigError
        A weight is not a number above 0, or a class is not an integer of 0 or more.

    Examples
    --------
    >>> checked_weights([1.0, 5.0])
    {0: 1.0, 1: 5.0}
    """
    if weights is None or isinstance(weights, str) and weights == "balanced":
        return weights
    if isinstance(weights, str) or not isinstance(weights, Mapping | Sequence | np.ndarray):
        raise ConfigError(f"class_weights: {weights!r} is neither 'balanced' nor a sequence or dict of weights by class")
    items = weights.items() if isinstance(weights, Mapping) else enumerate(weights)
    return {_class_number(name): check_number(f"class_weights: the weight of class {name}", value, positive=True)
            for name, value in items}


def _class_number(value: object) -> int:
    """Return a class as an int, or raise a ConfigError if it is not an integer of 0 or more."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 0:
        raise ConfigError(f"class_weights: {value!r} is not a class: classes are integers from 0")
    return int(value)


def class_counts(comm: Communicator, targets: Array, rows: Array, n_classes: int | None) -> Array:
    """Count, over all ranks, the rows of each class in `targets`, among the rows with the numbers `rows`; return (n_classes,). If
    `n_classes` is None, a row has several labels: count the rows with each label. Collective.

    Parameters
    ----------
    comm : Communicator
    targets : (n,) integers, or (n, n_labels) of 0 and 1
    rows : (k,) int64
        This rank's rows to count.
    n_classes : int, optional
        Number of classes, the same on every rank; None if a row has several labels.

    Returns
    -------
    (n_classes,) or (n_labels,) int64

    Examples
    --------
    >>> from sarlite.comm import Solo
    >>> class_counts(Solo(), np.array([0, 1, 1, 2]), np.arange(3), 3).tolist()
    [1, 2, 0]
    """
    if n_classes is not None:
        local_counts = np.bincount(targets[rows], minlength=n_classes)
    else:
        local_counts = ((targets if targets.ndim == 2 else targets[:, None])[rows] == 1).sum(0)
    return np.rint(comm.allreduce(local_counts.astype(np.float64))).astype(np.int64)


def scaled_weights(weights: ClassWeights, counts: Array, n_rows: int, multilabel: bool) -> Array:
    """Return the factor of the loss of each class or, if `multilabel`, of each label, (k,). `weights` are the user's weights {class:
    weight}, or "balanced" for factors that grow as the class gets rarer, by the formulas under Returns. `counts` has the number of training
    rows of each class or label, and `n_rows` is the number of all training rows.

    Parameters
    ----------
    weights : "balanced" or dict of int to float
        Result of `checked_weights`.
    counts : (k,) int64
        Number of training rows of each class, or with each label, over all ranks.
    n_rows : int
        Number of training rows over all ranks.
    multilabel : bool
        True if a row has several labels.

    Returns
    -------
    (k,) float64
        For classes, "balanced" gives n / (number of classes that occur * number of rows of the class), as in
        scikit-learn. Class weights are divided by their mean over the training rows, so that the loss is a weighted
        mean. For several labels, "balanced" gives (rows with 0) / (rows with 1). The weight of a label multiplies the
        loss of rows with 1, as `pos_weight` in PyTorch. A class or label without training rows has the weight 1.

    Examples
    --------
    >>> scaled_weights("balanced", np.array([9, 1]), 10, multilabel=False).round(2).tolist()
    [0.56, 5.0]
    """
    occurs = counts > 0
    if isinstance(weights, Mapping):
        scaled = np.ones(max([len(counts), *(k + 1 for k in weights)]))
        scaled[list(weights)] = list(weights.values())
    elif multilabel:
        return np.where(occurs & (counts < n_rows), (n_rows - counts) / np.maximum(counts, 1), 1.0)
    else:
        scaled = np.where(occurs, n_rows / (max(occurs.sum(), 1) * np.maximum(counts, 1)), 1.0)
    return scaled if multilabel else scaled / (np.dot(scaled[: len(counts)], counts) / max(n_rows, 1) or 1.0)
