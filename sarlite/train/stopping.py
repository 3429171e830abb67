"""The best epoch so far, and the rule for epochs without improvement: end training, or lower the learning rate.

The scores are the same on every rank, so every rank makes the same decision.
"""

import math

from sarlite import nn
from sarlite.errors import check_int
from sarlite.optim import Plateau
from sarlite.tasks.node_task import NodeTask
from sarlite.tasks.task import Task
from sarlite.types import Array

Scores = dict[str, float | None]
"""Scores of an epoch by name: the metric of each split and "val_loss". None for a split without rows."""


class Best:
    """The best epoch so far: the one with the best validation metric and, among equals, the lowest validation loss.

    A forced evaluation takes place only because training ends. It gives the best epoch only if no regular evaluation
    has taken place, and the next regular evaluation replaces it. So a run that is resumed has the same best epoch as a
    run that never ended.

    Parameters
    ----------
    task : Task, optional
        The task with the metric, by default `NodeTask()`.

    Attributes
    ----------
    epoch : int
        Number of the epoch, counted from 1; 0 before the first evaluation.
    scores : dict
        Scores of this epoch.
    state : dict of str to array, or None
        `state_dict` of the model after this epoch.
    decided : bool
        True if this epoch comes from a regular evaluation, False if from a forced one or if there is none.

    Examples
    --------
    >>> from sarlite import nn
    >>> model, best = nn.Linear(2, 2, rng=nn.Random(0)), Best()
    >>> for epoch, accuracy in enumerate((0.5, 0.75, 0.25), 1):
    ...     best.update(epoch, {"train_accuracy": 1.0, "val_accuracy": accuracy, "val_loss": 0.5}, model)
    >>> best.epoch, best.scores["val_accuracy"], sorted(best.state)
    (2, 0.75, ['bias', 'weight'])
    """

    state: dict[str, Array] | None
    scores: Scores

    def __init__(self, task: Task | None = None) -> None:
        self.task = task or NodeTask()
        self.epoch, self.state, self.decided = 0, None, False
        nothing = {f"{name}_{self.task.key}": None for name in ("train", "val", "test")}
        self.scores = self._nothing = {**nothing, "val_loss": math.inf}

    def update(self, epoch: int, scores: Scores, model: nn.Module, forced: bool = False) -> None:
        """Replace the best epoch by `epoch`, with a copy of the model's state, if `scores` are better. A `forced` evaluation, which takes
        place only because training ends, counts only if no regular one took place.

        Without validation rows the last epoch is the best. Without a metric the epoch with the lowest validation loss
        is the best.

        Parameters
        ----------
        epoch : int
            Number of the epoch, counted from 1.
        scores : dict of str to (float or None)
            Result of `Trainer.evaluate`.
        model : Module
            The model, whose state is copied if the epoch is the best one.
        forced : bool
            True if the epoch is evaluated only because it is the last one.
        """
        if scores["val_loss"] is None or (not (forced and self.decided) and self._beaten_by(scores)):
            self.epoch, self.scores, self.state = epoch, dict(scores), None  # frees the old state before the new one is copied
            self.state, self.decided = model.state_dict(), not forced

    def _beaten_by(self, scores):
        return self._key(scores) > self._key(self.scores if self.decided else self._nothing)

    def _key(self, scores):
        score = scores[f"val_{self.task.key}"]
        if score is None or math.isnan(score):
            score = math.inf if self.task.lower else -math.inf
        return -score if self.task.lower else score, -scores["val_loss"]


class Stopping:
    """Rule for epochs that bring no better scores: training ends, or the learning rate is lowered.

    Parameters
    ----------
    patience : int, optional
        Number of epochs without an improvement after which training ends. By default training never ends early.
    plateau : Plateau, optional
        Schedule that lowers the learning rate after epochs without an improvement.

    Raises
    ------
    ConfigError
        `patience` is not a whole number of 1 or more.

    Examples
    --------
    >>> from sarlite import nn
    >>> model, best, stopping = nn.Linear(2, 2, rng=nn.Random(0)), Best(), Stopping(patience=2)
    >>> best.update(1, {"val_accuracy": 0.5, "val_loss": 0.5}, model)
    >>> [stopping.ends(epoch, best) for epoch in (1, 2, 3)]
    [False, False, True]
    """

    def __init__(self, patience: int | None = None, plateau: Plateau | None = None) -> None:
        self.patience, self.plateau = None if patience is None else check_int("patience", patience, 1), plateau

    def ends(self, epoch: int, best: Best) -> bool:
        """Return True if training must end after `epoch` because `best`, the best epoch so far, is `patience` or more epochs older."""
        return self.patience is not None and best.decided and epoch - best.epoch >= self.patience

    def evaluated(self, epoch: int, best: Best) -> None:
        """Tell the schedule that lowers the learning rate, if there is one, that `epoch` was evaluated and that `best` is the best epoch so
        far.

        A forced evaluation does not call this method.
        """
        if self.plateau is not None:
            self.plateau.evaluated(epoch, best.epoch if best.decided else 0)
