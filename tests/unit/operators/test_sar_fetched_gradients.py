"""backward="fetch": owners of source rows fetch their destinations' gradients over the reversed edges (threads as ranks)."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sarlite import Graph, Tensor, fn
from sarlite.comm import threads
from sarlite.errors import ConfigError
from sarlite.schedule import schedule
from sarlite.schedule.modes import MODES
from tests.helpers.comm.exchanges import COMPLETE, EDGES, X, attend, in_parts, shard
from tests.helpers.graph.strategies import SETTINGS, Edges, edges, parts, random_edges, values
from tests.helpers.train.training_runs import train_here

pytestmark = pytest.mark.timeout(60)

HEADS, WIDTH = 2, 3
SYMMETRIC = Edges(np.concatenate([EDGES.src, EDGES.dst]), np.concatenate([EDGES.dst, EDGES.src]), 50)
SPARSE = random_edges(50, 60, seed=1)


def _gradients(graph, learns=(True, True, True)):
    """Return the gradients of attention with dropout and of a linear message, by this rank's ids."""
    n_src, n_dst = int(graph.src_ids.max(initial=-1)) + 1, int(graph.dst_ids.max(initial=-1)) + 1
    arrays = values(1, n_src, HEADS, WIDTH)[graph.src_ids], values(2, n_src, HEADS)[graph.src_ids], values(3, n_dst, HEADS)[graph.dst_ids]
    z, src, dst = (Tensor(array, requires_grad=needed) for array, needed in zip(arrays, learns))
    out = graph.aggregate(fn.attend(z, src, dst, 0.2, 0.4, 11), "sum")
    out = out + graph.aggregate(fn.copy_src(z), "sym") * 0.5
    out.backward(np.cos(out.data))
    return [(graph.src_ids, z.grad), (graph.src_ids, src.grad), (graph.dst_ids, dst.grad)]


def _same(actual, expected):
    for k, ((ids, grad), (_, whole)) in enumerate(zip(actual, expected)):
        assert (grad is None) == (whole is None)
        if grad is not None:
            np.testing.assert_allclose(grad, whole[ids], rtol=1e-11, atol=1e-12, err_msg=f"gradient {k}")


@settings(SETTINGS, max_examples=20)
@given(graph=edges(), mode=st.sampled_from([*MODES]), prefetch=st.integers(0, 2), data=st.data())
def test_gradients_of_any_graph(graph, mode, prefetch, data):
    n_ranks, owner = data.draw(parts(graph.n_nodes))
    learns = data.draw(st.sampled_from([(True, True, True), (True, False, False), (False, True, False), (False, False, True)]))
    whole = Graph.from_edges(*graph)
    expected = _gradients(whole, learns)
    options = {"mode": mode, "prefetch": prefetch, "backward": "fetch"}
    for gradients in threads.run(n_ranks, lambda comm: _gradients(whole.shard(comm, owner, **options), learns)):
        _same(gradients, expected)


@pytest.mark.parametrize("mode", MODES)
def test_gradients_of_bipartite_graphs(mode):
    """The sources' ids are not the destinations', though each rank has as many of both and the structure may be symmetric."""
    for pairs in (random_edges(12, 60), Edges(*np.divmod(np.arange(144), 12), 12)):
        whole = Graph.from_edges(*pairs[:2], n_src=12, n_dst=12)
        expected = _gradients(whole)
        options = {"src_parts": np.arange(12) // 4, "mode": mode, "backward": "fetch"}
        for gradients in threads.run(3, lambda comm: _gradients(whole.shard(comm, np.arange(12) % 3, **options))):  # noqa: B023
            _same(gradients, expected)


def _rows(graph_edges, owner, rank, backward):
    """Return by peer the rows that come: sources of this rank's destinations, or destinations of its sources."""
    ends = (graph_edges.dst, graph_edges.src) if backward else (graph_edges.src, graph_edges.dst)
    needed = np.unique(ends[0][owner[ends[1]] == rank])
    return [needed[owner[needed] == q] for q in range(owner.max() + 1) if q != rank]


def _bytes(messages, owner, widths):
    """Return the bytes of each peer's rows.

    Consecutive rows of the owner are sent as they are, other rows in sections at multiples of 16 bytes.
    """
    total = 0
    for rows in messages:
        place = np.searchsorted(np.flatnonzero(owner == owner[rows[0]]), rows) if len(rows) else rows
        end, packed = 0, len(rows) and place[-1] - place[0] + 1 != len(rows)
        for width in widths:
            end = (-(-end // 16) * 16 if packed else end) + len(rows) * width * 8
        total += end
    return total


@pytest.mark.parametrize("prefetch", [0, 1])
@pytest.mark.parametrize("graph_edges", [SYMMETRIC, SPARSE, COMPLETE])
@pytest.mark.parametrize("mode", MODES)
def test_bytes_are_those_of_the_fetched_rows(mode, graph_edges, prefetch):
    """The test counts the bytes of attention and of a linear message.

    Attention sends (H D) + (H) forward, fetches (H D) + (4 H) and pushes (H) backward. A linear message sends its width each
    way.
    """
    owner = np.random.default_rng(4).integers(0, 4, 50)

    def work(comm):
        graph = shard(comm, graph_edges, owner, mode=mode, prefetch=prefetch, backward="fetch")
        assert (graph.schedule.reverse.plan is graph.plan) == (graph_edges is not SPARSE)
        linear = Tensor(X[graph.node_ids], requires_grad=True)
        total = {}
        for name, out in (("attend", attend(graph, linear)), ("sum", graph.aggregate(fn.copy_src(linear), "sum"))):
            if name == "sum":
                total["forward"] = graph.profile.received_bytes["forward_fetch"]
            before = graph.profile.received_bytes.copy()
            out.backward(np.ones_like(out.data))
            total[name] = [graph.profile.received_bytes[phase] - before[phase] for phase in ("backward_fetch", "backward_push")]
        comes, goes = (_rows(graph_edges, owner, comm.rank, backward) for backward in (True, False))
        everything = [np.flatnonzero(owner == q) for q in range(4) if q != comm.rank]
        linear_rows = everything if mode == "broadcast" else comes
        assert total["attend"][0] == _bytes(comes, owner, (4, 2 * 4))
        assert total["sum"] == [_bytes(linear_rows, owner, (4,)), 0]
        assert total["attend"][1] == sum(len(_rows(graph_edges, owner, q, True)[comm.rank - (comm.rank > q)])
                                         for q in range(4) if q != comm.rank) * 2 * 8
        assert total["forward"] == _bytes(everything if mode == "broadcast" else goes, owner, (4, 2)) + _bytes(
            everything if mode == "broadcast" else goes, owner, (4,))

    threads.run(4, work)


@pytest.mark.parametrize("mode", MODES)
def test_peers_rows_are_held_for_a_piece_alone(mode):
    """Forward keeps no peer's rows in any mode; backward holds the rows of at most 1 + prefetch peers, or of all in `oneshot`."""

    def work(comm):
        graph = shard(comm, mode=mode, prefetch=1, backward="fetch")
        out = attend(graph, Tensor(X[graph.node_ids], requires_grad=True))
        live = graph.profile.live_remote_buffers
        graph.profile.reset()
        out.backward(np.ones_like(out.data))
        return live, graph.profile.peak_remote_buffers, graph.profile.live_remote_buffers

    for counts in threads.run(4, work):
        assert counts[::2] == (0, 0) and 1 <= counts[1] <= (3 if mode == "oneshot" else 2)


@pytest.mark.parametrize("mode", ["sar", "broadcast"])
def test_rows_come_in_parts(mode):
    """In backward a rank holds a part of a peer's rows, and keeps no array by edge of the CSR of that part."""
    whole = Graph.from_edges(*SPARSE)
    expected = _gradients(whole)

    def work(comm):
        graph = whole.shard(comm, "random", mode=in_parts(mode), prefetch=0, backward="fetch")
        _same(_gradients(graph), expected)
        out = attend(graph, Tensor(X[graph.node_ids], requires_grad=True))
        graph.profile.reset()
        out.backward(np.ones_like(out.data))
        *peers, _ = graph.schedule.reverse.plan.backward
        assert len(peers) == 2 * 5 and graph.profile.peak_remote_buffers == Fraction(1, 5)
        assert not any({"indices", "indptr", "_edges", "transpose"} & vars(piece.block).keys() for piece in peers)

    threads.run(3, work)


def test_other_messages_are_pushed():
    def work(comm):
        runs = []
        for backward in ("push", "fetch"):
            graph = shard(comm, mode="broadcast", backward=backward)
            assert (graph.schedule.reverse is None) == (backward == "push")
            x = Tensor(X[graph.node_ids], requires_grad=True)
            weight = Tensor(np.ones(graph.n_edges), requires_grad=True)
            out = graph.aggregate(fn.copy_src(x), "max") + graph.aggregate(fn.mul_edge(x, weight), "sum")
            (out + graph.aggregate(lambda s, d, e: s["x"].tanh(), "sum", src={"x": x})).sum().backward()
            runs.append((x.grad, dict(graph.profile.received_bytes)))
        np.testing.assert_array_equal(runs[0][0], runs[1][0])
        assert runs[0][1] == runs[1][1] and runs[0][1]["backward_push"] > 0

    threads.run(3, work)


def test_what_backward_is_not():
    with pytest.raises(ConfigError, match="backward 'pull' .*push, fetch"):
        threads.run(2, shard, EDGES, backward="pull")
    with pytest.raises(ConfigError, match="differ between ranks.*backward"):
        threads.run(2, lambda comm: shard(comm, EDGES, backward=("push", "fetch")[comm.rank]))


def test_the_command_fetches_gradients(tmp_path, monkeypatch):
    make, seen = schedule.make, []
    monkeypatch.setattr(schedule, "make", lambda *args: seen.append(args[2].backward) or make(*args))
    data = "sbm:nodes=60,classes=2,features=4,degree=4"
    train_here(tmp_path / "run", "--data", data, "--model", "gat", "--epochs", 1, "--ranks", 2, "--backward", "fetch")
    assert seen == ["fetch"] * 2
