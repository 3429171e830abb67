"""Parts of the training command on ranks of MPI: learned rows through a checkpoint, and minibatches."""


import pytest

from sarlite.cli import config, run
from tests.helpers.train.owned_rows import check_checkpoint
from tests.helpers.train.training_runs import SMALL, metrics

pytestmark = [pytest.mark.mpi, pytest.mark.timeout(60, method="thread")]  # a rank that hangs ends all


def test_a_checkpoint_holds_all(tmp_path):
    """The checkpoint is written in many pieces."""
    from sarlite.comm import mpi

    comm = mpi.world()
    check_checkpoint(comm, comm.bcast(tmp_path / "c"))


@pytest.mark.parametrize("remote", ["exact", "hec", "hec --push demand", "local"])
def test_minibatches_go_on_to_the_same_numbers(remote, tmp_path):
    from sarlite.comm import mpi

    comm = mpi.world()
    folder = comm.bcast(tmp_path)

    def train(name, *more):
        words = [*SMALL, "--batch-size", 8, "--fanouts", "3,5", "--remote", *remote.split(), "--run-dir", folder / name, *more]
        counted = run.train(comm, config.parse(list(map(str, words))))
        return counted, [[m["loss"], m["val_loss"], m["test_accuracy"]] for m in metrics(folder / name)]

    counted, two = train("two", "--epochs", 2)
    _, one = train("one", "--epochs", 1)
    _, rest = train("rest", "--epochs", 2, "--resume", folder / "one" / "checkpoint.safetensors")
    assert one + rest == two and counted["steps"] == 8 and ("hit_rate" in counted) == (comm.size > 1 and "hec" in remote)
