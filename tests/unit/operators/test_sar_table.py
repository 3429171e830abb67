"""The table of messages and reducers: two entries that mean the same agree, over a graph, a part and a relation."""

import numpy as np
import pytest

from sarlite import Graph, HeteroGraph, Tensor, fn
from sarlite.comm import threads
from sarlite.errors import ConfigError, ShapeError
from sarlite.operators.evaluation import ORDERS
from tests.helpers.comm.exchanges import EDGES, MODES
from tests.helpers.graph.strategies import values

pytestmark = pytest.mark.timeout(60)
N = EDGES.n_nodes
N_EDGES = len(EDGES.src)
X, WEIGHT, SCORES, G = values(1, N, 6), values(2, 6, 4), values(3, 6, 2), values(4, N, 4)


def over_parts(n_ranks, mode, message_of, reducer, weights=None, **inputs):
    """Return the whole output, and the gradients of the arguments of `message_of(graph, x, weight, scores)`, summed over ranks."""
    def work(comm):
        graph = Graph.from_edges(*EDGES)
        graph = graph if weights is None else graph.with_edge_values(weights[graph.edge_ids])
        graph = graph.shard(comm, "random", mode=mode) if comm.size > 1 else graph
        x, weight, scores = (Tensor(a, requires_grad=True) for a in (X[graph.node_ids], WEIGHT, SCORES))
        out = graph.aggregate(message_of(graph, x, weight, scores), reducer)
        (out.reshape(-1, 4) * G[graph.node_ids]).sum().backward()
        whole = np.zeros((2, N, 6))
        whole[0, graph.node_ids, :4], whole[1, graph.node_ids] = out.data.reshape(-1, 4), x.grad
        grads = [np.zeros_like(t.data) if t.grad is None else t.grad for t in (weight, scores)]
        return [comm.allreduce(a) for a in (whole, *grads)]

    return threads.run(n_ranks, work)[0]


def check(actual, expected):
    for a, b in zip(actual, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-11)


@pytest.mark.parametrize("mode", [None, *MODES])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("reducer", ["sum", "mean", "sym"])
def test_the_ways_of_a_weight_are_equal(reducer, weighted, mode):
    weights = np.abs(values(5, N_EDGES)) if weighted else None
    n_ranks, mode = (1, "sar") if mode is None else (3, mode)
    product, *others = (over_parts(n_ranks, mode, lambda graph, x, weight, _, order=order: fn.linear(x, weight, order), reducer, weights)
                        for order in ORDERS)
    a = np.zeros((N, N))
    np.add.at(a, (EDGES.dst, EDGES.src), 1 if weights is None else weights)
    degrees = np.where(a.sum(1) == 0, 1, a.sum(1))
    a = {"sum": a, "mean": a / degrees[:, None], "sym": a / np.sqrt(np.outer(degrees, degrees))}[reducer]
    np.testing.assert_allclose(product[0][0, :, :4], a @ X @ WEIGHT, rtol=1e-12, atol=1e-11)
    np.testing.assert_allclose(product[1], (a @ X).T @ G, rtol=1e-12, atol=1e-11)
    for product_of_way in others:
        check(product_of_way, product)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("n_ranks, mode", [(1, "sar"), (3, "sar"), (3, "sa"), (3, "oneshot")])
def test_attention_inside_the_message_is_attention_over_products(n_ranks, mode, weighted):
    weights = np.abs(values(5, N_EDGES)) if weighted else None
    options = 0.2, 0.3, 7  # slope, dropout, key

    def inside(graph, x, weight, scores):
        return fn.attend_linear(x, weight, scores, x @ scores, *options)

    def outside(graph, x, weight, scores):
        return fn.attend((x @ weight).reshape(-1, 2, 2), x @ scores, x @ scores, *options)

    check(over_parts(n_ranks, mode, inside, "sum", weights), over_parts(1, "sar", outside, "sum", weights))


def test_a_function_and_its_message_are_one():
    def function(s, d, e):
        return (s["x"] * d["x"]).tanh()

    graph, x = Graph.from_edges(*EDGES), Tensor(X)
    for reducer in ("sum", "max"):
        endpoints = {"src": {"x": x}, "dst": {"x": x}}
        np.testing.assert_array_equal(graph.aggregate(function, reducer, **endpoints).data,
                                      graph.aggregate(fn.message(function, **endpoints), reducer).data)


def test_a_function_without_inputs_over_a_relation():
    """The function knows only the ids of an edge's ends."""
    relation, scale = ("a", "to", "b"), Tensor(np.array([2.0]), requires_grad=True)
    graph = HeteroGraph.from_edges({relation: (EDGES.src, EDGES.dst)}, {"a": N, "b": N})
    out = graph.aggregate({relation: lambda s, d, e: scale * s.ids.astype(float)[:, None]}, "sum")["b"]
    out.sum().backward()
    expected = np.bincount(EDGES.dst, EDGES.src, N)
    np.testing.assert_allclose(out.data[:, 0], 2 * expected)
    np.testing.assert_allclose(scale.grad, [expected.sum()])


def test_what_is_no_way_is_refused():
    with pytest.raises(ConfigError, match="evaluation 'last' .*product, first, inside"):
        Graph.from_edges(*EDGES).aggregate(fn.linear(Tensor(X), Tensor(WEIGHT), "last"), "sum")
    with pytest.raises(ConfigError, match="message function .*reducer 'sym'"):
        Graph.from_edges(*EDGES).aggregate(lambda s, d, e: s["x"], "sym", src={"x": X})


def test_attend_linear_multiplies_destinations_by_their_weight():
    rng = np.random.default_rng(5)
    graph = Graph.from_edges([0, 1, 2, 2], [1, 2, 0, 1], 3)
    x, dst_features = Tensor(rng.normal(size=(3, 4))), Tensor(rng.normal(size=(3, 5)))
    weight, src_weight, dst_weight = (Tensor(rng.normal(size=shape)) for shape in ((4, 6), (4, 2), (5, 2)))
    out = graph.aggregate(fn.attend_linear(x, weight, src_weight, dst_features, dst_weight=dst_weight), "sum")
    expected = graph.aggregate(fn.attend_linear(x, weight, src_weight, dst_features @ dst_weight), "sum")
    np.testing.assert_allclose(out.data, expected.data, rtol=1e-12)
    with pytest.raises(ShapeError, match=r"dst_weight \(4, 2\)"):
        graph.aggregate(fn.attend_linear(x, weight, src_weight, dst_features, dst_weight=src_weight), "sum")
