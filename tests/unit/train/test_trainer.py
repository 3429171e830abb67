"""The trainer: loss functions of the user, predictions, rows of the splits, and arguments that raise errors."""

import copy
import pickle

import numpy as np
import pytest

from sarlite import Graph, Trainer, nn, optim
from sarlite.comm import Solo, threads
from sarlite.errors import ConfigError, DataError, SarliteError, ShapeError
from sarlite.models import GCN, SAGE
from sarlite.tape import Tensor
from sarlite.tape.row_index import row_numbers
from sarlite.train import checkpoint
from tests.helpers.train.owned_rows import FEATURES, LABELS, OPTIMIZERS, PARTS, TRAIN, VAL, OneTable, make, whole


def squares(output, targets):
    return ((output[:, 0] - Tensor(targets)) ** 2.0).mean()


@pytest.mark.parametrize("rows", ["some", "of one rank alone"])
def test_a_loss_of_ones_own(rows):
    """The mean over the rows of all ranks, also where a rank has none."""
    targets, train_rows = FEATURES[:, 0] * 2, TRAIN if rows == "some" else (PARTS[3] == 1) & TRAIN

    def work(comm):
        graph = whole() if comm.size == 1 else whole().shard(comm, PARTS[comm.size])
        rng, ids = nn.Random(2), graph.node_ids
        model = SAGE(6, 1, layers=2, hidden=8, rng=rng, dtype=np.float64)
        trainer = Trainer(graph, model, FEATURES[ids], targets[ids], train_rows[ids], VAL[ids], optimizer=OPTIMIZERS["plain"], rng=rng,
                          loss=squares)  # fmt: skip
        losses = [trainer.step() for _ in range(4)]
        return ids, losses, trainer.evaluate(), trainer.predict()

    _, losses, scores, output = work(Solo())
    assert losses[-1] < losses[0] and scores["val_accuracy"] is scores["train_accuracy"] is None
    np.testing.assert_allclose(scores["val_loss"], ((output[VAL, 0] - targets[VAL]) ** 2).mean(), rtol=1e-12)
    for ids, other_losses, other_scores, rows_out in threads.run(3, work):
        np.testing.assert_allclose(other_losses, losses, rtol=1e-9)
        np.testing.assert_allclose(other_scores["val_loss"], scores["val_loss"], rtol=1e-9)
        np.testing.assert_allclose(rows_out, output[ids], rtol=1e-8, atol=1e-10)


def test_predictions_are_those_of_the_evaluation():
    def work(comm):
        trainer = make(comm)
        trainer.step()
        scores, logits = trainer.evaluate(), trainer.predict()
        local = TRAIN[trainer.graph.node_ids]
        hits = comm.allreduce(np.array([(logits.argmax(1) == LABELS[trainer.graph.node_ids])[local].sum()]))[0]
        assert logits.shape == (trainer.graph.n_dst, 3) and scores["train_accuracy"] == hits / TRAIN.sum()
        saved = logits.copy()
        trainer.step()
        np.testing.assert_array_equal(logits, saved)
        return True

    assert all(threads.run(2, work)) and work(Solo())


def test_predictions_are_not_the_parameters_themselves():
    class Bare(OneTable):
        def __call__(self, graph, x):
            return self.table()

    trainer = make(Solo(), make_model=lambda ids, rng: Bare(ids, rng, width=3))
    logits = trainer.predict()
    saved = logits.copy()
    trainer.step()
    np.testing.assert_array_equal(logits, saved)
    assert (trainer.predict() != saved).any()


def test_a_second_trainer_of_a_model_goes_on_with_it():
    first = make(Solo())
    first.step()
    loss = first.evaluate()["val_loss"]
    second = Trainer(first.graph, first.model, FEATURES, LABELS, TRAIN, VAL, optimizer=OPTIMIZERS["plain"], rng=first.training_step.rng)
    assert second.evaluate()["val_loss"] == loss and second.flat is first.flat
    second.step()
    assert first.evaluate()["val_loss"] == second.evaluate()["val_loss"] != loss


ROWS = {
    "mask": TRAIN, "list of bools": TRAIN.tolist(), "numbers": np.flatnonzero(TRAIN), "int32": np.flatnonzero(TRAIN).astype(np.int32),
    "uint8": np.flatnonzero(TRAIN).astype(np.uint8), "list": np.flatnonzero(TRAIN).tolist(),
}  # fmt: skip


@pytest.mark.parametrize("kind", ROWS)
def test_rows_are_masks_or_numbers(kind):
    def trainer(rows):
        rng = nn.Random(2)
        return Trainer(whole(), GCN(6, 3, rng=rng, dtype=np.float64), FEATURES, LABELS, rows, ROWS[kind],
                       optimizer=OPTIMIZERS["plain"], rng=rng)

    result, expected = trainer(ROWS[kind]), trainer(np.flatnonzero(TRAIN))
    assert result.counts == {"train": TRAIN.sum(), "val": TRAIN.sum(), "test": 0}
    assert result.step() == expected.step()
    scores = result.evaluate()
    assert scores["train_accuracy"] == scores["val_accuracy"] and scores["test_accuracy"] is None


def test_row_numbers_take_slices_lists_ids_and_masks():
    assert row_numbers("r", slice(1, None, 3), 8).tolist() == row_numbers("r", range(1, 8, 3), 8).tolist() == [1, 4, 7]
    assert row_numbers("r", slice(-2, None), 8).tolist() == [6, 7] and row_numbers("r", slice(None), 0).tolist() == []
    assert row_numbers("r", [5, 2, 5], 8).tolist() == [5, 2, 5]
    for nothing in ((), [], np.zeros(0), np.zeros(0, int), np.zeros(8, bool)):
        result = row_numbers("r", nothing, 8)
        assert result.dtype == np.int64 and result.shape == (0,)
    assert row_numbers("r", np.zeros(0, bool), 0).tolist() == []


@pytest.mark.parametrize("rows, error, message", [
    (np.zeros(7, bool), ShapeError, r"r: bool \(7,\) is neither 8 bools, nor a slice, nor row numbers"),
    (np.zeros((8, 1), bool), ShapeError, r"bool \(8, 1\)"),
    (np.zeros(0, bool), ShapeError, r"bool \(0,\)"),
    (np.ones(8), ShapeError, "float64"),
    (3, ShapeError, r"\(\)"),
    (None, ShapeError, "object"),
    (["a"], ShapeError, "<U1"),
    (np.array([[1]]), ShapeError, r"\(1, 1\)"),
    ([0, 8], DataError, r"r\[1\] is 8, .*rows are 0 .. 7"),
    ([-1], DataError, r"r\[0\] is -1"),
])  # fmt: skip
def test_what_is_neither_is_refused(rows, error, message):
    with pytest.raises(error, match=message):
        row_numbers("r", rows, 8)


def test_no_rows_to_name():
    with pytest.raises(DataError, match="there are no rows"):
        row_numbers("r", [0], 0)


@pytest.mark.parametrize("change, message", [
    ({"train": np.zeros(3, bool)}, "train: bool"),
    ({"val": np.ones(5)}, "val: float64"),
    ({"test": [200]}, r"test\[0\] is 200"),
    ({"x": FEATURES[:7]}, r"x has shape \(7, 6\), .*the graph has 10 rows"),
    ({"labels": LABELS[:7]}, r"labels has shape \(7,\), .*the graph has 10 rows"),
])  # fmt: skip
def test_bad_arguments_are_refused_on_every_rank(change, message):
    """Only rank 1 has the mistake."""
    def work(comm):
        graph, rng = Graph.from_edges([0, 1], [1, 2], 20).shard(comm, np.arange(20) % 2), nn.Random(0)
        arguments = {"x": FEATURES[graph.node_ids], "labels": LABELS[graph.node_ids], "train": [0], "val": [1], "test": []}
        with pytest.raises(SarliteError, match=message):
            Trainer(graph, GCN(6, 3, rng=rng, dtype=np.float64), **(arguments | (change if comm.rank else {})),
                    optimizer=OPTIMIZERS["plain"], rng=rng)
        return True

    assert threads.run(2, work) == [True, True]


def test_nobody_has_training_rows():
    def work(comm):
        with pytest.raises(DataError, match="empty on every rank"):
            graph, rng = Graph.from_edges([0, 1], [1, 2], 20).shard(comm, np.arange(20) % 2), nn.Random(0)
            Trainer(graph, GCN(6, 3, rng=rng), FEATURES[graph.node_ids], LABELS[graph.node_ids], np.zeros(10, bool),
                    optimizer=OPTIMIZERS["plain"], rng=rng)
        return True

    assert threads.run(2, work) == [True, True]


def test_part_of_a_model_in_training_is_refused():
    trainer = make(Solo())
    with pytest.raises(ConfigError, match="'convs.0.root.weight' .*flat arrays"):
        nn.flatten(trainer.model.sage)


def fitted(comm, epochs=(12,), schedule=lambda epoch: 1.0, callbacks=lambda records: [], **options):
    """(epoch of the best one, its weights, records) of a trainer that was told to fit to each of `epochs`."""
    trainer, records = make(comm, schedule=schedule), []
    for end in epochs:
        best = trainer.fit(end, callbacks=[lambda record: records.append(record), *callbacks(records)], **options)
    return best.epoch, best.state, records


def test_fit_goes_on_where_it_ended_and_is_the_same_on_any_number_of_ranks():
    epoch, state, records = fitted(Solo(), patience=4, eval_every=2)
    assert [record["epoch"] for record in records] == [*range(1, len(records) + 1)]
    assert [record["val_accuracy"] is not None for record in records] == [k % 2 == 1 for k in range(len(records))]
    assert all(set(record) >= {"loss", "seconds", "lr", "val_loss", "train_accuracy"} for record in records) and state
    losses = [record["loss"] for record in records]
    assert [record["loss"] for record in fitted(Solo(), epochs=(3, len(records)))[2]] == losses
    for other, _, of_rank in threads.run(2, lambda comm: fitted(comm, patience=4, eval_every=2)):
        assert other == epoch
        np.testing.assert_allclose([record["loss"] for record in of_rank], losses, rtol=1e-9)


def test_a_callback_ends_training_and_each_hears_of_every_epoch():
    heard = []
    _, _, records = fitted(Solo(), callbacks=lambda records: [lambda record: len(records) == 3, heard.append])
    assert len(records) == 3 and heard == records
    with pytest.raises(ConfigError, match=r"callbacks: \[3\] are not all callable"):
        make(Solo()).fit(2, callbacks=[3])
    with pytest.raises(ConfigError, match="patience is 0, .*1 or more"):
        make(Solo()).fit(2, patience=0)


def test_fit_tells_a_plateau():
    """A schedule of the trainer hears of evaluations; a function around a step would not."""
    rates = [record["lr"] for record in fitted(Solo(), epochs=(40,), schedule=optim.Plateau(0.5, 1))[2]]
    assert rates[0] == 2 * next(rate for rate in rates if rate < rates[0])


@pytest.mark.parametrize("value", [nn.Parameter(np.zeros(3)), nn.Linear(6, 3, rng=nn.Random(0), dtype=np.float64)])
@pytest.mark.parametrize("attribute", ["more", "convs"])
def test_parameters_that_no_step_would_change_are_refused(attribute, value):
    """A further parameter or layer, or one in place of the model's layers."""
    graph, rng = whole(), nn.Random(2)
    model = SAGE(6, 3, layers=2, hidden=8, rng=rng, dtype=np.float64)
    trainer = Trainer(graph, model, FEATURES, LABELS, TRAIN, VAL, optimizer=OPTIMIZERS["plain"], rng=rng)
    trainer.step()
    setattr(model, attribute, value)
    with pytest.raises(ConfigError, match=f"'{attribute}.*was added to the model after the Trainer was made"):
        trainer.step()


@pytest.mark.parametrize("epoch, message", [(-1, "epoch is -1"), (1.5, "epoch is 1.5"), ("1", "epoch is '1'")])
@pytest.mark.parametrize("method", ["step", "epoch"])
def test_an_epoch_that_is_no_whole_number_is_refused(method, epoch, message):
    rng = nn.Random(2)
    model = SAGE(6, 3, layers=2, hidden=8, rng=rng, dtype=np.float64)
    trainer = Trainer(whole(), model, FEATURES, LABELS, TRAIN, VAL, optimizer=OPTIMIZERS["plain"], rng=rng)
    with pytest.raises(ConfigError, match=message):
        getattr(trainer, method)(epoch)
    assert trainer.training_step.n_steps == 0


def test_a_checkpoint_has_the_state_of_a_plateau(tmp_path):
    """Without it the learning rate of the restored trainer would be the first one again."""
    def make_trainer():
        rng = nn.Random(2)
        model = SAGE(6, 3, layers=2, hidden=8, rng=rng, dtype=np.float64)
        return Trainer(whole(), model, FEATURES, LABELS, TRAIN, VAL, optimizer=OPTIMIZERS["plain"], rng=rng,
                       schedule=optim.schedule("warmup:1:plateau:0.5:1", 20))  # fmt: skip

    one, other = make_trainer(), make_trainer()
    optim.plateau_of(one.schedule).load_state({"falls": 2, "last": 5})
    one.fit(1)
    checkpoint.write(tmp_path / "c", one, {})
    checkpoint.restore_state(other, *checkpoint.read(Solo(), tmp_path / "c"))
    one.step(), other.step()
    assert one.training_step.lr == other.training_step.lr < 0.5 * OPTIMIZERS["plain"](one.flat).lr


class Masks(nn.Module):
    """Linear model that notes the zeros of its dropout."""

    def __init__(self, rng):
        self.dropout, self.linear, self.seen = nn.Dropout(0.5, rng), nn.Linear(6, 3, rng=rng, dtype=np.float64), []

    def __call__(self, graph, h):
        dropped = self.dropout(h, graph.src_ids)
        self.seen.append((dropped.data == 0).tobytes())
        return self.linear(dropped)


@pytest.mark.parametrize("kind", ["made", "copied", "pickled", "of another source"])
def test_dropout_changes_from_step_to_step(kind):
    """Also if the Trainer has another nn.Random than the model's layers have."""
    rng = nn.Random(0)
    model = Masks(rng)
    model = {"copied": copy.deepcopy, "pickled": lambda model: pickle.loads(pickle.dumps(model))}.get(kind, lambda model: model)(model)
    trainer = Trainer(whole(), model, FEATURES, LABELS, TRAIN, optimizer=OPTIMIZERS["plain"],
                      rng=nn.Random(0) if kind == "of another source" else rng)  # fmt: skip
    for _ in range(4):
        trainer.step()
    assert len(set(model.seen)) == 4


def test_an_optimizer_of_another_model_is_refused():
    rng = nn.Random(0)
    other = OPTIMIZERS["plain"](nn.flatten(Masks(rng)))
    with pytest.raises(ConfigError, match="its parameter 'linear.weight' is not in the model Masks"):
        Trainer(whole(), Masks(rng), FEATURES, LABELS, TRAIN, optimizer=lambda flat: other, rng=rng)
