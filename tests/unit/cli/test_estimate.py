"""Test that estimated bytes equal a run's bytes, that estimated memory is near a run's, and that errors name the option."""

import json

import numpy as np
import pytest

from sarlite.cli import estimate_command, run
from sarlite.cli.config import resolve
from sarlite.comm import threads
from sarlite.schedule.modes import MODES
from sarlite.train.cost import ARRAYS, Shape, peak_bytes, step_bytes

COUNTS = "--nodes 1e6 --edges 2e7 --features 50 --classes 9 --gflops 10 --gb-per-s 10 --network-gbit 8".split()
OPTIONS = {
    "gcn": {"layers": 3, "hidden": 16}, "sage": {"layers": 3, "hidden": 4},
    "gat": {"layers": 3, "hidden": 4, "heads": 2},
    "gatv2": {"hidden": 4, "heads": 2}, "gin": {"hidden": 6}, "gcnii": {"layers": 4, "hidden": 5}, "pna": {"hidden": 5},
    "appnp": {"hops": 3}, "sgc": {}, "sign": {"hidden": 4},
}  # fmt: skip


def rows_of(capsys, *flags):
    """Return the rows of an estimate, keyed by (mode, number of ranks)."""
    assert estimate_command.main([*flags, "--json"]) == 0
    return {(row["mode"], row["ranks"]): row for row in json.loads(capsys.readouterr().out.splitlines()[-1])}


@pytest.mark.sampled(7)
@pytest.mark.parametrize("mode", ["sar", "sa", "oneshot"])
@pytest.mark.parametrize("name", ARRAYS)
def test_the_formula_has_the_bytes_of_a_step(name, mode, tmp_path, monkeypatch):
    shapes = {}

    def note(cls, comm, *arguments):
        shapes[comm.rank] = original(comm, *arguments)
        return shapes[comm.rank]

    original = Shape.of_part
    monkeypatch.setattr(Shape, "of_part", classmethod(note))
    config = {"data": "sbm:nodes=90,degree=5,features=9", "partition": "random", "threads": 1, "prefetch": 0,
              "progress": "none", "ranks": 3, "run_dir": str(tmp_path / "run"), "dry_run": True, "model": name,
              "mode": mode, **OPTIONS[name]}
    sent = threads.run(3, lambda comm: run.train(comm, resolve(config)))[0]["sent_bytes"]["step"]
    sizes = {}
    for shape in shapes.values():
        for phase, n_bytes in step_bytes(shape).items():
            sizes[phase] = sizes.get(phase, 0) + n_bytes
    sums = {phase: n_bytes for phase, n_bytes in sent.items() if phase.startswith(("forward", "backward"))}
    assert sums.keys() == sizes.keys()
    for phase, n_bytes in sums.items():  # sections of a message are aligned
        assert sizes[phase] <= n_bytes <= 1.25 * sizes[phase], phase


def test_received_gigabytes_on_papers100m_are_the_known_numbers(capsys):
    """Compare with known GB that a rank receives per step, for full-batch GCN 128-256-256-172 on ogbn-papers100M."""
    graph = "--nodes 111059956 --edges 3231371744 --features 128 --classes 172"
    model = "--model gcn --layers 3 --hidden 256 --dropout 0"
    rows = rows_of(capsys, *graph.split(), *model.split(), *COUNTS[8:], "--ranks", "16,64,1024")
    for mode, expected in (("broadcast", [357, 374, 380]), ("sar", [302, 138, 11])):
        gigabytes = [rows[mode, size]["step_received_bytes"] / 1e9 for size in (16, 64, 1024)]
        assert np.round(gigabytes).tolist() == expected, mode


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", ARRAYS)
def test_memory_falls_with_ranks_and_grows_with_widths(name, capsys):
    rows = rows_of(capsys, *COUNTS, "--model", name, "--ranks", "1,2,8", "--prefetch", "0")
    peaks = [rows["sar", size]["peak_bytes"] for size in (1, 2, 8)]
    assert peaks[0] > 1.1 * peaks[1] > 1.5 * peaks[2]
    assert {mode for mode, size in rows if size == 8} == {*MODES}
    assert [mode for mode, size in rows if size == 1] == ["sar"]
    wider = rows_of(capsys, *COUNTS, "--features", "500", "--model", name, "--ranks", "1")["sar", 1]
    assert wider["peak_bytes"] - peaks[0] > 4 * 1e6 * 450


def test_memory_is_that_of_a_measured_run():
    shape = Shape("gcn", 128, 16, 128, 3, 1, 0, True, 20_000, 420_000, 0, 1)
    assert abs(peak_bytes(shape) / (77.4 * 2**20) - 1) < 0.2  # measured by benchmarks/estimate_error.py
    assert peak_bytes(shape._replace(itemsize=8)) > 1.7 * peak_bytes(shape)


def test_modes_that_hold_more_take_more(capsys):
    rows = rows_of(capsys, *COUNTS, "--model", "gat", "--ranks", "8", "--prefetch", "0")
    assert rows["sar", 8]["peak_bytes"] < rows["sa", 8]["peak_bytes"] < rows["oneshot", 8]["peak_bytes"]
    assert "backward_fetch" in rows["sar", 8]["received_bytes"]
    assert "backward_fetch" not in rows["sa", 8]["received_bytes"]
    ahead = rows_of(capsys, *COUNTS, "--model", "gat", "--ranks", "8", "--prefetch", "1")
    assert ahead["sar", 8]["peak_bytes"] > rows["sar", 8]["peak_bytes"]


def test_an_estimate_says_what_fits_and_on_how_few_ranks(capsys):
    flags = [*COUNTS, "--model", "gcn"]
    peaks = {key: row["peak_bytes"] for key, row in rows_of(capsys, *flags, "--ranks", "2,3").items()}
    limit = min(peaks[mode, 3] for mode in MODES) + (1 << 20)
    assert limit < min(peaks[mode, 2] for mode in MODES)
    assert estimate_command.main([*flags, "--ranks", "3", "--memory", f"{limit}B"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1].startswith("fewest ranks: 3, ") and any("to spare" in line for line in lines)
    few = "--nodes 20 --edges 60 --features 5 --classes 3 --model gcn --ranks 3 --memory 1KiB".split()
    assert estimate_command.main(few) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "no mode fits 1.024 kB on up to 20 ranks"


@pytest.mark.parametrize("n_nodes, expected", [(300, {16, 64, 256}), (40, {16}), (9, {9})])
def test_a_small_graph_has_fewer_ranks_where_none_are_named(n_nodes, expected, capsys):
    counts = ["--nodes", str(n_nodes), "--edges", "400", "--features", "9", "--classes", "3", *COUNTS[8:]]
    assert {ranks for _, ranks in rows_of(capsys, *counts)} == expected


def test_seconds_are_those_of_rates_and_of_work(capsys):
    slow, quick = (rows_of(capsys, *COUNTS[:8], "--model", "gcn", "--ranks", "2", "--gflops", rate, "--gb-per-s", rate,
                           "--network-gbit", "8")["sar", 2] for rate in ("10", "1e9"))
    assert slow["step_seconds"] - quick["step_seconds"] > slow["flops"] / 10e9
    assert quick["step_seconds"] == pytest.approx(quick["step_received_bytes"] / 1e9, rel=1e-3)
    assert slow["evaluation_seconds"] < slow["step_seconds"]


def test_rates_that_are_not_given_are_measured():
    assert all(rate > 0 for rate in estimate_command._rates(1).values())


def test_data_say_their_sizes(capsys):
    rows = rows_of(capsys, "--data", "sbm:nodes=90,degree=5,features=9", "--model", "sgc", "--ranks", "1", *COUNTS[8:])
    assert rows["sar", 1]["flops"] > 0 and rows["sar", 1]["step_received_bytes"] == 0


@pytest.mark.parametrize("flags, words", [
    (["--nodes", "90"], "--edges: a graph given by numbers needs"),
    (["--nodes", "90", "--data", "sbm:"], "give one of the two"),
    ("--nodes 90 --edges 400 --features 9 --classes 3 --halo 2".split(), "--halo 2.0 is not in [0, 1]"),
    ("--nodes 9 --edges 40 --features 9 --classes 3 --ranks 10".split(), "--ranks 10: more than the 9 nodes"),
    ("--data relational:nodes=60,edges=200,features=3 --model rgcn".split(), "rgcn on relational data has no formula"),
    ([*COUNTS, "--gflops", "0"], "--gflops"), ([*COUNTS, "--memory", "much"], "--memory"),
])  # fmt: skip
def test_what_cannot_be_told_is_refused(flags, words, capsys):
    assert estimate_command.main(flags) == 2 and words in capsys.readouterr().err
