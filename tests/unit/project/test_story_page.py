"""The story's page: its program and commands as pasted, the scores that it quotes, and explanations in time."""

import csv
import re
import shlex
import subprocess
import sys

import pytest

from tests.helpers.train.training_runs import ROOT, command

pytest.importorskip("pandas")
pytestmark = pytest.mark.timeout(300)
PAGE = (ROOT / "docs" / "story.md").read_text()


def test_the_page_sees_the_leak_trains_in_time_and_explains_new_users(tmp_path):
    printed = {}
    for kind, text in re.findall(r"^```(\w*)\n(.*?)^```", PAGE, re.M | re.S):
        if kind == "python":
            subprocess.run([sys.executable, "-c", text], cwd=tmp_path, check=True)
        elif kind == "toml":
            (tmp_path / "graph.toml").write_text(text)
        elif kind == "text":
            for line in text.splitlines():
                assert_like(line, printed["sarlite.train"])
        for line in text.splitlines() if not kind else ():
            if not line.startswith("python -m "):
                subprocess.run(line.replace("python -c", f"{sys.executable} -c"), shell=True, cwd=tmp_path, check=True)
                continue
            _, _, module, *words = shlex.split(line)
            run = command(*words, module=module, cwd=tmp_path)
            assert run.returncode == 0, run.stderr
            printed[module] = run.stdout
    assert f"with {len((tmp_path / 'new' / 'ids.csv').read_text().split())} users more" in PAGE
    with (tmp_path / "why.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if (row["kind"], row["method"], row["rank"]) == ("feature", "occlusion", "1")]
    assert [row["name"] for row in rows] == ["learned rows of device"] * 3


def assert_like(line, printed):
    """Assert that a line is printed, with percentages that are at most 6 points away."""
    (like,) = [other for other in printed.splitlines() if other.split("  ")[0] == line.split("  ")[0]]
    quoted, scores = (re.findall(r"([\d.]+) %", text) for text in (line, like))
    assert len(quoted) == len(scores) == 3 and all(abs(float(a) - float(b)) < 6 for a, b in zip(quoted, scores)), like
