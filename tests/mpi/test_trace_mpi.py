"""The timeline of ranks of MPI: the check of the unit tests, and the file that every rank writes into."""


import pytest

from tests.helpers.train.trace_checks import check

pytestmark = [pytest.mark.mpi, pytest.mark.timeout(60, method="thread")]  # a rank that hangs ends all


@pytest.fixture(scope="module")
def comm():
    from sarlite.comm import mpi

    return mpi.world()


@pytest.mark.parametrize("mode", ["sar", "oneshot"])
def test_the_timeline_against_the_plan(comm, mode, tmp_path):
    path = comm.bcast(tmp_path / "t.json")
    for case in ("sage", "gat"):
        check(comm, case, path, mode=mode)
