"""`sarlite.estimate`: a data set's figures are a run's, and a known graph's those that are known."""

import json

import numpy as np
import pytest

from sarlite import estimate, optim
from sarlite.comm import Solo, threads
from sarlite.sar.cost import counts_of, expected
from sarlite.sar.other_counts import with_others
from sarlite.sar.program import Program
from sarlite.sar.schedule.modes import MODES
from sarlite.train import costs, planning, run
from sarlite.train.config import resolve
from sarlite.train.costs import Setting
from sarlite.train.model import model_class
from sarlite.train.trial import Facts
from tests.helpers.costing import MODELS, RELATIONAL, trained, weighted
from tests.helpers.exchanges import on_hosts, shard
from tests.helpers.strategies import Edges


def test_an_estimate_of_a_data_set_is_a_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(planning, "SETTINGS", [Setting("sar")])
    monkeypatch.setattr(estimate, "MODES", {"sar": MODES["sar"]})
    flags = ["--data", "sbm:nodes=90,degree=5,features=9", "--model", "gcn", "--partition", "random", "--prefetch", "0"]
    real = threads.run(3, trained, tmp_path / "real", data=flags[1], model="gcn", prefetch=0, epochs=1)[0]["sent_bytes"]
    assert estimate.main([*flags, "--ranks", "3", "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert row["exact"] and {k: n for k, n in row["sent_bytes"].items() if k in ("forward_fetch", "backward_push")} == \
        {k: n for k, n in real.items() if k in ("forward_fetch", "backward_push")}


def test_an_estimate_of_relational_data_is_a_runs(tmp_path, capsys):
    options = {**RELATIONAL["rgcn"], "prefetch": 0}
    said = {row["setting"]: row for row in threads.run(3, trained, tmp_path, dry_run=True, epochs=2, **options)[0]["settings"]}
    flags = [word for name, value in options.items() for word in (f"--{name}", str(value))]
    assert estimate.main([*flags, "--partition", "random", "--ranks", "3", "--json"]) == 0
    rows = {row["mode"]: row for row in json.loads(capsys.readouterr().out.splitlines()[-1])}
    assert rows.keys() == {"sar", "sa", "oneshot", "broadcast"} == said.keys() - {"host"}
    for mode, row in rows.items():
        sent = {phase: n for phase, n in said[mode]["sent_bytes"].items() if phase != "evaluation"}
        assert row["exact"] and {phase: n for phase, n in row["sent_bytes"].items() if n} == {phase: n for phase, n in sent.items() if n}
    assert estimate.main([*flags, "--ranks", "17"]) == 2 and "on at most 16 ranks" in capsys.readouterr().err


@pytest.mark.parametrize("options", [{**MODELS["sage"], "data": "sbm:nodes=90,degree=5,features=9"}, RELATIONAL["rgcn"]])
def test_an_estimate_of_mode_host_is_a_runs(options, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(estimate, "MODES", {name: MODES[name] for name in ("sar", "host")})
    monkeypatch.setattr(planning, "SETTINGS", [Setting("host")])
    told = on_hosts((0, 0, 1), trained, tmp_path, dry_run=True, prefetch=0, epochs=2, **options)[0]["settings"]
    real = told[0]["sent_bytes"]
    flags = [word for name, value in options.items() for word in (f"--{name.replace('_', '-')}", str(value))]
    flags += ["--partition", "random", "--ranks", "3", "--prefetch", "0", "--json"]
    assert estimate.main([*flags, "--ranks-per-host", "2"]) == 0
    rows = {row["mode"]: row["sent_bytes"] for row in json.loads(capsys.readouterr().out.splitlines()[-1])}
    phases = [phase for phase in real if phase.startswith(("forward", "backward"))]
    assert len(phases) >= 2 and [rows["host"][phase] for phase in phases] == [real[phase] for phase in phases]
    assert sum(rows["host"][phase] for phase in phases) < sum(rows["sar"][phase] for phase in phases)
    assert estimate.main([*flags, "--ranks-per-host", "0"]) == 2 and "--ranks-per-host 0: at least 1" in capsys.readouterr().err


def test_what_a_host_is_expected_to_need_of_random_parts_is_what_it_needs():
    n, hosts = 3000, (0, 0, 1, 1, 2)
    src, dst = np.random.default_rng(0).integers(0, n, (2, 3 * n))
    edges = Edges(np.concatenate([src, dst]), np.concatenate([dst, src]), n)
    degrees = np.stack(np.unique(np.bincount(edges.dst, minlength=n), return_counts=True))

    def real(comm):
        graph = shard(comm, edges)
        return with_others(graph, counts_of(graph)).shared

    (found, *_), told = on_hosts(hosts, real), expected(n, 6 * n, 5, degrees=degrees, per_host=2).shared
    assert told.hosts == list(hosts) and told.needs[0] == told.asked[0] == (0, True)
    for name in ("needs", "asked"):
        said, is_so = ([rows for rows, _ in getattr(each, name)] for each in (told, found))
        np.testing.assert_allclose(said, is_so, rtol=0.05)
    assert told.needs[4][0] > told.asked[4][0]  # of two ranks, and of one


def test_an_estimate_says_what_it_leaves_out_and_why(monkeypatch, capsys):
    monkeypatch.setattr(estimate, "MODES", {name: MODES[name] for name in ("sar", "cover", "host")})
    counts = "--nodes 900 --edges 4000 --features 9 --classes 3".split()

    def left_out(*flags):
        assert estimate.main(["--model", "sgc", *flags]) == 0
        return [line for line in capsys.readouterr().out.splitlines() if "is left out" in line and "--dry-run" not in line]

    cover, host = "cover is left out on {}: a cover is found of parts as divided, not expected of random ones", "--ranks-per-host is 1"
    assert left_out(*counts, "--ranks", "4,8") == [cover.format("4, 8 ranks"), f"host is left out on 4, 8 ranks: {host}"]
    assert left_out("--data", "sbm:nodes=90", "--ranks", "2,20", "--ranks-per-host", "2") == [cover.format("20 ranks")]


def test_an_estimate_counts_values_on_edges(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(estimate, "MODES", {"sar": MODES["sar"]})
    monkeypatch.setattr(costs.Model, "fixed_bytes", property(lambda self: 0, lambda self, n: None), raising=False)  # which is measured
    peaks, data = [], weighted(tmp_path / "a.npz")
    for flag in ("--edge-weights", "--no-edge-weights"):
        assert estimate.main(["--data", data, "--model", "sgc", flag, "--ranks", "20", "--json"]) == 0  # expected of the data's degrees
        peaks.append(json.loads(capsys.readouterr().out.splitlines()[-1])[0]["peak_bytes"])
    assert peaks[0] - peaks[1] >= 4 * 700 // 20  # a weight, of some 790 edges
    assert estimate.main("--nodes 90 --edges 400 --features 9 --classes 3 --model gcn --edge-weights".split()) == 2
    assert "--edge-weights and --edge-features go with --data" in capsys.readouterr().err


def test_papers100m():
    """Figures of full-batch GCN 128-256-256-172 on ogbn-papers100M, in GB received a rank and step."""
    nodes, edges, sizes = 111_059_956, 2 * 1_615_685_872, {"sar": (16, 64, 256, 1024), "broadcast": (16, 1024)}
    config = resolve({"model": "gcn", "layers": 3, "hidden": 256, "dropout": 0.0, "threads": 1})
    cls = model_class("gcn")

    def make(comm, config, part):
        return run._make_trainer(comm, config, cls, optim.schedule("constant", 1), part, None)

    received = {}
    for mode in ("sar", "broadcast"):
        model = costs.Model(config, make, Facts(128, 172), Solo(), 16)
        model.cost(Setting(mode), costs.Sizes(expected(1600, 3200, 16), dict.fromkeys(("rows", "edges", "train", "val", "test"), 10), 0), 0)
        (program,) = model._programs.values()
        steps = Program(program.names, [segment for segment in program.segments if segment.name == "step"])
        rows = {"rows": 1, "edges": 1, "train": 1, "val": 1, "test": 1}
        found = [steps.replay(expected(nodes, edges, size), mode, 0, rows) for size in sizes[mode]]
        received[mode] = [sum(each.received["step"].values()) / 1e9 for each in found]
    assert np.round(received["broadcast"]).tolist() == [357, 380]
    assert np.round(received["sar"]).tolist() == [302, 138, 41, 11]
