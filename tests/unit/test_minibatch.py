"""Minibatches on one rank: exact where all in-edges are taken, unbiased where not, the same from run to run, and nothing hangs."""

import hashlib
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))

from strategies import KINDS, random_edges, values

from sarlite import Graph, Solo, Tensor, fn, kernels, nn, optim
from sarlite.errors import ConfigError, DataError, ShapeError
from sarlite.graph.part import InEdges
from sarlite.minibatch import NeighborLoader, Sampler
from sarlite.models import GAT, GCN, SAGE
from sarlite.sar.operators import product_first
from sarlite.tape import ops
from sarlite.train.step import TrainingStep

pytestmark = pytest.mark.timeout(60)

N, N_IN, N_OUT = 90, 5, 3
EDGES = random_edges(N, 700, seed=3)
EARLIER: list[threading.Thread] = []  # threads that other tests have left
X, LABELS = values(1, N, N_IN), np.random.default_rng(2).integers(0, N_OUT, N)


@pytest.fixture(autouse=True)
def put_back():
    before = kernels.threads()
    EARLIER[:] = threading.enumerate()
    yield
    kernels.set_threads(before)


def with_loops():
    """A graph of ids that are not row numbers, with added loops."""
    graph = Graph.from_edges(*EDGES, self_loops=True)
    edges = graph.in_edges()
    had = np.zeros(N, bool)
    had[EDGES.src[EDGES.src == EDGES.dst]] = True
    return Graph.from_part(graph.comm, edges.indptr, edges.indices, node_ids=np.arange(N)[::-1] * 7 + 3, added_loops=~had)


def plain():
    return Graph.from_edges(*EDGES)


def in_another_order():
    """A part of one rank, with its rows in another order and global ids of its edges."""
    return plain().shard(Solo(), np.zeros(N, int), order=np.random.default_rng(4).permutation(N))


GRAPHS = {"plain": plain, "with loops": with_loops, "in another order": in_another_order}


class Weighted(nn.Module):
    """A message of edge values and of a learnable value; three layers."""

    def __init__(self, rng, edge):
        self.linears = [nn.Linear(a, b, rng=rng, dtype=np.float64) for a, b in ((N_IN, 6), (6, 6), (6, N_OUT))]
        self.edge = edge

    def __call__(self, graph, h):
        for g, linear in zip(graph.layers(3), self.linears):
            g, h = g.enter(h)
            z, weight = linear(h), self.edge[g.edge_ids]
            h = g.aggregate(lambda s, d, e: s["z"] * e["w"] + (s["z"] * d["q"]).tanh(), "mean", src={"z": z}, dst={"q": g.dst(z)},
                            edge={"w": weight[:, None]}) + g.aggregate(fn.mul_edge(z, weight), "sum")
        return h


def models(graph, batch_norm=False, dropout=0.4):
    options = dict(batch_norm=batch_norm, dropout=dropout, dtype=np.float64)

    def make(cls, **more):
        rng = nn.Random(5)
        return cls(N_IN, N_OUT, layers=3, hidden=6, rng=rng, **options, **more), rng

    yield make(SAGE)
    yield make(SAGE, aggregator="max-pool")
    yield make(GCN)
    yield make(GAT, heads=2, attention_dropout=0.3, residual=True)
    yield make(GAT, heads=2, form="paper")
    rng = nn.Random(5)
    yield Weighted(rng, values(8, 2000)), rng


def loss_and_gradients(model, graph, x, labels, rows, count):
    flat = nn.flatten(model)
    flat.zero_grad()
    loss = ops.cross_entropy(model(graph, x), labels, rows, count)
    loss.backward()
    return loss.item(), flat.grad.copy()


def batches(graph, seeds, **options):
    """A loader over all seeds, with all in-edges unless `options` say otherwise."""
    options = {"fanouts": (-1, -1, -1), "batch_size": 16, **options}
    return NeighborLoader(graph, X, LABELS, seeds, **options)


# ---- all in-edges: the full batch


@pytest.mark.parametrize("name", GRAPHS)
def test_all_in_edges_are_the_full_batch_on_the_seeds(name):
    """Each batch's loss and gradients, dropout included, and their sum over an epoch at fixed weights."""
    graph, seeds = GRAPHS[name](), np.arange(1, N, 2)
    for model, rng in models(graph):
        rng.step = 3
        total = 0
        for batch in batches(graph, seeds):
            rows = np.flatnonzero(np.isin(graph.dst_ids, batch.dst_ids))
            expected = loss_and_gradients(model, graph, Tensor(X), LABELS, rows, len(seeds))
            found = loss_and_gradients(model, batch, batch.x, batch.labels, batch.rows, len(seeds))
            for a, b in zip(found, expected):
                np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-12)
            total = total + found[1]
        np.testing.assert_allclose(total, loss_and_gradients(model, graph, Tensor(X), LABELS, seeds, len(seeds))[1], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", GRAPHS)
def test_all_nodes_as_seeds_are_the_full_batch_with_batch_norm(name):
    graph = GRAPHS[name]()
    for model, _ in models(graph, batch_norm=True):
        (batch,) = batches(graph, slice(None), batch_size=N, sampler="full")
        found = loss_and_gradients(model, batch, batch.x, batch.labels, batch.rows, batch.n_global)
        for a, b in zip(found, loss_and_gradients(model, graph, Tensor(X), LABELS, np.arange(N), N)):
            np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-12)


def aggregated(g, message, reducer, h, weight, given):
    """The result of one kind of message over a graph."""
    if message == "copy":
        return g.aggregate(fn.copy_src(h), reducer)
    if message == "linear":
        return g.aggregate(fn.linear(h, weight), reducer)
    if message == "edge":
        return g.aggregate(fn.mul_edge(h, given), reducer)
    if message == "attend":
        score = h @ weight
        return g.aggregate(fn.attend(h.reshape(-1, 2, 2), score, g.dst(score)), reducer)
    rows = {"x": h}, {"x": g.dst(h)}, {"w": given.reshape(-1, 1)}
    if reducer == "softmax":
        return g.aggregate(lambda s, d, e: (s["x"] * e["w"], s["x"]), reducer, *rows)
    return g.aggregate(lambda s, d, e: s["x"] * d["x"] * e["w"], reducer, *rows)


@pytest.mark.parametrize("kind", KINDS)
def test_every_message_and_reducer_over_all_in_edges(kind):
    """One layer: values, and gradients of x, of the weight and of the edges' values, on graphs of every kind."""
    edges = KINDS[kind]
    n = edges.n_nodes
    if not n:
        pytest.skip("no seeds")
    graph, arrays = Graph.from_edges(*edges), (values(1, n, 4), values(2, 4, 2), values(3, edges.n_edges))
    (batch,) = NeighborLoader(graph, arrays[0], None, slice(None), fanouts=(-1,), batch_size=n)
    compared = 0
    for reducer in ("sum", "mean", "sym", "max", "min", "softmax"):
        for message in ("copy", "linear", "edge", "function", "attend"):
            try:
                expected = value_and_gradients(graph, message, reducer, *arrays)
            except ConfigError as error:
                with pytest.raises(ConfigError, match=str(error)[:20]):
                    value_and_gradients(batch, message, reducer, *arrays)
                continue
            for found, right in zip(value_and_gradients(batch, message, reducer, *arrays), expected):
                np.testing.assert_allclose(found, right, rtol=1e-12, atol=1e-12, err_msg=f"{reducer} {message}")
            compared += 1
    assert compared == 18


def value_and_gradients(g, message, reducer, x, w, e):
    """By global ids, so that a batch in another order compares."""
    h, weight, given = (Tensor(a, requires_grad=True) for a in (x[g.src_ids], w, e[g.edge_ids]))
    out = aggregated(g, message, reducer, h, weight, given)
    by_id = np.empty_like(out.data)
    by_id[g.dst_ids] = out.data
    out.backward(values(4, *out.shape)[g.dst_ids])
    d_x, d_e = np.zeros_like(x), np.zeros_like(e)
    d_x[g.src_ids], d_e[g.edge_ids] = (0 if t.grad is None else t.grad for t in (h, given))
    return by_id, d_x, d_e, 0 if weight.grad is None else weight.grad


def test_labor_with_a_large_fanout_is_full():
    graph = with_loops()
    most = int(graph.in_degrees.max())
    for k in (most, most + 1, 10**6):
        found = [[(g.in_degrees.tolist(), g.edge_ids.tolist()) for g in next(iter(batches(graph, slice(None), **options))).layers(3)]
                 for options in ({"sampler": "labor", "fanouts": (k, k, k)}, {"sampler": "full"}, {"fanouts": (k, k, k)})]
        assert found[0] == found[1] == found[2]


# ---- estimates


def mean_and_error(samples):
    return samples.mean(0), samples.std(0, ddof=1) / np.sqrt(len(samples))


def estimates(g, reducer, x):
    """A sum of every kind of message, side by side."""
    w, e = Tensor(values(2, N_IN, 2)), values(3, 2000)[g.edge_ids]
    yield g.aggregate(fn.copy_src(x), reducer)
    yield g.aggregate(fn.linear(x, w), reducer)
    if reducer != "sym":
        yield g.aggregate(fn.mul_edge(x, e), reducer)
        yield g.aggregate(lambda s, d, k: s["x"] * k["w"], reducer, {"x": x}, {}, {"w": e[:, None]})


@pytest.mark.parametrize("sampler", ["uniform", "replace", "labor"])
@pytest.mark.parametrize("reducer", ["sum", "mean", "sym"])
def test_sums_are_unbiased(reducer, sampler):
    """The mean of many estimates is the whole graph's within 5 standard errors, added loops or not, for every message."""
    for make in (plain, with_loops):
        graph, seeds = make(), np.arange(0, N, 3)
        loaded = batches(graph, seeds, fanouts=(2,), sampler=sampler)
        whole = np.hstack([out.data for out in estimates(graph, reducer, Tensor(X))])
        samples = []
        for step in range(100):
            batch = loaded.batch(seeds, step)
            samples.append(np.hstack([out.data for out in estimates(batch, reducer, batch.x)]))
        mean, error = mean_and_error(np.array(samples))
        assert (np.abs(mean - whole[seeds]) <= 5 * error + 1e-12).all() and (error > 0).mean() > 0.8


class LinearModel(nn.Module):
    def __init__(self, rng):
        self.first, self.second = nn.Linear(N_IN, 4, rng=rng, dtype=np.float64), nn.Linear(4, 2, rng=rng, dtype=np.float64)

    def __call__(self, graph, h):
        a, b = graph.layers(2)
        return b.aggregate(fn.linear(self.first(a.aggregate(fn.copy_src(h), "mean")), self.second.weight), "sum")


@pytest.mark.timeout(240)
def test_the_mean_gradient_of_2000_batches_is_the_full_one():
    """Of a linear model and a linear loss, within 4 standard errors: 500 epochs of 4 batches."""
    kernels.set_threads(1)
    graph, rng = with_loops(), nn.Random(0)
    model = LinearModel(rng)
    flat, c, seeds = nn.flatten(model), values(9, N, 2), np.arange(0, N, 2)

    def gradient(g, x, weights):
        flat.zero_grad()
        (model(g, x) * weights).sum().backward()
        return flat.grad.copy()

    inside = np.zeros((N, 1))
    inside[seeds] = 1
    full = gradient(graph, Tensor(X), c * inside)
    place = np.argsort(graph.dst_ids)
    loaded, found = batches(graph, seeds, fanouts=(2, 3), batch_size=12, sample_ahead=0), []
    for _ in range(500):
        total = 0
        for batch in loaded:
            rows = place[np.searchsorted(graph.dst_ids[place], batch.dst_ids)]
            total = total + gradient(batch, batch.x, c[rows])
        found.append(total)
    mean, error = mean_and_error(np.array(found))
    assert (np.abs(mean - full) <= 4 * error + 1e-12).all() and (error > 0).mean() > 0.5


# ---- what a pick depends on


def digest(loaded, epochs=2):
    found = hashlib.blake2b()
    for _ in range(epochs):
        for batch in loaded:
            arrays = [batch.src_ids, batch.rows]
            for g in batch.layers(3):
                arrays += [g.plan.local.indptr, g.plan.local.indices, g.edge_ids]
            for array in arrays:
                found.update(np.ascontiguousarray(array, np.int64).tobytes())
    return found.hexdigest()


@pytest.mark.parametrize("sampler", ["uniform", "replace", "labor"])
def test_one_hash_for_any_number_of_threads(sampler):
    edges = random_edges(4000, 60000, seed=1)
    graph, found = Graph.from_edges(*edges), set()
    for threads, ahead in ((1, 0), (2, 0), (4, 0), (2, 1), (2, 3)):
        kernels.set_threads(threads)
        found.add(digest(NeighborLoader(graph, np.zeros((4000, 1)), None, slice(None), fanouts=(3, 4, 40), batch_size=1500, seed=7,
                                        sampler=sampler, sample_ahead=ahead)))
    assert len(found) == 1


def test_a_pick_does_not_depend_on_the_rest_of_the_batch():
    """Alone or among others, in any place and under any row number, a node's picks are the same; another step, layer or seed gives
    others."""
    edges = random_edges(300, 6000, seed=2)
    graph = Graph.from_edges(*edges)

    def picks(g, node, step, **options):
        batch = NeighborLoader(g, np.zeros((300, 1)), None, slice(None), fanouts=(4, 4), batch_size=1, **options).batch(node, step)
        return [{int(g.dst_ids[i]): g.src_ids[g.plan.local.indices[a:b]].tolist()
                 for i, (a, b) in enumerate(zip(g.plan.local.indptr, g.plan.local.indptr[1:]))} for g in batch.layers(2)]

    alone, many = picks(graph, [5], 0), picks(graph, np.arange(300)[::-1], 0)
    assert alone[1][5] == many[1][5] and all(many[0][node] == found for node, found in alone[0].items())
    assert picks(graph, [5], 1)[1] != alone[1] and picks(graph, [5], 0, seed=1)[1] != alone[1] and alone[0][5] != alone[1][5]
    order = np.random.default_rng(0).permutation(300)
    parts = graph.shard(graph.comm, np.zeros(300, int), order=order)  # the same graph, its rows in another order
    row = int(np.flatnonzero(parts.dst_ids == 5)[0])
    for sampler in ("uniform", "replace", "labor"):
        assert picks(parts, [row], 0, sampler=sampler)[1][5] == picks(graph, [5], 0, sampler=sampler)[1][5]


def test_one_variate_shares_sources_between_layers():
    """With one variate for all layers the batch is smaller."""
    graph = Graph.from_edges(*random_edges(2000, 40000, seed=1))
    sizes = [NeighborLoader(graph, np.zeros((2000, 1)), None, slice(None), fanouts=(5, 5, 5), batch_size=1, sampler="labor",
                            one_variate=shared).batch(np.arange(50)).n_src for shared in (False, True)]
    assert sizes[1] < 0.8 * sizes[0]


# ---- the loader


def test_an_epoch_has_each_seed_once_and_every_epoch_another_order():
    graph, seeds = with_loops(), np.arange(5, 70)
    loaded = batches(graph, seeds, batch_size=10, fanouts=(2, 2, 2))
    orders = []
    for epoch in range(2):
        found = list(loaded)
        assert len(found) == len(loaded) == 7 and [b.n_global for b in found] == [10] * 6 + [5]
        assert [b.step for b in found] == list(range(7 * epoch, 7 * epoch + 7)) and loaded.step == 7 * (epoch + 1)
        orders.append(np.concatenate([b.dst_ids[b.rows] for b in found]))
        assert sorted(orders[-1].tolist()) == sorted(graph.dst_ids[seeds].tolist())
        for b in found:
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
def test_training(model):
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
        made = model(4, 4, layers=2, hidden=8, dropout=0.1, rng=random)
        step = TrainingStep(made, optim.Adam(nn.flatten(made), 0.03), random, graph.comm)
        loaded = NeighborLoader(graph, x, labels, slice(0, 200), fanouts=(4, 6), batch_size=50, sample_ahead=ahead)
        losses.append([step(b, b.x, b.labels, b.rows, b.n_global) for _ in range(12) for b in loaded])
    assert losses[0] == losses[1] and np.mean(losses[0][-4:]) < 0.85 * np.mean(losses[0][:4])


# ---- the order of the products


def test_a_batch_sums_first_where_that_is_cheaper():
    """Many sources and few destinations: the product of the destinations' rows is the smaller. On square graphs widths decide as ever."""
    graph = Graph.from_edges(*random_edges(3000, 30000, seed=1))
    batch = NeighborLoader(graph, np.zeros((3000, 1)), None, slice(None), fanouts=(3, 3), batch_size=1).batch(np.arange(40))
    middle = batch.layers(2)[1]
    assert middle.n_src > 2 * middle.n_dst

    def first(g, n_in, n_out):
        return product_first(g, Tensor(np.zeros((g.n_src, n_in)), requires_grad=True), Tensor(np.zeros((n_in, n_out)), requires_grad=True))

    assert first(graph, 256, 256) and not first(middle, 256, 256)
    assert first(graph, 256, 32) and not first(graph, 32, 256) and not first(middle, 32, 256)
    assert first(middle, 500, 1)


# ---- refusals


@pytest.mark.parametrize("options, error, message", [
    ({"sampler": "other"}, ConfigError, "sampler 'other' is not one of uniform, replace, full, labor"),
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
    ({"x": X[:-1]}, ShapeError, "x of shape"),
    ({"labels": LABELS[:-1]}, ShapeError, "labels of shape"),
])  # fmt: skip
def test_what_the_loader_refuses(options, error, message):
    given = {"x": X, "labels": LABELS, "train": slice(None), "fanouts": (5, 5), "batch_size": 10, **options}
    with pytest.raises(error, match=message):
        NeighborLoader(plain(), given.pop("x"), given.pop("labels"), given.pop("train"), **given)


def test_what_a_batch_refuses():
    loaded = batches(plain(), slice(None))
    batch = next(iter(loaded))
    model = SAGE(N_IN, N_OUT, layers=2, rng=nn.Random(0))
    with pytest.raises(ConfigError, match="fanouts has 3 entries, but the model 2 layers"):
        model(batch, batch.x)
    with pytest.raises(ConfigError, match="a batch of 3 layers"):
        batch.aggregate(fn.copy_src(batch.x), "sum")
    with pytest.raises(ConfigError, match="over one layer"):
        batch.layers(3)[0].layers(2)
    with pytest.raises(ConfigError, match="no graph to be divided"):
        batch.in_edges()
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
    found = Sampler(edges, (-1,), n_columns=6)([1, 0], 0)
    (layer,) = found.layers
    assert found.rows.tolist() == [1, 0] and layer.halo.tolist() == [4, 5]
    assert layer.columns.tolist() == [2, 0, 3] and layer.positions.tolist() == [2, 0, 1]
