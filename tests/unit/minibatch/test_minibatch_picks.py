"""Picks on one rank: unbiased estimates, and the same picks for any number of threads, batch and order of rows."""

import hashlib

import numpy as np
import pytest

from sarlite import Graph, Tensor, fn, kernels, nn
from sarlite.minibatch import NeighborLoader
from sarlite.minibatch.sampler import Sampler
from sarlite.structure.part_edges_csr import InEdges
from tests.helpers.graph.strategies import random_edges, values
from tests.helpers.minibatch.small_batches import N_IN, N, X, batches, plain, with_loops

pytestmark = pytest.mark.timeout(60)


@pytest.fixture(autouse=True)
def put_back():
    before = kernels.threads()
    yield
    kernels.set_threads(before)


def mean_and_error(samples):
    return samples.mean(0), samples.std(0, ddof=1) / np.sqrt(len(samples))


def estimates(g, reducer, x):
    """Return sums of every kind of message, side by side."""
    w, e = Tensor(values(2, N_IN, 2)), values(3, 2000)[g.edge_ids]
    yield g.aggregate(fn.copy_src(x), reducer)
    yield g.aggregate(fn.linear(x, w), reducer)
    if reducer != "sym":
        yield g.aggregate(fn.mul_edge(x, e), reducer)
        yield g.aggregate(lambda s, d, k: s["x"] * k["w"], reducer, {"x": x}, {}, {"w": e[:, None]})


@pytest.mark.sampled(5)
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
            samples.append(np.hstack([out.data for out in estimates(batch.layers(1)[0], reducer, batch.x)]))
        mean, error = mean_and_error(np.array(samples))
        assert (np.abs(mean - whole[seeds]) <= 5 * error + 1e-12).all() and (error > 0).mean() > 0.8


class LinearModel(nn.Module):
    def __init__(self, rng):
        self.first, self.second = nn.Linear(N_IN, 4, rng=rng, dtype=np.float64), nn.Linear(4, 2, rng=rng, dtype=np.float64)

    def __call__(self, graph, h):
        a, b = graph.layers(2)
        return b.aggregate(fn.linear(self.first(a.aggregate(fn.copy_src(h), "mean")), self.second.weight), "sum")


@pytest.mark.timeout(240)
def test_the_mean_gradient_of_800_batches_is_the_full_one():
    """The model and the loss are linear; the tolerance is 4 standard errors over 200 epochs of 4 batches."""
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
    loaded, collected = batches(graph, seeds, fanouts=(2, 3), batch_size=12, sample_ahead=0), []
    for _ in range(200):
        total = 0
        for batch in loaded:
            rows = place[np.searchsorted(graph.dst_ids[place], batch.dst_ids)]
            total = total + gradient(batch, batch.x, c[rows])
        collected.append(total)
    mean, error = mean_and_error(np.array(collected))
    assert (np.abs(mean - full) <= 4 * error + 1e-12).all() and (error > 0).mean() > 0.5


def digest(loaded, epochs=2):
    hashed = hashlib.blake2b()
    for _ in range(epochs):
        for batch in loaded:
            arrays = [batch.src_ids, batch.rows]
            for g in batch.layers(3):
                arrays += [g.plan.local.indptr, g.plan.local.indices, g.edge_ids]
            for array in arrays:
                hashed.update(np.ascontiguousarray(array, np.int64).tobytes())
    return hashed.hexdigest()


@pytest.mark.parametrize("sampler", ["uniform", "replace", "labor"])
def test_one_hash_for_any_number_of_threads(sampler):
    edges = random_edges(4000, 60000, seed=1)
    graph, collected = Graph.from_edges(*edges), set()
    for threads, ahead in ((1, 0), (2, 0), (4, 0), (2, 1), (2, 3)):
        kernels.set_threads(threads)
        collected.add(digest(NeighborLoader(graph, np.zeros((4000, 1)), None, slice(None), fanouts=(3, 4, 40), batch_size=1500, seed=7,
                                        sampler=sampler, sample_ahead=ahead)))
    assert len(collected) == 1


def test_a_pick_does_not_depend_on_the_rest_of_the_batch():
    """A node has the same picks in any batch, position and row number; another step, layer or seed gives other picks."""
    edges = random_edges(300, 6000, seed=2)
    graph = Graph.from_edges(*edges)

    def picks(g, node, step, **options):
        batch = NeighborLoader(g, np.zeros((300, 1)), None, slice(None), fanouts=(4, 4), batch_size=1, **options).batch(node, step)
        return [{int(g.dst_ids[i]): g.src_ids[g.plan.local.indices[a:b]].tolist()
                 for i, (a, b) in enumerate(zip(g.plan.local.indptr, g.plan.local.indptr[1:]))} for g in batch.layers(2)]

    one_rank, many = picks(graph, [5], 0), picks(graph, np.arange(300)[::-1], 0)
    assert one_rank[1][5] == many[1][5] and all(many[0][node] == result for node, result in one_rank[0].items())
    assert picks(graph, [5], 1)[1] != one_rank[1] and picks(graph, [5], 0, seed=1)[1] != one_rank[1] and one_rank[0][5] != one_rank[1][5]
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


def test_weights_of_picks_in_attention_do_not_depend_on_their_dtype():
    """Attention is over the picks: float64 weights beside float32 rows count as float32 weights do, not d / k times."""
    rng = np.random.default_rng(5)
    src, dst = rng.integers(0, 40, (2, 400))
    weights, x = rng.uniform(0.5, 2, 400).astype(np.float32), rng.standard_normal((40, 6), dtype=np.float32)

    def outputs(dtype):
        graph = Graph.from_edges(src, dst, 40).with_edge_values(weights.astype(dtype))
        loader = NeighborLoader(graph, x, None, np.arange(40), fanouts=(3,), batch_size=8)
        collected = []
        for batch in loader:
            (layer,) = batch.layers(1)
            z = Tensor(x[layer.src_ids].reshape(-1, 2, 3))
            scores = z.sum(-1)
            collected.append(layer.aggregate(fn.attend(z, scores, scores[: layer.n_dst]), "sum").data)
        return collected

    for single, double in zip(outputs(np.float32), outputs(np.float64), strict=True):
        np.testing.assert_array_equal(single, double)


@pytest.mark.sampled(5)
@pytest.mark.parametrize("loops", [False, True], ids=["plain", "loops"])
@pytest.mark.parametrize("kind", ["uniform", "replace", "labor", "full"])
def test_rows_pick_among_their_other_edges_where_some_are_left_out(kind, loops):
    """The picks are as many and as likely as in a graph without these edges; with "labor" they are the same."""
    dice, n, k = np.random.default_rng(5), 30, -1 if kind == "full" else 3
    part = [np.sort(np.concatenate([dice.permutation(np.delete(np.arange(n), row))[: row % 9], [row] * loops])) for row in range(n)]
    dst, src = np.repeat(np.arange(n), [len(row) for row in part]), np.concatenate(part).astype(np.int32)
    added, is_loop = np.ones(n, bool) if loops else None, (dst == src) & loops
    left_out = np.flatnonzero((dice.random(len(src)) < 0.4) & ~is_loop)
    rest = np.delete(np.arange(len(src)), left_out)
    whole, without = (InEdges(np.searchsorted(dst[at], np.arange(n + 1)), src[at], added_loops=added) for at in (slice(None), rest))
    samplers, rows = [Sampler(edges, (k,), kind, 2) for edges in (whole, without)], dice.permutation(n)
    counts, n_steps = np.zeros(len(src)), 300
    for step in range(n_steps):
        result, expected = samplers[0](rows, step, [left_out]), samplers[1](rows, step)
        picked, reference = result.layers[0].picked, expected.layers[0].picked
        np.testing.assert_array_equal(picked.indptr, reference.indptr)
        assert not np.isin(picked.positions, left_out).any()
        np.testing.assert_array_equal(dst[picked.positions], np.repeat(rows, np.diff(picked.indptr)))
        np.testing.assert_array_equal(result.rows[picked.columns], src[picked.positions])
        counts += np.bincount(picked.positions, minlength=len(src))
        if kind in ("labor", "full"):
            np.testing.assert_array_equal(picked.positions, rest[reference.positions])
    degrees = np.bincount(dst[rest][~is_loop[rest]], minlength=n)[dst[rest]]
    likely = np.where(is_loop[rest], 1, np.minimum(k if k > 0 else 99, degrees if kind != "replace" else 99) / np.maximum(degrees, 1))
    error = np.sqrt(likely * (1 - 1 / np.maximum(degrees, 1) if kind == "replace" else 1 - likely) / n_steps)
    assert (np.abs(counts[rest] / n_steps - likely) <= 4.5 * error * ~is_loop[rest] + 1e-12).all() and len(left_out) > 30
