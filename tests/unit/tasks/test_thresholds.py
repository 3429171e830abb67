"""Decision thresholds: against every threshold tried one by one, and the same on any number of ranks."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn import metrics as reference

from sarlite.comm import Solo, threads
from sarlite.errors import ConfigError
from sarlite.tasks.thresholds import ThresholdRule, choose_threshold, decide, threshold_rule

RULES = [ThresholdRule("best-f1"), ThresholdRule("precision", 0.5), ThresholdRule("precision", 1.0)]


def probability(score):
    return 1 / (1 + np.exp(-score))


def expected(rule, scores, positive):
    """Return the best of all scores as a threshold, the highest of equally good ones."""
    tried = []
    for score in np.unique(scores):
        predicted = scores >= score
        if rule.name == "best-f1":
            tried.append((reference.f1_score(positive, predicted), score))
        elif reference.precision_score(positive, predicted) >= rule.level:
            tried.append((reference.recall_score(positive, predicted), score))
    gain, score = max(tried, default=(0, 0))
    if gain == 0:
        return None
    lower = scores[scores < score].max(initial=-np.inf)
    return (probability(score) + (probability(lower) if np.isfinite(lower) else 0)) / 2


def work(comm, rule, scores, positive, parts):
    local = parts == comm.rank
    return choose_threshold(rule, comm, scores[local], positive[local])


ROWS = st.lists(st.tuples(st.integers(-6, 6), st.booleans(), st.integers(0, 2)), min_size=1, max_size=25)


@settings(max_examples=40, deadline=None)
@given(ROWS, st.sampled_from(RULES))
def test_a_threshold_is_the_best_of_all(rows, rule):
    scores, positive, parts = (np.array(column) for column in zip(*rows))
    scores = scores / 2
    best = expected(rule, scores, positive)
    one = work(Solo(), rule, scores, positive, np.zeros(len(scores), int))
    assert threads.run(3, work, rule, scores, positive, parts) == [one] * 3
    if best is None:
        assert one is None
    else:
        assert one == pytest.approx(best, rel=1e-12)
        predicted = decide(scores[:, None], np.array([one]))[:, 0]
        assert predicted.tolist() == (probability(scores) >= best).tolist()


def test_rules_are_read():
    assert threshold_rule("0.25") == ThresholdRule("fixed", 0.25) and not threshold_rule("0.25").chosen
    assert threshold_rule("precision=1") == ThresholdRule("precision", 1.0) and threshold_rule("best-f1").chosen
    for text in ("1", "0", "nan", "-0.1", "precision=0", "precision=1.1", "precision", "recall=0.5", "", "=0.5"):
        with pytest.raises(ConfigError, match="expected best-f1, precision=P"):
            threshold_rule(text)
