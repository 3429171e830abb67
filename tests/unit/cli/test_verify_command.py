"""Test that sarlite-verify detects changes in a run's folder, and accepts an unchanged run on any number of ranks."""

import json
import shutil

import numpy as np
import pytest

from sarlite import data
from sarlite.cli import verify_command
from sarlite.cli.train_command import main as train
from sarlite.cli.verify_command import main as verify
from sarlite.data import format as native
from sarlite.train import checkpoint
from tests.helpers.train.training_runs import start_here

pytestmark = pytest.mark.timeout(300)
EPOCHS = 6


@pytest.fixture(scope="module")
def published(tmp_path_factory):
    """Write a data set and train on it in exact numerics with --keep 3; return the folder of both."""
    folder = tmp_path_factory.mktemp("published")
    native.write(folder / "graph", data.load("sbm:nodes=90,classes=3,features=5"))
    words = ["--data", str(folder / "graph"), "--model", "sage", "--hidden", "4", "--layers", "2", "--epochs", str(EPOCHS),
             "--threads", "1", "--lr-schedule", "cosine", "--numerics", "exact", "--keep", "3", "--run-dir", str(folder / "run"),
             "--progress", "none"]
    assert train(words) == 0
    return folder


@pytest.fixture
def untouched(published, tmp_path):
    """Return the folder of a copy of the run."""
    shutil.copytree(published / "run", tmp_path / "run")
    return tmp_path / "run"


@pytest.fixture
def run(untouched, monkeypatch):
    """Return the folder of a copy of the run. Its segments are computed in this process, which saves the starts of processes."""
    monkeypatch.setattr(verify_command, "start_training", start_here)
    return untouched


def edit_record(run, epoch, **changes):
    lines = (run / "metrics.jsonl").read_text().splitlines()
    lines[epoch - 1] = json.dumps({**json.loads(lines[epoch - 1]), **changes})
    (run / "metrics.jsonl").write_text("\n".join(lines) + "\n")


def test_a_run_that_nobody_touched_is_verified_on_any_number_of_ranks(untouched, capsys):
    """The segments are computed by processes, as users have them."""
    assert verify([str(untouched), "--all"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "verified"
    assert verify([str(untouched), "--segments", "1", "--seed", "3", "--ranks", "3", "--mode", "oneshot"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith(f"{untouched}: 1 of 3 segments, 2 of 6 epochs, drawn with --seed 3") and len(lines) == 4


def test_each_epoch_has_its_own_hash_of_the_parameters(run):
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert len({record["parameters"] for record in records}) == EPOCHS == len(records)
    assert sorted(path.name for path in run.glob("kept-*")) == [f"kept-00000{epoch}.safetensors" for epoch in (2, 4, 6)]


def test_an_edited_record_is_found(run, capsys):
    edit_record(run, 3, val_accuracy=0.999)
    assert verify([str(run), "--all"]) == 1
    shown = capsys.readouterr().out
    assert "epoch 3: val_accuracy: recorded 0.999" in shown and "NOT verified" in shown


def test_a_skipped_step_is_found(run, capsys):
    """The record of epoch 4 is copied into the place of epoch 5."""
    lines = (run / "metrics.jsonl").read_text().splitlines()
    lines[4] = json.dumps({**json.loads(lines[3]), "epoch": 5})
    (run / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    assert verify([str(run), "--all"]) == 1
    assert "epoch 5: parameters" in capsys.readouterr().out


@pytest.mark.parametrize("old, new", [("lr = 0.01", "lr = 0.02"), ("weight_decay = 0.0", "weight_decay = 0.1")])
def test_a_changed_option_is_found(run, capsys, old, new):
    text = (run / "config.toml").read_text()
    assert old in text
    (run / "config.toml").write_text(text.replace(old, new))
    assert verify([str(run), "--all"]) == 1
    assert "NOT verified" in capsys.readouterr().out


@pytest.mark.sampled(1)
@pytest.mark.parametrize("field", ["labels", "features"])
def test_changed_data_are_found(published, untouched, tmp_path, capsys, field):
    dataset = data.load(str(published / "graph"))
    table = dataset.nodes["node"]
    values = np.array(getattr(table, field))
    values[table.train.nonzero()[0][0]] = (values[0] + 1) % 3 if field == "labels" else values[0] + 1
    native.write(tmp_path / "graph", type(dataset).of_tables([_with(table, field, values)], [*dataset.edges.values()], "node", "changed"))
    assert verify([str(untouched), "--all", "--data", str(tmp_path / "graph")]) == 1
    out, err = capsys.readouterr()
    assert "NOT verified" in out and (field == "features" or "digest" in out + err or "data" in out + err)


def _with(table, field, values):
    fields = {name: getattr(table, name) for name in ("features", "labels", "train", "val", "test", "n_classes", "task")}
    return type(table)("node", table.n_nodes, **{**fields, field: values})


def test_an_edited_checkpoint_is_found(run, capsys):
    path = run / "kept-000004.safetensors"
    tensors, meta = checkpoint.load(path)
    tensors = {name: np.array(array) for name, array in tensors.items()}
    name = next(name for name in tensors if tensors[name].dtype == np.float32 and tensors[name].size)
    tensors[name].reshape(-1)[0] += 1
    checkpoint.save(path, tensors, meta)
    assert verify([str(run), "--all"]) == 1
    assert "NOT verified" in capsys.readouterr().out


@pytest.mark.parametrize("kept", ["kept-000002.safetensors", None])
def test_another_published_checkpoint_is_found(run, capsys, kept):
    if kept:
        shutil.copy(run / kept, run / "checkpoint.safetensors")
    else:
        (run / "checkpoint.safetensors").unlink()
    assert verify([str(run), "--segments", "1", "--seed", "0"]) == (1 if kept else 2)
    out, err = capsys.readouterr()
    assert "checkpoint.safetensors" in out + err and "\nverified" not in out


def test_an_edited_score_of_the_summary_is_found(run, capsys):
    summary = json.loads((run / "summary.json").read_text())
    summary["best"]["scores"]["test_accuracy"] = 0.99
    (run / "summary.json").write_text(json.dumps(summary))
    assert verify([str(run), "--segments", "1", "--seed", "0"]) == 1
    assert "summary.json: test_accuracy 0.99 of epoch" in capsys.readouterr().out


def test_a_run_without_what_is_needed_is_refused_by_name(published, run, tmp_path, capsys):
    for path in run.glob("kept-*"):
        path.unlink()
    assert verify([str(run)]) == 2 and "--keep" in capsys.readouterr().err
    words = ["--data", str(published / "graph"), "--model", "sage", "--epochs", "1", "--threads", "1", "--run-dir", str(tmp_path / "fast")]
    assert train([*words, "--progress", "none"]) == 0
    capsys.readouterr()
    assert verify([str(tmp_path / "fast")]) == 2 and "numerics exact" in capsys.readouterr().err
    shutil.rmtree(run)
    assert verify([str(run)]) == 2 and "metrics.jsonl" in capsys.readouterr().err


def test_missing_epochs_are_found(run, capsys):
    lines = (run / "metrics.jsonl").read_text().splitlines()
    (run / "metrics.jsonl").write_text("\n".join(lines[:2] + lines[3:]) + "\n")
    assert verify([str(run)]) == 2 and "line 3: epoch 4, expected 3" in capsys.readouterr().err


def test_stop_after_ends_early_and_the_run_goes_on_with_the_same_bits(published, tmp_path):
    words = ["--data", str(published / "graph"), "--model", "sage", "--hidden", "4", "--layers", "2", "--epochs", str(EPOCHS),
             "--threads", "1", "--lr-schedule", "cosine", "--numerics", "exact", "--run-dir", str(tmp_path / "run"), "--progress", "none"]
    assert train([*words, "--stop-after", "4"]) == 0
    assert len((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()) == 4
    assert train(["--resume", str(tmp_path / "run"), "--progress", "none"]) == 0
    for name in ("checkpoint.safetensors",):
        ours, theirs = (checkpoint.load(folder / name)[0] for folder in (tmp_path / "run", published / "run"))
        assert all(np.array_equal(ours[key], theirs[key]) for key in theirs)
