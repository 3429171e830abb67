"""Mode broadcast over MPI with stages in pieces.

Two broadcasts of any size are under way, and nothing is left after a failure.
"""


import numpy as np
import pytest

from sarlite import Graph, Tensor, fn
from sarlite.errors import ShapeError
from tests.helpers.comm import exchanges
from tests.helpers.comm.exchanges import N_RANGES, X, fail, in_ranges, results, shard
from tests.helpers.graph.references import check_equality

pytestmark = [pytest.mark.mpi, pytest.mark.timeout(60, method="thread")]  # a rank that hangs ends all


@pytest.fixture(scope="module")
def comm():
    from sarlite.comm import mpi

    return mpi.world()


@pytest.mark.parametrize("case", ["gcn", "gat", "edges", "softmax", "weighted"])
def test_models_give_one_ranks_values_and_gradients_in_stages_of_pieces(comm, case):
    for prefetch in (1, 2):
        check_equality(comm, case, np.float64, "random", mode=in_ranges(), prefetch=prefetch)


def test_after_failures_results_are_those_of_one_rank(comm):
    graph = shard(comm, mode=in_ranges(), prefetch=1)
    assert comm.size == 1 or len(graph.plan.forward) == 1 + N_RANGES * comm.size
    for call in (1, 2, 4) if comm.size > 1 else ():
        fail(graph, "forward" if call % 2 else "backward", call)
        graph.recover()
        for actual, expected in zip(results(graph), results(Graph.from_edges(*exchanges.EDGES))):
            np.testing.assert_allclose(actual, expected[graph.node_ids], rtol=1e-12, atol=1e-12)


def test_rows_of_other_widths_are_refused_on_every_rank(comm):
    graph = shard(comm, mode=in_ranges(), prefetch=1)
    if comm.size > 1:
        with pytest.raises(ShapeError, match="rows of shape"):
            graph.aggregate(fn.copy_src(X[graph.node_ids][:, : 4 - (comm.rank == 1)]), "sum")
        graph.recover()


def test_repeated_sums_are_the_same_bits(comm):
    """The rows have some MiB, which MPI sends by another protocol than short rows."""
    rows = np.random.default_rng(0).standard_normal((50, 1 << 14), dtype=np.float32)
    graph = shard(comm, mode=in_ranges(), prefetch=1)

    def both():
        x = Tensor(rows[graph.node_ids], requires_grad=True)
        out = graph.aggregate(fn.copy_src(x), "mean")
        out.backward(out.data)
        return out.data, x.grad

    first = both()
    for _ in range(3):
        assert all(np.array_equal(a, b) for a, b in zip(both(), first))
    whole = Graph.from_edges(*exchanges.EDGES).aggregate(fn.copy_src(rows), "mean").data
    np.testing.assert_allclose(first[0], whole[graph.node_ids], rtol=1e-4, atol=1e-5)
