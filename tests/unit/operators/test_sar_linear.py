"""Messages x_j W: the cheaper order of the two products, the symmetric scale, and the kept sums of a constant input."""

import gc
import itertools
import weakref

import numpy as np
import pytest

from sarlite import Graph, Tensor, Trainer, fn, gradcheck, nn, no_grad, optim
from sarlite.comm import threads
from sarlite.errors import ConfigError, ShapeError
from sarlite.models import GCN, SAGE
from sarlite.tape import ops
from tests.helpers.graph.references import EDGES, FEATURES, LABELS, N_IN, N_OUT, TRAIN
from tests.helpers.graph.strategies import KINDS, random_edges, values

pytestmark = pytest.mark.timeout(60)

SUMS = ("sum", "mean", "sym")
MODES = ("sar", "sa", "oneshot")
WIDTHS = [(5, 3), (3, 5), (4, 4), (3, 17)]


def dense(edges, reducer):
    """Return the matrix that a reducer applies."""
    a = np.zeros((edges.n_nodes, edges.n_nodes))
    np.add.at(a, (edges.dst, edges.src), 1)
    degree = np.maximum(a.sum(1), 1)
    return {"sum": a, "mean": a / degree[:, None], "sym": a / np.sqrt(np.outer(degree, degree))}[reducer]


@pytest.mark.sampled(28)
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("reducer", SUMS)
@pytest.mark.parametrize("kind", KINDS)
def test_linear_messages_are_dense_products(kind, reducer, dtype):
    """Values and gradients are tested in both orders, and with a constant x."""
    edges = KINDS[kind]
    a, tolerance = dense(edges, reducer), 1e-12 if dtype == np.float64 else 2e-5
    for n_in, n_out in WIDTHS:
        shapes = (edges.n_nodes, n_in), (n_in, n_out), (edges.n_nodes, n_out)
        x, w, g = (values(k, *shape).astype(dtype) for k, shape in enumerate(shapes))
        expected = a @ x @ w, (a @ x).T @ g, a.T @ g @ w.T
        for options in ({"requires_grad": True}, {}, {"constant": True}):
            source, weight = Tensor(x, **options), Tensor(w, requires_grad=True)
            out = Graph.from_edges(*edges).aggregate(fn.linear(source, weight), reducer)
            out.backward(g)
            assert out.dtype == dtype and (source.grad is None) == ("requires_grad" not in options)
            for actual, right in zip((out.data, weight.grad, source.grad), expected):
                if actual is not None:
                    np.testing.assert_allclose(actual, right, rtol=tolerance, atol=tolerance * max(1, np.abs(right).max(initial=0)))


@pytest.mark.parametrize("kind", KINDS)
def test_sym_of_copy_src(kind):
    edges = KINDS[kind]
    x, g = Tensor(values(1, edges.n_nodes, 2, 3), requires_grad=True), values(2, edges.n_nodes, 2, 3)
    out = Graph.from_edges(*edges).aggregate(fn.copy_src(x), "sym")
    out.backward(g)
    a = dense(edges, "sym")
    np.testing.assert_allclose(out.data, np.tensordot(a, x.data, 1), rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(x.grad, np.tensordot(a.T, g, 1), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("reducer", SUMS)
def test_gradients_agree_with_finite_differences(reducer):
    graph = Graph.from_edges(*EDGES)
    for n_in, n_out in WIDTHS[:2]:
        gradcheck(lambda x, w: graph.aggregate(fn.linear(x, w), reducer), [values(1, 61, n_in), values(2, n_in, n_out)])


# ---- what travels

CROWD = random_edges(50, 700, seed=7)  # every part needs rows of every other part
# n_in, n_out, x and weight need gradients -> width that is fetched, width that is pushed
ORDERS = {(8, 3, True, True): (3, 3), (3, 8, True, True): (3, 3), (4, 4, True, True): (4, 4), (8, 3, True, False): (3, 3),
          (8, 3, False, True): (3, 3), (3, 8, False, True): (3, 0), (5, 4, False, True): (5, 0), (8, 4, False, True): (4, 4),
          (5, 4, False, False): (4, 0), (4, 5, False, False): (4, 0)}  # fmt: skip


@pytest.mark.sampled(32)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("reducer", SUMS)
@pytest.mark.parametrize("case", ORDERS)
def test_the_order_that_sends_less_is_taken(case, reducer, mode):
    n_in, n_out, *needs = case

    def work(comm):
        graph = Graph.from_edges(*CROWD).shard(comm, "random", mode=mode)
        x, w = Tensor(values(1, 50, n_in)[graph.node_ids], needs[0]), Tensor(values(2, n_in, n_out), needs[1])
        out = graph.aggregate(fn.linear(x, w), reducer)
        if any(needs):
            out.backward(np.ones_like(out.data))
        assert (x.grad is None, w.grad is None) == (not needs[0], not needs[1])
        with no_grad(), graph.profile.phase("without gradients"):
            graph.aggregate(fn.linear(x, w), reducer)
        back = sum(arrival.n_send for arrival in graph.plan.exchanges)
        return graph.plan.n_halo, back, graph.profile.received_bytes

    for n_halo, back, received in threads.run(3, work):
        assert received["forward_fetch"] == 8 * n_halo * ORDERS[case][0] > 0
        assert received["backward_push"] == 8 * back * ORDERS[case][1]
        assert received["backward_fetch"] == 0
        assert received["without gradients"] == 8 * n_halo * min(n_in, n_out)
        assert received["setup"] == (8 * n_halo if reducer == "sym" else 0)  # once a graph


# ---- constant inputs


def test_a_constant_tensor():
    array = values(1, 4, 3)
    x = Tensor(array, constant=True)
    assert x.constant and np.shares_memory(x.data, array) and array.flags.writeable
    with pytest.raises(ValueError, match="read-only"):
        x.data[0] = 1
    with pytest.raises(ValueError, match="constant"):
        Tensor(array, requires_grad=True, constant=True)
    changed = [x * 1.0, x + 0.0, x[:2], x.detach(), ops.dropout(x, np.arange(4), 5, 0.5), nn.Dropout(0.5, nn.Random(0))(x, np.arange(4)),
               Tensor(x.data), Tensor(array)]  # fmt: skip
    assert not any(t.constant for t in changed)
    assert x[:4] is x and nn.Dropout(0.5, nn.Random(0)).eval()(x, np.arange(4)) is x


@pytest.mark.parametrize("reducer", SUMS)
@pytest.mark.parametrize("mode", MODES)
def test_a_constant_is_fetched_and_aggregated_once(mode, reducer):
    def work(comm):
        graph = Graph.from_edges(*CROWD).shard(comm, "random", mode=mode)
        x, received = Tensor(values(1, 50, 6)[graph.node_ids], constant=True), graph.profile.received_bytes
        grads = []
        for n_out in (2, 4, 20):  # for any widths, as later steps reuse the fetched rows
            w = Tensor(values(8, 6, n_out), requires_grad=True)
            out = graph.aggregate(fn.linear(x, w), reducer)
            out.backward(values(9, 50, n_out)[graph.node_ids])
            grads.append(comm.allreduce(w.grad))
            assert received["forward_fetch"] == 8 * 6 * graph.plan.n_halo > 0  # at x's width, in the first step alone
        assert received["backward_push"] == received["backward_fetch"] == 0
        summed = graph.aggregate(fn.copy_src(x), reducer)
        assert summed.constant and received["forward_fetch"] == 8 * 6 * graph.plan.n_halo
        graph.aggregate(fn.copy_src(summed), reducer)
        again = received["forward_fetch"]
        graph.aggregate(fn.copy_src(graph.aggregate(fn.copy_src(x), reducer)), reducer)  # A (A X) is constant too
        assert received["forward_fetch"] == again
        return grads

    ax = dense(CROWD, reducer) @ values(1, 50, 6)
    for grads in threads.run(3, work):
        for grad in grads:
            np.testing.assert_allclose(grad, ax.T @ values(9, 50, grad.shape[1]), rtol=1e-12, atol=1e-12)


def test_each_reducer_and_each_graph_keeps_its_own():
    x = Tensor(FEATURES, constant=True)
    for edges in (EDGES, EDGES._replace(src=EDGES.src[::2], dst=EDGES.dst[::2])):
        graph = Graph.from_edges(*edges)
        for reducer in (*SUMS, *SUMS):
            out = graph.aggregate(fn.copy_src(x), reducer)
            np.testing.assert_allclose(out.data, dense(edges, reducer) @ FEATURES, rtol=1e-11, atol=1e-12)
        assert graph.aggregate(fn.copy_src(x), "max").shape == x.shape  # a maximum is not kept and is aggregated each time


def test_a_copy_is_another_tensor():
    graph, x = Graph.from_edges(*EDGES), Tensor(FEATURES, constant=True)
    first = graph.aggregate(fn.copy_src(x), "sum").data
    for other in (Tensor(2 * x.data), Tensor(2 * x.data, constant=True)):
        np.testing.assert_allclose(graph.aggregate(fn.copy_src(other), "sum").data, 2 * first, rtol=1e-12)
    plain = Tensor(FEATURES.copy())
    graph.aggregate(fn.copy_src(plain), "sum")
    plain.data *= 3  # x may change, so the sum is not kept
    np.testing.assert_allclose(graph.aggregate(fn.copy_src(plain), "sum").data, 3 * first, rtol=1e-12)


def test_what_is_kept_dies_with_the_tensor():
    graph, x = Graph.from_edges(*EDGES), Tensor(FEATURES, constant=True)
    reference = weakref.ref(graph.aggregate(fn.copy_src(x), "sum"))
    graph.aggregate(fn.copy_src(reference()), "sum")
    gc.collect()
    assert reference() is not None and len(graph.memo.get("sums", dict)) == 2
    del x
    gc.collect()
    assert reference() is None and not len(graph.memo.get("sums", dict))


def test_a_constant_of_integers():
    graph, x = Graph.from_edges(*EDGES), (FEATURES * 10).astype(np.int64)
    for n_out in (2, 20):
        w = values(1, N_IN, n_out)
        out = graph.aggregate(fn.linear(Tensor(x, constant=True), Tensor(w, requires_grad=True)), "mean")
        np.testing.assert_allclose(out.data, dense(EDGES, "mean") @ x @ w, rtol=1e-11, atol=1e-11)


MODELS = {
    "sage": lambda rng: SAGE(N_IN, N_OUT, hidden=8, rng=rng, dtype=np.float64),
    "gcn": lambda rng: GCN(N_IN, N_OUT, hidden=8, input_dropout=0.0, rng=rng, dtype=np.float64),
    "gcn, input dropout": lambda rng: GCN(N_IN, N_OUT, hidden=8, rng=rng, dtype=np.float64),
}


def steps(graph, name, constant):
    """Return losses and scores of three steps, and the parameters after them."""
    rng, ids = nn.Random(3), graph.node_ids
    trainer = Trainer(graph, MODELS[name](rng), FEATURES[ids], LABELS[ids], np.flatnonzero(TRAIN[ids]), np.flatnonzero(~TRAIN[ids]),
                      optimizer=lambda flat: optim.SGD(flat, 0.1), rng=rng)  # fmt: skip
    assert trainer.x.constant
    if not constant:
        trainer.x = Tensor(FEATURES[ids])
    losses = [trainer.step(epoch) for epoch in range(3)]
    return np.concatenate([losses, [trainer.evaluate()["val_loss"]], trainer.flat.data])


@pytest.mark.sampled(5)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", MODELS)
def test_training_is_the_same_with_a_constant_input(name, mode):
    expected = steps(Graph.from_edges(*EDGES), name, False)
    for n_ranks, prefetch in itertools.product((1, 2, 3), (0, 1)):
        last = np.full(EDGES.n_nodes, n_ranks - 1)
        for parts in ("random", last) if n_ranks == 2 else ("random",):
            shard = lambda comm: Graph.from_edges(*EDGES).shard(comm, parts, mode=mode, prefetch=prefetch)  # noqa: B023, E731
            for losses in threads.run(n_ranks, lambda comm: steps(shard(comm), name, True)):  # noqa: B023
                np.testing.assert_allclose(losses, expected, rtol=1e-10, atol=1e-12)


# ---- refused


def test_bad_use_is_refused():
    graph, x, w = Graph.from_edges(*EDGES), Tensor(FEATURES), Tensor(values(1, N_IN, 3))
    for reducer in ("max", "min", "softmax"):
        with pytest.raises(ConfigError, match=f"Linear does not go with reducer '{reducer}'"):
            graph.aggregate(fn.linear(x, w), reducer)
    for message in (lambda s, d, e: s["x"], fn.mul_edge(x, values(1, EDGES.n_edges))):
        with pytest.raises(ConfigError, match="'sym'"):
            graph.aggregate(message, "sym", src={"x": x})
    with pytest.raises(ShapeError, match=r"\(61, 7\).*\(6, 3\)"):
        graph.aggregate(fn.linear(x, Tensor(values(1, 6, 3))), "sum")
    with pytest.raises(ShapeError, match="needs 61 rows"):
        graph.aggregate(fn.linear(Tensor(FEATURES[:5]), w), "sum")
    with pytest.raises(ShapeError, match=r"\(61, 7, 1\)"):
        graph.aggregate(fn.linear(Tensor(FEATURES[:, :, None]), w), "sum")
