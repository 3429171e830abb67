"""Test that the report shows the contents of the runs' files, needs no network, and refuses invalid files."""

import json
import os
import re
import shutil
import subprocess
from html.parser import HTMLParser

import numpy as np
import pytest

from sarlite.cli import report_command
from sarlite.cli.charts import ticks
from sarlite.tasks.outcome_counts import confusion, histogram
from tests.helpers.train import task_data
from tests.helpers.train.training_runs import train_here

pytestmark = pytest.mark.timeout(120)


def test_rows_are_counted_by_class_and_by_bin():
    output = np.array([[2, 1, 0], [0, 3, 1], [0, 1, 2.0], [0, 5, 1]])
    assert confusion(3)(output, np.array([0, 0, 2, 1])).tolist() == [[1, 1, 0], [0, 1, 0], [0, 0, 1]]
    count = histogram(lambda output, labels: [output[:, 0], output[labels == 1, 1]], np.arange(4.0))
    assert count(np.array([[-5, 0.5], [1.5, 9], [3, 2]]), np.array([0, 1, 1])).tolist() == [[1, 1, 1], [0, 0, 2]]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Return a folder with three runs: on two ranks with a trace, with a name that needs escaping, and unfinished."""
    folder = tmp_path_factory.mktemp("runs")
    train_here(folder / "one", "--epochs", 4, "--ranks", 2, "--trace", folder / "trace.json", "--lr-schedule", "cosine")
    train_here(folder / "<b>two", "--epochs", 2, "--model", "gcn")
    train_here(folder / "open", "--epochs", 2)
    (folder / "open" / "summary.json").unlink()
    return folder


class Page(HTMLParser):
    """Parser of the page that collects texts and checks that tags are closed."""

    def __init__(self, text):
        super().__init__()
        self.open, self.texts, self.lines = [], [], []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        if tag not in ("meta",):
            self.open.append(tag)
        if tag == "polyline":
            self.lines.append(dict(attrs)["points"].split())

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_startendtag(self, tag, attrs):
        pass

    def handle_data(self, data):
        self.texts.append(data)


def page(runs, *names, out="page.html", flags=()):
    assert report_command.main([*(str(runs / name) for name in names), "--out", str(runs / out), *map(str, flags)]) == 0
    return (runs / out).read_text()


def test_a_page_says_what_the_files_say(runs):
    text = page(runs, "one", flags=["--trace", runs / "trace.json"])
    parsed, summary = Page(text), json.loads((runs / "one" / "summary.json").read_text())
    drawn = [line for line in parsed.lines if len(line) <= 5]
    assert len(drawn) == 7  # losses, seconds, rates, 3 accuracies; a line's end is drawn twice
    for title in ("loss by epoch", "accuracy by epoch", "learning rate by epoch", "edges of a part", "Timeline"):
        assert any(title in shown for shown in parsed.texts)
    assert f"{summary['best']['scores']['test_accuracy']:.4f}" in parsed.texts and "forward_fetch" in parsed.texts
    assert "rank 1" in parsed.texts and "0:1" in parsed.texts and "1:1" in parsed.texts
    assert not re.search(r"https?:|<script|<link|url\(|src=", text)


def test_a_run_tells_pairs_of_ranks_tiles_and_the_best_models_classes(runs):
    summary, texts = json.loads((runs / "one" / "summary.json").read_text()), Page(page(runs, "one")).texts
    sent, pairs = summary["counted"]["sent_bytes"], summary["sent_pairs"]
    assert {phase: sum(map(sum, values)) for phase, values in pairs.items() if phase != "evaluation"} == {
        phase: n for phase, n in sent.items() if phase.startswith(("forward", "backward"))} and pairs["evaluation"][0][0] == 0
    assert [sum(row) for row in summary["tiles"]] == summary["data"]["partition"]["edges"]
    for split, rows in summary["outcome"]["splits"].items():
        right = sum(row[k] for k, row in enumerate(rows)) / sum(map(sum, rows))
        assert right == pytest.approx(summary["best"]["scores"][f"{split}_accuracy"])
    assert any("confusion, test" in shown for shown in texts) and any("edges by pair of parts" in shown for shown in texts)


def test_a_column_stands_once_and_what_one_rank_does_not_send_has_no_chart(runs):
    text = page(runs, "one", "<b>two", "open")
    assert text.count("<th>ranks</th>") == text.count("<th>mode</th>") == text.count("<th>epochs</th>") == 1
    assert "bytes that all ranks sent" in text and "bytes that all ranks sent" not in page(runs, "<b>two")
    assert text.count("<table>") == text.count('<div class="table"><table>')  # a narrow window scrolls the table, not the page


def test_a_histogram_of_labels_and_of_errors(runs, tmp_path):
    for task in ("multilabel", "regress"):
        train_here(tmp_path / task, "--epochs", 1, "--data", task_data.stored(tmp_path, task))
        outcome = json.loads((tmp_path / task / "summary.json").read_text())["outcome"]
        assert outcome["kind"] == "histogram" and sum(map(sum, outcome["splits"]["test"])) > 0
        assert "histogram, test" in page(tmp_path, task)


def test_runs_share_their_charts_and_names_are_no_html(runs):
    text = page(runs, "one", "<b>two", "open")
    parsed = Page(text)
    assert len(parsed.lines) == 3 * 7 + 2 * 3 and "<b>" not in text and "not ended" in parsed.texts  # and calibration of the two that ended
    assert str(runs / "<b>two") in parsed.texts and "train" in parsed.texts


@pytest.mark.parametrize("change", [{"versions": "1.0"}, {"seconds": {"load": 1e400, "partition": 0, "epochs": 0}}, {"tiles": [["1"]]},
                                    {"outcome": {"splits": {"val": 3}}}, {"best": []}])  # fmt: skip
def test_a_summary_that_no_run_leaves(runs, tmp_path, capsys, change):
    shutil.copytree(runs / "one", tmp_path / "run")
    path = tmp_path / "run" / "summary.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    assert report_command.main([str(tmp_path / "run"), "--out", str(tmp_path / "page.html")]) == 2
    assert f"{path}: " in (message := capsys.readouterr().err) and message.count("\n") == 1


@pytest.mark.parametrize("file, text, message", [
    ("metrics.jsonl", None, "not the folder of a run: it has no metrics.jsonl"),
    ("metrics.jsonl", "", "metrics.jsonl: the file has no epoch"),
    ("metrics.jsonl", '{"epoch": 1}\nnotes\n', "metrics.jsonl: line 2: "),
    ("metrics.jsonl", '{"epoch": 1, "loss": "low"}\n', "metrics.jsonl: line 1: loss: cannot be read: 'low' is not a finite number"),
    ("metrics.jsonl", '{"epoch": 1, "loss": 1e400}\n', "line 1: loss: cannot be read: inf is not a finite number"),
    ("metrics.jsonl", '{"epoch": 1, "loss": "' + "x" * 5000 + '"}\n', "x ... x"),
    ("metrics.jsonl", '{"loss": 1}\n', "line 1: the record has no epoch"),
    ("summary.json", "{}", "summary.json: sarlite_summary is None, expected 1"),
    ("summary.json", '{"sarlite_summary": 1}', "summary.json: "),
    ("summary.json", "[" * 10000, "summary.json: "),
    ("config.toml", "a = ", "config.toml"),
    *((file, "a pipe", f"{file}: ") for file in ("config.toml", "metrics.jsonl", "summary.json")),
])  # fmt: skip
def test_what_no_run_leaves_is_refused(runs, tmp_path, capsys, file, text, message):
    shutil.copytree(runs / "one", tmp_path / "run")
    (tmp_path / "run" / file).unlink()
    if text == "a pipe":
        os.mkfifo(tmp_path / "run" / file)
    elif text is not None:
        (tmp_path / "run" / file).write_text(text)
    assert report_command.main([str(tmp_path / "run"), "--out", str(tmp_path / "page.html")]) == 2
    assert message in (shown := capsys.readouterr().err) and shown.count("\n") == 1 and not (tmp_path / "page.html").exists()


def test_what_the_command_refuses(runs, tmp_path, capsys):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "trace.json").write_text('{"traceEvents": [{"ph": "X", "name": "x", "pid": "a"}]}')
    for flags, message in ((["--trace", tmp_path / "trace.json"], "trace.json: "),
                        (["--trace", tmp_path / "pipe"], "pipe: cannot be read: it is not a regular file"),
                        (["--out", tmp_path], f"{tmp_path}"),
                        ([runs / "one"], f"{runs / 'one'} is named twice")):
        assert report_command.main([str(runs / "one"), *map(str, flags)]) == 2 and message in capsys.readouterr().err


@pytest.mark.parametrize("low, high", [(0, 1), (0.83, 0.8301), (-3e-9, 2e5), (5, 5), (0, 0), (1, 200)])
def test_ticks_are_few_and_inside(low, high):
    numbers = ticks(low, high)
    assert 1 <= len(numbers) <= 7 and numbers == sorted(numbers)
    assert high == low or all(low - 1e-6 <= tick <= high * (1 + 1e-9) for tick in numbers)


def test_a_browser_draws_it(runs, tmp_path):
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        pytest.skip("no chromium here")
    drawn = page(runs, "one").count("<polyline")
    done = subprocess.run([browser, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path}", "--dump-dom",
                           f"file://{runs / 'page.html'}"], capture_output=True, text=True, timeout=60)  # fmt: skip
    assert done.returncode == 0 and done.stdout.count("<polyline") == drawn >= 7
