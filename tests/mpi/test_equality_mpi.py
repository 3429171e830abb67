"""N ranks of MPI give the result of one rank: the check of test_sar_equality with fewer partitions."""


import numpy as np
import pytest

from sarlite import Graph, Tensor, fn
from sarlite.errors import PeerError
from sarlite.structure.partition import partition
from tests.helpers.comm import exchanges
from tests.helpers.comm.exchanges import fail, results, shard
from tests.helpers.graph.references import CASES, EDGES, FEATURES, N_IN, check_equality
from tests.helpers.graph.strategies import values

pytestmark = [pytest.mark.mpi, pytest.mark.timeout(60, method="thread")]  # a rank that hangs ends all


@pytest.fixture(scope="module")
def comm():
    from sarlite.comm import mpi

    return mpi.world()


@pytest.mark.sampled(17)
@pytest.mark.parametrize("mode", ["sar", "sa", "oneshot", "broadcast"])
@pytest.mark.parametrize("case", CASES)
def test_models_give_one_ranks_values_and_gradients(comm, case, mode):
    parts = partition(*Graph.from_edges(*EDGES).in_edges()[:2], comm.size, "random")
    for dtype, prefetch in ((np.float64, 2), (np.float32, 0)):
        check_equality(comm, case, dtype, parts, mode=mode, prefetch=prefetch)



@pytest.mark.parametrize("mode", ["sar", "oneshot", "broadcast"])
def test_gradients_that_are_fetched(comm, mode):
    for prefetch, case in ((0, "gat"), (1, "gcn"), (1, "gat")):
        check_equality(comm, case, np.float64, "random", mode=mode, prefetch=prefetch, backward="fetch")


@pytest.mark.parametrize("mode", ["sar", "broadcast"])
def test_the_order_within_parts_changes_nothing(comm, mode):
    order = np.random.default_rng(1).permutation(EDGES.n_nodes)
    for case in CASES:
        check_equality(comm, case, np.float64, "random", order=order, mode=mode)
    check_equality(comm, "sage", np.float64, "random", order="metis", mode=mode)


@pytest.mark.parametrize("method", ["metis", "contiguous"])
def test_the_partitioner_by_name(comm, method):
    for case in ("sage", "gat"):
        check_equality(comm, case, np.float64, method, mode="sar", prefetch=1)


@pytest.mark.parametrize("mode", ["sar", "sa", "oneshot", "broadcast"])
def test_ranks_without_nodes(comm, mode):
    for case in ("sage", "gat", "edges"):
        check_equality(comm, case, np.float64, np.full(EDGES.n_nodes, comm.size - 1), mode=mode)


@pytest.mark.parametrize("mode", ["sar", "sa", "oneshot", "broadcast"])
@pytest.mark.parametrize("reducer", ["mean", "sym"])
def test_a_constant_input_is_fetched_once(comm, reducer, mode):
    def gradients(graph):
        x = Tensor(np.ascontiguousarray(FEATURES[graph.node_ids]), constant=True)
        for k in range(3):
            w = Tensor(values(k, N_IN, 4), requires_grad=True)
            graph.aggregate(fn.linear(x, w), reducer).backward(values(9, EDGES.n_nodes, 4)[graph.node_ids])
            yield graph.comm.allreduce(w.grad)

    graph = Graph.from_edges(*EDGES).shard(comm, "random", mode=mode)
    for gradient, expected in zip(gradients(graph), gradients(Graph.from_edges(*EDGES))):
        np.testing.assert_allclose(gradient, expected, rtol=1e-11, atol=1e-11)
    n_rows = EDGES.n_nodes - graph.n_dst if mode == "broadcast" else graph.plan.n_halo
    assert graph.profile.received_bytes["forward_fetch"] == 8 * N_IN * n_rows


@pytest.mark.parametrize("prefetch", [0, 1, 2])
def test_live_remote_buffers(comm, prefetch):
    graph = Graph.from_edges(*EDGES).shard(comm, "random", prefetch=prefetch)
    z = Tensor(np.ascontiguousarray(FEATURES[graph.node_ids]), requires_grad=True).reshape(-1, 1, N_IN)
    for _ in range(3):
        out = graph.aggregate(fn.attend(z, z.sum(-1), z.sum(-1)), "sum")
        out.backward(np.ones_like(out.data))
        z = Tensor(z.data, requires_grad=True)
    assert graph.profile.peak_remote_buffers <= min(1 + prefetch, comm.size - 1)
    assert graph.profile.live_remote_buffers == 0


def test_a_communicator_of_mpi4py(comm):
    from mpi4py import MPI

    graph = Graph.from_edges(*EDGES).shard(MPI.COMM_WORLD, "contiguous")
    assert (graph.comm.rank, graph.comm.size) == (comm.rank, comm.size)
    whole = Graph.from_edges(*EDGES).aggregate(fn.copy_src(FEATURES), "sum").data
    out = graph.aggregate(fn.copy_src(FEATURES[graph.node_ids]), "sum").data
    np.testing.assert_allclose(out, whole[graph.node_ids], rtol=1e-12)


@pytest.mark.parametrize("prefetch", [0, 1])
@pytest.mark.parametrize("when, mode", [("forward", "sar"), ("forward", "oneshot"), ("backward", "sar"), ("forward", "broadcast")])
def test_after_a_failure_on_every_rank_the_graph_recovers(comm, when, mode, prefetch):
    graph, whole = shard(comm, mode=mode, prefetch=prefetch), Graph.from_edges(*exchanges.EDGES)
    for call in range(1, 2 if mode == "oneshot" else comm.size + 1):
        fail(graph, when, call)
        if comm.size > 1:
            with pytest.raises(PeerError, match="KeyError: 'the cause'.*recover"):
                results(graph)
        graph.recover()
        for rows, expected in zip(results(graph), results(whole)):
            np.testing.assert_allclose(rows, expected[graph.node_ids], rtol=1e-12, atol=1e-12)
