"""The benchmarks of mode broadcast on small graphs, with threads as ranks: their rows, with the predicted bytes."""

import json
import statistics
from pathlib import Path

import numpy as np
import pytest

from sarlite.comm import threads
from sarlite.structure.edges import destinations

pytestmark = pytest.mark.timeout(60)

KEYS = {"case", "graph", "ranks", "threads", "ms", "ms_min", "ms_max", "peak_mib", "limit_fraction"}


@pytest.fixture(autouse=True)
def on_path(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[3] / "benchmarks"))


def rows_of(module, folder, *flags):
    module.main([*flags, "--graphs", str(folder), "--json", str(folder / "rows.json"), "--repeats", "1"])
    rows = json.loads((folder / "rows.json").read_text())
    assert all(row.keys() >= KEYS for row in rows)
    return rows


def in_threads(module):
    """Return a function that runs a job's ranks as threads, in place of mpiexec."""
    def run(n_ranks, _, *words):
        args = module.arguments().parse_args([*map(str, words)])
        return json.dumps(threads.run(n_ranks, lambda comm: module.work(comm, args))[0])

    return run


def test_broadcast_writes_its_rows(tmp_path, monkeypatch, capsys):
    import broadcast_speed
    import harness

    jobs = []

    def python(*words, launcher):
        jobs.append((launcher[1], launcher[-1]))
        return in_threads(broadcast_speed)(int(launcher[-1]), *words)

    monkeypatch.setattr(harness, "find_mpiexec", lambda: "mpiexec")
    monkeypatch.setattr(harness, "python", python)
    flags = ["--graph", "S/1000", "--layers-list", "3", "--modes", "sar,broadcast", "--parts", "2", "--rounds", "2",
             "--hidden", "8", "--methods", "random,contiguous"]
    rows = rows_of(broadcast_speed, tmp_path, *flags, "--before", str(tmp_path))
    here = str(Path(__file__).parents[3])
    assert jobs == 2 * [(f"PYTHONPATH={here}", "1"), (f"PYTHONPATH={tmp_path}", "1"), (f"PYTHONPATH={here}", "2")] + \
        2 * [(f"PYTHONPATH={here}", "2")]
    epochs, stages, sums = ([row for row in rows if row["case"].startswith(case)] for case in ("gcn", "stages", "spmm"))
    assert [r["case"] for r in epochs] == ["gcn 3 x 8", "gcn 3 x 8 before", *4 * ["gcn 3 x 8"]]
    assert [(r["ranks"], r["threads"], r["mode"], r["prefetch"]) for r in epochs] == \
        2 * [(1, 2, None, 1)] + [(2, 1, mode, ahead) for mode in ("sar", "broadcast") for ahead in (1, 0)]
    assert [r["equal"] for r in epochs] == [None, None, None, None, True, True]
    assert epochs[-1]["received"] == [50 * 4 * (8 + 8), 50 * 4 * (8 + 8), 0] and epochs[0]["received"] == [0, 0, 0]
    assert all(len(r["to_one"]) == 2 and 0 < r["ms_min"] <= r["ms"] <= r["ms_max"] for r in epochs)
    assert epochs[0]["to_sar"] is None and epochs[2]["to_sar"] == [1, 1] and len(epochs[3]["to_sar"]) == 2
    assert [(r["partition"], r["prefetch"]) for r in sums] == [(name, ahead) for name in ("random", "contiguous")
                                                               for ahead in (1, 0)]
    assert sums[0]["to_random"] == [1, 1] and [r["partition"] for r in stages] == ["random", "contiguous"]
    printed = capsys.readouterr()
    assert "minutes on two free cores" in printed.err and "DIFFERS" not in printed.out and "equal" in printed.out
    with pytest.raises(SystemExit, match="mode sar with prefetch 1"):
        broadcast_speed.main(["--modes", "broadcast"])


def test_stage_imbalance_is_the_sum_of_the_largest_tiles():
    import broadcast_speed

    rng = np.random.default_rng(0)
    indptr, indices = np.arange(0, 404, 4), rng.integers(0, 100, 400).astype(np.int32)
    parts = rng.integers(0, 3, 100).astype(np.int32)
    tiles = np.zeros((3, 3))
    for dst, src in zip(destinations(indptr), indices):
        tiles[parts[dst], parts[src]] += 1
    assert broadcast_speed.stage_imbalance(indptr, indices, parts,
                                     3) == pytest.approx(sum(max(tiles[:, j]) for j in range(3)) / (400 / 3))
    assert broadcast_speed.stage_imbalance(np.array([0, 2, 4]), np.array([0, 1, 0, 1]), np.array([0, 1]), 2) == 1.0


def test_density_writes_its_rows(tmp_path, monkeypatch, capsys):
    import density
    import harness

    monkeypatch.setattr(harness, "mpiexec", in_threads(density))
    small = ["--nodes", "200", "--features", "8", "--hidden", "8"]
    rows = rows_of(density, tmp_path, *small, "--scales", "1,4", "--rounds", "2")
    assert [(r["scale"], r["case"], r["ranks"], r["mode"]) for r in rows] == \
        [(scale, case, *place) for scale in (1, 4) for case in ("epoch", "sum")
         for place in ((1, None), (2, "broadcast"), (2, "sar"))]
    assert [round(r["degree"]) for r in rows[::6]] == [7, 28] and len(list(tmp_path.glob("bter-*.npz"))) == 2
    assert all((r["speedup"] is None) == (r["ranks"] == 1) and 0 < r["ms_min"] <= r["ms"] <= r["ms_max"] for r in rows)
    assert "minutes on two free cores" in capsys.readouterr().err


def test_a_speedup_is_of_the_medians_of_a_round():
    from types import SimpleNamespace

    import density

    rounds = [{1: {"sum sar": [9, 10, 30]}, 2: {"sum broadcast": [1, 5, 6]}},
              {1: {"sum sar": [8]}, 2: {"sum broadcast": [2]}}]
    row = density.row(SimpleNamespace(nodes=5, degree=1.0), "sum", 2, 2.0, rounds, 2, "broadcast")
    assert row["speedup"] == [2, 4] and row["ms"] == statistics.median([1, 5, 6, 2])
