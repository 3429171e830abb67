"""Memory that is told before a run is a real process's, and on a part of any size what trials on smaller ones say."""

import json
import subprocess
import sys

import numpy as np
import pytest

from sarlite.cli.config import resolve
from sarlite.comm import Solo
from sarlite.data import format, load
from sarlite.sar.cost import expected
from sarlite.train.costs import Setting
from sarlite.train.trial import cost as cost_of
from tests.helpers.costing import QUIET, counted
from tests.helpers.training_runs import ROOT

SBM = "sbm:nodes=12000,degree=12,features=64,classes=16"


def last_line(*flags):
    done = subprocess.run([sys.executable, "-m", "sarlite.train", *flags, "--json", "--progress", "none", "--threads", "1", "--epochs", "2",
                           "--prefetch", "0"], capture_output=True, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.sampled(2)
@pytest.mark.parametrize("flags", [
    ("--data", SBM, "--model", "gcn", "--layers", "3", "--hidden", "128", "--input-dropout", "0"),
    ("--data", SBM, "--model", "gat", "--hidden", "16", "--heads", "4", "--label-inputs", "0.5"),
    ("--data", "relational:nodes=12000,edges=100000,features=64", "--model", "rgat", "--hidden", "32", "--heads", "4"),
    ("--data", f"{SBM},train=0.5", "--model", "sage", "--layers", "2", "--hidden", "128", "--batch-size", "2000", "--fanouts", "10,10"),
], ids=("gcn", "gat", "rgat", "batches"))
def test_memory_is_a_processs(flags, tmp_path):
    (told,) = (row for row in last_line(*flags, "--dry-run")["settings"] if row["setting"] == "sar")
    taken = last_line(*flags, "--run-dir", str(tmp_path / "run"))
    assert taken["peak_bytes"][0] > 20e6 and told["peak_bytes"][0] == pytest.approx(taken["peak_bytes"][0], rel=0.15)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("model", [{"model": "gcn", "input_dropout": 0.0}, {"model": "gat", "heads": 2},
                                   {"model": "sage", "aggregator": "max-pool"}])
def test_trials_of_any_size_tell_the_same(model, tmp_path):
    config = resolve({**QUIET, "data": "sbm:nodes=4000,degree=10,features=32", "layers": 2, "hidden": 32, "prefetch": 0, **model})
    _, sizes, _ = counted(Solo(), config, tmp_path)
    peaks = []
    for n_rows in (2000, 3000, 4000):
        found = cost_of(sizes, Setting("sar"), trial_rows=n_rows)
        peaks.append(found.peak_bytes - sizes.there_bytes)
    assert peaks == pytest.approx([peaks[-1]] * 3, rel=0.05)


def test_features_that_stood_in_memory_before_are_not_counted_again(tmp_path):
    """Those of a generated data set; those of a stored one are read once memory counts."""
    spec, n_bytes = "sbm:nodes=4000,degree=4,features=500", 4000 * 500 * 4
    format.write(tmp_path / "stored", load(spec))
    code = ("import sys; from sarlite.comm import Solo; from sarlite.cli.config import resolve; from tests.helpers.costing import *; "
            "options = {**QUIET, 'data': sys.argv[1], 'model': 'gcn', 'prefetch': 0, 'partition': 'stored'}; "
            "print(counted(Solo(), resolve(options), sys.argv[2])[1].there_bytes)")
    generated, stored = (int(subprocess.run([sys.executable, "-c", code, data, tmp_path], cwd=ROOT, capture_output=True, text=True,
                                            check=True).stdout) for data in (spec, tmp_path / "stored"))
    assert generated < -0.8 * n_bytes < -0.2 * n_bytes < stored, (generated, stored)


def test_a_trial_has_as_many_seeds_as_a_batch(tmp_path):
    options = {"data": "sbm:nodes=900,degree=5,train=0.5", "model": "sage", "layers": 2, "batch_size": 100, "fanouts": (3, 3)}
    for more in {}, {"eval_fanouts": (3, 3)}:
        _, sizes, part = counted(Solo(), resolve({**QUIET, **options, **more, "prefetch": 0}), tmp_path)
        others = (0, 0) if more else tuple(int(np.count_nonzero(own)) for own in (part.rows.val, part.rows.test))
        assert sizes.splits == (100, *others)


@pytest.mark.parametrize("mode", ["sar", "oneshot"])
def test_peers_of_many_ranks_count(mode, tmp_path):
    """In `sar` a further peer takes next to nothing; in `oneshot` the rows of all peers are held."""
    config = resolve({**QUIET, "data": "sbm:nodes=90", "model": "gcn", "hidden": 64, "prefetch": 0})
    _, sizes, _ = counted(Solo(), config, tmp_path)
    peaks = []
    for size in (20, 40):  # as many local rows and rows of each peer
        found = expected(2000 * size, 100_000 * size, size, halo=0.25)
        each = sizes._replace(rank=0, size=size, n_rows=2000, splits=(200, 200, 200), exchanged={"edges": found}, reverse=None)
        cost = cost_of(each, Setting(mode))
        peaks.append(cost.peak_bytes)
        assert cost.remote_buffers == (1 if mode == "sar" else size - 1)
    more, halo_bytes = peaks[1] - peaks[0], 20 * 500 * 4 * 64
    assert more < 0.2 * halo_bytes if mode == "sar" else more > 0.4 * halo_bytes, more
