"""Decision thresholds of predictions, from the run's checkpoint or from the command line."""

from typing import NamedTuple, Protocol

import numpy as np

from sarlite.cli.options import RunOptions
from sarlite.errors import CheckpointError, ConfigError
from sarlite.tasks.thresholds import decide, threshold_rule
from sarlite.types import Array, JsonObject


class Decision(NamedTuple):
    """Rule that predicts the positive class, or a label, if its probability reaches a threshold.

    Attributes
    ----------
    positive : int
        Index of the positive class, 0 or 1.
    thresholds : ndarray
        Smallest probability that is predicted as positive, shape (1,) for two classes or (n_labels,), float64.
    """

    positive: int
    thresholds: Array

    def of(self, output: Array, several: bool) -> Array:
        """Return the prediction for each row of logits in `output`: the index of one of two classes or, if `several` (several labels per
        row), 0 or 1 for each label.

        Parameters
        ----------
        output : ndarray
            Logits, shape (n, 2) for two classes or (n, n_labels).
        several : bool
            True if a row has several labels.

        Returns
        -------
        ndarray
            Class indices, shape (n,), int64; or, if `several`, 0 or 1 for each label, shape (n, n_labels), uint8.
        """
        if several:
            return decide(output.astype(np.float64), self.thresholds).astype(np.uint8)
        scores = output[:, self.positive].astype(np.float64) - output[:, 1 - self.positive]
        return np.where(decide(scores, self.thresholds[0]), self.positive, 1 - self.positive)


class HasThreshold(Protocol):
    """Protocol of the options of a command that predicts from a checkpoint with a decision threshold."""

    @property
    def checkpoint(self) -> str:
        """Path of the checkpoint."""

    @property
    def threshold(self) -> float | None:
        """Threshold of the command line, in (0, 1); None for the run's own threshold."""


def decision_of(config: HasThreshold, options: RunOptions, meta: JsonObject, form: str) -> Decision | None:
    """Return the decision rule for targets of `form`, such as "classify": from the command's options `config`, else from the run
    with `options` and checkpoint metadata `meta`. None if neither sets a threshold, so that the default rule applies.

    Parameters
    ----------
    config : CheckpointOptions
        Options of the command, whose threshold overrides the run's threshold.
    options : RunOptions
        Options of the run that wrote the checkpoint.
    meta : dict
        Metadata of the checkpoint.
    form : str
        Name of the form of the targets, such as "classify".

    Raises
    ------
    ConfigError
        The command line has a threshold, but the task has neither two classes nor labels.
    CheckpointError
        The run was to choose a threshold, but ended before; or the number of thresholds is wrong.
    """
    of_classes = form == "multilabel" or (form == "classify" and meta["data"]["classes"] == 2)
    rule, values = threshold_rule(options.training.threshold), meta.get("thresholds")
    if config.threshold is not None:
        if not of_classes:
            raise ConfigError(f"--threshold {config.threshold}: applies to two classes and to labels, but the task of "
                              f"{config.checkpoint} is {form} with {meta['data']['classes']} outputs")
        values = [config.threshold] * (meta["data"]["classes"] if form == "multilabel" else 1)
    elif values is None and rule.chosen:
        raise CheckpointError(f"checkpoint {config.checkpoint}: its run had --threshold {options.training.threshold}, "
                              "but ended before the choice: continue the run with --resume, or give --threshold P")
    if values is not None and len(values) != (meta["data"]["classes"] if form == "multilabel" else 1):
        raise CheckpointError(f"checkpoint {config.checkpoint}: {len(values)} thresholds for "
                              f"{meta['data']['classes']} labels")
    return None if values is None else Decision(meta.get("positive", 1), np.array(values))
