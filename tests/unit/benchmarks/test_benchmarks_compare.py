"""The comparison of two checkouts, on a small graph: this checkout beside itself."""

import json
from pathlib import Path

import pytest

from sarlite.comm.launch import launched_ranks

pytestmark = [
    pytest.mark.timeout(120),
    pytest.mark.skipif(launched_ranks() is not None, reason="starts MPI jobs of its own, which cannot run inside one"),
]
SMALL = ["--nodes", "200", "--edges", "1000", "--features", "8", "--seconds", "0.001", "--threads", "1"]


@pytest.fixture
def compare(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[3] / "benchmarks"))
    import compare

    return compare


def slower(tmp_path, seconds):
    """Return an interpreter that prints the given seconds in place of each program, and the log of the programs."""
    script, log = tmp_path / "python", tmp_path / "log"
    script.write_text(f'#!/bin/sh\necho "$1" >> {log}\n'
                      f'case "$1" in *.py) echo \'{{"seconds": {seconds}, "peak_mib": 30}}\';; esac\n')
    script.chmod(0o700)
    return script, log


def test_a_checkout_beside_itself(compare, tmp_path):
    pytest.importorskip("mpi4py")
    cases = ["minibatch-gat"]
    compare.main([*SMALL, *cases, "--rounds", "1", "--json", str(tmp_path / "rows.json")])
    rows = json.loads((tmp_path / "rows.json").read_text())
    assert [row["case"] for row in rows] == cases
    for row in rows:
        assert row["time"] == [b / a for a, b in zip(row["seconds"]["before"], row["seconds"]["after"])]
        assert len(row["time"]) == 1
        assert all(seconds > 0 for side in row["seconds"].values() for seconds in side)
        assert 0 < row["memory"] < 10 and min(row["peak_mib"]["before"] + row["peak_mib"]["after"]) >= 0


def test_rounds_alternate_and_ratios_are_of_a_round(compare, tmp_path, capsys):
    script, log = slower(tmp_path, 1e6)
    compare.main([*SMALL, "spmm", "import", "--rounds", "2", "--after", str(script), "--json",
                  str(tmp_path / "rows.json")])
    spmm, imported = json.loads((tmp_path / "rows.json").read_text())
    assert spmm["seconds"]["after"] == [1e6] * 2
    assert spmm["time"] == [1e6 / seconds for seconds in spmm["seconds"]["before"]]
    assert imported["peak_mib"]["after"] == [30] * 2
    ran = [Path(line).name for line in log.read_text().splitlines()]
    assert ran == ["start.py", *2 * ["spmm.py"], *2 * ["import.py"]]
    assert "1000000000.0 (1000000000.0..1000000000.0)" in capsys.readouterr().out


def test_the_two_sides_take_turns(compare, monkeypatch, tmp_path):
    args, ran = compare.arguments().parse_args(["--rounds", "3"]), []
    measured = {"before": {"seconds": 2.0, "peak_mib": 8.0}, "after": {"seconds": 3.0, "peak_mib": 4.0}}
    monkeypatch.setattr(compare, "run", lambda args, side, *rest: ran.append(side) or measured[side])
    row = compare.measure(args, "spmm", {}, tmp_path)
    assert ran == ["before", "after", "after", "before", "before", "after"]
    assert row["time"] == 3 * [1.5] and row["memory"] == 0.5


def test_what_fails_is_told_and_the_others_are_measured(compare, tmp_path):
    script, _ = slower(tmp_path, 1)
    script.write_text(script.read_text().replace("echo",
                                                 'case "$1" in *spmm.py) echo no memory >&2; exit 1;; esac; echo', 1))
    with pytest.raises(SystemExit, match=r"(?s)failed:\n\nspmm: .*no memory"):
        compare.main([*SMALL, "spmm", "import", "--rounds", "1", "--after", str(script), "--json",
                      str(tmp_path / "rows.json")])
    assert [row["case"] for row in json.loads((tmp_path / "rows.json").read_text())] == ["import"]
    with pytest.raises(SystemExit, match="vgg: not of spmm, attention"):
        compare.main(["vgg"])
