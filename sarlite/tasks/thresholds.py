"""Decision thresholds: lowest probabilities with which the positive class of two, or one of several labels, is predicted."""

import math
from typing import NamedTuple

import numpy as np

from sarlite.comm import Communicator
from sarlite.errors import ConfigError
from sarlite.tasks.auc import PrecisionSteps, precision_steps
from sarlite.tasks.class_metrics import logistic
from sarlite.types import Array


class ThresholdRule(NamedTuple):
    """Rule that sets a decision threshold: a fixed probability, the best F1, or the best recall at a precision.

    Attributes
    ----------
    name : {"fixed", "best-f1", "precision"}
        "fixed": the threshold is `level`. "best-f1": the threshold with the largest F1 score. "precision": the threshold
        with the largest recall among the thresholds with at least the precision `level`.
    level : float
        Threshold or precision; 0 for "best-f1".

    Examples
    --------
    >>> from sarlite.tasks.thresholds import ThresholdRule
    >>> ThresholdRule("best-f1").chosen, ThresholdRule("fixed", 0.3).chosen
    (True, False)
    """

    name: str
    level: float = 0.0

    @property
    def chosen(self) -> bool:
        """True if the scores of rows decide the threshold, False if the threshold is a fixed probability."""
        return self.name != "fixed"


HALF = ThresholdRule("fixed", 0.5)
"""Threshold 0.5: the likelier class is predicted, or each label whose logit is above 0."""


def threshold_rule(text: str) -> ThresholdRule:
    """Convert the text of an option, "best-f1", "precision=P" or a probability, to the rule that sets a decision threshold.

    Parameters
    ----------
    text : str
        "best-f1", "precision=P", or a probability.

    Returns
    -------
    ThresholdRule

    Raises
    ------
    ConfigError
        The text is not valid.

    Examples
    --------
    >>> from sarlite.tasks.thresholds import threshold_rule
    >>> threshold_rule("precision=0.9")
    ThresholdRule(name='precision', level=0.9)
    """
    if text == "best-f1":
        return ThresholdRule(text)
    name, equals, number = text.rpartition("=")
    try:
        level = float(number)
    except ValueError:
        level = math.nan
    if not (0 < level <= 1 if equals and name == "precision" else 0 < level < 1 and not equals):
        raise ConfigError(f"threshold {text!r}: expected best-f1, precision=P with P up to 1, or a probability above 0 "
                          "and below 1", "threshold")
    return ThresholdRule(name or "fixed", level)


def choose_threshold(rule: ThresholdRule, comm: Communicator, scores: Array, positive: Array) -> float | None:
    """Return the decision threshold, a probability, that `rule` selects for the scores of all ranks; `positive` is the mask of this rank's
    positive rows. None if there are no positive rows or no threshold is precise enough. Collective.

    Parameters
    ----------
    rule : ThresholdRule
    comm : Communicator
    scores : (n_local,) float64
        Logits of the positive class against the other class, without NaN.
    positive : (n_local,) array of bools

    Returns
    -------
    float or None
        The same on every rank: the mean of the probabilities of the lowest predicted score and of the next lower score.
        None if there are no positive rows, or no threshold has the precision.

    Examples
    --------
    >>> import numpy as np
    >>> from sarlite.comm import Solo
    >>> scores, positive = np.array([3.0, 1.0, -1.0, -3.0]), np.array([True, True, False, False])
    >>> choose_threshold(threshold_rule("best-f1"), Solo(), scores, positive)
    0.5
    """
    if not rule.chosen:
        return rule.level
    steps = precision_steps(comm, scores, positive)
    gain = _gain(rule, steps)
    at = int(gain.argmax()) if len(gain) else 0  # the highest score among equal gains
    best = (float(gain[at]), float(steps.scores[at])) if len(gain) else (-math.inf, -math.inf)
    after = float(steps.scores[at + 1]) if at + 1 < len(gain) else -math.inf
    top = float(steps.scores[0]) if len(gain) else -math.inf
    ranks = comm.allgather((*best, after, top))
    gain_found, score, lower, _ = max(ranks)
    lower = max([lower, *(rank_top for *_, rank_top in ranks if rank_top < score)])
    return (_probability(score) + _probability(lower)) / 2 if gain_found > 0 else None


def _gain(rule: ThresholdRule, steps: PrecisionSteps) -> Array:
    """Return the value that `rule` maximizes for each score in `steps` as the threshold, (n_scores,), where rows with at least this score
    are predicted as positive. The value is F1, or the number of true positives if the precision is high enough, else 0.
    """
    if rule.name == "best-f1":
        return 2 * steps.positive / np.maximum(steps.positive + steps.negative + steps.n_positive, 1)
    return np.where(steps.precision >= rule.level, steps.positive, 0)


def _probability(score):
    return 1 / (1 + math.exp(-score)) if score > -700 else 0.0


def decide(scores: Array, thresholds: Array) -> Array:
    """Return a mask of the positive predictions, (n, k): True where the probability, the logistic function of the logit in `scores`, is at
    least the threshold of its column in `thresholds`.

    Parameters
    ----------
    scores : (n, k) float64
        Logits, see `class_metrics.scores_of`.
    thresholds : (k,) float64
        Probabilities.

    Examples
    --------
    >>> import numpy as np
    >>> decide(np.array([[0.1], [-2.0]]), np.array([0.5])).tolist()
    [[True], [False]]
    """
    return logistic(scores) >= thresholds
