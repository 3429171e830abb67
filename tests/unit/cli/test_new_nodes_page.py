"""Test that the commands of the page on new nodes run, on one rank and on three ranks, and print the page's lines."""

import re
import shlex
import subprocess

import numpy as np
import pyarrow.parquet
import pytest

from tests.helpers.train.training_runs import ROOT, command

pytestmark = pytest.mark.timeout(180)
PAGE = (ROOT / "docs" / "how-to" / "new-nodes.md").read_text()


def test_the_page_predicts_for_new_nodes_the_same_on_one_rank_and_on_three(tmp_path):
    blocks = re.findall(r"^```(\w*)\n(.*?)^```", PAGE, re.M | re.S)
    printed = []
    for kind, text in blocks:
        if kind == "toml":
            (tmp_path / "graph.toml").write_text(text)
        for line in text.splitlines() if not kind else ():
            if line.startswith("python -m "):
                _, _, module, *words = shlex.split(line)
                process = command(*words, module=module, cwd=tmp_path)
                assert process.returncode == 0, process.stderr
                printed.append((words, process.stderr))
            else:
                subprocess.run(line, shell=True, cwd=tmp_path, check=True)
    (expected,) = (text for kind, text in blocks if kind == "text")
    words, stderr = printed[-1]
    assert expected in stderr
    one = pyarrow.parquet.read_table(tmp_path / "new" / "risk.parquet").to_pydict()
    assert [*one] == ["id", "class", "p_high", "p_low"] and one["id"] == ["gil", "hal", "ann"]
    process = command(*words[:-1], "new/three.parquet", "--ranks", "3", module="sarlite.predict", cwd=tmp_path)
    assert process.returncode == 0 and expected in process.stderr, process.stderr
    three = pyarrow.parquet.read_table(tmp_path / "new" / "three.parquet").to_pydict()
    assert three["id"] == one["id"] and three["class"] == one["class"]
    for name in ("p_high", "p_low"):
        np.testing.assert_allclose(three[name], one[name], rtol=1e-5)
    assert abs(one["p_high"][0] - one["p_high"][2]) > 1e-4
