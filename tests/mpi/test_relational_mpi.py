"""The command's training and prediction on a relational graph, from disk to files, over MPI."""


import numpy as np
import pytest

from sarlite.comm import Solo
from sarlite.data import format
from sarlite.data.spec import load_relational
from tests.helpers.graph.relational_runs import SPEC, relational_run
from tests.helpers.train.predicting import predict_here

pytestmark = [pytest.mark.mpi, pytest.mark.timeout(60, method="thread")]  # a rank that hangs ends all


def test_ranks_of_mpi_are_one_rank(tmp_path):
    from sarlite.comm import mpi

    comm = mpi.world()
    folder, flags = comm.bcast(tmp_path), ["--model", "rgcn", "--n-bases", "2", "--hidden", "6"]
    if comm.rank == 0:
        format.write(folder / "d", load_relational(SPEC))
    comm.barrier()
    metrics = relational_run(folder / "run", *flags, "--data", folder / "d", comm=comm)
    scores, _ = predict_here(folder / "run", folder / "all.npy", comm=comm)
    if comm.rank == 0:
        one = relational_run(folder / "one", *flags)
        np.testing.assert_allclose([m["loss"] for m in metrics], [m["loss"] for m in one], rtol=1e-12)
        np.testing.assert_allclose(scores, predict_here(folder / "one", folder / "one.npy", comm=Solo())[0], rtol=1e-12)
    comm.barrier()
