"""The predict command on ranks of MPI: all ranks write the predictions of one rank into one file."""


import numpy as np
import pytest

from sarlite.cli import config, run
from sarlite.comm import Solo
from sarlite.errors import SarliteError
from tests.helpers.graph.relational_runs import relational_run
from tests.helpers.train.predicting import predict_here
from tests.helpers.train.training_runs import SMALL

pytestmark = [pytest.mark.mpi, pytest.mark.timeout(60, method="thread")]  # a rank that hangs ends all


def test_ranks_write_one_file(tmp_path):
    from sarlite.comm import mpi

    comm = mpi.world()
    folder = comm.bcast(tmp_path)
    run.train(comm, config.parse([*SMALL, "--dtype", "float64", "--epochs", "2", "--run-dir", str(folder / "run")]))
    predicted = predict_here(folder / "run", folder / "all.npy", "--partition", "random", comm=comm)
    if comm.rank == 0:
        one = predict_here(folder / "run", folder / "one.npy", comm=Solo())
        np.testing.assert_allclose(predicted[0], one[0], rtol=1e-9, atol=1e-12)
        assert np.array_equal(predicted[1], one[1]) and predicted[0].shape == (300, 4)
    with pytest.raises(SarliteError, match="--embeddings 3: .* sage has 2 layers"):
        predict_here(folder / "run", folder / "no.npy", "--embeddings", 3, comm=comm)
    comm.barrier()
    assert not (folder / "no.npy").exists()


def test_learned_rows_by_name(tmp_path):
    """The new data number the devices in another order, as one of them has another name."""
    from sarlite.comm import mpi

    comm = mpi.world()
    folder = comm.bcast(tmp_path)
    if comm.rank == 0:
        for name in ("a", "b"):
            (folder / name).mkdir()
            rows = [f"u{at},{at % 7},{'xy'[at % 2]},{('train', 'val', 'test')[at % 3]}" for at in range(30)]
            (folder / name / "u.csv").write_text("user,age,kind,split\n" + "\n".join(rows) + "\n")
            edges = [(at % 30, 11 * at % 13) for at in range(60)]
            devices = {4: "another"} if name == "b" else {}
            (folder / name / "e.csv").write_text("who,what\n" + "".join(f"u{who},{devices.get(what, f'd{what}')}\n" for who, what in edges))
            (folder / name / "g.toml").write_text(
                '[nodes.user]\nfile = "u.csv"\nid = "user"\nlabels = "kind"\nsplit = "split"\n[nodes.device]\n'
                '[[edges]]\nrelation = ["user", "uses", "device"]\nfile = "e.csv"\nsrc = "who"\ndst = "what"\n')
    comm.barrier()
    relational_run(folder / "run", "--data", f"tables:{folder}/a/g.toml", "--model", "rgcn", "--hidden", 4, "--embedding", 3, comm=comm)
    predicted = predict_here(folder / "run", folder / "all.npy", "--data", f"tables:{folder}/b/g.toml", comm=comm)
    if comm.rank == 0:
        one = predict_here(folder / "run", folder / "one.npy", "--data", f"tables:{folder}/b/g.toml", comm=Solo())
        np.testing.assert_allclose(predicted[0], one[0], rtol=1e-9, atol=1e-12)
