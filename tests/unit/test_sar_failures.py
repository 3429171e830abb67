"""Failures inside an aggregation: every rank raises, nobody hangs, and afterwards the graph refuses until it recovers."""

import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))

from exchanges import MODES, Recorder, X, attend, shard

from sarlite import Tensor
from sarlite.comm import threads

pytestmark = pytest.mark.timeout(60)


def _all_fail(work, n_ranks=4):
    """Run; return the cause, and what each rank saw."""
    seen = {}

    def watched(comm):
        try:
            work(comm)
        except BaseException as error:
            seen[comm.rank] = error
            raise

    with pytest.raises(KeyError) as found:
        threads.run(n_ranks, watched)
    assert len(seen) == n_ranks
    return found.value


@pytest.mark.timeout(20)
@pytest.mark.parametrize("prefetch", [0, 1, 2])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("when", ["forward", "backward"])
def test_an_exception_in_a_message(when, mode, prefetch):
    def work(comm):
        graph, calls = shard(comm, mode=mode, prefetch=prefetch), []
        x = Tensor(X[graph.node_ids], requires_grad=True)

        def message(src, dst, edge):
            calls.append(len(edge.ids))
            if comm.rank == 1 and len(calls) == (2 if when == "forward" else 4) + (mode == "sar"):
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
    """With prefetch, a fetch fails in the prefetch thread, whose exception must come out of the computing one."""

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
