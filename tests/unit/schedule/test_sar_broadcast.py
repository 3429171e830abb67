"""Mode broadcast (MG-GCN 4.1, 4.3): stages, bytes, buffers, linear gradients over the reversed edges, failures (threads as ranks)."""


import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sarlite import Graph, Tensor, fn
from sarlite.comm import threads
from sarlite.errors import PeerError
from sarlite.schedule import broadcast_transport
from sarlite.schedule.reverse import is_symmetric
from tests.helpers.comm.exchanges import COMPLETE, EDGES, HOLDERS, X, attend, fails_at, shard, slowly
from tests.helpers.graph.strategies import SETTINGS, Edges, edges, parts, random_edges

pytestmark = pytest.mark.timeout(60)

SYMMETRIC = Edges(np.concatenate([EDGES.src, EDGES.dst]), np.concatenate([EDGES.dst, EDGES.src]), 50)


@pytest.mark.parametrize("prefetch", [0, 1])
@pytest.mark.parametrize("graph_edges, symmetric", [(EDGES, False), (SYMMETRIC, True), (COMPLETE, True)])
@pytest.mark.parametrize("reducer", ["sum", "mean", "sym"])
def test_bytes_of_linear_messages(reducer, graph_edges, symmetric, prefetch):
    """Each way takes (n - n_p) f, and nothing is pushed; the plan serves both directions if the structure is symmetric."""

    def work(comm):
        graph = shard(comm, graph_edges, mode="broadcast", prefetch=prefetch)
        assert (graph.schedule.reverse.plan is graph.plan) == symmetric
        x = Tensor(X[graph.node_ids], requires_grad=True)
        graph.scales(reducer)  # fetching the scale counts as setup
        out = graph.aggregate(fn.copy_src(x), reducer)
        out.backward(np.ones_like(out.data))
        received, sent, others = graph.profile.received_bytes, graph.profile.sent_bytes, 50 - graph.n_dst
        assert received["forward_fetch"] == received["backward_fetch"] == others * 4 * 8
        assert sent["forward_fetch"] == sent["backward_fetch"] == (comm.size - 1) * graph.n_dst * 4 * 8
        assert received["backward_push"] == sent["backward_push"] == 0

    threads.run(3, work)


def test_bytes_of_other_messages():
    """Attention broadcasts forward; backward it fetches the needed rows by peer, and pushes."""

    def work(comm):
        graph = shard(comm, random_edges(50, 60, seed=1), mode="broadcast", prefetch=0)
        out = attend(graph, Tensor(X[graph.node_ids], requires_grad=True))
        out.backward(np.ones_like(out.data))
        received, row = graph.profile.received_bytes, (4 + 2) * 8
        assert received["forward_fetch"] == (50 - graph.n_dst) * row
        assert 0 < received["backward_fetch"] == graph.plan.n_halo * row < received["forward_fetch"]
        assert received["backward_push"] > 0

    threads.run(3, work)


@pytest.mark.parametrize("prefetch", [0, 1, 2])
@pytest.mark.parametrize("name", HOLDERS)
def test_live_remote_buffers(name, prefetch):
    bound = 1 + prefetch

    def work(comm):
        graph = shard(comm, mode="broadcast", prefetch=prefetch)
        out = HOLDERS[name](graph, Tensor(X[graph.node_ids], requires_grad=True), slowly(bound))
        forward = graph.profile.peak_remote_buffers
        out.backward(np.ones_like(out.data))
        return forward, graph.profile.peak_remote_buffers, graph.profile.live_remote_buffers

    ranks = threads.run(4, work)
    assert all(1 <= forward <= bound and peak <= bound and live == 0 for forward, peak, live in ranks)
    if name.startswith("case"):
        assert max(forward for forward, *_ in ranks) == bound


class Roots:
    """A communicator that records the roots of its broadcasts."""

    def __init__(self, comm, log):
        self._comm, self._log = comm, log

    def __getattr__(self, name):
        return getattr(self._comm, name)

    def start_broadcast(self, array, root):
        self._log.append(root)
        return self._comm.start_broadcast(array, root)


@pytest.mark.parametrize("prefetch", [0, 1])
def test_every_rank_takes_the_stages_in_the_order_of_ranks(prefetch, monkeypatch):
    logs, init = {}, broadcast_transport.Broadcasts.__init__

    def recorded(self, *args):
        init(self, *args)
        self.comm = Roots(self.comm, logs.setdefault(self.comm.rank, []))

    monkeypatch.setattr(broadcast_transport.Broadcasts, "__init__", recorded)

    def work(comm):
        graph = shard(comm, mode="broadcast", prefetch=prefetch)
        x = Tensor(X[graph.node_ids], requires_grad=True)
        out = graph.aggregate(fn.copy_src(x), "sum")
        out.backward(np.ones_like(out.data))
        attend(graph, x.detach())

    threads.run(4, work)
    assert logs == {rank: [*range(4), *range(4), *np.repeat(range(4), 2)] for rank in range(4)}


def test_without_prefetch_a_rank_computes_its_own_tile_in_its_own_stage():
    """Else a late rank would let the others wait for the tile that it computes first: N + 1 tiles in place of N."""
    def work(comm):
        graph, sources = shard(comm, mode="broadcast", prefetch=0), []
        graph.schedule.run((X[graph.node_ids],), lambda block, rows: sources.append(block.source))
        return sources

    assert threads.run(4, work) == [list(range(4))] * 4


@SETTINGS
@given(n=st.integers(0, 30), at_once=st.sampled_from([1, 24, 48, 120]), data=st.data())
def test_needed_rows_are_brought_to_the_front(n, at_once, data):
    """The rows may be in any order, are moved in place if they ascend, and may be moved in small groups."""
    rows = np.arange(3.0 * n).reshape(-1, 3)
    needed = np.array(data.draw(st.lists(st.integers(0, n - 1), unique=True)) if n else [], np.int64)
    for chosen in (needed, np.sort(needed), slice(n // 3, n)):
        expected = rows[chosen].copy()
        np.testing.assert_array_equal(broadcast_transport.columns_of(rows.copy(), chosen, at_once), expected)


@SETTINGS
@given(graph=edges(), data=st.data())
def test_sums_over_any_graph_and_division(graph, data):
    n_ranks, owner = data.draw(parts(graph.n_nodes))
    x = np.arange(3.0 * graph.n_nodes).reshape(-1, 3)
    whole = Graph.from_edges(*graph)

    def run(g):
        leaf = Tensor(x[g.node_ids], requires_grad=True)
        out = g.aggregate(fn.copy_src(leaf), "mean")
        out.backward(out.data + 1)
        return out.data, leaf.grad

    ranks, expected = threads.run(n_ranks, lambda comm: (part := whole.shard(comm, owner, mode="broadcast"), run(part))), run(whole)
    for part, results in ranks:
        for a, b in zip(results, expected):
            np.testing.assert_allclose(a, b[part.node_ids], rtol=1e-12, atol=1e-12)


@SETTINGS
@given(graph=edges(), both=st.booleans(), data=st.data())
def test_is_symmetric_finds_on_ranks_what_the_edges_say(graph, both, data):
    if both:
        graph = Edges(np.concatenate([graph.src, graph.dst]), np.concatenate([graph.dst, graph.src]), graph.n_nodes)
    forward, backward = (sorted(zip(a.tolist(), b.tolist())) for a, b in ((graph.src, graph.dst), (graph.dst, graph.src)))
    n_ranks, owner = data.draw(parts(graph.n_nodes))

    def work(comm):
        part = Graph.from_edges(*graph).shard(comm, owner)
        return is_symmetric(comm, part.in_edges(), part.n_src)

    assert set(threads.run(n_ranks, work)) == {forward == backward}


@pytest.mark.parametrize("prefetch", [0, 1, 2])
def test_after_a_failure_on_all_ranks(prefetch):
    """The thread ahead takes part in the other stages, so `recover` finds every rank in step."""
    expected = Graph.from_edges(*EDGES).aggregate(fn.copy_src(X), "sum").data

    def work(comm):
        graph = shard(comm, mode="broadcast", prefetch=prefetch)
        for failing in range(1, 4):  # the ranks have reached different stages
            with pytest.raises(KeyError, match="the cause"):
                graph.aggregate(fails_at(failing), "sum", src={"x": X[graph.node_ids]})
            with pytest.raises(PeerError, match="recover"):
                graph.aggregate(fn.copy_src(X[graph.node_ids]), "sum")
            graph.recover()
            sums = graph.aggregate(fn.copy_src(X[graph.node_ids]), "sum").data
            np.testing.assert_allclose(sums, expected[graph.node_ids], rtol=1e-12)

    threads.run(3, work)


@pytest.mark.parametrize("prefetch", [0, 1])
@pytest.mark.parametrize("stage", [0, 2])
def test_a_broadcast_that_fails_is_raised(stage, prefetch, monkeypatch):
    start = broadcast_transport.Broadcasts.start

    def broken(self, at):
        finish = start(self, at)

        def fails():
            finish()
            raise OSError("the cause")

        return fails if at.arrivals[0].source == stage and self.comm.rank == 1 else finish

    monkeypatch.setattr(broadcast_transport.Broadcasts, "start", broken)

    def work(comm):
        graph = shard(comm, mode="broadcast", prefetch=prefetch)
        graph.aggregate(fn.copy_src(X[graph.node_ids]), "sum")

    with pytest.raises(OSError, match="the cause"):
        threads.run(3, work)
