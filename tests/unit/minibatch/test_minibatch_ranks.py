"""Minibatches on several ranks: "exact" is one rank on the union of the seeds, "local" the graph without its cut edges; nothing hangs."""


import numpy as np
import pytest

from sarlite import Graph, Tensor, fn, kernels, nn, optim
from sarlite.comm import threads
from sarlite.errors import ConfigError, DataError, SarliteError, ShapeError
from sarlite.minibatch import HEC, NeighborLoader
from sarlite.minibatch.seeds import Balanced
from sarlite.models import GAT, GCN, SAGE
from sarlite.tape import ops
from sarlite.train.step import TrainingStep
from tests.helpers.graph.strategies import random_edges, values
from tests.helpers.minibatch.batching import (
    EDGES,
    N_IN,
    N_OUT,
    REMOTES,
    SEEDS,
    N,
    Weighted,
    X,
    check_evaluation,
    loader_of,
    parts,
    picks,
    trained,
    whole,
)

pytestmark = pytest.mark.timeout(120)


def models(batch_norm):
    options = dict(batch_norm=batch_norm, dropout=0.4, dtype=np.float64)

    def make(cls, **more):
        rng = nn.Random(5)
        rng.step = 3
        return cls(N_IN, N_OUT, layers=3, hidden=6, rng=rng, **options, **more)

    yield make(SAGE)
    yield make(SAGE, aggregator="max-pool")
    yield make(GCN)
    yield make(GAT, heads=2, attention_dropout=0.3, residual=True)
    yield Weighted(nn.Random(5))


def passes(graph, **options):
    """By step and model the loss, the gradients and the logits by id of each batch of an epoch, all on this rank."""
    loader, collected = loader_of(graph, batch_size=16, **options), []
    for batch in loader:
        for model in models(batch_norm=True):
            flat = nn.flatten(model)
            flat.zero_grad()
            logits = model(batch, batch.x)
            loss = ops.cross_entropy(logits, batch.labels, batch.rows, batch.n_global)
            loss.backward()
            collected.append((loss.item(), flat.grad.copy(), dict(zip(batch.dst_ids.tolist(), logits.data.copy()))))
    return collected


def assert_equal_sums(by_rank, expected):
    for each, (loss, grad, logits) in zip(zip(*by_rank), expected):
        np.testing.assert_allclose(sum(e[0] for e in each), loss, rtol=1e-12)
        np.testing.assert_allclose(sum(e[1] for e in each), grad, rtol=1e-11, atol=1e-12)
        together = {node: row for e in each for node, row in e[2].items()}
        assert together.keys() == logits.keys()
        for node, row in logits.items():
            np.testing.assert_allclose(together[node], row, rtol=1e-11, atol=1e-12)


@pytest.mark.sampled(5)
@pytest.mark.parametrize("size, kind, mode, prefetch, options", [
    (2, "random", "sar", 0, {"fanouts": (2, 3, 2)}),
    (3, "random", "sar", 1, {"fanouts": (3, -1, 2)}),
    (4, "blocks", "sa", 0, {"fanouts": (2, 3, 4), "sampler": "labor"}),
    (3, "few", "oneshot", 0, {"fanouts": (2, 3, 2), "sampler": "replace"}),
    (2, "blocks", "oneshot", 0, {"fanouts": (-1, -1, -1), "sample_ahead": 0}),
    (3, "random", "broadcast", 1, {"fanouts": (2, 3, 2)}),
])  # fmt: skip
@pytest.mark.parametrize("loops", [False, True])
def test_exact_is_one_rank_on_the_union_of_the_seeds(size, kind, mode, prefetch, options, loops):
    """Loss, gradients and logits of every batch, dropout and batch norm over the batch included."""
    graph = whole(loops)
    expected = passes(graph, **options)
    by_rank = threads.run(size, lambda comm: passes(graph.shard(comm, parts(size, kind), mode=mode, prefetch=prefetch), **options))
    assert_equal_sums(by_rank, expected)


@pytest.mark.parametrize("size", [2, 3])
def test_local_is_the_graph_without_its_cut_edges(size):
    part = parts(size)
    keep = part[EDGES.src] == part[EDGES.dst]
    inner = Graph.from_edges(EDGES.src[keep], EDGES.dst[keep], N)
    graph, options = whole(), {"fanouts": (3, 2, -1), "batches": "global"}

    def work(comm):
        actual = passes(graph.shard(comm, part), remote="local", **options)
        return [actual[k] for k in range(len(actual)) if k % 5 < 4]  # edges have other numbers in the other graph

    expected = [actual for k, actual in enumerate(passes(inner, **options)) if k % 5 < 4]
    assert_equal_sums(threads.run(size, work), expected)


@pytest.mark.parametrize("size", [2, 4])
def test_a_whole_run_is_one_ranks(size):
    """The loss of each step of three epochs, whatever N: seeds, picks and masks depend on ids."""
    expected, parameters, _ = trained(whole())
    for losses, of_rank, _ in threads.run(size, lambda comm: trained(whole().shard(comm, parts(size)))):
        np.testing.assert_allclose(losses, expected, rtol=1e-9)
        np.testing.assert_allclose(of_rank, parameters, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("sampler", ["uniform", "replace", "labor"])
def test_one_hash_of_the_picks(sampler):
    """On 1, 2 and 4 ranks, on 1, 2 and 4 threads, in any division and order."""
    def divided(comm):
        return picks(whole(True).shard(comm, parts(comm.size), order=order), sampler=sampler)

    before, collected = kernels.threads(), set()
    order = np.random.default_rng(0).permutation(N)
    try:
        for n_threads in (1, 2, 4):
            kernels.set_threads(n_threads)
            collected.add(picks(whole(True), sampler=sampler))
            for size in (1, 2, 4):
                collected.update(threads.run(size, divided))
    finally:
        kernels.set_threads(before)
    assert len(collected) == 1


@pytest.mark.parametrize("batches", ["global", "balanced"])
@pytest.mark.parametrize("size", [1, 3])
def test_every_seed_is_there_once_an_epoch(size, batches):
    """Also of ranks without any; balanced steps differ by at most one seed a rank, and their numbers add up."""
    graph = whole()

    def work(comm):
        part = graph.shard(comm, np.where(np.arange(N) < 30, 0, size // 2))
        seeds = np.isin(part.dst_ids, SEEDS)
        loader = NeighborLoader(part, X[part.src_ids], None, seeds, fanouts=(2,), batch_size=7, batches=batches, remote="local")
        return [[(b.n_global, b.dst_ids[b.rows].tolist()) for b in loader] for _ in range(2)]

    for epoch in zip(*threads.run(size, work)):
        assert {len(steps) for steps in epoch} == {-(-len(SEEDS) // 7)}
        counts = [[len(seeds) for _, seeds in steps] for steps in epoch]
        assert np.sum(counts, 0).tolist() == [n for n, _ in epoch[0]]
        assert sorted(node for steps in epoch for _, seeds in steps for node in seeds) == SEEDS.tolist()
        if batches == "balanced":  # so are the steps of all ranks together, none of which is empty or above the batch size
            steps = np.sum(counts, 0)
            assert all(max(each_part) - min(each_part) <= 1 for each_part in [*counts, steps]) and 0 < min(steps) and max(steps) <= 7


@pytest.mark.parametrize("counts", [(19, 19), (1, 1, 1), (5, 0, 5, 5), (7, 11, 13, 2)])
def test_balanced_steps_are_even_where_no_rank_has_as_many_seeds_as_steps(counts):
    """Each rank's odd seeds stand in other steps than the rank's before."""
    def work(comm):
        seeds = Balanced(comm, np.arange(counts[comm.rank]) * comm.size + comm.rank, 2, seed=1)
        part = [len(seeds(step)) for step in range(2 * seeds.n_steps)]
        return part, [seeds.count(step) for step in range(2 * seeds.n_steps)]

    by_rank = threads.run(len(counts), work)
    steps = np.sum([part for part, _ in by_rank], 0).tolist()
    assert all(reported == steps for _, reported in by_rank) and set(steps) <= {1, 2}
    assert sum(steps) == 2 * sum(counts) and all(max(part) - min(part) <= 1 for part, _ in by_rank)


def test_seeds_asked_for_twice_are_global_too():
    graph = whole()

    def work(comm):
        part = graph.shard(comm, parts(comm.size)) if comm.size > 1 else graph
        rows = np.flatnonzero(np.isin(part.dst_ids, [3, 4, 50]))
        loader = NeighborLoader(part, X[part.src_ids], None, np.repeat(rows, 3), fanouts=(2,), batch_size=2)
        return [(b.n_global, b.dst_ids[b.rows].tolist()) for b in loader]

    (one_rank,) = threads.run(1, work)
    for step, expected in zip(zip(*threads.run(3, work)), one_rank):
        assert {n for n, _ in step} == {expected[0]} and sorted(sum((seeds for _, seeds in step), [])) == sorted(expected[1])


@pytest.mark.parametrize("remote", ["exact", "local"])
def test_an_epoch_may_be_left_on_all_ranks_together(remote):
    """The threads ahead end, and the next loop goes on from there."""
    graph = whole()

    def work(comm):
        part = graph.shard(comm, "contiguous")
        seeds = np.isin(part.dst_ids, SEEDS)
        loader = NeighborLoader(part, X[part.src_ids], None, seeds, fanouts=(2, 2), batch_size=5, remote=remote, sample_ahead=3)
        for _ in (left := iter(loader)):
            break
        left.close()
        return loader.step, [b.step for b in loader]

    assert threads.run(3, work) == [(1, list(range(1, 9)))] * 3


def test_predictions_are_those_of_one_rank():
    graph = whole(True)

    def work(comm):
        part = graph.shard(comm, parts(3)) if comm.size > 1 else graph
        model = next(models(False)).eval()
        seeds = np.isin(part.dst_ids, SEEDS)
        loader = NeighborLoader(part, X[part.src_ids], None, seeds, fanouts=(2, 2, 2), batch_size=5)
        batch = loader.batch(np.arange(part.n_dst)[::-1], 7)
        assert batch.n_global == N
        return dict(zip(batch.dst_ids.tolist(), model(batch, batch.x).data))

    (one_rank,) = threads.run(1, work)
    result = {node: row for rank in threads.run(3, work) for node, row in rank.items()}
    for node in range(N):
        np.testing.assert_allclose(result[node], one_rank[node], rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("options, error, message", [
    ({"train": np.zeros(N, bool)}, DataError, "train: the training split is empty"),
    ({"remote": "other"}, ConfigError, "remote 'other' .*exact, local, HEC"),
    ({"batches": "other"}, ConfigError, "batches 'other' .*global, balanced"),
    ({"fanouts": (0,)}, ConfigError, "0 is neither"),
])  # fmt: skip
def test_what_all_ranks_refuse(options, error, message):
    graph = whole()

    def work(comm):
        part = graph.shard(comm, "contiguous")
        arguments = {"fanouts": (2,), "batch_size": 4, "train": np.isin(part.dst_ids, SEEDS), **options}
        arguments["train"] = arguments["train"][: part.n_dst]
        with pytest.raises(error, match=message):
            NeighborLoader(part, X[part.src_ids], None, arguments.pop("train"), **arguments)

    threads.run(2, work)


@pytest.mark.parametrize("wrong", [{"x": X[:1]}, {"train": [10**6]}, {"batch_size": 3}, {"remote": "local"}, {"seed": 8}])
def test_what_one_rank_gives_wrong_is_an_error_on_all(wrong):
    graph = whole()

    def work(comm):
        part = graph.shard(comm, "contiguous")
        arguments = {"x": X[part.src_ids], "train": np.isin(part.dst_ids, SEEDS), "fanouts": (2,), "batch_size": 4}
        arguments |= wrong if comm.rank == 1 else {}
        with pytest.raises(SarliteError):
            NeighborLoader(part, arguments.pop("x"), None, arguments.pop("train"), **arguments)

    threads.run(3, work)


def test_seeds_that_one_rank_gives_wrong_are_an_error_on_all():
    graph = whole()

    def work(comm):
        part = graph.shard(comm, "contiguous")
        seeds = np.isin(part.dst_ids, SEEDS)
        loader = NeighborLoader(part, X[part.src_ids], None, seeds, fanouts=(2, 2), batch_size=4)
        with pytest.raises((SarliteError, ShapeError), match="seeds"):
            loader.batch([-1] if comm.rank else [0])
        return loader.batch([0]).n_global

    assert threads.run(2, work) == [2, 2]


@pytest.mark.parametrize("ahead", [0, 2])
def test_a_failure_while_sampling_is_one_on_all_ranks(ahead, monkeypatch):
    graph = whole()

    def work(comm):
        part = graph.shard(comm, "contiguous")
        seeds = np.isin(part.dst_ids, SEEDS)
        loader = NeighborLoader(part, X[part.src_ids], None, seeds, fanouts=(2, 2), batch_size=4, sample_ahead=ahead)
        right, seen = loader.sampler._pick, []

        def fails(edges, rows, layer, step, numbering):
            if comm.rank == 1 and step == 2 and layer == 0:
                raise MemoryError("no room")
            return right(edges, rows, layer, step, numbering)

        loader.sampler._pick = fails
        with pytest.raises((MemoryError, SarliteError), match="no room"):
            seen.extend(batch.step for batch in loader)
        loader.sampler._pick = right
        return seen, [batch.step for batch in loader][:2]

    assert threads.run(3, work) == [([0, 1], [2, 3])] * 3


def test_the_order_of_the_products_is_the_same_on_all_ranks():
    """Ranks with other numbers of rows each: all ranks must fetch the same rows."""
    n = 2000
    graph, x = Graph.from_edges(*random_edges(n, 20000, seed=1)), values(3, n, 40)

    def work(comm):
        part = graph.shard(comm, np.minimum(np.arange(n) // 100, comm.size - 1) if comm.size > 1 else np.zeros(n, int))
        rng = nn.Random(0)
        model = SAGE(40, 3, layers=3, hidden=40, dropout=0.0, batch_norm=False, rng=rng, dtype=np.float64)
        loader = NeighborLoader(part, x[part.src_ids], np.zeros(part.n_dst, int), slice(None), fanouts=(3, 3, 3), batch_size=50)
        step = TrainingStep(model, optim.SGD(nn.flatten(model), 0.1), rng, part.comm)
        return [step(b.with_input(Tensor(b.x.data), b.rows, b.n_global)) for b, _ in zip(loader, range(3))]

    (one_rank,) = threads.run(1, work)
    for of_rank in threads.run(3, work):
        np.testing.assert_allclose(of_rank, one_rank, rtol=1e-9)


@pytest.mark.parametrize("remote", ["local", HEC(), HEC(features="cache", push="demand")])
def test_ranks_need_not_aggregate_equally_often_over_layers_without_peers(remote):
    """One rank computes A (X W) and another (A X) W. Later exchanges, as in an evaluation, still fit together."""
    graph = whole(False)

    def work(comm):
        part = graph.shard(comm, "random", prefetch=0)
        local = X[part.src_ids]
        for batch in NeighborLoader(part, local, None, slice(None), fanouts=(2,), batch_size=40, remote=remote):
            (g,) = batch.layers(1)
            g, h = g.enter(batch.x)
            for _ in range(1 + comm.rank):
                g.aggregate(fn.copy_src(h), "sum")
        return part.dst_ids, part.aggregate(fn.copy_src(Tensor(local)), "sum").data

    expected = graph.aggregate(fn.copy_src(Tensor(X)), "sum").data
    for ids, of_rank in threads.run(3, work):
        np.testing.assert_allclose(of_rank, expected[ids], rtol=1e-12)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("size, kind, remote, mode", [
    (1, "random", "exact", "sar"), (2, "random", "exact", "oneshot"), (3, "few", "exact", "sar"), (4, "random", "exact", "sa"),
    (2, "random", "hec", "sar"), (3, "few", "local", "sar"),
])  # fmt: skip
def test_evaluation_makes_batch_norms_moments_exact(size, kind, remote, mode):
    graph = whole()
    by_rank = threads.run(size, lambda comm: check_evaluation(graph.shard(comm, parts(comm.size, kind), mode=mode),
                                                            remote=REMOTES.get(remote, remote)))
    for ours in by_rank if remote == "exact" else ():
        for part, right in zip(ours, check_evaluation(graph)):
            np.testing.assert_allclose(part, right, rtol=1e-8)
    assert all((a == b).all() for part in by_rank for a, b in zip(part[1], by_rank[0][1]))
