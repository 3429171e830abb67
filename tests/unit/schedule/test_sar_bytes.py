"""Bytes that travel, against the plan: backward fetches nothing in case 1, and once again in case 2 (threads as ranks)."""


import numpy as np
import pytest

from sarlite import Graph, Tensor, fn, no_grad
from sarlite.comm import threads
from sarlite.schedule import messages, transport
from sarlite.tape import ops
from tests.helpers.comm.exchanges import COMPLETE, EDGES, MODES, X, attend, shard
from tests.helpers.graph.strategies import Edges, random_edges, values

pytestmark = pytest.mark.timeout(60)

Q, WEIGHTS = values(2, 50, 4), values(3, 700, 4)


# ---- messages written in Python

W = Tensor(values(5, 4, 4), requires_grad=True)
V = Tensor(values(6, 4), requires_grad=True)
FIXED = values(7, 4, 4)
TABLE = Tensor(values(8, 2, 4), requires_grad=True)
CASE_1 = {
    "scaled": lambda s, d, e: s["x"] * 2.0,
    "itself": lambda s, d, e: s["x"],
    "plus dst": lambda s, d, e: s["x"] + d["q"],
    "minus": lambda s, d, e: -s["x"] - d["q"] / 2.0,
    "fixed weights": lambda s, d, e: s["x"] * e["w"].detach(),
    "fixed matrix": lambda s, d, e: s["x"] @ FIXED,
    "fixed divisor": lambda s, d, e: s["x"] / (1.0 + np.abs(FIXED[0])),
    "relu of dst": lambda s, d, e: s["x"] + d["q"].relu(),
    "learnable matrix on dst": lambda s, d, e: s["x"] + d["q"].tanh() @ W,
    "learnable bias": lambda s, d, e: s["x"] + V,
    "learnable weights of other values": lambda s, d, e: s["x"] + e["w"].sigmoid() * V,
    "dst gates itself": lambda s, d, e: s["x"] + d["q"] * d["q"],
    "fixed dst gates src": lambda s, d, e: s["x"] * d["q"].detach(),
    "reshaped": lambda s, d, e: s["x"].reshape(-1, 2, 2).sum(1),
    "columns": lambda s, d, e: s["x"][:, 1:3],
    "mean": lambda s, d, e: s["x"].mean(-1),
    "joined": lambda s, d, e: ops.concat([s["x"], d["q"]], 1),
    "dropout by edge": lambda s, d, e: ops.dropout(s["x"], e.ids, 5, 0.5),
    "dropout by source": lambda s, d, e: ops.dropout(s["x"], s.ids, 5, 0.5),
    "where dst": lambda s, d, e: ops.where(d["q"] > 0, s["x"], 0.0),
    "of dst alone": lambda s, d, e: (d["q"] @ W).tanh(),
}
CASE_2 = {
    "relu": lambda s, d, e: s["x"].relu(),
    "relu of both": lambda s, d, e: (s["x"] + d["q"]).relu(),
    "tanh": lambda s, d, e: s["x"].tanh(),
    "square": lambda s, d, e: s["x"] * s["x"],
    "power": lambda s, d, e: s["x"] ** 2,
    "learnable matrix": lambda s, d, e: s["x"] @ W,
    "learnable matrix, elsewhere linear": lambda s, d, e: s["x"] * 2.0 + (s["x"] @ FIXED) @ W,
    "learnable vector": lambda s, d, e: V * s["x"],
    "detached source, learnable matrix": lambda s, d, e: s["x"].detach() @ W,
    "dst gates src": lambda s, d, e: s["x"] * d["q"],
    "learnable weights": lambda s, d, e: s["x"] * e["w"],
    "divided by dst": lambda s, d, e: s["x"] / (2.0 + d["q"] * d["q"]),
    "divides": lambda s, d, e: d["q"] / (2.0 + s["x"].detach() ** 2),
    "maximum": lambda s, d, e: ops.maximum(s["x"], d["q"]),
    "max of a row": lambda s, d, e: s["x"].max(-1),
    "where src": lambda s, d, e: ops.where(s["x"] > 0, d["q"], 0.0),
    "softmax of a row": lambda s, d, e: s["x"].softmax(),
    "layer norm": lambda s, d, e: ops.layer_norm(s["x"], Tensor(np.ones(4)), Tensor(np.zeros(4))),
    "row number from src": lambda s, d, e: s["x"] * 2.0 + ops.take(TABLE, (s["x"][:, 0] > 0).astype(np.int64)),
    "sign hidden behind detach": lambda s, d, e: ops.where((s["x"].detach() * 2.0) > 0.1, d["q"], 0.0),
}


def run_message(graph, message, reducer):
    """Return the output, and the gradients of x, q, w and of the captured values; the last are this rank's share."""
    leaves = [Tensor(X[graph.node_ids], True), Tensor(Q[graph.node_ids], True), Tensor(WEIGHTS[graph.edge_ids], True)]
    out = graph.aggregate(message, reducer, src={"x": leaves[0]}, dst={"q": leaves[1]}, edge={"w": leaves[2]})
    out.backward(values(4, 50, *out.shape[1:])[graph.node_ids])
    return [out.data, *(np.zeros(t.shape) if t.grad is None else t.grad for t in leaves)]


def captured(worker, n_ranks):
    """Run on all ranks with fresh gradients of the captured values; return the ranks' results and these gradients, summed."""
    for t in (W, V, TABLE):
        t.grad = np.zeros(t.shape)  # threads as ranks add to one array
    results = threads.run(n_ranks, worker)
    return results, [t.grad for t in (W, V, TABLE)]


@pytest.mark.sampled(70)
@pytest.mark.parametrize("reducer", ["sum", "max"])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", [*CASE_1, *CASE_2])
def test_messages_fetch_again_only_in_case_2(name, mode, reducer):
    message, n_ranks = {**CASE_1, **CASE_2}[name], 3
    (expected,), expected_captured = captured(lambda comm: run_message(Graph.from_edges(*EDGES), message, reducer), 1)

    def work(comm):
        graph = shard(comm, mode=mode)
        arrays = run_message(graph, message, reducer)
        return graph.node_ids, graph.edge_ids, graph.plan, graph.profile, arrays

    ranks, found_captured = captured(work, n_ranks)
    for ids, edge_ids, plan, profile, arrays in ranks:
        for array, whole, rows in zip(arrays, expected, (ids, ids, ids, edge_ids)):
            np.testing.assert_allclose(array, whole[rows], rtol=1e-10, atol=1e-10)
        rows, back = profile.received_bytes, sum(arrival.n_send for arrival in plan.exchanges)
        assert rows["forward_fetch"] == 4 * 8 * plan.n_halo > 0
        assert rows["backward_fetch"] == (4 * 8 * plan.n_halo if name in CASE_2 and mode == "sar" else 0)
        assert profile.sent_bytes["forward_fetch"] == 4 * 8 * back
        assert rows["backward_push"] == 4 * 8 * back and profile.sent_bytes["backward_push"] == 4 * 8 * plan.n_halo
    for array, whole in zip(found_captured, expected_captured):
        np.testing.assert_allclose(array, whole, rtol=1e-9, atol=1e-9)


# ---- built-in messages

BUILT_IN = {  # name: aggregate, bytes of a row, True in case 2
    "copy_src sum": (lambda g, x, w: g.aggregate(fn.copy_src(x), "sum"), 32, False),
    "copy_src mean": (lambda g, x, w: g.aggregate(fn.copy_src(x), "mean"), 32, False),
    "copy_src max": (lambda g, x, w: g.aggregate(fn.copy_src(x), "max"), 32, False),
    "copy_src min": (lambda g, x, w: g.aggregate(fn.copy_src(x), "min"), 32, False),
    "fixed weights": (lambda g, x, w: g.aggregate(fn.mul_edge(x, w.data), "sum"), 32, False),
    "fixed weights, mean": (lambda g, x, w: g.aggregate(fn.mul_edge(x, w.data), "mean"), 32, False),
    "fixed weights, max": (lambda g, x, w: g.aggregate(fn.mul_edge(x, w.data), "max"), 32, False),
    "learnable weights": (lambda g, x, w: g.aggregate(fn.mul_edge(x, w), "sum"), 32, True),
    "learnable weights, max": (lambda g, x, w: g.aggregate(fn.mul_edge(x, w), "max"), 32, True),
    "attend": (lambda g, x, w: attend(g, x), 32 + 16, True),
    "softmax": (lambda g, x, w: g.aggregate(lambda s, d, e: (s["x"].sum(-1), s["x"]), "softmax", src={"x": x}), 32, True),
}


@pytest.mark.sampled(28)
@pytest.mark.parametrize("n_ranks", [2, 4])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", BUILT_IN)
def test_built_in_messages_fetch_what_the_plan_predicts(name, mode, n_ranks):
    aggregate, row_bytes, case2 = BUILT_IN[name]

    def work(comm):
        graph = shard(comm, mode=mode)
        out = aggregate(graph, Tensor(X[graph.node_ids], True), Tensor(WEIGHTS[graph.edge_ids, 0].copy(), True))
        forward = graph.profile.received_bytes.copy()
        out.backward(np.ones_like(out.data))
        return graph.plan, forward, graph.profile.received_bytes, graph.profile.sent_bytes

    ranks = threads.run(n_ranks, work)
    for plan, forward, received, _ in ranks:
        predicted, returned = row_bytes * plan.n_halo, row_bytes * sum(arrival.n_send for arrival in plan.exchanges)
        # sections of one message start at multiples of 16 bytes
        assert predicted <= forward["forward_fetch"] <= predicted + 16 * len(plan.exchanges) and predicted > 0
        assert sum(forward.values()) == forward["forward_fetch"]
        assert received["forward_fetch"] == forward["forward_fetch"]
        assert received["backward_fetch"] == (forward["forward_fetch"] if case2 and mode == "sar" else 0)
        assert returned <= received["backward_push"] <= returned + 16 * len(plan.exchanges)
    for phase in ("forward_fetch", "backward_fetch", "backward_push"):
        assert sum(sent[phase] for *_, sent in ranks) == sum(received[phase] for _, _, received, _ in ranks)


def test_the_halo_is_the_distinct_remote_sources():
    def work(comm):
        graph = shard(comm)
        is_local = np.isin(EDGES.dst, graph.node_ids)
        needed = np.setdiff1d(EDGES.src[is_local], graph.node_ids)
        assert graph.plan.n_halo == len(needed)
        for block, _, place in graph.plan.halo():
            assert np.isin(block.src_ids[place], needed).all()

    threads.run(4, work)


def test_without_gradients_nothing_flows_back():
    def work(comm):
        graph = shard(comm)
        with no_grad():
            attend(graph, Tensor(X[graph.node_ids], requires_grad=True))
        assert not any(t for name, t in graph.profile.received_bytes.items() if name != "forward_fetch")
        x = X[graph.node_ids]  # the first layer's input needs no gradient: W's needs the rows, but none is pushed
        w = Tensor(values(5, 4, 4), requires_grad=True)
        out = graph.aggregate(lambda s, d, e: s["x"] @ w, "sum", src={"x": x})
        out.backward(np.ones_like(out.data))
        assert graph.profile.received_bytes["backward_fetch"] > 0 == graph.profile.received_bytes["backward_push"]
        return comm.allreduce(w.grad)

    expected = X[EDGES.src].sum(0)[:, None] * np.ones(4)
    np.testing.assert_allclose(threads.run(3, work)[0], expected, rtol=1e-12)


# ---- rows that follow each other are sent as they stand

RING = Edges(np.arange(50), np.roll(np.arange(50), 1), 50)
SOME = random_edges(50, 70, seed=8)
TWO_ARRAYS = {
    "copy_src": (lambda g, x: g.aggregate(fn.copy_src(x), "sum"), 32),
    "attend": (attend, 32 + 16),
    "three arrays": (lambda g, x: g.aggregate(lambda s, d, e: s["x"] * s["b"] + s["a"], "max",
                                              src={"a": x[:, :3].sum(1).reshape(-1, 1), "x": x, "b": x[:, :1]}), 32 + 16),
}


@pytest.mark.sampled(21)
@pytest.mark.parametrize("prefetch", [0, 1])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("edges, method", [(COMPLETE, "random"), (RING, "contiguous"), (SOME, "random")])
@pytest.mark.parametrize("name", TWO_ARRAYS)
def test_rows_that_follow_each_other_are_not_packed(name, edges, method, mode, prefetch, monkeypatch):
    """All of a rank's rows, or consecutive rows, are sent: the message has the rows alone, without aligned sections."""
    aggregate, row_bytes = TWO_ARRAYS[name]
    (whole,) = threads.run(1, lambda comm: _gradient(shard(comm, edges), aggregate)[1:3])
    packed = []
    monkeypatch.setattr(transport, "pack", lambda *args: packed.append(1) or messages.pack(*args))

    def work(comm):
        graph, *arrays, profile = _gradient(shard(comm, edges, method, mode=mode, prefetch=prefetch), aggregate)
        for array, expected in zip(arrays, whole):
            np.testing.assert_allclose(array, expected[graph.node_ids], rtol=1e-12, atol=1e-12)
        rows, back = graph.plan.n_halo, sum(arrival.n_send for arrival in graph.plan.exchanges)
        again = mode == "sar" and name != "copy_src"
        if edges is not SOME:
            assert profile.received_bytes["forward_fetch"] == row_bytes * rows > 0
            assert profile.received_bytes["backward_fetch"] == row_bytes * rows * again
            assert profile.sent_bytes["forward_fetch"] == row_bytes * back
        assert row_bytes * back <= profile.received_bytes["backward_push"] <= row_bytes * back + 32 * len(graph.plan.exchanges)

    threads.run(4, work)
    assert bool(packed) == (edges is SOME)


def _gradient(graph, aggregate):
    x = Tensor(X[graph.node_ids], requires_grad=True)
    out = aggregate(graph, x)
    out.backward(2 * out.data)
    return graph, out.data, x.grad, graph.profile
