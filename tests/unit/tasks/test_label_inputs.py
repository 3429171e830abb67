"""Labels as inputs: who shows its label when, that no label of validation or test ever is an input, and ranks that agree."""

import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from safetensors.numpy import load_file

from sarlite import Graph, Solo, Trainer, nn, optim
from sarlite.cli import config, smoothing_run
from sarlite.cli.settings import settings
from sarlite.comm import threads
from sarlite.errors import ConfigError, DataError
from sarlite.graph.correct_and_smooth import CorrectAndSmooth
from sarlite.models import GCN
from sarlite.tasks.node_task import NodeTask
from sarlite.tasks.shown_labels import LabelInputs, ShownLabels
from sarlite.train.loop import Best
from tests.helpers.graph.references import EDGES, FEATURES, LABELS, N_IN, N_OUT
from tests.helpers.train.training_runs import SMALL, train_here

pytestmark = pytest.mark.timeout(120)

SPLIT = np.random.default_rng(4).integers(0, 4, EDGES.n_nodes)
TRAIN, VAL, TEST = (SPLIT == 0) | (SPLIT == 3), SPLIT == 1, SPLIT == 2


def trainer(graph, labels=LABELS, share=0.4, train=TRAIN, val=VAL, seed=2):
    ids, rng = graph.node_ids, nn.Random(seed)
    model = GCN(N_IN + N_OUT, N_OUT, hidden=8, rng=rng, dtype=np.float64)
    return Trainer(graph, model, FEATURES[ids], labels[ids], train[ids], val[ids], TEST[ids], rng=rng,
                   optimizer=lambda flat: optim.Adam(flat, 0.05), task=NodeTask(label_inputs=LabelInputs(share, N_OUT)))


def shown(share=0.3, ids=None, seed=0):
    ids = np.arange(400) if ids is None else ids
    return ShownLabels(LabelInputs(share, 5), Solo(), np.ones((len(ids) + 2, 3)), np.arange(len(ids)), ids, ids % 5,
                       np.arange(len(ids), len(ids) + 2), seed)


def test_a_share_of_the_training_rows_shows_its_labels_and_the_rest_counts():
    labels, patterns = shown(), []
    for step in range(3):
        hidden, count = labels.draw(step)
        columns = labels.x[:, 3:]
        expected = np.zeros((402, 5))
        expected[np.arange(400), np.arange(400) % 5] = 1
        expected[hidden] = 0
        np.testing.assert_array_equal(columns, expected[:402])
        assert count == len(hidden) and 0.6 < count / 400 < 0.8
        patterns.append(tuple(hidden))
    assert len(set(patterns)) == 3
    np.testing.assert_array_equal(labels.draw(1)[0], patterns[1])
    assert tuple(shown(seed=1).draw(1)[0]) != patterns[1]
    labels.show_all()
    assert labels.x[:400, 3:].sum() == 400 and not labels.x[400:, 3:].any() and (labels.x[:, :3] == 1).all()


def test_whether_a_node_shows_its_label_goes_by_its_id():
    ids = np.random.default_rng(0).permutation(400)[:150]
    all_shown, some = shown(), shown(ids=ids)
    np.testing.assert_array_equal(np.sort(ids[some.draw(7)[0]]), np.intersect1d(all_shown.draw(7)[0], ids))


def test_where_chance_would_show_all_labels_none_is():
    one = shown(share=0.999, ids=np.array([3]))
    for step in range(5):
        hidden, count = one.draw(step)
        assert hidden.tolist() == [0] and count == 1 and not one.x[:, 3:].any()


def test_no_label_of_validation_or_test_reaches_the_model():
    """With other labels there every bit of the run stays, but for the reported scores."""
    other = np.where(TRAIN, LABELS, (LABELS + 1) % N_OUT)
    runs = [trainer(Graph.from_edges(*EDGES), labels) for labels in (LABELS, other)]
    scores = []
    for _ in range(4):
        losses = [run.step() for run in runs]
        assert losses[0] == losses[1]
        np.testing.assert_array_equal(runs[0].x.data, runs[1].x.data)
        scores.append([run.evaluate() for run in runs])
        assert (runs[0].x.data[TRAIN, N_IN:] == np.eye(N_OUT)[LABELS[TRAIN]]).all() and not runs[0].x.data[~TRAIN, N_IN:].any()
        np.testing.assert_array_equal(runs[0].x.data, runs[1].x.data)
    for one, two in scores:
        assert one["train_accuracy"] == two["train_accuracy"]
        assert one["val_loss"] != two["val_loss"]
    states = [{**run.model.state_dict(), **run.optimizer.state_dict(), "logits": run.predict()} for run in runs]
    for name, value in states[0].items():
        np.testing.assert_array_equal(value, states[1][name], err_msg=name)


def test_what_is_predicted_in_a_step_is_no_input():
    run = trainer(Graph.from_edges(*EDGES))
    seen = []

    def loss(output, targets, rows, count):
        seen.append((run.x.data[rows, N_IN:].any(), len(rows), count))
        return before(output, targets, rows, count)

    before, run.loss = run.loss, loss
    run.step()
    assert seen == [(False, seen[0][1], seen[0][1])] and 0 < seen[0][1] < TRAIN.sum()


def curve(comm, parts=None, **how):
    graph = Graph.from_edges(*EDGES)
    run = trainer(graph.shard(comm, parts, **how) if comm.size > 1 else graph)
    scores = [(run.step(), run.evaluate()["val_loss"]) for _ in range(3)]
    return run.graph.node_ids, run.predict(), scores


@pytest.mark.parametrize("n, mode", [(2, "oneshot"), (3, "sar"), (4, "sa")])
def test_curves_with_label_inputs_agree_on_any_number_of_ranks(n, mode):
    _, expected, scores = curve(Solo())
    parts = np.arange(EDGES.n_nodes) % n if n < 4 else np.where(TRAIN, 0, 1 + np.arange(EDGES.n_nodes) % 2)  # ranks without training rows
    for ids, logits, of_rank in threads.run(n, curve, parts, mode=mode):
        np.testing.assert_allclose(logits, expected[ids], rtol=1e-12, atol=1e-13)
        np.testing.assert_allclose(of_rank, scores, rtol=1e-12)


def test_bad_input_is_refused():
    graph = Graph.from_edges(*EDGES)
    overlap = VAL | (np.cumsum(TRAIN) == 3)
    node = np.flatnonzero(TRAIN)[2]
    with pytest.raises(DataError, match=f"label inputs: node {node} is in the training split"):
        trainer(graph, val=overlap)
    for rows, labels, kind, words in (({"val": [1]}, [0, 1, 2], DataError, "node 7 is in the training split"),
                                      ({"test": [0]}, [0, 1, 2], DataError, "node 5 is in the training split"),
                                      ({}, [0.0, 1.0, 2.0], ConfigError, "labels are float64 of shape")):
        splits = {name: np.array(rows.get(name, []), np.int64) for name in ("val", "test")} | {"train": np.arange(2)}
        with pytest.raises(kind, match=words):
            ShownLabels.of(LabelInputs(0.5, 3), SimpleNamespace(comm=Solo(), dst_ids=[5, 7, 9]), np.ones((3, 1)), np.array(labels),
                           splits, 0)
    with pytest.raises(DataError, match="label 3 of 3 classes"):
        ShownLabels(LabelInputs(0.5, 3), Solo(), np.ones((4, 1)), np.arange(4), np.arange(4), np.arange(4), np.arange(0), 0)
    for share in (0.0, 1.0, float("nan")):
        with pytest.raises(ConfigError, match="share"):
            trainer(graph, share=share)
    for flags, said in ((["--label-inputs", "1"], "--label-inputs 1.0 is not above 0 and below 1"),
                        (["--label-inputs", "0.5", "--batch-size", "9", "--fanouts", "2", "--remote", "hec"], "does not go with --remote"),
                        (["--smooth-alpha", "0.5"], "--smooth-alpha has no effect without --correct-and-smooth"),
                        (["--correct-and-smooth", "--smooth-alpha", "2"], "smooth_alpha is 2.0")):
        with pytest.raises(ConfigError, match=said):
            settings(config.parse([*SMALL, *flags]))


@pytest.mark.parametrize("is_kept", [True, False])
def test_after_training_the_best_model_is_smoothed_where_validation_does_not_lose(is_kept, tmp_path):
    run, best = trainer(Graph.from_edges(*EDGES), LABELS.copy()), Best()
    for _ in range(5):
        run.step()
    best.update(1, run.evaluate(), run.model)
    logits = run.predict()
    for _ in range(2):
        run.step()
    probabilities = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    scores = CorrectAndSmooth(smooth_alpha=0.9)(run.graph, probabilities, LABELS, TRAIN)
    run.labels[VAL] = (scores if is_kept else probabilities)[VAL].argmax(1)  # so that one of them is right everywhere
    options = config.parse([*SMALL, "--correct-and-smooth", "--smooth-alpha", "0.9"])
    result = smoothing_run.after_training(run, best, options.smoothing.smoother(), tmp_path / "predictions.npy")
    assert result["kept"] is is_kept and (result["val_accuracy"] == 1) is is_kept
    assert result["test_accuracy"] == (scores[TEST].argmax(1) == LABELS[TEST]).mean()
    np.testing.assert_allclose(np.load(tmp_path / "predictions.npy"), scores if is_kept else probabilities, rtol=1e-12, atol=1e-14)


def test_a_run_with_label_inputs_and_smoothing_on_one_and_three_ranks_and_resumed(tmp_path):
    flags = ["--label-inputs", "0.5", "--correct-and-smooth", "--dtype", "float64", "--dropout", "0.3"]
    one = train_here(tmp_path / "one", *flags, "--epochs", 4)
    three = train_here(tmp_path / "three", *flags, "--epochs", 2, "--ranks", 3, "--partition", "random")
    checkpoint = tmp_path / "three" / "checkpoint.safetensors"
    assert [m["loss"] for m in three] == pytest.approx([m["loss"] for m in one[:2]], rel=1e-11)
    resumed = train_here(tmp_path / "three", "--resume", checkpoint, "--epochs", 4)
    assert [m["loss"] for m in resumed] == pytest.approx([m["loss"] for m in one], rel=1e-11)
    actual, expected = (np.load(tmp_path / name / "predictions.npy") for name in ("three", "one"))
    assert actual.shape == (300, 4)
    np.testing.assert_allclose(actual, expected, rtol=1e-8, atol=1e-10)
    width = load_file(checkpoint)["model.convs.0.root.weight"].shape[0]
    assert width == 16 + 4
    with pytest.raises(ConfigError, match="--label-inputs 0.2: cannot change"):
        train_here(tmp_path / "three", "--resume", checkpoint, "--epochs", 5, "--label-inputs", "0.2")


def test_the_benchmark_writes_a_row_for_each_way_and_number_of_ranks(tmp_path, monkeypatch, capsys):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[3] / "benchmarks"))
    import label_inputs_accuracy

    small = ["--data", "sbm:nodes=200,homophily=0.9", "--pages", "sbm:nodes=200", "--epochs", "2", "--pages-epochs", "2", "--hidden", "4"]
    label_inputs_accuracy.main([*small, "--cases", "labels,ranks", "--seeds", "1", "--ranks", "2", "--json", str(tmp_path / "rows.json")])
    rows = json.loads((tmp_path / "rows.json").read_text())
    assert [(row["case"], row["way"], row["ranks"]) for row in rows] == [("labels", "plain", 1), ("labels", "label inputs", 1),
                                                                         ("ranks", "GAT", 1), ("ranks", "GAT", 2)]
    assert all(row["val_after"] >= row["val"] and (row["test_after"] == row["test_raw"] or not row["kept"]) for row in rows)
    assert abs(rows[2]["test"] - rows[3]["test"]) < 3 and abs(rows[2]["test_after"] - rows[3]["test_after"]) < 3
    assert "C&S not kept" in capsys.readouterr().out
