"""The training step, and parameters owned by rows: the same for any number of ranks, through a checkpoint too."""


import numpy as np
import pytest

from sarlite import Graph, nn, optim
from sarlite.comm import Solo, threads
from sarlite.errors import CheckpointError, ConfigError, DataError
from sarlite.minibatch.batch import FullBatch
from sarlite.models import GCN
from sarlite.tape import Tensor, ops
from sarlite.tasks.task_losses import mean_over_rows
from sarlite.train import checkpoint
from sarlite.train.step import TrainingStep
from tests.helpers.train.owned_rows import OPTIMIZERS, Learned, OneTable, assert_same_state, check_checkpoint, make


def train(comm, optimizer, path, epochs=4):
    """Losses, scores and on rank 0 the state: what a checkpoint holds."""
    trainer = make(comm, optimizer)
    losses = [trainer.step() for _ in range(epochs)]
    checkpoint.write(path, trainer, {})
    return losses, trainer.evaluate(), checkpoint.load(path)[0] if comm.rank == 0 else None


# ---- owned by rows


@pytest.mark.sampled(7)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("n_ranks", [2, 3, 4])
def test_learned_rows_are_the_same_on_any_number_of_ranks(n_ranks, optimizer, tmp_path):
    losses, scores, state = train(Solo(), optimizer, tmp_path / "c")
    assert {"model.table.weight", "ids.table.weight", "model.low.weight", "model.sage.convs.0.root.weight"} <= state.keys()
    assert state["model.table.weight"].shape == (200, 4) and state["ids.low.weight"].tolist() == list(range(200))
    assert losses[-1] < losses[0]
    by_rank = threads.run(n_ranks, train, optimizer, tmp_path / "c")
    for other_losses, other_scores, _ in by_rank:
        np.testing.assert_allclose(other_losses, losses, rtol=1e-7)
        assert {k: v for k, v in other_scores.items() if k != "val_loss"} == {k: v for k, v in scores.items() if k != "val_loss"}
        np.testing.assert_allclose(other_scores["val_loss"], scores["val_loss"], rtol=1e-7)
    assert_same_state(by_rank[0][2], state)


def test_learned_rows_send_nothing():
    def sent(comm):
        trainer = make(comm)
        trainer.step()
        return trainer.graph.profile.sent_bytes["allreduce"] - trainer.flat.grad.nbytes - 8

    others = 3 * 8 + 2 * (1 + 2 * 8) * 8 + 2 * 8 * 8  # counts of the splits; batch norm's moments, and its backward
    assert threads.run(2, sent) == [others] * 2


@pytest.mark.parametrize("n_ranks", [1, 2, 3, 4])
def test_a_checkpoint_holds_all(n_ranks, tmp_path):
    threads.run(n_ranks, check_checkpoint, tmp_path / "c")


@pytest.mark.sampled(3)
@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
@pytest.mark.parametrize("before, after", [(3, 2), (3, 1), (1, 3), (2, 4)])
def test_a_checkpoint_continues_on_another_number_of_ranks(before, after, optimizer, tmp_path):
    path = tmp_path / "checkpoint.safetensors"

    def first(comm):
        trainer = make(comm, optimizer)
        losses = [trainer.step() for _ in range(3)]
        best = trainer.model.state_dict()
        losses.append(trainer.step())
        checkpoint.write(path, trainer, {"note": 1}, best)
        return losses

    def second(comm):
        trainer = make(comm, optimizer)
        tensors, metadata = checkpoint.read(comm, path)
        assert metadata["note"] == 1 and metadata["step"] == 4
        assert comm.rank == 0 or not any(name.startswith("ids.") or ".table." in name for name in tensors)
        best = checkpoint.restore_state(trainer, tensors, metadata)
        losses = [trainer.step() for _ in range(3)]
        checkpoint.write(tmp_path / "last.safetensors", trainer, {}, best)
        return losses

    def never_stopped(comm):
        trainer = make(comm, optimizer)
        losses, best = [], None
        for k in range(7):
            best = trainer.model.state_dict() if k == 3 else best
            losses.append(trainer.step())
        checkpoint.write(tmp_path / "expected.safetensors", trainer, {}, best)
        return losses

    expected = never_stopped(Solo())
    for actual in threads.run(before, first):
        np.testing.assert_allclose(actual, expected[:4], rtol=1e-6)
    for actual in threads.run(after, second):
        np.testing.assert_allclose(actual, expected[4:], rtol=1e-6)
    (actual, meta), (state, expected_meta) = (checkpoint.load(tmp_path / f"{name}.safetensors") for name in ("last", "expected"))
    assert meta == expected_meta and meta["step"] == 7
    assert meta["rows"]["best.low.weight"] == "low.weight"
    slot = {"adam": "m", "sgd": "velocity"}[optimizer]
    assert meta["rows"][f"optimizer.{slot}.table.weight"] == "table.weight" and meta["rows"].keys() < state.keys()
    assert_same_state(actual, state)


def test_names_without_owned_rows_are_the_models_own(tmp_path):
    trainer = make(Solo(), make_model=lambda ids, rng: GCN(6, 3, rng=rng, dtype=np.float64))
    trainer.step()
    checkpoint.write(tmp_path / "c", trainer, {}, None)
    tensors, meta = checkpoint.load(tmp_path / "c")
    assert set(tensors) == {*("model." + name for name in trainer.model.state_dict()), "optimizer.m", "optimizer.v", "optimizer.n_steps"}
    assert meta["rows"] == {} and tensors["optimizer.m"].shape == (trainer.model.n_parameters,)


OTHERS = {
    "'table.weight': id 1007 belongs to no rank": lambda ids, rng: OneTable(np.where(ids == 1007, 7000, ids), rng),
    "'table.weight': id 10 is missing from the checkpoint": lambda ids, rng: OneTable(np.where(ids == 1011, 10, ids), rng),
    "'model.table.weight' is float64 (200, 4), but float32": lambda ids, rng: OneTable(ids, rng, np.float32),
    "'model.table.weight' is float64 (200, 4), but float64 with rows of (5,)": lambda ids, rng: OneTable(ids, rng, width=5),
    "'best.table.weight', owned by rows, is missing from the trainer": lambda ids, rng: GCN(6, 3, rng=rng, dtype=np.float64),
    "'best.low.weight', owned by rows, is missing from the checkpoint": lambda ids, rng: Learned(ids, rng),
}


@pytest.mark.parametrize("message", OTHERS)
def test_rows_of_another_set_are_refused_on_every_rank(message, tmp_path):
    shifted = lambda other: lambda ids, rng: other(ids + 1000, rng)  # noqa: E731

    def write(comm):
        trainer = make(comm, make_model=shifted(OneTable))
        trainer.step()
        checkpoint.write(tmp_path / "c", trainer, {}, trainer.model.state_dict())

    def restore(comm):
        trainer = make(comm, make_model=shifted(OTHERS[message]))
        before = trainer.model.state_dict()
        with pytest.raises(CheckpointError) as caught:
            checkpoint.restore_state(trainer, *checkpoint.read(comm, tmp_path / "c"))
        for name, array in trainer.model.state_dict().items():
            np.testing.assert_array_equal(array, before[name])
        return str(caught.value)

    threads.run(3, write)
    for text in threads.run(2, restore):
        assert message in text, text


@pytest.mark.parametrize("damage, message", [
    (lambda tensors: tensors.pop("ids.table.weight"), "'table.weight': id 0 is missing"),
    (lambda tensors: tensors.update({"ids.table.weight": np.arange(200)[::-1]}), "'table.weight': the checkpoint's ids do not ascend"),
    (lambda tensors: tensors.pop("optimizer.m.table.weight"), "'optimizer.m.table.weight' is missing"),
    (lambda tensors: tensors.pop("model.last.weight"), "'last.weight' is missing"),
])
def test_a_checkpoint_without_some_rows_is_refused_on_every_rank(damage, message, tmp_path):
    trainer = make(Solo(), make_model=OneTable)
    checkpoint.write(tmp_path / "c", trainer, {})
    tensors, metadata = checkpoint.load(tmp_path / "c")
    damage(tensors)
    checkpoint.save(tmp_path / "c", tensors, metadata)

    def restore(comm):
        with pytest.raises(CheckpointError, match=message):
            checkpoint.restore_state(make(comm, make_model=OneTable), *checkpoint.read(comm, tmp_path / "c"))
        return True

    assert threads.run(2, restore) == [True, True]


# ---- the step


def test_steps_over_graphs_of_their_own():
    """Each step may have another graph, rows and count, as with a loader; model and optimizer keep their state."""
    rng = np.random.default_rng(0)
    batches = [(Graph.from_edges(*rng.integers(0, n, (2, 4 * n)), n), rng.standard_normal((n, 6)), rng.integers(0, 3, n))
               for n in (9, 30, 1)]  # fmt: skip

    def run(as_ranks):
        random = nn.Random(5)
        model = GCN(6, 3, rng=random, dtype=np.float64)
        factors, keys = [], []
        step = TrainingStep(model, optim.Adam(nn.flatten(model), 0.1), random, Solo(), schedule=lambda k: factors.append(k) or 1.0)
        for graph, x, labels in batches:
            rows = np.arange(0, len(x), 2)
            loss = mean_over_rows(ops.cross_entropy) if as_ranks else ops.cross_entropy
            keys.append((random.step, step(FullBatch(graph, Tensor(x), labels, rows, len(rows)), loss)))
        assert factors == [0, 1, 2] and step.n_steps == 3 and random.step == 2
        return [loss for _, loss in keys], nn.flatten(model).data

    (losses, values), (other_losses, other_values) = run(False), run(True)
    np.testing.assert_allclose(other_losses, losses, rtol=1e-12)
    np.testing.assert_allclose(other_values, values, rtol=1e-9)


def test_masks_follow_the_global_step():
    class Keys(nn.Module):
        def __init__(self, ids, rng):
            self.linear, self.rng, self.seen = nn.Linear(6, 3, rng=rng, dtype=np.float64), rng, []

        def __call__(self, graph, x):
            self.seen.append((self.training, self.rng.step))
            return self.linear(x)

    trainer = make(Solo(), make_model=Keys)
    trainer.step()
    trainer.step()
    trainer.evaluate()
    trainer.step(7)
    trainer.step()
    assert trainer.model.seen == [(True, 0), (True, 1), (False, 1), (True, 7), (True, 8)] and trainer.training_step.n_steps == 9


def test_a_loss_that_is_not_finite_changes_nothing():
    def work(comm):
        trainer = make(comm)
        trainer.step()
        if comm.rank == 0:
            trainer.flat.data[:3] = np.inf
        before = trainer.model.state_dict()
        with pytest.raises(DataError, match="loss is nan at step 2: .*learning rate"), np.errstate(all="ignore"):
            trainer.step()
        names = dict(trainer.model.named_parameters())
        for name, array in trainer.model.state_dict().items():
            if name in names:
                np.testing.assert_array_equal(array, before[name])
        return True

    assert threads.run(2, work) == [True, True]


def test_parameters_that_are_not_finite_are_not_written(tmp_path):
    def work(comm):
        trainer = make(comm)
        if comm.rank == 1:
            trainer.model.table.weight.data[3, 1] = np.nan
        with pytest.raises(CheckpointError, match="'table.weight' is not finite"):
            checkpoint.write(tmp_path / "c", trainer, {})
        return True

    assert threads.run(2, work) == [True, True] and not list(tmp_path.iterdir())


@pytest.mark.parametrize("factor", [np.nan, np.inf, -0.5, None, "1"])
def test_a_factor_of_the_learning_rate_that_is_no_number_is_refused_before_the_step(factor):
    model, labels = GCN(3, 2, layers=1, rng=nn.Random(0)), np.array([0, 1, 1])
    flat = nn.flatten(model)
    before = flat.data.copy()
    step = TrainingStep(model, optim.Adam(flat, 0.1), nn.Random(0), Solo(), schedule=lambda step: factor if step else 1.0)
    x = Tensor(np.eye(3, dtype=np.float32), constant=True, placement="rows")
    batch = FullBatch(Graph.from_edges([0, 1, 2], [1, 2, 0], 3), x, labels=labels, rows=np.arange(3), n_global=3)
    step(batch)
    after = flat.data.copy()
    with pytest.raises(ConfigError, match=r"the schedule at step 2 .*must be in \[0, inf\)"):
        step(batch)
    assert (before != after).any() and step.n_steps == 1
    np.testing.assert_array_equal(flat.data, after)
