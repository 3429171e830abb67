"""Mode cover: a cut edge goes by its source's row or within a partial sum, fewest rows in all (threads as ranks)."""

import itertools
import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sarlite import Graph, Tensor, fn
from sarlite.comm import threads
from sarlite.errors import PeerError
from sarlite.sar.cover import cover
from sarlite.sar.operators import Sum
from tests.helpers.exchanges import EDGES, HOLDERS, Recorder, X, shard
from tests.helpers.strategies import KINDS, SETTINGS, Edges, random_edges, values

pytestmark = pytest.mark.timeout(60)

SYMMETRIC = Edges(np.concatenate([EDGES.src, EDGES.dst]), np.concatenate([EDGES.dst, EDGES.src]), 50)
SPARSE = random_edges(50, 90, seed=3)
ROW = X.shape[1] * X.itemsize


def least(pairs):
    """The (rows in all, - sources) of the best choice of sources, whose other edges' destinations are covered; by trying all."""
    sources = {j for j, _ in pairs}
    return min((n + len({i for j, i in pairs if j not in chosen}), -n)
               for n in range(len(sources) + 1) for chosen in itertools.combinations(sources, n))


@SETTINGS
@given(st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), min_size=1, max_size=20))
def test_the_cover_is_the_smallest(pairs):
    src, dst = (np.unique(ends, return_inverse=True)[1] for ends in zip(*pairs))
    chosen = cover(src, dst)
    n = int(chosen.sum())
    assert (n + len(np.unique(dst[~chosen[src]])), -n) == least(list(zip(src.tolist(), dst.tolist())))


def matched(pairs):
    """How many edges of a bipartite graph can be chosen that share no end: as many as the smallest cover has rows (König)."""
    found = {}

    def augment(j, seen):
        for i in {i for k, i in pairs if k == j} - seen:
            seen.add(i)
            if i not in found or augment(found[i], seen):
                found[i] = j
                return True
        return False

    return sum(augment(j, set()) for j in {j for j, _ in pairs})


def _bytes(comm, graph_edges, owner, reducer, prefetch):
    graph = shard(comm, graph_edges, owner, mode="cover", prefetch=prefetch)
    x = Tensor(X[graph.node_ids], requires_grad=True)
    graph.peer_scale(reducer)  # whose fetch is counted as setup
    out = graph.aggregate(fn.copy_src(x), reducer)
    out.backward(np.ones_like(out.data))
    return dict(graph.profile.received_bytes), dict(graph.profile.sent_bytes), graph.profile.peak_remote_buffers


@pytest.mark.parametrize("prefetch", [0, 1])
@pytest.mark.parametrize("n_ranks, graph_edges, reducer", [(2, EDGES, "sum"), (4, SPARSE, "mean"), (4, SYMMETRIC, "sym")])
def test_bytes(n_ranks, graph_edges, reducer, prefetch):
    """As many rows as the cover of each pair of parts, each way; never more than rows alone or sums alone."""
    owner = np.random.default_rng(n_ranks).integers(0, n_ranks, 50)
    ranks = threads.run(n_ranks, _bytes, graph_edges, owner, reducer, prefetch)
    for p, (received, sent, peak) in enumerate(ranks):
        comes = goes = by_rows = by_sums = 0
        for q in set(range(n_ranks)) - {p}:
            for to, of in ((p, q), (q, p)):
                pairs = {(j, i) for j, i in zip(*graph_edges[:2]) if (owner[i], owner[j]) == (to, of)}
                comes, goes = comes + (to == p) * matched(pairs), goes + (of == p) * matched(pairs)
                by_rows, by_sums = by_rows + (to == p) * len({j for j, _ in pairs}), by_sums + (to == p) * len({i for _, i in pairs})
        assert received["forward_fetch"] + received["forward_push"] == comes * ROW <= min(by_rows, by_sums) * ROW
        assert sent["forward_fetch"] + sent["forward_push"] == goes * ROW
        assert received["backward_push"] == sent["forward_fetch"] and received["backward_fetch"] == sent["forward_push"]
        assert sent["backward_push"] == received["forward_fetch"] and sent["backward_fetch"] == received["forward_push"]
        assert peak <= 1 + prefetch
    assert any(received["forward_push"] for received, *_ in ranks) and any(received["forward_fetch"] for received, *_ in ranks)


@pytest.mark.parametrize("kind, way", [("star in", "push"), ("star out", "fetch")])
def test_a_star_is_one_row(kind, way):
    """Of a node on rank 0 with all others on rank 1, in or out."""
    star = KINDS[kind]
    owner = (np.arange(12) != {"star in": 0, "star out": 11}[kind]).astype(int)
    ranks = threads.run(2, _bytes, star, owner, "sum", 0)
    found = {name: n for name, n in (ranks[0][0] if way == "push" else ranks[1][0]).items() if name.startswith("forward")}
    assert found == {"forward_push": ROW * (way == "push"), "forward_fetch": ROW * (way == "fetch")} or (
        way == "fetch" and found == {"forward_fetch": ROW})  # there are no sums


@pytest.mark.parametrize("graph_edges", [*KINDS.values(), SPARSE, EDGES])
def test_as_one_rank(graph_edges):
    """On four ranks, of which the last is empty; of small graphs more are."""
    n, whole = graph_edges.n_nodes, Graph.from_edges(*graph_edges)
    x, weight = values(1, n, 3), values(2, 3, 5)

    def run(g):
        leaf = Tensor(x[g.node_ids], requires_grad=True)
        outs = [g.aggregate(fn.copy_src(leaf), reducer) for reducer in ("sum", "mean", "sym")]
        out = sum((k + 1) * out for k, out in enumerate(outs)) @ weight + g.aggregate(fn.linear(leaf, weight), "mean")
        out.backward(np.cos(out.data))
        return out.data, leaf.grad

    expected, options = run(whole), {"mode": "cover", "prefetch": n % 2}
    for own, results in threads.run(4, lambda comm: (graph := whole.shard(comm, np.arange(n) % 3, **options), run(graph))):
        for a, b in zip(results, expected):
            np.testing.assert_allclose(a, b[own.node_ids], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("reducer", ["sum", "mean", "sym"])
def test_bipartite_graphs(reducer):
    pairs, x = random_edges(30, 120, seed=5, n_dst=8), values(1, 30, 3)
    whole = Graph.from_edges(*pairs[:2], n_src=30, n_dst=8)

    def run(g):
        leaf = Tensor(x[g.src_ids], requires_grad=True)
        out = g.aggregate(fn.copy_src(leaf), reducer)
        out.backward(np.cos(out.data))
        return out.data, leaf.grad

    out, grad = run(whole)
    options = {"src_parts": "random", "mode": "cover"}
    for own, found in threads.run(3, lambda comm: (graph := whole.shard(comm, "random", **options), run(graph))):
        np.testing.assert_allclose(found[0], out[own.dst_ids], rtol=1e-12, atol=1e-12)
        np.testing.assert_allclose(found[1], grad[own.src_ids], rtol=1e-12, atol=1e-12)


def test_what_is_kept():
    """The local block serves both plans, and the sums of constant rows travel once."""

    def work(comm):
        graph = shard(comm, SPARSE, mode="cover")
        assert graph.schedule.cover.plan.local is graph.plan.local
        x = Tensor(X[graph.node_ids], constant=True)
        first = graph.aggregate(fn.copy_src(x), "mean")
        before = graph.profile.received_bytes.copy()
        assert graph.aggregate(fn.copy_src(x), "mean") is first and graph.profile.received_bytes == before and before["forward_push"]

    threads.run(3, work)


@pytest.mark.parametrize("name", ["max", "attend", "case 1", "case 2"])
def test_other_messages_go_as_in_sar(name):
    def bytes_of(comm, mode):
        graph = shard(comm, mode=mode, prefetch=0)
        out = HOLDERS[name](graph, Tensor(X[graph.node_ids], requires_grad=True), lambda graph, message: message)
        out.backward(np.ones_like(out.data))
        return graph.profile.received_bytes

    assert threads.run(3, bytes_of, "cover") == threads.run(3, bytes_of, "sar")


# ---- failures


@pytest.mark.parametrize("prefetch", [0, 1])
@pytest.mark.parametrize("name, block", [("sum_for_peers", 1), ("sum_for_peers", 2), ("backward", 2)])
def test_after_a_failure_the_graph_refuses_until_it_recovers(name, block, prefetch, monkeypatch):
    """While partial sums are made and sent, or gradients pushed."""
    whole, calls, method = Graph.from_edges(*SPARSE), threading.local(), getattr(Sum, name)

    def broken(*args):
        calls.left = getattr(calls, "left", 0) - 1
        if calls.left == 0:
            raise KeyError("the cause")
        return method(*args)

    def run(g):
        x = Tensor(X[g.node_ids], requires_grad=True)
        out = g.aggregate(fn.copy_src(x), "mean")
        out.backward(np.cos(out.data))
        return out.data, x.grad

    monkeypatch.setattr(Sum, name, broken)
    expected = run(whole)

    def work(comm):
        graph = shard(comm, SPARSE, mode="cover", prefetch=prefetch)
        for _ in range(2):
            calls.left = block
            with pytest.raises(KeyError, match="the cause"):
                run(graph)
            with pytest.raises(PeerError, match="recover"):
                run(graph)
            graph.recover()
            for found, all_rows in zip(run(graph), expected):
                np.testing.assert_allclose(found, all_rows[graph.node_ids], rtol=1e-12, atol=1e-12)

    threads.run(3, work)


@pytest.mark.parametrize("fail_at", [1, 3])
@pytest.mark.parametrize("which", ["fetch_comm", "push_comm"])
def test_a_transfer_that_fails_ends_all(which, fail_at):
    """The first and third of the two that a rank sends forward, by rows and by sums, and of the two backward."""
    def work(comm):
        graph = shard(comm, SPARSE, mode="cover", prefetch=1)
        if comm.rank == 1:
            way = graph.schedule.transport
            setattr(way, which, Recorder(getattr(way, which), [], fail_at))
        x = Tensor(X[graph.node_ids], requires_grad=True)
        for _ in range(2):
            out = graph.aggregate(fn.copy_src(x), "sum")
            out.backward(np.ones_like(out.data))

    with pytest.raises(KeyError, match="the network is gone"):
        threads.run(3, work)
