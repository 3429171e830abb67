"""The page on recommendations: its program and commands as pasted, with a model that beats popularity, on one rank and on three."""

import csv
import json
import re
import shlex
import subprocess
import sys

import pytest

from tests.helpers.train.training_runs import ROOT, command

pytestmark = pytest.mark.timeout(300)
PAGE = (ROOT / "docs" / "how-to" / "recommend.md").read_text()
NUMBER = re.compile(r"[0-9]+\.[0-9]+(?= %)")


def test_the_page_recommends_items_better_than_popularity(tmp_path):
    blocks = re.findall(r"^```(\w*)\n(.*?)^```", PAGE, re.M | re.S)
    printed, trained = "", []
    for kind, text in blocks:
        if kind == "python":
            subprocess.run([sys.executable, "-c", text], cwd=tmp_path, check=True)
        elif kind == "toml":
            (tmp_path / "graph.toml").write_text(text)
        for line in text.splitlines():
            if kind == "text":
                assert_told(line, printed)
            elif not kind:
                _, _, module, *words = shlex.split(line)
                output = command(*words, module=module, cwd=tmp_path)
                assert output.returncode == 0, output.stderr
                if module == "sarlite.train":
                    printed, trained = output.stdout, words
                    assert "does not beat popularity" not in output.stderr
    compared = json.loads((tmp_path / "run" / "summary.json").read_text())["counted"]["compared"]
    for scores in compared.values():
        assert scores["model"]["test"] > 1.5 * scores["popularity"]["test"] > 0
    with (tmp_path / "recommended.csv").open() as file:
        rows = list(csv.DictReader(file))
    bought = {tuple(line.split(",")) for line in (tmp_path / "buys.csv").read_text().split()}
    assert len(rows) == 400 * 5 and not {(row["source"], row["destination"]) for row in rows} & bought
    output = command(*trained[:-1], "three", "--ranks", "3", "--epochs", "2", module="sarlite.train", cwd=tmp_path)
    assert output.returncode == 0, output.stderr
    three = json.loads((tmp_path / "three" / "summary.json").read_text())["counted"]["compared"]
    for name, scores in compared.items():
        assert three[name]["popularity"] == scores["popularity"]


def assert_told(line, output):
    """Fail unless a line of a run says what a line of the page says, its numbers within 4 % of the whole."""
    pattern = NUMBER.sub("#", line)
    same = [other for other in output.splitlines()
            if re.sub("epoch [0-9]+", "", NUMBER.sub("#", other)) == re.sub("epoch [0-9]+", "", pattern)]
    assert len(same) == 1, (line, output)
    for one, other in zip(NUMBER.findall(line), NUMBER.findall(same[0]), strict=True):
        assert float(one) == pytest.approx(float(other), abs=4)
