"""A failure of a rank of a grid that divides columns: every rank ends, and graphs recover (threads as ranks)."""


import threading

import numpy as np
import pytest

from sarlite import Graph, Tensor, fn
from sarlite.comm import threads
from sarlite.errors import PeerError
from sarlite.sar import columns
from sarlite.sar.operators.sums import Sum
from tests.helpers.exchanges import EDGES, X, attend, fail, results, shard

pytestmark = pytest.mark.timeout(60)


@pytest.fixture
def breaking(monkeypatch):
    """Let ranks fail: `breaking[rank]` is (place, phase), and is taken when that rank fails there."""
    wanted = {}

    def breaks(owner, method, place, phase):
        before = getattr(owner, method)

        def broken(self, *args):
            rank = threading.current_thread().name.removeprefix("rank ")
            if wanted.get(rank) == (place, phase or self.phase):
                del wanted[rank]
                raise KeyError("the cause")
            return before(self, *args)

        monkeypatch.setattr(owner, method, broken)

    breaks(columns.AllToAll, "complete", "turn", None)  # its messages have been started
    breaks(Sum, "forward", "inside", "forward")
    breaks(Sum, "backward", "inside", "backward")
    return wanted


def _summed(graph):
    out = graph.aggregate(fn.copy_src(Tensor(X[graph.node_ids], requires_grad=True)), "sum")
    out.backward(np.ones_like(out.data))


WHERE = [(place, phase) for place in ("turn", "inside") for phase in ("forward", "backward")]


@pytest.mark.parametrize("where", WHERE)
@pytest.mark.parametrize("n_columns", [2, 4])
def test_a_failure_on_one_rank_ends_all(n_columns, where, breaking):
    """In an exchange, or in what is computed between two; nobody waits for ever."""
    breaking["1"] = where
    with pytest.raises(KeyError, match="the cause"):
        threads.run(4, lambda comm: _summed(shard(comm, columns=n_columns)))


@pytest.mark.parametrize("where", [*WHERE, ("mixed", "forward"), ("mixed", "backward")])
@pytest.mark.parametrize("n_columns", [2, 4])
def test_after_a_failure_the_graph_refuses_until_it_recovers(n_columns, where, breaking):
    expected = results(Graph.from_edges(*EDGES))

    def work(comm):
        graph = shard(comm, columns=n_columns)
        graph.schedule  # noqa: B018 (so that custom messages fail and recover too)
        for _ in range(2):
            place = ("turn" if comm.rank < n_columns // 2 else "inside") if where[0] == "mixed" else where[0]
            breaking[str(comm.rank)] = place, where[1]
            with pytest.raises(KeyError, match="the cause"):
                _summed(graph)
            for action in (attend, lambda g, x: g.aggregate(lambda src, dst, edge: src["x"], "sum", src={"x": x})):
                with pytest.raises(PeerError, match="KeyError: 'the cause'.*recover"):
                    action(graph, Tensor(X[graph.node_ids]))
            graph.recover()
            for found, whole in zip(results(graph), expected):
                np.testing.assert_allclose(found, whole[graph.node_ids], rtol=1e-12, atol=1e-12)

    threads.run(4, work)


def test_recovering_drops_what_is_under_way_in_every_part_of_the_grid():
    def work(comm):
        graph = shard(comm, columns=2)
        ways = graph.grid.transport, graph.grid.graph.schedule.transport
        late = [channel.start_recv(np.empty(1), 1 - channel.rank) for way in ways for channel in (way.fetch_comm, way.push_comm)]
        graph.recover()
        for request in late:
            with pytest.raises(PeerError, match="cancelled"):
                request.wait()

    threads.run(4, work)


def test_a_failed_message_is_a_failure_of_the_grid():
    """Custom messages and columns refuse together, and recover together."""

    def work(comm):
        graph = shard(comm, columns=2)
        fail(graph, "forward", 1)
        with pytest.raises(PeerError, match="recover"):
            attend(graph, Tensor(X[graph.node_ids]))
        graph.recover()
        attend(graph, Tensor(X[graph.node_ids]))

    threads.run(4, work)
