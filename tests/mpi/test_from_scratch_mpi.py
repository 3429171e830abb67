"""`examples/sar_from_scratch.py` on ranks of MPI equals the library, and runs as a program."""

import pytest

from tests.helpers.graph import from_scratch
from tests.helpers.graph.references import EDGES

pytestmark = [pytest.mark.mpi, pytest.mark.timeout(60, method="thread")]  # a rank that hangs ends all


@pytest.fixture(scope="module")
def comm():
    from mpi4py import MPI

    return MPI.COMM_WORLD.Dup()


@pytest.mark.parametrize("method", ["random", "last"])
def test_sum_attention_and_gat_equal_the_library(comm, method):
    from_scratch.check_sum(comm, EDGES, method)
    from_scratch.check_attention(comm, EDGES, method)
    from_scratch.check_gat(comm, method)


def test_training_does_not_depend_on_the_division(comm):
    from_scratch.check_training(comm)


def test_the_program_prints_a_falling_loss(comm, capsys):
    from_scratch.example().main(comm)
    losses = [float(line.split()[-1]) for line in capsys.readouterr().out.splitlines()]
    assert len(losses) == (50 if comm.rank == 0 else 0)
    assert comm.rank or losses[-1] < 0.1 < 1 < losses[0]
