"""The best epoch so far, and the reaction to epochs without improvement: end of training, or a lower learning rate.

All of it is decided by scores that are the same on every rank, so every rank decides alike.
"""

import math
from collections.abc import Mapping
from typing import Any

from sarlite import nn
from sarlite.errors import whole
from sarlite.optim import Plateau
from sarlite.tasks.node_task import NodeTask
from sarlite.tasks.task import Task
from sarlite.types import Array

Scores = dict[str, float | None]


class Best:
    """The best validation metric so far; among equal ones the lowest validation loss.

    Parameters
    ----------
    task : Task, optional
        The task with the metric, by default `NodeTask()`.

    Attributes
    ----------
    epoch : int
        0 before the first.
    scores : dict
        That epoch's.
    state : dict of arrays, or None
        The model's then.
    decided : bool
        Whether the epoch is one of the evaluations that decide. An evaluation that was forced, since training ended
        there, gives the best epoch only where no other has been, and the next evaluation takes its place. So a run that
        goes on has the best epoch of a run that never ended.
    """

    state: dict[str, Array] | None
    scores: Scores

    def __init__(self, task: Task | None = None) -> None:
        self.task = task or NodeTask()
        self.epoch, self.state, self.decided = 0, None, False
        nothing = {f"{name}_{self.task.key}": None for name in ("train", "val", "test")}
        self.scores = self._nothing = {**nothing, "val_loss": math.inf}

    def update(self, epoch: int, scores: Scores, model: nn.Module, forced: bool = False) -> None:
        """Record `epoch` as the best epoch if its scores are better.

        Without a validation split the last epoch is the best. Without a metric the epoch with the lowest validation
        loss is the best.

        Parameters
        ----------
        forced : bool
            True if the epoch is evaluated only because it is the last one.
        """
        if scores["val_loss"] is None or (not (forced and self.decided) and self._beaten_by(scores)):
            self.epoch, self.scores, self.state = epoch, dict(scores), None  # which goes before the next one is copied
            self.state, self.decided = model.state_dict(), not forced

    def _beaten_by(self, scores):
        return self._key(scores) > self._key(self.scores if self.decided else self._nothing)

    def _key(self, scores):
        found = scores[f"val_{self.task.key}"]
        if found is None or math.isnan(found):
            found = math.inf if self.task.lower else -math.inf
        return -found if self.task.lower else found, -scores["val_loss"]


class Stopping:
    """Rule for epochs without an improvement: end training, or lower the learning rate.

    Parameters
    ----------
    patience : int, optional
        Training ends after so many epochs; it never does without.
    plateau : Plateau, optional
        The schedule that then lowers the learning rate.

    Raises
    ------
    ConfigError
        A patience that is no whole number of 1 or more.
    """

    def __init__(self, patience: int | None = None, plateau: Plateau | None = None) -> None:
        self.patience, self.plateau = None if patience is None else whole("patience", patience, 1), plateau

    def ends(self, epoch: int, best: Best) -> bool:
        """Return True if training ends after `epoch`, which has been evaluated."""
        return self.patience is not None and best.decided and epoch - best.epoch >= self.patience

    def evaluated(self, epoch: int, best: Best) -> None:
        """Report that `epoch` was evaluated, unless only because it is the last one."""
        if self.plateau is not None:
            self.plateau.evaluated(epoch, best.epoch if best.decided else 0)

    def load_state(self, metadata: Mapping[str, Any]) -> None:
        """Restore the `state` in a checkpoint's metadata, if any. Raise CheckpointError if it is not valid."""
        if self.plateau is not None and "plateau" in metadata:
            self.plateau.load_state(metadata["plateau"])

    def state(self) -> dict[str, Any]:
        """Return the state for a checkpoint, JSON-serializable."""
        return {} if self.plateau is None else {"plateau": self.plateau.state()}
