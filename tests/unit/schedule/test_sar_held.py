"""Memory that the schedule holds and keeps: live remote buffers, messages under way, residuals (threads as ranks)."""

import gc
import threading
import weakref
from fractions import Fraction

import numpy as np
import pytest

from sarlite import Graph, Tensor, fn
from sarlite.comm import threads
from sarlite.schedule import messages, transport
from sarlite.schedule.schedule import Schedule
from tests.helpers.comm.exchanges import EDGES, HOLDERS, X, attend, in_parts, shard, slowly
from tests.helpers.graph.strategies import random_edges, values

pytestmark = pytest.mark.timeout(60)


# ---- live remote buffers


@pytest.mark.sampled(14)
@pytest.mark.parametrize("prefetch", [0, 1, 2])
@pytest.mark.parametrize("n_ranks", [4, 5])
@pytest.mark.parametrize("name", HOLDERS)
def test_live_remote_buffers(name, n_ranks, prefetch):
    """Mode sar promises 1 + prefetch buffers, in forward and in backward (SAR 3.4)."""
    bound = 1 + prefetch

    def work(comm):
        graph = shard(comm, prefetch=prefetch)
        x = Tensor(X[graph.node_ids], requires_grad=True)
        out = HOLDERS[name](graph, x, slowly(bound))
        forward, live = graph.profile.peak_remote_buffers, graph.profile.live_remote_buffers
        graph.profile.reset()
        out.backward(np.ones_like(out.data))
        return forward, live, graph.profile.peak_remote_buffers, graph.profile.live_remote_buffers

    ranks = threads.run(n_ranks, work)
    case2 = name in ("attend", "case 2", "softmax")
    for forward, live_between, backward, live_after in ranks:
        assert 1 <= forward <= bound
        assert (1 if case2 else 0) <= backward <= (bound if case2 else 0)
        assert live_between == live_after == 0
    if name.startswith("case"):  # the slow messages: the bound is reached, so prefetching does happen
        assert max(forward for forward, *_ in ranks) == bound


def test_backward_holds_parts_of_peers_rows(monkeypatch):
    """A rank holds the part in use and one peer's parts, fetched ahead; every rank's steps match its partners'."""
    rows, allocate = [], messages.allocate

    def recorded(n_rows, *args, **options):
        rows.append(n_rows)
        return allocate(n_rows, *args, **options)

    def work(comm):
        graph = shard(comm, prefetch=1, mode=in_parts("sar"))
        out = attend(graph, Tensor(X[graph.node_ids], requires_grad=True))
        comm.barrier()
        rows.clear()
        comm.barrier()
        graph.profile.reset()
        out.backward(np.ones_like(out.data))
        return graph.plan, graph.profile.peak_remote_buffers

    for module in (messages, transport):
        monkeypatch.setattr(module, "allocate", recorded)
    ranks = threads.run(3, work)
    for p, (the_plan, peak) in enumerate(ranks):
        assert 0 < peak <= Fraction(6, 5) and len(the_plan.forward) == 1 + 2 and len(the_plan.backward) == 10 + 1
        for k, piece in enumerate(the_plan.backward[:-1]):
            (arrival,) = piece.arrivals
            other = ranks[arrival.source][0].exchanges[k]
            assert other.target == p and np.array_equal(piece.block.src_ids, np.sort(piece.block.src_ids))
            assert other.n_send == arrival.n_rows == piece.block.n_src
    assert 0 < max(rows) <= max(-(-block.n_src // 5) for the_plan, _ in ranks for block in the_plan.blocks[1:])


@pytest.mark.parametrize("mode", ["sa", "oneshot"])
@pytest.mark.parametrize("n_ranks", [2, 4])
def test_other_modes_keep_what_backward_needs(n_ranks, mode):
    def work(comm):
        graph = shard(comm, mode=mode, prefetch=0)
        x, profile, counts = Tensor(X[graph.node_ids], requires_grad=True), graph.profile, []
        for name in ("attend", "copy_src"):
            out = HOLDERS[name](graph, x, None)
            counts += [profile.peak_remote_buffers, profile.live_remote_buffers]
            out.backward(np.ones_like(out.data))
            del out
            gc.collect()
            counts.append(profile.live_remote_buffers)
            profile.reset()
        return counts

    first = n_ranks - 1 if mode == "oneshot" else 1
    assert threads.run(n_ranks, work) == [[n_ranks - 1, n_ranks - 1, 0, first, 0, 0]] * n_ranks


@pytest.mark.parametrize("mode, most", [("sar", 3), ("sa", 1)])
def test_a_long_message_does_not_run_ahead_of_the_pushes(mode, most):
    """Gradients under way are bounded, too.

    The gradients of one peer, in sar in 9 / 3 parts, wait while the next ones are computed.
    """
    pending = []

    def work(comm):
        graph = shard(comm, mode=in_parts(mode), prefetch=1)
        out = attend(graph, Tensor(X[graph.node_ids], requires_grad=True))
        start = transport.Push.start

        def counted(self, *args):
            start(self, *args)
            pending.append(len(self.pending))

        with pytest.MonkeyPatch.context() as patch:
            comm.barrier()
            if comm.rank == 0:
                patch.setattr(transport.Push, "start", counted)
            comm.barrier()
            out.backward(np.ones_like(out.data))
            comm.barrier()

    threads.run(4, work)
    assert pending and max(pending) <= most


@pytest.mark.parametrize("prefetch, most", [(0, {"rows": 0, "in": 1, "out": 1}), (1, {"rows": 2, "in": 1, "out": 2})])
def test_what_is_alive_beside_the_rows_in_use(prefetch, most, monkeypatch):
    """When gradients are sent, the rows that they belong to are free, and only one step's gradients travel."""
    allocate, start, starting, live, peaks = messages.allocate, transport.Push.start, threading.local(), {}, {}

    def change(rank, kind, n):
        live[rank, kind] = live.get((rank, kind), 0) + n
        peaks[kind] = max(peaks.get(kind, 0), live[rank, kind])

    def counted(n_rows, templates, zero=False):
        buffer, views = allocate(n_rows, templates, zero)
        kind = "in" if getattr(starting, "push", False) else "out" if zero else None
        if kind:
            rank = threading.current_thread().name
            change(rank, kind, 1)
            weakref.finalize(buffer, change, rank, kind, -1)
        return buffer, views

    def watched(self, *args):
        peaks["rows"] = max(peaks.get("rows", 0), self.profile.live_remote_buffers)
        starting.push = True
        start(self, *args)
        starting.push = False

    for module in (messages, transport):
        monkeypatch.setattr(module, "allocate", counted)
    monkeypatch.setattr(transport.Push, "start", watched)

    def work(comm):
        threading.current_thread().name = f"rank {comm.rank}"
        graph = shard(comm, prefetch=prefetch)
        out = attend(graph, Tensor(X[graph.node_ids], requires_grad=True))
        peaks.clear()
        comm.barrier()
        out.backward(np.ones_like(out.data))

    threads.run(4, work)
    assert all(peaks[kind] <= n for kind, n in most.items()), peaks


# ---- memory kept for backward


def arrays_behind(value, arrays, seen):
    """Append every array that is reachable from residuals to `arrays`, without the arrays of the graph's plan."""
    if id(value) in seen or isinstance(value, (Schedule, str, int, float)):
        return
    seen.add(id(value))
    if isinstance(value, np.ndarray):
        arrays.append(value)
    elif isinstance(value, (tuple, list)):
        for item in value:
            arrays_behind(item, arrays, seen)
    elif isinstance(value, dict):
        arrays_behind(list(value.values()), arrays, seen)
    elif hasattr(value, "__dict__"):
        arrays_behind(list(vars(value).values()), arrays, seen)


@pytest.mark.parametrize("n_ranks", [1, 2])
def test_attend_keeps_nothing_per_edge(n_ranks):
    edges = random_edges(40, 4000, seed=9)

    def work(comm):
        graph = Graph.from_edges(*edges)
        graph = graph.shard(comm, "contiguous") if comm.size > 1 else graph
        z, src, dst = (Tensor(values(k, graph.n_src, *shape), True) for k, shape in enumerate([(2, 8), (2,), (2,)]))
        out = graph.aggregate(fn.attend(z, src, dst, 0.2, 0.5, 3), "sum")
        arrays = []
        saved, params = out.node.residuals, out.node.params
        arrays_behind((saved.residuals, saved.rows, params), arrays, set())
        assert any(a is z.data for a in arrays) and any(a is out.data for a in arrays)
        assert all(len(a) <= graph.n_src for a in arrays)
        assert sum(a.nbytes for a in arrays) <= (2 * z.data.nbytes + 5 * src.data.nbytes) + 8 * graph.n_src
        backward = params["operator"].backward(saved.residuals[0], np.ones_like(out.data), saved.context)
        arrays = []
        arrays_behind(backward, arrays, set())
        assert sum(a.shape == out.shape for a in arrays) == 1  # the gradient: from here on nobody needs the output

    threads.run(n_ranks, work)


def test_without_values_of_edges_a_graph_holds_two_integers_an_edge():
    """The graph holds its columns and their transpose; which edge is which is computed only when it is asked for."""
    indptr, indices = Graph.from_edges(*EDGES).in_edges()[:2]

    def work(comm):
        ids = np.arange(25) + 25 * comm.rank
        edges = slice(indptr[ids[0]], indptr[ids[-1] + 1])
        graph = Graph.from_part(comm, indptr[ids[0] : ids[-1] + 2] - edges.start, indices[edges])
        for name in ("attend", "copy_src"):
            out = HOLDERS[name](graph, Tensor(X[ids], requires_grad=True), None)
            out.backward(np.ones_like(out.data))
        for block in graph.plan.blocks:
            arrays = []
            arrays_behind(list(vars(block).values()), arrays, set())
            assert block.n_edges > 100 and sum(a.size for a in arrays if len(a) == block.n_edges) == 2 * block.n_edges
        assert not any(isinstance(a, np.ndarray) and len(a) == graph.n_edges for a in vars(graph).values())

    threads.run(2, work)


@pytest.mark.parametrize("name, keeps", [("copy_src", 0), ("case 1", 0), ("case 2", 1), ("max", 1)])
def test_nothing_remote_is_kept(name, keeps):
    """In mode sar the residuals are at most local rows: x itself in case 2, the arguments of max."""

    def work(comm):
        graph = shard(comm)
        x = Tensor(X[graph.node_ids], requires_grad=True)
        out = HOLDERS[name](graph, x, lambda graph, message: message)
        arrays = []
        arrays_behind((out.node.residuals, {k: v for k, v in out.node.params.items() if k != "operator"}), arrays, set())
        rows = [a for a in arrays if a.ndim == 2 and a.shape[1] == 4]
        assert all(len(a) <= graph.n_src for a in rows), [a.shape for a in arrays]
        assert any(a is x.data for a in rows) == (name == "case 2")
        assert len(rows) >= keeps

    threads.run(3, work)
