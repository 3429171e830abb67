"""The training command, as real processes on small data: files that a run writes, and resumed runs."""

import json
import os
import resource
import subprocess

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from sarlite import optim
from sarlite.cli import config, run
from sarlite.cli.data_command import main as data_command
from sarlite.cli.options import OPTIONS
from sarlite.comm import threads
from sarlite.data import format
from sarlite.data import load as data_load
from sarlite.errors import CheckpointError, ConfigError, SarliteError
from sarlite.structure import order as orders
from sarlite.train import checkpoint
from tests.helpers.train.training_runs import DATA, MODEL, ROOT, SMALL, assert_same_curve, command, train, train_here

KEYS = {"ranks": int, "mode": str, "seed": int, "test_accuracy": float, "best_val_accuracy": float, "epoch_seconds": float,
        "peak_bytes": list, "live_remote_buffers": int, "sent_bytes": dict, "baseline": dict, "calibration": dict}  # fmt: skip
METRICS = {"epoch": int, "loss": float, "train_accuracy": float, "val_accuracy": float, "test_accuracy": float,
           "val_loss": float, "seconds": float, "lr": float}

pytestmark = pytest.mark.timeout(120)


@pytest.fixture(scope="module")
def six(tmp_path_factory):
    """Six epochs on one rank: (run directory, JSON, metrics)."""
    run_dir = tmp_path_factory.mktemp("six") / "run"
    return run_dir, *train(run_dir, "--epochs", 6)


@pytest.fixture(scope="module")
def three(tmp_path_factory):
    """Run the first three epochs of the run `six`, and return the same as `six`."""
    run_dir = tmp_path_factory.mktemp("three") / "run"
    train_here(run_dir, "--epochs", 3)
    return run_dir


# ---- what a run leaves


def test_the_line_of_json(six):
    summary = six[1]
    assert list(summary) == list(KEYS)
    assert {name: type(value) for name, value in summary.items()} == KEYS
    assert (summary["ranks"], summary["mode"], summary["seed"]) == (1, "sar", 5)
    assert 0 < summary["test_accuracy"] <= 1 and 0 < summary["best_val_accuracy"] <= 1 and summary["epoch_seconds"] > 0
    assert [type(n) for n in summary["peak_bytes"]] == [int] and summary["live_remote_buffers"] == 0 and summary["sent_bytes"] == {}


def test_each_epoch_has_all_metrics_and_the_summary_has_the_best(six):
    _, summary, metrics = six
    assert [m["epoch"] for m in metrics] == [1, 2, 3, 4, 5, 6]
    for m in metrics:
        assert {name: type(value) for name, value in m.items()} == METRICS
    best = max(metrics, key=lambda m: m["val_accuracy"])
    assert summary["best_val_accuracy"] == best["val_accuracy"]
    assert summary["test_accuracy"] in [m["test_accuracy"] for m in metrics if m["val_accuracy"] == best["val_accuracy"]]
    assert metrics[-1]["loss"] < metrics[0]["loss"]


def test_epochs_without_evaluation(here, tmp_path):
    metrics = here(tmp_path / "run", "--epochs", 5, "--eval-every", 3)
    assert [m["val_accuracy"] is not None for m in metrics] == [False, False, True, False, True]


def test_the_closing_table_has_its_rows_in_order(tmp_path):
    done = command(*SMALL, "--run-dir", tmp_path / "run", "--epochs", 1, "--ranks", 2, "--mode", "sar")
    rows = {line.split("  ")[0]: line for line in done.stdout.splitlines()[:-1]}
    assert list(rows) == ["data", "ranks", "balance", "load", "partition", "epochs", "accuracy", "no edges", "prior", "calibration",
                          "peak memory", "remote rows", "sent", "files"]  # fmt: skip
    assert "300 nodes" in rows["data"] and str(tmp_path / "run") in rows["files"] and "promises at most 1" in rows["remote rows"]
    assert rows["data"].split()[1] == DATA + ":" and "of at most 1 peer at once" in rows["remote rows"]
    assert rows["epochs"].split()[1:3] == ["1", "in"] and rows["load"].endswith(" s") and rows["partition"].endswith(" s")
    assert rows["peak memory"].endswith(" MiB (all ranks in one process)")


def test_the_written_configuration_gives_the_same_run(six, tmp_path):
    again = command("--config", six[0] / "config.toml", "--run-dir", tmp_path / "again")
    assert again.returncode == 0, again.stderr
    metrics = [json.loads(line) for line in (tmp_path / "again" / "metrics.jsonl").read_text().splitlines()]
    assert_same_curve(metrics, six[2], rtol=0)
    one, other = ((folder / "config.toml").read_text().splitlines() for folder in (six[0], tmp_path / "again"))
    assert [line for line in one if "run_dir" not in line] == [line for line in other if "run_dir" not in line]


def test_ranks_as_threads_give_the_same_run(six, tmp_path):
    for mode in ("sar", "oneshot"):
        result, metrics = train(tmp_path / mode, "--epochs", 6, "--ranks", 3, "--mode", mode)
        assert_same_curve(metrics, six[2], rtol=1e-4)
        assert result["test_accuracy"] == six[1]["test_accuracy"] and result["ranks"] == 3
        assert len(result["peak_bytes"]) == 3
        assert result["live_remote_buffers"] == 2 if mode == "oneshot" else 1 <= result["live_remote_buffers"] <= 2
        assert {"allreduce", "backward_push", "evaluation", "forward_fetch"} <= result["sent_bytes"].keys()
        assert all(type(n) is int and n > 0 for n in result["sent_bytes"].values())


@pytest.mark.sampled(4)
@pytest.mark.parametrize("model, flags", [
    ("gcn", ["--dropout", "0.4"]),
    ("gat", ["--heads", "2", "--out-heads", "2", "--attention-dropout", "0.3", "--residual", "--batch-norm"]),
    ("sage", ["--aggregator", "max-pool", "--no-batch-norm", "--optimizer", "sgd", "--lr-schedule", "cosine"]),
    ("gcn", ["--input-dropout", "0", "--activation", "elu", "--batch-norm"]),
    ("gat", ["--input-dropout", "0.1", "--activation", "relu"]),
    ("gat", ["--gat-form", "paper", "--heads", "2", "--batch-norm"]),
])  # fmt: skip
def test_models_on_three_ranks(here, model, flags, tmp_path):
    flags = ["--model", model, *flags, "--dtype", "float64", "--epochs", 3, "--weight-decay", "1e-3"]
    one = here(tmp_path / "one", *flags)
    three = here(tmp_path / "three", *flags, "--ranks", 3, "--prefetch", 2, "--partition", "random")
    assert_same_curve(three, one, rtol=1e-9)


@pytest.mark.parametrize("model", ["gcn", "gat", "sage"])
def test_weight_decay_of_the_first_layer_alone(model, monkeypatch, here, tmp_path):
    """The first layer has the parameters of the first convolution and of the operations before the next one."""
    adam, make, names, decayed = optim.Adam, run.make_model, [], {}

    def make_model(*args):
        model = make(*args)
        names[:] = dict(model.named_parameters())
        return model

    def make_adam(flat, lr, weight_decay, decoupled):
        decayed.update({name: weight_decay(name) for name in names})
        return adam(flat, lr, weight_decay=weight_decay, decoupled=decoupled)

    monkeypatch.setattr(optim, "Adam", make_adam)
    monkeypatch.setattr(run, "make_model", make_model)
    here(tmp_path / "one", "--model", model, "--epochs", 1, "--weight-decay", "0.25", "--weight-decay-on", "first", "--layers", 3)
    first = {name for name, value in decayed.items() if value}
    assert first == {name for name in names if name.startswith(("convs.0.", "activations.0."))}
    assert any(name.startswith("activations.0.") for name in first) and len(first) < len(names)
    decayed.clear()
    here(tmp_path / "all", "--model", model, "--epochs", 1, "--weight-decay", "0.25")
    assert set(decayed.values()) == {0.25}


def test_the_input_of_a_first_layer_is_fetched_once(here, tmp_path):
    """Without dropout before it the features stay a constant: later steps send what the layers above need."""
    sent = {}
    for epochs in (1, 2, 3):
        results = threads.run(2, run.train, config.parse([*SMALL, "--model", "gcn", "--input-dropout", "0", "--epochs", str(epochs),
                                                          "--ranks", "2", "--run-dir", str(tmp_path / str(epochs))]))  # fmt: skip
        sent[epochs] = results[0]["sent_bytes"]["forward_fetch"]
    assert sent[3] - sent[2] == sent[2] - sent[1] < sent[1] / 2


# ---- the order of the nodes


def test_an_order_by_metis_gives_the_same_run(here, tmp_path, capsys):
    flags = ["--model", "gat", "--attention-dropout", "0.3", "--dtype", "float64", "--epochs", 3]
    one = here(tmp_path / "one", *flags)
    assert "reordered" not in capsys.readouterr().out
    for ranks in (1, 3):
        assert_same_curve(here(tmp_path / str(ranks), *flags, "--order", "metis", "--ranks", ranks), one, rtol=1e-9)
        assert "nodes reordered" in capsys.readouterr().out


def test_the_stored_division_is_used_unless_told(here, tmp_path, capsys, monkeypatch):
    folder = tmp_path / "data"
    for words in (["convert", DATA, folder], ["partition", folder, "--parts", 2, "--order", "metis"]):
        assert data_command([str(word) for word in words]) == 0
    flags = ["--data", folder, "--dtype", "float64", "--epochs", 2, "--ranks", 2]
    capsys.readouterr()
    none = here(tmp_path / "none", *flags, "--order", "none")
    printed = capsys.readouterr()
    assert "divided for this run" in printed.err and "reordered" not in printed.out
    monkeypatch.setattr(orders, "order", None)  # not to be asked
    for name in ("stored", "metis"):
        assert_same_curve(here(tmp_path / name, *flags, "--order", name), none, rtol=1e-9)
        printed = capsys.readouterr()
        assert "divided for this run" not in printed.err and "nodes reordered" in printed.out


def test_edge_values_are_never_dropped_in_silence(here, tmp_path):
    dataset = data_load(DATA)
    dataset.edge_weight = np.ones(dataset.n_edges, np.float32)
    format.write(tmp_path / "data", dataset)
    for ranks in (1, 2):
        options = config.parse([*SMALL, "--run-dir", str(tmp_path / f"run{ranks}"), "--data", str(tmp_path / "data"), "--epochs", "1"])
        with pytest.raises(SarliteError, match="edge_weight: .*asked: --edge-weights"):
            threads.run(ranks, run.train, options)
    here(tmp_path / "without", "--data", f"{tmp_path / 'data'},drop_edge_values", "--epochs", 1)


# ---- resuming


@pytest.mark.parametrize("ranks", [1, 3])
def test_resuming_gives_the_run_that_never_stopped(six, three, ranks, tmp_path):
    flags = ["--epochs", 6, "--resume", three / "checkpoint.safetensors", *(["--ranks", ranks] if ranks > 1 else [])]
    result, metrics = train(tmp_path / "run", *flags)
    assert_same_curve(metrics, six[2][3:], rtol=1e-6 if ranks == 1 else 1e-4)
    assert result["best_val_accuracy"] == six[1]["best_val_accuracy"]
    one, other = (load_file(folder / "checkpoint.safetensors") for folder in (six[0], tmp_path / "run"))
    assert one.keys() == other.keys()
    rtol, atol = (1e-6, 1e-7) if ranks == 1 else (2e-3, 1e-4)
    for name in one:
        np.testing.assert_allclose(other[name], one[name], rtol=rtol, atol=atol, err_msg=name)


def test_resuming_in_place_keeps_the_metrics(here, six, tmp_path):
    here(tmp_path / "run", "--epochs", 4, "--checkpoint-every", 2)
    metrics = here(tmp_path / "run", "--epochs", 6, "--resume", tmp_path / "run" / "checkpoint.safetensors")
    assert_same_curve(metrics, six[2])


def test_a_checkpoint_on_the_way_is_enough(here, six, tmp_path):
    """A run killed after its checkpoint of epoch 2 goes on from there, and writes each epoch's line once."""
    model = tmp_path / "dies.py"
    model.write_text(
        "import os, signal\nfrom sarlite.models import SAGE\nclass Dies(SAGE):\n"
        "    def __call__(self, graph, h):\n        out = super().__call__(graph, h)\n"
        "        if self.activations[0].dropout.rng.step == 3 and os.environ.get('DIE'):\n"
        "            os.kill(os.getpid(), signal.SIGKILL)\n        return out\n")
    flags = [*SMALL, "--run-dir", tmp_path / "run", "--epochs", 6, "--model", f"{model}:Dies"]
    assert command(*flags, "--checkpoint-every", 2, environ={"DIE": "1"}).returncode == -9
    metrics = here(tmp_path / "run", *flags[len(SMALL) + 2 :], "--resume", tmp_path / "run" / "checkpoint.safetensors")
    assert_same_curve(metrics, six[2])


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_run_that_blew_up_keeps_the_good_checkpoint(here, three, ranks, tmp_path):
    """The step's loss was finite, the parameters after it are not; the line of metrics is JSON all the same."""
    old = tmp_path / "run" / "checkpoint.safetensors"
    old.parent.mkdir()
    old.write_bytes((three / "checkpoint.safetensors").read_bytes())
    flags = ["--resume", old, "--lr", "1e39", "--ranks", ranks]
    with pytest.raises(CheckpointError, match="is not finite, so nothing was written"), np.errstate(all="ignore"):
        here(tmp_path / "run", *flags, "--epochs", 4)
    assert old.read_bytes() == (three / "checkpoint.safetensors").read_bytes()
    assert os.listdir(tmp_path / "run") == ["checkpoint.safetensors"]  # the first epoch did not end well


def test_a_run_that_blows_up_on_the_way(three, tmp_path):
    """From the third epoch on the learning rate is 1e37 times as much; the run ends with a warning and its best epoch."""
    flags = ["--run-dir", tmp_path / "run", "--lr-schedule", "step:2:1e39", "--epochs", 8]
    done = command(*SMALL, *flags, "--checkpoint-every", 2)
    assert done.returncode == 0 and "error" not in done.stderr
    [printed] = [line for line in done.stderr.splitlines() if line.startswith("warning: training diverged")]
    tensors, metadata = checkpoint.load(tmp_path / "run" / "checkpoint.safetensors")
    best = metadata["best"]["epoch"]
    assert metadata["epoch"] == 3 and 1 <= best <= 2 and all(np.isfinite(array).all() for array in tensors.values())
    assert printed == (f"warning: training diverged, the loss is nan at step 4, and ended; "
                    f"the model has the parameters of epoch {best}: try a lower learning rate "
                    "(--lr)")
    refuse = lambda word: pytest.fail(f"{word} is no JSON")  # noqa: E731
    lines = [json.loads(line, parse_constant=refuse) for line in (tmp_path / "run" / "metrics.jsonl").open()]
    assert [line["epoch"] for line in lines] == [1, 2, 3] and lines[-1]["val_loss"] is None and lines[-1]["loss"] > 0


def _cut(data):
    return data[: len(data) // 2]


def _another_format(data):
    return b"not a checkpoint"


def _huge_header(data):
    return b"\xff" * 8 + data[8:]


@pytest.mark.parametrize("damage", [_cut, _another_format, _huge_header, lambda data: b"", None])
def test_a_damaged_checkpoint_is_refused(here, three, damage, tmp_path):
    path = tmp_path / "checkpoint.safetensors"
    if damage:
        path.write_bytes(damage((three / "checkpoint.safetensors").read_bytes()))
    with pytest.raises(CheckpointError) as caught:
        here(tmp_path / "run", "--epochs", 6, "--resume", path)
    assert str(caught.value).startswith(f"checkpoint {path}: {'cannot be read' if damage else 'no such file'}")
    assert not (tmp_path / "run").exists()


def test_tensors_of_something_else_are_refused(tmp_path):
    save_file({"a": np.zeros(3)}, tmp_path / "other.safetensors")
    with pytest.raises(CheckpointError, match="format is None"):
        checkpoint.load(tmp_path / "other.safetensors")
    save_file({"a": np.zeros(3)}, tmp_path / "half.safetensors", {"format": checkpoint.FORMAT})
    with pytest.raises(CheckpointError, match="half.safetensors"):
        checkpoint.load(tmp_path / "half.safetensors")
    checkpoint.save(tmp_path / "whole.safetensors", {"a": np.arange(3.0), "s": np.float64(7)}, {"epoch": 1, "best": {"val": None}})
    tensors, meta = checkpoint.load(tmp_path / "whole.safetensors")
    assert tensors["a"].tolist() == [0, 1, 2] and tensors["s"].shape in ((), (1,)) and meta == {"epoch": 1, "best": {"val": None}}
    assert sorted(os.listdir(tmp_path)) == ["half.safetensors", "other.safetensors", "whole.safetensors"]


def test_a_full_disk_leaves_the_old_checkpoint(three, tmp_path):
    """No file may grow past 4 KiB: the next checkpoint would not fit."""
    run_dir = tmp_path / "run"
    run_dir.mkdir()
    old = run_dir / "checkpoint.safetensors"
    old.write_bytes((three / "checkpoint.safetensors").read_bytes())
    before = old.read_bytes()
    assert len(before) > 4096
    limit = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))  # noqa: E731
    done = command(*SMALL, "--run-dir", run_dir, "--epochs", 6, "--resume", old, preexec_fn=limit)
    assert done.returncode not in (0, None)
    assert f"checkpoint {old}: cannot be written: File too large" in done.stderr
    assert old.read_bytes() == before
    assert os.listdir(run_dir) == ["checkpoint.safetensors"]  # it was refused before the first epoch
    assert checkpoint.load(old)[1]["epoch"] == 3


def test_a_disk_that_fills_up_on_the_way(tmp_path):
    model = tmp_path / "fills.py"
    model.write_text(
        "import resource\nfrom sarlite.models import SAGE\nclass Fills(SAGE):\n"
        "    def __call__(self, graph, h):\n"
        "        if self.activations[0].dropout.rng.step == 3:\n"
        "            resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))\n"
        "        return super().__call__(graph, h)\n")
    for ranks in (1, 2):
        run_dir = tmp_path / f"run{ranks}"
        done = command(*SMALL, "--run-dir", run_dir, "--epochs", 6, "--model", f"{model}:Fills", "--checkpoint-every", 2, "--ranks", ranks)
        assert done.returncode == 2
        assert done.stderr == f"error: checkpoint {run_dir / 'checkpoint.safetensors'}: cannot be written: File too large\n"
        assert sorted(os.listdir(run_dir)) == ["checkpoint.safetensors", "config.toml", "metrics.jsonl"]
        assert checkpoint.load(run_dir / "checkpoint.safetensors")[1]["epoch"] == 2


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small disk needs root")
def test_a_really_full_disk(three, tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=128k", "tmpfs", disk], capture_output=True).returncode:
        pytest.skip("this machine lets nobody mount a disk")
    try:
        old = disk / "checkpoint.safetensors"
        old.write_bytes((three / "checkpoint.safetensors").read_bytes())
        (disk / "filler").write_bytes(b"\0" * (112 * 1024 - old.stat().st_size))
        done = command(*SMALL, "--run-dir", disk, "--epochs", 6, "--resume", old)
        assert done.returncode not in (0, None)
        assert f"checkpoint {old}: cannot be written: No space left on device" in done.stderr
        assert old.read_bytes() == (three / "checkpoint.safetensors").read_bytes()
        assert not list(disk.glob("*.tmp"))
    finally:
        subprocess.run(["umount", disk], check=True)


# ---- models, seeds, metrics


def test_a_model_of_ones_own(here, tmp_path):
    path = tmp_path / "my model.py"
    path.write_text(MODEL)
    flags = [flag for flag in SMALL if flag not in ("--layers", "2")]
    done = command(*flags, "--model", f"{path}:Mine", "--run-dir", tmp_path / "one", "--epochs", 2)
    assert done.returncode == 0, done.stderr
    options = config.parse([*flags, "--model", f"{path}:Mine", "--run-dir", str(tmp_path / "two"), "--epochs", "2"])
    threads.run(2, run.train, options)
    one, two = ([json.loads(line) for line in (tmp_path / name / "metrics.jsonl").open()] for name in ("one", "two"))
    assert_same_curve(two, one, rtol=1e-4)
    with pytest.raises(ConfigError, match=f"{path} has no class Yours"):
        here(tmp_path / "no", "--model", f"{path}:Yours")
    with pytest.raises(ConfigError, match="--layers"):
        here(tmp_path / "no", "--model", f"{path}:Mine")


def test_help_and_training_without_mpi(tmp_path):
    (tmp_path / "sitecustomize.py").write_text("import sys; sys.modules['mpi4py'] = None")
    environ = {"PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"}
    done = command("--help-all", environ=environ)
    assert done.returncode == 0 and done.stderr == ""
    for name in OPTIONS:
        assert f"--{name.replace('_', '-')}" in done.stdout
    train(tmp_path / "run", "--epochs", 1, "--ranks", 2, environ=environ)


def test_two_runs_of_one_seed_are_the_same(six, tmp_path):
    assert_same_curve(train(tmp_path / "run", "--epochs", 6)[1], six[2], rtol=0)
