"""Losses, metrics, thresholds and baselines of rare classes on ranks of MPI equal the numbers of one rank."""

import json

import pytest

from sarlite.cli import config, run
from sarlite.comm import Solo
from sarlite.data import format
from tests.helpers.train.task_data import rare
from tests.helpers.train.training_runs import SMALL, metrics

pytestmark = [pytest.mark.mpi, pytest.mark.timeout(120, method="thread")]  # a rank that hangs ends all


def test_ranks_agree_with_one_rank(tmp_path):
    from sarlite.comm import mpi

    comm = mpi.world()
    folder = comm.bcast(tmp_path)

    def train(comm, name):
        words = [*SMALL, "--data", folder / "data", "--epochs", 4, "--numerics", "exact", "--loss", "focal", "--class-weights",
                 "balanced", "--threshold", "best-f1", "--partition", "random", "--run-dir", folder / name]
        run.train(comm, config.parse(list(map(str, words))))

    def predicted(name):
        summary = json.loads((folder / name / "summary.json").read_text())
        summary["counted"]["baseline"].pop("seconds")
        lines = [{**line, "seconds": 0} for line in metrics(folder / name)]
        return lines, summary["outcome"], summary["counted"]["baseline"]

    if comm.rank == 0:
        format.write(folder / "data", rare(class_names=["fraud", "ok"], flip=True))
        train(Solo(), "one")
    comm.barrier()
    train(comm, "all")
    comm.barrier()
    assert predicted("one") == predicted("all") and predicted("all")[1]["threshold"]["values"]
