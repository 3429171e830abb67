"""Baselines without edges: equal to scikit-learn's, the same on any number of ranks, bounded, for nodes, graphs and pairs of nodes."""

import json
from types import SimpleNamespace

import numpy as np
import pytest
from sklearn import metrics as reference
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.preprocessing import StandardScaler

from sarlite.comm import Solo, threads
from sarlite.data import format, load
from sarlite.tasks.node_task import NodeTask
from sarlite.train import baseline
from sarlite.train.baseline import baselines, linear_regression, logistic_regression, row_features
from tests.helpers.graph.graph_sets import FEATURES, GRAPH_OF, SIZES, graphs, write_tu
from tests.helpers.graph.relational_runs import SPEC
from tests.helpers.train.task_data import dataset, rare, stored
from tests.helpers.train.training_runs import DATA, train_here

DRAW = np.random.default_rng(1)


@pytest.mark.parametrize("n, n_features, k", [(300, 6, 2), (500, 20, 5), (60, 90, 3)])
def test_logistic_regression_is_scikit_learns(n, n_features, k):
    x, w = DRAW.standard_normal((n, n_features)), DRAW.standard_normal((n_features, k))
    classes, labels = (x @ w + DRAW.gumbel(size=(n, k))).argmax(1), (x @ w + DRAW.logistic(size=(n, k)) > 0).astype(np.uint8)

    def theirs(y):
        return LogisticRegression(C=1, max_iter=5000, tol=1e-9).fit(x, y).predict_proba(x)

    weights, bias = logistic_regression(x, classes, k)
    p = np.exp(x @ weights + bias)
    np.testing.assert_allclose(p / p.sum(1, keepdims=True), theirs(classes), atol=1e-4)
    weights, bias = logistic_regression(x, labels, k)
    expected = np.stack([theirs(labels[:, column])[:, 1] for column in range(k)], 1)
    np.testing.assert_allclose(1 / (1 + np.exp(-(x @ weights + bias))), expected, atol=1e-4)


def test_linear_regression_is_scikit_learns():
    x, y = DRAW.standard_normal((80, 9)), DRAW.standard_normal((80, 2))
    x -= x.mean(0)
    theirs = Ridge(alpha=1).fit(x, y)
    weights, bias = linear_regression(x, y)
    np.testing.assert_allclose(weights, theirs.coef_.T, rtol=1e-10)
    np.testing.assert_allclose(bias, theirs.intercept_, rtol=1e-10)


def work(comm, task, data, n_outputs, parts):
    local = np.flatnonzero(parts == comm.rank)
    rows = {name: np.flatnonzero(getattr(data, name)[local]) for name in ("train", "val", "test")}
    result = baselines(comm, task, np.asarray(data.features)[local], local, data.labels[local], rows, n_outputs)
    return {name: value for name, value in result.items() if name != "seconds"}


def on_ranks(task, data, n_outputs):
    n = len(data.labels)
    one = work(Solo(), task, data, n_outputs, np.zeros(n, int))
    for size, parts in ((2, np.arange(n) % 2), (3, np.where(np.arange(n) < 100, 2, 0))):
        assert threads.run(size, work, task, data, n_outputs, parts) == [one] * size
    return one


def test_of_two_classes_on_any_number_of_ranks():
    data = rare()
    by_rank = on_ranks(NodeTask(metric="ap"), data, 2)
    scaler = StandardScaler().fit(data.features[data.train])
    model = LogisticRegression(C=1, max_iter=5000, tol=1e-9).fit(scaler.transform(data.features[data.train]), data.labels[data.train])
    for split in ("train", "val", "test"):
        rows = getattr(data, split)
        scores = model.decision_function(scaler.transform(data.features[rows]))
        expected = reference.average_precision_score(data.labels[rows], scores)
        assert by_rank["features"][split] == pytest.approx(expected, abs=1e-3)
        assert by_rank["prior"][split] == pytest.approx(data.labels[rows].mean())
    assert by_rank["rows"] == 300


@pytest.mark.parametrize("form, metric", [("classify", None), ("multilabel", None), ("multilabel", "macro-f1"), ("regress", None)])
def test_of_each_form_on_any_number_of_ranks(form, metric):
    data = dataset(form)
    by_rank = on_ranks(NodeTask(form, metric=metric), data, data.n_classes)
    prior, local = by_rank["prior"]["train"], by_rank["features"]["train"]
    assert local < prior if form == "regress" else local > prior
    if form == "regress":
        rows = data.train
        errors = data.labels[rows] - data.labels[rows].mean(0)
        assert prior == pytest.approx(np.sqrt(np.square(errors).mean(0)).mean(), rel=1e-6)


def test_the_sample_is_bounded_and_the_same_on_any_number_of_ranks(monkeypatch):
    monkeypatch.setattr(baseline, "MOST_ROWS", 80)
    by_rank = on_ranks(NodeTask(metric="ap"), rare(), 2)
    assert 40 < by_rank["rows"] < 120 and by_rank["features"]["val"] > by_rank["prior"]["val"]
    monkeypatch.setattr(baseline, "MOST_VALUES", 8 * 30)
    assert 10 < on_ranks(NodeTask(metric="ap"), rare(), 2)["rows"] < 60


def test_the_regression_sees_the_same_rows_in_the_same_order_on_any_number_of_ranks(monkeypatch):
    seen = []

    def watched(x, labels, n_outputs):
        if labels.ndim == 1:  # of two classes it calls itself, for one logit
            seen.append((x.tobytes(), labels.tobytes()))
        return logistic_regression(x, labels, n_outputs)

    monkeypatch.setattr(baseline, "logistic_regression", watched)
    on_ranks(NodeTask(metric="ap"), rare(), 2)
    assert len(seen) == 3 and len(set(seen)) == 1  # rank 0 alone, of 1, 2 and 3 ranks


def test_more_features_than_rows():
    data = dataset("classify")
    data.features = np.concatenate([np.asarray(data.features), DRAW.standard_normal((300, 200))], 1).astype(np.float32)
    train = np.flatnonzero(data.train)
    model = LogisticRegression(C=1, max_iter=5000, tol=1e-9).fit(
        scaled := StandardScaler().fit_transform(data.features[train]), data.labels[train])
    by_rank = on_ranks(NodeTask(), data, 4)
    assert by_rank["features"]["train"] == pytest.approx((model.predict(scaled) == data.labels[train]).mean(), abs=0.02)


def test_without_features_the_prior_is_all():
    data = rare()
    data.features = np.zeros((600, 0), np.float32)
    assert set(on_ranks(NodeTask(), data, 2)) == {"prior", "rows"}


def told(tmp_path, name, *flags):
    train_here(tmp_path / name, "--epochs", 1, *flags)
    result = json.loads((tmp_path / name / "summary.json").read_text())["counted"]
    result.get("baseline", {}).pop("seconds", None)
    return result.get("baseline")


def test_a_run_tells_them_beside_its_metric(tmp_path, capsys):
    format.write(tmp_path / "data", rare())
    one = told(tmp_path, "1", "--data", tmp_path / "data")
    out = capsys.readouterr().out
    assert "no edges " in out and "(logistic regression on the features)" in out and "(shares of the classes)" in out
    assert told(tmp_path, "3", "--data", tmp_path / "data", "--ranks", 3) == one
    assert told(tmp_path, "none", "--data", tmp_path / "data", "--no-baseline") is None
    assert "no edges" not in capsys.readouterr().out.rpartition("data  ")[2]


RUNS = {
    "label inputs": ["--model", "gcn", "--label-inputs", 0.5], "message flow": ["--mfg"],
    "batches": ["--batch-size", 40, "--fanouts", "3,3"], "regression": [],
}


@pytest.mark.parametrize("case", RUNS)
def test_other_runs_have_them_too(case, tmp_path):
    data = stored(tmp_path, "regress" if case == "regression" else "classify")
    one = told(tmp_path, "1", "--data", data, *RUNS[case])
    assert one == told(tmp_path, "2", "--data", data, "--ranks", 2, *RUNS[case]) and one["features"]["val"] is not None


def test_a_graph_has_the_mean_of_its_nodes_features(tmp_path):
    def features(comm):
        graph = graphs(comm)
        part = SimpleNamespace(graph=graph, rows=SimpleNamespace(features=FEATURES[graph.src_ids]), target="graph")
        return row_features(part)

    for n in (1, 3):
        for x, ids in threads.run(n, features) if n > 1 else [features(Solo())]:
            expected = [FEATURES[GRAPH_OF == graph].mean(0) if SIZES[graph] else np.zeros(4) for graph in ids]
            np.testing.assert_allclose(x, np.reshape(expected, (-1, 4)), rtol=1e-6)
    folder = write_tu(tmp_path / "SMALL")
    flags = ["--data", f"tu:{folder},train=0.5,val=0.2", "--model", "gin"]
    assert told(tmp_path, "1", *flags) == told(tmp_path, "2", *flags, "--ranks", 2) is not None


def test_a_pair_has_the_features_of_both_ends(tmp_path):
    pairs = np.stack([np.arange(200) * 7 % 300, np.arange(200) * 11 % 300], 1)
    x = np.asarray(load(DATA).features)
    kind = (x[pairs[:, 0], 0] > x[pairs[:, 1], 1]).astype(int)
    lines = [f"{a},{b},{k}" for (a, b), k in zip(pairs.tolist(), kind.tolist())]
    (tmp_path / "pairs.csv").write_text("source,target,kind\n" + "\n".join(lines) + "\n")
    flags = ["--edge-labels", f"{tmp_path / 'pairs.csv'},labels=kind", "--task", "classify", "--link-val", 0.2, "--link-test", 0.2]
    one = told(tmp_path, "1", *flags)
    assert one == told(tmp_path, "3", *flags, "--ranks", 3)
    assert 100 < one["rows"] < 140 and one["features"]["test"] > one["prior"]["test"] + 0.2


def test_of_relational_data_the_target_has_features_or_not(tmp_path):
    flags = ["--data", SPEC, "--model", "rgcn"]
    one = told(tmp_path, "1", *flags)
    assert one == told(tmp_path, "3", *flags, "--ranks", 3) and one["prior"]["val"] is not None


def test_links_have_none(tmp_path):
    assert told(tmp_path, "run", "--task", "link") is None
