"""Test commands that print paths, classes and relations with characters outside the terminal's encoding."""

import os
import subprocess
import sys

import numpy as np
import pytest

from tests.helpers.train.training_runs import ROOT, SMALL

pytestmark = pytest.mark.timeout(120)
PLAIN = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
OTHER = os.fsdecode(b"d\xe9pt \xc3\xa9")  # a Latin-1 byte, which is no UTF-8, and an e with an accent
TABLE = "name,class\n" + "".join(f"é{k},{'müde' if k % 2 else 'wach'}\n" for k in range(40))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("encodings") / OTHER
    folder.mkdir()
    rows = np.random.default_rng(0).integers(0, 40, (200, 2))
    (folder / "edges.csv").write_text("von,nach\n" + "".join(f"é{a},é{b}\n" for a, b in rows), encoding="utf-8")
    (folder / "nodes.csv").write_text(TABLE, encoding="utf-8")
    return folder


@pytest.mark.sampled(1)
@pytest.mark.parametrize("environ", [PLAIN, {"PYTHONIOENCODING": "ascii:strict"}, {"LC_ALL": "C.UTF-8"}], ids=["C", "ascii", "utf-8"])
def test_what_cannot_be_encoded_is_escaped(folder, environ, tmp_path):
    def run(module, *words, status=0):
        env = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", **environ}
        done = subprocess.run([sys.executable, "-m", module, *map(str, words)], env=env, capture_output=True, timeout=60, cwd=folder)
        assert done.returncode == status and b"Traceback" not in done.stderr, done.stderr.decode(errors="replace")
        return done.stdout + done.stderr

    name = os.path.basename(tmp_path)
    data, out = folder / f"data {name}", folder / f"run {name}"
    run("sarlite.data", "convert", f"edges:{folder}/edges.csv,src=von,dst=nach,nodes={folder}/nodes.csv,id=name,labels=class", data)
    assert b"run" in run("sarlite.train", *SMALL[2:], "--data", data, "--epochs", 2, "--run-dir", out, "--ranks", 2)
    run("sarlite.train", "--config", out / "config.toml", "--dry-run")
    assert b"no such" in run("sarlite.train", "--data", folder / "nowhere é", status=2)
    run("sarlite.predict", "--checkpoint", out / "checkpoint.safetensors", "--out", out / "é.csv")
    assert "müde" in (out / "é.csv").read_text(encoding="utf-8")
    run("sarlite.report", out, "--out", out / "page.html")
