"""Test that the program and the commands of the fraud page run, on one rank and on three ranks."""

import json
import re
import shlex
import subprocess
import sys

import numpy as np
import pyarrow.parquet
import pytest

from tests.helpers.train.training_runs import ROOT, command

pytest.importorskip("pandas")
pytestmark = pytest.mark.timeout(300)
PAGE = (ROOT / "docs" / "how-to" / "fraud.md").read_text()


def test_the_page_finds_fraud_that_the_features_do_not_show_and_predicts_for_new_users(tmp_path):
    blocks = re.findall(r"^```(\w*)\n(.*?)^```", PAGE, re.M | re.S)
    printed = ""
    for kind, text in blocks:
        if kind == "python":
            subprocess.run([sys.executable, "-c", text], cwd=tmp_path, check=True)
        elif kind == "toml":
            (tmp_path / "graph.toml").write_text(text)
        elif kind == "text":
            assert text in printed
        for line in text.splitlines() if not kind else ():
            if not line.startswith("python -m "):
                subprocess.run(line, shell=True, cwd=tmp_path, check=True)
                continue
            _, _, module, *words = shlex.split(line)
            process = command(*words, module=module, cwd=tmp_path)
            assert process.returncode == 0, process.stderr
            printed = process.stdout
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["metric"] == "ap" and summary["best"]["scores"]["test_ap"] > 0.2
    without_edges = summary["counted"]["baseline"]
    assert summary["best"]["scores"]["test_ap"] > 3 * max(_numbers(without_edges, "test"))
    one = pyarrow.parquet.read_table(tmp_path / "risk.parquet").to_pydict()
    assert len(one["id"]) == 200 and one["id"][:2] == ["n0", "n1"] and 0 < one["class"].count("yes") < 100
    process = command(*words[:-1], "three.parquet", "--ranks", "3", module="sarlite.predict", cwd=tmp_path)
    assert process.returncode == 0, process.stderr
    three = pyarrow.parquet.read_table(tmp_path / "three.parquet").to_pydict()
    assert three["id"] == one["id"]
    np.testing.assert_allclose(three["p_yes"], one["p_yes"], rtol=1e-4, atol=1e-6)


def _numbers(summary, split):
    """Return the numbers under keys that name a split, anywhere in nested dicts."""
    if not isinstance(summary, dict):
        return []
    numbers = [value for key, value in summary.items() if split in str(key) and isinstance(value, float)]
    return numbers + [number for value in summary.values() for number in _numbers(value, split)]
