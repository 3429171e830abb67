"""Halo rows computed again, on ranks of MPI: one rank's answer."""


import pytest

from tests.helpers.recomputing import RECOMPUTED, WHOLE, Run

pytestmark = [pytest.mark.mpi, pytest.mark.timeout(60, method="thread")]  # a rank that hangs ends all


@pytest.mark.parametrize("name, layers, mode", [("gcn", 2, "sar"), ("gcn, batch norm", 3, "broadcast"), ("sage", 3, "cover")])
def test_equality(name, layers, mode):
    from sarlite.comm import mpi

    found = Run(WHOLE.shard(mpi.world(), "random", mode=mode, prefetch=1, **RECOMPUTED), name, layers)
    found.check(Run(WHOLE, name, layers))
    assert layers > 2 or {*found.bytes[-1]} <= {"allreduce"}
