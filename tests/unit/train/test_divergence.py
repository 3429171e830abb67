"""Training that diverges ends with a warning and keeps the best epoch; options that would have no effect are refused."""

import warnings

import numpy as np
import pytest

from sarlite import Graph, Trainer, nn, optim
from sarlite.comm import Solo, threads
from sarlite.errors import ConfigError, DivergenceError
from sarlite.models import GCN
from sarlite.train import checkpoint
from sarlite.train.stopping import Stopping
from tests.helpers.train.exact_runs import N_CLASSES, N_FEAT, N_NODES, data
from tests.helpers.train.predicting import predict_here
from tests.helpers.train.training_runs import metrics, train_here

pytestmark = pytest.mark.timeout(120)


def make(comm, factor, from_epoch=4, val=True):
    """Return a trainer whose learning rate grows by a factor at an epoch."""
    (src, dst), x, labels, train = data(np.float64)
    graph = Graph.from_edges(src, dst, N_NODES, self_loops=True)
    graph = graph.shard(comm, "random") if comm.size > 1 else graph
    ids, rng = graph.node_ids, nn.Random(0)
    return Trainer(graph, GCN(N_FEAT, N_CLASSES, hidden=8, rng=rng, dtype=np.float64), x[ids], labels[ids], train[ids],
                   ~train[ids] if val else (), rng=rng, optimizer=lambda flat: optim.SGD(flat, 0.01),
                   schedule=lambda epoch: factor if epoch == from_epoch else 1.0)


def fitted(comm, factor, val=True):
    trainer, reported = make(comm, factor, val=val), []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        best = trainer.fit(12, callbacks=[reported.append])
    state = trainer.model.state_dict()
    return best.epoch, [record["epoch"] for record in reported], [str(each.message) for each in caught], state, best.state


@pytest.mark.parametrize("factor", [1e12, 1e300], ids=["a large loss", "a loss that is not finite"])
@pytest.mark.parametrize("n_ranks", [1, 3])
def test_the_best_epoch_is_kept(factor, n_ranks):
    by_rank = threads.run(n_ranks, fitted, factor) if n_ranks > 1 else [fitted(Solo(), factor)]
    epochs = {best for best, *_ in by_rank}
    assert len(epochs) == 1 and epochs.pop() <= 5
    for best, reported, texts, state, saved in by_rank:
        assert max(reported) <= 7  # of 12
        assert all(np.array_equal(state[name], saved[name]) and np.isfinite(state[name]).all() for name in state)
        if n_ranks == 1:  # Python collects warnings of all threads together
            [text] = [text for text in texts if "diverged" in text]
            assert f"parameters of epoch {best}: try a lower learning rate" in text


def test_without_validation_rows_the_epoch_before_is_kept():
    best, reported, texts, state, _ = fitted(Solo(), 1e12, val=False)
    assert best == max(reported) - 1 and len(texts) == 1


def test_a_training_without_any_good_epoch_is_an_error():
    trainer = make(Solo(), 1e300, from_epoch=0)
    trainer.flat.data[:] = 1e200
    with np.errstate(all="ignore"), pytest.raises(DivergenceError, match="try a lower learning rate"):
        trainer.fit(3)


def test_a_run_that_diverges_ends_well(tmp_path, capsys):
    train_here(tmp_path / "run", "--lr", "1e4", "--epochs", 9)
    printed = capsys.readouterr()
    assert "warning: training diverged, the loss rose from" in printed.err and "(--lr)" in printed.err
    assert len(metrics(tmp_path / "run")) < 9
    tensors, about = checkpoint.load(tmp_path / "run" / "checkpoint.safetensors")
    assert about["best"]["epoch"] >= 1 and all(np.isfinite(array).all() for array in tensors.values())
    probabilities, _ = predict_here(tmp_path / "run", tmp_path / "p.npy")
    assert np.isfinite(probabilities).all()


def test_patience_and_a_plateau_need_validation_rows():
    with pytest.raises(ConfigError, match="patience 3: .*validation rows"):
        make(Solo(), 1.0, val=False).fit(3, patience=3)
    with pytest.raises(ConfigError, match="lr_schedule plateau: needs validation rows"):
        trainer = make(Solo(), 1.0, val=False)
        trainer.schedule = optim.schedule("plateau:0.5:2", 3)
        trainer.fit(3)
    assert Stopping(3).patience == 3


LINKS = ["--task", "link", "--link-val", "0"]
WITHOUT_EFFECT = {
    "--hidden: applies between layers, so it has no effect on --model sage with --layers 1": ["--layers", 1],
    "--patience 3: needs validation rows, but there are none": [*LINKS, "--patience", 3],
    "--lr-schedule plateau: needs validation rows, but there are none": [*LINKS, "--lr-schedule", "plateau:0.5:2"],
    "--dropout: applies between layers, so it has no effect on --model gin with --layers 1": ["--model", "gin", "--layers", 1,
                                                                                              "--dropout", 0.5],
}  # fmt: skip


@pytest.mark.parametrize("message", WITHOUT_EFFECT)
def test_options_without_effect_are_refused(message, tmp_path):
    with pytest.raises(ConfigError) as caught:
        train_here(tmp_path / "run", *WITHOUT_EFFECT[message])
    assert message in str(caught.value)


def test_options_with_effect_on_one_layer_are_taken(tmp_path):
    for model in ("gin", "gcnii"):
        train_here(tmp_path / model, "--model", model, "--layers", 1, "--epochs", 1)
