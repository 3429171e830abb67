"""The number of peers that a piece takes at once changes no result; more peers mean fewer rounds and more rows."""

import numpy as np
import pytest

from sarlite import Graph, HeteroGraph, Tensor, fn
from sarlite.comm import threads
from sarlite.errors import ConfigError
from tests.helpers.comm.exchanges import EDGES, HOLDERS, X, shard, slowly
from tests.helpers.graph.strategies import values

pytestmark = pytest.mark.timeout(60)

WEIGHTS = values(5, len(EDGES.src))
AGGREGATES = {
    **{name: lambda g, x, holder=holder: holder(g, x, lambda graph, out: out) for name, holder in HOLDERS.items()},
    "weighted": lambda g, x: g.aggregate(fn.mul_edge(x, WEIGHTS[g.edge_ids]), "sum"),
    "sym": lambda g, x: g.aggregate(fn.copy_src(x), "sym"),
    "min": lambda g, x: g.aggregate(fn.copy_src(x), "min"),
    "edges": lambda g, x: g.aggregate(lambda s, d, e: s["x"] * e["w"] + d["x"], "mean", {"x": x},
                                      {"x": g.dst(x)}, {"w": WEIGHTS[g.edge_ids, None]}),
}


def run(graph, aggregate):
    """Return the output, the gradient of x, and the ids of the rows."""
    x = Tensor(X[graph.node_ids], requires_grad=True)
    out = aggregate(graph, x)
    out.backward(values(3, 50, *out.shape[1:])[graph.node_ids])
    return out.data, x.grad, graph.node_ids


@pytest.mark.sampled(42)
@pytest.mark.parametrize("mode", ["sar", "sa"])
@pytest.mark.parametrize("prefetch", [0, 1])
@pytest.mark.parametrize("peers_at_once", [2, 3, 4, 9])
@pytest.mark.parametrize("name", AGGREGATES)
def test_results_are_one_ranks(name, peers_at_once, prefetch, mode):
    out, d_x, _ = run(Graph.from_edges(*EDGES), AGGREGATES[name])

    def work(comm):
        return run(shard(comm, mode=mode, prefetch=prefetch, peers_at_once=peers_at_once), AGGREGATES[name])

    for part_out, part_d_x, ids in threads.run(5, work):
        np.testing.assert_allclose(part_out, out[ids], rtol=1e-12, atol=1e-13)
        np.testing.assert_allclose(part_d_x, d_x[ids], rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("n_ranks", [2, 5, 8])
@pytest.mark.parametrize("peers_at_once", [1, 2, 4, 7])
def test_rounds_fall_and_rows_rise(n_ranks, peers_at_once):
    """A forward pass takes ceil((N - 1) / k) rounds, and holds the rows of at most (1 + prefetch) k peers."""
    n_pieces = -(-(n_ranks - 1) // peers_at_once)

    def work(comm):
        graph = shard(comm, prefetch=1, peers_at_once=peers_at_once)
        HOLDERS["case 1"](graph, Tensor(X[graph.node_ids]), slowly(1))
        return len(graph.plan.forward) - 1, graph.profile.peak_remote_buffers

    for rounds, peak in threads.run(n_ranks, work):
        assert rounds == n_pieces
        assert 1 <= peak <= min(2 * peers_at_once, n_ranks - 1)


def test_oneshot_is_all_peers_at_once():
    def work(comm):
        plans = [shard(comm, mode=mode, peers_at_once=k).plan for mode, k in (("oneshot", None), ("sa", 3))]
        return [[(piece.own, [arrival.source for arrival in piece.arrivals]) for piece in plan.forward] for plan in plans]

    for oneshot, at_once in threads.run(4, work):
        assert oneshot == at_once
        assert [len(sources) for _, sources in oneshot] == [0, 3]


def test_relations_take_several_peers_at_once():
    edges, n_nodes = {("a", "r", "a"): (EDGES.src, EDGES.dst), ("a", "s", "a"): (EDGES.dst, EDGES.src)}, {"a": 50}

    def work(comm, **options):
        graph = HeteroGraph.from_edges(edges, n_nodes, comm=comm, parts="random", **options)
        ids = graph.node_ids["a"]
        x = Tensor(X[ids], requires_grad=True)
        out = graph.aggregate({relation: fn.copy_src(x) for relation in edges}, "sum")["a"]
        out.backward(values(3, 50, 4)[ids])
        return out.data, x.grad, ids

    ((out, d_x, _),) = threads.run(1, work)
    for part_out, part_d_x, ids in threads.run(4, lambda comm: work(comm, peers_at_once=2)):
        np.testing.assert_allclose(part_out, out[ids], rtol=1e-12)
        np.testing.assert_allclose(part_d_x, d_x[ids], rtol=1e-12)


@pytest.mark.parametrize("options, words", [
    ({"peers_at_once": 0}, "peers_at_once is 0, but must be a whole number"),
    ({"peers_at_once": True}, "peers_at_once is True, but must be a whole number"),
    ({"peers_at_once": 2, "mode": "broadcast"}, "peers_at_once is 2, but mode broadcast fetches"),
])  # fmt: skip
def test_what_cannot_be_is_refused(options, words):
    def work(comm):
        with pytest.raises(ConfigError, match=words):
            shard(comm, **options)

    threads.run(2, work)
