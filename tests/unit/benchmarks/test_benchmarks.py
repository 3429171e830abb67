"""The benchmarks run on small graphs and write the rows that they promise."""

import json
import math
import sys
from pathlib import Path

import numpy as np
import pytest

from sarlite.structure.edges import destinations, is_symmetric

BENCHMARKS = Path(__file__).parents[3] / "benchmarks"
KEYS = {"case", "graph", "ranks", "threads", "ms", "ms_min", "ms_max", "peak_mib", "limit_fraction", "peer", "peer_ms",
        "peer_peak_mib",
        "ratio"}
SMALL = ["--repeats", "2", "--gib", "0.001", "--threads", "1"]
FAKE_PEER = """
import json, sys
library, case, file = sys.argv[1:4]
with open(__file__ + ".log", "a") as log:
    print(library, case, file=log)
if library == "torch":
    sys.exit("out of memory")
runs = len(open(__file__ + ".log").readlines())
print(json.dumps({"ms": 1000.0 * runs, "ms_min": 900.0 - runs, "ms_max": 5000.0 + runs, "peak_mib": runs,
                  "forward_ms": 400.0, "n": 3}))
"""


@pytest.fixture(autouse=True)
def on_path(monkeypatch):
    """Put the benchmarks on the path, as programs of one folder; no peer library is measured unless a test asks for it."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    monkeypatch.delenv("SARLITE_PEERS", raising=False)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("graphs")


def load(folder, name):
    import seeded_graphs

    with np.load(seeded_graphs.path(folder, name)) as arrays:
        return arrays["indptr"], arrays["indices"]


def rows_of(module, folder, tmp_path, *flags):
    """Run a benchmark on a small graph and return its rows."""
    out = tmp_path / "rows.json"
    module.main([*flags, *SMALL, "--rounds", "1", "--json", str(out), "--graphs", str(folder)])
    rows = json.loads(out.read_text())
    for row in rows:
        assert KEYS <= row.keys()
        assert row["ranks"] == row["threads"] == 1
        assert 0 < row["ms_min"] <= row["ms"] <= row["ms_max"] and math.isfinite(row["ms"])
        assert row["limit_fraction"] > 0 and row["gather_fraction"] > 0 and 0 <= row["peak_mib"] < 1000
    return rows


@pytest.mark.parametrize("name, nodes, edges", [("S/1000", 100, 5000), ("M/1000-shuffled", 400, 20_000)])
def test_graphs_are_simple(folder, name, nodes, edges):
    indptr, indices = load(folder, name)
    assert indptr.dtype == np.int64 and indices.dtype == np.int32
    assert indptr.size == nodes + 1 and indices.size == edges
    dst = destinations(indptr)
    assert is_symmetric(indptr, indices) and not (dst == indices).any()
    assert (np.diff(dst * nodes + indices) > 0).all()  # columns ascend without duplicates


def test_a_graph_is_the_same_each_time(folder, tmp_path):
    for name in ("S/1000", "S/1000-shuffled"):
        again = load(tmp_path, name)
        assert all(np.array_equal(a, b) for a, b in zip(load(folder, name), again))
        file, = tmp_path.glob(f"{name.replace('/', '_')}.npz")
        before = file.stat().st_mtime_ns
        load(tmp_path, name)
        assert file.stat().st_mtime_ns == before  # kept, not drawn again
    assert len(list(tmp_path.iterdir())) == 2  # nothing unfinished is left


def test_shuffled_is_the_same_graph_relabelled(folder):
    one, other = load(folder, "S/100"), load(folder, "S/100-shuffled")
    assert not np.array_equal(one[1], other[1])
    assert np.array_equal(np.sort(np.diff(one[0])), np.sort(np.diff(other[0])))
    degree_pairs = [np.sort(np.diff(ptr)[ind] * 10_000 + np.diff(ptr)[destinations(ptr)]) for ptr, ind in (one, other)]
    assert np.array_equal(*degree_pairs)  # edges join nodes of the same degrees


def test_unknown_graphs_are_refused(folder):
    for name in ("T", "S/0", "S-", "S-shuffled/10"):
        with pytest.raises(SystemExit, match=name):
            load(folder, name)


@pytest.mark.parametrize("name, drawn", [("S", (100_000, 5_000_000, 60)), ("M", (400_000, 20_000_000, 60)),
                                         ("R", (23_000, 11_000_000, 12)), ("M/100", (4000, 200_000, 60))])  # fmt: skip
def test_names_stand_for_sizes(monkeypatch, name, drawn):
    import seeded_graphs

    monkeypatch.setattr(seeded_graphs, "power_law", lambda nodes, edges, cap, seed: ((nodes, edges), cap))
    assert seeded_graphs.draw(name) == (drawn[:2], drawn[2])


def test_limits_reports_every_probe(tmp_path, monkeypatch):
    import limits

    monkeypatch.setattr(limits, "GEMM", (1000, 16, 16))
    out = tmp_path / "rows.json"
    limits.main(["--json", str(out), "--gib", "0.001", "--repeats", "2", "--threads", "2"])
    rows = json.loads(out.read_text())
    for row in rows:
        assert KEYS - {"peer", "peer_ms", "peer_peak_mib", "ratio"} <= row.keys()
        rate = row["gflop_per_s" if row["case"] == "sgemm" else "gb_per_s"]
        assert 0 < row["ms_min"] <= row["ms"] <= row["ms_max"] and rate > 0
    cases = [row["case"] for row in rows if row["case"] != "message"]  # those need MPI
    assert cases == ["read", "copy", "triad", "sgemm", "sgemm"] + 6 * ["gather"]


def test_triad_adds_and_multiplies():
    import limits

    a, b, c = np.zeros(10), np.arange(10.0), np.ones(10)
    limits.triad(a, b, c, piece=4)
    assert np.array_equal(a, b + 3)


def test_allowed_times_are_the_formulas():
    import limits

    limit = limits.Limits(4e9, {100: 1e9, 200: 2e9}, 1e12)
    assert limit.gather_ms(1000, 100) == pytest.approx(0.1)
    assert limit.gather_ms(1000, 150) == pytest.approx(0.1)
    assert limit.gather_ms(1000, 400) == pytest.approx(0.2)
    assert limit.least_ms(4e9, 0) == limit.least_ms(0, 1e12) == pytest.approx(1000)
    assert limit.least_ms(2e9, 3e12) == pytest.approx(3500)
    assert limits.Allowed(1.0, 6.0).shares(2.0) == {"limit_fraction": 0.5, "gather_fraction": 3.0}


def test_products_are_timed_on_the_threads_they_say(monkeypatch):
    import limits
    import threadpoolctl

    def blas_threads(probe, threads, repeats):
        return {pool["num_threads"] for pool in threadpoolctl.threadpool_info() if pool["user_api"] == "blas"}

    monkeypatch.setattr(limits, "timed_row", blas_threads)
    limits.set_threads(1)
    assert limits.gemm_row(2, 1) == {2} and limits.gemm_row(1, 1) == {1}


def test_least_bytes_of_an_epoch():
    import epoch

    case = epoch.Case(None, (10, 6, 3), 0.1, 1, True)
    # no gradient of the features
    assert epoch.least_bytes(case, 100, 1000) == 4 * (100 * (10 + 6 + 6 + (6 + 3) * 2) + 2 * 1000)
    assert epoch.least_bytes(case._replace(keeps_first=False), 0, 1000) == 4 * 4 * 1000


def test_spmm_writes_its_rows(folder, tmp_path):
    import spmm

    rows = rows_of(spmm, folder, tmp_path, "--graphs-list", "S/1000-shuffled", "--widths", "8")
    assert [(row["graph"], row["width"], row["arrays"]) for row in rows] == [("S/1000-shuffled", 8, "buffers"),
                                                                             ("S/1000-shuffled", 8, "plain")]
    assert all(row["case"] == "spmm" and row["peer"] is None and row["ratio"] is None for row in rows)


def test_attention_writes_its_rows(folder, tmp_path):
    import attention_speed

    row, = rows_of(attention_speed, folder, tmp_path, "--graphs-list", "S/1000", "--heads", "2", "--dim", "5")
    assert row["heads"] == 2 and row["dim"] == 5
    assert row["forward_ms"] > 0 and row["backward_ms"] > 0
    assert row["net_peak_mib"] == pytest.approx(row["peak_mib"] - 3 * 100 * 2 * 5 * 4 / 2**20)


def test_epoch_writes_its_rows(folder, tmp_path, capsys):
    import epoch

    rows = rows_of(epoch, folder, tmp_path, "--cases", "gat:S/1000", "--profile")
    assert [row["case"] for row in rows] == ["gat"]
    printed = capsys.readouterr().out
    assert "gat on S/1000: where an epoch goes" in printed and "aggregate (Attention)" in printed
    assert "optimizer" in printed


def test_relations_writes_its_rows(folder, tmp_path):
    import relations_speed

    (row,) = rows_of(relations_speed, folder, tmp_path, "--cases", "mag/100")
    assert (row["case"], row["graph"]) == ("rgcn", "mag/100")
    with np.load(relations_speed.path(folder, "mag/100")) as arrays:  # as peer.py reads it
        assert arrays["n_nodes"].tolist() == [1140, 1755, 12,
                                              93] and sum(arrays[f"src_{r}"].size for r in range(8)) == 80000
        assert arrays["relations"].tolist() == [[1, 0], [0, 0], [0, 3], [1, 2], [0, 1], [0, 0], [3, 0], [2, 1]]
    with pytest.raises(SystemExit, match="graph 'mag/x'"):
        relations_speed.path(folder, "mag/x")


def test_epoch_counts_flops_and_bytes():
    import epoch

    n = 100_000
    sage = 2 * 2 * n * (2 * 100 * 256 + 3 * 256 * 256 + 3 * 256 * 47)
    assert epoch.gemm_flops(epoch.CASES["sage"], n) == sage  # 114 GFLOP
    assert epoch.gemm_flops(epoch.CASES["gcn"], n) == 2 * n * (2 * 602 * 512 + 3 * 512 * 41)
    assert epoch.gathered_row_bytes(epoch.CASES["sage"]) == [4 * 256, 4 * 47]
    assert epoch.gathered_row_bytes(epoch.CASES["gat"]) == [4 * 128, 4 * 128, 4 * 47]
    assert epoch.gathered_row_bytes(epoch.CASES["gcn"]) == [4 * 41]


def test_schedules_counts_the_numbers_sent(folder, tmp_path):
    import schedules

    out = tmp_path / "rows.json"
    schedules.main(["--names", "S/1000", "--ranks", "2", "--width", "8", "--heads", "2", "--features", "5",
                    "--graphs", str(folder), "--partitions", "random", "--modes", "sar,broadcast", "--json", str(out)])
    row_of = {(r["message"], r["mode"], r["backward"]): r for r in json.loads(out.read_text())}
    assert [row_of["attend", "sar", way]["words"] for way in (None, "fetch")] == [2 * 3 * 6, 2 * (2 * 5 + 6)]
    rows = [row_of["linear", mode, way]["rows"] for mode, way in (("sar", None), ("sar", "fetch"), ("broadcast", None))]
    assert rows[0] == rows[1] == 2 <= rows[2]
    assert {mode for _, mode, _ in row_of} == {"sar", "broadcast"}


def test_reorder_writes_its_rows(folder, tmp_path):
    import reorder

    rows = rows_of(reorder, folder, tmp_path, "--graph", "S/100", "--orders", "metis")
    assert [(row["graph"], row["order"]) for row in rows] == [
        ("S/100", None), *[("S/100-shuffled", order) for order in (None, "metis")]]
    assert rows[0]["times_community"] == 1 and all(row["times_community"] == row["ms"] / rows[0]["ms"] for row in rows)
    assert [row["order_seconds"] is None for row in rows] == [True, True, False]
    assert all(0 < row["near"] <= 1 for row in rows)


@pytest.mark.parametrize("text", ["sage", "vgg:S", "sage:S:M"])
def test_epoch_refuses_unknown_cases(text):
    import epoch

    with pytest.raises(SystemExit):
        epoch.main(["--cases", text])


@pytest.fixture
def fake_peers(tmp_path, monkeypatch):
    """Create environments of stand-ins for the peer libraries, of which torch always fails."""
    home = tmp_path / "peers"
    (home / "dgl" / "bin").mkdir(parents=True)
    (home / "dgl" / "bin" / "python").symlink_to(sys.executable)
    (home / "peer.py").write_text(FAKE_PEER)
    monkeypatch.setenv("SARLITE_PEERS", str(home))
    return home


def test_peers_alternate_and_are_pooled(folder, tmp_path, fake_peers):
    import spmm

    out = tmp_path / "rows.json"
    flags = ["--rounds", "2", "--graphs", str(folder), "--json", str(out)]
    spmm.main([*SMALL, *flags, "--graphs-list", "S/1000", "--widths", "8", "--arrays", "buffers"])
    dgl, torch, scipy = json.loads(out.read_text())
    assert [row["peer"] for row in (dgl, torch, scipy)] == ["dgl", "torch", "scipy"]
    assert len({row["ms"] for row in (dgl, torch, scipy)}) == 1  # each peer's row has the same values of sarlite
    log = (fake_peers / "peer.py.log").read_text().splitlines()
    # in turn; a library that failed once is left out
    assert log == ["dgl spmm", "torch spmm", "scipy spmm", "dgl spmm", "scipy spmm"]
    assert (dgl["peer_ms"], dgl["peer_ms_min"], dgl["peer_ms_max"], dgl["peer_peak_mib"]) == (2500.0, 896.0, 5004.0, 4)
    assert dgl["ratio"] == pytest.approx(2500 / dgl["ms"]) and dgl["peer_forward_ms"] == 400.0
    assert torch["peer_ms"] is None and torch["ratio"] is None and torch["peer_error"] == "out of memory"


def test_only_libraries_that_can_are_asked(fake_peers):
    import peers

    assert list(peers.find(None, ("dgl", "pyg"))) == ["dgl"]
    assert list(peers.find(["scipy", "dgl"], ("dgl", "scipy"))) == ["scipy", "dgl"]
    assert peers.find(["none"], ("dgl",)) == {}
    with pytest.raises(SystemExit, match="pyg not found"):
        peers.find(["pyg"], ("dgl", "pyg"))


def test_scripts_of_this_folder_run_the_libraries_of_today(fake_peers):
    import peers

    for home in ("pyg", "mkl"):
        (fake_peers / home / "bin").mkdir(parents=True)
        (fake_peers / home / "bin" / "python").symlink_to(sys.executable)
    commands = peers.find(None, ("dgl", "pyg", "pyg-compiled", "mkl"))
    scripts = {name: (Path(python).parents[1].name, Path(script), word) for name, (python, script, word) in commands.items()}
    assert scripts == {"dgl": ("dgl", fake_peers / "peer.py", "dgl"),
                       "pyg": ("pyg", BENCHMARKS / "peers_pyg.py", "pyg"),
                       "pyg-compiled": ("pyg", BENCHMARKS / "peers_pyg.py", "pyg-compiled"),
                       "mkl": ("mkl", BENCHMARKS / "peers_mkl.py", "mkl")}
    assert all(script.exists() for _, script, _ in scripts.values())


def test_without_the_variable_there_are_no_peers():
    import peers

    assert peers.find(None, ("dgl",)) == {}
    with pytest.raises(SystemExit, match="not set"):
        peers.find(["dgl"], ("dgl",))


ROWS = [{"case": "spmm", "graph": graph, "width": width, "ms": 2.0 * width, "ms_min": width, "ms_max": 3.0 * width,
         "peer": peer,
         "peer_ms": 40.0 * width, "ranks": 1} for graph in "SM" for width in (64, 128) for peer in ("dgl", None)]
EVENTS = [
    {"name": "process_name", "ph": "M", "pid": 1, "args": {"name": "rank 1"}},
    {"name": "thread_name", "ph": "M", "pid": 1, "tid": 0, "args": {"name": "fetch"}},
    {"name": "fetch", "ph": "X", "ts": 5e6, "dur": 1000.0, "pid": 1, "tid": 0},
    {"name": "step", "ph": "X", "ts": 5e6 + 500, "dur": 9000.0, "pid": 0, "tid": 7},
]


@pytest.mark.parametrize("content, flags", [
    (ROWS, []), (ROWS, ["--x", "width"]), ({"traceEvents": EVENTS}, []),
    ({"traceEvents": EVENTS}, ["--format", "svg", "--end", "3"]),
])  # fmt: skip
def test_plot_draws_rows_and_traces(tmp_path, content, flags):
    pytest.importorskip("matplotlib")
    import plot

    (tmp_path / "found.json").write_text(json.dumps(content))
    plot.main([str(tmp_path / "found.json"), "--out", str(tmp_path / "pictures"), *flags])
    picture, = (tmp_path / "pictures").iterdir()
    assert picture.stat().st_size > 2000
    assert picture.read_bytes()[:5] == (b"<?xml" if "svg" in flags else b"\x89PNG\r")


def test_plot_takes_each_value_once():
    import plot

    point_of = {(p.label, p.series): p for p in plot.points(ROWS, "ms")}
    assert len(point_of) == len(plot.points(ROWS, "ms")) == 8  # sarlite's values are in several rows
    assert point_of["S width 64", "sarlite"][2:] == (None, 128.0, 64, 192.0)
    assert point_of["M width 128", "dgl"].value == 5120.0
    assert {(p.label, p.x) for p in plot.points(ROWS, "ms", "width")} == {("S", 64), ("S", 128), ("M", 64), ("M", 128)}


def test_plot_says_what_is_missing(tmp_path):
    pytest.importorskip("matplotlib")
    import plot

    (tmp_path / "found.json").write_text(json.dumps(ROWS))
    with pytest.raises(SystemExit, match="'seconds'"):
        plot.main([str(tmp_path / "found.json"), "--y", "seconds"])


def test_lanes_are_ranks_and_tracks():
    import plot

    assert plot._lane_labels(EVENTS, [(0, 7), (1, 0)]) == ["0, 7", "rank 1, fetch"]


@pytest.mark.parametrize("name, kinds, more", [("sampling_speed", "uniform,labor", {"input_rows", "edges"}),
                                               # fmt: skip
                                               ("minibatch_speed", "uniform", {"predicted_mib", "limit_fraction"})])
def test_times_of_a_batch(name, kinds, more, folder, tmp_path):
    module, out = __import__(name), tmp_path / "rows.json"
    module.main(["--graphs", str(folder), "--graphs-list", "S/200", "--threads-list", "1", "--kinds", kinds,
                 "--repeats", "2",
                 "--rounds", "1", "--gib", "0.01", "--json", str(out)])
    rows = json.loads(out.read_text())
    assert [row["kind"] for row in rows] == kinds.split(",")
    for row in rows:
        assert row.get("limit_fraction", 1) > 0
        assert {"case", "graph", "kind", "ranks", "threads", "peak_mib", "batches", "peer",
                "ratio"} | more <= row.keys()
        assert 0 < row["ms_min"] <= row["ms"] <= row["ms_max"] and row["peer"] is None
