"""`sarlite.estimate`: a data set's figures are a run's, and a known graph's those that are known."""

import json

import numpy as np
import pytest

from sarlite import estimate
from sarlite.comm import threads
from sarlite.sar.schedule.modes import MODES
from sarlite.train.rates import Rates
from tests.helpers.costing import RELATIONAL, trained, weighted


def told(capsys, *flags):
    """The rows, by mode and number of ranks."""
    assert estimate.main([*flags, "--json"]) == 0
    return {(row["mode"], row["ranks"]): row for row in json.loads(capsys.readouterr().out.splitlines()[-1])}


def test_an_estimate_of_a_data_set_is_a_runs(tmp_path, capsys):
    flags = ["--data", "sbm:nodes=90,degree=5,features=9", "--model", "gcn", "--partition", "random", "--prefetch", "0"]
    rows = told(capsys, *flags, "--ranks", "1,3")
    assert rows.keys() == {("sar", 1), *((mode, 3) for mode in MODES)}
    for mode in ("sar", "broadcast"):
        real = threads.run(3, trained, tmp_path / mode, data=flags[1], model="gcn", prefetch=0, epochs=1, mode=mode)[0]["sent_bytes"]
        phases = [phase for phase in real if phase.startswith(("forward", "backward"))]
        assert len(phases) == 2 and rows[mode, 3]["exact"]
        assert [rows[mode, 3]["sent_bytes"][phase] for phase in phases if phase != "forward_fetch"] == [
            real[phase] for phase in phases if phase != "forward_fetch"]


def test_an_estimate_of_relational_data_is_a_runs(tmp_path, capsys):
    options = {**RELATIONAL["inside"], "prefetch": 0}
    said = {row["setting"]: row for row in threads.run(2, trained, tmp_path, dry_run=True, epochs=2, **options)[0]["settings"]}
    flags = [word for name, value in options.items() for word in (f"--{name}", str(value))]
    rows = told(capsys, *flags, "--partition", "random", "--ranks", "2")
    assert [mode for mode, _ in rows] == [*said] == [*MODES]
    for (mode, _), row in rows.items():
        sent = {phase: n for phase, n in said[mode]["sent_bytes"].items() if phase != "evaluation"}
        assert row["exact"] and {phase: n for phase, n in row["sent_bytes"].items() if n} == {phase: n for phase, n in sent.items() if n}
    assert estimate.main([*flags, "--ranks", "17"]) == 2 and "on at most 16 ranks" in capsys.readouterr().err


@pytest.mark.parametrize("flags, why", [
    ("--nodes 900 --edges 4000 --features 9 --classes 3 --model sgc --ranks 4", "--dry-run tells it"),
    ("--data relational:nodes=60,edges=200,features=3 --model rgcn --hidden 4 --ranks 1",
     "its costs are not counted of a relational graph")])
def test_an_estimate_says_what_it_leaves_out(flags, why, capsys):
    assert estimate.main(flags.split()) == 0
    left_out = [line for line in capsys.readouterr().out.splitlines() if "is left out" in line]
    assert left_out == [f"sar --{option} is left out: {why}" for option in ("backward fetch", "columns N")]


def test_an_estimate_counts_values_on_edges(tmp_path, capsys):
    peaks, data = [], weighted(tmp_path / "a.npz")
    for flag in ("--no-edge-weights", "--edge-weights"):
        rows = told(capsys, "--data", data, "--model", "gcn", flag, "--ranks", "20")  # expected of the data's degrees
        peaks.append(rows["sar", 20])
    assert [row["exact"] for row in peaks] == [False] * 2
    assert estimate.main("--nodes 90 --edges 400 --features 9 --classes 3 --model gcn --edge-weights".split()) == 2
    assert "--edge-weights and --edge-features need --data" in capsys.readouterr().err


@pytest.mark.parametrize("flags, words", [
    (["--nodes", "90"], "--edges: a graph given by numbers needs"), (["--nodes", "90", "--data", "sbm:"], "give one of the two"),
    ("--nodes 90 --edges 400 --features 9 --classes 3 --halo 2".split(), "--halo 2.0 is not in [0, 1]"),
    ("--nodes 9 --edges 40 --features 9 --classes 3 --ranks 10".split(), "--ranks 10: more than --nodes 9"),
])
def test_what_cannot_be_told_is_refused(flags, words, capsys):
    assert estimate.main(flags) == 2 and words in capsys.readouterr().err


def test_papers100m(capsys):
    """Figures of full-batch GCN 128-256-256-172 on ogbn-papers100M, in GB received a rank and step."""
    flags = "--nodes 111059956 --edges 3231371744 --features 128 --classes 172 --model gcn --layers 3 --hidden 256 --dropout 0".split()
    rows = told(capsys, *flags, "--ranks", "16,64,1024")
    for mode, known in (("broadcast", [357, 374, 380]), ("sar", [302, 138, 11])):
        found = [rows[mode, size]["step_received_bytes"] / 1e9 for size in (16, 64, 1024)]
        assert np.round(found).tolist() == known, (mode, found)


def test_an_estimate_says_what_fits_and_on_how_few_ranks(capsys):
    flags = "--nodes 1e6 --edges 2e7 --features 50 --classes 9 --model gcn".split()
    peaks = {key: row["peak_bytes"] for key, row in told(capsys, *flags, "--ranks", "2,3").items()}
    limit = min(peaks["sar", 3], peaks["broadcast", 3]) + (1 << 20)
    assert limit < min(peaks[mode, 2] for mode in MODES)
    assert estimate.main([*flags, "--ranks", "3", "--memory", f"{limit}B"]) == 0
    found = capsys.readouterr()
    fits, fewest = [line for line in found.out.splitlines() if "fits" in line], found.out.splitlines()[-1]
    assert found.err.startswith("sarlite.estimate: gcn on 3 ranks") and fits and all("to spare" in line for line in fits)
    assert fewest.startswith("fewest ranks: 3, ")
    few = "--nodes 20 --edges 60 --features 5 --classes 3 --model gcn --ranks 3 --memory 1KiB".split()
    assert estimate.main(few) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "no mode fits 1.024 kB on up to 20 ranks"
    assert estimate.main([*flags, "--memory", "much"]) == 2


COUNTED = "--nodes 100000000 --edges 2e9 --features 128 --classes 172 --model gcn --hidden 64 --threads 1".split()


def test_seconds_are_those_of_rates_and_of_work(capsys, monkeypatch):
    monkeypatch.setattr(estimate, "rates_of", lambda comm: Rates(1e-10, 1e-9, 1e-5, 1e-10, 1e-10))  # whatever else runs here
    given = ["--gflops", "10", "--gb-per-s", "10", "--network-gbit", "8"]
    slow, quick = (told(capsys, *COUNTED, "--ranks", "2", *rates)["sar", 2]
                   for rates in (given, ["--gflops", "1e9", "--gb-per-s", "1e9", "--network-gbit", "8"]))
    assert slow["step_seconds"] - quick["step_seconds"] > slow["flops"] / 10e9
    assert quick["step_seconds"] > quick["step_received_bytes"] / 1e9 and quick["evaluation_seconds"] < quick["step_seconds"]
    assert estimate.main([*COUNTED, "--gflops", "0"]) == 2 and "--gflops" in capsys.readouterr().err


def test_peers_rows_do_not_crowd_out_a_trials_own(capsys):
    """Trials of 2,000 rows on 16 ranks had 133 rows of their own, beside which parameters told 65 % more memory than there is."""
    row = told(capsys, *COUNTED, "--hidden", "256", "--layers", "3", "--dropout", "0", "--ranks", "16")["sar", 16]
    assert 50e9 < row["peak_bytes"] < 62e9
