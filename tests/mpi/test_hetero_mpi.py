"""Relations over MPI: run by `mpiexec -n N python -m pytest --with-mpi -m mpi tests/mpi`."""


import pytest

from tests.helpers.graph.relational_graphs import check_batches, check_model

pytestmark = [pytest.mark.mpi, pytest.mark.timeout(60, method="thread")]  # a rank that hangs ends all


@pytest.mark.parametrize("case, mode", [("rgcn", "sar"), ("rgat", "oneshot")])
def test_a_model_is_one_ranks(case, mode):
    from sarlite.comm import mpi

    check_model(mpi.world(), case, "uneven", mode=mode, prefetch=1)


@pytest.mark.parametrize("case, mode", [("rgcn", "sar"), ("rgat", "broadcast")])
def test_all_in_edges_of_a_batch_are_the_whole_graph(case, mode):
    from sarlite.comm import mpi

    check_batches(mpi.world(), case, "uneven", mode=mode, prefetch=1)
