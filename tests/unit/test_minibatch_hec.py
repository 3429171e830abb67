"""Halo rows from historical embedding caches: exact limits, ages, misses, and the same run whatever the network does."""

import random
import re
import threading
import time

import numpy as np
import pytest

from sarlite import Graph, Tensor, fn, nn, no_grad, optim
from sarlite.comm import threads
from sarlite.errors import ConfigError, SarliteError
from sarlite.minibatch import HEC, NeighborLoader
from sarlite.minibatch.push import Pusher
from sarlite.models import GAT, GCN, SAGE
from sarlite.tape import ops
from sarlite.train.step import TrainingStep
from tests.helpers.strategies import random_edges, values

pytestmark = pytest.mark.timeout(120)

N, N_IN, N_OUT = 90, 5, 3
EDGES = random_edges(N, 700, seed=3)
X, LABELS = values(1, N, N_IN), np.random.default_rng(2).integers(0, N_OUT, N)
FULL = (-1, -1, -1)


class Plain(nn.Module):
    """A message of the user's, with edge values."""

    def __init__(self, rng):
        self.linears = [nn.Linear(a, b, rng=rng, dtype=np.float64) for a, b in ((N_IN, 6), (6, 6), (6, N_OUT))]
        self.edge = values(8, 2000)

    def __call__(self, graph, h):
        for g, linear in zip(graph.layers(3), self.linears):
            g, h = g.enter(h)
            z = linear(h)
            h = g.aggregate(lambda s, d, e: (s["z"] + d["z"]).tanh() * e["w"], "mean", {"z": z}, {"z": g.dst(z)},
                            {"w": self.edge[g.edge_ids][:, None]}) + g.dst(z)
        return h


def make(name, **options):
    rng = nn.Random(5)
    if name == "function":
        return Plain(rng), rng
    more = {"gat": {"heads": 2, "input_dropout": 0.0, "attention_dropout": 0.0}, "pool": {"aggregator": "max-pool"}}.get(name, {})
    cls = {"gat": GAT, "gcn": GCN}.get(name, SAGE)
    options = {"dropout": 0.0, "batch_norm": False, **more, **options}
    return cls(N_IN, N_OUT, layers=3, hidden=6, rng=rng, dtype=np.float64, **options), rng


MODELS = ["sage", "pool", "gcn", "gat", "function"]


def whole(loops=False):
    return Graph.from_edges(*EDGES, self_loops=loops)


def random_parts(size, seed=0):
    return np.random.default_rng(seed).integers(0, size, N)


def loader_of(graph, train=slice(None), **options):
    options = {"fanouts": FULL, "batch_size": N, "seed": 3, **options}
    return NeighborLoader(graph, X[graph.src_ids], LABELS[graph.dst_ids], train, **options)


def unlimited(**options):
    return HEC(**{"lines": 10**6, "limit": 10**6, "life": 10**6, **options})


def full_logits(model):
    with no_grad():
        return model(whole(isinstance(model, (GCN, GAT))), Tensor(X)).data


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
                step(batch, batch.x, batch.labels, batch.rows, batch.n_global)
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


def detached(model, own):
    """The loss and gradients of one rank's nodes, where all other nodes' rows are constants in each layer."""
    graph = whole()
    h, full, mask = Tensor(X), Tensor(X), own[:, None].astype(float)
    for k, conv in enumerate(model.convs):
        mixed = h * mask + Tensor(full.data * (1 - mask))
        with no_grad():
            full = conv(graph, full)
            full = model.activations[k](full, graph) if k < 2 else full
        h = conv(graph, mixed)
        h = model.activations[k](h, graph) if k < 2 else h
    return ops.cross_entropy(h, LABELS, np.flatnonzero(own), N)


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

    found = threads.run(3, work)
    np.testing.assert_allclose(sum(f[0] for f in found), loss.item(), rtol=1e-12)
    np.testing.assert_allclose(sum(f[1] for f in found), expected, rtol=1e-11, atol=1e-13)
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

    found, sources = zip(*threads.run(2, work))
    return {node: row for rank in found for node, row in rank.items()}, part, sources


@pytest.mark.parametrize("reducer", ["mean", "max"])
def test_missing_rows_are_dropped(reducer):
    found, part, _ = first_layer("drop", -1, reducer)
    keep = part[EDGES.src] == part[EDGES.dst]
    inner = Graph.from_edges(EDGES.src[keep], EDGES.dst[keep], N).aggregate(fn.copy_src(Tensor(X)), reducer).data
    for node in range(N):
        np.testing.assert_allclose(found[node], inner[node], rtol=1e-12, atol=1e-15)


def test_missing_rows_are_zeros_that_count():
    found, part, _ = first_layer("zero", -1)
    for node in range(N):
        sources = EDGES.src[EDGES.dst == node]
        expected = (X[sources] * (part[sources] == part[node])[:, None]).sum(0) / max(len(sources), 1)
        np.testing.assert_allclose(found[node], expected, rtol=1e-12, atol=1e-15)


def test_local_rows_stand_in_for_missing_ones():
    """With a fan-out of 3 of about 8 in-edges, half of them local, a row has 3 picks, or all its local in-edges."""
    found, part, sources = first_layer("local", 3)
    assert all((part[s] == rank).all() for rank, blocks in enumerate(sources) for s in blocks)
    keep = part[EDGES.src] == part[EDGES.dst]
    n_local = np.bincount(EDGES.dst[keep], minlength=N)
    dropped = first_layer("drop", 3)[2]
    n_picks = [sum(map(len, blocks)) for blocks in sources]
    assert sum(n_picks) == np.minimum(n_local, 3).sum() > sum(len(s) for blocks in dropped for s in blocks)
    assert set(found) == set(range(N))


def test_a_layer_is_entered_before_it_aggregates():
    def work(comm):
        (batch,) = loader_of(whole().shard(comm, random_parts(2)), fanouts=(2,), remote=HEC())
        with pytest.raises(ConfigError, match=r"g, h = g.enter\(h\)"):
            batch.layers(1)[0].aggregate(fn.copy_src(batch.x), "sum")

    threads.run(2, work)


# ---- ages, limits, what is pushed


def trained(comm, remote, steps=40):
    graph = whole().shard(comm, random_parts(comm.size))
    model, rng = make("sage", dropout=0.3)
    loader = loader_of(graph, fanouts=(3, 3, 3), batch_size=20, remote=remote)
    step = TrainingStep(model, optim.Adam(nn.flatten(model), 0.01), rng, comm)
    losses = []
    while len(losses) < steps:
        losses += [step(b, b.x, b.labels, b.rows, b.n_global) for b in loader]
    return losses, nn.flatten(model).data.copy(), loader


@pytest.mark.parametrize("push", ["paper", "demand"])
def test_no_hit_is_older_than_delay_and_life(push, monkeypatch):
    """Rows of layer 1 and 2 filled with their own step, on the way to the cache."""
    ages = []

    def work(comm):
        graph = whole().shard(comm, random_parts(3))
        remote = HEC(life=2, delay=1, limit=4, lines=30, push=push, features="keep")
        loader = loader_of(graph, fanouts=(2, 2, 2), batch_size=9, remote=remote)
        for _ in range(12):
            for batch in loader:
                for k, g in enumerate(batch.layers(3)):
                    if k:
                        before = g.n_src
                        g, h = g.enter(Tensor(np.full((before, 2), float(batch.step))))
                        ages.extend((batch.step - h.data[before:, 0]).tolist())

    threads.run(3, work)
    assert 0 < min(ages) and max(ages) == 3 and len(ages) > 500


@pytest.mark.parametrize("push, options", [("paper", {"limit": 3}), ("paper", {"push_by": "uniform", "limit": 2, "lines": 5, "delay": 2}),
                                           ("demand", {"delay": 2}), ("paper", {"features": "cache", "on_miss": "local"})])
def test_a_run_is_bit_equal_whatever_the_network_does(push, options, monkeypatch):
    remote = HEC(**{"push": push, **options})
    expected = threads.run(3, lambda comm: trained(comm, remote, steps=16)[:2])
    right, lock, draw = Pusher.submit, threading.Lock(), random.Random(1)

    def late(self, *args):
        with lock:
            seconds = draw.random() * 0.01
        time.sleep(seconds)
        return right(self, *args)

    monkeypatch.setattr(Pusher, "submit", late)
    for (a, b), (c, d) in zip(threads.run(3, lambda comm: trained(comm, remote, steps=16)[:2]), expected):
        assert a == c and np.array_equal(b, d)


def test_training_learns_and_limits_hold():
    def work(comm):
        losses, _, loader = trained(comm, HEC(limit=2, life=3), steps=90)
        assert np.mean(losses[-10:]) < np.mean(losses[:10])
        counts = loader.counts
        assert counts["rows_pushed"][0] == 0 and 0 < counts["rows_pushed"][1] <= 2 * 2 * counts["steps"]
        assert counts["bytes_pushed"] > 0 and all(0 < h < n for h, n in zip(counts["hits"][1:], counts["lookups"][1:]))
        assert counts["hits"][0] == counts["lookups"][0]

    threads.run(3, work)


def test_demand_hits_more_with_fewer_rows():
    graph, part = Graph.from_edges(*random_edges(3000, 20000, seed=1)), np.random.default_rng(0).integers(0, 3, 3000)

    def work(comm, push, limit):
        own = graph.shard(comm, part)
        remote = HEC(push=push, limit=limit)
        loader = NeighborLoader(own, np.zeros((own.n_src, 1)), None, slice(None), fanouts=(3, 3, 3), batch_size=60, remote=remote)
        for batch in loader:
            for g in batch.layers(3):
                g.enter(Tensor(np.zeros((g.n_src, 1))))
        return np.array([loader.counts[name] for name in ("hits", "lookups", "rows_pushed")])

    limited, unlimited, demand = (sum(threads.run(3, work, *how)) for how in (("paper", 10), ("paper", 2000), ("demand", 10)))
    for k in (1, 2):
        assert demand[0, k] == unlimited[0, k] > 1.3 * limited[0, k] and demand[2, k] < 0.8 * unlimited[2, k]


# ---- going on


@pytest.mark.parametrize("push", ["paper", "demand"])
def test_a_run_goes_on_from_its_state(push):
    """Steps, caches and parameters of an epoch's end give the same numbers as a run that went on."""
    def work(comm):
        graph = whole().shard(comm, random_parts(3))

        def start():
            model, rng = make("sage")
            loader = loader_of(graph, fanouts=(3, 3, 3), batch_size=20, remote=HEC(push=push, features="cache"))
            return model, TrainingStep(model, optim.SGD(nn.flatten(model), 0.1), rng, comm), loader

        model, step, loader = start()

        def epoch(loader, step):
            return [step(b, b.x, b.labels, b.rows, b.n_global) for b in loader]

        epoch(loader, step), epoch(loader, step)
        state, parameters, at, n_steps = loader.state(), nn.flatten(model).data.copy(), loader.step, step.n_steps
        went_on = epoch(loader, step)
        model, step, loader = start()
        nn.flatten(model).data = parameters
        loader.step, step.n_steps = at, n_steps
        loader.load_state(state)
        assert epoch(loader, step) == went_on
        loader.step = 0  # these steps come again: what is cached would come from the future
        return [len(array) for name, array in loader.state().items() if re.fullmatch("cache.*halo", name)]

    assert threads.run(3, work) == [[0, 0, 0]] * 3


def test_an_epoch_left_on_all_ranks_goes_on_and_predictions_push_nothing():
    def work(comm):
        graph = whole().shard(comm, random_parts(3))
        model, _ = make("sage")
        loader = loader_of(graph, fanouts=(2, 2, 2), batch_size=9, remote=HEC())
        for batch in (left := iter(loader)):
            model(batch, batch.x)
            if batch.step == 3:
                break
        left.close()
        pushed = list(loader.counts["rows_pushed"])
        batch = loader.batch(np.arange(graph.n_dst), loader.step)
        first = model(batch, batch.x).data
        np.testing.assert_array_equal(first, model(batch, batch.x).data)
        assert loader.counts["rows_pushed"] == pushed
        return [b.step for b in loader if model(b, b.x) is not None]

    assert threads.run(3, work) == [list(range(4, 10))] * 3


@pytest.mark.parametrize("remote", [HEC(), HEC(push="demand", delay=2, features="cache"), HEC(delay=0)])
def test_ranks_without_nodes_seeds_or_halo(remote):
    """One rank of four has no nodes, one has nodes without edges across, one no seeds."""
    src = np.concatenate([EDGES.src % 60, [80, 81]])
    dst = np.concatenate([EDGES.dst % 60, [81, 80]])
    part = np.where(np.arange(N) < 30, 0, np.where(np.arange(N) < 60, 1, 3))

    def work(comm):
        graph = Graph.from_edges(src, dst, N).shard(comm, part)
        model, rng = make("sage")
        step = TrainingStep(model, optim.SGD(nn.flatten(model), 0.1), rng, comm)
        loader = loader_of(graph, graph.dst_ids >= 30, fanouts=(2, 2, 2), batch_size=9, remote=remote)
        return [step(b, b.x, b.labels, b.rows, b.n_global) for _ in range(3) for b in loader]

    losses = threads.run(4, work)
    assert all(own == losses[0] for own in losses) and np.isfinite(losses[0]).all()


def test_a_failure_of_the_push_thread_ends_the_run(monkeypatch):
    def fails(self, job):
        if job.step == 2 and self.comm.rank == 1:
            raise OSError("the network is gone")
        return right(self, job)

    from sarlite.minibatch import push

    right = push._Link._exchanged
    monkeypatch.setattr(push._Link, "_exchanged", fails)
    with pytest.raises((OSError, SarliteError)) as caught:
        threads.run(3, lambda comm: trained(comm, HEC()))
    assert "the network is gone" in str(caught.value)


@pytest.mark.parametrize("options, message", [
    ({"lines": 0}, "lines is 0"), ({"life": -1}, "life is -1"), ({"limit": 2.5}, "limit is 2.5"), ({"delay": True}, "delay is True"),
    ({"on_miss": "guess"}, "on_miss 'guess' is not one of drop, zero, local"), ({"push": "x"}, "push 'x'"),
    ({"push_by": "x"}, "push_by 'x'"), ({"features": "x"}, "features 'x'"), ({"push": "demand", "delay": 0}, "delay is at least 1"),
    ({"lines": 100, "limit": 101}, "lines 100 are fewer than limit 101"),
])  # fmt: skip
def test_what_the_settings_refuse(options, message):
    with pytest.raises(ConfigError, match=message):
        HEC(**options)


@pytest.mark.parametrize("remote", [HEC(delay=1, limit=4), "exact"])
def test_two_loaders_at_once_do_not_meet(remote, monkeypatch):
    """Their threads communicate side by side; on one channel one rank's push of a loader would meet another rank's of the other."""
    late = random.Random(3)

    def seen(batch):
        found = [batch.src_ids, batch.rows]
        for k, g in enumerate(batch.layers(3)):
            g, h = g.enter(Tensor(np.full((g.n_src, 2), float(batch.step))) if k else batch.x)
            found += [g.src_ids, h.data]
        return found

    def loaders(comm):
        graph = whole().shard(comm, random_parts(comm.size))
        return [loader_of(graph, fanouts=(3, 3, 3), batch_size=20, remote=remote, seed=seed) for seed in (1, 2)]

    def each(comm):
        return [[seen(batch) for batch in loader] for loader in loaders(comm)]

    def both(comm):
        found, made = ([], []), loaders(comm)
        for pair in zip(*made):
            for batch, to in zip(pair, found):
                time.sleep(late.random() * 0.002)
                to.append(seen(batch))
        made[1].drain()  # `zip` leaves its epoch before the end
        return found

    for one, other in zip(threads.run(3, each), threads.run(3, both)):
        for mine, theirs in zip(one, other):
            assert len(mine) == len(theirs) > 3
            for batch, again in zip(mine, theirs):
                assert all(np.array_equal(a, b) for a, b in zip(batch, again))
