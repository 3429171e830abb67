"""Minibatches of propagated features, and labels as inputs in minibatches."""


import numpy as np
import pytest

from sarlite import Graph, Solo, Trainer, nn, optim
from sarlite.cli import config, run
from sarlite.comm import threads
from sarlite.errors import ConfigError, DataError, ShapeError
from sarlite.minibatch import HEC, NeighborLoader, RowLoader
from sarlite.models import SAGE
from sarlite.tasks.node_task import NodeTask
from sarlite.tasks.shown_labels import LabelInputs
from tests.helpers.minibatch.batching import EDGES, LABELS, N_IN, N_OUT, X, parts
from tests.helpers.train.predicting import predict_here
from tests.helpers.train.training_runs import SMALL, assert_same_curve, metrics, train_here

pytestmark = pytest.mark.timeout(60)
DATA = "sbm:nodes=120,classes=4,features=5,degree=6,train=0.5"


# ---- propagated features


def curve(folder, *flags):
    """Return the summary of a run, and its losses by epoch."""
    words = ["--data", DATA, "--threads", 1, "--lr", 0.02, "--progress", "none",
             "--run-dir", folder, "--dtype", "float64", "--epochs", 2, "--hops", 2, *flags]
    options = config.parse([str(word) for word in words])
    by_rank = threads.run(options.machine.ranks, run.train, options) if options.machine.ranks > 1 else [run.train(Solo(), options)]
    return by_rank[0], [m["loss"] for m in metrics(folder)]


def test_a_batch_of_all_rows_is_a_full_batch_and_a_run_goes_on(tmp_path):
    flags = ["--model", "sign", "--no-batch-norm", "--dropout", 0]
    whole, one = curve(tmp_path / "whole", *flags), curve(tmp_path / "one", *flags, "--batch-size", 1000)
    assert one[1] == pytest.approx(whole[1], rel=1e-11) and one[0]["steps"] == 2
    _, resumed = curve(tmp_path / "one", *flags, "--resume", tmp_path / "one" / "checkpoint.safetensors", "--epochs", 3)
    assert resumed[:2] == one[1] and len(resumed) == 3


def test_rows_of_the_powers_train_alike_on_any_ranks_and_predict(tmp_path):
    flags = ["--model", "sgc", "--dropout", 0.2, "--batch-size", 23, "--propagated", tmp_path / "kept"]
    one_rank, three = curve(tmp_path / "alone", *flags), curve(tmp_path / "three", *flags, "--ranks", 3, "--partition", "random")
    assert three[1] == pytest.approx(one_rank[1], rel=1e-11) and one_rank[0]["steps"] == three[0]["steps"] == 2 * 3
    (actual, _), (expected, _) = (predict_here(tmp_path / "three", tmp_path / f"p{n}.npy", "--ranks", n) for n in (1, 2))
    assert actual.shape == (120, 4)
    np.testing.assert_allclose(actual, expected, rtol=1e-11, atol=1e-13)
    with pytest.raises(DataError, match="kept: .*other data: .*other values"):
        predict_here(tmp_path / "three", tmp_path / "p.npy", "--propagated", tmp_path / "kept", "--data", f"{DATA},seed=1")


def test_a_row_loader_gives_each_seed_once_an_epoch_and_its_own_rows():
    def own(comm):
        graph = Graph.from_edges(*EDGES)
        graph = graph.shard(comm, parts(comm.size)) if comm.size > 1 else graph
        train = graph.dst_ids % 3 == 0
        loader = RowLoader(graph, X[graph.src_ids], LABELS[graph.dst_ids], train, batch_size=7, seed=1)
        steps = [(batch.n_global, sorted(batch.dst_ids), batch.x.data, batch.labels, batch.src_ids) for _ in range(2) for batch in loader]
        assert loader.counts == {"steps": 10, "seeds": 2 * train.sum()} and len(loader) == 5
        for _, _, x, labels, ids in steps:
            np.testing.assert_array_equal(x, X[ids])
            np.testing.assert_array_equal(labels, LABELS[ids])
        with pytest.raises(ConfigError, match="has no edges"):
            next(iter(loader)).layers(1)
        return [(n, ids) for n, ids, *_ in steps]

    one_rank, *ranks = own(Solo()), *threads.run(3, own)
    for step, (n, ids) in enumerate(one_rank):
        assert n == len(ids) == (2 if step % 5 == 4 else 7)
        assert sorted(id for rank in ranks for id in rank[step][1]) == ids
    for epoch in (one_rank[:5], one_rank[5:]):
        assert sorted(id for _, ids in epoch for id in ids) == list(range(0, 90, 3))
    assert one_rank[:5] != one_rank[5:]
    graph = Graph.from_edges(*EDGES)
    for error, words, args in ((ShapeError, "x has shape", (X[1:], None, [0])), (DataError, "empty", (X, None, []))):
        with pytest.raises(error, match=words):
            RowLoader(graph, *args, batch_size=3)
    with pytest.raises(ConfigError, match="batch_size"):
        RowLoader(graph, X, None, [0], batch_size=0)


POWERS = """
from sarlite import nn
class Mine(nn.Module):
    {declared}
    def __init__(self, n_in, n_out, *, rng, dtype):
        self.powers, self.linear = (0, 1), nn.Linear(2 * n_in, n_out, rng=rng, dtype=dtype)
    def __call__(self, graph, h):
        return self.linear(h)
"""


def test_flags_that_do_not_go_with_rows_are_refused(tmp_path):
    mine = tmp_path / "mine.py"
    words = ["--data", SMALL[1], "--threads", "1", "--progress", "none", "--run-dir", str(tmp_path / "run"), "--epochs", "1"]
    cases = [(["--model", "sgc", "--batch-size", "5", *flags], said) for flags, said in (
        (["--fanouts", "3"], "--fanouts: the model sgc uses no neighbours"), (["--remote", "local"], "--remote: the model"),
        (["--sample-ahead", "0"], "--sample-ahead: the model"), (["--label-inputs", "0.5"], "--label-inputs 0.5: the model sgc"))]
    cases += [(["--model", f"{mine}:Mine", "--batch-size", "5", "--fanouts", "3"], "its class must have an attribute powers"),
              (["--model", "gcn", "--batch-size", "5"], "--batch-size needs --fanouts")]
    mine.write_text(POWERS.format(declared=""))
    for flags, said in cases:
        with pytest.raises(ConfigError, match=said):
            run.train(Solo(), config.parse([*words, *flags]))
    mine.write_text(POWERS.format(declared="powers = ()"))
    assert run.train(Solo(), config.parse([*words, "--model", f"{mine}:Mine", "--batch-size", "10"]))["steps"] > 1


# ---- labels as inputs


SPLIT = np.random.default_rng(4).integers(0, 4, len(X))
TRAIN, VAL, TEST = (SPLIT == 0) | (SPLIT == 3), SPLIT == 1, SPLIT == 2


def trainer(graph, labels=LABELS, sampled=False, **options):
    ids, rng = graph.dst_ids, nn.Random(2)
    model = SAGE(N_IN + N_OUT, N_OUT, layers=2, hidden=8, dropout=0.2, batch_norm=False, rng=rng, dtype=np.float64)
    loader = NeighborLoader(graph, X[ids], labels[ids], TRAIN[ids], **{"fanouts": (3, 3), "batch_size": 9, "seed": 2, **options})
    scoring = {}
    if sampled:
        scoring["scoring"] = NeighborLoader(graph, X[ids], labels[ids], (TRAIN | VAL | TEST)[ids], fanouts=(-1, -1), batch_size=20)
    return Trainer(graph, model, X[ids], labels[ids], TRAIN[ids], VAL[ids], TEST[ids], rng=rng, batches=loader,
                   optimizer=lambda flat: optim.Adam(flat, 0.05), task=NodeTask(label_inputs=LabelInputs(0.6, N_OUT)), **scoring)


def watched(trainer):
    """Return for each step the input rows by the node's id, and the seeds."""
    steps, step = [], trainer.training_step
    before = step.model

    def model(batch, x):
        if before.training:
            shown = dict(zip(batch.src_ids.tolist(), x.data[:, N_IN:].copy()))
            steps.append((shown, batch.dst_ids.tolist(), x.data[:, :N_IN].copy(), batch.src_ids))
        return before(batch, x)

    model.train = before.train
    step.model = model
    return steps


def test_a_batchs_seeds_hide_their_labels_and_a_share_of_the_other_training_nodes_shows_them():
    local = trainer(Graph.from_edges(*EDGES))
    steps, n_shown, n_others = watched(local), 0, 0
    for epoch in range(3):
        local.epoch(epoch)
        local.evaluate()  # which shows all
    assert len(steps) == 3 * len(local.batches)
    for columns, seeds, features, ids in steps:
        np.testing.assert_array_equal(features, X[ids])
        for node, row in columns.items():
            hidden = node in seeds or not TRAIN[node]
            assert not row.any() if hidden else (not row.any() or (row == np.eye(N_OUT)[LABELS[node]]).all())
            n_shown, n_others = n_shown + bool(row.any()), n_others + (not hidden)
    assert 0.5 < n_shown / n_others < 0.7
    np.testing.assert_array_equal(local.x.data[:, N_IN:], np.where(TRAIN[:, None], np.eye(N_OUT)[LABELS], 0))


def test_no_label_of_validation_or_test_reaches_a_batch():
    other = np.where(TRAIN, LABELS, (LABELS + 1) % N_OUT)
    runs = [trainer(Graph.from_edges(*EDGES), labels) for labels in (LABELS, other)]
    losses = [[one.epoch(epoch) for epoch in range(2)] for one in runs]
    assert losses[0] == losses[1]
    np.testing.assert_array_equal(runs[0].flat.data, runs[1].flat.data)
    np.testing.assert_array_equal(runs[0].predict(), runs[1].predict())
    assert runs[0].evaluate()["val_loss"] != runs[1].evaluate()["val_loss"]


def test_ranks_and_sampled_evaluation_agree():
    def curve(comm, **options):
        graph = Graph.from_edges(*EDGES)
        local = trainer(graph.shard(comm, parts(comm.size)) if comm.size > 1 else graph, **options)
        steps = watched(local)
        return [(local.epoch(epoch), *local.evaluate().values()) for epoch in range(2)], [columns for columns, *_ in steps]

    expected, one_rank = curve(Solo())
    sampled, _ = curve(Solo(), sampled=True)
    np.testing.assert_allclose(sampled, expected, rtol=1e-11)
    by_rank = threads.run(2, curve, sampled=True)
    for scores, steps in by_rank:
        np.testing.assert_allclose(scores, expected, rtol=1e-10)
        for here, expected_step in zip(steps, one_rank):
            for node, row in here.items():
                np.testing.assert_array_equal(row, expected_step[node])


def test_labels_are_no_inputs_of_rows_from_caches_or_without_neighbours():
    def own(comm):
        with pytest.raises(ConfigError, match="label inputs: a loader without caches"):
            trainer(Graph.from_edges(*EDGES).shard(comm, parts(2)), remote=HEC())
        return True

    assert threads.run(2, own) == [True, True]


def test_a_run_with_label_inputs_in_minibatches(tmp_path):
    flags = ["--label-inputs", 0.5, "--batch-size", 9, "--fanouts", "3,3", "--dtype", "float64", "--epochs", 1]
    one = train_here(tmp_path / "one", *flags)
    assert_same_curve(train_here(tmp_path / "two", *flags, "--ranks", 2, "--partition", "random"), one, rtol=1e-10)
    with pytest.raises(ConfigError, match="--label-inputs does not go with --remote hec"):
        config.parse([*SMALL, *map(str, flags), "--remote", "hec"])
