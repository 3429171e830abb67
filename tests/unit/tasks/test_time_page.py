"""The page on time: its commands as pasted, on one rank and on three, and its Python."""

import csv
import re
import shlex
import subprocess
import sys

import numpy as np
import pytest

from tests.helpers.train.training_runs import ROOT, command

pytestmark = pytest.mark.timeout(180)
PAGE = (ROOT / "docs" / "how-to" / "time.md").read_text()


def test_the_page_trains_and_predicts_in_time_the_same_on_one_rank_and_on_three(tmp_path):
    last, printed = None, ""
    for kind, text in re.findall(r"^```(\w*)\n(.*?)^```", PAGE, re.M | re.S):
        if kind == "toml":
            (tmp_path / "graph.toml").write_text(text)
        if kind == "python":
            printed = subprocess.run([sys.executable, "-c", text], cwd=tmp_path, check=True, capture_output=True, text=True).stdout
        if kind == "text":
            assert printed == text
        for line in text.splitlines() if not kind else ():
            _, _, module, *last = shlex.split(line)
            output = command(*last, module=module, cwd=tmp_path)
            assert output.returncode == 0, output.stderr
    output = command(*last[:-1], "three.csv", "--ranks", "3", module="sarlite.predict", cwd=tmp_path)
    assert output.returncode == 0, output.stderr
    one, three = ([*csv.DictReader((tmp_path / name).open())] for name in ("fraud.csv", "three.csv"))
    assert [row["id"] for row in one] == [row["id"] for row in three] and len(one) == 1500
    np.testing.assert_allclose([float(row["p_1"]) for row in one], [float(row["p_1"]) for row in three], rtol=1e-4)
