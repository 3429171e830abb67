"""Early stopping, plateau schedules and clipped gradients, the same on all ranks and in resumed runs."""

import json
from types import SimpleNamespace

import numpy as np
import pytest

from sarlite import optim
from sarlite.cli import config
from sarlite.comm import Solo, threads
from sarlite.errors import CheckpointError, ConfigError, DataError
from sarlite.profile import Profile
from sarlite.tasks.node_task import NodeTask
from sarlite.train import checkpoint
from sarlite.train.epochs import fit
from sarlite.train.stopping import Best, Stopping
from tests.helpers.train.owned_rows import make
from tests.helpers.train.task_data import stored


def scores(value, loss=1.0, key="accuracy"):
    return {f"{name}_{key}": value for name in ("train", "val", "test")} | {"val_loss": loss}


class Model:
    def state_dict(self):
        return {}


def test_the_best_is_by_metric_then_by_loss():
    for task, key, better, worse in ((NodeTask(), "accuracy", 0.9, 0.8), (NodeTask("regress"), "rmse", 0.8, 0.9)):
        best = Best(task)
        for epoch, (value, loss) in enumerate([(worse, 1.0), (worse, 0.9), (better, 5.0), (worse, 0.1), (np.nan, 0.1), (better, 6.0)], 1):
            best.update(epoch, scores(value, loss, key), Model())
        assert best.epoch == 3 and best.scores[f"val_{key}"] == better
    best.update(7, scores(None, None, "rmse"), Model())  # without a validation split the last is best
    assert best.epoch == 7


def test_a_plateau_falls_after_its_patience():
    """Best at epochs 1, 2 and 6; falls after 4 (2 past 2), 8 (2 past 6) and 10 (2 past the last fall)."""
    schedule = optim.schedule("warmup:2:plateau:0.5:2", 100)
    plateau = optim.plateau_of(schedule)
    stopping, best, factors = Stopping(plateau=plateau), Best(), []
    for epoch, value in enumerate([0.1, 0.2, 0.2, 0.2, 0.2, 0.3, 0.1, 0.1, 0.1, 0.1], 1):
        factors.append(schedule(epoch - 1))
        best.update(epoch, scores(value), Model())
        stopping.evaluated(epoch, best)
    assert factors == [0.5, 1, 1, 1, 0.5, 0.5, 0.5, 0.5, 0.25, 0.25] and schedule(10) == 0.125
    assert plateau.state() == {"falls": 3, "last": 10}
    again = optim.Plateau(0.5, 2)
    again.load_state(json.loads(json.dumps(plateau.state())))
    assert again.state() == plateau.state() and again(3) == 0.125
    with pytest.raises(CheckpointError, match="plateau .*{'falls': -1}"):
        again.load_state({"falls": -1})
    assert optim.plateau_of(optim.schedule("warmup:2:cosine", 9)) is None
    for spec, message in {"plateau:2:3": "factor of a plateau is 2.0, but must be in", "plateau:0.5:0": "must be 1 or more",
                          "plateau:0.5": "is not one of", "plateau:x:2": "x"}.items():
        with pytest.raises(ConfigError, match=message):
            optim.schedule(spec, 9)


@pytest.mark.parametrize("every", [1, 2])
def test_a_run_ends_where_none_is_better(every, here, tmp_path, capsys):
    """At the evaluation `patience` epochs past the best; the ranks alike, and a resumed run where the whole one did, or at once."""
    flags = ["--data", stored(tmp_path, "multilabel"), "--dtype", "float64", "--lr", "0.3", "--epochs", 60, "--patience", 3,
             "--eval-every", every, "--lr-schedule", "plateau:0.5:2"]  # fmt: skip
    one = here(tmp_path / "one", *flags)
    assert "ended early: no better epoch in the last 3" in capsys.readouterr().out
    best = max((m for m in one if m["val_roc_auc"] is not None), key=lambda m: (m["val_roc_auc"], -m["val_loss"]))
    end = best["epoch"] + 3 if every == 1 else best["epoch"] + 4
    assert len(one) == end < 60
    about = checkpoint.load_metadata(tmp_path / "one" / "checkpoint.safetensors")
    assert (about["epoch"], about["best"]["epoch"]) == (end, best["epoch"]) and about["plateau"]["falls"] >= 1
    three = here(tmp_path / "three", *flags, "--ranks", 2)
    assert len(three) == len(one)
    np.testing.assert_allclose([m["loss"] for m in three], [m["loss"] for m in one], rtol=1e-9)
    at = best["epoch"] + 2  # just after a fall
    here(tmp_path / "cut", *flags, "--epochs", at)
    rest = here(tmp_path / "rest", *flags, "--resume", tmp_path / "cut" / "checkpoint.safetensors")
    assert [m["loss"] for m in rest] == [m["loss"] for m in one[at:]] and len(rest) == end - at
    here(tmp_path / "one", *flags, "--resume", tmp_path / "one" / "checkpoint.safetensors")
    assert "epochs       0 in" in capsys.readouterr().out


class Scripted:
    """A trainer whose validation accuracy after each epoch is known before."""

    task, rows, model, graph = NodeTask(), {"train": (), "val": (), "test": ()}, Model(), SimpleNamespace(profile=Profile())
    training_step, counts = SimpleNamespace(lr=0.1), {"val": 1}

    def __init__(self, values):
        self.values = values

    def epoch(self, epoch, on_step):
        self.now = epoch
        return 0.0

    def evaluate(self):
        value = self.values[self.now]
        return scores(value, None if value is None else 1.0)


VALUES = {"best where it was cut": [0.1, 0.2, 0.9, 0.3, 0.4, 0.4, 0.4, 0.4], "rising": [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8],
          "falling": [0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1], "no validation split": [None] * 8}


@pytest.mark.parametrize("values", VALUES)
@pytest.mark.parametrize("every, cut", [(2, 3), (5, 3), (5, 4), (3, 7), (1, 3)])
def test_an_evaluation_that_the_end_forces_decides_nothing(values, every, cut):
    """A run that is cut and goes on, as a checkpoint has it, is the run that was never cut."""
    def run(*ends, patience):
        trainer, saved, records = Scripted(VALUES[values]), {"best": {}}, []
        for end in ends:
            best, stopping = Best(), Stopping(patience, optim.Plateau(0.5, 1))
            vars(best).update(saved["best"])
            stopping.plateau.load_state(saved.get("plateau", stopping.plateau.state()))
            fit(trainer, end, start=len(records), eval_every=every, best=best, stopping=stopping, on_epoch=records.append)
            saved = {"best": {name: getattr(best, name) for name in ("epoch", "scores", "state", "decided")},
                     "plateau": stopping.plateau.state()}  # fmt: skip
        return saved, [record["val_accuracy"] for record in records]

    for patience in (None, 3):
        (whole, reported), (parts, told_of_parts) = run(8, patience=patience), run(cut, 8, patience=patience)
        assert parts == whole and len(reported) == len(told_of_parts)
        assert len(reported) < cut or told_of_parts[cut - 1] == VALUES[values][cut - 1]  # it is told all the same


def test_the_only_evaluation_gives_the_best_epoch_until_another_comes(here, tmp_path):
    """Parameters hardly change, so scores are equal, and the first of them is the best."""
    flags = ["--eval-every", 5, "--lr", 1e-300]
    here(tmp_path / "cut", *flags, "--epochs", 3)
    saved = tmp_path / "cut" / "checkpoint.safetensors"
    about = checkpoint.load_metadata(saved)["best"]
    assert about["epoch"] == 3 and about["decided"] is False and about["scores"]["val_accuracy"] is not None
    here(tmp_path / "rest", *flags, "--epochs", 8, "--resume", saved)
    here(tmp_path / "whole", *flags, "--epochs", 8)
    rest, whole = (checkpoint.load_metadata(tmp_path / name / "checkpoint.safetensors")["best"] for name in ("rest", "whole"))
    assert rest == whole and whole["epoch"] == 5 and whole["decided"] is True


def test_clipped_gradients_have_the_norm_of_one_rank():
    """The norm covers rows that ranks own, too, and gradients below the bound do not change."""

    def gradients(comm, norm):
        trainer = make(comm, "plain", clip_norm=norm)
        saved = []
        trainer.optimizer.step = lambda factor: saved.append([g.grad.copy() for g in trainer.flat.groups])
        trainer.step()
        part = sum(float(np.square(g, dtype=float).sum()) for g in saved[-1][1:])
        return (float(np.square(saved[-1][0], dtype=float).sum()) + float(comm.allreduce(np.array([part]))[0])) ** 0.5, saved[-1][0]

    norm, grad = gradients(Solo(), None)
    assert gradients(Solo(), 2 * norm)[1].tolist() == grad.tolist()
    for n in (1, 3, 4):
        for of_rank, clipped in threads.run(n, gradients, norm / 4):
            assert abs(of_rank - norm / 4) < 1e-6 * norm  # one table is float32
            np.testing.assert_allclose(clipped, grad / 4, rtol=1e-6, atol=1e-12)


@pytest.mark.parametrize("n", [1, 2])
def test_a_norm_that_is_not_finite_is_refused(n):
    def work(comm):
        trainer = make(comm, "plain", clip_norm=1.0)
        before = trainer.flat.data.copy()
        loss = trainer.training_step._forward_and_backward

        def blown_up(*args):
            result = loss(*args)
            trainer.flat.grad[0] = np.inf
            return result

        trainer.training_step._forward_and_backward = blown_up
        with pytest.raises(DataError, match="norm .*gradients is inf at step 1"):
            trainer.step()
        assert trainer.flat.data.tolist() == before.tolist()

    threads.run(n, work)


def test_numbers_out_of_range_are_refused():
    for flags, message in {"--patience 0": "--patience 0 is less than 1", "--clip-norm 0": "--clip-norm 0.0 is not above 0"}.items():
        with pytest.raises(ConfigError) as caught:
            config.parse(flags.split())
        assert str(caught.value) == message
