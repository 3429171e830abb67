"""The page on explanations: its program and commands as pasted, and the feature and edge of rank 1, on one and three ranks."""

import csv
import re
import shlex
import subprocess
import sys

import pytest

from tests.helpers.train.training_runs import ROOT, command

pytestmark = pytest.mark.timeout(180)
PAGE = (ROOT / "docs" / "how-to" / "explain.md").read_text()


def test_the_page_explains_three_predictions_the_same_on_one_rank_and_on_three(tmp_path):
    printed = ""
    for kind, text in re.findall(r"^```(\w*)\n(.*?)^```", PAGE, re.M | re.S):
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
            output = command(*words, module=module, cwd=tmp_path)
            assert output.returncode == 0, output.stderr
            printed = output.stdout
    with (tmp_path / "buys.csv").open() as file:
        shops = {row["who"]: row["shop"] for row in csv.DictReader(file)}
    first = firsts(tmp_path / "explained.csv")
    for node in ("u3", "u7", "u11"):
        for method in ("integrated gradients", "occlusion"):
            assert first[node, "feature", method]["name"] == "shop.returns"
            edge = first[node, "edge", method]
            assert (edge["name"], edge["source"], edge["destination"]) == ("shop.rev_buys_from.user", shops[node], node)
        assert first[node, "column", "occlusion"]["name"].startswith("user.country=")
    words[words.index("explained.csv")], words[words.index("explained.html")] = "three.csv", "three.html"
    output = command(*words, "--ranks", "3", module=module, cwd=tmp_path)
    assert output.returncode == 0, output.stderr
    for key, row in firsts(tmp_path / "three.csv").items():
        assert row["name"] == first[key]["name"] and abs(float(row["attribution"]) - float(first[key]["attribution"])) < 1e-4
    assert (tmp_path / "explained.html").read_text().count("<h2>") == 3


def firsts(path):
    """Return the rows of rank 1, by node, kind and method."""
    with path.open() as file:
        return {(row["node"], row["kind"], row["method"]): row for row in csv.DictReader(file) if row["rank"] == "1"}
