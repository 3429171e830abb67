"""halo="recompute": the second layer's halo rows are computed again from kept sums of the first layer (threads as ranks)."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sarlite import Graph, Tensor, Trainer, fn, nn, optim
from sarlite.comm import threads
from sarlite.errors import ConfigError
from sarlite.minibatch import NeighborLoader, message_flow
from sarlite.models import GAT, GCN, SAGE
from sarlite.sar.modes import MODES
from sarlite.train import config, planning
from sarlite.train.rates import Rates
from tests.helpers.predicting import predict_here
from tests.helpers.recomputing import MODELS, RECOMPUTED, SECOND, WHOLE, Layers, Run
from tests.helpers.references import EDGES, FEATURES, LABELS, N_IN, N_OUT, TRAIN, WEIGHTS
from tests.helpers.strategies import SETTINGS, edges, parts
from tests.helpers.training_runs import assert_same_curve, train_here

pytestmark = [pytest.mark.timeout(60), pytest.mark.filterwarnings("ignore")]


@settings(SETTINGS, max_examples=25)
@given(graph=edges(), name=st.sampled_from([name for name in MODELS if "second" not in name]), layers=st.integers(1, 3),
       mode=st.sampled_from([*MODES]), prefetch=st.integers(0, 1), data=st.data())
def test_any_graph_as_on_one_rank(graph, name, layers, mode, prefetch, data):
    """Directed graphs, empty parts, more ranks than nodes."""
    n_ranks, owner = data.draw(parts(graph.n_nodes))
    whole, inputs = Graph.from_edges(*graph), (FEATURES[: graph.n_nodes], LABELS[: graph.n_nodes], TRAIN[: graph.n_nodes])
    expected, options = Run(whole, name, layers, *inputs), {"mode": mode, "prefetch": prefetch, **RECOMPUTED}
    for found in threads.run(n_ranks, lambda comm: Run(whole.shard(comm, owner, **options), name, layers, *inputs)):
        found.check(expected)


@pytest.mark.sampled(6)
@pytest.mark.parametrize("method", ["metis", "random", "contiguous"])
@pytest.mark.parametrize("n_ranks", [2, 3, 4])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("layers", [2, 3])
@pytest.mark.parametrize("name", [name for name in MODELS if "second" not in name])
def test_parts_as_one_rank(name, layers, mode, n_ranks, method):
    expected = Run(WHOLE, name, layers)
    for found in threads.run(n_ranks, lambda comm: Run(WHOLE.shard(comm, method, mode=mode, **RECOMPUTED), name, layers)):
        found.check(expected)


@pytest.mark.parametrize("second, mode", [*zip(SECOND, ["sar", "oneshot", "cover", "sa"])])
def test_any_message_in_the_second_layer(second, mode):
    expected = Run(WHOLE, f"second: {second}", 2)
    for found in threads.run(3, lambda comm: Run(WHOLE.shard(comm, "random", mode=mode, **RECOMPUTED), f"second: {second}", 2)):
        found.check(expected)


@pytest.mark.parametrize("name, mode", [("gcn", "cover"), ("sage", "sar")])
def test_edge_weights(name, mode):
    whole = WHOLE.with_edge_values(WEIGHTS)
    expected = Run(whole, name, 3)

    def work(comm):
        graph = whole.shard(comm, "random", mode=mode, **RECOMPUTED)
        found = Run(graph, name, 3)
        found.check(expected)
        first, second, third = graph.layers(3)
        assert first._normalised is second._normalised is third._normalised  # one array an edge
        np.testing.assert_allclose(first.weighted_degrees, whole.weighted_degrees[first.dst_ids], rtol=1e-14)
        Run(graph.with_edge_values(), name, 2).check(Run(WHOLE, name, 2))

    threads.run(3, work)


@pytest.mark.parametrize("name", ["gcn", "sage"])
def test_bytes(name):
    """X, A X, and GraphSAGE's own rows once; of two layers nothing afterwards, of three the third's."""

    def work(comm, layers):
        graph = WHOLE.shard(comm, "random", prefetch=0, **RECOMPUTED)
        first, then = Run(graph, name, layers).bytes
        asked = sum(step.n_send for step in graph.plan.steps)
        forward = graph.plan.n_halo * N_OUT * 8 * (layers == 3)
        assert first["forward_fetch"] == graph.plan.n_halo * N_IN * 8 * (2 if name == "gcn" else 3) + forward
        assert then.get("forward_fetch", 0) == forward and then.get("backward_push", 0) == asked * N_OUT * 8 * (layers == 3)
        assert not {*then} - {"forward_fetch", "backward_push", "allreduce"} and first["setup"] > 0
        blocks = graph.layers(2)[1].plan.blocks
        assert all(block is other for block, other in zip(blocks, graph.plan.blocks, strict=True))  # the structure is there once

    for layers in (2, 3):
        threads.run(3, work, layers)


def test_two_networks_keep_their_own():
    """Another input is kept beside the first; a graph on one rank, and one layer, are as they were."""

    def work(comm):
        graph = WHOLE.shard(comm, "random", **RECOMPUTED)
        first, second = graph.layers(2)
        assert graph.layers(2)[0] is first and graph.layers(1) == [graph] and graph.layers(4)[2:] == [graph, graph]
        inputs = [Tensor(k * FEATURES[graph.node_ids], constant=True) for k in (1, 2)]
        sums = [first.aggregate(fn.copy_src(x), "mean") for x in inputs]
        np.testing.assert_allclose(2 * sums[0].data, sums[1].data)
        assert first.aggregate(fn.copy_src(inputs[0]), "mean") is sums[0] and first.dst(inputs[0]) is first.dst(inputs[0])
        np.testing.assert_array_equal(first.dst(inputs[1]).data, 2 * FEATURES[first.dst_ids])
        np.testing.assert_array_equal(first.in_degrees, WHOLE.in_degrees[first.dst_ids])
        assert (first.n_own, second.n_own, graph.n_own) == (graph.n_dst,) * 3 and second.n_src == first.n_dst > graph.n_dst

    threads.run(2, work)
    alone = Graph.from_part(threads.run(1, lambda comm: comm)[0], [0, 1], [0], **RECOMPUTED)
    assert alone.layers(2) == [alone, alone] and WHOLE.n_own is None


# ---- what is refused, on every rank


def refused(n_ranks, work, told):
    """Every rank raises a ConfigError that says so."""

    def one(comm):
        with pytest.raises(ConfigError, match=told):
            work(comm)
        return True

    assert threads.run(n_ranks, one) == [True] * n_ranks


X = np.ones((EDGES.n_nodes, N_IN))


@pytest.mark.parametrize("cls, options, told", [
    (GCN, {"input_dropout": 0.5}, "input changes from step to step, as after dropout.*--input-dropout 0"),
    (GAT, {"input_dropout": 0.0}, "aggregates Attend by 'sum'"),
    (SAGE, {"aggregator": "max-pool"}, "aggregates CopySrc by 'max'"),
    (Layers, {"second": "max", "n_own": False}, "BatchNorm gets .* rows, of which .* are this rank's own, so it needs n_own"),
])
def test_models(cls, options, told):
    model = cls(N_IN, N_OUT, layers=2, hidden=8, rng=nn.Random(0), dtype=np.float64, **options)

    def work(comm):
        graph = WHOLE.shard(comm, np.arange(EDGES.n_nodes) // 30, **RECOMPUTED)  # of three parts one has a single node
        model(graph, Tensor(X[graph.node_ids], constant=True))

    refused(3, work, told)


def _trainer(comm, model, **options):
    graph, rng = WHOLE.shard(comm, "random", **RECOMPUTED), nn.Random(0)
    ids = graph.node_ids
    return Trainer(graph, model(rng), X[ids], LABELS[ids], TRAIN[ids], optimizer=lambda flat: optim.SGD(flat, 0.1), rng=rng, **options)


class Shallow(nn.Module):
    """Aggregates over the graph that it is given."""

    def __init__(self, rng):
        self.linear = nn.Linear(N_IN, N_OUT, rng=rng, dtype=np.float64)

    def __call__(self, graph, x):
        return graph.aggregate(fn.copy_src(self.linear(x)), "sum")


@pytest.mark.parametrize("work, told", [
    (lambda comm: WHOLE.shard(comm, "random", halo="keep"), "halo 'keep' is not one of fetch, recompute"),
    (lambda comm: WHOLE.shard(comm, "random", halo=("fetch", "recompute")[comm.rank]), "ranks disagree.*halo"),
    (lambda comm: WHOLE.shard(comm, "random", columns=2, **RECOMPUTED), "halo 'recompute' does not go with columns 2"),
    (lambda comm: Graph.from_edges([0], [0], n_src=1, n_dst=1).shard(comm, "random", **RECOMPUTED), "not for bipartite graphs"),
    (lambda comm: message_flow(g := WHOLE.shard(comm, "random", **RECOMPUTED), slice(None), 2, X[g.node_ids]), "halo 'recompute'.*flow"),
    (lambda comm: NeighborLoader(g := WHOLE.shard(comm, "random", **RECOMPUTED), X[g.node_ids], None, slice(None), fanouts=(2,),
                                 batch_size=4), "sampled batches"),
    (lambda comm: WHOLE.shard(comm, "random", **RECOMPUTED).layers(2)[0].in_edges(), "graph of one layer"),
    (lambda comm: WHOLE.shard(comm, "random", **RECOMPUTED).layers(2)[1].layers(2), "2 layers over one layer's graph"),
    (lambda comm: _trainer(comm, Shallow), 'halo "recompute": the model aggregates over the graph that it is given'),
])
def test_what_does_not_go_together(work, told):
    refused(2, work, told)


@pytest.mark.parametrize("flags, told", [
    (["--mfg"], "--halo recompute does not go with --mfg"),
    (["--batch-size", "8", "--fanouts", "3,3"], "--halo recompute does not go with --batch-size"),
    (["--label-inputs", "0.5"], "--halo recompute does not go with --label-inputs"),
])
def test_flags(flags, told):
    with pytest.raises(ConfigError, match=told):
        config.parse(["--halo", "recompute", *flags])


def test_relational_graphs(tmp_path):
    with pytest.raises(ConfigError, match="--halo recompute: does not go with relational graphs"):
        train_here(tmp_path / "run", "--data", "relational:nodes=60", "--model", "rgcn", "--halo", "recompute")


# ---- the command


def test_the_command(tmp_path, capsys):
    flags = ["--model", "gcn", "--input-dropout", "0", "--epochs", "4", "--dtype", "float64", "--partition", "random"]
    expected = train_here(tmp_path / "one", *flags)
    first = train_here(tmp_path / "two", *flags, "--epochs", "2", "--ranks", "2", "--halo", "recompute")
    told = capsys.readouterr().out.splitlines()
    assert any("2, mode sar, halo recompute, prefetch" in row for row in told)
    line = json.loads(told[-1])
    assert "backward_push" not in line["sent_bytes"] and line["sent_bytes"]["forward_fetch"] > 0
    found = train_here(tmp_path / "two", *flags, "--resume", tmp_path / "two" / "checkpoint.safetensors", "--ranks", "3")
    assert_same_curve([*first, *found[2:]], expected, rtol=1e-9)
    outputs = predict_here(tmp_path / "two", tmp_path / "found.npy", "--ranks", "2")[0]
    np.testing.assert_allclose(outputs, predict_here(tmp_path / "one", tmp_path / "expected.npy")[0], rtol=1e-9)


@pytest.mark.parametrize("rates, chosen", [((0.0, 1.0, 0.0, 1e-9), True), ((0.0, 1.0, 0.0, 1e3), False)])
def test_auto_weighs_bytes_against_flops(rates, chosen, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(planning, "SETTINGS", [planning.Setting("sar"), planning.Setting("sar", (("halo", "recompute"),))])
    monkeypatch.setattr(planning, "rates_of", lambda comm: Rates(*rates, 0.0))
    train_here(tmp_path / "run", "--model", "gcn", "--input-dropout", "0", "--epochs", "1", "--ranks", "2", "--mode", "auto")
    assert f"--mode auto takes sar{' --halo recompute' if chosen else ''}\n" in capsys.readouterr().err


def test_auto_leaves_out_what_a_model_cannot(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(planning, "SETTINGS", [planning.Setting("sar"), planning.Setting("sar", (("halo", "recompute"),))])
    train_here(tmp_path / "run", "--model", "gat", "--epochs", "1", "--ranks", "2", "--mode", "auto")
    told = capsys.readouterr().err
    assert "sar --halo recompute is left out: " in told and "\nsar --halo recompute  " not in told and "--mode auto takes sar\n" in told
