"""The pytest plugin, run in a pytest of its own, also with xdist: failures, skips, and the summary of coverage."""

import os
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

import pytest

from sarlite.oracle import sarcase

pytestmark = pytest.mark.timeout(120)
ROOT = Path(__file__).parents[3]
PLUGIN = "sarlite_oracle" if entry_points(group="pytest11", name="sarlite_oracle") else "sarlite.oracle.plugin"
TESTS = """
import sys
import pytest
assert "numpy" not in sys.modules and "sarlite.oracle.check_report" not in sys.modules, "the plugin is heavy"

def spmm(case):
    import numpy as np
    out = np.zeros((case.n_dst, *case.x.shape[1:]), case.x.dtype)
    np.add.at(out, case.dst, case.x[case.src])
    return out

def lossy(case):
    out = spmm(case)
    out[1:2] = 0
    return out

def refuses(case):
    raise NotImplementedError("bipartite")

FEW = {"graphs": "in-star-[234]", "reduce": "sum"}

def test_right(sarlite_oracle):
    assert (sarlite_oracle.level, sarlite_oracle.seed) == ("probe", 3)
    assert "seed 3" in sarlite_oracle.check(spmm, "spmm", **FEW).what

def test_wrong(sarlite_oracle):
    sarlite_oracle.check(lossy, "spmm", graphs="clique-3")

@pytest.mark.oracle_expected_failures("clique-*")
def test_expected(sarlite_oracle):
    sarlite_oracle.check(lossy, "spmm", graphs="clique-3")

def test_refused(sarlite_oracle):
    sarlite_oracle.check(refuses, "spmm", **FEW)

@pytest.mark.skip(reason="no GPU here")
def test_skipped(sarlite_oracle):
    pass

def test_imports(sarlite_oracle):
    pytest.importorskip("no_such_framework")

def test_other():
    pass
"""
SUMMARY = (
    "::test_right: PASS, ", "  not covered: gradients: no vjp was given", "::test_wrong: WRONG, ", "::test_expected: ",
    "  expected failure: probe, clique-3",
    "::test_refused: not covered, skipped: nothing was checked", "::test_skipped: not covered, skipped: no GPU here",
    "::test_imports: not covered, skipped: could not import 'no_such_framework'",
)  # fmt: skip


@pytest.mark.parametrize("words", [("-n", "1")], ids=["xdist"])  # what comes through xdist comes without it
def test_the_plugin_fails_skips_and_summarises(tmp_path, words):
    (tmp_path / "test_kernels.py").write_text(TESTS)
    (tmp_path / "pytest.ini").write_text("[pytest]\noracle_level = probe\noracle_expected_failures =\n    nowhere-*\n")
    command = [sys.executable, "-m", "pytest", "-p", PLUGIN, "-p", "no:cacheprovider", "--strict-markers", *words, "--oracle-seed", "3",
               "--oracle-save", "cases"]
    env = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST", "PMI_"))} | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=100)
    assert done.returncode == 1 and "1 failed, 3 passed, 3 skipped" in done.stdout, done.stdout + done.stderr
    summary = done.stdout[done.stdout.index("sarlite.oracle: what was covered"):]
    assert [text for text in SUMMARY if text not in summary] == []
    assert "test_other" not in summary
    (saved,) = (tmp_path / "cases").iterdir()
    assert saved.name == "test_kernels.py-test_wrong.sarcase" and sarcase.load(saved).finding.node == 1
