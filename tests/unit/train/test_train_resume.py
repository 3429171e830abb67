"""Resuming: the run's options are the base, what cannot change is refused, and nothing in its folder changes too early."""

import os

import numpy as np
import pytest

from sarlite import data as datasets
from sarlite.cli import config, run
from sarlite.cli.data_command import main as data_command
from sarlite.cli.predict_command import parse, predict
from sarlite.cli.settings import graph_of, source_of
from sarlite.comm import Solo, threads
from sarlite.data import format
from sarlite.errors import ConfigError, SarliteError
from sarlite.train import checkpoint, identity
from sarlite.train.load import load
from tests.helpers.train.training_runs import DATA, SMALL, assert_same_curve, command, metrics, train_here

pytestmark = pytest.mark.timeout(120)
PLAIN = ["--threads", "1", "--progress", "none"]


def content(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Return a folder with a run of six epochs, "six", and one of the first three of them, "three"."""
    folder = tmp_path_factory.mktemp("runs")
    train_here(folder / "six", "--epochs", 6, "--model", "gcn", "--weight-decay", "1e-3")
    train_here(folder / "three", "--epochs", 3, "--model", "gcn", "--weight-decay", "1e-3")
    return folder


@pytest.fixture
def three(runs, tmp_path):
    """Return a copy of the folder "three"."""
    (tmp_path / "three").mkdir()
    for name, data in content(runs / "three").items():
        (tmp_path / "three" / name).write_bytes(data)
    return tmp_path / "three"


@pytest.fixture
def go_on():
    """Resume in this process, with the flags that are given alone."""

    def start(checkpoint, *flags):
        options = config.parse(["--resume", str(checkpoint), "--progress", "none", *map(str, flags)])
        return threads.run(options.machine.ranks, run.train, options)[0]

    return start


def test_options_are_the_runs_unless_told(runs, three, go_on):
    go_on(three / "checkpoint.safetensors", "--epochs", 6)
    assert_same_curve(metrics(three), metrics(runs / "six"))
    one, other = ((folder / "config.toml").read_text().splitlines() for folder in (runs / "six", three))
    assert [line for line in one if "run_dir" not in line] == [line for line in other if "run_dir" not in line]


def test_flags_come_before_the_run_and_a_file_between(three, tmp_path):
    (tmp_path / "c.toml").write_text('lr = 0.5\nweight_decay = 0.25\neval_every = 2\n')
    flags = ["--resume", str(three / "checkpoint.safetensors"), "--config", str(tmp_path / "c.toml"), "--lr", "0.125"]
    result = config.parse(flags)
    assert [result.values[name] for name in ("model", "hidden", "seed", "data", "epochs")] == ["gcn", 8, 5, DATA, 3]
    assert [result.values[name] for name in ("lr", "weight_decay", "eval_every", "run_dir", "dtype")] == [0.125, 0.25, 2, None, "float32"]


def test_under_a_launcher_its_number_of_ranks_holds(three, monkeypatch):
    flags = ["--resume", str(three / "checkpoint.safetensors")]
    monkeypatch.setattr("sarlite.train.checkpoint.load_metadata", lambda path: {"options": {"ranks": 3, "hidden": 4}})
    assert config.parse(flags).machine.ranks == 3
    monkeypatch.setenv("PMI_SIZE", "2")
    assert (config.parse(flags).machine.ranks, config.parse(flags).model.hidden) == (1, 4)


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("flags, words", [
    (["--model", "sage"], "--model sage: cannot change, the run of CHECKPOINT has gcn"),
    (["--hidden", "9"], "--hidden 9: cannot change, the run of CHECKPOINT has 8"),
    (["--layers", "3"], "--layers 3: cannot change, the run of CHECKPOINT has 2"),
    (["--dtype", "float64"], "--dtype float64: cannot change"),
    (["--optimizer", "sgd"], "--optimizer sgd: cannot change"),
    (["--seed", "6"], "--seed 6: cannot change, the run of CHECKPOINT has 5"),
    (["--batch-norm"], "--batch-norm: cannot change, the run of CHECKPOINT has the default of the model"),
    (["--no-self-loops"], "--no-self-loops: cannot change"),
    (["--normalize-features"], "--normalize-features: cannot change, the run of CHECKPOINT has False"),
    (["--epochs", "2"], "--epochs 2: the checkpoint CHECKPOINT is from epoch 3; --epochs counts all epochs, from the first one"),
    (["--stop-after", "2"], "--stop-after 2: the checkpoint CHECKPOINT is from epoch 3, so the run would never stop there"),
    (["--stop-after", "3"], "--stop-after 3: the checkpoint CHECKPOINT is from epoch 3, so the run would never stop there"),
    (["--data", DATA + ",seed=1"], f"its data, {DATA}, are not --data {DATA},seed=1: of the same size, but other values"),
    (["--data", "sbm:nodes=200,classes=4,features=16,degree=8"], "300 nodes there and 200 here, 2400 edges there and 1600 here"),
])  # fmt: skip
def test_what_cannot_change_is_refused_and_nothing_changes(three, go_on, flags, words, ranks):
    before, path = content(three), three / "checkpoint.safetensors"
    with pytest.raises(SarliteError) as caught:
        go_on(path, "--epochs", 6, "--ranks", ranks, *flags)
    assert words.replace("CHECKPOINT", str(path)) in str(caught.value)
    assert content(three) == before


def test_a_learning_rate_that_ends_with_the_run_does_not_jump(tmp_path, go_on):
    """A cosine goes by the number of epochs: a resumed run has the curve of a straight one, or is refused."""
    flags = ["--model", "gcn", "--lr-schedule", "warmup:1:cosine"]
    path = tmp_path / "run" / "checkpoint.safetensors"
    train_here(tmp_path / "run", *flags, "--epochs", 3)
    words = "--epochs 6: cannot change with --lr-schedule warmup:1:cosine, because the learning rate would jump: the run of .* has 3"
    with pytest.raises(ConfigError, match=words):
        go_on(path, "--epochs", 6)
    assert len(metrics(tmp_path / "run")) == 3
    go_on(path, "--epochs", 6, "--lr-schedule", "constant")
    assert [record["lr"] for record in metrics(tmp_path / "run")][3:] == [0.02] * 3


def test_through_the_command(three):
    before = content(three)
    done = command(*PLAIN, "--resume", three / "checkpoint.safetensors", "--epochs", 6, "--hidden", 9)
    assert done.returncode == 2 and done.stderr.startswith("error: --hidden 9: cannot change") and done.stderr.count("\n") == 1
    assert content(three) == before


def test_a_run_that_is_complete_stays_as_it_is(three, go_on, capsys):
    before = content(three)
    go_on(three / "checkpoint.safetensors")
    assert content(three) == before
    assert "0 in" in next(line for line in capsys.readouterr().out.splitlines() if line.startswith("epochs"))


def test_a_first_epoch_that_fails_changes_nothing(three, tmp_path):
    model = tmp_path / "fails.py"
    model.write_text("from sarlite.models import GCN\nclass GCN(GCN):\n    def __call__(self, graph, h):\n"
                     "        if self.training and self.rng_step() == STEP:\n            raise KeyError('the cause')\n"
                     "        return super().__call__(graph, h)\n"
                     "    def rng_step(self):\n        return self.activations[0].dropout.rng.step\n")  # fmt: skip
    text = model.read_text()
    model.write_text(text.replace("STEP", "-1"))
    done = command(*SMALL, "--model", f"{model}:GCN", "--epochs", 3, "--run-dir", tmp_path / "own")
    assert done.returncode == 0, done.stderr
    model.write_text(text.replace("STEP", "3"))
    before = content(tmp_path / "own")
    done = command("--resume", tmp_path / "own" / "checkpoint.safetensors", "--epochs", 6, "--lr", "0.5",
                   "--model", f"{model}:GCN")
    assert done.returncode == 2 and "KeyError: 'the cause'" in done.stderr
    assert content(tmp_path / "own") == before
    moved = tmp_path / "moved"
    moved.mkdir()
    (moved / "fails.py").write_text(text.replace("STEP", "-1"))
    done = command("--resume", tmp_path / "own" / "checkpoint.safetensors", "--epochs", 4, "--model", f"{moved / 'fails.py'}:GCN")
    assert done.returncode == 0, done.stderr


def test_a_checkpoint_that_is_of_no_run_is_refused(three, go_on, tmp_path):
    checkpoint.save(tmp_path / "c.safetensors", {"model.a": np.zeros(3)}, {"epoch": 1})
    with pytest.raises(SarliteError, match="c.safetensors .*not from a run: .*best"):
        go_on(tmp_path / "c.safetensors")


def test_resuming_into_another_folder_leaves_the_first(three, go_on, tmp_path):
    before = content(three)
    go_on(three / "checkpoint.safetensors", "--epochs", 4, "--run-dir", tmp_path / "other")
    assert content(three) == before
    assert [m["epoch"] for m in metrics(tmp_path / "other")] == [4]
    with pytest.raises(ConfigError, match="already holds config.toml"):
        go_on(three / "checkpoint.safetensors", "--epochs", 4, "--run-dir", tmp_path / "other")


# ---- the data's identity


def _identity(comm, data, partition="stored", order="stored", mode="sar"):
    options = config.parse(["--data", str(data), "--partition", partition, "--order", order, "--mode", mode, "--prefetch", "0"])
    part = load(comm, source_of(options), graph_of(options))
    return identity.identity(part.graph, part.rows, part.n_classes)


def test_the_identity_depends_on_the_data_alone(tmp_path):
    expected = threads.run(1, _identity, DATA)[0]
    assert (expected["nodes"], expected["edges"], expected["features"], expected["classes"]) == (300, 2400, 16, 4)
    for n, options in ((2, ["random"]), (3, ["metis", "metis"]), (3, ["contiguous", "none", "oneshot"]), (1, ["stored", "metis"])):
        assert threads.run(n, _identity, DATA, *options) == [expected] * n
    assert data_command(["convert", DATA, str(tmp_path / "d")]) == 0
    assert threads.run(2, _identity, tmp_path / "d") == [expected] * 2
    assert data_command(["partition", str(tmp_path / "d"), "--parts", "4", "--order", "metis"]) == 0
    for n in (1, 2, 4):
        assert threads.run(n, _identity, tmp_path / "d") == [expected] * n


def _feature(d):
    d.features[17, 3] = np.nextafter(d.features[17, 3], np.float32(9))


def _two_features(d):
    d.features[17, [3, 4]] = d.features[17, [4, 3]]


def _label(d):
    d.labels[5] = (d.labels[5] + 1) % 4


def _swapped(d):
    for array in (d.features, d.labels):
        array[[5, 6]] = array[[6, 5]]


def _split(d):
    d.train[np.flatnonzero(d.train)[0]] = False


def _edge(d):
    row = int(np.flatnonzero(np.diff(d.indptr))[0])
    others = np.setdiff1d(np.arange(300), d.indices[d.indptr[row] : d.indptr[row + 1]])
    d.indices[d.indptr[row]] = others[0]


def _turned(d):
    """Every node's edges are another's: the degrees and the sources stay."""
    d.indices[:] = np.roll(d.indices, 8)


@pytest.mark.parametrize("change", [_feature, _two_features, _label, _swapped, _split, _edge, _turned])
def test_the_identity_sees_every_change(change, tmp_path):
    dataset = datasets.load(DATA)
    format.write(tmp_path / "one", dataset)
    change(dataset)
    format.write(tmp_path / "two", dataset)
    one, two = (threads.run(2, _identity, tmp_path / name)[0] for name in ("one", "two"))
    assert one.pop("digest") != two.pop("digest") and one == two


def test_no_features_and_float64():
    assert identity._hash_rows(np.zeros((3, 0), np.float32)).tolist() == [0, 0, 0]
    assert len(set(identity._hash_rows(np.array([[1.0, 2.0], [2.0, 1.0], [1.0, -2.0]])).tolist())) == 3


def test_other_data_in_the_same_place_is_refused(tmp_path, go_on):
    dataset = datasets.load(DATA)
    format.write(tmp_path / "data", dataset)
    train_here(tmp_path / "run", "--data", tmp_path / "data", "--epochs", 1)
    _label(dataset)
    format.write(tmp_path / "data", dataset, overwrite=True)
    before = content(tmp_path / "run")
    with pytest.raises(SarliteError, match="of the same size, but other values"):
        go_on(tmp_path / "run" / "checkpoint.safetensors", "--epochs", 2)
    assert content(tmp_path / "run") == before and sorted(os.listdir(tmp_path)) == ["data", "run"]


@pytest.mark.parametrize("module", ["train", "predict"])
def test_a_checkpoint_runs_no_code_and_names_no_path(module, tmp_path):
    """An own model is named again; what a changed checkpoint says of code and of paths to write is not done."""
    (tmp_path / "code.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\nfrom sarlite.models import GCN\n")
    train_here(tmp_path / "run", "--model", "gcn", "--epochs", 1)
    tensors, meta = checkpoint.load(tmp_path / "run" / "checkpoint.safetensors")
    paths = {name: str(tmp_path / f"named-{name}") for name in ("trace", "run_dir", "propagated", "resume", "config")}
    meta["options"] |= {**paths, "dry_run": True, "memory_limit": 1, "partition": str(tmp_path / "no such parts.npy")}
    checkpoint.save(tmp_path / "paths.safetensors", tensors, meta)
    meta["options"]["model"] = f"{tmp_path}/code.py:GCN"
    checkpoint.save(tmp_path / "code.safetensors", tensors, meta)

    def used(name, *flags):
        words = {"train": ("--resume", tmp_path / name, "--epochs", 2, "--run-dir", tmp_path / "next"),
                 "predict": ("--checkpoint", tmp_path / name, "--out", tmp_path / "out.npy")}[module]
        return command(*words, *flags, module=f"sarlite.{module}")

    refused = used("code.safetensors")
    assert refused.returncode == 2 and "names no code to run: give --model" in refused.stderr and not (tmp_path / "ran").exists()
    assert used("paths.safetensors").returncode == 0 and not list(tmp_path.glob("named-*"))
    assert (tmp_path / ("out.npy" if module == "predict" else "next")).exists()


@pytest.mark.parametrize("name, value", [("ranks", 100_000), ("hidden", "64"), ("seed", 1.5), ("lr", -1.0), ("optimizer", "none"),
                                         ("mode", ["sar"])])
def test_values_of_a_checkpoint_are_those_of_flags(name, value, tmp_path):
    meta = {"epoch": 1, "best": None, "data": {}, "options": {name: value}}
    checkpoint.save(tmp_path / "a.safetensors", {"model.a": np.ones(1)}, meta)
    with pytest.raises(ConfigError, match=f"checkpoint .*a.safetensors: options: {name} = "):
        config.parse(["--resume", str(tmp_path / "a.safetensors")])


@pytest.mark.parametrize("field, value", [("epoch", -5), ("epoch", "3"), ("epoch", True), ("step", 1.5), ("best", None),
                                          ("best", {"epoch": 1}), ("best", {"epoch": 9, "scores": {}}),
                                          ("best", {"epoch": 1, "scores": {"val_loss": []}}),
                                          ("options", []), ("data", {"nodes": "60"}), ("data", 7), ("task", "bogus"), ("task", [1]),
                                          ("used", {"edge_weights": "no"}), ("class_names", "ab")], ids=str)
def test_metadata_that_cannot_be_are_refused(field, value, three):
    path = three / "checkpoint.safetensors"
    tensors, meta = checkpoint.load(path)
    checkpoint.save(path, tensors, {**meta, field: value})
    words = ["--resume", str(path), "--epochs", "9", "--run-dir", str(three / "next"), *PLAIN]
    with pytest.raises(SarliteError, match=f"checkpoint .*checkpoint.safetensors: {field}: "):
        run.train(Solo(), config.parse(words))
    with pytest.raises(SarliteError, match=f"checkpoint .*checkpoint.safetensors: {field}: "):
        predict(Solo(), *parse(["--checkpoint", str(path), "--out", str(three / "o.npy")]))
