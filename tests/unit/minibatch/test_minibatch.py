"""Minibatches on one rank where all in-edges are taken: exactly the full batch; and the order of their products."""


import numpy as np
import pytest

from sarlite import Graph, Tensor, fn, nn
from sarlite.errors import ConfigError
from sarlite.minibatch import NeighborLoader
from sarlite.models import GAT, GCN, SAGE
from sarlite.operators import evaluation
from sarlite.tape import ops
from tests.helpers.graph.strategies import KINDS, random_edges, values
from tests.helpers.minibatch.small_batches import GRAPHS, LABELS, N_IN, N_OUT, N, X, batches, with_loops

pytestmark = pytest.mark.timeout(60)


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
            result = loss_and_gradients(model, batch, batch.x, batch.labels, batch.rows, len(seeds))
            for a, b in zip(result, expected):
                np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-12)
            total = total + result[1]
        np.testing.assert_allclose(total, loss_and_gradients(model, graph, Tensor(X), LABELS, seeds, len(seeds))[1], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", GRAPHS)
def test_all_nodes_as_seeds_are_the_full_batch_with_batch_norm(name):
    graph = GRAPHS[name]()
    for model, _ in models(graph, batch_norm=True):
        (batch,) = batches(graph, slice(None), batch_size=N, sampler="full")
        result = loss_and_gradients(model, batch, batch.x, batch.labels, batch.rows, batch.n_global)
        for a, b in zip(result, loss_and_gradients(model, graph, Tensor(X), LABELS, np.arange(N), N)):
            np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-12)


def aggregated(g, message, reducer, h, weight, arguments):
    """Return the aggregation of one kind of message over a graph."""
    if message == "copy":
        return g.aggregate(fn.copy_src(h), reducer)
    if message == "linear":
        return g.aggregate(fn.linear(h, weight), reducer)
    if message == "edge":
        return g.aggregate(fn.mul_edge(h, arguments), reducer)
    if message == "attend":
        score = h @ weight
        return g.aggregate(fn.attend(h.reshape(-1, 2, 2), score, g.dst(score)), reducer)
    rows = {"x": h}, {"x": g.dst(h)}, {"w": arguments.reshape(-1, 1)}
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
    (loaded,) = NeighborLoader(graph, arrays[0], None, slice(None), fanouts=(-1,), batch_size=n)
    (batch,) = loaded.layers(1)
    compared = 0
    for reducer in ("sum", "mean", "sym", "max", "min", "softmax"):
        for message in ("copy", "linear", "edge", "function", "attend"):
            try:
                expected = value_and_gradients(graph, message, reducer, *arrays)
            except ConfigError as error:
                with pytest.raises(ConfigError, match=str(error)[:20]):
                    value_and_gradients(batch, message, reducer, *arrays)
                continue
            for actual, right in zip(value_and_gradients(batch, message, reducer, *arrays), expected):
                np.testing.assert_allclose(actual, right, rtol=1e-12, atol=1e-12, err_msg=f"{reducer} {message}")
            compared += 1
    assert compared == 18


def value_and_gradients(g, message, reducer, x, w, e):
    """By global ids, so that a batch in another order compares."""
    h, weight, arguments = (Tensor(a, requires_grad=True) for a in (x[g.src_ids], w, e[g.edge_ids]))
    out = aggregated(g, message, reducer, h, weight, arguments)
    by_id = np.empty_like(out.data)
    by_id[g.dst_ids] = out.data
    out.backward(values(4, *out.shape)[g.dst_ids])
    d_x, d_e = np.zeros_like(x), np.zeros_like(e)
    d_x[g.src_ids], d_e[g.edge_ids] = (0 if t.grad is None else t.grad for t in (h, arguments))
    return by_id, d_x, d_e, 0 if weight.grad is None else weight.grad


def test_labor_with_a_large_fanout_is_full():
    graph = with_loops()
    most = int(graph.in_degrees.max())
    for k in (most, most + 1, 10**6):
        result = [[(g.in_degrees.tolist(), g.edge_ids.tolist()) for g in next(iter(batches(graph, slice(None), **options))).layers(3)]
                 for options in ({"sampler": "labor", "fanouts": (k, k, k)}, {"sampler": "full"}, {"fanouts": (k, k, k)})]
        assert result[0] == result[1] == result[2]


def test_a_batch_sums_first_where_that_is_cheaper():
    """Many sources and few destinations: the product of the destinations' rows is the smaller. On square graphs widths decide as ever."""
    graph = Graph.from_edges(*random_edges(3000, 30000, seed=1))
    batch = NeighborLoader(graph, np.zeros((3000, 1)), None, slice(None), fanouts=(3, 3), batch_size=1).batch(np.arange(40))
    middle = batch.layers(2)[1]
    assert middle.n_src > 2 * middle.n_dst

    def first(g, n_in, n_out):
        x, weight = (Tensor(np.zeros(shape), requires_grad=True) for shape in ((g.n_src, n_in), (n_in, n_out)))
        return evaluation.order(g, x, weight) == "product"

    assert first(graph, 256, 256) and not first(middle, 256, 256)
    assert first(graph, 256, 32) and not first(graph, 32, 256) and not first(middle, 32, 256)
    assert first(middle, 500, 1)
