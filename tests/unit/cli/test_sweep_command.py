"""Test sarlite-sweep: the values of its runs, continued sweeps, and errors."""

import json
import signal
import subprocess
import sys
import time

import pytest

pytest.importorskip("optuna", reason="the search draws its values with Optuna")

from sarlite.cli import sweep_command
from sarlite.cli.sweep_command import main, read_search, waves
from tests.helpers.train.training_runs import start_here

RUN = 'data = "sbm:nodes=120,classes=3,features=8"\nepochs = 9\nmodel = "sage"\nhidden = 4\n'
GRID = f"[run]\n{RUN}[search]\nlr = [0.001, 0.1]\ndropout = [0.0, 0.5]\n"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def here(monkeypatch):
    """Let sweeps train in this process, which saves the starts of processes."""
    monkeypatch.setattr(sweep_command, "start_training", start_here)


def write(folder, text):
    (folder / "grid.toml").write_text(text)
    return str(folder / "grid.toml")


def ranking(folder):
    return json.loads((folder / "ranking.json").read_text())


def test_a_grid_trains_every_combination_and_ranks_by_the_best_validation_metric(folder, capsys):
    assert main([write(folder, GRID), "--folder", "out", "--jobs", "2"]) == 0
    ranked = ranking(folder / "out")
    assert sorted((run["options"]["lr"], run["options"]["dropout"]) for run in ranked) == [
        (0.001, 0.0), (0.001, 0.5), (0.1, 0.0), (0.1, 0.5)]
    scores = [run["score"] for run in ranked]
    assert scores == sorted(scores, reverse=True)
    for run in ranked:
        lines = [json.loads(line) for line in (folder / "out" / run["folder"] / "metrics.jsonl").read_text().splitlines()]
        assert run["score"] == max(line["val_accuracy"] for line in lines) and len(lines) == 9
    table = capsys.readouterr().out.splitlines()
    assert table[0].split() == ["run", "lr", "dropout", "epochs", "accuracy", "test"]
    assert [line.split()[0] for line in table[1:]] == [run["folder"] for run in ranked]
    assert "<svg" in (folder / "out" / "report.html").read_text()


def test_a_sweep_that_ended_starts_no_process_again(folder, here, monkeypatch, capsys):
    argv = [write(folder, GRID), "--folder", "out"]
    assert main(argv) == 0
    first = capsys.readouterr().out

    def refuse(*_, **__):
        raise AssertionError("a run was started again")

    monkeypatch.setattr(sweep_command, "start_training", refuse)
    assert main(argv) == 0
    assert capsys.readouterr().out == first


def test_halving_trains_only_the_best_third_for_all_epochs(folder, here, capsys):
    text = f"[run]\n{RUN}[search]\nlr = {{ from = 1e-4, to = 1e-1, log = true }}\n"
    assert main([write(folder, text), "--folder", "out", "--method", "halving", "--trials", "6"]) == 0
    ranked = ranking(folder / "out")
    assert [run["epochs"] for run in ranked] == [9, 9, 3, 3, 3, 3]
    lines = {run["folder"]: len((folder / "out" / run["folder"] / "metrics.jsonl").read_text().splitlines()) for run in ranked}
    assert [lines[run["folder"]] for run in ranked] == [9, 9, 3, 3, 3, 3]
    short = {run["folder"]: max(json.loads(line)["val_accuracy"] for line in (
        folder / "out" / run["folder"] / "metrics.jsonl").read_text().splitlines()[:3]) for run in ranked}
    went_on = [short[run["folder"]] for run in ranked[:2]]
    assert min(went_on) >= max(short[run["folder"]] for run in ranked[2:])


def test_a_stopped_sweep_goes_on_where_it_was(folder, capsys):
    text = GRID.replace("epochs = 9", "epochs = 300").replace("lr = [0.001, 0.1]", "lr = [0.01]")
    argv = [write(folder, text), "--folder", "out", "--jobs", "2"]
    process = subprocess.Popen([sys.executable, "-m", "sarlite.sweep", *argv], stderr=subprocess.PIPE, text=True)
    metrics = folder / "out" / "run-000" / "metrics.jsonl"
    end = time.monotonic() + 60
    while time.monotonic() < end and not (metrics.exists() and metrics.stat().st_size):
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 143 and "the same command continues" in errors
    before = len(metrics.read_text().splitlines())
    assert 0 < before < 300
    assert main(argv) == 0
    numbers = [json.loads(line)["epoch"] for line in metrics.read_text().splitlines()]
    assert numbers == list(range(1, 301))


def test_a_combination_that_is_refused_is_a_failed_run_and_the_others_go_on(folder, capsys):
    shared = RUN.replace('model = "sage"', "")
    text = f'[run]\n{shared}[search]\nmodel = ["gcn", "gat"]\nheads = [2]\n'
    assert main([write(folder, text), "--folder", "out"]) == 0
    good, failed = ranking(folder / "out")
    assert good["options"]["model"] == "gat" and good["score"] is not None
    assert failed["options"]["model"] == "gcn" and "heads" in failed["error"] and failed["score"] is None


def test_a_folder_of_another_sweep_is_refused(folder, capsys):
    assert main([write(folder, GRID.replace("[0.001, 0.1]", "[0.1]")), "--folder", "out"]) == 0
    assert main([write(folder, GRID.replace("[0.001, 0.1]", "[0.2]")), "--folder", "out"]) == 2
    error = capsys.readouterr().err
    assert "lr = 0.1" in error and "0.2" in error and "--folder" in error


@pytest.mark.parametrize("text, words", [
    ("[run]\nepochs = 2\n", ["search"]),
    ("[serach]\nlr = [1]\n", ["serach", "search"]),
    ("[search]\nlrr = [0.1]\n", ["lrr", "lr"]),
    ("[search]\nlr = 0.1\n", ["lr", "0.1", "list"]),
    ("[search]\nlr = []\n", ["lr", "list"]),
    ("[search]\nlr = { from = 0.1, to = 0.01 }\n", ["lr", "0.1", "0.01"]),
    ("[search]\nweight_decay = { from = 0.0, to = 0.1, log = true }\n", ["weight_decay", "logarithm"]),
    ("[search]\ndropout = [0.5, 1.5]\n", ["dropout", "1.5"]),
    ("[search]\nmodel = { from = 1, to = 2 }\n", ["model", "list"]),
    ("[run]\nlr = 0.1\n[search]\nlr = [0.1]\n", ["lr", "[run]", "[search]"]),
    ("[search]\nepochs = [2, 4]\n", ["epochs", "[run]"]),
    ("[run]\nstop_after = 3\n[search]\nlr = [0.1]\n", ["stop_after", "itself"]),
    ('[search]\nrun_dir = ["a", "b"]\n', ["run_dir", "itself"]),
])
def test_a_file_that_makes_no_sweep_is_refused_by_name(folder, capsys, text, words):
    assert main([write(folder, text)]) == 2
    error = capsys.readouterr().err
    assert all(word in error for word in words) and "grid.toml" in error and error.count("\n") == 1


def test_drawn_values_depend_on_the_seed_alone(folder):
    search = read_search(write(folder, "[search]\nlr = { from = 1e-4, to = 1e-1, log = true }\nlayers = { from = 2, to = 4 }\n"))

    def values(seed):
        return [trial.params for wave, _ in waves(search, "random", 5, 2, seed) for trial in wave]

    assert values(0) == values(0) != values(1)
    assert all(1e-4 <= each["lr"] <= 1e-1 and each["layers"] in (2, 3, 4) for each in values(0))
