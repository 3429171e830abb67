"""Costs of message-flow graphs: bytes as the run's counters have them."""

import pytest

from tests.helpers.costing import MODELS, check_bytes, few_labelled


@pytest.mark.sampled(4)
@pytest.mark.parametrize("prefetch", [0, 1])
@pytest.mark.parametrize("layers", [1, 2, 3])
@pytest.mark.parametrize("mode", ["sar", "sa", "oneshot", "broadcast"])
@pytest.mark.parametrize("n_ranks", [1, 2, 3])
@pytest.mark.parametrize("name", ["gcn", "sage", "max", "gat", "labels"])
def test_bytes_of_message_flow_are_those_of_the_run(name, n_ranks, mode, layers, prefetch, tmp_path, monkeypatch):
    options = {**MODELS.get(name, {"model": "gat", "label_inputs": 0.5}), "layers": layers, "mfg": True, "epochs": 3}
    check_bytes(tmp_path, monkeypatch, n_ranks, mode, prefetch=prefetch, data=few_labelled(tmp_path / "few"), **options)
