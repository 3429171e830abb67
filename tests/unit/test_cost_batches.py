"""Costs of minibatches: bytes as the run's counters have them, refusals and choices."""

import pytest

from sarlite.comm import threads
from sarlite.errors import ConfigError
from sarlite.train import planning
from sarlite.train.costs import Setting
from sarlite.train.rates import Rates
from tests.helpers.costing import DENSE, LIMIT, MODELS, check_bytes, trained

EVEN = "sbm:nodes=90,degree=5,features=9,classes=2,train=6,val=5"  # batches of 6 are alike: the same order of products is cheaper in each


@pytest.mark.sampled(4)
@pytest.mark.parametrize("sampler", ["uniform", "labor", "replace", "full"])
@pytest.mark.parametrize("remote", ["exact", "local"])
@pytest.mark.parametrize("mode", ["sar", "sa", "oneshot", "broadcast"])
@pytest.mark.parametrize("n_ranks", [1, 2, 3])
@pytest.mark.parametrize("name", ["gcn", "sage", "max", "gat", "labels"])
def test_bytes_of_minibatches_are_those_of_the_run(name, n_ranks, mode, remote, sampler, tmp_path, monkeypatch):
    options = {**MODELS.get(name, {"model": "gat", "label_inputs": 0.5}), "layers": 2, "batch_size": 6, "remote": remote, "data": EVEN,
               "fanouts": (-1, -1) if sampler == "full" else (3, 2), "sampler": sampler, "epochs": 1}
    check_bytes(tmp_path, monkeypatch, n_ranks, mode, prefetch=0, **options)  # of the first epoch all batches are sampled


HECS = [{}, {"push": "demand"}, {"push": "demand", "hec_delay": 2, "halo_features": "cache"}, {"halo_features": "cache", "hec_limit": 3},
        {"hec_delay": 0, "hec_lines": 20, "hec_limit": 5, "hec_life": 10**6}]


@pytest.mark.sampled(4)
@pytest.mark.parametrize("flags", HECS, ids=str)
@pytest.mark.parametrize("mode, on_miss", [("sar", "drop"), ("oneshot", "zero"), ("broadcast", "local")])
@pytest.mark.parametrize("name", ["gcn", "sage", "gat"])
def test_bytes_of_caches_are_those_of_the_run(name, mode, on_miss, flags, tmp_path, monkeypatch):
    options = {**MODELS[name], "layers": 2, "batch_size": 6, "remote": "hec", "data": EVEN, "fanouts": (3, 2), "epochs": 1,
               "on_miss": on_miss, **flags}
    assert check_bytes(tmp_path, monkeypatch, 3, mode, prefetch=0, **options)["push_rows"] > 0


@pytest.mark.sampled(4)
@pytest.mark.parametrize("remote", ["exact", "local", "hec"])
@pytest.mark.parametrize("eval_every", [1, 2])
@pytest.mark.parametrize("n_ranks", [1, 3])
@pytest.mark.parametrize("name", ["gcn", "sage", "gat", "labels"])
def test_bytes_of_sampled_evaluation_are_those_of_the_run(name, n_ranks, eval_every, remote, tmp_path, monkeypatch):
    if name == "labels" and remote == "hec":
        pytest.skip("refused: rows of a cache were made while other labels were shown")
    data = "sbm:nodes=90,degree=5,features=9,classes=2,train=6,val=5"
    options = {**MODELS.get(name, {"model": "gat", "label_inputs": 0.5}), "layers": 2, "batch_size": 6, "remote": remote, "data": data,
               "fanouts": (3, 2), "eval_fanouts": (4, -1), "epochs": 1, "eval_every": eval_every}
    check_bytes(tmp_path, monkeypatch, n_ranks, "sar", prefetch=0, **options)


def test_minibatches_are_refused_or_take_the_mode_that_fits(tmp_path, limited, monkeypatch, capsys):
    monkeypatch.setattr(planning, "SETTINGS", [Setting("oneshot"), Setting("sar")])
    monkeypatch.setattr(planning, "rates_of", lambda comm: Rates(1.0, 1.0, 1.0, 0.0, 0.0))
    batches = {**DENSE, "batch_size": 60, "fanouts": (10, 10)}
    LIMIT[0] = float("inf")
    rows = threads.run(2, trained, tmp_path / "dry", dry_run=True, **batches)[0]["settings"]
    large, small = (max(row["peak_bytes"]) for row in rows)
    LIMIT[0] = (small + large) / 2
    with pytest.raises(ConfigError, match="mode oneshot would take .* --mode sar takes .* and fits"):
        threads.run(2, trained, tmp_path / "large", mode="oneshot", **batches)
    threads.run(2, trained, tmp_path / "auto", mode="auto", **batches)
    assert "--mode auto takes sar\n" in capsys.readouterr().err
