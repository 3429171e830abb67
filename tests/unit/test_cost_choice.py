"""What is done with costs before a run: refusals above a limit, and the choice of a mode."""

import numpy as np
import pytest

from sarlite.comm import threads
from sarlite.errors import ConfigError
from sarlite.sar import other_counts
from sarlite.sar.cover import cover
from sarlite.train import planning
from sarlite.train.costs import Setting
from sarlite.train.rates import Rates, in_step
from tests.helpers.costing import DENSE, LIMIT, trained, weighted
from tests.helpers.exchanges import on_hosts


@pytest.mark.parametrize("mfg", [False, True])
def test_what_does_not_fit_is_refused_on_every_rank_and_auto_takes_what_fits(mfg, tmp_path, limited, monkeypatch, capsys):
    dense = {**DENSE, "mfg": mfg}
    monkeypatch.setattr(planning, "SETTINGS", [Setting("oneshot"), Setting("sar")])
    LIMIT[0] = float("inf")
    rows = threads.run(2, trained, tmp_path / "dry", dry_run=True, **dense)[0]["settings"]
    large, small = (max(row["peak_bytes"]) for row in rows)
    assert small < 0.85 * large and all(row["fits"] for row in rows)
    monkeypatch.setattr(planning, "rates_of", lambda comm: Rates(1.0, 1.0, 1.0, 0.0, 0.0))  # oneshot, which fetches once, is the cheaper
    LIMIT[0] = (small + large) / 2

    def refused(comm, name, mode):
        with pytest.raises(ConfigError) as told:
            trained(comm, tmp_path / name, mode=mode, **dense)
        return str(told.value)

    texts = threads.run(2, refused, "large", "oneshot")
    assert texts[0] == texts[1]
    assert "mode oneshot would take" in texts[0] and "--memory-limit" in texts[0] and "--mode sar takes" in texts[0]
    capsys.readouterr()
    threads.run(2, trained, tmp_path / "auto", mode="auto", **dense)
    out = capsys.readouterr()
    assert "--mode auto takes sar\n" in out.err and "oneshot  no" in out.err and "2, mode sar," in out.out
    LIMIT[0] = small / 2
    texts = threads.run(2, refused, "none", "auto")
    assert texts[0] == texts[1] and "no mode fits" in texts[0], texts
    LIMIT[0] = float("inf")
    threads.run(2, trained, tmp_path / "free", mode="auto", **dense)
    assert "--mode auto takes oneshot\n" in capsys.readouterr().err


def test_a_run_whose_costs_cannot_be_counted_is_refused_where_a_limit_is_given(tmp_path, monkeypatch):
    monkeypatch.setattr(planning, "_SMALL", 0)
    options = {"model": "gat", "edge_weights": True, "data": weighted(tmp_path / "a.npz"), "columns": 2, "epochs": 1}
    threads.run(2, trained, tmp_path / "free", **options)
    with pytest.raises(ConfigError, match="--columns: the costs of a model are not counted whose messages are computed by rows"):
        threads.run(2, trained, tmp_path / "limited", memory_limit=1e12, **options)


def test_a_check_finds_a_cover_only_where_it_is_exchanged(tmp_path, limited, monkeypatch):
    found = []
    monkeypatch.setattr(other_counts, "cover", lambda *args: found.append(args) or cover(*args))
    LIMIT[0] = 1e12
    for mode, backward in (("sar", None), ("oneshot", None), ("sar", "fetch"), ("cover", None)):
        threads.run(2, trained, tmp_path / f"{mode} {backward}", mode=mode, backward=backward, memory_limit=1e12, **DENSE)
        assert bool(found) == (mode == "cover")
        found.clear()


@pytest.mark.parametrize("hosts, taken", [((0, 0, 1), "host"), ((0, 0, 0), "sar"), ((0, 1, 2), "sar")])
def test_auto_takes_mode_host_for_several_hosts_of_several_ranks(hosts, taken, tmp_path, limited, monkeypatch, capsys):
    monkeypatch.setattr(planning, "SETTINGS", [Setting("host"), Setting("sar")])
    monkeypatch.setattr(planning, "rates_of", lambda comm: Rates(0.0, 1.0, 0.0, 0.0, 0.0))
    LIMIT[0] = float("inf")
    on_hosts(hosts, trained, tmp_path / "auto", mode="auto", **DENSE)
    assert f"--mode auto takes {taken}\n" in capsys.readouterr().err


def test_ranks_that_go_in_step_wait_for_the_largest_tile_of_each_stage():
    tiles = np.array([[9.0, 1, 2], [1, 5, 4], [3, 1, 7]])
    assert in_step(tiles, 0) == 9 + 5 + 7 and in_step(np.ones((4, 4)), 0) == 4
    assert in_step(np.diag([6.0, 6, 6]), 0) == 18 and in_step(np.diag([6.0, 6, 6]), 1) == 6  # own tiles side by side
    assert in_step(tiles, 3) == tiles.sum(1).max()  # nobody waits
    # own tiles till 9, 5, 7; stage 0 till 9, 6, 10; stage 1 till 10, 6, 11; stage 2 when all have done stage 0, at 10: 12, 14, 11
    assert in_step(tiles, 1) == 14


@pytest.mark.parametrize("summing, taken, columns, prefetch", [
    (0.0, "broadcast", 1, 0), (1.0, "sar", 1, 0), (1.0, "sar", 2, 0), (1.0, "broadcast", 2, 1),  # with prefetch own tiles are first
])
def test_auto_counts_what_ranks_in_step_wait(summing, taken, columns, prefetch, tmp_path, limited, monkeypatch, capsys):
    monkeypatch.setattr(planning, "SETTINGS", [Setting("broadcast"), Setting("sar")])
    monkeypatch.setattr(planning, "rates_of", lambda comm: Rates(1.0, 0.0, 0.0, 0.0, summing))  # sar packs rows
    LIMIT[0] = float("inf")
    options = {**DENSE, "model": "gcn", "partition": "contiguous", "data": "sbm:nodes=300,degree=20,features=4,homophily=0.9",
               "columns": columns, "prefetch": prefetch}
    del options["heads"]
    threads.run(2 * columns, trained, tmp_path / "auto", mode="auto", **options)
    assert f"--mode auto takes {taken}\n" in capsys.readouterr().err
