"""The explain command for runs with --temporal: each node at its own time, with the prediction that the predict command writes."""

import csv
import math

import numpy as np
import pytest

from sarlite.cli import config
from sarlite.cli import run as training
from sarlite.comm import Solo
from sarlite.errors import ConfigError
from tests.helpers.train.explaining import explain_here, of
from tests.helpers.train.predicting import predict_here

pytestmark = pytest.mark.timeout(180)
GRAPH = """
target = "payment"
[nodes.payment]
file = "payments.csv"
id = "payment"
features = { amount = "log" }
labels = "fraud"
time = "at"
[nodes.card]
[[edges]]
relation = ["payment", "paid_with", "card"]
file = "payments.csv"
src = "payment"
dst = "card"
time = "at"
"""
ASKED = ["p40", "p95", "p3", "p119"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Write 120 payments with 6 cards, at times that repeat."""
    folder, rng = tmp_path_factory.mktemp("time"), np.random.default_rng(0)
    with (folder / "payments.csv").open("w") as file:
        file.write("payment,card,at,amount,fraud\n")
        for at in range(120):
            file.write(f"p{at},c{rng.integers(6)},{at // 2},{rng.lognormal(3, 1):.2f},{rng.integers(2)}\n")
    (folder / "graph.toml").write_text(GRAPH)
    return folder


def trained(folder, *flags):
    """Return the folder of a short run with --temporal."""
    run = folder / "-".join(flags)
    words = ["--data", f"tables:{folder}/graph.toml", "--model", "rgcn", "--hidden", "8", "--embedding", "4", "--epochs", "2", "--metric",
             "accuracy", "--temporal", *flags, "--batch-size", "30", "--run-dir", str(run), "--threads", "1", "--progress", "none"]
    training.train(Solo(), config.parse(words))
    return run


@pytest.mark.sampled(1)
@pytest.mark.parametrize(("flags", "most"), [(["latest", "--fanouts", "3,3"], 3), (["uniform", "--fanouts", "50,50"], 50)])
def test_a_node_is_explained_as_it_is_predicted_at_its_own_time(folder, tmp_path, capsys, flags, most):
    run = trained(folder, *flags)
    p, _ = predict_here(run, tmp_path / "p.npy")
    capsys.readouterr()
    rows = explain_here(run, ASKED, tmp_path / "one.csv", "--top", 1000, "--label", "1")
    printed = capsys.readouterr().out
    assert "at its own time, on " + ("the latest 3 edges" if most == 3 else "all edges up to then, of which") in printed
    with (folder / "payments.csv").open() as file:
        payments = {row["payment"]: (row["card"], int(row["at"])) for row in csv.DictReader(file)}
    for node in ASKED:
        line = next(line for line in printed.splitlines() if line.startswith(f"{node}: "))
        assert abs(float(line.split(" of 1 ")[1].split(";")[0]) - math.log(p[int(node[1:]), 1] / p[int(node[1:]), 0])) < 2e-4
        card, time = payments[node]
        seen = [(at, int(name[1:])) for name, (its_card, at) in payments.items() if its_card == card and at <= time]
        latest = {f"p{number}" for _, number in sorted(seen)[-most:]}
        edges = of(rows, "edge", "integrated gradients", node)
        assert {row["source"] for row in edges if row["name"] == "payment.paid_with.card"} == latest
    three = explain_here(run, ASKED, tmp_path / "three.csv", "--top", 1000, "--label", "1", "--ranks", 3)
    assert [row["source"] for row in three] == [row["source"] for row in rows]
    np.testing.assert_allclose([row["attribution"] for row in three], [row["attribution"] for row in rows], rtol=1e-3, atol=1e-5)


def test_layers_that_pick_different_numbers_of_latest_edges_are_refused(folder, tmp_path):
    run = trained(folder, "latest", "--fanouts", "3,2")
    with pytest.raises(ConfigError, match="layers take 3, 2 .*latest edges"):
        explain_here(run, ASKED, tmp_path / "e.csv")
