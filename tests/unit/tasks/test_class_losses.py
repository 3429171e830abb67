"""Losses of rare classes: class weights, positive weights and focal loss, against plain formulas and on any number of ranks."""

import numpy as np
import pytest
from sklearn.utils.class_weight import compute_class_weight

from sarlite import Tensor
from sarlite.comm import Solo, threads
from sarlite.errors import ConfigError
from sarlite.models import GCN, SAGE
from sarlite.tape import ops
from sarlite.tasks.class_losses import class_counts, scaled_weights
from sarlite.tasks.edge_task import EdgeTask
from sarlite.tasks.loss_table import find_loss
from sarlite.tasks.node_task import NodeTask
from sarlite.tasks.target_forms import FORMS
from sarlite.tasks.task import Task
from tests.helpers.train import exact_runs
from tests.helpers.train.exact_runs import CASES, Case, _flow, _labels_of_edges, _of, _sampled, digest, work

DRAW = np.random.default_rng(0)
LOGITS = DRAW.standard_normal((40, 4)) * 2
CLASSES = DRAW.choice(4, 40, p=[0.6, 0.2, 0.15, 0.05])
CLASSES[:4] = range(4)
LABELS = (DRAW.random((40, 4)) < [0.1, 0.3, 0.5, 0.7]).astype(np.uint8)
LABELS[0], LABELS[1] = 1, 0
ROWS = np.flatnonzero(DRAW.random(40) < 0.7)


def class_losses(gamma, weights):
    """Return the weighted mean over rows of (1 - p)^gamma * -log p."""
    p = np.exp(LOGITS[ROWS]) / np.exp(LOGITS[ROWS]).sum(1, keepdims=True)
    p = p[np.arange(len(ROWS)), CLASSES[ROWS]]
    w = weights[CLASSES[ROWS]]
    return ((1 - p) ** gamma * -np.log(p) * w).sum() / w.sum()


def label_losses(gamma, weights):
    """Return the mean over values, with the weight of its label for each 1."""
    t = LABELS[ROWS]
    p = np.where(t == 1, 1 / (1 + np.exp(-LOGITS[ROWS])), 1 - 1 / (1 + np.exp(-LOGITS[ROWS])))
    return ((1 - p) ** gamma * -np.log(p) * np.where(t == 1, weights, 1)).mean()


def shares(comm, task, targets, parts):
    """Return the share of the loss of this rank and the gradient of its rows."""
    local = np.flatnonzero(parts == comm.rank)
    rows = np.flatnonzero(np.isin(local, ROWS))
    x = Tensor(LOGITS[local], requires_grad=True)
    share = task.loss_over(targets[local], rows, comm, 4)(x, targets[local], rows, len(ROWS))
    share.backward()
    return local, share.item(), x.grad


BALANCED = len(ROWS) / (4 * np.bincount(CLASSES[ROWS], minlength=4))
POSITIVE = (len(ROWS) - LABELS[ROWS].sum(0)) / LABELS[ROWS].sum(0)
GIVEN = {0: 0.5, 3: 20.0}
WEIGHTS = {"balanced": (BALANCED, POSITIVE), None: (np.ones(4), np.ones(4))}


@pytest.mark.parametrize("weights", [None, "balanced", "given"])
@pytest.mark.parametrize("gamma", [None, 0.5, 2.0])
@pytest.mark.parametrize("form", ["classify", "multilabel"])
def test_a_loss_is_its_formula_on_any_number_of_ranks(form, gamma, weights):
    arguments = GIVEN if weights == "given" else weights
    local = WEIGHTS.get(weights, (np.array([0.5, 1, 1, 20]),) * 2)[form == "multilabel"]
    task = NodeTask(form, loss=None if gamma is None else f"focal:{gamma}", class_weights=arguments)
    targets = CLASSES if form == "classify" else LABELS
    expected = (class_losses if form == "classify" else label_losses)(gamma or 0, local)
    _, loss, slope = shares(Solo(), task, targets, np.zeros(40, int))
    assert loss == pytest.approx(expected, rel=1e-12)
    for n, parts in ((2, np.arange(40) % 2), (3, np.where(np.arange(40) < 10, 2, 0))):
        by_rank = threads.run(n, shares, task, targets, parts)
        assert sum(share for _, share, _ in by_rank) == pytest.approx(expected, rel=1e-12)
        for rows, _, own_slope in by_rank:
            np.testing.assert_allclose(own_slope, slope[rows], rtol=1e-12, atol=1e-15)


def test_balanced_weights_are_scikit_learns():
    counts = class_counts(Solo(), CLASSES, ROWS, 4)
    expected = compute_class_weight("balanced", classes=np.arange(4), y=CLASSES[ROWS])
    np.testing.assert_allclose(scaled_weights("balanced", counts, len(ROWS), False), expected, rtol=1e-12)


def test_a_class_without_training_rows_has_weight_one():
    assert scaled_weights("balanced", np.array([6, 0, 2]), 8, False)[1] == 1
    assert scaled_weights("balanced", np.array([0, 8, 2]), 8, True).tolist() == [1, 1, 3]


TASKS = {
    "full batch": Case(_of(GCN, layers=2, hidden=6), task=NodeTask(loss="focal", class_weights="balanced", metric="ap")),
    "full batch of labels": Case(_of(GCN, layers=2, hidden=6), task=NodeTask("multilabel", "focal:1.5", "ap", class_weights="balanced")),
    "minibatch": Case(_of(SAGE, layers=2, hidden=6), batches=_sampled(4, 3), task=NodeTask(class_weights=[1, 2, 3, 4], metric="mcc")),
    "message flow": Case(_of(SAGE, layers=2, hidden=6), batches=_flow, task=NodeTask(class_weights="balanced", metric="top@2")),
    "labels of edges": Case(_of(SAGE, layers=2, hidden=6), links=_labels_of_edges,
                            task=EdgeTask(loss="focal", class_weights="balanced", metric="balanced-accuracy")),
}


@pytest.mark.parametrize("case", TASKS)
def test_exact_numerics_have_the_same_bits_on_any_number_of_ranks(case, monkeypatch):
    monkeypatch.setitem(CASES, case, TASKS[case])
    assert digest(1, case) == digest(3, case)


@pytest.mark.parametrize("case", TASKS)
def test_trainings_agree_on_any_number_of_ranks(case, monkeypatch):
    monkeypatch.setitem(CASES, case, TASKS[case])
    _, one = work(Solo(), case, np.float64, numerics="fast")
    for _, of_rank in threads.run(3, work, case, np.float64, numerics="fast"):
        for a, b in zip(of_rank, one):
            np.testing.assert_allclose(a, b, rtol=1e-8, atol=1e-10)


def test_a_function_of_the_users_goes_with_every_metric(monkeypatch):
    def own(output, targets):
        return ops.cross_entropy(output, targets) * 2

    monkeypatch.setitem(CASES, "own", Case(_of(GCN, layers=2, hidden=6), task=NodeTask(loss=own, metric="macro-f1")))
    _, (_, _, losses, scores, *_) = work(Solo(), "own", np.float64, numerics="fast")
    assert np.isfinite(losses).all() and scores[0] > 0 and 0 < scores[1] < 1  # val_loss and val_macro_f1
    with pytest.raises(ConfigError, match="a loss function has no exact version"):
        work(Solo(), "own", np.float64)


WRONG = {
    "class_weights: the loss of task regress takes no class weights": ("regress", {"class_weights": "balanced"}),
    "class_weights: the loss of your own takes no class weights": ("classify", {"loss": lambda a, b: a.sum(), "class_weights": "balanced"}),
    "class_weights: 'even' is neither": ("classify", {"class_weights": "even"}),
    "class_weights: the weight of class 1 is 0": ("classify", {"class_weights": [1, 0]}),
    "class_weights: 'a' is not a class": ("classify", {"class_weights": {"a": 1}}),
    "positive is 2": ("classify", {"positive": 2}),
    "loss 'focal:x': the parameter of focal must be a number above 0": ("classify", {"loss": "focal:x"}),
    "loss 'bce:2': bce has no parameter": ("multilabel", {"loss": "bce:2"}),
    "loss of task classify: 'fokal' is not one of cross-entropy, focal; did you mean focal": ("classify", {"loss": "fokal"}),
}


@pytest.mark.parametrize("message", WRONG)
def test_refusals_name_the_value(message):
    form, arguments = WRONG[message]
    with pytest.raises(ConfigError) as caught:
        NodeTask(form, **arguments)
    assert message in str(caught.value)


def test_more_weights_than_columns():
    task = NodeTask(class_weights=[1, 2, 3, 4, 5])
    with pytest.raises(ConfigError, match="5 weights, .*4 columns"):
        shares(Solo(), task, CLASSES, np.zeros(40, int))


def test_tables_name_the_forms():
    assert find_loss("classify", "focal")[1] == 2.0 and find_loss("classify", None)[1] == 0.0
    assert isinstance(Task(FORMS["classify"]), Task) and exact_runs.N_CLASSES == 4
