"""What is done with costs before a run: refusals above a limit, and the choice of a mode."""

from collections import Counter

import numpy as np
import pytest

from sarlite.comm import threads
from sarlite.errors import ConfigError
from sarlite.train import planning
from sarlite.train.config import resolve
from sarlite.train.costs import Segment, Setting
from sarlite.train.rates import Rates, in_step, seconds_of
from tests.helpers.costing import MODELS, QUIET, RELATIONAL, SBM, counted, dry_run, trained, weighted

DENSE = dict(data="sbm:nodes=12000,degree=6,features=16", model="gat", layers=2, hidden=192, heads=2, epochs=1, prefetch=0)
TINY = dict(data=SBM, **MODELS["gcn"], layers=2, epochs=1, prefetch=0)


def refused(comm, folder, mode, limit, options):
    with pytest.raises(ConfigError) as error:
        trained(comm, folder, mode=mode, memory_limit=limit, **options)
    return str(error.value)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("mfg", [False, True])
def test_where_nothing_fits_every_rank_refuses(mfg, tmp_path):
    texts = threads.run(2, refused, tmp_path / "none", "auto", 1000.0, {**TINY, "mfg": mfg})
    assert texts[0] == texts[1] and "no mode fits" in texts[0] and "the smallest, takes" in texts[0], texts


def test_what_does_not_fit_is_refused_on_every_rank_and_auto_takes_what_fits(tmp_path, capsys):
    options = DENSE

    for _ in range(2):  # the process grows in the first one
        found = threads.run(2, trained, tmp_path / "dry", dry_run=True, **options)[0]
    needs = {row["setting"]: max(map(sum, zip(found["base_bytes"], row["peak_bytes"]))) for row in found["settings"]}
    assert needs["sar"] < needs["oneshot"] - 4e6 and all(row["fits"] for row in found["settings"])
    limit = (needs["sar"] + needs["oneshot"]) / 2
    texts = threads.run(2, refused, tmp_path / "large", "oneshot", limit, options)
    assert texts[0] == texts[1]
    assert "mode oneshot would take" in texts[0] and "--memory-limit" in texts[0] and "takes" in texts[0] and "and fits" in texts[0]
    capsys.readouterr()
    threads.run(2, trained, tmp_path / "auto", mode="auto", memory_limit=limit, **options)
    out = capsys.readouterr()
    chosen = out.err.rsplit("--mode auto takes ", 1)[1].split("\n")[0]
    assert chosen != "oneshot" and "oneshot" in out.err and f"2, mode {chosen.split()[0]}," in out.out


def test_a_relational_run_takes_a_mode_that_is_told(tmp_path, capsys):
    threads.run(2, trained, tmp_path / "free", mode="auto", **{**RELATIONAL["inside"], "epochs": 1, "prefetch": 0})
    found = capsys.readouterr()
    assert f"2, mode {found.err.rsplit('--mode auto takes ', 1)[1].strip()}," in found.out


def test_a_run_whose_costs_cannot_be_counted_is_refused_where_a_limit_is_given(tmp_path):
    options = {"model": "gat", "edge_weights": True, "data": weighted(tmp_path / "a.npz"), "columns": 2, "epochs": 1}
    threads.run(2, trained, tmp_path / "free", **options)
    with pytest.raises(ConfigError, match="--columns: costs are not counted for a model whose messages are computed by rows"):
        threads.run(2, trained, tmp_path / "limited", memory_limit=1e12, **options)
    for flag, asked in (("--dry-run", {"dry_run": True}), ("--mode auto", {"mode": "auto"}), ("--memory-limit", {"memory_limit": 1e12})):
        with pytest.raises(ConfigError, match=f"{flag}: the costs of minibatches of the model sgc, which have no edges, are not counted"):
            threads.run(2, trained, tmp_path / "sgc", data=SBM, model="sgc", batch_size=10, **asked)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("n_ranks, options, reason", [
    (2, {}, ""), (1, {}, "one rank has all columns"), (2, {"columns": 2}, "--columns is given"), (2, {"mfg": True}, "has no columns"),
    (2, {"edge_weights": True, **MODELS["gcn"]}, ""),
    (2, {"edge_weights": True, **MODELS["gat"], "layers": 1}, "messages are computed by rows"),
])
def test_what_cannot_be_divided_by_columns_is_left_out_and_said(n_ranks, options, reason, tmp_path, capsys):
    data = weighted(tmp_path / "a.npz") if "edge_weights" in options else SBM
    rows, left_out = dry_run(tmp_path, n_ranks, **{**TINY, "data": data, **options})
    name = f"sar --columns {n_ranks}"
    assert "sar" in rows and (name in rows) == (not reason)
    assert reason in left_out.get(name, "") and (f"{name} is left out: " in capsys.readouterr().out) == bool(reason)


def test_the_cheapest_is_what_computes_packs_sends_and_waits_least():
    step = Segment(received=Counter(forward_fetch=100), n_messages=3, packed_bytes=40,
                   flops=1000, touched_bytes=16, row_bytes=8)
    rates = Rates(packing=1.0, sending=2.0, message=5.0, flop=0.5, summing=0.25)
    assert seconds_of(step, rates, waited_edges=10) == 40 + 200 + 15 + 500 + 0.25 * (16 + 80)


def test_ranks_that_go_in_step_wait_for_the_largest_tile_of_each_stage():
    tiles = np.array([[9.0, 1, 2], [1, 5, 4], [3, 1, 7]])
    assert in_step(tiles, 0) == 9 + 5 + 7 and in_step(np.ones((4, 4)), 0) == 4
    assert in_step(np.diag([6.0, 6, 6]), 0) == 18 and in_step(np.diag([6.0, 6, 6]), 1) == 6  # own tiles side by side
    assert in_step(tiles, 3) == tiles.sum(1).max()  # nobody waits
    # own tiles till 9, 5, 7; stage 0 till 9, 6, 10; stage 1 till 10, 6, 11; stage 2 when all have done stage 0, at 10: 12, 14, 11
    assert in_step(tiles, 1) == 14


@pytest.mark.parametrize("summing, prefetch, waits", [(0.0, 0, False), (1.0, 0, True), (1.0, 1, False)])
def test_a_comparison_counts_what_ranks_in_step_wait(summing, prefetch, waits, tmp_path):
    """Of parts that are uneven, as their own tiles are most; with prefetch own tiles are first."""
    def seconds(comm):
        config = resolve({**QUIET, "data": "sbm:nodes=300,degree=20,features=4,homophily=0.9", "model": "gcn", "partition": "contiguous",
                          "prefetch": prefetch, "ranks": comm.size})
        _, sizes, part = counted(comm, config, tmp_path)
        limit = planning.limit_of(comm, part, None)
        rows, _ = planning.compare(comm, sizes, limit, {Setting(mode): "" for mode in ("broadcast", "sar")},
                                   Rates(0.0, 0.0, 0.0, 0.0, summing))
        return [row.seconds for row in rows]

    broadcast, sar = threads.run(2, seconds)[0]
    assert (broadcast > sar) == waits and (sar > 0) == (summing > 0)
