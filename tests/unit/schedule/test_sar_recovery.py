"""After `recover` no value is used that a rank kept before it, as a rank that failed would not have kept it."""

import threading

import numpy as np
import pytest

from sarlite import HeteroGraph, Tensor, fn
from sarlite.comm import threads
from sarlite.errors import PeerError
from sarlite.graph import hetero, relation_fetches
from tests.helpers.comm.exchanges import EDGES, X, shard
from tests.helpers.comm.failing_communicators import Fault, Faulty
from tests.helpers.graph import relational_graphs
from tests.helpers.graph.strategies import values

pytestmark = pytest.mark.timeout(30)
WEIGHTS = values(3, EDGES.n_edges) ** 2


def weighted(comm):
    graph = shard(comm, prefetch=0)
    return graph.with_edge_values(WEIGHTS[graph.edge_ids])


def once(graph, make):
    """Return the value that is made at a graph's first use."""
    if not hasattr(graph, "made"):
        graph.made = make()
    return graph.made


def relations(graph):
    ids = graph.node_ids
    x = once(graph, lambda: {name: Tensor(rows[ids[name]], constant=True) for name, rows in relational_graphs.X.items()})
    messages = {r: fn.copy_src(x[r[0]]) for r in (relational_graphs.CITES, relational_graphs.WRITES)}
    return graph.aggregate(messages, "mean")["paper"].data


def sums(graph):
    return graph.aggregate(fn.copy_src(once(graph, lambda: Tensor(X[graph.node_ids], constant=True))), "sum").data


KEPT = {
    "sums of constant rows": (lambda comm: shard(comm, prefetch=0), sums),
    "scales": (lambda comm: shard(comm, prefetch=0), lambda g: g.aggregate(fn.copy_src(X[g.node_ids]), "sym").data),
    "normalised weights": (weighted, lambda g: g.aggregate(fn.copy_src(X[g.node_ids]), "sym").data),
    "relations": (lambda comm: relational_graphs.make(comm, "random", prefetch=0), relations),
}


@pytest.mark.parametrize("what", KEPT)
def test_what_one_rank_kept_is_void(what):
    """Rank 1 fails at one of its messages, after the message has come, so other ranks may have finished."""
    make, use = KEPT[what]
    alarm = threading.Event()

    def work(comm):
        faulty, finished = Faulty(comm, alarm), 0
        graph = make(faulty)
        faulty.arm()
        expected, n_points = use(graph), comm.bcast(faulty.points, 1)
        for point in sorted({*range(1, n_points, 1 + n_points // 12), n_points - 1, n_points}):
            graph = make(faulty)
            comm.barrier()  # all ranks have computed their values
            faulty.arm(point if comm.rank == 1 else None)
            try:
                use(graph)
                finished += 1
            except (Fault, PeerError):
                pass
            faulty.settle()
            graph.recover()
            np.testing.assert_array_equal(use(graph), expected)
        return finished

    finished = threads.run(2, work)
    assert max(finished) > min(finished)  # some rank had kept a value that another one had not


def test_relations_recover_also_where_their_exchanges_are_forgotten():
    def work(comm):
        graph = relational_graphs.make(comm, "random")
        x = relational_graphs.X["paper"][graph.node_ids["paper"]]
        cites = lambda: graph.aggregate({relational_graphs.CITES: fn.copy_src(x)}, "sum")["paper"].data  # noqa: E731
        expected = cites()
        with pytest.raises(KeyError, match="the cause"):
            graph.aggregate({relational_graphs.CITES: fails}, "sum")
        graph.forget()
        with pytest.raises(PeerError, match="recover"):
            cites()
        graph.recover()
        np.testing.assert_allclose(cites(), expected, rtol=1e-12)

    def fails(src, dst, edge):
        if len(set(edge.ids)) > 1:
            raise KeyError("the cause")
        return Tensor(np.ones((len(edge.ids), 1)))

    threads.run(2, work)


def test_a_failure_where_something_is_found_together_is_noted(monkeypatch):
    """A rank that runs out of memory lacks a value that the other ranks have."""
    broken = {1}

    def make_fetch(parts, *arguments):
        fetch = relation_fetches.make_fetch(parts, *arguments)
        if parts.comm.rank in broken:
            raise MemoryError("no room")
        return fetch

    monkeypatch.setattr(hetero, "make_fetch", make_fetch)

    def work(comm):
        graph = HeteroGraph.from_edges(relational_graphs.EDGES, relational_graphs.N_NODES, comm=comm, parts="random")
        if comm.rank in broken:
            with pytest.raises(MemoryError):
                graph.prepare([relational_graphs.CITES])
            with pytest.raises(PeerError, match=r"no room.*recover"):
                graph.prepare([relational_graphs.CITES])
            broken.clear()
        else:
            graph.prepare([relational_graphs.CITES])
        graph.recover()
        assert relations(graph).shape[1] == relational_graphs.N_IN

    threads.run(2, work)


class Held:
    """A profile that delays the count of remote buffers, which holds a thread that fetches past its last check."""

    def __init__(self, profile, go):
        self._profile, self._go, self.reached = profile, go, threading.Event()

    def __getattr__(self, name):
        return getattr(self._profile, name)

    def hold(self, *args):
        self._profile.hold(*args)
        if threading.current_thread().name == "sarlite-prefetch":
            self.reached.set()
            self._go.wait(10)


def test_no_prefetch_thread_outlives_recover():
    """A thread past its check posts no message after the failure, and `recover` waits for its end."""

    def work(comm):
        graph, go = shard(comm, prefetch=1), threading.Event()
        way = graph.schedule.transport
        profile = way.profile = Held(way.profile, go)
        started, start = [], way.fetch_comm.start_recv
        way.fetch_comm.start_recv = lambda *args: started.append(args) or start(*args)

        def message(src, dst, edge):
            if len(set(edge.ids)) > 1 and profile.reached.wait(10):
                raise KeyError("the cause")
            return src["x"] * 2.0

        with pytest.raises(KeyError, match="the cause"):
            graph.aggregate(message, "sum", src={"x": X[graph.node_ids]})
        fetcher = way.state.fetching[0]._thread
        threading.Timer(0.2, go.set).start()
        graph.recover()
        assert not fetcher.is_alive() and not started

    threads.run(2, work)
