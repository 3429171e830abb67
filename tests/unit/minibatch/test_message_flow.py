"""Message-flow graphs: the chosen rows' outputs and all gradients are the full graph's, and only rows that reach them are computed."""

import json

import numpy as np
import pytest

from sarlite import Graph, Tensor, Trainer, fn, nn, optim
from sarlite.cli import config
from sarlite.comm import threads
from sarlite.errors import ConfigError, DataError, SarliteError, ShapeError
from sarlite.minibatch import NeighborLoader, message_flow
from sarlite.minibatch.flow import count_layers
from sarlite.models import GAT, GCN, SAGE
from sarlite.tape import ops
from tests.helpers.graph.strategies import values
from tests.helpers.minibatch.batching import LABELS, N_IN, N_OUT, SEEDS, Weighted, X, parts, whole
from tests.helpers.train.training_runs import DATA, SMALL, assert_same_curve, command, metrics, train_here

FEW = SEEDS[::9]
MODELS = {
    "gcn": lambda rng: GCN(N_IN, N_OUT, layers=3, hidden=6, dropout=0.4, rng=rng, dtype=np.float64),
    "sage": lambda rng: SAGE(N_IN, N_OUT, layers=3, hidden=6, dropout=0.3, batch_norm=False, rng=rng, dtype=np.float64),
    "sage max": lambda rng: SAGE(N_IN, N_OUT, layers=3, hidden=6, aggregator="max-pool", batch_norm=False, rng=rng, dtype=np.float64),
    "gat": lambda rng: GAT(N_IN, N_OUT, layers=3, hidden=3, heads=2, rng=rng, dtype=np.float64),
    "edges": Weighted,
}


def trained(graph, name, flow=False, epochs=3):
    rng = nn.Random(5)
    model = MODELS[name](rng)
    x, labels = X[graph.src_ids].astype(np.float64), LABELS[graph.dst_ids]
    train, rest = np.isin(graph.dst_ids, FEW), np.isin(graph.dst_ids, SEEDS[::2])
    splits, how = [train, rest & ~train, np.isin(graph.dst_ids, SEEDS[1::2])], {}
    if flow:
        scored = np.concatenate([np.flatnonzero(local) for local in splits])
        link_graph = {"batches": train, "scoring": scored}
        how = {key: message_flow(graph, rows, 3, x, labels) for key, rows in link_graph.items()}
    trainer = Trainer(graph, model, x, labels, *splits, optimizer=lambda flat: optim.SGD(flat, 0.01), rng=rng, **how)
    collected = []
    for epoch in range(epochs):
        collected += [trainer.step(epoch), *trainer.evaluate().values()]
        collected.append(np.abs(trainer.flat.grad).sum())
    return np.array(collected), trainer.flat.grad.copy(), trainer.flat.data.copy(), trainer


@pytest.mark.sampled(12)
@pytest.mark.parametrize("n_ranks, mode, kind", [(1, "sar", "random"), (2, "sa", "random"), (3, "sar", "random"), (3, "oneshot", "blocks"),
                                                 (4, "sar", "few")])
@pytest.mark.parametrize("name", MODELS)
def test_training_is_the_full_graphs(name, n_ranks, mode, kind):
    graph = whole(loops=name in ("gcn", "gat"))
    expected = trained(graph, name)

    def work(comm):
        result = trained(graph.shard(comm, parts(comm.size, kind), mode=mode), name, flow=True)
        for a, b in zip(result[:3], expected):
            np.testing.assert_allclose(a, b, rtol=1e-11, atol=1e-12)
        return result[3].counted()["message_flow"]

    counted = threads.run(n_ranks, work)
    assert all(c == counted[0] for c in counted) and len(counted[0]["layers"]) == 3
    layers, full = counted[0]["layers"], counted[0]["graph"]
    assert layers[2]["rows"] == len(FEW) < layers[1]["rows"] <= layers[0]["rows"] <= full["rows"] == 90
    assert layers[2]["edges"] == sum(graph.in_degrees[FEW]) < layers[0]["edges"] <= full["edges"]


def test_what_is_computed():
    """Two layers over the path 0 -> 1 -> .. -> 5 for the seed 4 have the rows 2, 3, 4, their edges, and x of only these rows."""
    graph = Graph.from_edges(np.arange(5), np.arange(1, 6), 6)
    x = np.arange(6.0)[:, None]
    flow = message_flow(graph, [4, 4], 2, x)
    assert sorted(flow.src_ids) == [2, 3, 4] and list(flow.dst_ids) == [4] and list(flow.rows) == [0, 0] and flow.n_global == 2
    assert [(g.n_src, g.n_dst, g.n_edges) for g in flow.layers(2)] == [(3, 2, 2), (2, 1, 1)]
    assert sorted(flow.x.data[:, 0]) == [2, 3, 4] and flow.x.constant
    h = flow.x
    for g in flow.layers(2):
        h = g.aggregate(fn.copy_src(h), "sum")
    assert h.data.tolist() == [[2.0]]


def test_the_aggregated_x_is_kept():
    """A first layer over the constant x aggregates once, and fetches once."""
    def work(comm):
        graph = whole().shard(comm, parts(2))
        flow = message_flow(graph, np.isin(graph.dst_ids, FEW), 1, X[graph.src_ids])
        received = []
        for _ in range(3):
            flow.layers(1)[0].aggregate(fn.copy_src(flow.x), "sum")
            received.append(graph.profile.received_bytes["forward_fetch"])
        assert received[0] == received[1] == received[2] > 0

    threads.run(2, work)


def test_no_rows_on_any_rank():
    def work(comm):
        graph = whole().shard(comm, parts(2))
        flow = message_flow(graph, slice(0), 2, X[graph.src_ids], LABELS[graph.dst_ids])
        out = SAGE(N_IN, N_OUT, layers=2, hidden=4, rng=nn.Random(0), dtype=np.float64)(flow, flow.x)
        assert out.shape == (0, N_OUT) and flow.n_global == 0
        ops.sum(out).backward()

    threads.run(2, work)


class NeverAsks(nn.Module):
    def __init__(self):
        self.weight = nn.Parameter(values(1, N_IN, N_OUT))

    def __call__(self, graph, h):
        return h @ self.weight


class Aggregates(NeverAsks):
    def __call__(self, graph, h):
        return graph.aggregate(fn.copy_src(h @ self.weight), "sum")


@pytest.mark.parametrize("model, words", [(NeverAsks(), "never asks for its layers"), (Aggregates(), "aggregates over the graph that")])
def test_a_model_whose_layers_are_unknown(model, words):
    with pytest.raises(ConfigError, match=words):
        count_layers(model, whole(), Tensor(X))


def test_what_is_refused():
    graph = whole()
    with pytest.raises(ConfigError, match="bipartite"):
        message_flow(Graph.from_edges([0], [0], n_src=2, n_dst=1), [0], 1, np.zeros((2, 1)))
    with pytest.raises(ConfigError, match="n_layers"):
        message_flow(graph, [0], 0, X)
    with pytest.raises(ShapeError, match="x has shape"):
        message_flow(graph, [0], 1, X[1:])
    with pytest.raises(DataError, match="rows"):
        message_flow(graph, [90], 1, X)

    def work(comm):
        local = graph.shard(comm, parts(2))
        with pytest.raises(SarliteError):
            message_flow(local, [999] if comm.rank else [0], 1, X[local.src_ids])
        with pytest.raises(SarliteError, match="n_layers"):
            message_flow(local, [0], 1 + comm.rank, X[local.src_ids])

    threads.run(2, work)


def test_parts_of_a_graph_leave_no_setting_aside():
    """The command refuses these options too: a batch would push gradients without a word."""
    words = "of a graph with backward='fetch': parts of the graph have no reversed edges"

    def work(comm):
        local = whole().shard(comm, parts(2), backward="fetch")
        with pytest.raises(ConfigError, match=f"message-flow graphs {words}"):
            message_flow(local, [0], 1, X[local.src_ids])
        with pytest.raises(ConfigError, match=f"minibatches {words}"):
            NeighborLoader(local, X[local.src_ids], None, [0], fanouts=(2,), batch_size=3)

    threads.run(2, work)
    with pytest.raises(ConfigError, match="minibatches: graph is a Batch, .*must be a Graph"):
        NeighborLoader(message_flow(whole(), [0], 1, X), X, None, [0], fanouts=(2,), batch_size=3)


def test_a_flow_of_a_flow_is_none():
    flow = message_flow(whole(), [0], 1, X)
    assert isinstance(flow.x, Tensor)
    with pytest.raises(ConfigError, match="message-flow graphs: graph is a Batch, .*must be a Graph"):
        message_flow(flow, [0], 1, X)


def test_the_command_with_mfg_has_the_full_graph_s_curve_on_two_ranks(tmp_path):
    """The curve is the full graph's, on ranks too; the table says what each layer computes."""
    flags = ["--model", "gcn", "--epochs", 3, "--data", "sbm:nodes=300,classes=4,features=16,degree=8,train=0.05"]
    expected = train_here(tmp_path / "full", *flags)
    done = command(*SMALL, *flags, "--mfg", "--ranks", 2, "--run-dir", tmp_path / "mfg")
    assert done.returncode == 0 and done.stderr == "", done.stderr
    assert_same_curve(metrics(tmp_path / "mfg"), expected, rtol=1e-4)
    *lines, last = done.stdout.splitlines()
    flow = json.loads(last)["message_flow"]
    (first, second), full = flow["layers"], flow["graph"]
    assert second["rows"] == 16 < first["rows"] < full["rows"] == 300  # 5 % of each class, rounded
    assert [line.split()[:5] for line in lines if line.startswith("layer 2")] == [["layer", "2", "16", "of", "300"]]


def test_batch_norm_is_told(tmp_path):
    done = command(*SMALL, "--model", "sage", "--epochs", 1, "--mfg", "--run-dir", tmp_path / "run")
    assert done.returncode == 0 and done.stderr.startswith("warning: --mfg: batch norm") and done.stderr.count("\n") == 1


def test_not_with_minibatches():
    with pytest.raises(ConfigError, match="--mfg applies to full-batch training"):
        config.parse(["--mfg", "--batch-size", "5", "--fanouts", "3"])


def test_shown_labels_reach_the_flow(tmp_path):
    """With labels as inputs the curve is the full graph's too: the shown labels change with each step, and evaluation shows all labels."""
    flags = ["--model", "gcn", "--epochs", 4, "--data", DATA + ",train=0.1", "--label-inputs", 0.5]
    expected = train_here(tmp_path / "full", *flags)
    assert_same_curve(train_here(tmp_path / "mfg", *flags, "--mfg", "--ranks", 2), expected, rtol=1e-4)
