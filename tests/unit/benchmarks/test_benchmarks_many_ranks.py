"""The benchmarks of many ranks, and of narrow rows on several hosts, count right and write the rows that they promise."""

import json
from pathlib import Path

import numpy as np
import pytest

from sarlite.comm.launch import launched_ranks

pytest.importorskip("mpi4py")
pytestmark = [
    pytest.mark.timeout(120),
    pytest.mark.skipif(launched_ranks() is not None, reason="starts MPI jobs of its own, which cannot run inside one"),
]


@pytest.fixture(autouse=True)
def on_path(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[3] / "benchmarks"))


def test_many_ranks_count_what_a_rank_receives(tmp_path):
    """Four parts of a dense graph need nearly all rows of each other: three parts of 25 rows, 8 values of 4 bytes each."""
    import many_ranks

    out = tmp_path / "rows.json"
    many_ranks.main(["--graphs", str(tmp_path), "--graph", "S/1000", "--parts", "counts", "--partitions", "random", "--ranks", "4",
                     "--width", "8", "--json", str(out)])
    one, together = json.loads(out.read_text())
    assert (one["peers_at_once"], one["rounds"], one["peers_held"]) == (1, 3, 1)
    assert (together["peers_at_once"], together["rounds"], together["peers_held"]) == (3, 1, 3)
    for row in (one, together):
        assert row["fetches"] == row["pushes"] == 3
        assert 0.95 < row["fetched_mib"] * 2**20 / (4 * 8 * 3 * 25) <= 1


def test_the_fit_finds_latency_overhead_and_rate():
    import many_ranks

    rows = [{"ranks": n, "rounds": -(-(n - 1) // k), "messages": n - 1, "bytes": 1e6 * width}
            for n in (2, 4, 8) for k in (1, 2, 7) for width in (0.001, 1)]
    for row in rows:
        row["ms"] = 1e3 * ((100e-6 * row["rounds"] + 20e-6 * row["messages"]) * row["ranks"] / 2 + row["bytes"] / 1e8)
    assert many_ranks.fit(rows, 2) == pytest.approx((100e-6, 20e-6, 1e8))
    for row in rows:
        row["ms"] = row["rounds"] * row["ranks"] / 2 + row["bytes"] / 1e5
    latency, overhead, rate = many_ranks.fit(rows, 2)
    assert (latency, rate) == pytest.approx((1e-3, 1e8)) and overhead == pytest.approx(0, abs=1e-9)
    with pytest.raises(SystemExit, match="do not grow"):
        many_ranks.fit([row | {"ms": -1.0} for row in rows], 2)


def test_random_parts_need_what_the_formula_says(tmp_path):
    import many_ranks

    rng = np.random.default_rng(0)
    n_nodes, degree, n_ranks = 4000, 6, 8
    src, dst = rng.integers(0, n_nodes, (2, n_nodes * degree))
    owner = np.arange(n_nodes) % n_ranks
    needed = [len(np.unique(src[(owner[dst] == p) & (owner[src] != p)])) for p in range(n_ranks)]
    messages, n_bytes, peer_bytes = many_ranks.fetch_of(many_ranks.Shape(n_nodes, degree), n_ranks, 16)
    assert messages == 7 and n_bytes == pytest.approx(64 * np.mean(needed), rel=0.02) and peer_bytes == pytest.approx(n_bytes / 7)


def test_many_ranks_predict_how_many_peers_at_once_are_enough(tmp_path):
    import many_ranks

    out = tmp_path / "rows.json"
    many_ranks.main(["--parts", "predict", "--predicted", "2,2048", "--overhead", "0", "--json", str(out)])
    rows = json.loads(out.read_text())
    assert len(rows) == 2 * len(many_ranks.SHAPES) * len(many_ranks.NETWORKS)
    two, many = rows[:2]
    assert (two["lost"], two["peers_at_once"]) == (0, 1) and two["held_mib"] == pytest.approx(two["mib"])
    transfer = 1e3 * many["mib"] * 2**20 / many_ranks.NETWORKS["1 Gbit/s"].rate
    assert many["ms"] == pytest.approx(transfer + 2047 * 0.1) and many["lost"] == pytest.approx(204.6 / many["ms"])
    k = many["peers_at_once"]
    lost = {n: 0.1 * (-(-2047 // n) - 1) / (transfer + 0.1 * -(-2047 // n)) for n in (k, k // 2)}
    assert lost[k] <= many_ranks.ENOUGH < lost[k // 2]


def test_many_ranks_on_hosts(tmp_path):
    import hosts
    import many_ranks

    if reason := hosts.missing():
        pytest.skip(reason)
    out = tmp_path / "rows.json"
    many_ranks.main(["--graphs", str(tmp_path), "--graph", "S/1000", "--parts", "hosts", "--hosts", "2,3", "--fit-on", "3",
                     "--widths", "1,4096", "--repeats", "1", "--calls", "2", "--json", str(out)])
    rows = json.loads(out.read_text())
    assert [(row["ranks"], row["peers_at_once"], row["width"], row["rounds"]) for row in rows] == [
        (2, 1, 1, 1), (2, 1, 4096, 1), (3, 1, 1, 2), (3, 1, 4096, 2), (3, 2, 1, 1), (3, 2, 4096, 1)]
    assert [row["fitted"] for row in rows] == [False] * 2 + [True] * 4
    assert all(row["ms"] > 0 and row["ratio"] == pytest.approx(row["model_ms"] / row["ms"]) for row in rows)


def test_rows_of_fewer_bits_on_hosts(tmp_path):
    import hosts
    import narrow_hosts

    if reason := hosts.missing():
        pytest.skip(reason)
    out = tmp_path / "rows.json"
    narrow_hosts.main(["--graphs", str(tmp_path), "--graph", "S/1000", "--hosts", "2", "--epochs", "1", "--rounds", "1",
                       "--rows", "float32,int8", "--json", str(out)])
    whole, narrow = json.loads(out.read_text())
    assert (whole["rows"], narrow["rows"], whole["to_float32"], whole["bytes_to_float32"]) == ("float32", "int8", 1, 1)
    assert 0.25 < narrow["bytes_to_float32"] < 0.5 and narrow["ms_min"] > 0
