"""Order of blocks, pushes and messages, and the work of the prefetch thread (threads as ranks)."""

import threading
import time

import numpy as np
import pytest

from sarlite import Tensor, fn, kernels
from sarlite.comm import threads
from sarlite.operators.aggregate import aggregate
from sarlite.schedule import transport
from tests.helpers.comm.exchanges import COMPLETE, MODES, Noting, Recorder, Waiting, X, attend, shard
from tests.helpers.graph.strategies import random_edges

pytestmark = pytest.mark.timeout(60)

SPARSE = random_edges(50, 70, seed=8)  # parts need some rows of each other, and these are not consecutive


# ---- the order of blocks and pushes


def order_of(n_ranks, case2, **options):
    """Return rank 1's order of blocks and pushes in backward.

    With it come each block's place in the plan beside its edges, and the requests that were under way.
    """

    def work(comm):
        graph, log, started = shard(comm, **options), [], []
        way = graph.schedule.transport
        way.push_comm, way.fetch_comm = Waiting(way.push_comm, log, started), Waiting(way.fetch_comm, [], started)
        under_way = []
        operator = Noting(graph.n_dst, case2, log, lambda: under_way.append(len(started)))
        out = aggregate(graph.schedule, operator, [Tensor(X[graph.node_ids], requires_grad=True)])
        log.clear()
        out.backward(np.ones_like(out.data))
        assert not started
        return graph.plan, log, under_way

    return threads.run(n_ranks, work)[1]


def remote_pieces(plan):
    """Return the log of the backward pieces that receive rows: the block of each piece, then its pushes."""
    peers = [(piece.block, piece.arrivals[0].source) for piece in plan.backward if piece.arrivals]
    return [entry for block, source in peers for entry in (("backward", block.n_edges), ("push", source))]


@pytest.mark.parametrize("prefetch", [0, 1, 2])
@pytest.mark.parametrize("n_ranks", [2, 3, 4])
def test_every_push_has_a_block_to_hide_behind(n_ranks, prefetch):
    """In case 1 each peer's gradients travel while the next block is computed, and the last ones during the local block."""
    plan, log, under_way = order_of(n_ranks, False, prefetch=prefetch)
    remote = remote_pieces(plan)
    assert log == [*remote, ("backward", plan.local.n_edges)]
    assert prefetch or not any(under_way)


@pytest.mark.parametrize("prefetch", [1, 2])
@pytest.mark.parametrize("n_ranks", [2, 3, 4])
def test_the_local_block_hides_the_first_fetch_and_the_last_push(n_ranks, prefetch):
    """In case 2 half of the local block comes before the remote blocks, and half after them."""
    plan, log, _ = order_of(n_ranks, True, prefetch=prefetch)
    remote = remote_pieces(plan)
    first, last = (("backward", half.n_edges) for half in plan.local.halves)
    assert log == [first, *remote, last]
    assert abs(first[1] - last[1]) <= np.diff(plan.local.indptr).max() and first[1] + last[1] == plan.local.n_edges


@pytest.mark.parametrize("n_ranks", [2, 3])
def test_without_prefetch_nothing_travels_while_a_block_is_computed(n_ranks):
    plan, log, under_way = order_of(n_ranks, True, prefetch=0)
    assert [entry for entry in log if entry[0] == "backward"] == [("backward", block.n_edges) for block in (*plan.blocks[1:], plan.local)]
    assert len(under_way) == len(plan.blocks) and not any(under_way)


# ---- messages


@pytest.mark.parametrize("edges", [SPARSE, COMPLETE])
@pytest.mark.parametrize("mode", MODES)
def test_one_message_a_peer_and_direction(mode, edges):
    """Consecutive rows are sent as they are, in one message for each array."""

    def work(comm):
        graph, fetches, pushes = shard(comm, edges, mode=mode), [], []
        way, arrivals = graph.schedule.transport, graph.plan.exchanges
        way.fetch_comm, way.push_comm = Recorder(way.fetch_comm, fetches), Recorder(way.push_comm, pushes)
        out = attend(graph, Tensor(X[graph.node_ids], requires_grad=True))
        once = [arrival.target for arrival in arrivals for _ in range(1 + isinstance(arrival.send_rows, slice))]
        assert [peer for peer, _ in fetches] == once and not pushes
        out.backward(np.ones_like(out.data))
        assert len(fetches) == len(once) * (2 if mode == "sar" else 1)
        assert [peer for peer, _ in pushes] == [arrival.source for arrival in arrivals]
        assert sum(n for _, n in fetches) == graph.profile.sent_bytes["forward_fetch"] + graph.profile.sent_bytes["backward_fetch"]
        return {isinstance(arrival.send_rows, slice) for arrival in arrivals}

    for kinds in threads.run(4, work):
        assert kinds == {edges is COMPLETE}


# ---- the prefetch thread


def test_the_first_rows_travel_while_the_local_block_is_computed():
    """With a prefetch thread, the fetch for the first peer is posted before the local block is computed (DESIGN section 3)."""
    live_buffers = {}

    def work(comm):
        graph = shard(comm, prefetch=1)

        def message(src, dst, edge):
            if len(set(edge.ids)) > 1 and comm.rank not in live_buffers:  # the first call but for the probe: the local block
                end = time.monotonic() + 60
                while not graph.profile.live_remote_buffers and time.monotonic() < end:
                    time.sleep(0.001)
                live_buffers[comm.rank] = graph.profile.live_remote_buffers
            return src["x"] * 2.0

        graph.aggregate(message, "sum", src={"x": X[graph.node_ids]})

    threads.run(3, work)
    assert all(live >= 1 for live in live_buffers.values()), live_buffers


def test_the_prefetch_thread_packs_alone(monkeypatch):
    """Each thread has its own OpenMP number of threads: two teams would compete for the cores of one."""
    packers = set()

    def pack(arrays, rows, pack=transport.pack):
        packers.add((threading.current_thread().name, kernels.threads()))
        return pack(arrays, rows)

    def work(comm):
        kernels.set_threads(2)
        graph = shard(comm, SPARSE, prefetch=1)
        graph.aggregate(fn.copy_src(X[graph.node_ids]), "sum")
        assert kernels.threads() == 2

    monkeypatch.setattr(transport, "pack", pack)
    threads.run(2, work)
    assert packers == {("sarlite-prefetch", 1)}


def test_no_thread_is_left():
    def work(comm):
        graph = shard(comm, prefetch=2)
        out = attend(graph, Tensor(X[graph.node_ids], requires_grad=True))
        out.backward(np.ones_like(out.data))

    threads.run(4, work)
    end = time.monotonic() + 60
    while _own_threads() and time.monotonic() < end:
        time.sleep(0.01)
    assert not _own_threads()


def _own_threads():
    return [thread for thread in threading.enumerate() if thread.name in ("sarlite-prefetch", "sarlite-push")]
