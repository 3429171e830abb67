"""Over MPI, `recover` discards what a rank kept before a failure, as another rank has not kept it."""

import numpy as np
import pytest

from sarlite import Tensor, fn
from tests.helpers.comm.exchanges import X, shard

pytestmark = [pytest.mark.mpi, pytest.mark.timeout(60, method="thread")]  # a rank that hangs ends all


@pytest.fixture(scope="module")
def comm():
    from sarlite.comm import mpi

    return mpi.world()


class LastReceive:
    """A communicator whose n-th receive completes and then raises."""

    def __init__(self, comm, n):
        self._comm, self._left = comm, n

    def __getattr__(self, name):
        return getattr(self._comm, name)

    def start_recv(self, array, peer, tag=0):
        self._left -= 1
        request = self._comm.start_recv(array, peer, tag)
        return request if self._left else Failing(request)


class Failing:
    def __init__(self, request):
        self._request, self.cancel = request, request.cancel

    def wait(self):
        self._request.wait()
        raise KeyError("the cause")


def kept_sum(graph, x):
    return graph.aggregate(fn.copy_src(x), "sum").data


def scaled(graph, x):
    return graph.aggregate(fn.copy_src(x.data), "sym").data


@pytest.mark.parametrize("use", [kept_sum, scaled])
def test_what_one_rank_kept_is_void(comm, use):
    """Rank 0 fails in its last receive, when the other ranks have all that they need from it and finish."""
    expected = use(whole := shard(comm, prefetch=0), Tensor(X[whole.node_ids], constant=True))
    graph = shard(comm, prefetch=0)
    x, way = Tensor(X[graph.node_ids], constant=True), graph.schedule.transport
    if comm.rank == 0 and comm.size > 1:
        before, pieces = way.fetch_comm, [piece for piece in graph.plan.forward if piece.arrivals]
        way.fetch_comm = LastReceive(before, len(pieces))
        with pytest.raises(KeyError, match="the cause"):
            use(graph, x)
        way.fetch_comm = before
    elif use is kept_sum:
        use(graph, x)
    else:
        graph.scales("sym")
    comm.barrier()
    graph.recover()
    np.testing.assert_array_equal(use(graph, x), expected)
