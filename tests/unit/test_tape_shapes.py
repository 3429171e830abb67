"""What `shapes.measure` tells of a function: the shapes and flops of its primitives."""

import numpy as np

from sarlite import Graph, Tensor, fn
from sarlite.sar.aggregate import Operator
from sarlite.tape import ops, shapes


def test_shapes_and_flops_of_primitives():
    x, w = Tensor(np.ones((4, 3)), requires_grad=True), Tensor(np.ones((3, 5)), requires_grad=True)
    records = shapes.measure(lambda: ((x @ w).relu().exp() * 2).T.sum())
    assert [(r.name, r.shape) for r in records] == [
        ("matmul", (4, 5)), ("relu", (4, 5)), ("exp", (4, 5)), ("mul", (4, 5)), ("transpose", (5, 4)), ("sum", ())]
    assert records[0].inputs == ((4, 3), (3, 5)) and records[0].dtype == np.float64
    assert [r.flops for r in records] == [120, 20, 20, 20, 0, 20]
    assert [r.backward_flops for r in records] == [240, 20, 20, 20, 0, 20]
    assert shapes.measure(lambda: None) == []


def test_an_operator_counts_its_own_flops(monkeypatch):
    def flops(self, inputs, out, operator, schedule):
        return 2 * sum(block.n_edges for block in schedule.plan.blocks) * out[1]

    rng, x = np.random.default_rng(0), np.ones((10, 7))
    graph = Graph.from_edges(rng.integers(0, 10, 33), rng.integers(0, 10, 33), 10)

    def counted():
        return sum(record.flops for record in shapes.measure(lambda: graph.aggregate(fn.copy_src(Tensor(x)), "sum")))

    assert counted() == 33 * 7
    monkeypatch.setattr(Operator, "flops", flops, raising=False)
    assert counted() == 2 * 33 * 7


def test_einsum_and_reductions():
    x, y = Tensor(np.ones((4, 3))), Tensor(np.ones((3, 5)))
    records = shapes.measure(lambda: ops.einsum("ij,jk->ik", x, y).sum() + x.logsumexp())
    assert [r.flops for r in records] == [120, 20, 36, 1]


def test_softmax_and_its_kin():
    x, one = Tensor(np.ones((4, 3))), Tensor(np.ones(3))
    records = shapes.measure(lambda: ops.cross_entropy(ops.layer_norm(x.softmax(), one, one), np.zeros(4, int)) + x.var())
    assert [r.flops for r in records] == [48, 96, 48, 48, 1]
