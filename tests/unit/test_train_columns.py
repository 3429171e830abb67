"""The training command on a grid of ranks: the same curve, what it tells, resuming on another grid, and what is refused."""

import json

import numpy as np
import pytest

from sarlite.errors import ConfigError
from sarlite.train import config
from tests.helpers.predicting import predict_here
from tests.helpers.training_runs import assert_same_curve, train_here

pytestmark = [pytest.mark.timeout(60), pytest.mark.filterwarnings("ignore")]

GAT = ["--model", "gat", "--heads", "3", "--epochs", "4", "--dtype", "float64"]


def test_a_grid_of_ranks_trains_as_one(tmp_path, capsys):
    expected = train_here(tmp_path / "one", *GAT)
    first = train_here(tmp_path / "four", *GAT, "--epochs", "2", "--ranks", "4", "--columns", "2")
    told = capsys.readouterr().out
    assert "grid " in told and "2 x 2: 2 groups of 2 ranks; each rank has the structure of its group, 0.0 MiB at most" in told
    line = json.loads(told.splitlines()[-1])
    assert (line["grid"]["rows"], line["grid"]["columns"]) == (2, 2) and len(line["grid"]["structure_bytes"]) == 4
    assert line["sent_bytes"]["forward_turn"] > 0 and line["live_remote_buffers"] == 1
    checkpoint = tmp_path / "four" / "checkpoint.safetensors"
    found = train_here(tmp_path / "four", *GAT, "--resume", checkpoint, "--ranks", "3", "--columns", "3")
    assert_same_curve([*first, *found[2:]], expected, rtol=1e-9)
    one, grid = (predict_here(tmp_path / "four", tmp_path / f"{ranks}.npy", "--ranks", ranks, "--columns", ranks)[0] for ranks in (1, 2))
    np.testing.assert_allclose(grid, one, rtol=1e-9)


@pytest.mark.parametrize("flags", [["--model", "gcn"], [
    "--data", "relational:nodes=300,edges=2000", "--model", "rgcn", "--link-relation", "paper.cites.paper"]])
def test_a_run_of_links_tells_its_grid_and_its_relations(flags, tmp_path, capsys):
    train_here(tmp_path / "run", *flags, "--task", "link", "--epochs", "1", "--ranks", "2", "--columns", "2")
    line = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (line["grid"]["rows"], line["grid"]["columns"]) == (1, 2) and min(line["grid"]["structure_bytes"]) > 0
    assert bool(line.get("relations")) == ("rgcn" in flags)


@pytest.mark.parametrize("flags, told", [
    (["--columns", "2", "--mfg"], "--columns does not go with --mfg"),
    (["--columns", "2", "--batch-size", "8", "--fanouts", "3,3"], "--columns does not go with --batch-size"),
    (["--columns", "0"], "--columns 0 is less than 1"),
])
def test_what_does_not_go_together(flags, told):
    with pytest.raises(ConfigError, match=told):
        config.parse(flags)


def test_columns_that_do_not_divide_the_ranks_are_refused_before_the_data_are_read(tmp_path):
    with pytest.raises(ConfigError, match="columns 2 does not divide 3"):
        train_here(tmp_path / "run", "--data", "npz:/nowhere.npz", "--ranks", "3", "--columns", "2")
