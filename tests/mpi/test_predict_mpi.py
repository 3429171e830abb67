"""The predict command on ranks of MPI: what one rank says, written by all into one file."""


import numpy as np
import pytest

from sarlite.cli import config, run
from sarlite.comm import Solo
from sarlite.errors import SarliteError
from tests.helpers.train.predicting import predict_here
from tests.helpers.train.training_runs import SMALL

pytestmark = [pytest.mark.mpi, pytest.mark.timeout(60, method="thread")]  # a rank that hangs ends all


def test_ranks_write_one_file(tmp_path):
    from sarlite.comm import mpi

    comm = mpi.world()
    folder = comm.bcast(tmp_path)
    run.train(comm, config.parse([*SMALL, "--dtype", "float64", "--epochs", "2", "--run-dir", str(folder / "run")]))
    found = predict_here(folder / "run", folder / "all.npy", "--partition", "random", comm=comm)
    if comm.rank == 0:
        one = predict_here(folder / "run", folder / "one.npy", comm=Solo())
        np.testing.assert_allclose(found[0], one[0], rtol=1e-9, atol=1e-12)
        assert np.array_equal(found[1], one[1]) and found[0].shape == (300, 4)
    with pytest.raises(SarliteError, match="--embeddings 3: the model sage has 2 layers"):
        predict_here(folder / "run", folder / "no.npy", "--embeddings", 3, comm=comm)
    comm.barrier()
    assert not (folder / "no.npy").exists()
