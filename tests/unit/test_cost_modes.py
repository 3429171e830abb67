"""Bytes of full-batch training that are told before it are those of the run's counters, in each mode and setting."""

import pytest

from sarlite.comm import threads
from sarlite.sar.schedule.modes import MODES
from sarlite.train import costs, planning
from sarlite.train.config import resolve
from sarlite.train.costs import Setting
from tests.helpers.costing import FEW, HOSTS, MODELS, QUIET, RELATIONAL, check_bytes, counted, trained, weighted


@pytest.mark.sampled(3)
@pytest.mark.parametrize("prefetch", [0, 1])
@pytest.mark.parametrize("backward", [None, "push", "fetch"])
@pytest.mark.parametrize("mode", [name for name in MODES if name != "host"])  # of which below
@pytest.mark.parametrize("n_ranks", [1, 2, 3, 4])
@pytest.mark.parametrize("name", MODELS)
def test_bytes_are_those_of_the_run(name, n_ranks, mode, backward, prefetch, tmp_path, monkeypatch):
    check_bytes(tmp_path, monkeypatch, n_ranks, mode, prefetch=prefetch, backward=backward, epochs=3, **MODELS[name])


@pytest.mark.parametrize("name, n_ranks, options, phase", [
    ("gcn", 3, dict(mode="cover"), "forward_push"),
    ("gat", 2, dict(mode="sar", backward="fetch"), "backward_fetch"),
    ("gcn", 4, dict(mode="sar", columns=2, hidden=17), "backward_turn"),
    ("gcn", 4, dict(mode="sar", columns=2, hidden=4, layers=3, clip_norm=0.5, data=FEW), "backward_turn"),  # some tiny gradients are all 0
])
def test_bytes_of_sums_for_peers_of_fetched_gradients_and_of_turns(name, n_ranks, options, phase, tmp_path, monkeypatch):
    assert check_bytes(tmp_path, monkeypatch, n_ranks, prefetch=1, epochs=1, **{"layers": 2, **options}, **MODELS[name])[phase] > 0


@pytest.mark.sampled(3)
@pytest.mark.parametrize("prefetch", [0, 1])
@pytest.mark.parametrize("hosts", HOSTS)
@pytest.mark.parametrize("name, options", [("gcn", {}), ("gcn", {"halo": "recompute", "layers": 3}), ("max", {}), ("gat", {}), ("rgat", {}),
                                           ("gat", {"backward": "fetch"}), ("sage", {"backward": "fetch"}), ("rgcn", {})])
def test_bytes_of_hosts_are_those_of_the_run(name, options, hosts, prefetch, tmp_path, monkeypatch):
    options = {**MODELS, **RELATIONAL}[name] | options | {"epochs": 3}
    check_bytes(tmp_path, monkeypatch, len(hosts), "host", prefetch=prefetch, hosts=hosts, **options)


@pytest.mark.sampled(5)
@pytest.mark.parametrize("n_ranks", [2, 3])
@pytest.mark.parametrize("name", [name for name in MODELS if name != "sign"])
@pytest.mark.parametrize("weights", [False, True])
def test_auto_takes_all_columns_and_sends_what_was_told(name, n_ranks, weights, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(planning, "SETTINGS", [Setting("sar", (("columns", costs.ALL),))])
    options = {"data": "sbm:nodes=90,degree=5,features=9", "prefetch": 1, "epochs": 3, **MODELS[name]}
    if weights and name not in ("max", "gat"):
        options |= {"data": weighted(tmp_path / "a.npz"), "edge_weights": True}
    real = threads.run(n_ranks, trained, tmp_path / "real", mode="auto", **options)[0]
    (told,) = threads.run(n_ranks, trained, tmp_path / "dry", dry_run=True, **options)[0]["settings"]
    sent, said = ({k: n for k, n in found.items() if k != "setup" and n} for found in (real["sent_bytes"], told["run_sent_bytes"]))
    assert sent == said and said["forward_turn"] > 0
    assert real["grid"]["columns"] == n_ranks and f"--mode auto takes sar --columns {n_ranks}\n" in capsys.readouterr().err


@pytest.mark.parametrize("n_ranks, options, reason", [
    (2, {}, ""), (1, {}, "one rank has all columns"), (2, {"columns": 2}, "--columns is given"), (2, {"mfg": True}, "has no columns"),
    (2, {"halo": "recompute", **MODELS["gcn"]}, "--halo is given"), (2, {"edge_weights": True, **MODELS["gcn"]}, ""),
    (2, {"edge_weights": True, **MODELS["gat"]}, "messages are computed by rows"),
])
def test_what_cannot_be_divided_by_columns_is_left_out_and_said(n_ranks, options, reason, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(planning, "SETTINGS", [Setting("sar"), Setting("sar", (("columns", costs.ALL),))])
    data = weighted(tmp_path / "a.npz") if "edge_weights" in options else "sbm:nodes=90,degree=5,features=9"
    found = threads.run(n_ranks, trained, tmp_path / "run", dry_run=True, prefetch=0, data=data, **options)[0]
    name = f"sar --columns {n_ranks}"
    assert [row["setting"] for row in found["settings"]] == ["sar", name][: 1 if reason else 2]
    assert reason in found["left_out"].get(name, "") and (f"{name} is left out: " in capsys.readouterr().out) == bool(reason)


def test_bytes_of_hosts_on_a_grid_are_those_of_the_run(tmp_path, monkeypatch):
    """Each column of which is on one host."""
    said = check_bytes(tmp_path, monkeypatch, 4, "host", prefetch=1, hosts=(0, 1, 0, 1), **{**MODELS["gcn"], "columns": 2, "epochs": 1})
    assert said["forward_turn"] > 0 and not said.get("forward_fetch")


def test_halo_rows_that_are_computed_again_are_those_of_the_whole_host(tmp_path):
    def flops(comm):
        config = resolve({**QUIET, "data": "sbm:nodes=90,degree=5,features=9", "halo": "recompute", **MODELS["gcn"], "prefetch": 0,
                          "ranks": comm.size})
        model, sizes, _ = counted(comm, config, tmp_path)
        return [model.cost(Setting(mode), sizes, 0).flops for mode in ("sar", "host")]

    assert all(of_host > of_rank for of_rank, of_host in threads.run(3, flops))


@pytest.mark.sampled(4)
@pytest.mark.parametrize("prefetch", [0, 1])
@pytest.mark.parametrize("layers", [1, 2, 3])
@pytest.mark.parametrize("mode", [name for name, mode in MODES.items() if not mode.shares])
@pytest.mark.parametrize("n_ranks", [2, 3])
@pytest.mark.parametrize("name", ["gcn", "sage"])
def test_bytes_where_halo_rows_are_computed_again(name, n_ranks, mode, layers, prefetch, tmp_path, monkeypatch):
    options = {**MODELS[name], "layers": layers, "halo": "recompute", "epochs": 3}
    said = check_bytes(tmp_path, monkeypatch, n_ranks, mode, prefetch=prefetch, **options)
    assert (said.get("backward_push", 0) + said.get("backward_fetch", 0) > 0) == (layers == 3)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("n_ranks", [2, 3])
@pytest.mark.parametrize("name", ["gcn", "sage", "appnp"])
def test_bytes_of_a_weighted_graph_are_those_of_the_run(name, n_ranks, tmp_path, monkeypatch):
    flags = {**MODELS[name], "data": weighted(tmp_path / "a.npz"), "edge_weights": True}
    check_bytes(tmp_path, monkeypatch, n_ranks, "broadcast", prefetch=0, epochs=3, **flags)  # whose gradients of weighted sums are pushed


@pytest.mark.sampled(4)
@pytest.mark.parametrize("n_ranks, columns", [(2, 2), (3, 3), (4, 2)])
@pytest.mark.parametrize("mode", ["sar", "oneshot", "broadcast"])
@pytest.mark.parametrize("name", ["gcn", "sage", "appnp"])
def test_bytes_of_a_weighted_graph_by_columns_are_those_of_the_run(name, mode, n_ranks, columns, tmp_path, monkeypatch):
    flags = {**MODELS[name], "data": weighted(tmp_path / "a.npz"), "edge_weights": True, "columns": columns}
    said = check_bytes(tmp_path, monkeypatch, n_ranks, mode, prefetch=1, epochs=2, **flags)  # setting up holds rows of peers
    assert said["forward_turn"] > 0


@pytest.mark.sampled(3)
@pytest.mark.parametrize("n_ranks", [2, 3])
@pytest.mark.parametrize("name", ["gcn", "gat", "rgcn", "edges"])
def test_a_setting_is_told_the_same_beside_others_as_alone(name, n_ranks, tmp_path):
    options = {**MODELS, **RELATIONAL}.get(name) or {"model": "gat", "edge_weights": True, "data": weighted(tmp_path / "a.npz")}

    def both(comm):
        config = resolve({**QUIET, "data": "sbm:nodes=90,degree=5,features=9", "prefetch": 0, **options, "ranks": comm.size})
        model, sizes, _ = counted(comm, config, tmp_path)
        chosen, _ = planning.settings(config, model)
        others = [costs.Model(config, model.make, model.facts, comm, comm.size) for _ in chosen]
        return [(str(setting), model.cost(setting, sizes, 0).found, alone.cost(setting, sizes, 0).found)
                for setting, alone in zip(chosen, others)]

    for found in threads.run(n_ranks, both):
        assert len(found) >= 4 and [name for name, beside, alone in found if beside != alone] == []
