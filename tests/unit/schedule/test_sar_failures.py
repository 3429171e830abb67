"""Failures inside an aggregation: every rank raises, no rank hangs, and the graph refuses calls until it recovers."""

import gc
import threading
import time

import numpy as np
import pytest

from sarlite import Graph, Tensor, fn
from sarlite.comm import threads
from sarlite.errors import PeerError
from tests.helpers.comm.exchanges import COMPLETE, EDGES, MODES, Recorder, X, attend, fail, results, shard

pytestmark = pytest.mark.timeout(60)


def _all_fail(work, n_ranks=4):
    """Run `work`, which must fail; return the cause, and the error of each rank."""
    seen = {}

    def watched(comm):
        try:
            work(comm)
        except BaseException as error:
            seen[comm.rank] = error
            raise

    with pytest.raises(KeyError) as caught:
        threads.run(n_ranks, watched)
    assert len(seen) == n_ranks
    return caught.value


@pytest.mark.timeout(20)
@pytest.mark.parametrize("prefetch", [0, 1, 2])
@pytest.mark.parametrize("mode", [*MODES, "broadcast"])
@pytest.mark.parametrize("when", ["forward", "backward"])
def test_an_exception_in_a_message(when, mode, prefetch):
    def work(comm):
        graph, calls = shard(comm, mode=mode, prefetch=prefetch), []
        x = Tensor(X[graph.node_ids], requires_grad=True)

        def message(src, dst, edge):
            calls.extend([1] * (len(edge.ids) > 1))  # the probe's calls have one row
            if comm.rank == 1 and len(edge.ids) > 1 and len(calls) == (1 if when == "forward" else 2) + (mode == "sar"):
                raise KeyError("the cause")
            return src["x"].tanh()

        for _ in range(3):  # the calls add up differently in each mode, but the one that fails is among them
            out = graph.aggregate(message, "sum", src={"x": x})
            out.backward(np.ones_like(out.data))

    assert "the cause" in str(_all_fail(work))


@pytest.mark.timeout(20)
@pytest.mark.parametrize("fail_at", [1, 2, 4])
@pytest.mark.parametrize("prefetch", [0, 1, 2])
@pytest.mark.parametrize("which", ["fetch_comm", "push_comm"])
def test_an_exception_in_a_transfer(which, prefetch, fail_at):
    """With prefetch, a fetch fails in the prefetch thread, and the computing thread must raise that exception."""

    def work(comm):
        graph = shard(comm, prefetch=prefetch)
        if comm.rank == 2:
            way = graph.schedule.transport
            setattr(way, which, Recorder(getattr(way, which), [], fail_at))
        x = Tensor(X[graph.node_ids], requires_grad=True)
        for _ in range(2):
            out = attend(graph, x)
            out.backward(np.ones_like(out.data))

    assert "the network is gone" in str(_all_fail(work))


# ---- afterwards


def own_threads():
    return [thread for thread in threading.enumerate() if thread.name in ("sarlite-prefetch", "sarlite-push")]


@pytest.mark.timeout(30)
def test_a_failure_leaves_no_thread_and_no_rows():
    """A prefetch thread may wait for rows of a peer that failed before it sent them."""

    def work(comm):
        graph = shard(comm, prefetch=1)
        for when, call in [("forward", 2), ("forward", 3), ("backward", 1), ("backward", 3)] * 3:
            fail(graph, when, call)
            graph.recover()
        comm.barrier()
        end = time.monotonic() + 25
        while (own_threads() or graph.profile.live_remote_buffers) and time.monotonic() < end:
            gc.collect()
            time.sleep(0.01)
        comm.barrier()
        return len(own_threads()), graph.profile.live_remote_buffers

    assert threads.run(4, work) == [(0, 0)] * 4


WHENS = [("forward", "sar"), ("forward", "sa"), ("forward", "oneshot"), ("backward", "sar"), ("forward", "broadcast")]


@pytest.mark.sampled(12)
@pytest.mark.timeout(30)
@pytest.mark.parametrize("call", [1, 2, 3])
@pytest.mark.parametrize("prefetch", [0, 1])
@pytest.mark.parametrize("when, mode", WHENS)
def test_after_a_failure_the_graph_refuses_until_it_recovers(when, mode, prefetch, call):
    expected = results(Graph.from_edges(*EDGES))
    call = 1 if mode == "oneshot" else call  # mode oneshot has only one block

    def work(comm):
        graph = shard(comm, mode=mode, prefetch=prefetch)
        for _ in range(2):
            earlier = attend(graph, Tensor(X[graph.node_ids], requires_grad=True))
            fail(graph, when, call)
            for action in (lambda: attend(graph, Tensor(X[graph.node_ids])), lambda: results(graph),
                           lambda out=earlier: out.backward(np.ones_like(out.data))):
                with pytest.raises(PeerError, match="KeyError: 'the cause'.*recover"):
                    action()
            graph.recover()
            for rows, whole in zip(results(graph), expected):
                np.testing.assert_allclose(rows, whole[graph.node_ids], rtol=1e-12, atol=1e-12)

    threads.run(3, work)


@pytest.mark.parametrize("mode", [*MODES, "broadcast"])
@pytest.mark.parametrize("when", ["forward", "backward"])
def test_on_one_rank_alone_nothing_is_refused(when, mode):
    expected = results(Graph.from_edges(*EDGES))

    def work(comm):
        graph = shard(comm, mode=mode)
        if (when, mode) == ("backward", "sar") or when == "forward":
            fail(graph, when, 1)
        else:  # the recording is kept: the gradient's shape is what fails
            with pytest.raises(Exception):  # noqa: B017
                attend(graph, Tensor(X, requires_grad=True)).backward(np.ones(3))
        for rows, whole in zip(results(graph), expected):
            np.testing.assert_allclose(rows, whole, rtol=1e-12, atol=1e-12)

    threads.run(1, work)


class LastSendFails:
    """A communicator whose n-th send completes and then raises."""

    def __init__(self, comm, n):
        self._comm, self._left = comm, n

    def __getattr__(self, name):
        return getattr(self._comm, name)

    def start_send(self, array, peer, tag=0):
        self._left -= 1
        request = self._comm.start_send(array, peer, tag)
        return Failing(request) if self._left == 0 else request


class Failing:
    def __init__(self, request):
        self._request, self.cancel = request, request.cancel

    def wait(self):
        self._request.wait()
        raise KeyError("the last send")


@pytest.mark.timeout(20)
@pytest.mark.parametrize("prefetch", [0, 1, 2])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("which", ["fetch_comm", "push_comm"])
def test_the_error_of_the_last_send_is_raised(which, mode, prefetch):
    """All rows have arrived by then, so only the end of the exchange looks at the sends again."""

    def work(comm):
        graph = shard(comm, COMPLETE, mode=mode, prefetch=prefetch)
        way, x = graph.schedule.transport, Tensor(X[graph.node_ids], requires_grad=True)
        setattr(way, which, LastSendFails(getattr(way, which), comm.size - 1))
        out = None
        with pytest.raises(KeyError, match="the last send"):
            out = graph.aggregate(fn.copy_src(x), "sum")
            out.backward(np.ones_like(out.data))
        assert (out is None) == (which == "fetch_comm")
        with pytest.raises(PeerError, match="the last send"):
            graph.aggregate(fn.copy_src(x), "sum")

    threads.run(3, work)
