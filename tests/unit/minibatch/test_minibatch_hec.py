"""Halo rows from historical embedding caches: exact limits, gradients, misses."""

import numpy as np
import pytest

from sarlite import Graph, Tensor, fn, nn, no_grad, optim
from sarlite.comm import threads
from sarlite.errors import ConfigError
from sarlite.minibatch import HEC
from sarlite.models import GAT, GCN
from sarlite.tape import ops
from sarlite.train.step import TrainingStep
from tests.helpers.minibatch.caching import EDGES, LABELS, MODELS, N, X, loader_of, make, random_parts, unlimited, whole

pytestmark = pytest.mark.timeout(120)


def full_logits(model):
    with no_grad():
        return model(whole(isinstance(model, (GCN, GAT))), Tensor(X)).data


@pytest.mark.sampled(6)
@pytest.mark.parametrize("features", ["keep", "cache"])
@pytest.mark.parametrize("name", MODELS)
def test_without_delay_and_limits_logits_are_the_full_batchs_at_every_step(name, features):
    """Training goes on meanwhile, batch norm over all nodes included."""
    options = {} if name == "function" else {"batch_norm": True}

    def work(comm):
        model, rng = make(name, **options)
        graph = whole(name in ("gcn", "gat")).shard(comm, random_parts(3))
        loader = loader_of(graph, remote=unlimited(delay=0, features=features))
        step = TrainingStep(model, optim.SGD(nn.flatten(model), 0.1), rng, comm)
        for _ in range(3):
            for batch in loader:
                logits = model.train()(batch, batch.x)
                full = model(graph, Tensor(X[graph.src_ids])).data  # collective, of all ranks' rows
                for node, row in zip(batch.dst_ids, logits.data):
                    np.testing.assert_allclose(row, full[graph.dst_ids == node][0], rtol=1e-11, atol=1e-12)
                step(batch)
        return loader.counts

    for counts in threads.run(3, work):
        assert counts["hits"] == counts["lookups"] and min(counts["lookups"]) > 0


@pytest.mark.sampled(6)
@pytest.mark.parametrize("push", ["paper", "demand"])
@pytest.mark.parametrize("name", MODELS)
def test_without_learning_logits_become_the_full_batchs(name, push):
    """After L - 1 sweeps, one step behind the last of which is d = 1: nothing expires, and all rows were pushed."""
    model, _ = make(name)
    expected = full_logits(model)

    def work(comm):
        graph = whole(name in ("gcn", "gat")).shard(comm, random_parts(3))
        loader = loader_of(graph, batch_size=20, remote=unlimited(delay=1, push=push))
        model, _ = make(name)
        errors = []
        for _ in range(4):
            with no_grad():
                errors.append([max((float(np.abs(row - expected[node]).max()) for node, row in
                                    zip(b.dst_ids, model.eval()(b, b.x).data)), default=0.0) for b in loader])
        return errors

    for errors in threads.run(3, work):
        late = errors[2:] if push == "paper" else errors[3:]
        assert np.max(late) < 1e-11
        assert np.max(errors[0]) > 1e-3  # at first there were misses


def detached(model, local_rows):
    """Return the loss and gradients of one rank's nodes, with constant rows of all other nodes in each layer."""
    graph = whole()
    h, full, mask = Tensor(X), Tensor(X), local_rows[:, None].astype(float)
    for k, conv in enumerate(model.convs):
        mixed = h * mask + Tensor(full.data * (1 - mask))
        with no_grad():
            full = conv(graph, full)
            full = model.activations[k](full, graph) if k < 2 else full
        h = conv(graph, mixed)
        h = model.activations[k](h, graph) if k < 2 else h
    return ops.cross_entropy(h, LABELS, np.flatnonzero(local_rows), N)


def test_gradients_are_those_with_halo_rows_detached():
    part = random_parts(3)
    model, _ = make("sage")
    flat = nn.flatten(model)
    flat.zero_grad()
    loss = sum((detached(model, part == rank) for rank in range(3)), start=Tensor(0.0))
    loss.backward()
    expected = flat.grad.copy()

    def work(comm):
        model, _ = make("sage")
        flat = nn.flatten(model)
        (batch,) = loader_of(whole().shard(comm, part), remote=unlimited(delay=0))
        flat.zero_grad()
        loss = ops.cross_entropy(model(batch, batch.x), batch.labels, batch.rows, batch.n_global)
        loss.backward()
        return loss.item(), flat.grad.copy()

    by_rank = threads.run(3, work)
    np.testing.assert_allclose(sum(f[0] for f in by_rank), loss.item(), rtol=1e-12)
    np.testing.assert_allclose(sum(f[1] for f in by_rank), expected, rtol=1e-11, atol=1e-13)
    full = make("sage")[0]
    flat = nn.flatten(full)
    flat.zero_grad()
    ops.cross_entropy(full(whole(), Tensor(X)), LABELS).backward()
    assert np.abs(flat.grad - expected).max() > 1e-4  # they are not the full batch's


# ---- misses


def first_layer(on_miss, fanout, reducer="mean"):
    """On each of two ranks: the halves of the nodes, whose features are cached and never pushed before step 0's lookup: all are misses."""
    part = np.arange(N) % 2

    def work(comm):
        graph = whole().shard(comm, part)
        loader = loader_of(graph, fanouts=(fanout,), remote=HEC(lines=1000, limit=1000, delay=1, features="cache", on_miss=on_miss))
        (batch,) = loader
        (g,) = batch.layers(1)
        g, h = g.enter(batch.x)
        assert loader.counts["hits"] == [0] and loader.counts["lookups"][0] > 0
        return dict(zip(g.dst_ids.tolist(), g.aggregate(fn.copy_src(h), reducer).data)), [g.src_ids[b.indices] for b in g.plan.blocks]

    result, sources = zip(*threads.run(2, work))
    return {node: row for rank in result for node, row in rank.items()}, part, sources


@pytest.mark.parametrize("reducer", ["mean", "max"])
def test_missing_rows_are_dropped(reducer):
    result, part, _ = first_layer("drop", -1, reducer)
    keep = part[EDGES.src] == part[EDGES.dst]
    inner = Graph.from_edges(EDGES.src[keep], EDGES.dst[keep], N).aggregate(fn.copy_src(Tensor(X)), reducer).data
    for node in range(N):
        np.testing.assert_allclose(result[node], inner[node], rtol=1e-12, atol=1e-15)


def test_missing_rows_are_zeros_that_count():
    result, part, _ = first_layer("zero", -1)
    for node in range(N):
        sources = EDGES.src[EDGES.dst == node]
        expected = (X[sources] * (part[sources] == part[node])[:, None]).sum(0) / max(len(sources), 1)
        np.testing.assert_allclose(result[node], expected, rtol=1e-12, atol=1e-15)


def test_local_rows_stand_in_for_missing_ones():
    """With a fan-out of 3 of about 8 in-edges, half of them local, a row has 3 picks, or all its local in-edges."""
    result, part, sources = first_layer("local", 3)
    assert all((part[s] == rank).all() for rank, blocks in enumerate(sources) for s in blocks)
    keep = part[EDGES.src] == part[EDGES.dst]
    n_local = np.bincount(EDGES.dst[keep], minlength=N)
    dropped = first_layer("drop", 3)[2]
    n_picks = [sum(map(len, blocks)) for blocks in sources]
    assert sum(n_picks) == np.minimum(n_local, 3).sum() > sum(len(s) for blocks in dropped for s in blocks)
    assert set(result) == set(range(N))


def test_a_layer_is_entered_before_it_aggregates():
    def work(comm):
        (batch,) = loader_of(whole().shard(comm, random_parts(2)), fanouts=(2,), remote=HEC())
        with pytest.raises(ConfigError, match=r"g, h = g.enter\(h\)"):
            batch.layers(1)[0].aggregate(fn.copy_src(batch.x), "sum")

    threads.run(2, work)
