"""The loader on one rank: epochs, the sampling thread, training, and arguments that raise errors."""

import threading

import numpy as np
import pytest

from sarlite import Graph, Tensor, fn, kernels, nn, optim
from sarlite.errors import ConfigError, DataError, ShapeError
from sarlite.minibatch import NeighborLoader, Sampler
from sarlite.models import GAT, GCN, SAGE
from sarlite.structure.part_edges_csr import InEdges
from sarlite.tape import ops
from sarlite.train.step import TrainingStep
from tests.helpers.graph.strategies import values
from tests.helpers.minibatch.small_batches import EDGES, LABELS, N_IN, N_OUT, N, X, batches, plain, with_loops

pytestmark = pytest.mark.timeout(60)


EARLIER: list[threading.Thread] = []  # threads that other tests have left


@pytest.fixture(autouse=True)
def earlier():
    EARLIER[:] = threading.enumerate()


def test_an_epoch_has_each_seed_once_and_every_epoch_another_order():
    graph, seeds = with_loops(), np.arange(5, 70)
    loaded = batches(graph, seeds, batch_size=10, fanouts=(2, 2, 2))
    orders = []
    for epoch in range(2):
        result = list(loaded)
        assert len(result) == len(loaded) == 7 and [b.n_global for b in result] == [10] * 6 + [5]
        assert [b.step for b in result] == list(range(7 * epoch, 7 * epoch + 7)) and loaded.step == 7 * (epoch + 1)
        orders.append(np.concatenate([b.dst_ids[b.rows] for b in result]))
        assert sorted(orders[-1].tolist()) == sorted(graph.dst_ids[seeds].tolist())
        for b in result:
            rows = [int(np.flatnonzero(graph.dst_ids == node)[0]) for node in b.src_ids]
            np.testing.assert_array_equal(b.x.data, X[rows])
            np.testing.assert_array_equal(b.labels, LABELS[rows[: b.n_dst]])
    assert not np.array_equal(*orders)
    rows_in_another_order = np.random.default_rng(0).permutation(seeds)
    again = batches(graph, rows_in_another_order, batch_size=10, fanouts=(2, 2, 2))
    np.testing.assert_array_equal(np.concatenate([b.dst_ids[b.rows] for b in again]), orders[0])


def test_a_run_goes_on_from_any_step():
    graph, seeds = plain(), np.arange(60)
    whole = batches(graph, seeds, fanouts=(2, 2, 2), batch_size=8)
    everything = [b.src_ids.tolist() for _ in range(2) for b in whole]
    resumed = batches(graph, seeds, fanouts=(2, 2, 2), batch_size=8)
    resumed.step = 5
    assert [b.src_ids.tolist() for _ in range(2) for b in resumed] == everything[5:]
    for _ in (broken := iter(resumed)):
        break
    broken.close()
    assert resumed.step == 17


def test_seeds_asked_twice_are_computed_once():
    graph = plain()
    loaded = batches(graph, [4, 9, 4, 4, 30, 9], batch_size=6, fanouts=(3, 3, 3))
    (batch,) = loaded
    assert batch.n_dst == 3 and batch.n_global == 6 and sorted(batch.dst_ids[batch.rows].tolist()) == [4, 4, 4, 9, 9, 30]
    batch = loaded.batch([7, 2, 7])
    assert batch.dst_ids.tolist() == [7, 2] and batch.rows.tolist() == [0, 1, 0]
    x = Tensor(values(1, 2, 3), requires_grad=True)
    ops.cross_entropy(x, batch.labels, batch.rows, batch.n_global).backward()
    twice = Tensor(x.data[batch.rows], requires_grad=True)
    ops.cross_entropy(twice, batch.labels[batch.rows]).backward()
    np.testing.assert_allclose(x.grad, [twice.grad[0] + twice.grad[2], twice.grad[1]], rtol=1e-12)


def threads_of_samplers():
    return [thread for thread in threading.enumerate() if thread.name == "sarlite-sample" and thread not in EARLIER]


@pytest.mark.parametrize("ahead", [0, 1, 3])
def test_an_error_while_sampling_reaches_the_consumer(ahead, monkeypatch):
    """In its place, after the batches before it; the thread has ended, and the loader works again."""
    loaded = batches(plain(), slice(None), fanouts=(2, 2, 2), sample_ahead=ahead)
    right, seen = loaded._make, []

    def fails(step):
        if step == 2:
            raise MemoryError("no room")
        return right(step)

    monkeypatch.setattr(loaded, "_make", fails)
    with pytest.raises(MemoryError, match="no room"):
        seen.extend(batch.step for batch in loaded)
    assert seen == [0, 1] and loaded.step == 2 and not threads_of_samplers()
    monkeypatch.undo()
    assert [batch.step for batch in loaded] == [2, 3, 4, 5]


def test_a_batch_that_failed_halfway_leaves_nothing_behind(monkeypatch):
    loaded = batches(plain(), slice(None), fanouts=(2, 2, 2), sample_ahead=0)
    right = [g.src_ids.tolist() for g in loaded.batch([3, 4]).layers(3)]

    def fails(*args, **options):
        sample(*args, **options)
        raise MemoryError

    sample = kernels.sample
    monkeypatch.setattr(kernels, "sample", fails)
    with pytest.raises(MemoryError):
        loaded.batch([50, 60])
    monkeypatch.undo()
    assert [g.src_ids.tolist() for g in loaded.batch([3, 4]).layers(3)] == right


def test_the_thread_ends_with_the_iterator():
    loaded = batches(plain(), slice(None), fanouts=(2, 2, 2), batch_size=1, sample_ahead=2)
    iterator = iter(loaded)
    next(iterator)
    assert len(threads_of_samplers()) == 1
    iterator.close()
    assert not threads_of_samplers()
    with pytest.raises(KeyError):
        for _ in loaded:
            raise KeyError
    loaded.step = 89
    assert len(list(loaded)) == 1
    del iterator
    for thread in threads_of_samplers():  # of the loop that an error left: its iterator goes with the traceback
        thread.join(60)
    assert not threads_of_samplers()


@pytest.mark.parametrize("model", [SAGE, GCN, GAT])
def test_training_over_the_loader_learns_and_repeats_with_any_number_of_batches_ahead(model):
    """A loop of TrainingStep over the loader learns, and is the same from run to run whatever the thread ahead."""
    rng = np.random.default_rng(0)
    n = 400
    labels = rng.integers(0, 4, n)
    src, dst = rng.integers(0, n, 20 * n), rng.integers(0, n, 20 * n)
    keep = (labels[src] == labels[dst]) | (rng.random(20 * n) < 0.1)
    graph = Graph.from_edges(src[keep], dst[keep], n, undirected=True)
    x = (np.eye(4)[labels] + rng.standard_normal((n, 4))).astype(np.float32)
    losses = []
    for ahead in (0, 1):
        random = nn.Random(0)
        model_made = model(4, 4, layers=2, hidden=8, dropout=0.1, rng=random)
        step = TrainingStep(model_made, optim.Adam(nn.flatten(model_made), 0.03), random, graph.comm)
        loaded = NeighborLoader(graph, x, labels, slice(0, 200), fanouts=(4, 6), batch_size=50, sample_ahead=ahead)
        losses.append([step(b) for _ in range(12) for b in loaded])
    assert losses[0] == losses[1] and np.mean(losses[0][-4:]) < 0.85 * np.mean(losses[0][:4])


@pytest.mark.parametrize("options, error, message", [
    ({"sampler": "other"}, ConfigError, "sampler 'other' .*uniform, replace, full, labor"),
    ({"fanouts": (5, 0, 5)}, ConfigError, "0 is neither"),
    ({"fanouts": (5, -2, 5)}, ConfigError, "-2 is neither"),
    ({"fanouts": ()}, ConfigError, "fanouts"),
    ({"fanouts": 5}, ConfigError, "fanouts 5"),
    ({"fanouts": (5, 2.0)}, ConfigError, "whole numbers"),
    ({"fanouts": (5, True)}, ConfigError, "whole numbers"),
    ({"fanouts": "555"}, ConfigError, "fanouts '555'"),
    ({"fanouts": (5, 5), "sampler": "full"}, ConfigError, "each is -1"),
    ({"batch_size": 0}, ConfigError, "batch_size is 0"),
    ({"batch_size": 2.5}, ConfigError, "batch_size is 2.5"),
    ({"batch_size": True}, ConfigError, "batch_size is True"),
    ({"sample_ahead": -1}, ConfigError, "sample_ahead is -1"),
    ({"train": np.ones(N)}, ShapeError, "train: float64"),
    ({"train": np.zeros(N, bool)}, DataError, "train: the training split is empty"),
    ({"train": [3, N]}, DataError, f"train\\[1\\] is {N}"),
    ({"train": [-1]}, DataError, "train\\[0\\] is -1"),
    ({"train": np.ones(N - 1, bool)}, ShapeError, "train"),
    ({"x": X[:-1]}, ShapeError, "x has shape"),
    ({"labels": LABELS[:-1]}, ShapeError, "labels have shape"),
])  # fmt: skip
def test_what_the_loader_refuses(options, error, message):
    arguments = {"x": X, "labels": LABELS, "train": slice(None), "fanouts": (5, 5), "batch_size": 10, **options}
    with pytest.raises(error, match=message):
        NeighborLoader(plain(), arguments.pop("x"), arguments.pop("labels"), arguments.pop("train"), **arguments)


def test_what_a_batch_refuses():
    loaded = batches(plain(), slice(None))
    batch = next(iter(loaded))
    model = SAGE(N_IN, N_OUT, layers=2, rng=nn.Random(0))
    with pytest.raises(ConfigError, match="fanouts .*3 entries, .*2 layers"):
        model(batch, batch.x)
    with pytest.raises(ConfigError, match="the batch has 3 layers"):
        batch.aggregate(fn.copy_src(batch.x), "sum")
    with pytest.raises(ConfigError, match="one layer of a batch"):
        batch.layers(3)[0].layers(2)
    for seeds, error in (([N], DataError), ([-1], DataError), ([1.5], ShapeError), ([[1]], ShapeError)):
        with pytest.raises(error, match="seeds"):
            loaded.batch(seeds)


def test_other_graphs_are_refused_by_name():
    with pytest.raises(ConfigError, match="bipartite"):
        NeighborLoader(Graph.from_edges(EDGES.src, EDGES.dst, n_src=N, n_dst=N), X, None, [1], fanouts=(2,), batch_size=1)


def test_an_empty_list_of_seeds_is_a_batch():
    batch = batches(plain(), slice(None), fanouts=(2, 2, 2)).batch([])
    assert batch.n_src == batch.n_dst == batch.n_edges == 0 and batch.n_global == 0
    model = SAGE(N_IN, N_OUT, layers=3, dtype=np.float64, rng=nn.Random(0))
    assert model(batch, batch.x).shape == (0, N_OUT)


def test_the_sampler_alone():
    """Columns beyond the destinations stand behind the layer's rows and are never expanded."""
    edges = InEdges(np.array([0, 2, 3]), np.array([1, 5, 4], np.int32))
    result = Sampler(edges, (-1,), n_columns=6)([1, 0], 0)
    (layer,) = result.layers
    assert result.rows.tolist() == [1, 0] and layer.halo.tolist() == [4, 5]
    assert layer.picked.columns.tolist() == [2, 0, 3] and layer.picked.positions.tolist() == [2, 0, 1]
