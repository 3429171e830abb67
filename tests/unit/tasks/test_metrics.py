"""Metrics over ranks: plain definitions in plain Python, bit for bit the same for any division of the rows."""

import math
from fractions import Fraction
from itertools import product

import numpy as np
import pytest

from sarlite.comm import Solo, threads
from sarlite.tasks import auc
from sarlite.tasks.metric_table import find_metric
from sarlite.tasks.metrics import ExactSums
from sarlite.tasks.ranking import ranked_among_negatives

N = 97


def rows(task, n=N, k=4, seed=0):
    """Return a model's output with many ties, and labels."""
    draw = np.random.default_rng(seed)
    output = np.round(draw.standard_normal((n, k)) * 2).astype(np.float32) / 2
    if task == "classify":
        return output, draw.integers(0, k - 1, n)  # the last class does not occur
    if task == "link":
        return output, np.zeros(n, int)
    if task == "multilabel":
        labels = draw.integers(0, 2, (n, k)).astype(np.uint8)
        labels[:, 1] = 1  # of one class alone
        output[:, 2] = -1
        return output, labels
    return output + draw.standard_normal((n, k)).astype(np.float32) * 1e3, draw.standard_normal((n, k)) * np.array([1e-9, 1, 1e4, 1e9])


def value(comm, task, name, output, labels, parts):
    metric = find_metric(task, name).make()
    if find_metric(task, name).kind.takes == "ranks":
        output = ranked_among_negatives(output)
    local = np.flatnonzero(parts == comm.rank)
    for piece in np.array_split(local, 2):  # as of two batches
        metric.add(output[piece], labels[piece])
    return metric.value(comm.allreduce(metric.counts()), comm), metric.note


def plain_auc(scores, positive):
    pairs = list(product(scores[positive].tolist(), scores[~positive].tolist()))
    return float(Fraction(sum(2 * (p > n) + (p == n) for p, n in pairs), 2 * len(pairs)))


def plain_f1(predicted, true):
    tp, fp, fn = (int(np.sum(x)) for x in (predicted & true, predicted & ~true, ~predicted & true))
    return 2 * tp / (2 * tp + fp + fn) if tp + fp + fn else 0.0


def expected_of_links(name, output):
    """Return a metric of rows whose first candidate is a link, by plain formulas."""
    link, others = output[:, 0], output[:, 1:]
    if name == "roc-auc":
        return plain_auc(output.reshape(-1), np.arange(output.size) % output.shape[1] == 0)
    if name == "ap":
        steps = [(Fraction(int((link == s).sum()), len(link)), Fraction(int((link >= s).sum()), int((output >= s).sum())))
                 for s in set(link.tolist())]
        return float(sum(recall * precision for recall, precision in steps))
    ranks = [1 + sum(o > s for o in row) + Fraction(sum(o == s for o in row), 2) for s, row in zip(link.tolist(), others.tolist())]
    if name == "mrr":
        return float(sum(1 / Fraction(rank) for rank in ranks) / len(ranks))
    return sum(rank <= int(name.partition("@")[2]) for rank in ranks) / len(ranks)


def expected(task, name, output, labels):
    if task == "link":
        return expected_of_links(name, output)
    k = output.shape[1]
    if task == "regress":
        errors = [[Fraction(float(o)) - Fraction(float(t)) for o, t in zip(*columns)] for columns in zip(output.T, labels.T)]
        if name == "mae":
            return sum(float(sum(map(abs, column)) / len(column)) for column in errors) / k
        return sum(math.sqrt(sum(e * e for e in column) / len(column)) for column in errors) / k
    true = labels == 1 if task == "multilabel" else labels[:, None] == np.arange(k)
    predicted = output > 0 if task == "multilabel" else output.argmax(1)[:, None] == np.arange(k)
    if name == "accuracy":
        return sum((p == t).all() for p, t in zip(predicted, true)) / len(true)
    if name == "micro-f1":
        return plain_f1(predicted, true)
    if name == "macro-f1":
        scores = [plain_f1(predicted[:, c], true[:, c]) for c in range(k)
                  if task == "multilabel" or (predicted[:, c] | true[:, c]).any()]
        return sum(scores) / len(scores)
    if task == "classify":
        return plain_auc(output[:, 1].astype(float) - output[:, 0], labels == 1)
    result = [plain_auc(output[:, c], true[:, c]) for c in range(k) if 0 < true[:, c].sum() < len(true)]
    return sum(result) / len(result)


OLDER = [("classify", name) for name in ("accuracy", "micro-f1", "macro-f1", "roc-auc")]
OLDER += [("multilabel", name) for name in ("roc-auc", "accuracy", "micro-f1", "macro-f1")] + [("regress", "rmse"), ("regress", "mae")]
OLDER += [("link", name) for name in ("roc-auc", "ap", "mrr", "hits@1", "hits@3", "hits@10", "hits@20")]


@pytest.mark.parametrize("task, name", OLDER)
def test_a_metric_is_its_definition_for_any_division(task, name):
    output, labels = rows(task, k=2 if (task, name) == ("classify", "roc-auc") else 24 if task == "link" else 4)
    labels = labels % 2 if (task, name) == ("classify", "roc-auc") else labels
    labels[::2] = 1 if (task, name) == ("classify", "roc-auc") else labels[::2]
    one, note = value(Solo(), task, name, output, labels, np.zeros(N, int))
    assert abs(one - expected(task, name, output, labels)) <= 1e-12 * max(1, abs(one))
    assert note == ("1 of 4 labels, whose rows are all of one class" if (task, name) == ("multilabel", "roc-auc") else None)
    for n, parts in ((2, np.arange(N) % 2), (3, np.zeros(N, int)), (4, np.where(np.arange(N) < 60, 3, 1))):
        assert threads.run(n, value, task, name, output, labels, parts) == [(one, note)] * n


def test_links_without_a_number_or_without_rows():
    output, labels = rows("link", k=5)
    odd = output.copy()
    odd[3, 1] = np.nan
    for name in ("roc-auc", "ap", "mrr"):
        assert threads.run(2, value, "link", name, output[:0], labels[:0], np.zeros(0, int))[1][0] is None
        assert all(math.isnan(of_rank) for of_rank, _ in threads.run(2, value, "link", name, odd, labels, np.arange(N) % 2))


def test_nothing_to_tell():
    output, labels = rows("multilabel", n=5)
    for task, name in (("multilabel", "roc-auc"), ("multilabel", "accuracy"), ("regress", "rmse"), ("classify", "macro-f1")):
        none = labels[:0] if task != "classify" else np.zeros(0, int)
        assert threads.run(2, value, task, name, output[:0], none, np.zeros(0, int))[1][0] is None
    assert value(Solo(), "multilabel", "roc-auc", output, np.ones_like(labels), np.zeros(5, int)) == (None, "4 of 4 labels, whose "
                                                                                                    "rows are all of one class")
    odd = output.copy()
    odd[3, 1] = np.nan
    for name, targets in (("roc-auc", labels), ("mae", labels.astype(float))):
        task = "regress" if name == "mae" else "multilabel"
        assert all(math.isnan(of_rank) for of_rank, _ in threads.run(2, value, task, name, odd, targets, np.arange(5) % 2))


def test_scores_are_sorted_in_ranges(monkeypatch):
    """Each rank sorts about its share of the distinct scores, also where one rank holds all; columns come in groups."""
    largest, groups, sort = [], [], auc._sorted_range

    def watched(comm, local, k):
        result = sort(comm, local, k)
        largest.append(len(result) / k)
        groups.append(k)
        return result

    monkeypatch.setattr(auc, "_sorted_range", watched)
    scores = np.random.default_rng(1).permutation(1500).reshape(500, 3).astype(np.float32)
    positive = np.random.default_rng(2).random((500, 3)) < 0.3

    def work(comm, owner):
        return auc.pairs(comm, *(a[owner == comm.rank] for a in (scores, positive)), at_once=1000)

    one = auc.pairs(Solo(), scores, positive, at_once=1000)
    assert [result / (2 * n) for result, n in one] == [plain_auc(scores[:, c], positive[:, c]) for c in range(3)]
    assert groups == [2, 1]
    largest.clear()
    for owner in (np.zeros(500, int), np.arange(500) % 4, np.argsort(np.argsort(scores[:, 0])) // 125):
        assert threads.run(4, work, owner) == [one] * 4
    assert max(largest) <= 2 * 500 / 4


def test_sums_are_exact():
    """The numbers range from the smallest to nearly the largest float; a sum in floats would differ."""
    values = np.array([[5e-324, 1e300], [1.0, 1e-300], [2**-53, 3.0], [1e16, 0.0], [1.0, 2**-1074]])
    sums = ExactSums()
    sums.add(values[:2]), sums.add(values[2:])
    whole = [sum(map(Fraction, column)) for column in values.T.tolist()]
    assert sums.means(Solo(), 3) == [float(total / 3) for total in whole]
    assert threads.run(2, lambda comm: sums.means(comm, 1)) == [[float(2 * total) for total in whole]] * 2
