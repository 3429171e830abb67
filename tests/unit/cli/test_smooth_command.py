"""Test `python -m sarlite.smooth` on divided and undivided data, and its errors."""

import os
import subprocess
import sys

import numpy as np
import pytest

from sarlite import Solo
from sarlite.cli import smooth_command
from sarlite.cli.data_command import main as data_command
from sarlite.comm import threads
from sarlite.data import format
from sarlite.errors import ConfigError, DataError
from sarlite.schedule import schedule
from tests.helpers.graph.smoothing_cases import EDGES, LABELS, TRAIN, WEIGHTS, Z, dataset, dense
from tests.helpers.train.training_runs import ROOT

pytestmark = pytest.mark.timeout(120)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Write data sets with and without weights, in random parts, and predictions in the original order."""
    folder = tmp_path_factory.mktemp("data")
    for name, weighted in (("plain", False), ("weighted", True)):
        format.write(folder / name, dataset(weighted))
        assert data_command(["partition", str(folder / name), "--parts", "6", "--method", "random", "--progress", "none"]) == 0
    np.save(folder / "z.npy", Z)
    return folder


def run(data, name, ranks, *flags):
    options = smooth_command.parse(["--data", str(data / name), "--predictions", str(data / "z.npy"), "--out", str(data / "out.npy"),
                            "--progress", "none", "--threads", "1", "--ranks", str(ranks), *map(str, flags)])
    threads.run(ranks, smooth_command.smooth, *options) if ranks > 1 else smooth_command.smooth(Solo(), *options)
    return np.load(data / "out.npy")


@pytest.mark.parametrize("name", ["plain", "weighted"])
def test_it_is_the_library_on_the_datas_graph_for_any_number_of_ranks(data, name, capsys, monkeypatch):
    """The result is the same on 3 ranks as stored and on 4 ranks divided again, also with edge weights."""
    weights, options = WEIGHTS if name == "weighted" else None, {"scale": 1.5, "smooth_iterations": 4, "correct_normalization": "row"}
    flags = ["--correct-scale", 1.5, "--smooth-iterations", 4, "--correct-normalization", "row"]
    expected = dense(Z, LABELS, TRAIN, weights, **options)
    for ranks in (1, 3, 4):
        np.testing.assert_allclose(run(data, name, ranks, *flags), expected, rtol=1e-12, atol=1e-14)
    monkeypatch.setattr(schedule, "_reversed", None)  # which is for backward
    np.testing.assert_allclose(run(data, name, 2, *flags, "--mode", "broadcast"), expected, rtol=1e-12, atol=1e-14)
    assert "out.npy: 41 nodes, 3 classes" in capsys.readouterr().out


def test_exact_numerics_have_one_result(data):
    outputs = [run(data, "weighted", ranks, "--numerics", "exact", *flags).tobytes()
             for ranks, *flags in ((1,), (2, "--mode", "sa"), (3, "--mode", "broadcast", "--partition", "random"))]
    assert len(set(outputs)) == 1
    assert len({run(data, "weighted", ranks).tobytes() for ranks in (1, 3)}) == 2  # else the test says nothing


def test_added_self_loops_weigh_one(data):
    looped = np.zeros(EDGES.n_nodes, bool)
    looped[EDGES.src[EDGES.src == EDGES.dst]] = True
    missing = np.flatnonzero(~looped)
    edges = type(EDGES)(np.concatenate([EDGES.src, missing]), np.concatenate([EDGES.dst, missing]), EDGES.n_nodes)
    expected = dense(Z, LABELS, TRAIN, np.concatenate([WEIGHTS, np.ones(len(missing))]), edges=edges)
    np.testing.assert_allclose(run(data, "weighted", 3, "--self-loops"), expected, rtol=1e-12, atol=1e-14)


def test_bad_input_is_refused_by_name(data, tmp_path):
    for change, said in ((lambda z: z.__setitem__((11, 0), 2.0), r"bad.npy: predictions: row 11 sums to "),
                         (lambda z: z.resize((40, 3), refcheck=False), r"bad.npy: predictions: shape \(40, 3\), .* \(41, 3\)")):
        z = Z.copy()
        change(z)
        np.save(tmp_path / "bad.npy", z)
        with pytest.raises(DataError, match=said):
            run(data, "plain", 3, "--predictions", tmp_path / "bad.npy", "--out", tmp_path / "out.npy")
    with pytest.raises(DataError, match="none.npy"):
        run(data, "plain", 1, "--predictions", tmp_path / "none.npy")
    with pytest.raises(ConfigError, match="cannot be written: no such folder"):
        run(data, "plain", 3, "--out", tmp_path / "nowhere" / "out.npy")
    assert [path.name for path in tmp_path.iterdir()] == ["bad.npy"]
    with pytest.raises(ConfigError, match="--predictions is missing"):
        smooth_command.parse(["--data", "sbm:", "--out", "x.npy"])


def test_the_command_smooths_on_two_ranks_and_refuses_a_missing_folder(data, tmp_path):
    words = [sys.executable, "-m", "sarlite.smooth", "--data", data / "plain", "--predictions", data / "z.npy", "--threads", "1"]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([*words, "--out", tmp_path / "out.npy", "--ranks", "2"], env=env, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    np.testing.assert_allclose(np.load(tmp_path / "out.npy"), dense(Z, LABELS, TRAIN), rtol=1e-12, atol=1e-14)
    done = subprocess.run([*words, "--out", tmp_path / "no" / "out.npy"], env=env, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2 and len(done.stderr.splitlines()) == 1 and "cannot be written: no such folder" in done.stderr
