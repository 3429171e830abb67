"""What is done with costs before a run: refusals above a limit, and what each mode takes."""

from collections import Counter

import numpy as np
import pytest

from sarlite.comm import threads
from sarlite.errors import ConfigError
from sarlite.train import planning
from sarlite.train.config import resolve
from sarlite.train.costs import Segment, Setting
from sarlite.train.rates import Rates, in_step, seconds_of
from tests.helpers.costing import MODELS, QUIET, SBM, counted, trained

DENSE = dict(data="sbm:nodes=12000,degree=6,features=16", model="gat", layers=2, hidden=192, heads=2, epochs=1, prefetch=0)
TINY = dict(data=SBM, **MODELS["gcn"], layers=2, epochs=1, prefetch=0)


def refused(comm, folder, mode, limit, options):
    with pytest.raises(ConfigError) as error:
        trained(comm, folder, mode=mode, memory_limit=limit, **options)
    return str(error.value)


def test_what_does_not_fit_is_refused_on_every_rank(tmp_path):
    options = DENSE

    for _ in range(2):  # the process grows in the first one
        found = threads.run(2, trained, tmp_path / "dry", dry_run=True, **options)[0]
    needs = {row["setting"]: max(map(sum, zip(found["base_bytes"], row["peak_bytes"]))) for row in found["settings"]}
    assert needs["sar"] < needs["oneshot"] - 4e6 and all(row["fits"] for row in found["settings"])
    limit = (needs["sar"] + needs["oneshot"]) / 2
    texts = threads.run(2, refused, tmp_path / "large", "oneshot", limit, options)
    assert texts[0] == texts[1]
    assert "mode oneshot would take" in texts[0] and "--memory-limit" in texts[0] and "takes" in texts[0] and "and fits" in texts[0]


def test_a_run_whose_costs_cannot_be_counted_is_refused_where_a_limit_is_given(tmp_path):
    for flag, asked in (("--dry-run", {"dry_run": True}), ("--memory-limit", {"memory_limit": 1e12})):
        with pytest.raises(ConfigError, match=f"{flag}: the costs of minibatches of the model sgc, which have no edges, are not counted"):
            threads.run(2, trained, tmp_path / "sgc", data=SBM, model="sgc", batch_size=10, **asked)


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
