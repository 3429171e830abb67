"""A run on shapes alone predicts what a run at a larger size keeps for backward, to the byte, and counts its flops."""

import gc
import tracemalloc

import numpy as np
import pytest

from sarlite import Graph, Solo, Tensor, fn, models, nn, no_grad
from sarlite.errors import ConfigError
from sarlite.sar.aggregate import Operator
from sarlite.tape import ops, shapes

SIZES = [(10, 20), (14, 20), (10, 33), (17, 50)]


def graph_of(rows, edges):
    rng = np.random.default_rng(0)
    return Graph.from_edges(rng.integers(0, rows, edges), rng.integers(0, rows, edges), rows)


def of_model(model, constant=False):
    """make(rows, edges) for `shapes.linear`."""

    def make(rows, edges):
        graph, x = graph_of(rows, edges), Tensor(np.ones((rows, 7), np.float32), constant=constant)
        return lambda: model(graph, x)

    return make


def live_bytes(function):
    """Bytes of NumPy's arrays that `function` leaves alive, as counted by the allocator; what caches take is taken before."""
    function()
    gc.collect()
    filters = [tracemalloc.DomainFilter(True, np.lib.tracemalloc_domain)]
    tracemalloc.start()
    try:
        out = function()
        gc.collect()
        found = sum(trace.size for trace in tracemalloc.take_snapshot().filter_traces(filters).traces)
    finally:
        tracemalloc.stop()
    return found, out


def dense(x, w, v):
    h = ops.layer_norm(x @ w, np.ones(6), np.zeros(6)).relu()
    h = ops.dropout(h, np.arange(len(x)), 1, 0.5).reshape(-1, 2, 3)
    return ((h * h).sum(-1).log_softmax() @ v).elu().var(1) + h.max((1, 2))


MODELS = {
    "gcn": lambda rng: models.GCN(7, 5, rng=rng),
    "gcn elu": lambda rng: models.GCN(7, 5, dropout=0.0, batch_norm=True, activation="elu", rng=rng),
    "sage": lambda rng: models.SAGE(7, 5, hidden=12, rng=rng),
    "sage max": lambda rng: models.SAGE(7, 5, hidden=12, aggregator="max-pool", rng=rng),
    "gat": lambda rng: models.GAT(7, 5, rng=rng),
    "gat residual": lambda rng: models.GAT(7, 6, out_heads=2, out_concat=True, residual=True, batch_norm=True, rng=rng),
}


@pytest.mark.parametrize("name", MODELS)
def test_kept_bytes_of_models(name):
    make = of_model(MODELS[name](nn.Random(0)))
    line = shapes.linear(make, SIZES)
    found, out = live_bytes(make(1000, 7000))
    assert line.at(1000, 7000).kept_bytes == found - out.data.nbytes > 0
    assert line.at(1000, 7000) == shapes.measure(make(1000, 7000))


def test_kept_bytes_of_dense_layers():
    w, v = Tensor(np.ones((7, 6)), requires_grad=True), Tensor(np.ones((2, 3)), requires_grad=True)

    def make(rows):
        x = np.ones((rows, 7))
        return lambda: dense(Tensor(x), w, v)

    line = shapes.linear(make, [2, 3, 9])
    found, out = live_bytes(make(500))
    assert line.at(500).kept_bytes == found - out.data.nbytes > 0
    assert line.at(10**9).kept_bytes % 10**9 < 1000 and line.at(10**9)[0].shape == (10**9, 6)


def test_what_is_kept_where():
    x, w = Tensor(np.ones((4, 3)), requires_grad=True), Tensor(np.ones((3, 5)), requires_grad=True)
    records = shapes.measure(lambda: ((x @ w).relu().exp() * 2).T.sum())
    assert [(r.name, r.shape, r.kept_bytes) for r in records] == [
        ("matmul", (4, 5), 0), ("relu", (4, 5), 160), ("exp", (4, 5), 160), ("mul", (4, 5), 0), ("transpose", (5, 4), 0), ("sum", (), 0)]
    assert records[0].inputs == ((4, 3), (3, 5)) and records.width == 5 and records[0].dtype == np.float64
    assert [r.flops for r in records] == [120, 20, 20, 20, 0, 20] and records.flops == 200
    assert [r.backward_flops for r in records] == [240, 20, 20, 20, 0, 20]


def test_a_buffer_counts_once_and_what_was_there_not_at_all():
    x = Tensor(np.ones((4, 3)), requires_grad=True)

    def run():
        h = x.exp()
        return h * h + h.reshape(2, 6).reshape(4, 3) * x

    def part():
        h = x.exp()[1:]
        return h * h  # keeps a view of what exp keeps

    assert shapes.measure(run).kept_bytes == shapes.measure(part).kept_bytes == 96
    assert shapes.measure(lambda: x * x * np.ones(3)).kept_bytes == 24 * 1
    with no_grad():
        assert shapes.measure(run).kept_bytes == 0
    assert shapes.measure(lambda: [x.exp(), x.exp().detach()]).kept_bytes == 96  # the second's tape is gone
    assert shapes.measure(lambda: None) == () and shapes.measure(lambda: None).width == 0


def test_what_a_graph_keeps_of_constants_was_there():
    model = models.GCN(7, 5, dropout=0.0, rng=nn.Random(0))
    constant, free = (shapes.linear(of_model(model, constant), SIZES).at(100, 900).kept_bytes for constant in (True, False))
    assert free - constant == 100 * 7 * 4


@pytest.mark.parametrize("mode, reducer", [("sar", "sum"), ("sa", "sum"), ("oneshot", "max"), ("sa", "softmax"), ("sar", "softmax")])
def test_what_messages_keep(mode, reducer):
    """In modes `sa` and `oneshot` the recordings of a Python message live to the backward pass, with what is in them."""
    w = Tensor(np.ones(3), requires_grad=True)

    def message(s, d, e):
        value = (s["x"] * w).tanh()
        return (value.sum(1), value) if reducer == "softmax" else value

    def make(rows, edges):
        graph, x = graph_of(rows, edges).shard(Solo(), "contiguous", mode=mode), Tensor(np.ones((rows, 3)), requires_grad=True)
        return lambda: graph.aggregate(message, reducer, src={"x": x})

    found, out = live_bytes(make(200, 900))
    kept = shapes.linear(make, SIZES).at(200, 900).kept_bytes
    shared = out.data.nbytes if reducer == "softmax" else 0  # its reducer keeps the result too
    assert kept == found - out.data.nbytes + shared
    assert (kept > 900 * 3 * 8) == (mode != "sar")


def test_an_operator_counts_its_own_flops(monkeypatch):
    def flops(self, inputs, out, operator, schedule):
        return 2 * sum(block.n_edges for block in schedule.plan.blocks) * out[1]

    x = np.ones((10, 7))
    run = lambda: graph_of(10, 33).aggregate(fn.copy_src(Tensor(x)), "sum")  # noqa: E731
    assert shapes.measure(run).flops == 33 * 7
    monkeypatch.setattr(Operator, "flops", flops, raising=False)
    assert shapes.measure(run).flops == 2 * 33 * 7
    make = of_model(MODELS["gcn"](nn.Random(0)))
    assert shapes.linear(make, SIZES).at(1000, 7000) == shapes.measure(make(1000, 7000))


def test_einsum_and_reductions():
    x, y = Tensor(np.ones((4, 3))), Tensor(np.ones((3, 5)))
    records = shapes.measure(lambda: ops.einsum("ij,jk->ik", x, y).sum() + x.logsumexp())
    assert [r.flops for r in records] == [120, 20, 36, 1]


def test_what_is_not_linear_is_refused():
    x = Tensor(np.ones((1, 1)), requires_grad=True)
    square = lambda n: lambda: np.ones((n, 1)) @ x @ np.ones((1, n))  # noqa: E731
    with pytest.raises(ConfigError, match="not linear"):
        shapes.linear(square, [2, 3, 4])
    assert shapes.linear(square, [2, 3]) is not None  # two points lie on one line: a further one is a check
    with pytest.raises(ConfigError, match="different primitives"):
        shapes.linear(lambda n: (lambda: x.exp() if n > 2 else x.log()), [2, 3])
    for at in ([(2, 4), (3, 6), (4, 8)], [(2, 4), (3, 5)]):
        with pytest.raises(ConfigError, match="do not tell 3 coefficients"):
            shapes.linear(lambda a, b: (lambda: x.exp()), at)
