"""Test the report's curves against scikit-learn, colours by run, dashes by split, and the order of runs."""

import json
import re

import numpy as np
import pytest
from sklearn import metrics as reference

from sarlite.cli import report_command
from sarlite.cli.charts import COLOURS, DASHES, Curve, LineChart, colour
from sarlite.cli.score_charts import ScoreCounts, calibration, precision_by_recall, roc, threshold_rows
from sarlite.data import format
from sarlite.tasks.metric_table import lower_is_better
from sarlite.tasks.outcome_counts import SCORE_EDGES, score_counts
from tests.helpers.train.task_data import rare, stored
from tests.helpers.train.training_runs import train_here

DRAW = np.random.default_rng(0)
TRUE = DRAW.random(4000) < 0.1
LOGITS = np.round((DRAW.standard_normal(4000) + 2 * TRUE - 2) * 4) / 4 + 0.05  # in the middle of bins
OUTPUT = np.stack([np.zeros(4000), LOGITS], 1)


def counts():
    return ScoreCounts(SCORE_EDGES, *score_counts(OUTPUT, TRUE.astype(int), 1).astype(float))


def test_curves_are_scikit_learns():
    outcome = counts()
    assert outcome.negative.sum() == (~TRUE).sum() and outcome.positive.sum() == TRUE.sum()
    false, true, _ = reference.roc_curve(TRUE, LOGITS, drop_intermediate=False)
    assert set(zip(false.round(12), true.round(12))) == {(round(a, 12), round(b, 12)) for a, b in roc(outcome)}
    precision, recall, _ = reference.precision_recall_curve(TRUE, LOGITS)
    expected = {*zip(recall[:-1].round(12), precision[:-1].round(12))}
    assert expected == {(round(a, 12), round(b, 12)) for a, b in precision_by_recall(outcome)}


def test_calibration_is_the_share_in_each_tenth():
    p = 1 / (1 + np.exp(-LOGITS))
    drawn = calibration(counts())
    for probability, share in drawn:
        in_bin = (p >= np.floor(probability * 10) / 10) & (p < np.floor(probability * 10) / 10 + 0.1)
        assert share == pytest.approx(TRUE[in_bin].mean(), abs=0.02) and probability == pytest.approx(p[in_bin].mean(), abs=0.02)
    assert len(drawn) >= 8


def test_rows_by_threshold_are_a_confusion_matrix():
    outcome = {"scores": {"edges": SCORE_EDGES.tolist(), "ranked": True,
                          "splits": {"test": score_counts(OUTPUT, TRUE.astype(int), 1).tolist()}}}
    split, rows = threshold_rows(outcome)
    predicted = LOGITS > 0
    [half] = [row for row in rows if row[0] == "0.5"]
    (rest, false), (missed, true) = reference.confusion_matrix(TRUE, predicted)
    assert split == "test" and half[1:5] == (true, false, missed, rest)
    assert half[5] == f"{reference.precision_score(TRUE, predicted):.4f}" and half[7] == f"{reference.f1_score(TRUE, predicted):.4f}"


def test_colour_means_run_and_dash_means_split():
    names = [f"run {number}" for number in range(COLOURS + 4)]
    text = LineChart("t", [Curve(name, split, [(0, 0), (1, number)]) for number, name in enumerate(names) for split in DASHES]).html()
    curves = re.findall(r'<polyline class="line" stroke="([^"]+)" stroke-dasharray="([^"]*)"', text)
    assert [dash for _, dash in curves] == [*DASHES.values()] * len(names)
    assert [stroke for stroke, _ in curves[::3]] == [colour(number) for number in range(len(names))]
    assert len({stroke for stroke, _ in curves}) == len(names)
    assert all(f"</i>{name}</span>" in text for name in names) and all(f"</svg>{split}</span>" in text for split in DASHES)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    format.write(folder / "data", rare())
    for name, lr in (("slow", 0.001), ("fast", 0.05), ("middle", 0.02)):
        train_here(folder / name, "--data", folder / "data", "--epochs", 6, "--lr", lr)
    return folder


def page(folder, *names):
    assert report_command.main([*(str(folder / name) for name in names), "--out", str(folder / "page.html")]) == 0
    return (folder / "page.html").read_text()


def test_runs_are_sorted_and_only_options_that_differ_are_columns(runs):
    text = page(runs, "slow", "fast", "middle")
    table = text[text.index("<table>"):text.index("</table>")]
    best = {name: json.loads((runs / name / "summary.json").read_text())["best"]["scores"]["val_ap"] for name in ("slow", "fast", "middle")}
    order = sorted(best, key=best.get, reverse=True)
    assert re.findall(r">[^<]*/(slow|fast|middle)<", table) == order
    assert "<th>lr</th>" in table and "<th>epochs</th>" in table and "<th>seed</th>" not in table and "<th>no edges</th>" in table


def test_runs_share_the_charts_of_probabilities(runs):
    text = page(runs, "slow", "fast")
    for title in ("precision by recall", "ROC: true positives", "calibration: share", "rows by threshold, val"):
        assert title in text
    chart = text[text.index("precision by recall"):]
    assert len(re.findall("<polyline", chart[:chart.index("</figure>")])) == 6


def test_of_several_classes_there_is_calibration_alone(tmp_path):
    train_here(tmp_path / "run", "--epochs", 1)
    text = page(tmp_path, "run")
    assert "calibration: share" in text and "ROC" not in text and "rows by threshold" not in text


def test_other_tasks_have_no_probabilities(tmp_path):
    train_here(tmp_path / "run", "--epochs", 1, "--data", stored(tmp_path, "regress"))
    assert "calibration" not in page(tmp_path, "run")
    assert lower_is_better("rmse") and lower_is_better("brier") and not lower_is_better("top@3") and not lower_is_better("mrr")


@pytest.mark.parametrize("scores", [
    {"edges": [0, 1], "splits": {"val": [[1, 2], [3, 4]]}}, {"edges": [1, 0], "splits": {"val": [[1], [3]]}},
    {"edges": "x", "splits": {}}, {"edges": [0, 1], "splits": {"val": [[-1], [3]]}}, {"ranked": True},
])  # fmt: skip
def test_a_summary_that_no_run_leaves(scores, runs, capsys):
    path = runs / "slow" / "summary.json"
    before = path.read_text()
    summary = json.loads(before)
    summary["outcome"]["scores"] = scores
    path.write_text(json.dumps(summary))
    assert report_command.main([str(runs / "slow"), "--out", str(runs / "page.html")]) == 2
    path.write_text(before)
    assert f"{path}: " in (message := capsys.readouterr().err) and message.count("\n") == 1
