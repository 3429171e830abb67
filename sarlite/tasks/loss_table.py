"""Table of the losses by kind of targets (classes, several labels, numbers, links) and name."""

from collections.abc import Callable
from typing import NamedTuple

from sarlite.command import suggestion
from sarlite.errors import ConfigError
from sarlite.tape import ops
from sarlite.tasks import task_losses
from sarlite.tasks.class_losses import class_loss, label_loss
from sarlite.tasks.task_losses import Loss
from sarlite.types import Array


class LossKind(NamedTuple):
    """Entry of the table of losses: a function that makes the loss, the default of the loss's parameter, and True if the loss takes class
    weights.

    Attributes
    ----------
    make : callable
        Function (class weights or None, parameter) -> Loss.
    parameter : float, optional
        Default of the parameter, a number above 0 that may follow the name after a colon. None for a loss without a
        parameter.
    weighted : bool
        True if the loss takes class weights.
    """

    make: Callable[[Array | None, float], Loss]
    parameter: float | None = None
    weighted: bool = False


def _plain(loss):
    return LossKind(lambda weights, parameter: loss)


LOSSES: dict[str, dict[str, LossKind]] = {
    "classify": {"cross-entropy": LossKind(lambda weights, _: class_loss(weights), weighted=True),
                 "focal": LossKind(class_loss, 2.0, weighted=True)},
    "multilabel": {"bce": LossKind(lambda weights, _: label_loss(weights), weighted=True),
                   "focal": LossKind(label_loss, 2.0, weighted=True)},
    "regress": {"squared": _plain(task_losses.mean_over_values(ops.mse)),
                "absolute": _plain(task_losses.mean_over_values(ops.mae))},
    "link": {"bce": _plain(task_losses.link_cross_entropy), "cross-entropy": _plain(task_losses.contrastive),
             "bpr": _plain(task_losses.of_differences(ops.bce_with_logits)),
             "margin": _plain(task_losses.of_differences(task_losses.margin))},
}
"""Losses by kind of targets and name. The first loss of a form is its default."""
ALL_LOSSES = tuple(dict.fromkeys(name for losses in LOSSES.values() for name in losses))
"""Names of the losses of all forms."""


def find_loss(form: str, word: str | None) -> tuple[LossKind, float]:
    """Return (entry of the table of losses, number in the loss's name) of the loss named `word`, such as "focal:1.5" with the number 1.5,
    for targets of the kind `form`, such as "classify". If `word` is None, return the default loss of this kind.

    Parameters
    ----------
    form : str
        Form of the targets, a key of `LOSSES`.
    word : str, optional
        Name of a loss, such as "focal", or with a parameter "focal:1.5". By default the first loss of the form.

    Returns
    -------
    kind : LossKind
    parameter : float
        0 for a loss without a parameter.

    Raises
    ------
    ConfigError
        The form has no such loss, or the parameter is not a number above 0.

    Examples
    --------
    >>> find_loss("classify", "focal")[1], find_loss("classify", "focal:1.5")[1]
    (2.0, 1.5)
    """
    losses = LOSSES[form]
    name, colon, text = str(word or next(iter(losses))).partition(":")
    if name not in losses:
        raise ConfigError(f"loss of task {form}: {word!r} is not one of {', '.join(losses)}"
                          f"{suggestion(name, losses)}", "loss")
    kind = losses[name]
    if not colon:
        return kind, kind.parameter or 0.0
    if kind.parameter is None:
        raise ConfigError(f"loss {word!r}: {name} has no parameter", "loss")
    try:
        parameter = float(text)
    except ValueError:
        parameter = 0.0
    if not 0 < parameter < 1e3:
        raise ConfigError(f"loss {word!r}: the parameter of {name} must be a number above 0, such as {name}:{kind.parameter:g}",
                          "loss")
    return kind, parameter
