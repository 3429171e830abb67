"""One trainer over whatever yields batches: steps one by one, states restored amid an epoch, and scores of the splits' rows."""

import numpy as np
import pytest

from sarlite import Graph, Solo, Trainer, nn, optim
from sarlite.comm import threads
from sarlite.errors import ConfigError, DataError
from sarlite.minibatch import NeighborLoader, message_flow
from sarlite.models import SAGE
from sarlite.tasks.node_task import NodeTask
from sarlite.tasks.shown_labels import LabelInputs
from sarlite.train import checkpoint
from tests.helpers.minibatch.batching import EDGES, LABELS, N_IN, N_OUT, X, parts

pytestmark = pytest.mark.timeout(60)
SPLIT = np.random.default_rng(4).integers(0, 4, len(X))
SPLITS = [np.flatnonzero(SPLIT == 0), np.flatnonzero(SPLIT == 1), np.flatnonzero(SPLIT == 2)]
LAYERS = 2


def part_of(comm):
    graph = Graph.from_edges(*EDGES)
    return graph.shard(comm, parts(comm.size)) if comm.size > 1 else graph


def trainer(graph, splits=SPLITS, **sources):
    """Return a trainer of this rank's rows; each source is made of (graph, x, labels, rows of the splits)."""
    ids, rng = graph.dst_ids, nn.Random(2)
    local = [np.concatenate([np.flatnonzero(ids == node) for node in nodes]).astype(int) for nodes in splits]
    model = SAGE(N_IN, N_OUT, layers=LAYERS, hidden=8, dropout=0.2, batch_norm=False, rng=rng, dtype=np.float64)
    built = {name: make(graph, X[ids], LABELS[ids], local) for name, make in sources.items()}
    return Trainer(graph, model, X[ids], LABELS[ids], *local, rng=rng, optimizer=lambda flat: optim.Adam(flat, 0.05), **built)


def sampled(graph, x, labels, splits):
    return NeighborLoader(graph, x, labels, splits[0], fanouts=(3, 3), batch_size=9, seed=2)


def steps_one_by_one(comm):
    one, other = (trainer(part_of(comm), batches=sampled) for _ in range(2))
    n_steps, losses = len(one.batches), [[], []]
    for epoch in range(2):
        one.epoch(epoch, lambda done, loss: losses[0].append(loss))
    losses[1] = [other.step() for _ in range(2 * n_steps)]
    assert losses[0] == losses[1] and len(losses[0]) == 2 * n_steps > 2
    np.testing.assert_array_equal(one.flat.data, other.flat.data)
    assert other.training_step.n_steps == other.batches.step == 2 * n_steps
    other.step(1)  # the first one of epoch 1
    assert other.training_step.n_steps == n_steps + 1
    return True


def test_steps_one_by_one_are_the_epochs():
    assert steps_one_by_one(Solo()) and threads.run(2, steps_one_by_one) == [True] * 2


SCORED = {
    "flow": lambda graph, x, labels, splits: message_flow(graph, np.concatenate(splits), LAYERS, x, labels),
    "all rows": lambda graph, x, labels, splits: message_flow(graph, slice(None), LAYERS, x, labels),
    "loader": lambda graph, x, labels, splits: NeighborLoader(graph, x, labels, np.unique(np.concatenate(splits)),
                                                              fanouts=(-1, -1), batch_size=20),
}
WAYS = {"whole": {}, "loader": {"batches": sampled},
        "flow": {"batches": lambda graph, x, labels, splits: message_flow(graph, splits[0], LAYERS, x, labels)}}
TWICE = [SPLITS[0], np.concatenate([SPLITS[1], SPLITS[1][:3], SPLITS[0][:4]]), SPLITS[2][::-1]]
"""Splits that overlap, name rows twice, and do not ascend."""


@pytest.mark.sampled(7)
@pytest.mark.parametrize("splits", [SPLITS, TWICE], ids=["apart", "twice"])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", SCORED)
def test_any_batches_with_the_rows_score_alike(name, way, splits):
    def scores(comm, **more):
        local = trainer(part_of(comm), splits, **WAYS[way], **more)
        return [list(local.evaluate().values()) for _ in range(2) if np.isfinite(local.step())]

    expected = scores(Solo())
    for of_rank in [scores(Solo(), scoring=SCORED[name]), *threads.run(2, scores, scoring=SCORED[name])]:
        np.testing.assert_allclose(of_rank, expected, rtol=1e-10)


def batches_of(graph):
    """Return a trainer over small batches, and the losses of two epochs, step by step, of another trainer of the same kind."""
    def small(graph, x, labels, splits):
        return NeighborLoader(graph, x, labels, splits[0], fanouts=(3, 3), batch_size=3, seed=2)

    one, other = (trainer(graph, batches=small) for _ in range(2))
    return one, [other.step() for _ in range(2 * len(other.batches))]


def restored_amid_an_epoch(comm, path):
    local, losses = batches_of(part_of(comm))
    assert [local.step() for _ in range(2)] == losses[:2]
    checkpoint.write(path, local, {})
    assert [local.step() for _ in range(2)] == losses[2:4] and len(local.batches) > 4
    checkpoint.restore_state(local, *checkpoint.read(comm, path))
    assert [local.step() for _ in range(len(losses) - 2)] == losses[2:]


@pytest.mark.parametrize("n_ranks", [1, 2])
def test_a_state_restored_amid_an_epoch_goes_on_with_its_own_batches(n_ranks, tmp_path):
    threads.run(n_ranks, restored_amid_an_epoch, tmp_path / "state.safetensors")


def failed_amid_an_epoch(comm):
    local, losses = batches_of(part_of(comm))
    loss, result = local.loss, [local.step(), local.step()]

    def fails(*arguments):
        if comm.rank == 0:
            raise ValueError("a fault of the loss")
        return loss(*arguments)

    local.loss = fails
    with pytest.raises(Exception, match="a fault of the loss"):
        local.step()
    local.loss = loss
    assert [*result, *(local.step() for _ in losses[2:])] == losses


@pytest.mark.parametrize("n_ranks", [1, 2])
def test_the_batch_of_a_step_that_failed_is_the_next_steps(n_ranks):
    threads.run(n_ranks, failed_amid_an_epoch)


def test_trainers_with_label_inputs_take_steps_in_turn():
    def make():
        local, rng = SPLITS, nn.Random(2)
        graph, task = Graph.from_edges(*EDGES), NodeTask(label_inputs=LabelInputs(0.5, N_OUT))
        model = SAGE(N_IN + N_OUT, N_OUT, layers=LAYERS, hidden=8, batch_norm=False, rng=rng, dtype=np.float64)
        return Trainer(graph, model, X, LABELS, *local, rng=rng, optimizer=lambda flat: optim.Adam(flat, 0.05), task=task,
                       batches=sampled(graph, X, LABELS, local))

    one_rank, one, other = make(), make(), make()
    losses = [one_rank.step() for _ in range(3)]
    assert [(one.step(), other.step()) for _ in losses] == [(loss, loss) for loss in losses]


def of_rows(*choice, labelled=True):
    """Return a function that makes a loader of the rows of the chosen splits."""
    return lambda graph, x, labels, splits: NeighborLoader(
        graph, x, labels if labelled else None, np.concatenate([splits[k] for k in choice]), fanouts=(3, 3), batch_size=9)


@pytest.mark.parametrize("sources, error, message", [
    ({"batches": of_rows(1)}, DataError, "batches: the loader has .* rows, which are not the .* training rows"),
    ({"scoring": of_rows(0, 1)}, DataError, "scoring: the loader has .* rows of the splits, each once"),
    ({"scoring": of_rows(0, 0, 1, 2)}, DataError, "scoring: the loader has .* rows of the splits, each once"),
    ({"batches": of_rows(0, labelled=False)}, ConfigError, "batches: the loader has no labels"),
    ({"batches": lambda graph, *others: sampled(Graph.from_edges(*EDGES), *others)}, ConfigError, "batches: .* another graph"),
])
def test_loaders_of_other_rows_or_of_another_graph_are_refused(sources, error, message):
    with pytest.raises(error, match=message):
        trainer(part_of(Solo()), **sources)
    trainer(part_of(Solo()), batches=of_rows(0), scoring=of_rows(0, 1, 2))
