"""Splits by time and sampling in time, on the command line and in Trainer: the rows of each split, and refusals."""

import json

import numpy as np
import pytest

from sarlite import Graph, Trainer, nn, optim
from sarlite.cli.train_command import main as train
from sarlite.comm import threads
from sarlite.data import format, from_tables
from sarlite.errors import ConfigError, DataError
from sarlite.minibatch import NeighborLoader, Temporal
from sarlite.models import SAGE
from sarlite.tasks.time_split import TimeSplit

N = 40


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Return a graph whose node i has time i, but for the last, which has no label."""
    rng, folder = np.random.default_rng(0), tmp_path_factory.mktemp("time")
    labels = [*map(str, rng.integers(0, 2, N - 1)), ""]
    nodes = {"file": {"id": [*range(N)], "x": rng.random(N), "y": labels, "at": [*range(N)]}, "id": "id", "label": "y", "time": "at"}
    src, dst = rng.integers(0, N, 200), rng.integers(0, N, 200)
    edges = {"relation": ["node", "edge", "node"], "file": {"s": src, "d": dst, "t": np.maximum(src, dst)}, "src": "s", "dst": "d",
             "time": "t", "reverse": False}
    format.write(folder / "g", from_tables({"nodes": {"node": nodes}, "edges": [edges]}))
    return str(folder / "g")


def run(data, folder, capsys, *flags):
    status = train(["--data", data, "--run-dir", str(folder / "run"), "--epochs", "2", "--no-baseline", *flags])
    return status, capsys.readouterr()


@pytest.mark.parametrize("text, kind, expected", [
    ("10,20", "integers", [0, 1, 1, 2]), ("1970-01-01T00:00:00.00000001,1970-01-01T00:00:00.00000002Z", "dates", [0, 1, 1, 2]),
])  # fmt: skip
def test_the_first_time_of_a_split_is_in_the_split(text, kind, expected):
    assert TimeSplit.of(text, kind)([9, 10, 19, 20]).tolist() == expected


@pytest.mark.parametrize("text, kind, message", [
    ("10,20", None, "time_split 10,20: the data have no times"), ("10", "integers", "time_split 10: expected two times, A,B"),
    ("20,10", "integers", "time_split 20,10: 20 is not before 10"), ("10,10", "integers", "10 is not before 10"),
    ("10,2026-03-01", "integers", "'2026-03-01' is not a whole number"), ("10,2026-03-01", "dates", "'10' is not a date"),
])  # fmt: skip
def test_a_split_that_is_none_is_refused(text, kind, message):
    with pytest.raises(ConfigError, match=message):
        TimeSplit.of(text, kind)


def test_an_empty_split_is_refused_on_every_rank():
    def work(comm):
        TimeSplit(10, 20, "integers").check_counts(comm, np.array([0, 2]) if comm.rank else np.array([0]), "node")

    with pytest.raises(DataError, match=r"validate on \(2 train, 0 val, 1 test\)"):
        threads.run(2, work)


def test_a_run_splits_nodes_with_a_label_by_their_times(data, tmp_path, capsys):
    status, shown = run(data, tmp_path, capsys, "--time-split", "20,35", "--json")
    assert status == 0, shown.err
    assert (tmp_path / "run").is_dir() and json.loads(shown.out.strip().splitlines()[-1])
    page = (tmp_path / "run" / "config.toml").read_text()
    assert 'time_split = "20,35"' in page


BATCHES = ("--batch-size", "9", "--fanouts", "2,2,2")


@pytest.mark.parametrize("flags, message", [
    (("--temporal", "uniform"), "--temporal uniform: each seed sees the graph at its own time"),
    (("--temporal", "latest", *BATCHES, "--sampler", "replace"), "--temporal latest does not go with --sampler replace"),
    (("--temporal", "uniform", *BATCHES, "--sampler", "labor"), "--temporal uniform does not go with --sampler labor"),
    (("--temporal", "uniform", *BATCHES, "--remote", "hec"), "a cache holds rows that were computed for other times"),
    (("--temporal", "uniform", *BATCHES, "--model", "gcn"), "--model sage, gat or gin"),
    (("--temporal", "uniform", *BATCHES, "--label-inputs", "0.5"), "does not go with --label-inputs"),
    (("--time-split", "90,99"), "--time-split 90,99: no node with a label is left to validate on (39 train, 0 val, 0 test)"),
    (("--time-split", "9"), "--time-split 9: expected two times, A,B"),
])  # fmt: skip
def test_what_cannot_be_right_is_refused_with_the_flag(data, tmp_path, capsys, flags, message):
    status, shown = run(data, tmp_path, capsys, *flags)
    assert status == 2 and message in shown.err and not (tmp_path / "run").exists()


def test_data_without_times_are_refused(tmp_path, capsys):
    flags = ("--temporal", "uniform", "--batch-size", "9", "--fanouts", "2,2,2")
    status, shown = run("sbm:nodes=60", tmp_path, capsys, *flags)
    assert status == 2 and "--temporal: no times of the seeds: a column of times of their nodes" in shown.err
    status, shown = run("sbm:nodes=60", tmp_path, capsys, "--time-split", "1,2")
    assert status == 2 and "--time-split 1,2: the data have no times" in shown.err


def test_labels_of_edges_are_in_the_time_of_the_data(data, tmp_path, capsys):
    rows = "".join(f"{at},{at + 1},{at % 2},{{}}\n" for at in range(N - 1))
    for name, times in (("dates", [f"2026-03-{1 + at % 28:02}" for at in range(N - 1)]), ("integers", [*range(N - 1)])):
        (tmp_path / name).with_suffix(".csv").write_text("src,dst,kind,at\n" + rows.format(*times))
    flags = ("--temporal", "latest", *BATCHES, "--layers", "3")
    status, shown = run(data, tmp_path, capsys, *flags, "--edge-labels", f"{tmp_path}/dates.csv,labels=kind,time=at")
    assert status == 2 and "its times are dates, but the times of the data are integers" in shown.err
    labels = f"{tmp_path}/integers.csv,labels=kind,time=at"
    status, shown = run(data, tmp_path, capsys, *flags, "--edge-labels", labels, "--time-split", "20,30")
    assert status == 0, shown.err
    assert "20 to train on, 10 to validate, 9 to test" in shown.out
    status, shown = run(data, tmp_path / "other", capsys, "--edge-labels", labels.replace(",time=at", ""), "--time-split", "20,30")
    assert status == 2 and "--time-split 20,30: edge_labels" in shown.err and "needs time=COLUMN" in shown.err


def test_runs_in_time_are_the_same_on_one_rank_and_on_three(data, tmp_path, capsys):
    flags = ("--time-split", "20,35", "--temporal", "uniform", "--batch-size", "8", "--fanouts", "3,3,3", "--dtype", "float64", "--json")
    losses = []
    for ranks in ("1", "3"):
        status, shown = run(data, tmp_path / ranks, capsys, *flags, "--ranks", ranks)
        assert status == 0, shown.err
        lines = (tmp_path / ranks / "run" / "metrics.jsonl").read_text().splitlines()
        losses.append([(json.loads(line)["loss"], json.loads(line)["val_accuracy"]) for line in lines])
    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-10)


def test_a_run_does_not_go_on_with_other_times(data, tmp_path, capsys):
    """The times of a node, and the times of an edge, are part of the identity of a run's data."""
    format.write(tmp_path / "g", format.open(data))
    batches = ("--temporal", "latest", "--batch-size", "8", "--fanouts", "3,3,3")
    status, shown = run(str(tmp_path / "g"), tmp_path, capsys, "--time-split", "20,35", *batches)
    assert status == 0, shown.err
    for place, field in (("target_nodes", "time"), ("one_relation", "edge_time")):
        changed = format.open(data)
        table, times = getattr(changed, place), np.array(getattr(getattr(changed, place), field))
        times[3] += 1
        setattr(table, field, times)
        format.write(tmp_path / "g", changed, overwrite=True)
        assert train(["--resume", str(tmp_path / "run"), "--epochs", "3"]) == 2
        assert "are not --data" in capsys.readouterr().err
    format.write(tmp_path / "g", format.open(data), overwrite=True)
    assert train(["--resume", str(tmp_path / "run"), "--epochs", "3"]) == 0


def test_a_trainer_scores_and_predicts_by_the_rule_of_its_batches():
    graph, x, labels = Graph.from_edges([0, 1], [1, 2], 3).with_edge_values(time=[1, 2]), np.eye(3), np.array([0, 1, 0])
    loader = NeighborLoader(graph, x, labels, slice(None), fanouts=(2, 2), batch_size=3, temporal=Temporal(seeds=[1, 1, 1]))

    def trainer(**options):
        rng = nn.Random(0)
        return Trainer(graph, SAGE(3, 2, rng=rng, dtype=np.float64), x, labels, slice(None), optimizer=lambda flat: optim.Adam(flat, 0.01),
                       rng=rng, batches=loader, **options)

    with pytest.raises(ConfigError, match="scoring: .*in time, .*later edges"):
        trainer()
    with pytest.raises(ConfigError, match="predict: .*later"):
        trainer(scoring=loader).predict()
