"""Attention over x, shared by all heads, before the products equals attention over the products, on any number of ranks."""


import numpy as np
import pytest

from sarlite import Graph, Tensor, fn, nn
from sarlite.comm import threads
from sarlite.errors import ShapeError
from sarlite.minibatch import HEC
from sarlite.models import GAT
from sarlite.operators import evaluation
from sarlite.schedule.modes import MODES
from sarlite.tape import ops
from tests.helpers.graph.strategies import random_edges, values
from tests.helpers.minibatch.batching import N_IN, N_OUT, loader_of, whole

pytestmark = pytest.mark.timeout(120)

N, HEADS, WIDTH = 40, 3, 5
SHAPES = (1, WIDTH), (HEADS,), (HEADS,)
EDGES = random_edges(N, 300, seed=4)
OPTIONS = [{"mode": mode} for mode in MODES] + [{"mode": "sar", "backward": "fetch"}]


def attended(graph, shared):
    """Return output and gradients of attention with dropout over a z that heads share, or over copies of z."""
    z, src, dst = (Tensor(values(k, N, *shape)[graph.src_ids], requires_grad=True) for k, shape in enumerate(SHAPES))
    out = graph.aggregate(fn.attend(z if shared else z * np.ones((1, HEADS, 1)), src, dst, 0.2, 0.4, 11), "sum")
    out.backward(np.cos(out.data))
    return graph.src_ids, [out.data, z.grad, src.grad, dst.grad]


@pytest.mark.parametrize("options", OPTIONS, ids=lambda options: "-".join(map(str, options.values())))
@pytest.mark.parametrize("n_ranks", [1, 2, 3, 4])
def test_a_shared_z_is_as_copies_of_it(n_ranks, options):
    graph = Graph.from_edges(*EDGES)
    _, expected = attended(graph, False)

    def work(comm):
        return attended(graph.shard(comm, "contiguous", **options), True)

    for ids, arrays in threads.run(n_ranks, work):
        for a, b in zip(arrays, expected, strict=True):
            np.testing.assert_allclose(a, b[ids], rtol=1e-12, atol=1e-12)


def test_a_shared_z_with_values_on_edges():
    graph = Graph.from_edges(*EDGES)
    z, src, dst = (Tensor(values(k, N, *shape)) for k, shape in enumerate(SHAPES))
    more = {"edge": values(5, graph.n_edges, 2), "attn_edge": Tensor(values(6, 2, HEADS))}
    actual, expected = (graph.aggregate(fn.attend(x, src, dst, **more), "sum").data for x in (z, z * np.ones((1, HEADS, 1))))
    np.testing.assert_array_equal(actual, expected)


def test_other_heads_are_refused():
    graph = Graph.from_edges(*EDGES)
    with pytest.raises(ShapeError, match=r"z \(40, 2, 5\), src \(40, 3\) and dst \(40, 3\) .*\(n_src, n_heads or 1, n_feat\)"):
        graph.aggregate(fn.attend(values(0, N, 2, WIDTH), values(1, N, HEADS), values(2, N, HEADS)), "sum")


def epoch(graph, heads, **options):
    """Return the gradients and logits of each batch."""
    loader, batches = loader_of(graph, batch_size=16, fanouts=(3, 4, 5), **options), []
    options = dict(layers=3, hidden=6, attention_dropout=0.3, residual=True, batch_norm=True, dtype=np.float64)
    model = GAT(N_IN, N_OUT, heads=heads, rng=nn.Random(5), **options)
    flat = nn.flatten(model)
    for batch in loader:
        flat.zero_grad()
        logits = model(batch, batch.x)
        loss = ops.cross_entropy(logits, batch.labels, batch.rows, batch.n_global)
        loss.backward()
        batches.append([flat.grad.copy(), logits.data.copy()])
    return batches


@pytest.mark.sampled(7)
@pytest.mark.parametrize("remote", ["exact", "local", HEC(lines=500, life=2, limit=50, delay=1)], ids=["exact", "local", "hec"])
@pytest.mark.parametrize("n_ranks", [1, 2, 3])
@pytest.mark.parametrize("heads", [1, 2])  # with one head of 6 features x W is as wide as x
def test_minibatches_in_both_orders(heads, n_ranks, remote, monkeypatch):
    def work(comm):
        return epoch(whole().shard(comm, "contiguous"), heads, remote=remote)

    by_order = []
    for first in (True, False):
        monkeypatch.setattr(evaluation, "attends_products", lambda *args, first=first: first)
        by_order.append(threads.run(n_ranks, work))
    for batches in zip(*(zip(*ranks, strict=True) for ranks in by_order), strict=True):  # by order, then by rank
        (grads, logits), others = ([sum(rank[0] for rank in ranks), [rank[1] for rank in ranks]] for ranks in batches)
        np.testing.assert_allclose(grads, others[0], rtol=1e-11, atol=1e-12)  # a rank's share is of its sources, or of its destinations
        for a, b in zip(logits, others[1], strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-11, atol=1e-12)


def test_which_order_is_taken():
    x = Tensor(np.zeros((10, 128)), requires_grad=True)

    class Sized(Graph):
        sizes = 61_000, 13_000, 130_000

    graph = Graph.from_edges(*EDGES)
    assert evaluation.attends_products(graph, x, 4, 32)  # sources and destinations are the same rows
    graph.__class__ = Sized
    assert not evaluation.attends_products(graph, x, 4, 32)
    assert evaluation.attends_products(graph, x, 32, 4)  # sums of 32 x 128 values an edge
    Sized.sizes = 61_000, 60_000, 130_000
    assert evaluation.attends_products(graph, x, 4, 32)


def test_matmul_by_head_refuses():
    with pytest.raises(ShapeError, match=r"x float64 \(7, 3, 5\) and w float64 \(2, 5, 3\)"):
        ops.matmul_by_head(values(0, 7, 3, 5), values(1, 2, 5, 3))
