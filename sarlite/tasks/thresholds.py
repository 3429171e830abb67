"""Decision thresholds: the probability from which on the positive one of two classes, or a label, is predicted."""

import math
from typing import NamedTuple

import numpy as np

from sarlite.comm import Communicator
from sarlite.errors import ConfigError
from sarlite.tasks.auc import PrecisionSteps, precision_steps
from sarlite.types import Array


class ThresholdRule(NamedTuple):
    """How a decision threshold is chosen.

    Attributes
    ----------
    name : {"fixed", "best-f1", "precision"}
        "fixed": the threshold is `level`. "best-f1": the threshold with the largest F1 score. "precision": the threshold
        with the largest recall among those with at least the precision `level`.
    level : float
    """

    name: str
    level: float = 0.0

    @property
    def chosen(self) -> bool:
        """True if rows decide the threshold."""
        return self.name != "fixed"


HALF = ThresholdRule("fixed", 0.5)
"""The rule that the likelier class, and a label with a logit above 0, is predicted."""


def threshold_rule(text: str) -> ThresholdRule:
    """Return the rule that `text` names: "best-f1", "precision=P", or a probability.

    Raises
    ------
    ConfigError
        The text is no rule.

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
    """Return the threshold that a rule chooses on the rows of all ranks, the same on every rank. Collective.

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
        Probability halfway between the lowest score that is predicted and the next lower score. None if there are no
        positive rows, or no threshold has the precision.
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
    """Return for each distinct score what the rule makes large where the rows from that score on are predicted."""
    predicted = steps.positive + steps.negative
    if rule.name == "best-f1":
        return 2 * steps.positive / np.maximum(predicted + steps.n_positive, 1)
    return np.where(steps.positive / np.maximum(predicted, 1) >= rule.level, steps.positive, 0)


def _probability(score):
    return 1 / (1 + math.exp(-score)) if score > -700 else 0.0


def decide(scores: Array, thresholds: Array) -> Array:
    """Return True where the probability of a score is at least its column's threshold, (n, k) bools.

    Parameters
    ----------
    scores : (n, k) float64
        Logits, as of `class_metrics.scores_of`.
    thresholds : (k,) float64
    """
    with np.errstate(over="ignore"):
        return 1 / (1 + np.exp(-scores)) >= thresholds
