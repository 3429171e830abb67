"""Aggregation by columns on ranks of MPI: one rank's answer, and what comes after a failure."""


import numpy as np
import pytest

from sarlite import Graph, Tensor
from sarlite.errors import PeerError
from tests.helpers import exchanges
from tests.helpers.exchanges import X, attend, fail, results, shard
from tests.helpers.references import check_equality

pytestmark = [pytest.mark.mpi, pytest.mark.timeout(60, method="thread")]  # a rank that hangs ends all


@pytest.fixture(scope="module")
def comm():
    from sarlite.comm import mpi

    return mpi.world()


def grids(size):
    """All numbers of columns but 1, which is no grid; of one rank that."""
    return [n for n in range(2, size + 1) if size % n == 0] or [1]


@pytest.mark.parametrize("case, mode", [("sage", "sar"), ("gat", "broadcast"), ("gcn", "oneshot"), ("weighted", "sa")])
def test_equality(comm, case, mode):
    for n_columns in grids(comm.size):
        for dtype, prefetch in ((np.float64, 1), (np.float32, 0)):
            check_equality(comm, case, dtype, "random", mode=mode, prefetch=prefetch, columns=n_columns)


def test_after_a_failure_on_every_rank_the_graph_recovers(comm):
    expected = results(Graph.from_edges(*exchanges.EDGES))
    for n_columns in grids(comm.size):
        graph = shard(comm, columns=n_columns)
        fail(graph, "forward", 1)
        if comm.size > 1:
            with pytest.raises(PeerError, match="recover"):
                attend(graph, Tensor(X[graph.node_ids]))
        graph.recover()
        for found, whole in zip(results(graph), expected):
            np.testing.assert_allclose(found, whole[graph.node_ids], rtol=1e-12, atol=1e-12)
