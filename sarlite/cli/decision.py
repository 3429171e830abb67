"""The decision threshold of predictions: as the run stored it, or as the command line gives it."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from sarlite.cli.options import RunOptions
from sarlite.errors import CheckpointError, ConfigError
from sarlite.tasks.thresholds import decide, threshold_rule
from sarlite.types import Array


class Decision(NamedTuple):
    """Rule that predicts the positive one of two classes, or a label, from a probability on.

    Attributes
    ----------
    positive : int
        The positive one of two classes.
    thresholds : (1,) or (n_labels,) float64
    """

    positive: int
    thresholds: Array

    def of(self, output: Array, several: bool) -> Array:
        """Return the class of each row of logits, (n,) int64; if `several`, 0 or 1 for each label, (n, k) uint8."""
        if several:
            return decide(output.astype(np.float64), self.thresholds).astype(np.uint8)
        scores = output[:, self.positive].astype(np.float64) - output[:, 1 - self.positive]
        return np.where(decide(scores, self.thresholds[0]), self.positive, 1 - self.positive)


def decision_of(config: Any, options: RunOptions, meta: Mapping[str, Any], form: str) -> Decision | None:
    """Return the decision of the predictions; None if it is the likeliest class, or a probability of 0.5.

    Parameters
    ----------
    config : PredictOptions
    options : RunOptions
        Of the run that wrote the checkpoint.
    meta : dict
        The checkpoint's metadata.
    form : str
        Name of the targets' form.

    Raises
    ------
    ConfigError, CheckpointError
        A threshold is given for another task, or for more than two classes; the run chose none.
    """
    of_classes = form == "multilabel" or (form == "classify" and meta["data"]["classes"] == 2)
    rule, values = threshold_rule(options.training.threshold), meta.get("thresholds")
    if config.threshold is not None:
        if not of_classes:
            raise ConfigError(f"--threshold {config.threshold}: is of two classes and of labels, but the task of "
                              f"{config.checkpoint} is {form} of {meta['data']['classes']}")
        values = [config.threshold] * (meta["data"]["classes"] if form == "multilabel" else 1)
    elif values is None and rule.chosen:
        raise CheckpointError(f"checkpoint {config.checkpoint}: its run had --threshold {options.training.threshold}, "
                              "but ended before it chose one: go on with --resume, or give --threshold P")
    if values is not None and len(values) != (meta["data"]["classes"] if form == "multilabel" else 1):
        raise CheckpointError(f"checkpoint {config.checkpoint}: thresholds: {len(values)} of "
                              f"{meta['data']['classes']} labels")
    return None if values is None else Decision(meta.get("positive", 1), np.array(values))
