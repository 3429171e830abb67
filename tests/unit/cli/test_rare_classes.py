"""Test rare classes in commands: default metric, class weights, threshold and predictions, on any number of ranks."""

import json

import numpy as np
import pytest
from sklearn import metrics as reference

from sarlite.cli import class_report
from sarlite.data import format, load
from sarlite.errors import ConfigError
from sarlite.tasks.node_task import NodeTask
from sarlite.train import checkpoint
from tests.helpers.graph.graph_sets import write_tu
from tests.helpers.train.predicting import predict_here
from tests.helpers.train.task_data import dataset, rare, stored
from tests.helpers.train.training_runs import DATA, train_here

FLAGS = ["--dtype", "float64", "--epochs", 12, "--lr", "0.05"]


@pytest.fixture
def data(tmp_path):
    format.write(tmp_path / "data", rare())
    return tmp_path / "data"


def summary(run_dir):
    return json.loads((run_dir / "summary.json").read_text())


def test_with_a_rare_class_the_default_metric_is_average_precision(data, tmp_path, capsys):
    lines = train_here(tmp_path / "run", "--data", data, *FLAGS)
    shown = capsys.readouterr().out
    assert "rare among the training rows: class 1 " in shown and "so the metric is ap" in shown and "positive class: class 1" in shown
    best = max(lines, key=lambda line: (line["val_ap"], -line["val_loss"]))
    assert summary(tmp_path / "run")["best"]["epoch"] == best["epoch"]
    probabilities, _ = predict_here(tmp_path / "run", tmp_path / "p.npy")
    graph_data = rare()
    score = reference.average_precision_score(graph_data.labels[graph_data.val] == 1, probabilities[graph_data.val, 1])
    assert best["val_ap"] == pytest.approx(score, rel=1e-9)


def test_a_rare_first_class_is_the_positive_one(tmp_path, capsys):
    format.write(tmp_path / "data", rare(class_names=["fraud", "ok"], flip=True))
    lines = train_here(tmp_path / "run", "--data", tmp_path / "data", *FLAGS)
    assert "positive class: fraud" in capsys.readouterr().out
    graph_data, (probabilities, _) = rare(flip=True), predict_here(tmp_path / "run", tmp_path / "p.npy")
    score = reference.average_precision_score(graph_data.labels[graph_data.val] == 0, probabilities[graph_data.val, 0])
    assert max(line["val_ap"] for line in lines) == pytest.approx(score, rel=1e-9)
    train_here(tmp_path / "ok", "--data", tmp_path / "data", *FLAGS, "--positive", "ok")
    assert "positive class: ok" in capsys.readouterr().out and summary(tmp_path / "ok")["best"]["scores"]["val_ap"] > 0.9


def test_of_more_classes_the_default_metric_is_macro_f1(tmp_path, capsys):
    format.write(tmp_path / "data", rare(3, class_names=["a", "b", "c"]))
    lines = train_here(tmp_path / "run", "--data", tmp_path / "data", *FLAGS)
    assert "b " in capsys.readouterr().out and "val_macro_f1" in lines[0]


def test_without_a_rare_class_nothing_is_said(tmp_path, capsys):
    lines = train_here(tmp_path / "run", *FLAGS)
    assert "rare among" not in capsys.readouterr().out and "val_accuracy" in lines[0]


def test_a_model_that_predicts_one_class_is_told(data, tmp_path, capsys):
    train_here(tmp_path / "run", "--data", data, "--epochs", 2, "--lr", "0.01", "--class-weights", "0:50,1:1")
    assert "warning: the best model predicts class 0 for all validation rows" in capsys.readouterr().err


@pytest.mark.parametrize("predicted, n", [([2, 0], 1), ([1, 0], 0), ([1, 1], 0)])
def test_a_single_validation_row_gives_no_warning_about_one_class(predicted, n):
    assert len([*class_report.warnings(NodeTask(), {"predicted": {"val": predicted}}, ["yes", "no"])]) == n


def best_f1(scores, true):
    """Return the largest F1 score of all thresholds, and its threshold."""
    tried = [(reference.f1_score(true, scores >= score), score) for score in np.unique(scores)]
    return max(tried)


def best_recall(scores, true, precision=0.5):
    """Return the highest threshold with the largest recall among all thresholds that reach the precision."""
    tried = [score for score in np.unique(scores) if reference.precision_score(true, scores >= score) >= precision]
    return max((reference.recall_score(true, scores >= score), score) for score in tried)[1]


RULES = {"best-f1": lambda p, true: best_f1(p, true)[1], "precision=0.5": best_recall}


@pytest.mark.parametrize("rule", RULES)
def test_the_threshold_is_the_rules_and_predict_uses_it(rule, data, tmp_path):
    train_here(tmp_path / "run", "--data", data, *FLAGS, "--threshold", rule, "--class-weights", "balanced", "--loss", "focal")
    graph_data, (probabilities, classes) = rare(), predict_here(tmp_path / "run", tmp_path / "p.npy")
    p, true = probabilities[:, 1], graph_data.labels == 1
    lowest = RULES[rule](p[graph_data.val], true[graph_data.val])
    [threshold] = checkpoint.load_metadata(tmp_path / "run" / "checkpoint.safetensors")["thresholds"]
    lower = p[graph_data.val][p[graph_data.val] < lowest].max()
    assert lower < threshold <= lowest and threshold == pytest.approx((lower + lowest) / 2, rel=1e-9)
    assert np.array_equal(classes == 1, p >= threshold)
    scores = summary(tmp_path / "run")["outcome"]["threshold"]["splits"]["test"]
    assert scores["precision"] == pytest.approx(reference.precision_score(true[graph_data.test], classes[graph_data.test]))
    assert scores["f1"] == pytest.approx(reference.f1_score(true[graph_data.test], classes[graph_data.test]))
    _, half = predict_here(tmp_path / "run", tmp_path / "half.npy", "--threshold", 0.5)
    assert np.array_equal(half, probabilities.argmax(1)) and not np.array_equal(half, classes)


def test_of_labels_each_has_a_threshold(tmp_path):
    train_here(tmp_path / "run", "--data", stored(tmp_path, "multilabel"), *FLAGS, "--threshold", "best-f1", "--metric", "ap",
               "--class-weights", "0:3")
    graph_data, (probabilities, labels) = dataset("multilabel"), predict_here(tmp_path / "run", tmp_path / "p.npy", "--ranks", 2)
    thresholds = checkpoint.load_metadata(tmp_path / "run" / "checkpoint.safetensors")["thresholds"]
    for column, threshold in enumerate(thresholds):
        score, lowest = best_f1(probabilities[graph_data.val, column], graph_data.labels[graph_data.val, column])
        assert reference.f1_score(graph_data.labels[graph_data.val, column], labels[graph_data.val, column]) == pytest.approx(score)
        assert threshold <= lowest + 1e-12
    assert labels.dtype == np.uint8 and len(thresholds) == 3


@pytest.mark.sampled(2)
@pytest.mark.parametrize("flags", [[], ["--batch-size", 60, "--fanouts", "4,4"], ["--mfg"]])
def test_runs_agree_on_any_number_of_ranks(flags, data, tmp_path):
    arguments = ["--data", data, *FLAGS, "--numerics", "exact", "--threshold", "best-f1", "--class-weights", "0:1,1:9", *flags]
    one = train_here(tmp_path / "1", *arguments)
    three = train_here(tmp_path / "3", *arguments, "--ranks", 3)
    for line in (*one, *three):
        del line["seconds"]
    assert one == three
    a, b = (summary(tmp_path / name)["outcome"] for name in "13")
    assert a == b and a["calibration"]["test"]["brier"] > 0
    assert sum(map(sum, a["scores"]["splits"]["test"])) == 150


def test_the_outcome_changes_no_parameter(data, tmp_path):
    """The checkpoint has the parameters of the last epoch, and a resumed run does not depend on the evaluation."""
    straight = train_here(tmp_path / "straight", "--data", data, *FLAGS)
    train_here(tmp_path / "nine", "--data", data, *FLAGS[:2], "--epochs", 9, "--lr", "0.3", "--threshold", "best-f1")
    tensors, metadata = checkpoint.load(tmp_path / "nine" / "checkpoint.safetensors")
    assert metadata["best"]["epoch"] < 9 == metadata["epoch"]
    assert any(not np.array_equal(tensors[name], tensors[f"best.{name[6:]}"]) for name in tensors if name.startswith("model."))
    train_here(tmp_path / "five", "--data", data, *FLAGS[:2], "--epochs", 5, "--lr", "0.05")
    rest = train_here(tmp_path / "rest", "--resume", tmp_path / "five" / "checkpoint.safetensors", "--data", data, *FLAGS)
    for a, b in zip(straight[5:], rest):
        assert {**a, "seconds": 0} == {**b, "seconds": 0}


def test_a_run_that_stops_early_stores_its_threshold(data, tmp_path):
    """A checkpoint of the last epoch is written again, with the threshold."""
    lines = train_here(tmp_path / "run", "--data", data, *FLAGS[:2], "--lr", "0.05", "--epochs", 60, "--patience", 4,
                       "--checkpoint-every", 1, "--threshold", "best-f1")
    metadata = checkpoint.load_metadata(tmp_path / "run" / "checkpoint.safetensors")
    assert len(lines) < 60 and metadata["epoch"] == len(lines) and len(metadata["thresholds"]) == 1


def test_a_run_that_was_cut_off_has_no_threshold(data, tmp_path):
    train_here(tmp_path / "run", "--data", data, *FLAGS, "--threshold", "best-f1")
    path = tmp_path / "run" / "checkpoint.safetensors"
    tensors, metadata = checkpoint.load(path)
    del metadata["thresholds"]
    checkpoint.save(path, tensors, metadata)
    with pytest.raises(Exception, match="ended before .*--resume, .*--threshold"):
        predict_here(tmp_path / "run", tmp_path / "p.npy")


WRONG = {
    "--metric 'auc' is not one of accuracy": ["--metric", "auc"],
    "--metric 'top@0': K of top@K cannot be '0'": ["--metric", "top@0"],
    "metric of task classify: 'rmse' is not one of": ["--metric", "rmse", "--task", "classify"],
    "--loss 'focal:-1': the parameter of focal must be a number above 0": ["--loss", "focal:-1"],
    "--class-weights 'a': 'a' is not CLASS:WEIGHT": ["--class-weights", "a"],
    "--class-weights 'a:0': 'a:0' is not CLASS:WEIGHT": ["--class-weights", "a:0"],
    "--class-weights: 'ok' is not a class of the data, which have 0, 1": ["--class-weights", "ok:2"],
    "--positive: '2' is not a class of the data, which have 0, 1": ["--positive", "2"],
    "--threshold 'f1': expected best-f1, precision=P": ["--threshold", "f1"],
    "--threshold '1.5': expected best-f1": ["--threshold", "1.5"],
    "--threshold 'precision=0': expected best-f1": ["--threshold", "precision=0"],
}


@pytest.mark.parametrize("message", WRONG)
def test_refusals_name_the_flag_and_the_value(message, data, tmp_path):
    with pytest.raises(ConfigError) as refusal:
        train_here(tmp_path / "run", "--data", data, *WRONG[message])
    assert message in str(refusal.value)
    assert not (tmp_path / "run" / "metrics.jsonl").exists()


def test_options_of_classes_are_refused_for_other_tasks(tmp_path):
    data = stored(tmp_path, "regress")
    for flags in (["--class-weights", "balanced"], ["--positive", "0"], ["--threshold", "best-f1"]):
        with pytest.raises(ConfigError, match=f"{flags[0]} {flags[1]}: applies to .* the task is regress"):
            train_here(tmp_path / "run", "--data", data, *flags)
    with pytest.raises(ConfigError, match="--positive 0: .*two classes, .*4"):
        train_here(tmp_path / "run", "--positive", "0")


def test_labels_of_edges_have_weights_thresholds_and_a_default_metric(tmp_path):
    pairs = np.stack([np.arange(250) * 7 % 300, np.arange(250) * 11 % 300], 1)
    x = np.asarray(load(DATA).features)
    score = x[pairs[:, 0], 0] + x[pairs[:, 1], 1]
    kind = np.where(score > np.sort(score)[-20], "fraud", "ok")
    lines = [f"{a},{b},{word}" for (a, b), word in zip(pairs.tolist(), kind)]
    (tmp_path / "pairs.csv").write_text("source,target,kind\n" + "\n".join(lines) + "\n")
    flags = ["--edge-labels", f"{tmp_path / 'pairs.csv'},labels=kind", "--task", "classify", "--link-val", 0.3, "--link-test", 0.3,
             "--class-weights", "fraud:9,ok:1", "--threshold", "best-f1", "--loss", "focal", *FLAGS, "--numerics", "exact"]
    one, three = train_here(tmp_path / "1", *flags), train_here(tmp_path / "3", *flags, "--ranks", 3)
    assert [line["val_ap"] for line in one] == [line["val_ap"] for line in three] and one[-1]["val_ap"] is not None
    asked = tmp_path / "asked.csv"
    asked.write_text("source,target\n" + "\n".join(f"{a},{b}" for a, b in pairs.tolist()) + "\n")
    [threshold] = checkpoint.load_metadata(tmp_path / "3" / "checkpoint.safetensors")["thresholds"]
    probabilities, classes = predict_here(tmp_path / "3", tmp_path / "p.npy", "--links", asked)
    assert np.array_equal(classes == 0, probabilities[:, 0] >= threshold)


def test_graphs_have_weights_and_thresholds(tmp_path):
    folder = write_tu(tmp_path / "SMALL")
    flags = ["--data", f"tu:{folder},train=0.5,val=0.2", "--model", "gin", "--class-weights", "balanced", "--metric", "mcc", "--epochs", 3,
             "--dtype", "float64"]
    one, two = train_here(tmp_path / "1", *flags), train_here(tmp_path / "2", *flags, "--ranks", 2)
    for a, b in zip(one, two):
        assert a["loss"] == pytest.approx(b["loss"], rel=1e-9) and a["val_mcc"] == b["val_mcc"]
