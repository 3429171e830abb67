"""Runs with historical embedding caches: ages and limits, the same run whatever the network does, and runs that go on."""

import random
import re
import threading
import time

import numpy as np
import pytest

from sarlite import Graph, Tensor, nn, optim
from sarlite.comm import threads
from sarlite.errors import ConfigError, SarliteError
from sarlite.minibatch import HEC, NeighborLoader
from sarlite.minibatch.hec.push import Pusher
from sarlite.train.step import TrainingStep
from tests.helpers.graph.strategies import random_edges
from tests.helpers.minibatch.caching import EDGES, N, loader_of, make, random_parts, trained, whole

pytestmark = pytest.mark.timeout(120)


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


@pytest.mark.sampled(2)
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
        local = graph.shard(comm, part)
        remote = HEC(push=push, limit=limit)
        loader = NeighborLoader(local, np.zeros((local.n_src, 1)), None, slice(None), fanouts=(3, 3, 3), batch_size=60, remote=remote)
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
            return [step(b) for b in loader]

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
        return [step(b) for _ in range(3) for b in loader]

    losses = threads.run(4, work)
    assert all(each_part == losses[0] for each_part in losses) and np.isfinite(losses[0]).all()


def test_a_failure_of_the_push_thread_ends_the_run(monkeypatch):
    def fails(self, job):
        if job.step == 2 and self.comm.rank == 1:
            raise OSError("the network is gone")
        return right(self, job)

    from sarlite.minibatch.hec import push

    right = push._Link._exchanged
    monkeypatch.setattr(push._Link, "_exchanged", fails)
    with pytest.raises((OSError, SarliteError)) as caught:
        threads.run(3, lambda comm: trained(comm, HEC()))
    assert "the network is gone" in str(caught.value)


@pytest.mark.parametrize("options, message", [
    ({"lines": 0}, "lines is 0"), ({"life": -1}, "life is -1"), ({"limit": 2.5}, "limit is 2.5"), ({"delay": True}, "delay is True"),
    ({"on_miss": "guess"}, "on_miss 'guess' .*drop, zero, local"), ({"push": "x"}, "push 'x'"),
    ({"push_by": "x"}, "push_by 'x'"), ({"features": "x"}, "features 'x'"), ({"push": "demand", "delay": 0}, "delay is 0, .*1 or more"),
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
        result = [batch.src_ids, batch.rows]
        for k, g in enumerate(batch.layers(3)):
            g, h = g.enter(Tensor(np.full((g.n_src, 2), float(batch.step))) if k else batch.x)
            result += [g.src_ids, h.data]
        return result

    def loaders(comm):
        graph = whole().shard(comm, random_parts(comm.size))
        return [loader_of(graph, fanouts=(3, 3, 3), batch_size=20, remote=remote, seed=seed) for seed in (1, 2)]

    def each(comm):
        return [[seen(batch) for batch in loader] for loader in loaders(comm)]

    def both(comm):
        result, built = ([], []), loaders(comm)
        for pair in zip(*built):
            for batch, to in zip(pair, result):
                time.sleep(late.random() * 0.002)
                to.append(seen(batch))
        built[1].drain()  # `zip` leaves its epoch before the end
        return result

    for one, other in zip(threads.run(3, each), threads.run(3, both)):
        for mine, theirs in zip(one, other):
            assert len(mine) == len(theirs) > 3
            for batch, again in zip(mine, theirs):
                assert all(np.array_equal(a, b) for a, b in zip(batch, again))
