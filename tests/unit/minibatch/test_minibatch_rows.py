"""A batch's input rows, which products and sums read in the loader's table, against a copy of them."""

import gc
import weakref

import numpy as np
import pytest

from sarlite import Graph, Tensor, fn, nn
from sarlite.comm import threads
from sarlite.minibatch import HEC, NeighborLoader
from sarlite.models import GAT, GCN, SAGE
from sarlite.tape import ops
from sarlite.tape.table_rows import TableRows
from tests.helpers.graph.strategies import random_edges, values

pytestmark = pytest.mark.timeout(60)

EDGES = random_edges(50, 400, 0)
DTYPES = pytest.mark.parametrize("dtype", [np.float32, np.float64])


class Custom(nn.Module):
    def __init__(self, rng, dtype):
        self.w = nn.glorot(rng, (5, 3), 5, 3, dtype)

    def __call__(self, graph, h):
        for g in graph.layers(2):
            g, h = g.enter(h)
            h = g.aggregate(lambda src, dst, edge: (src["x"] + dst["x"]).relu(), "sum", src={"x": h}, dst={"x": g.dst(h)})
        return h @ self.w


class Weighted(nn.Module):
    """A sum whose weights want a gradient, which reads the rows again."""

    def __init__(self, rng, dtype):
        self.w = nn.glorot(rng, (5, 3), 5, 3, dtype)

    def __call__(self, graph, h):
        for g in graph.layers(2):
            g, h = g.enter(h)
            weight = (self.w.reshape(-1)[:1] * np.ones((g.n_edges, 1), h.dtype)).reshape(-1)
            h = g.aggregate(fn.mul_edge(h, weight), "sum")
        return h @ self.w


MODELS = {
    "sage": (lambda **o: SAGE(5, 3, layers=2, hidden=4, **o), False),
    "sage max": (lambda **o: SAGE(5, 3, layers=2, hidden=4, aggregator="max-pool", **o), False),
    "gat": (lambda **o: GAT(5, 3, layers=2, hidden=4, heads=2, input_dropout=0.0, **o), False),
    "gat paper": (lambda **o: GAT(5, 3, form="paper", layers=2, hidden=4, heads=2, input_dropout=0.0, **o), False),
    "gat residual": (lambda **o: GAT(5, 3, layers=2, hidden=4, heads=2, input_dropout=0.0, residual=True, **o), False),
    "weighted": (Weighted, False),
    "gat dropout": (lambda **o: GAT(5, 3, layers=2, hidden=4, heads=2, **o), True),
    "gcn": (lambda **o: GCN(5, 3, layers=2, hidden=4, **o), True),
    "custom": (Custom, True),
}


def batch_of(dtype):
    x = values(1, 50, 5).astype(dtype)
    loader = NeighborLoader(Graph.from_edges(*EDGES), x, np.arange(50) % 3, np.arange(20), fanouts=(3, 4), batch_size=20, sample_ahead=0)
    return next(iter(loader)), x


def gradients(make, batch, x, dtype):
    rng = nn.Random(0)
    model = make(rng=rng, dtype=dtype)
    rng.step = 0
    loss = ops.cross_entropy(model(batch, x), batch.labels, batch.rows, batch.n_global)
    loss.backward()
    return [loss.data, *(p.grad for p in model.parameters())]


@DTYPES
@pytest.mark.parametrize("name", MODELS)
def test_bits_are_those_of_gathered_rows(name, dtype):
    make, gathers = MODELS[name]
    batch, table = batch_of(dtype)
    result = gradients(make, batch, batch.x, dtype)
    assert (batch.x.rows is None) == gathers
    copied = gradients(make, batch, Tensor(table[batch.part_rows]), dtype)
    assert len(result) > 1
    for a, b in zip(result, copied, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.sampled(26)
@pytest.mark.parametrize("remote", ["sar", "sa", "oneshot", "broadcast", "local", HEC(), HEC(push="demand"), HEC(on_miss="local")], ids=str)
@pytest.mark.parametrize("name", MODELS)
def test_ranks_read_rows_where_they_stand(name, remote, monkeypatch):
    """Rows of the part, and stored halo rows, are read without a copy on several ranks, too."""
    make, gathers = MODELS[name]
    mode, how = (remote, "exact") if remote in ("sar", "sa", "oneshot", "broadcast") else ("sar", remote)
    gathered, real = [], TableRows.gathered
    monkeypatch.setattr(TableRows, "gathered", lambda self: gathered.append(1) or real(self))

    def work(comm):
        part = Graph.from_edges(*EDGES).shard(comm, np.arange(50) % comm.size, mode=mode)
        x = values(1, 50, 5)[part.src_ids]
        loader = NeighborLoader(part, x, np.arange(part.n_dst) % 3, slice(0, 9), fanouts=(3, 4), batch_size=20, sample_ahead=0, remote=how)
        batch = next(iter(loader))
        of_rank, taken = gradients(make, batch, batch.x, np.float64), isinstance(batch.x, TableRows)
        return of_rank, gradients(make, batch, Tensor(batch.take(x)), np.float64), taken

    for of_rank, copied, taken in threads.run(3, work):
        assert len(of_rank) > 1 and (taken or gathers or mode == "broadcast")
        for a, b in zip(of_rank, copied, strict=True):
            np.testing.assert_array_equal(a, b)
    assert bool(gathered) == (gathers and mode != "broadcast")


def test_kept_features_are_there_once():
    """The loader's x is the first rows of the table that has the halo rows behind them; else it is as given."""
    def work(comm, remote):
        part = Graph.from_edges(*EDGES).shard(comm, np.arange(50) % 2)
        x = values(1, 50, 5)[part.src_ids]
        loader = NeighborLoader(part, x, None, slice(0, 9), fanouts=(-1,), batch_size=20, sample_ahead=0, remote=remote)
        g, h = (batch := next(iter(loader))).layers(1)[0].enter(batch.x)
        assert (loader.x is x) == (batch.x.rows.table is x) == (remote == "exact")
        np.testing.assert_array_equal(loader.x, x)
        if remote != "exact":
            assert np.shares_memory(loader.x, h.rows.table) and g.n_src > batch.n_src
            np.testing.assert_array_equal(h.data, values(1, 50, 5)[g.src_ids])

    for remote in ("exact", HEC(features="keep")):
        threads.run(2, work, remote)


def test_a_change_of_the_copy_is_seen():
    """Once there is a copy, that is what all operations read."""
    batch, table = batch_of(np.float64)
    w, x = np.eye(5), batch.x
    start = table[batch.part_rows]
    assert x.shape == start.shape == np.shape(x) and x.dtype == start.dtype
    assert (x.ndim, x.size, len(x)) == (2, start.size, len(start))
    assert x.rows is not None
    np.testing.assert_array_equal(ops.matmul(x, w).data, start)
    assert x.rows is not None
    local = batch.layers(2)[0].dst(x)
    x.data[...] += 1
    for some in (x, local, batch.layers(2)[0].dst(x)):
        np.testing.assert_array_equal(ops.matmul(some, w).data, start[: len(some)] + 1)
    np.testing.assert_array_equal(table[batch.part_rows], start)


def test_other_tables_are_gathered():
    for table in (np.arange(50), np.zeros((50, 2, 2)), np.zeros(50, np.float32)):
        loader = NeighborLoader(Graph.from_edges(*EDGES), table, None, np.arange(20), fanouts=(3, 4), batch_size=20)
        batch = loader.batch(np.arange(7))
        assert not isinstance(batch.x, TableRows)
        np.testing.assert_array_equal(batch.x.data, table[batch.part_rows])


def test_a_batch_goes_with_its_last_name():
    """Nothing of it refers to itself: its memory does not wait for the collector of cycles."""
    batch, _ = batch_of(np.float32)
    x, local = batch.x, batch.layers(2)[0].dst(batch.x)
    alive = [weakref.ref(t) for t in (batch, x, local)]
    gc.disable()
    try:
        del batch, x, local
        assert [ref() for ref in alive] == [None] * 3
    finally:
        gc.enable()


@pytest.mark.parametrize("name", ["sage", "gat", "custom"])
def test_rows_that_want_a_gradient_have_that_of_a_copy(name):
    make, _ = MODELS[name]
    x = values(1, 50, 5)

    def gradient(copy):
        loader = NeighborLoader(Graph.from_edges(*EDGES), x, None, slice(0, 20), fanouts=(2, 3), batch_size=7)
        batch, model = next(iter(loader)), make(rng=nn.Random(0), dtype=np.float64).eval()
        h = Tensor(batch.take(x)) if copy else batch.x
        h.requires_grad = True
        model(batch, h).sum().backward()
        return h.grad

    result, expected = gradient(False), gradient(True)
    assert expected.any()
    np.testing.assert_array_equal(result, expected)
