"""Metrics of classes and labels: equal to scikit-learn's, and bit for bit the same for any division of the rows."""

import math

import numpy as np
import pytest
from sklearn import metrics as reference

from sarlite.comm import Solo, threads
from sarlite.errors import ConfigError
from sarlite.tasks.class_metrics import log_probabilities
from sarlite.tasks.metric_table import METRICS, find_metric

N = 300
DIVISIONS = ((2, np.arange(N) % 2), (3, np.zeros(N, int)), (4, np.where(np.arange(N) < 200, 3, 1)))


def value(comm, task, name, output, labels, parts, positive=1):
    metric = find_metric(task, name).make(positive)
    local = np.flatnonzero(parts == comm.rank)
    for piece in np.array_split(local, 2):  # as of two batches
        metric.add(output[piece], labels[piece])
    return metric.value(comm.allreduce(metric.counts()), comm), metric.note


def rows(k, seed=0, ties=True):
    """Logits that know something of the classes, the last of which is rare; with two classes many are equal."""
    draw = np.random.default_rng(seed)
    shares = {2: [0.9, 0.1], 4: [0.5, 0.3, 0.15, 0.05]}[k]
    labels = draw.choice(k, N, p=shares)
    output = draw.standard_normal((N, k)) * 2 + np.eye(k)[labels]
    return (np.round(output * 2) / 2 if ties and k == 2 else output).astype(np.float32), labels


def softmax(output):
    result = np.exp(output.astype(np.float64))
    return result / result.sum(1, keepdims=True)


def of_two(output, labels, positive=1):
    true, scores = labels == positive, output[:, positive].astype(float) - output[:, 1 - positive]
    predicted, average = output.argmax(1) == positive, {"average": "binary"}
    precision, recall, _ = reference.precision_recall_curve(true, scores)
    return {"ap": reference.average_precision_score(true, scores), "recall@precision=0.3": max(recall[precision >= 0.3]),
            "roc-auc": reference.roc_auc_score(true, scores), "brier": reference.brier_score_loss(true, 1 / (1 + np.exp(-scores))),
            **of_counts(true, predicted, average)}


def of_counts(labels, predicted, average):
    return {"precision": reference.precision_score(labels, predicted, zero_division=0, **average),
            "recall": reference.recall_score(labels, predicted, zero_division=0, **average),
            "fbeta@2": reference.fbeta_score(labels, predicted, beta=2, **average),
            "fbeta@0.5": reference.fbeta_score(labels, predicted, beta=0.5, **average)}


def of_classes(output, labels):
    predicted, k = output.argmax(1), output.shape[1]
    result = {"accuracy": reference.accuracy_score(labels, predicted), "mcc": reference.matthews_corrcoef(labels, predicted),
             "balanced-accuracy": reference.balanced_accuracy_score(labels, predicted),
             "macro-f1": reference.f1_score(labels, predicted, average="macro"),
             "micro-f1": reference.f1_score(labels, predicted, average="micro")}
    if k == 2:
        return result | of_two(output, labels)
    return {**result, "ap": reference.average_precision_score(np.eye(k)[labels], softmax(output), average="macro"),
            "brier": np.square(softmax(output) - np.eye(k)[labels]).sum(1).mean(),
            "top@2": reference.top_k_accuracy_score(labels, output, k=2), **of_counts(labels, predicted, {"average": "macro"})}


def of_labels(output, labels):
    predicted, macro = output > 0, {"average": "macro"}
    curves = [reference.precision_recall_curve(labels[:, c], output[:, c]) for c in range(labels.shape[1])]
    return {"ap": reference.average_precision_score(labels, output, average="macro"),
            "roc-auc": reference.roc_auc_score(labels, output, average="macro"),
            "recall@precision=0.5": np.mean([max(recall[precision >= 0.5]) for precision, recall, _ in curves]),
            "brier": np.square(1 / (1 + np.exp(-output.astype(float))) - labels).mean(), **of_counts(labels, predicted, macro)}


@pytest.mark.parametrize("k", [2, 4])
@pytest.mark.parametrize("seed", range(3))
def test_metrics_of_classes_are_scikit_learns(k, seed):
    output, labels = rows(k, seed)
    compare("classify", of_classes(output, labels), output, labels)


@pytest.mark.parametrize("seed", range(3))
def test_metrics_of_labels_are_scikit_learns(seed):
    draw = np.random.default_rng(seed)
    labels = (draw.random((N, 3)) < [0.05, 0.3, 0.6]).astype(np.uint8)
    output = (np.round(draw.standard_normal((N, 3)) * 2 + labels) / 2).astype(np.float32)
    compare("multilabel", of_labels(output, labels), output, labels)


def test_either_of_two_classes_may_be_the_positive_one():
    output, labels = rows(2)
    compare("classify", of_two(output, labels, positive=0), output, labels, positive=0)
    assert value(Solo(), "classify", "ap", output, labels, np.zeros(N, int), 0)[0] > 0.9  # of the frequent class
    assert value(Solo(), "classify", "ap", output, labels, np.zeros(N, int), 1)[0] < 0.6


def compare(task, expected, output, labels, positive=1):
    for name, number in expected.items():
        one = value(Solo(), task, name, output, labels, np.zeros(N, int), positive)
        assert one[0] == pytest.approx(number, rel=1e-12), name
        for n, parts in DIVISIONS:
            assert threads.run(n, value, task, name, output, labels, parts, positive) == [one] * n


def plain_calibration(probabilities, true, n_bins=10):
    places = np.minimum((probabilities * n_bins).astype(int), n_bins - 1)
    return sum(abs(true[places == b].sum() - probabilities[places == b].sum()) for b in range(n_bins)) / len(true)


def test_calibration_error_is_its_definition_for_any_division():
    output, labels = rows(2, ties=False)
    p = softmax(output)[:, 1]
    compare("classify", {"calibration-error": plain_calibration(p, labels == 1)}, output, labels)
    output, labels = rows(4)
    best = softmax(output).max(1)
    compare("classify", {"calibration-error": plain_calibration(best, output.argmax(1) == labels)}, output, labels)
    certain = np.where(np.eye(2)[labels % 2] > 0, 40, -40).astype(np.float32)
    assert value(Solo(), "classify", "calibration-error", certain, labels % 2, np.zeros(N, int))[0] < 1e-12


def test_a_class_without_rows_is_left_out_of_the_mean_and_told():
    output, labels = rows(4)
    labels[labels == 3] = 0
    result, note = value(Solo(), "classify", "ap", output, labels, np.zeros(N, int))
    classes = reference.average_precision_score(np.eye(4)[labels][:, :3], softmax(output)[:, :3], average="macro")
    assert result == pytest.approx(classes, rel=1e-12) and note == "1 of 4 labels, without a positive row"


def test_rows_of_equal_probability_have_equal_scores():
    """The order of the sum of a row's exponentials does not change the ranks of rows."""
    output = np.random.default_rng(0).standard_normal((3000, 4)).astype(np.float32)
    assert np.array_equal(log_probabilities(output)[:, 0], log_probabilities(output[:, [0, 3, 2, 1]])[:, 0])


def test_of_equally_likely_classes_the_lowest_comes_first():
    output, labels = np.ones((3, 3), np.float32), np.arange(3)
    assert value(Solo(), "classify", "top@2", output, labels, np.zeros(3, int))[0] == pytest.approx(2 / 3)
    assert value(Solo(), "classify", "top@2", output[2:], labels[2:], np.zeros(1, int))[0] == 0


def test_nothing_to_tell_and_numbers_that_are_none():
    output, labels = rows(2)
    for name in ("ap", "precision", "balanced-accuracy", "mcc", "recall@precision=0.5", "brier", "calibration-error", "top@2"):
        assert threads.run(2, value, "classify", name, output[:0], labels[:0], np.zeros(0, int))[1][0] is None
    odd = output.copy()
    odd[3] = np.nan
    for name in ("ap", "recall@precision=0.5", "brier", "calibration-error"):
        assert all(math.isnan(of_rank) for of_rank, _ in threads.run(2, value, "classify", name, odd, labels, np.arange(N) % 2))


def test_no_threshold_has_the_precision():
    output, labels = np.array([[0, 3], [0, 2], [0, 1]], np.float32), np.array([0, 1, 0])
    assert value(Solo(), "classify", "recall@precision=0.9", output, labels, np.zeros(3, int))[0] == 0
    assert value(Solo(), "classify", "recall@precision=0.5", output, labels, np.zeros(3, int))[0] == 1


@pytest.mark.parametrize("task, name, error", [
    ("classify", "top@0", "metric 'top@0': K of top@K cannot be '0'"),
    ("classify", "top@K", "metric of task classify: 'top@K' is not one of"),
    ("classify", "top@inf", "K of top@K cannot be 'inf'"),
    ("classify", "recall@precision=1.5", "P of recall@precision=P cannot be '1.5'"),
    ("classify", "fbeta@-1", "B of fbeta@B cannot be '-1'"),
    ("link", "hits@x", "K of hits@K cannot be 'x'"),
    ("classify", "f1", "is not one of accuracy, micro-f1"),
    ("multilabel", "mcc", "metric of task multilabel: 'mcc' is not one of"),
])  # fmt: skip
def test_metrics_that_are_none(task, name, error):
    with pytest.raises(ConfigError, match=error.replace("(", r"\(")):
        find_metric(task, name)


def test_every_metric_can_be_made():
    parameters = {"K": "3", "B": "2", "P": "0.9"}
    for task, metrics in METRICS.items():
        for name, kind in metrics.items():
            word = name if kind.parameter is None else name[:-1] + parameters[name[-1]]
            assert find_metric(task, word).name == word and find_metric(task, word).make() is not None
