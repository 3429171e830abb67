"""Minibatches of the training command: what they train and tell, on one rank and on several."""

import json

import numpy as np
import pytest

from sarlite import Trainer, nn, optim
from sarlite.cli import run_report as report
from sarlite.data import load
from sarlite.errors import SarliteError
from sarlite.graph.graph import Graph
from sarlite.minibatch import NeighborLoader
from sarlite.models import SAGE
from sarlite.train import checkpoint, loop
from tests.helpers.train.predicting import predict_here
from tests.helpers.train.training_runs import DATA, assert_same_curve, train

pytestmark = pytest.mark.timeout(60)
MANY = ["--data", f"{DATA},train=0.5"]
BATCHES = ["--batch-size", 40, "--fanouts", "3,5"]


def test_the_command_trains_and_tells(tmp_path):
    result, curve = train(tmp_path / "run", "--epochs", 12, *BATCHES, "--batch-size", 8, "--trace", tmp_path / "trace.json")
    assert list(result)[-4:] == ["steps", "imbalance", "baseline", "calibration"] and result["steps"] == 48 and result["imbalance"] == 1.0
    assert curve[-1]["loss"] < curve[0]["loss"] and len(curve) == 12
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    names = [event["name"] for event in events]
    assert {"epoch 1", "step 1", "step 12", "optimizer"} <= set(names) and "step 13" not in names
    files = sorted(path.name for path in (tmp_path / "run").iterdir())
    assert files == ["checkpoint.safetensors", "config.toml", "metrics.jsonl", "summary.json"]


@pytest.mark.parametrize("model", ["gcn", "sage", "gat"])
def test_one_step_of_all_in_edges_is_a_full_batch_step(here, model, tmp_path):
    """Also where --batch-size is larger than the training split: then an epoch is one step."""
    flags = ["--model", model, "--no-batch-norm", "--dropout", 0, "--dtype", "float64", "--epochs", 4]
    flags += {"gcn": ["--input-dropout", 0], "gat": ["--input-dropout", 0, "--attention-dropout", 0]}.get(model, [])
    whole = here(tmp_path / "whole", *flags)
    for name, part in {"larger": ["--batch-size", 1000], "sampled evaluation": ["--batch-size", 32, "--eval-fanouts", "all,all"]}.items():
        assert_same_curve(here(tmp_path / name, *flags, "--fanouts", "all,all", *part), whole, rtol=1e-9)


def test_sampled_evaluation_sums_over_rows(here, tmp_path):
    """An evaluation goes over the batches of all splits, with the same picks each time.

    Without batch norm, because only exact evaluation makes its moments exact.
    """
    flags = [*MANY, "--epochs", 2, "--dtype", "float64", "--batch-size", 40, "--no-batch-norm"]
    exact = here(tmp_path / "exact", *flags, "--fanouts", "3,5")
    sampled = here(tmp_path / "all", *flags, "--fanouts", "3,5", "--eval-fanouts", "all,all")
    assert_same_curve(sampled, exact, rtol=1e-12)
    np.testing.assert_allclose(sampled[-1]["val_loss"], exact[-1]["val_loss"], rtol=1e-9)
    frozen = here(tmp_path / "frozen", *flags, "--fanouts", "3,5", "--eval-fanouts", "1,1", "--lr", 1e-300)
    assert frozen[0]["val_loss"] == frozen[1]["val_loss"] != exact[0]["val_loss"]


def accuracies(folder, *flags):
    """Return the validation and test accuracies of predictions by the last epoch's parameters of a run."""
    data = load(f"{DATA},train=0.5")
    _, labels = predict_here(folder, folder / "p.npy", "--weights", "last", *flags)
    return [float((labels == data.labels)[split].mean()) for split in (data.val, data.test)]


@pytest.mark.parametrize("flags", [[], ["--ranks", 3, "--partition", "random", "--remote", "hec"], ["--model", "gcn", "--batch-norm"]])
def test_predictions_of_a_checkpoint_are_as_accurate_as_was_told(here, flags, tmp_path):
    curve = here(tmp_path / "run", *MANY, *BATCHES, "--epochs", 3, "--dtype", "float64", *flags)
    for ranks in (1, 2):
        assert accuracies(tmp_path / "run", "--ranks", ranks) == [curve[-1]["val_accuracy"], curve[-1]["test_accuracy"]]
    state, reported = checkpoint.load(tmp_path / "run" / "checkpoint.safetensors")[0], []
    for name in ("mean", "var"):  # of rows of all in-edges, as these averages of another run are not
        reported.append(state[f"model.activations.0.norm.running_{name}"])
    here(tmp_path / "sampled", *MANY, *BATCHES, "--epochs", 3, "--dtype", "float64", *flags, "--eval-fanouts", "3,5")
    state = checkpoint.load(tmp_path / "sampled" / "checkpoint.safetensors")[0]
    for name, part in zip(("mean", "var"), reported):
        assert np.abs(state[f"model.activations.0.norm.running_{name}"] - part).max() > 1e-3


def make(schedule=lambda epoch: 1.0, optimizer=lambda flat: optim.SGD(flat, 0.5)):
    """Return a trainer on batches of a small graph, with 10 of 25 seeds in each step."""
    rows = np.random.default_rng(0)
    graph = Graph.from_edges(rows.integers(0, 60, 300), rows.integers(0, 60, 300), 60)
    x, labels, train_rows = rows.standard_normal((60, 5)), rows.integers(0, 3, 60), np.arange(60) < 25
    rng = nn.Random(1)
    model = SAGE(5, 3, layers=2, hidden=4, batch_norm=False, rng=rng, dtype=np.float64)
    loader = NeighborLoader(graph, x, labels, train_rows, fanouts=(2, 2), batch_size=10)
    return Trainer(graph, model, x, labels, train_rows, ~train_rows, optimizer=optimizer, rng=rng, schedule=schedule, batches=loader)


def test_the_schedule_goes_by_epochs_and_steps_go_on():
    factors, done = [], []

    class Noting(optim.SGD):
        def step(self, factor=1.0):
            factors.append(factor)
            super().step(factor)

    trainer = make(schedule=lambda epoch: 10.0**-epoch, optimizer=lambda flat: Noting(flat, 0.5))
    loop.fit(trainer, 2, on_step=lambda n, loss: done.append((n, trainer.training_step.n_steps, trainer.batches.step)))
    assert factors == [1.0] * 3 + [0.1] * 3 and done == [(1, 1, 1), (2, 2, 2), (3, 3, 3), (1, 4, 4), (2, 5, 5), (3, 6, 6)]
    assert len(trainer.own_seconds) == 6 and trainer.counted()["steps"] == 6


def test_the_loss_of_an_epoch_is_the_mean_over_its_seeds():
    trainer, losses = make(optimizer=lambda flat: optim.SGD(flat, 1.0), schedule=lambda epoch: 0.0), []
    loss = trainer.epoch(0, lambda n, result: losses.append(result))
    assert loss == pytest.approx((10 * losses[0] + 10 * losses[1] + 5 * losses[2]) / 25, rel=1e-12)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_a_loss_that_is_not_finite_ends_the_epoch_and_the_sampling_thread():
    import threading

    earlier, trainer = threading.enumerate(), make(optimizer=lambda flat: optim.SGD(flat, 1e200))
    with pytest.raises(SarliteError, match="the loss is"):
        loop.fit(trainer, 4)
    assert not [thread for thread in threading.enumerate() if thread.name == "sarlite-sample" and thread not in earlier]


@pytest.mark.parametrize("scale, lr", [(None, 0.02), ("sqrt", 0.04), ("linear", 0.08)])
def test_the_learning_rate_grows_with_the_ranks(here, monkeypatch, scale, lr, tmp_path):
    rates, adam = [], optim.Adam
    monkeypatch.setattr(optim, "Adam", lambda flat, lr, **options: rates.append(lr) or adam(flat, lr, **options))
    here(tmp_path / "run", "--epochs", 1, *BATCHES, "--ranks", 4, "--partition", "random", *(["--lr-scale", scale] if scale else []))
    assert rates == [lr] * 4


@pytest.mark.sampled(2)
@pytest.mark.parametrize("ranks, flags", [
    (2, ["--partition", "random", "--mode", "oneshot"]), (3, ["--partition", "contiguous", "--eval-fanouts", "2,4"]),
    (4, ["--partition", "random", "--sampler", "labor", "--prefetch", 1]),
])  # fmt: skip
def test_exact_is_one_rank(here, ranks, flags, tmp_path):
    """With dropout and batch norm; 4 ranks also where steps have 2 seeds."""
    flags = ["--dtype", "float64", "--epochs", 2, "--fanouts", "3,5", "--batch-size", 2 if ranks == 4 else 12, *flags]
    one = here(tmp_path / "one", *flags)
    assert_same_curve(here(tmp_path / "ranks", *flags, "--ranks", ranks), one, rtol=1e-8)


def test_the_timeline_has_tracks_of_the_sampler_and_of_the_caches(here, tmp_path):
    flags = [*MANY, *BATCHES, "--epochs", 1, "--remote", "hec", "--ranks", 2, "--partition", "random", "--trace", tmp_path / "t.json"]
    here(tmp_path / "run", *flags)
    events = json.loads((tmp_path / "t.json").read_text())["traceEvents"]
    for rank in range(2):
        part = [event for event in events if event["pid"] == 1 + rank]
        tracks = {event["tid"]: event["args"]["name"] for event in part if event["name"] == "thread_name"}
        result = {(tracks[event["tid"]], event["name"]) for event in part if event["ph"] == "X"}
        assert {("sample", "sample"), ("lookup", "lookup"), ("compute", "step 4")} <= result and "push" in {track for track, _ in result}


def test_progress_within_an_epoch(capsys, monkeypatch):
    times = iter([100.0, *([104.0] * 3), 105.0, *([110.0] * 3)])
    monkeypatch.setattr(report.time, "monotonic", lambda: next(times))
    progress = report.EpochProgress("lines", 2, 12, 4)
    progress.step(2, 0.5)
    progress.step(3, 0.25)  # 1 s later: no line
    progress.step(4, 0.125)  # told with the epoch
    progress.update({"epoch": 3, "loss": 1.0, "train_accuracy": 0.5, "val_accuracy": None})
    assert capsys.readouterr().err == ("epoch 3/12, step 2/4: loss 0.5000, 1 min 16 s left\n"
                                       "epoch 3/12: loss 1.0000, train accuracy 0.5000, 1 min 30 s left\n")
