"""The benchmarks over several ranks run on small graphs and write the rows that they promise."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from sarlite.comm.launch import launched_ranks

pytest.importorskip("mpi4py")
pytestmark = [
    pytest.mark.timeout(120),
    pytest.mark.skipif(launched_ranks() is not None, reason="starts MPI jobs of its own, which cannot run inside one"),
]

KEYS = {"case", "graph", "ranks", "threads", "ms", "ms_min", "ms_max", "peak_mib", "limit_fraction"}


@pytest.fixture(autouse=True)
def on_path(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[3] / "benchmarks"))


def rows_of(module, tmp_path, *flags):
    """Run a benchmark and return its rows."""
    out = tmp_path / "rows.json"
    module.main([*flags, "--json", str(out)])
    rows = json.loads(out.read_text())
    assert all(row.keys() >= KEYS for row in rows)
    return rows


def test_scaling_writes_its_rows(tmp_path):
    import scaling

    flags = ["--graph", "S/1000", "--graphs", str(tmp_path), "--cases", "gat", "--ranks", "1,2", "--threads", "1,1",
             "--epochs", "2"]
    flags += ["--prefetch", "1"]
    one, sar, oneshot = rows_of(scaling, tmp_path, *flags, "--rounds", "1", "--account")
    assert [(r["case"], r["graph"], r["ranks"], r["threads"])
            for r in (one, sar, oneshot)] == [("gat", "S/1000", n, 1) for n in (1, 2, 2)]
    assert [r["mode"] for r in (one, sar, oneshot)] == ["sar", "sar", "oneshot"]
    for r in (one, sar, oneshot):
        assert 0 < r["ms_min"] <= r["ms"] <= r["ms_max"] and r["peak_mib"] > 0
        assert r["to_one"] == pytest.approx(r["ms"] / one["ms"])
    assert sar["to_oneshot"] == pytest.approx(sar["ms"] / oneshot["ms"]) and oneshot["to_oneshot"] is None
    assert sar["memory_to_oneshot"] == pytest.approx(sar["peak_mib"] / oneshot["peak_mib"])
    assert "backward_fetch" in sar["sent_bytes"] and "backward_fetch" not in oneshot["sent_bytes"]
    assert one["sent_mib"] == 0 < oneshot["sent_mib"] < sar["sent_mib"]
    assert [len(r["account"]) for r in (one, sar, oneshot)] == [1, 2, 2]
    assert all(min(rank.values()) > -1e-3 for r in (one, sar, oneshot) for rank in r["account"])  # spans nest
    assert all(rank["peers"] > 0 and rank["wait"] > 0 for rank in sar["account"])


def test_busy_writes_its_rows(tmp_path, monkeypatch):
    import busy

    monkeypatch.setitem(busy.CASES, "small", dict(data="sbm:nodes=100,classes=3,features=8,degree=5", epochs=5))
    started, popen = [], busy.subprocess.Popen
    monkeypatch.setattr(busy.subprocess, "Popen", lambda *a, **k: started.append(popen(*a, **k)) or started[-1])
    out = tmp_path / "rows.json"
    flags = ["--cases", "small", "--places", "1x1", "--ways", "default,spinning", "--rounds", "1"]
    busy.main([*flags, "--json", str(out)])
    rows = json.loads(out.read_text())
    assert [(r["ranks"], r["threads"], r["way"]) for r in rows if r["busy"]] == [(1, 1, "default"), (1, 1, "spinning")]
    assert len(rows) == 4 and all((r["to_quiet"] is not None) == r["busy"] for r in rows)
    assert all(r["to_spinning"] == 1 for r in rows if r["way"] == "spinning")
    loops = [process for process in started if process.args[-1].endswith("while True: pass")]
    assert len(loops) == len(os.sched_getaffinity(0)) and all(loop.poll() is not None for loop in loops)


def test_scaling_leaves_the_first_epoch_out():
    from types import SimpleNamespace

    import scaling

    lines = [{"seconds": [9.0, 1.0, 2.0], "peak_bytes": [2**20, 3 * 2**20],
              "sent_bytes": {"forward_fetch": 3 * 2**20, "evaluation": 7}},
             {"seconds": [8.0, 3.0, 4.0], "peak_bytes": [2**20, 2**20], "sent_bytes": {}}]  # fmt: skip
    row = scaling.row(SimpleNamespace(graph="S", epochs=2), "gat", (2, 1, "sar", 1), lines)
    assert (row["ms"], row["ms_min"], row["ms_max"]) == (2500, 1000, 4000)
    assert row["peak_mib"] == 2 and row["sent_mib"] == 1


def test_scaling_accounts_for_each_span_without_the_spans_inside_it():
    import scaling

    def span(name, ts, dur, **args):
        return {"name": name, "pid": 2, "tid": 1000, "ts": 1e3 * ts, "dur": 1e3 * dur, "args": {"processor_ms": dur / 2, **args}}

    step = [span("step 1", 1, 50), span("aggregate (Sum)", 2, 30), span("block", 3, 10, source=1), span("wait", 14, 4),
            span("block", 19, 7, source=0), span("matmul backward", 40, 5), span("allreduce", 46, 2)]
    seen = [span("evaluation", 60, 30), span("block", 61, 9, source=1)]
    other = {**span("block", 5, 3, source=0), "pid": 1}
    (shares,) = scaling.account(1, [span("epoch 1", 0, 100), *step, *seen, other])
    assert shares == {"own": 10, "peers": 7, "aggregate": 9, "wait": 4, "collective": 2, "product": 5, "optimizer": 0, "rest": 0,
                      "between": 33}
    (shares,) = scaling.account(1, [span("epoch 1", 0, 100), *step], use_cpu_time=True)
    assert (shares["own"], shares["peers"], sum(shares.values())) == (5, 3.5, 50)
    (shares,) = scaling.account(1, [span("epoch 1", 0, 9), span("block", 1, 8, source=0)])
    assert (shares["own"], shares["peers"]) == (8, 0), "of a cache's batch, whose blocks are all the rank's own"


def test_scaling_refuses_lists_that_do_not_go_together():
    import scaling

    with pytest.raises(SystemExit, match="--threads"):
        scaling.main(["--ranks", "1,2,4", "--threads", "1"])


def test_seconds_of_each_epoch():
    import harness

    line = harness.train(1, data="sbm:nodes=60,degree=4", epochs=3)
    assert len(line["seconds"]) == 3 and sorted(line["seconds"])[1] == line["epoch_seconds"]


def test_memory_writes_its_rows(tmp_path):
    import memory

    flags = ["--places", "sar:1", "--models", "sage", "--ranks", "1,2", "--nodes", "100", "--degree", "5",
             "--features", "8", "--hidden", "8", "--no-fixed"]
    one, two = rows_of(memory, tmp_path, *flags)
    assert [(r["case"], r["ranks"], r["threads"], r["mode"], r["prefetch"]) for r in (one, two)] == \
        [("sage", 1, 2, "sar", 0), ("sage", 2, 1, "sar", 1)]
    for r in (one, two):
        assert 0 < r["ms_min"] <= r["ms"] <= r["ms_max"] and r["peak_mib"] == r["peak_bytes"] / 2**20 > 0
        assert len(r["all_peaks"]) == r["ranks"] and r["share"] == pytest.approx(r["peak_mib"] / one["peak_mib"])
    assert two["buffers"] == 1 <= two["buffer_bound"] == 2


def test_memory_net_of_what_is_fixed(monkeypatch):
    """The peaks are 100 with wide rows and 40 with narrow rows on one rank, 60 and 30 on two: rows take half of the memory."""
    from types import SimpleNamespace

    import memory

    peaks = {(1, "wide"): [100], (1, "narrow"): [40], (2, "wide"): [60, 50], (2, "narrow"): [20, 30]}
    monkeypatch.setattr(memory, "run", lambda name, n, mode, prefetch, data, *rest:
                        {"peak_bytes": peaks[n, data], "seconds": [1.0], "live_remote_buffers": 1})
    args = SimpleNamespace(nodes=9, degree=2, hidden=4)
    one = memory.measure("sage", 1, ("sar", 0), "wide", "narrow", args, None)
    two = memory.measure("sage", 2, ("sar", 1), "wide", "narrow", args, one)
    assert (one["net_share"], two["net_share"], two["share"], two["promised_bytes"]) == (1, 0.5, 0.6, 100)


# ---- overlap


def namespaces():
    return subprocess.run(["ip", "netns", "list"], capture_output=True, text=True).stdout


def test_overlap_says_why_it_is_skipped(tmp_path, monkeypatch, capsys):
    import hosts
    import overlap

    monkeypatch.setattr(hosts.os, "geteuid", lambda: 1000)
    row, = rows_of(overlap, tmp_path)
    assert "root" in row["skipped"] and row["ms"] is None and "root" in capsys.readouterr().out
    plot = pytest.importorskip("plot")
    plot.main([str(tmp_path / "rows.json")])
    assert "nothing to draw" in capsys.readouterr().out


def test_hosts_need_their_tools(monkeypatch):
    import hosts

    monkeypatch.setattr(hosts.os, "geteuid", lambda: 0)
    monkeypatch.setattr(hosts.shutil, "which", lambda tool: None if tool == "tc" else f"/sbin/{tool}")
    assert "no tc" in hosts.missing() and "no ip" not in hosts.missing()
    monkeypatch.setattr(hosts.sys, "platform", "darwin")
    assert "Linux" in hosts.missing()


def test_overlap_on_hosts(tmp_path):
    import hosts
    import overlap

    if reason := hosts.missing():
        pytest.skip(reason)
    flags = ["--nodes", "400", "--edges", "4000", "--repeats", "2"]
    rows = rows_of(overlap, tmp_path, *flags)
    assert [(r["case"], r["way"]) for r in rows] == \
        [(case, way) for case in ("copy_src", "attend") for way in ("both", "forward", "backward")]
    for r in rows:
        assert (r["graph"], r["ranks"], r["threads"]) == ("400:4000", 2, 1)
        assert 0 < r["ms_min"] <= r["ms"] <= r["ms_max"]
        assert 0 < r["t0_ms"] == pytest.approx(r["comm_ms"] + r["compute_ms"])
        assert r["hidden"] == pytest.approx((r["t0_ms"] - r["ms"]) / min(r["comm_ms"], r["compute_ms"]))
    assert f"sarlite-{os.getpid()}" not in namespaces()


@pytest.mark.parametrize("is_root", [False, True])
def test_push_overlap_measures_or_says_why_not(is_root, tmp_path, monkeypatch):
    """Hosts are tested if they can be made, else the row that says why not."""
    import hosts
    import push_overlap

    if not is_root:
        monkeypatch.setattr(hosts.os, "geteuid", lambda: 1000)
        assert "root" in rows_of(push_overlap, tmp_path)[0]["skipped"]
        return
    if reason := hosts.missing():
        pytest.skip(reason)
    row, = rows_of(push_overlap, tmp_path, "--nodes", "400", "--edges", "4000", "--batch", "100", "--repeats", "2")
    assert 0 < row["ms_min"] <= row["ms"] <= row["ms_max"]
    assert 0 < row["t0_ms"] == pytest.approx(row["comm_ms"] + row["compute_ms"])
    assert row["hidden"] == pytest.approx((row["t0_ms"] - row["ms"]) / min(row["comm_ms"], row["compute_ms"]))
    assert row["mib"] > 0


def test_hosts_leave_nothing_behind(monkeypatch):
    import hosts

    if reason := hosts.missing():
        pytest.skip(reason)
    with pytest.raises(KeyboardInterrupt), hosts.Hosts(2) as network:
        assert namespaces().count(network.name) == 3 and network.script.exists()
        raise KeyboardInterrupt
    assert network.name not in namespaces() and not network.script.exists()
    do = hosts._do
    monkeypatch.setattr(hosts, "_do", lambda *words: sys.exit("no tc") if words[0] == "tc" else do(*words))
    with pytest.raises(SystemExit, match="no tc"), hosts.Hosts(2):
        pass
    assert network.name not in namespaces()
