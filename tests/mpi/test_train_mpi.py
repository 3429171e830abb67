"""Learned rows on ranks of MPI, through a checkpoint."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))

from owned_rows import check_checkpoint

pytestmark = [pytest.mark.mpi, pytest.mark.timeout(60, method="thread")]  # a rank that hangs ends all


def test_a_checkpoint_holds_all(tmp_path):
    from sarlite.comm import mpi

    comm = mpi.world()
    check_checkpoint(comm, comm.bcast(tmp_path / "c"))
