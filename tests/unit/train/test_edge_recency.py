"""The option --edge-recency: a class that only recency tells, refusals, and predictions that equal the evaluation of the run."""

import json

import numpy as np
import pytest
from sklearn.metrics import log_loss

from sarlite.cli.explain_command import main as explain
from sarlite.cli.options import MinibatchOptions
from sarlite.cli.predict_command import main as predict
from sarlite.cli.train_command import main as train
from sarlite.data import format, from_tables
from sarlite.train.batch_sources import temporal_of
from sarlite.train.load import Shard
from tests.helpers.train.predicting import predict_here

pytestmark = pytest.mark.timeout(300)
N_TARGETS, DAY = 120, np.timedelta64(1, "D")
BATCHES = ("--temporal", "uniform", "--batch-size", "40", "--fanouts", "all", "--layers", "1")
GAT = ("--model", "gat", "--out-heads", "2", "--dropout", "0", "--attention-dropout", "0", "--no-self-loops",
       "--lr", "0.05")


def tables(dates=True, timed_edges=True):
    """Return nodes with one edge from a node of either kind, whose label is the kind of the later edge.

    The first two nodes are the two kinds and have no label. Nothing but the times of the edges tells the label.
    """
    rng = np.random.default_rng(0)
    labels, at = rng.integers(0, 2, N_TARGETS), rng.integers(100, 200, N_TARGETS)
    kinds, dst = np.tile([0, 1], N_TARGETS), np.repeat(np.arange(2, N_TARGETS + 2), 2)
    days = np.repeat(at, 2) - np.where(kinds == np.repeat(labels, 2), 2, 60)
    node_times, edge_times = np.concatenate([[0, 0], at]), days
    if dates:
        node_times, edge_times = (np.datetime64("2026-01-01") + times * DAY for times in (node_times, edge_times))
    features = {"a": [1.0, 0.0, *[0.0] * N_TARGETS], "b": [0.0, 1.0, *[0.0] * N_TARGETS]}
    split = ["", "", *np.where(np.arange(N_TARGETS) % 3 < 2, "train", np.where(np.arange(N_TARGETS) % 2, "val", "test"))]
    nodes = {"file": {"id": [*range(N_TARGETS + 2)], **features, "y": ["", "", *map(str, labels)], "at": node_times, "part": split},
             "id": "id", "label": "y", "time": "at", "split": "part"}
    edges = {"relation": ["node", "edge", "node"], "file": {"s": kinds, "d": dst, "t": edge_times}, "src": "s", "dst": "d",
             "reverse": False, **({"time": "t"} if timed_edges else {})}
    return from_tables({"nodes": {"node": nodes}, "edges": [edges]})


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("recency")
    format.write(folder / "dates", tables())
    format.write(folder / "integers", tables(dates=False))
    format.write(folder / "timeless", tables(timed_edges=False))
    return folder


def run(data, folder, capsys, *flags, epochs=30):
    status = train(["--data", str(data), "--run-dir", str(folder), "--epochs", str(epochs), "--no-baseline", *BATCHES, *flags])
    return status, capsys.readouterr()


def epochs_of(folder):
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def test_a_class_that_only_recency_tells_is_learned_with_it_and_not_without(data, tmp_path, capsys):
    status, shown = run(data / "dates", tmp_path / "with", capsys, *GAT, "--edge-recency")
    assert status == 0, shown.err
    assert "edge recency: the last edge feature is log(1 + days from the edge to the seed)" in shown.out
    assert epochs_of(tmp_path / "with")[-1]["val_accuracy"] > 0.95
    status, shown = run(data / "dates", tmp_path / "without", capsys, *GAT)
    assert status == 0 and "edge recency" not in shown.out
    assert max(epoch["val_accuracy"] for epoch in epochs_of(tmp_path / "without")) < 0.8


def test_a_unit_of_dates_is_a_day_in_nanoseconds(data):
    assert format.open(data / "dates").target_nodes.time[2] % (DAY // np.timedelta64(1, "ns")) == 0
    asked, part = MinibatchOptions(temporal="uniform", edge_recency=True), Shard(None, None, 2, {}, None, {}, time_kind="dates")
    assert temporal_of(asked, part).recency == DAY / np.timedelta64(1, "ns")
    assert temporal_of(asked, part._replace(time_kind="integers")).recency == 1
    assert temporal_of(MinibatchOptions(temporal="uniform"), part).recency is None


def test_predictions_equal_the_evaluation_of_the_run(data, tmp_path, capsys):
    status, shown = run(data / "dates", tmp_path / "run", capsys, *GAT, "--edge-recency", epochs=1)
    assert status == 0, shown.err
    (epoch,) = epochs_of(tmp_path / "run")
    outputs, _ = predict_here(tmp_path / "run", tmp_path / "one.npy")
    dataset = format.open(data / "dates")
    labels, rows = np.asarray(dataset.target_nodes.labels), np.flatnonzero(dataset.target_nodes.val)
    np.testing.assert_allclose(log_loss(labels[rows], outputs[rows]), epoch["val_loss"], rtol=1e-5)
    three, _ = predict_here(tmp_path / "run", tmp_path / "three.npy", "--ranks", "3")
    np.testing.assert_allclose(three, outputs, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("task", [(), ("--task", "link", "--link-val", "0.2", "--link-test", "0.2")])
def test_runs_with_recency_are_one_ranks_on_two_and_three(data, tmp_path, capsys, task):
    flags = ("--model", "gat", "--edge-recency", "--dtype", "float64", *task)
    losses = []
    for ranks in ("1", "2", "3"):
        status, shown = run(data / "dates", tmp_path / ranks, capsys, *flags, "--ranks", ranks, epochs=2)
        assert status == 0, shown.err
        losses.append([epoch["loss"] for epoch in epochs_of(tmp_path / ranks)])
    np.testing.assert_allclose(losses[1], losses[0], rtol=1e-10)
    np.testing.assert_allclose(losses[2], losses[0], rtol=1e-10)


OWN_MODEL = """
from sarlite import fn, nn


class Own(nn.Module):
    def __init__(self, n_in, n_out, *, edge_features, rng, dtype):
        self.linear, self.of_edges = nn.Linear(n_in, n_out, rng=rng, dtype=dtype), nn.Linear(edge_features, n_out, rng=rng, dtype=dtype)
        assert edge_features == 1

    def __call__(self, graph, h):
        def message(src, dst, edge):
            return src["z"] * self.of_edges(edge["recency"])
        (graph,) = graph.layers(1)
        return graph.aggregate(fn.message(message, {"z": self.linear(h)}, edge={"recency": graph.edge_features}), "sum")
"""


def test_a_class_in_a_file_gets_the_column(data, tmp_path, capsys):
    (tmp_path / "own.py").write_text(OWN_MODEL)
    flags = ("--temporal", "uniform", "--batch-size", "40", "--fanouts", "all", "--edge-recency", "--dtype", "float64")
    status = train(["--data", str(data / "integers"), "--run-dir", str(tmp_path / "run"), "--epochs", "1", "--no-baseline",
                    "--model", f"{tmp_path}/own.py:Own", *flags])
    shown = capsys.readouterr()
    assert status == 0, shown.err
    assert "log(1 + units of time from the edge to the seed)" in shown.out


def test_a_checkpoint_refuses_times_of_another_kind_and_explanations(data, tmp_path, capsys):
    status, shown = run(data / "dates", tmp_path / "run", capsys, *GAT, "--edge-recency", epochs=1)
    assert status == 0, shown.err
    out = str(tmp_path / "out.csv")
    assert predict(["--checkpoint", str(tmp_path / "run"), "--data", str(data / "integers"), "--out", out]) == 2
    assert "its run has --edge-recency with times that are dates, but the times of --data" in capsys.readouterr().err
    (tmp_path / "nodes.csv").write_text("5\n")
    assert explain(["--checkpoint", str(tmp_path / "run"), "--nodes", str(tmp_path / "nodes.csv"), "--out", out]) == 2
    assert "the run has --edge-recency, but explain does not compute recency" in capsys.readouterr().err


def test_edges_without_times_are_refused(data, tmp_path, capsys):
    status, shown = run(data / "timeless", tmp_path / "run", capsys, *GAT, "--edge-recency")
    assert status == 2 and "--edge-recency: the edges have no times" in shown.err and not (tmp_path / "run").exists()


@pytest.mark.parametrize("flags, message", [
    (("--model", "sage", "--edge-recency"), "--edge-recency: the model sage takes no edge features: --model gat does"),
    (("--model", "gatv2", "--edge-recency"), "--edge-recency: the model gatv2 takes no edge features"),
])  # fmt: skip
def test_a_model_without_edge_features_is_refused(data, tmp_path, capsys, flags, message):
    status, shown = run(data / "dates", tmp_path / "run", capsys, *flags)
    assert status == 2 and message in shown.err and not (tmp_path / "run").exists()


def test_recency_without_temporal_is_refused(data, tmp_path, capsys):
    status = train(["--data", str(data / "dates"), "--run-dir", str(tmp_path / "run"), "--model", "gat", "--edge-recency"])
    assert status == 2 and "--edge-recency has no effect without --temporal" in capsys.readouterr().err
