"""Minibatches of the training command: what they train, leave, resume and refuse."""

import json
import re
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))

from predicting import predict_here
from training_runs import DATA, SMALL, assert_same_curve, train

from sarlite import nn, optim, predict
from sarlite.comm import Solo, threads
from sarlite.comm.interrupt import Interrupts
from sarlite.data import load
from sarlite.errors import CheckpointError, ConfigError, SarliteError
from sarlite.minibatch import NeighborLoader
from sarlite.models import SAGE
from sarlite.sar.graph import Graph
from sarlite.train import caches, checkpoint, config, loop, report, run
from sarlite.train.minibatch import BatchTrainer

pytestmark = pytest.mark.timeout(60)
MANY = ["--data", f"{DATA},train=0.5"]
BATCHES = ["--batch-size", 40, "--fanouts", "3,5"]


def same(found, expected):
    """Whether two runs' metrics are equal, bit for bit, but for times."""
    without = [[{name: value for name, value in m.items() if name != "seconds"} for m in run] for run in (found, expected)]
    assert without[0] == without[1]
    return True


# ---- what is trained


def test_the_command_trains_and_tells(tmp_path):
    found, curve = train(tmp_path / "run", "--epochs", 12, *BATCHES, "--batch-size", 8, "--trace", tmp_path / "trace.json")
    assert list(found)[-2:] == ["steps", "imbalance"] and found["steps"] == 48 and found["imbalance"] == 1.0
    assert curve[-1]["loss"] < curve[0]["loss"] and len(curve) == 12
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    names = [event["name"] for event in events]
    assert {"epoch 1", "step 1", "step 12", "optimizer"} <= set(names) and "step 13" not in names
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == ["checkpoint.safetensors", "config.toml", "metrics.jsonl"]


@pytest.mark.parametrize("model", ["gcn", "sage", "gat"])
def test_one_step_of_all_in_edges_is_a_full_batch_step(here, model, tmp_path):
    """Also where --batch-size is larger than the training split: then an epoch is one step."""
    flags = ["--model", model, "--no-batch-norm", "--dropout", 0, "--dtype", "float64", "--epochs", 4]
    flags += {"gcn": ["--input-dropout", 0], "gat": ["--input-dropout", 0, "--attention-dropout", 0]}.get(model, [])
    whole = here(tmp_path / "whole", *flags)
    for name, own in {"larger": ["--batch-size", 1000], "sampled evaluation": ["--batch-size", 32, "--eval-fanouts", "all,all"]}.items():
        assert_same_curve(here(tmp_path / name, *flags, "--fanouts", "all,all", *own), whole, rtol=1e-9)


def test_sampled_evaluation_sums_over_rows(here, tmp_path):
    """Over the batches of all splits, whichever rows these have; and with the same picks each time. Without batch norm, whose moments
    exact evaluation alone makes exact.
    """
    flags = [*MANY, "--epochs", 2, "--dtype", "float64", "--batch-size", 40, "--no-batch-norm"]
    exact = here(tmp_path / "exact", *flags, "--fanouts", "3,5")
    sampled = here(tmp_path / "all", *flags, "--fanouts", "3,5", "--eval-fanouts", "all,all")
    assert_same_curve(sampled, exact, rtol=1e-12)
    np.testing.assert_allclose(sampled[-1]["val_loss"], exact[-1]["val_loss"], rtol=1e-9)
    frozen = here(tmp_path / "frozen", *flags, "--fanouts", "3,5", "--eval-fanouts", "1,1", "--lr", 1e-300)
    assert frozen[0]["val_loss"] == frozen[1]["val_loss"] != exact[0]["val_loss"]


def accuracies(folder, *flags):
    """Of a run's checkpoint by `predict`, of its last epoch: the validation and the test split's."""
    data = load(f"{DATA},train=0.5")
    _, labels = predict_here(folder, folder / "p.npy", "--weights", "last", *flags)
    return [float((labels == data.labels)[split].mean()) for split in (data.val, data.test)]


@pytest.mark.parametrize("flags", [[], ["--ranks", 3, "--partition", "random", "--remote", "hec"], ["--model", "gcn", "--batch-norm"]])
def test_predictions_of_a_checkpoint_are_as_accurate_as_was_told(here, monkeypatch, flags, tmp_path):
    monkeypatch.setattr(predict, "set_threads", lambda n: None)
    curve = here(tmp_path / "run", *MANY, *BATCHES, "--epochs", 3, "--dtype", "float64", *flags)
    for ranks in (1, 2):
        assert accuracies(tmp_path / "run", "--ranks", ranks) == [curve[-1]["val_accuracy"], curve[-1]["test_accuracy"]]
    state, told = checkpoint.load(tmp_path / "run" / "checkpoint.safetensors")[0], []
    for name in ("mean", "var"):  # of rows of all in-edges, as these averages of another run are not
        told.append(state[f"model.activations.0.norm.running_{name}"])
    here(tmp_path / "sampled", *MANY, *BATCHES, "--epochs", 3, "--dtype", "float64", *flags, "--eval-fanouts", "3,5")
    state = checkpoint.load(tmp_path / "sampled" / "checkpoint.safetensors")[0]
    for name, own in zip(("mean", "var"), told):
        assert np.abs(state[f"model.activations.0.norm.running_{name}"] - own).max() > 1e-3


def make(schedule=lambda epoch: 1.0, optimizer=lambda flat: optim.SGD(flat, 0.5)):
    """A BatchTrainer on a small graph, with 10 seeds a step of 25."""
    rows = np.random.default_rng(0)
    graph = Graph.from_edges(rows.integers(0, 60, 300), rows.integers(0, 60, 300), 60)
    x, labels, train_rows = rows.standard_normal((60, 5)), rows.integers(0, 3, 60), np.arange(60) < 25
    rng = nn.Random(1)
    model = SAGE(5, 3, layers=2, hidden=4, batch_norm=False, rng=rng, dtype=np.float64)
    loader = NeighborLoader(graph, x, labels, train_rows, fanouts=(2, 2), batch_size=10)
    return BatchTrainer(graph, model, x, labels, train_rows, ~train_rows, optimizer=optimizer, rng=rng, schedule=schedule, loader=loader)


def test_the_schedule_goes_by_epochs_and_steps_go_on():
    factors, done = [], []

    class Noting(optim.SGD):
        def step(self, factor=1.0):
            factors.append(factor)
            super().step(factor)

    trainer = make(schedule=lambda epoch: 10.0**-epoch, optimizer=lambda flat: Noting(flat, 0.5))
    loop.fit(trainer, 2, on_step=lambda n, loss: done.append((n, trainer.training_step.n_steps, trainer.loader.step)))
    assert factors == [1.0] * 3 + [0.1] * 3 and done == [(1, 1, 1), (2, 2, 2), (3, 3, 3), (1, 4, 4), (2, 5, 5), (3, 6, 6)]
    assert len(trainer.own_seconds) == 6 and trainer.counted()["steps"] == 6


def test_the_loss_of_an_epoch_is_the_mean_over_its_seeds():
    trainer, losses = make(optimizer=lambda flat: optim.SGD(flat, 0.0)), []
    loss = trainer.epoch(0, lambda n, found: losses.append(found))
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


# ---- on ranks


@pytest.mark.parametrize("ranks, flags", [
    (2, ["--partition", "random", "--mode", "oneshot"]), (3, ["--partition", "contiguous", "--eval-fanouts", "2,4"]),
    (4, ["--partition", "random", "--sampler", "labor", "--prefetch", 1]),
])  # fmt: skip
def test_exact_is_one_rank(here, ranks, flags, tmp_path):
    """With dropout and batch norm; 4 ranks also where steps have 2 seeds."""
    flags = ["--dtype", "float64", "--epochs", 2, "--fanouts", "3,5", "--batch-size", 2 if ranks == 4 else 12, *flags]
    one = here(tmp_path / "one", *flags)
    assert_same_curve(here(tmp_path / "ranks", *flags, "--ranks", ranks), one, rtol=1e-8)


REMOTE = {
    "hec": ["--remote", "hec", "--hec-limit", 5, "--eval-fanouts", "3,3"], "local": ["--remote", "local"],
    "demand": ["--remote", "hec", "--push", "demand", "--hec-delay", 2, "--halo-features", "cache"],
    "global": ["--remote", "hec", "--batches", "global", "--hec-delay", 0, "--hec-lines", 30, "--hec-limit", 9, "--on-miss", "zero"],
}  # fmt: skip


@pytest.mark.parametrize("name, ranks", [("hec", 4), ("local", 2), ("demand", 2), ("global", 3)])
def test_caches_train_and_go_on_to_the_same_numbers(here, name, ranks, capsys, tmp_path):
    flags = [*MANY, *BATCHES, "--epochs", 4, *REMOTE[name], "--ranks", ranks, "--partition", "random"]
    whole = here(tmp_path / "four", *flags)
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert whole[-1]["loss"] < whole[0]["loss"] and found["steps"] == 16 and found["imbalance"] >= 1
    assert list(found)[9:] == ["steps", "imbalance", *([] if name == "local" else ["hit_rate", "rows_pushed", "bytes_pushed"])]
    if name != "local":
        assert len(found["hit_rate"]) == 2 and 0 < found["hit_rate"][1] < 1 and found["rows_pushed"][1] > 0 < found["bytes_pushed"]
        assert (found["hit_rate"][0] == 1) == (name == "hec") == (found["rows_pushed"][0] == 0)  # where features are kept
    saved = stopped(tmp_path / "part", 2, *flags)
    assert len(caches.files(saved.parent)) == (0 if name == "local" else ranks)
    assert same(here(tmp_path / "rest", *flags, "--resume", saved), whole[2:])
    assert "start empty" not in capsys.readouterr().err


def test_the_timeline_has_tracks_of_the_sampler_and_of_the_caches(here, tmp_path):
    flags = [*MANY, *BATCHES, "--epochs", 1, "--remote", "hec", "--ranks", 2, "--partition", "random", "--trace", tmp_path / "t.json"]
    here(tmp_path / "run", *flags)
    events = json.loads((tmp_path / "t.json").read_text())["traceEvents"]
    for rank in range(2):
        own = [event for event in events if event["pid"] == 1 + rank]
        tracks = {event["tid"]: event["args"]["name"] for event in own if event["name"] == "thread_name"}
        found = {(tracks[event["tid"]], event["name"]) for event in own if event["ph"] == "X"}
        assert {("sample", "sample"), ("lookup", "lookup"), ("compute", "step 4")} <= found and "push" in {track for track, _ in found}


def test_caches_that_cannot_go_on_start_empty_and_the_run_says_so(here, capsys, tmp_path):
    flags = [*MANY, *BATCHES, "--epochs", 2, "--remote", "hec", "--ranks", 2, "--partition", "random"]
    here(tmp_path / "two", *flags)
    saved, go_on = tmp_path / "two" / "checkpoint.safetensors", ["--epochs", 3, "--resume", tmp_path / "two" / "checkpoint.safetensors"]

    def told(name, *own):
        capsys.readouterr()
        assert len(here(tmp_path / name, *flags, *go_on, *own)) == 1
        return re.findall("warning: the caches of embeddings start empty: (.*)", capsys.readouterr().err)

    assert told("same") == []
    assert told("three", "--ranks", 3) == ["the checkpoint has those of 2 ranks"]
    assert told("one", "--ranks", 1) == []  # which needs none
    assert told("other parts", "--partition", "contiguous") == ["rows are divided otherwise"]
    assert told("other steps", "--batch-size", 30) == ["steps count otherwise"]
    assert told("other flags", "--hec-lines", 7, "--hec-limit", 7) == ["their flags were others"]
    assert told("exact", "--remote", "exact") == []
    assert told("hec again", "--resume", tmp_path / "exact" / "checkpoint.safetensors", "--epochs", 4) == ["the checkpoint has none"]
    for path in caches.files(saved.parent):
        path.unlink()
    assert told("missing") == ["files caches-8-0of2.safetensors and following are missing"]


def test_a_set_of_caches_without_its_checkpoint_is_not_read(here, monkeypatch, capsys, tmp_path):
    flags = [*MANY, *BATCHES, "--remote", "hec", "--ranks", 2, "--partition", "random"]
    three = here(tmp_path / "three", *flags, "--epochs", 3)
    here(tmp_path / "run", *flags, "--epochs", 2)
    go_on = [*flags, "--epochs", 3, "--resume", tmp_path / "run" / "checkpoint.safetensors"]
    with monkeypatch.context() as patch, pytest.raises(CheckpointError, match="full"):
        open_ = checkpoint.Writer.open
        patch.setattr(checkpoint.Writer, "open", lambda writer, **options: full() if writer.path.name == "checkpoint.safetensors" and
                      not options["trial"] else open_(writer, **options))
        here(tmp_path / "run", *go_on)
    assert sorted({path.name.split("-")[1] for path in caches.files(tmp_path / "run")}) == ["12", "8"]
    assert same(here(tmp_path / "run", *go_on), three) and "start empty" not in capsys.readouterr().err
    assert {path.name.split("-")[1] for path in caches.files(tmp_path / "run")} == {"12"}


def full():
    raise CheckpointError("the disk is full")


def test_a_checkpoint_takes_the_caches_of_the_one_before_away(here, tmp_path):
    flags = [*MANY, *BATCHES, "--remote", "hec", "--ranks", 2, "--partition", "random", "--checkpoint-every", 1]
    here(tmp_path / "run", *flags, "--epochs", 2)
    names = [path.name for path in caches.files(tmp_path / "run")]
    assert sorted(names) == ["caches-8-0of2.safetensors", "caches-8-1of2.safetensors"]
    here(tmp_path / "run", *flags, "--epochs", 3, "--remote", "exact", "--resume", tmp_path / "run" / "checkpoint.safetensors")
    assert caches.files(tmp_path / "run") == [] and "caches" not in checkpoint.load_metadata(tmp_path / "run" / "checkpoint.safetensors")


# ---- resuming, and signals


FLAGS = {"exact evaluation": [], "sampled evaluation": ["--eval-fanouts", "2,3"], "labor": ["--sampler", "labor", "--sample-ahead", 0]}


@pytest.mark.parametrize("name", FLAGS)
def test_a_resumed_run_goes_on_to_the_same_numbers(here, name, tmp_path):
    flags = [*MANY, *BATCHES, *FLAGS[name], "--lr-schedule", "cosine", "--epochs", 6]
    six = here(tmp_path / "six", *flags)
    assert same(here(tmp_path / "rest", *flags, "--resume", stopped(tmp_path / "part", 3, *flags)), six[3:])


def stopped(folder, epoch, *flags):
    """Train until a signal comes in an epoch, on ranks as threads; return the checkpoint, of that epoch."""
    options, interrupts = config.parse([*SMALL, "--run-dir", str(folder), *map(str, flags)]), Interrupts()
    write, saved = report.write_metrics, folder / "checkpoint.safetensors"

    def noting(file, record):
        write(file, record)
        interrupts.noted = 2 if record["epoch"] == epoch - 1 else interrupts.noted

    with pytest.MonkeyPatch.context() as patch, pytest.raises(SystemExit):
        patch.setattr(report, "write_metrics", noting)
        threads.run(options.ranks, lambda comm: run.train(comm, options, interrupts=interrupts))
    assert checkpoint.load_metadata(saved)["epoch"] == epoch
    return saved


def test_the_batch_size_may_change_and_so_do_the_steps(here, tmp_path):
    flags = [*MANY, *BATCHES]
    here(tmp_path / "run", *flags, "--epochs", 2)
    saved = tmp_path / "run" / "checkpoint.safetensors"
    n = int(checkpoint.load_metadata(saved)["step"])
    assert n == 8 and "caches" not in checkpoint.load_metadata(saved)
    assert len(here(tmp_path / "larger", *flags, "--batch-size", 80, "--resume", saved, "--epochs", 3)) == 1
    assert checkpoint.load_metadata(tmp_path / "larger" / "checkpoint.safetensors")["step"] == 6
    before = {name: value for name, value in config.resume.base(saved).items() if name != "ranks"}
    whole = config.resolve({"batch_size": 0, "resume": str(saved), "epochs": 3}, before=before)
    assert whole.fanouts is None and before["fanouts"] == [3, 5]


# ---- flags


REFUSED = {
    "--fanouts 5,5": "--fanouts means nothing without --batch-size",
    "--eval-fanouts 5,5": "--eval-fanouts means nothing without --batch-size",
    "--batch-size 0 --remote exact": "--remote means nothing without --batch-size",
    "--lr-scale sqrt": "--lr-scale means nothing without --batch-size",
    "--batch-size 10 --fanouts 5,5 --hec-life 3": "--hec-life means nothing without --remote hec",
    "--batch-size 10 --fanouts 5,5 --remote local --push-by degree": "--push-by means nothing without --remote hec",
    "--batch-size 10 --fanouts 5,5 --remote exact --halo-features keep": "--halo-features means nothing without --remote hec",
    "--batch-size 10 --fanouts 5,5 --eval-fanouts 5": "--eval-fanouts has 1 entries, but --fanouts 2",
    "--batch-size 10 --fanouts 5,few": "--fanouts: '5,few' is no list of picks a row, one a layer, such as 5,10,all",
    "--batch-size 10 --fanouts 5,0": "'5,0' is no list of picks",
    "--batch-size 10 --fanouts=-2": "'-2' is no list of picks",
    "--batch-size 10 --fanouts=": "'' is no list of picks",
    "--batch-size -1": "--batch-size -1 is less than 0",
    "--batch-size 10 --fanouts 5 --sample-ahead -1": "--sample-ahead -1 is less than 0",
    "--batch-size 10 --fanouts 5 --remote hec --hec-lines 0": "--hec-lines 0 is less than 1",
    "--batch-size 10 --fanouts 5 --remote hex": "--remote: 'hex' is not one of exact, hec, local; did you mean hec?",
}  # fmt: skip


@pytest.mark.parametrize("flags", REFUSED)
def test_flags_that_mean_nothing_are_refused_by_name(flags):
    with pytest.raises(ConfigError, match=re.escape(REFUSED[flags])):
        config.parse(flags.split())


FILES = {
    "fanouts = [5, 5]": "fanouts means nothing without --batch-size",
    "batch-size = 5\nfanouts = [5, 5.0]": "fanouts = [5, 5.0] is not a list of picks a row, such as [5, 10, 15]",
    "batch-size = 5\nfanouts = []": "fanouts = [] is not a list of picks",
    "batch-size = 5\nfanouts = 5": "fanouts = 5 is not a list of picks",
    "batch-size = 5\nfanouts = [true]": "fanouts = [True] is not a list of picks",
}


@pytest.mark.parametrize("text", FILES)
def test_so_are_those_of_a_file(text, tmp_path):
    (tmp_path / "c.toml").write_text(text)
    with pytest.raises(ConfigError, match=re.escape(FILES[text])):
        config.parse(["--config", str(tmp_path / "c.toml")])


def test_what_a_run_wrote_is_read_back_and_what_a_run_before_had_is_forgotten(tmp_path):
    one = config.parse("--batch-size 10 --fanouts 5,all --remote hec --hec-life 3 --push demand".split())
    assert one.fanouts == [5, -1] and one.hec_delay is None
    (tmp_path / "c.toml").write_text(config.to_toml(one))
    assert vars(config.resolve({}, config.read_toml(tmp_path / "c.toml"))) == vars(one)
    (tmp_path / "text.toml").write_text('batch-size = 10\nfanouts = "5,all"')
    assert config.parse(["--config", str(tmp_path / "text.toml")]).fanouts == [5, -1]
    other = config.resolve({"remote": "local"}, before=vars(one))
    assert (other.hec_life, other.push, other.fanouts) == (None, None, [5, -1])
    whole = config.resolve({"batch_size": 0}, before=vars(one))
    assert all(getattr(whole, name) is None for name in config.MINIBATCH_OPTIONS)


@pytest.mark.parametrize("ranks", [1, 2])
def test_fan_outs_that_are_not_the_layers_are_refused_before_training(here, monkeypatch, ranks, tmp_path):
    monkeypatch.setattr(BatchTrainer, "__init__", lambda *args, **options: pytest.fail("too late"))
    with pytest.raises(ConfigError, match="fanouts has 3 entries, but the model 2 layers"):
        here(tmp_path / "run", "--batch-size", 10, "--fanouts", "3,5,5", "--ranks", ranks)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("flags, message", [
    (["--remote", "hec", "--push", "demand", "--hec-delay", 0], "HEC: push 'demand'"), (["--sampler", "full"], "sampler 'full' takes all"),
    (["--remote", "hec", "--hec-lines", 7], "HEC: lines 7 are fewer than limit 2000"),
])  # fmt: skip
def test_what_does_not_go_together_is_refused_before_training(here, flags, message, tmp_path):
    for ranks in (1, 2):
        with pytest.raises(ConfigError, match=message):
            here(tmp_path / "run", *BATCHES, *flags, "--ranks", ranks)
        assert not (tmp_path / "run").exists()


def test_a_model_of_ones_own_is_tried_on_a_batch(here, tmp_path):
    (tmp_path / "m.py").write_text(
        "from sarlite import fn, nn\n\nclass Whole(nn.Module):\n    def __init__(self, n_in, n_out, *, hidden=8, layers=2, rng, dtype):\n"
        "        self.w = nn.Linear(n_in, n_out, rng=rng, dtype=dtype)\n\n    def __call__(self, graph, h):\n"
        "        return graph.aggregate(fn.copy_src(self.w(h)), 'mean')\n")
    with pytest.raises(ConfigError, match=r"a batch of 2 layers has a graph for each, batch.layers\(2\)"):
        here(tmp_path / "run", *BATCHES, "--model", f"{tmp_path / 'm.py'}:Whole", "--epochs", 1)
    assert here(tmp_path / "run", "--batch-size", 10, "--fanouts", 3, "--model", f"{tmp_path / 'm.py'}:Whole", "--epochs", 1)


def test_progress_within_an_epoch(capsys, monkeypatch):
    times = iter([100.0, *([104.0] * 3), 105.0, *([110.0] * 3)])
    monkeypatch.setattr(report.time, "monotonic", lambda: next(times))
    progress = report.Progress("lines", 2, 12, 4)
    progress.step(2, 0.5)
    progress.step(3, 0.25)  # 1 s later: no line
    progress.step(4, 0.125)  # told with the epoch
    progress.update({"epoch": 3, "loss": 1.0, "train_accuracy": 0.5, "val_accuracy": None})
    assert capsys.readouterr().err == ("epoch 3/12, step 2/4: loss 0.5000, 1 min 16 s left\n"
                                       "epoch 3/12: loss 1.0000, train 0.5000, 1 min 30 s left\n")


# ---- the files of caches


class Cached:
    """What `caches` takes of a trainer: rows, and a loader with a state."""

    def __init__(self, rows, step=12, state=None):
        self.graph, self.training_step = SimpleNamespace(dst_ids=np.asarray(rows)), SimpleNamespace(n_steps=step)
        self.loader, self.got = SimpleNamespace(state=lambda: state or {}, load_state=self._load), None

    def _load(self, state):
        self.got = state


def cached(comm, step=12, value=1.0):
    return Cached(np.arange(4) + comm.rank, step, {"0.rows": np.full((3, 2), value + comm.rank), "0.halo": np.arange(3, dtype=np.int32)})


def test_caches_are_written_by_each_rank_and_come_back(tmp_path):
    def work(comm):
        found = caches.write(comm, tmp_path / "run", cached(comm))
        json.dumps(found)
        other = cached(comm, value=-1.0)
        assert caches.restore(comm, tmp_path / "run", other, found, 12) is None
        assert (other.got["0.rows"] == 1.0 + comm.rank).all() and other.got["0.halo"].dtype == np.int32
        again = caches.write(comm, tmp_path / "run", cached(comm, step=15))
        assert len(caches.files(tmp_path / "run")) == 4
        comm.barrier()
        caches.remove_others(tmp_path / "run", again, comm.size)
        comm.barrier()
        assert sorted(path.name for path in caches.files(tmp_path / "run")) == [f"caches-15-{k}of2.safetensors" for k in range(2)]
        return caches.restore(comm, tmp_path / "run", other, found, 12)

    assert threads.run(2, work) == ["files caches-12-0of2.safetensors and following are missing"] * 2
    assert caches.write(Solo(), tmp_path, Cached([0])) is None and caches.write(Solo(), tmp_path, SimpleNamespace(loader=None)) is None


def test_caches_that_do_not_fit_are_left_and_told_of(tmp_path):
    found = threads.run(2, lambda comm: caches.write(comm, tmp_path, cached(comm)))[0]

    def words(about=found, step=12, n=2, rows=None):
        def work(comm):
            trainer = cached(comm)
            trainer.graph.dst_ids = trainer.graph.dst_ids if rows is None else rows
            reason = caches.restore(comm, tmp_path, trainer, about, step)
            assert (trainer.got is None) == (reason is not None)
            return reason

        return set(threads.run(n, work))

    assert words() == {None} and words(None) == {"the checkpoint has none"}
    assert words(n=3) == {"the checkpoint has those of 2 ranks"} and words(step=6) == {"steps count otherwise"}
    assert words(rows=np.arange(5)) == {"rows are divided otherwise"}
    other = threads.run(2, lambda comm: caches.write(comm, tmp_path, cached(comm, value=3.0)))[0]  # as another run may
    with pytest.raises(CheckpointError, match="is not the file that the checkpoint was written with; without it the caches start empty"):
        words()
    path = tmp_path / "caches-12-1of2.safetensors"
    path.write_bytes(path.read_bytes()[:-3])
    with pytest.raises(CheckpointError, match=path.name):
        words(other)


def test_a_folder_with_caches_is_not_taken_for_a_new_run(here, tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "caches-12-0of1.safetensors").write_text("")
    with pytest.raises(ConfigError, match="already holds caches-12-0of1.safetensors"):
        here(tmp_path / "run", "--epochs", 1)
