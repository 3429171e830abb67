"""The benchmarks of minibatches over several ranks: the simulated cache by hand, and small runs with their rows."""

import json
from pathlib import Path

import numpy as np
import pytest

pytestmark = pytest.mark.timeout(120)


@pytest.fixture(autouse=True)
def on_path(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[3] / "benchmarks"))


def by_hand(settings, epochs):
    """Return by step the hits of layers 0 and 1, and the rows pushed by layer.

    Nodes 0, 1 are rank 0's and 2, 3 rank 1's; 0 reads 2 and 3, 3 reads 1. A step of `epochs` has rank 1's own rows and the
    rows that rank 0 looks up.
    """
    import cache_hits

    hits = []

    class Noted(cache_hits.Simulation):
        def look_up(self, layer, step, batch):
            before = self.hits[layer]
            super().look_up(layer, step, batch)
            hits.append(self.hits[layer] - before)

    parts = np.array([0, 0, 1, 1])
    simulation = Noted(np.array([0, 2, 2, 2, 3]), np.array([2, 3, 1]), parts, 2, cache_hits.Settings(*settings))
    first, nothing = 0, [([], [])] * settings[2]
    for steps, more in zip(epochs, [*epochs[1:], nothing]):
        both = [([[cache_hits.Nodes([], halo)] * 2 for _, halo in some], [[cache_hits.Nodes(ids, [])] * 2 for ids, _ in some])
                for some in (steps, more + nothing)]
        simulation.epoch(first, *both)
        first += len(steps)
    return list(zip(hits[::2], hits[1::2])), dict(simulation.pushed)


def test_ages_in_the_simulation():
    """A row of step 0 is, with d 1 and ls 1, a hit in steps 1 and 2, and forever in layer 0, the features."""
    one = [([2], [2])] + [([], [2])] * 3
    assert by_hand((1, 9, 1, "paper"), [one]) == ([(0, 0), (1, 1), (1, 1), (1, 0)], {0: 1, 1: 1})
    assert by_hand((1, 9, 0, "paper"), [one])[0] == [(1, 1), (1, 1), (1, 0), (1, 0)]
    assert by_hand((0, 9, 2, "paper"), [one])[0] == [(0, 0), (0, 0), (1, 1), (1, 0)]


def test_what_is_under_way_arrives_at_the_end_of_an_epoch():
    assert by_hand((0, 9, 2, "paper"), [[([2], [2])], [([], [2])]])[0] == [(0, 0), (1, 1)]


def test_the_limit_and_who_reads_what():
    """Node 1 is read by rank 1 alone and node 3 by rank 0; of two rows one is pushed."""
    assert by_hand((9, 1, 1, "paper"), [[([2, 3], [2, 3]), ([], [2, 3])]]) == ([(0, 0), (1, 1)], {0: 1, 1: 1})


def test_rows_are_pushed_on_demand():
    """Rows are asked for a step before.

    Node 3, whose row was never computed, comes as a feature alone; the row of node 2 comes while it is young.
    """
    steps = [([2], []), ([], [2, 3]), ([], [2]), ([], [2]), ([], [2])]
    hits, pushed = by_hand((1, 9, 1, "demand"), [steps])
    assert hits == [(0, 0), (2, 1), (1, 1), (1, 0), (1, 0)] and pushed == {0: 2, 1: 1}
    assert by_hand((1, 9, 1, "demand"), [steps[:1], steps[1:]]) == (hits, pushed)


def test_the_cache_hits_what_the_simulation_hits(tmp_path):
    """If the limits are above all rows, nothing is drawn, and the cache has the hits and the pushed rows of the simulation."""
    import cache_hits

    out = tmp_path / "rows.json"
    cache_hits.main(["--graphs", str(tmp_path), "--graph", "S/100", "--ranks", "3", "--lives", "1,4", "--limits",
                f"30,{cache_hits.UNLIMITED}",
                "--pushes", "paper,demand", "--batch-size", "10", "--epochs", "3", "--warm-up", "1", "--json",
                str(out)])
    rows = json.loads(out.read_text())
    assert len(rows) == 2 * 2 * 2 * 3
    for row in rows:
        assert row["lookups"] == row["simulated_lookups"] > 0 and 0 < row["hit_rate"] <= 1
        if row["push"] == "demand" or row["limit"] == cache_hits.UNLIMITED:
            assert row["hit_rate"] == row["simulated_hit_rate"]
            assert row["rows_pushed"] == row["simulated_rows_pushed"] > 0
        else:
            assert row["rows_pushed"] <= 30 * (row["ranks"] - 1)
            assert abs(row["hit_rate"] - row["simulated_hit_rate"]) < 0.1


def test_minibatch_accuracy_writes_its_rows(tmp_path, capsys):
    import minibatch_accuracy as accuracy

    out = tmp_path / "rows.json"
    accuracy.main(["--data", "sbm:nodes=400,homophily=0.5,noise=2", "--seeds", "2", "--ranks", "2", "--epochs", "3",
                   "--hidden", "8",
                   "--batch-size", "20", "--fanouts", "3,3,3", "--json", str(out)])
    rows = json.loads(out.read_text())
    several = [f"{remote}, {parts} parts" for remote in ("exact", "hec", "local") for parts in ("metis", "random")]
    assert [row["way"] for row in rows] == 2 * ["full batch", "full batch, a step an epoch", "minibatches", *several]
    assert [row["seed"] for row in rows] == [0] * 9 + [1] * 9
    for row in rows:
        assert len(row["curve"]) == 3 and row["accuracy"] == row["curve"][row["best_epoch"] - 1]
        assert len(row["hit_rates"]) == (3 if row["remote"] == "hec" else 0)
    assert "local, random parts" in capsys.readouterr().out


def test_epochs_until_the_target_and_paired_differences():
    import minibatch_accuracy as accuracy

    assert accuracy.until([50, 69.0, 69.1, 80], 70) == 3 and accuracy.until([50], 70) is None
    rows = [{"way": way, "seed": seed, "accuracy": a + seed, "curve": [a + seed], "hit_rates": []}
            for seed in (0, 10) for way, a in (("full batch", 70.0), ("minibatches", 69.5), ("local", 60.0))]
    full, one, local = accuracy.summary(rows)
    assert full["to full"] == (0, 0) and one["to full"] == (-0.5, 0) and local["to one"] == (-9.5, 0)
    assert (one["epochs"], local["epochs"]) == ([1, 1], ["never", "never"]) and one["accuracy"][0] == 74.5


def test_the_work_of_a_batch_by_hand():
    """GraphSAGE has two products a layer, forward and for the weights, and after the first layer for their input.

    Sums count alike.
    """
    import minibatch_speed

    from sarlite import Graph, nn
    from sarlite.minibatch import NeighborLoader

    draw = np.random.default_rng(0)
    graph = Graph.from_edges(*draw.integers(0, 80, (2, 900)), 80)
    loader = NeighborLoader(graph, draw.standard_normal((80, 25), np.float32), None, slice(None), fanouts=(2, 3, 4),
                            batch_size=5)
    batch = loader.batch(np.arange(5))
    counts, layers, flops = minibatch_speed.work(minibatch_speed.make_model("sage", nn.Random(0), 4), batch), batch.layers(3), 0
    assert counts["gathers"][0] == (batch.n_src, 100) and batch.n_src > layers[0].n_dst
    for k, (g, n_in, n_out) in enumerate(zip(layers, (25, 64, 64), (64, 64, 11))):
        n_rows, row_bytes = counts["gathers"][k + 1]
        assert n_rows == g.n_edges * (2 if k else 1) and row_bytes in (4 * n_in, 4 * n_out)
        neighbours = g.n_src if row_bytes != 4 * n_in else g.n_dst  # the product comes before or after the sum
        flops += 2 * (g.n_dst + neighbours) * n_in * n_out * (3 if k else 2)
    assert counts["flops"] == flops
    rates = minibatch_speed.limits.Limits(1e9, {64: 1e9, 1024: 1e9}, 1e9)
    assert minibatch_speed.limit_ms(counts,
                              rates) == pytest.approx((flops + sum(n * size for n, size in counts["gathers"])) / 1e6)


def test_message_flow_writes_its_rows(tmp_path):
    import message_flow

    out = tmp_path / "rows.json"
    message_flow.main(["--graphs", str(tmp_path), "--graph", "P/1000", "--hidden", "8", "--repeats", "1", "--json",
                       str(out)])
    rows = json.loads(out.read_text())
    assert [row["case"] for row in rows] == ["sage", "gat"]
    for row in rows:
        assert row["loss_difference"] < 1e-5 and row["share"] == row["flow_ms"] / row["full_ms"] > 0
        assert 0 < row["rows_3"] < row["rows_2"] <= row["rows_1"] <= 1


def test_links_writes_its_rows(tmp_path):
    import links_speed

    out = tmp_path / "rows.json"
    links_speed.main(["--graphs", str(tmp_path), "--graphs-list", "S/1000", "--threads-list", "1", "--batches", "2", "--repeats", "1",
                "--rounds", "1", "--peers", "none", "--json", str(out)])
    (row,) = json.loads(out.read_text())
    assert row["batches"] == 2 and 0 < row["ms_min"] <= row["ms"] <= row["ms_max"] and row["ratio"] is None
