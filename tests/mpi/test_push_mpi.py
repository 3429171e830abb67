"""Pushed rows over MPI: run by `mpiexec -n N python -m pytest --with-mpi -m mpi tests/mpi`."""


import pytest

from sarlite.comm import threads
from tests.helpers.comm.pushing import CHECKS, Delayed, training

pytestmark = [pytest.mark.mpi, pytest.mark.timeout(60, method="thread")]  # a rank that hangs ends all


@pytest.fixture(scope="module")
def comm():
    from sarlite.comm import mpi

    world = mpi.world()
    if world.size > 3:
        pytest.skip("1 to 3 ranks show it, and 4 take long on two cores")
    return world


@pytest.mark.parametrize("name", CHECKS)
def test_a_pusher_over_mpi_passes_its_checks(comm, name):
    CHECKS[name](comm)


@pytest.mark.parametrize("delay", [0, 1, 2])
def test_a_run_is_the_same_as_with_threads_whatever_the_network_does(comm, delay):
    right = threads.run(comm.size, training, delay)
    assert training(comm, delay) == right[comm.rank]
    assert training(Delayed(comm, 1), delay) == right[comm.rank]
