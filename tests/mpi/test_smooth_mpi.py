"""Correct and Smooth over MPI: the command on saved predictions, whose rows all ranks write into one file."""

from pathlib import Path

import numpy as np
import pytest

from sarlite.cli import smooth_command
from sarlite.comm import together
from sarlite.data import format
from sarlite.errors import DataError
from tests.helpers.graph.smoothing_cases import LABELS, TRAIN, WEIGHTS, Z, dataset, dense

pytestmark = [pytest.mark.mpi, pytest.mark.timeout(60, method="thread")]  # a rank that hangs ends all


@pytest.fixture(scope="module")
def comm():
    from sarlite.comm import mpi

    return mpi.world()


def test_it_is_one_ranks_and_bad_rows_are_refused_on_all(comm, tmp_path):
    folder = Path(comm.bcast(str(tmp_path)))

    def make():
        if comm.rank == 0:
            format.write(folder / "data", dataset(weighted=True))
            np.save(folder / "z.npy", Z)
            np.save(folder / "bad.npy", Z * np.where(np.arange(len(Z)) == 9, 2, 1)[:, None])

    together(comm, make)

    def run(name):
        words = ["--data", folder / "data", "--predictions", folder / name, "--out", folder / "out.npy"]
        smooth_command.smooth(comm, *smooth_command.parse([*map(str, words), "--progress", "none", "--threads", "1",
                                                          "--partition", "random"]))

    run("z.npy")
    np.testing.assert_allclose(np.load(folder / "out.npy"), dense(Z, LABELS, TRAIN, WEIGHTS), rtol=1e-12, atol=1e-14)
    with pytest.raises(DataError, match="bad.npy: predictions: row 9 sums to 2:"):
        run("bad.npy")
    comm.barrier()
