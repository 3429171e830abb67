"""Costs of relational graphs: bytes as the run's counters have them, evaluations, refusals and choices."""

import pytest

from sarlite.comm import threads
from sarlite.errors import ConfigError
from sarlite.train import costs, planning, relational_trial
from sarlite.train.config import resolve
from sarlite.train.costs import Setting
from sarlite.train.rates import Rates
from tests.helpers.costing import LIMIT, QUIET, RELATIONAL, check_bytes, counted, trained


@pytest.mark.sampled(3)
@pytest.mark.parametrize("prefetch", [0, 1])
@pytest.mark.parametrize("mode", ["sar", "sa", "oneshot", "broadcast"])
@pytest.mark.parametrize("n_ranks", [1, 2, 3, 4])
@pytest.mark.parametrize("name", RELATIONAL)
def test_bytes_of_a_relational_graph_are_those_of_the_run(name, n_ranks, mode, prefetch, tmp_path, monkeypatch):
    check_bytes(tmp_path, monkeypatch, n_ranks, mode, prefetch=prefetch, epochs=3, **RELATIONAL[name])


def test_a_check_of_mode_host_is_counted_as_setting_up(tmp_path, monkeypatch):
    check_bytes(tmp_path, monkeypatch, 3, "host", prefetch=0, hosts=(0, 0, 1), epochs=1, memory_limit=1e12, **RELATIONAL["rgcn"])


def test_a_relations_weight_is_evaluated_in_tiny_runs_as_in_the_run(tmp_path):
    def both(comm):
        config = resolve({**QUIET, "prefetch": 0, **RELATIONAL["rgcn"], "ranks": comm.size})
        model, _, part = counted(comm, config, tmp_path)
        tiny, trainer = [], model.make(comm, config, part)

        def make(comm, config, part):
            tiny.append(part.graph.graph)
            return model.make(comm, config, part)

        if comm.rank == 0:
            relational_trial.bundles(config, make, model.facts)
        trainer.evaluate()
        return part.graph.graph.evaluations, [graph.evaluations for graph in tiny]

    real, (told,) = threads.run(3, both)[0]
    assert real == told and {found.name for found in real} == {"inside", "first"}


def test_a_checkpoint_is_not_written_beside_a_steps_memory(tmp_path, limited, monkeypatch):
    def told(comm):
        config = resolve({**QUIET, **RELATIONAL["rgcn"], "data": "relational:nodes=300,edges=900", "ranks": 2, "prefetch": 0})
        model, sizes, _ = counted(comm, config, tmp_path)
        return model.cost(Setting("sar"), sizes, 0).peak_bytes

    found = []
    for n_bytes in (0, 1000, 1 << 30):
        monkeypatch.setattr(costs, "PIECE_BYTES", n_bytes)
        found.append(threads.run(2, told))
    assert found[0] == found[1] and [n >> 30 for n in found[2]] == [3, 1]


def test_a_relational_run_is_refused_or_takes_the_mode_that_fits(tmp_path, limited, monkeypatch, capsys):
    monkeypatch.setattr(costs, "PIECE_BYTES", 0)  # else most is what a checkpoint is written of
    monkeypatch.setattr(planning, "rates_of", lambda comm: Rates(1.0, 1.0, 1.0, 0.0, 0.0))
    dense = {**RELATIONAL["rgat"], "data": "relational:nodes=900,edges=9000,features=16,train=0.3", "hidden": 32, "epochs": 1,
             "prefetch": 0}
    LIMIT[0] = float("inf")
    rows = {row["setting"]: max(row["peak_bytes"])
            for row in threads.run(2, trained, tmp_path / "dry", dry_run=True, **dense)[0]["settings"]}
    assert list(rows) == ["sar", "sa", "oneshot", "broadcast", "host"] and rows["sar"] + 100_000 < rows["oneshot"]
    threads.run(2, trained, tmp_path / "free", mode="auto", **dense)
    found = capsys.readouterr()
    chosen = found.err.rsplit("--mode auto takes ", 1)[1].strip()
    assert chosen != "sar" and f"2, mode {chosen}," in found.out
    LIMIT[0] = (rows["sar"] + rows["oneshot"]) / 2
    with pytest.raises(ConfigError, match="mode oneshot would take .* --mode .* takes .* and fits"):
        threads.run(2, trained, tmp_path / "large", mode="oneshot", **dense)
