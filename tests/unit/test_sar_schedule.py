"""What the schedule holds, keeps and does when something fails: live remote buffers, residuals, errors (threads as ranks)."""

import gc
import sys
import threading
import time
import weakref
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))

from strategies import random_edges, values

from sarlite import Graph, Tensor, fn, kernels
from sarlite.comm import threads
from sarlite.sar import plan
from sarlite.sar import schedule as sched
from sarlite.sar.aggregate import Operator, aggregate

pytestmark = pytest.mark.timeout(60)

EDGES = random_edges(50, 700, seed=7)  # dense: every part needs rows of every other
X = values(1, 50, 4)
MODES = ("sar", "sa", "oneshot")


def shard(comm, **options):
    return Graph.from_edges(*EDGES).shard(comm, "random", **options)


def attend(graph, x):
    z = x.reshape(-1, 2, 2)
    return graph.aggregate(fn.attend(z, z.sum(-1), z[: graph.n_dst].sum(-1)), "sum")


# ---- live remote buffers

HOLDERS = {
    "copy_src": lambda g, x, wait: g.aggregate(fn.copy_src(x), "sum"),
    "max": lambda g, x, wait: g.aggregate(fn.copy_src(x), "max"),
    "attend": lambda g, x, wait: attend(g, x),
    "case 1": lambda g, x, wait: g.aggregate(lambda s, d, e: wait(g, s["x"] * 2.0), "sum", src={"x": x}),
    "case 2": lambda g, x, wait: g.aggregate(lambda s, d, e: wait(g, s["x"].tanh()), "max", src={"x": x}),
    "softmax": lambda g, x, wait: g.aggregate(lambda s, d, e: (wait(g, s["x"].tanh()), s["x"]), "softmax", src={"x": x}),
}


def slowly(bound):
    """A message's brake: give the prefetch thread time to run as far ahead as it may, and then some."""

    def wait(graph, message):
        end = time.monotonic() + 0.02
        while graph.profile.live_remote_buffers < bound and time.monotonic() < end:
            time.sleep(0.001)
        time.sleep(0.003)
        return message

    return wait


@pytest.mark.parametrize("prefetch", [0, 1, 2])
@pytest.mark.parametrize("n_ranks", [4, 5])
@pytest.mark.parametrize("name", HOLDERS)
def test_live_remote_buffers(name, n_ranks, prefetch):
    """The promise of mode sar: 1 + prefetch, in forward and in backward (SAR 3.4)."""
    bound = 1 + prefetch

    def work(comm):
        graph = shard(comm, prefetch=prefetch)
        x = Tensor(X[graph.node_ids], requires_grad=True)
        out = HOLDERS[name](graph, x, slowly(bound))
        forward, live = graph.profile.peak_remote_buffers, graph.profile.live_remote_buffers
        graph.profile.reset()
        out.backward(np.ones_like(out.data))
        return forward, live, graph.profile.peak_remote_buffers, graph.profile.live_remote_buffers

    found = threads.run(n_ranks, work)
    case2 = name in ("attend", "case 2", "softmax")
    for forward, live_between, backward, live_after in found:
        assert 1 <= forward <= bound
        assert (1 if case2 else 0) <= backward <= (bound if case2 else 0)
        assert live_between == live_after == 0
    if name.startswith("case"):  # the slow messages: the bound is reached, so prefetching does happen
        assert max(forward for forward, *_ in found) == bound


def test_backward_holds_parts_of_peers_rows(monkeypatch):
    """The part in use and one peer's parts beside it, fetched ahead; every rank's steps fit its partners'."""
    monkeypatch.setattr(plan, "STEP_ROWS", 1)
    rows, allocate = [], sched._allocate

    def noted(n_rows, *args, **options):
        rows.append(n_rows)
        return allocate(n_rows, *args, **options)

    def work(comm):
        graph = shard(comm, prefetch=1)
        out = attend(graph, Tensor(X[graph.node_ids], requires_grad=True))
        comm.barrier()
        rows.clear()
        comm.barrier()
        graph.profile.reset()
        out.backward(np.ones_like(out.data))
        return graph.plan, graph.profile.peak_remote_buffers

    monkeypatch.setattr(sched, "_allocate", noted)
    found = threads.run(3, work)
    for p, (the_plan, peak) in enumerate(found):
        assert 0 < peak <= Fraction(6, 5) and len(the_plan.steps) == 2 and len(the_plan.backward_steps) == 10
        for k, step in enumerate(the_plan.backward_steps):
            other = found[step.source][0].backward_steps[k]
            assert other.target == p and np.array_equal(step.block.src_ids, np.sort(step.block.src_ids))
            assert len(other.send_rows) == step.block.n_src
    assert 0 < max(rows) <= max(-(-step.block.n_src // 5) for the_plan, _ in found for step in the_plan.steps)


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


def test_the_first_rows_travel_while_the_local_block_is_computed():
    """With a prefetch thread, DESIGN section 3: post the fetch for the first peer, then compute the local block."""
    found = {}

    def work(comm):
        graph = shard(comm, prefetch=1)

        def message(src, dst, edge):
            if len(edge.ids) > 1 and comm.rank not in found:  # the first call but for the probe: the local block
                end = time.monotonic() + 3
                while not graph.profile.live_remote_buffers and time.monotonic() < end:
                    time.sleep(0.001)
                found[comm.rank] = graph.profile.live_remote_buffers
            return src["x"] * 2.0

        graph.aggregate(message, "sum", src={"x": X[graph.node_ids]})

    threads.run(3, work)
    assert all(live >= 1 for live in found.values()), found


def test_the_prefetch_thread_packs_alone(monkeypatch):
    """OpenMP's number of threads is each thread's own: two teams would fight for the cores of one."""
    found = set()

    def pack(arrays, rows, pack=sched._pack):
        found.add((threading.current_thread().name, kernels.threads()))
        return pack(arrays, rows)

    def work(comm):
        kernels.set_threads(2)
        graph = shard(comm, prefetch=1)
        graph.aggregate(fn.copy_src(X[graph.node_ids]), "sum")
        assert kernels.threads() == 2

    monkeypatch.setattr(sched, "_pack", pack)
    threads.run(2, work)
    assert found == {("sarlite-prefetch", 1)}


def test_no_thread_is_left():
    def work(comm):
        graph = shard(comm, prefetch=2)
        out = attend(graph, Tensor(X[graph.node_ids], requires_grad=True))
        out.backward(np.ones_like(out.data))

    threads.run(4, work)
    end = time.monotonic() + 5
    while _own_threads() and time.monotonic() < end:
        time.sleep(0.01)
    assert not _own_threads()


def _own_threads():
    return [thread for thread in threading.enumerate() if thread.name.startswith("sarlite-")]


@pytest.mark.parametrize("mode, most", [("sar", 3), ("sa", 1)])
def test_a_long_message_does_not_run_ahead_of_the_pushes(mode, most, monkeypatch):
    """Gradients on their way are bounded too: those of one peer, in sar in 9 / 3 parts, wait while the next are computed."""
    monkeypatch.setattr(plan, "STEP_ROWS", 1)
    pending = []

    def work(comm):
        graph = shard(comm, mode=mode, prefetch=1)
        out = attend(graph, Tensor(X[graph.node_ids], requires_grad=True))
        start = sched._Push.start

        def counted(self, step, message):
            start(self, step, message)
            pending.append(len(self.pending))

        with pytest.MonkeyPatch.context() as patch:
            comm.barrier()
            if comm.rank == 0:
                patch.setattr(sched._Push, "start", counted)
            comm.barrier()
            out.backward(np.ones_like(out.data))
            comm.barrier()

    threads.run(4, work)
    assert pending and max(pending) <= most


@pytest.mark.parametrize("prefetch, most", [(0, {"rows": 0, "in": 1, "out": 1}), (1, {"rows": 2, "in": 1, "out": 2})])
def test_what_is_alive_beside_the_rows_in_use(prefetch, most, monkeypatch):
    """As gradients leave the rows that they are of are free, and none but one step's travel."""
    allocate, start, starting, live, found = sched._allocate, sched._Push.start, threading.local(), {}, {}

    def change(rank, kind, n):
        live[rank, kind] = live.get((rank, kind), 0) + n
        found[kind] = max(found.get(kind, 0), live[rank, kind])

    def counted(n_rows, templates, zero=False):
        buffer, views = allocate(n_rows, templates, zero)
        kind = "in" if getattr(starting, "push", False) else "out" if zero else None
        if kind:
            rank = threading.current_thread().name
            change(rank, kind, 1)
            weakref.finalize(buffer, change, rank, kind, -1)
        return buffer, views

    def watched(self, step, message):
        found["rows"] = max(found.get("rows", 0), self.schedule.profile.live_remote_buffers)
        starting.push = True
        start(self, step, message)
        starting.push = False

    monkeypatch.setattr(sched, "_allocate", counted)
    monkeypatch.setattr(sched._Push, "start", watched)

    def work(comm):
        threading.current_thread().name = f"rank {comm.rank}"
        graph = shard(comm, prefetch=prefetch)
        out = attend(graph, Tensor(X[graph.node_ids], requires_grad=True))
        found.clear()
        comm.barrier()
        out.backward(np.ones_like(out.data))

    threads.run(4, work)
    assert all(found[kind] <= n for kind, n in most.items()), found


# ---- what is computed while what travels


class Noting(Operator):
    """Computes nothing; notes the source of each block and its edges, forward and backward."""

    def __init__(self, n_dst, case2, log):
        self.n_dst, self.needs_rows, self.log = n_dst, case2, log

    def end(self):
        return np.zeros((self.n_dst, 1))

    def forward(self, block, rows):
        self.log.append(("forward", block.n_edges))

    def backward(self, block, rows, d_rows):
        self.log.append(("backward", block.n_edges))


class Waiting:
    """A communicator that counts the requests not yet waited for, and notes pushes."""

    def __init__(self, comm, log, started):
        self._comm, self._log, self._started = comm, log, started

    def __getattr__(self, name):
        return getattr(self._comm, name)

    def start_send(self, array, peer, tag=0):
        self._log.append(("push", peer))
        return self._count(self._comm.start_send(array, peer, tag))

    def start_recv(self, array, peer, tag=0):
        return self._count(self._comm.start_recv(array, peer, tag))

    def _count(self, request):
        wait = request.wait
        self._started.append(request)

        def counted(*args):
            wait(*args)
            self._started.remove(request)

        request.wait = counted
        return request


def order_of(n_ranks, case2, **options):
    """Rank 1's order of blocks and pushes in backward, each block's place in the plan beside its edges, and what was under way."""

    def work(comm):
        graph, log, started = shard(comm, **options), [], []
        s = graph.schedule
        graph.schedule = s._replace(push_comm=Waiting(s.push_comm, log, started), fetch_comm=Waiting(s.fetch_comm, [], started))
        operator = Noting(graph.n_dst, case2, log)
        block = operator.backward
        operator.backward = lambda *args: (block(*args), under_way.append(len(started)))
        under_way = []
        out = aggregate(graph.schedule, operator, [Tensor(X[graph.node_ids], requires_grad=True)])
        log.clear()
        out.backward(np.ones_like(out.data))
        assert not started
        return graph.plan, log, under_way

    return threads.run(n_ranks, work)[1]


@pytest.mark.parametrize("prefetch", [0, 1, 2])
@pytest.mark.parametrize("n_ranks", [2, 3, 4])
def test_every_push_has_a_block_to_hide_behind(n_ranks, prefetch):
    """Case 1: each peer's gradients travel while the next block is computed, the last while the local one is."""
    plan, log, under_way = order_of(n_ranks, False, prefetch=prefetch)
    remote = [entry for step in plan.steps for entry in (("backward", step.block.n_edges), ("push", step.source))]
    assert log == [*remote, ("backward", plan.local.n_edges)]
    assert prefetch or not any(under_way)


@pytest.mark.parametrize("prefetch", [1, 2])
@pytest.mark.parametrize("n_ranks", [2, 3, 4])
def test_the_local_block_hides_the_first_fetch_and_the_last_push(n_ranks, prefetch):
    """Case 2: half of it before the remote blocks and half of it after."""
    plan, log, _ = order_of(n_ranks, True, prefetch=prefetch)
    remote = [entry for step in plan.steps for entry in (("backward", step.block.n_edges), ("push", step.source))]
    first, last = (("backward", half.n_edges) for half in plan.local.halves)
    assert log == [first, *remote, last]
    assert abs(first[1] - last[1]) <= np.diff(plan.local.indptr).max() and first[1] + last[1] == plan.local.n_edges


@pytest.mark.parametrize("n_ranks", [2, 3])
def test_without_prefetch_nothing_travels_while_a_block_is_computed(n_ranks):
    plan, log, under_way = order_of(n_ranks, True, prefetch=0)
    assert [entry for entry in log if entry[0] == "backward"] == [("backward", block.n_edges) for block in plan.blocks]
    assert len(under_way) == len(plan.blocks) and not any(under_way)


# ---- messages


class Recorder:
    """A communicator that notes the messages that leave, and may break."""

    def __init__(self, comm, log, fail_at=None):
        self._comm, self._log, self._fail_at = comm, log, fail_at

    def __getattr__(self, name):
        return getattr(self._comm, name)

    def start_send(self, array, peer, tag=0):
        self._log.append((peer, array.nbytes))
        if len(self._log) == self._fail_at:
            raise KeyError("the network is gone")
        return self._comm.start_send(array, peer, tag)


@pytest.mark.parametrize("mode", MODES)
def test_one_message_a_peer_and_direction(mode):
    def work(comm):
        graph, fetches, pushes = shard(comm, mode=mode), [], []
        s = graph.schedule
        graph.schedule = s._replace(fetch_comm=Recorder(s.fetch_comm, fetches), push_comm=Recorder(s.push_comm, pushes))
        out = attend(graph, Tensor(X[graph.node_ids], requires_grad=True))
        assert sorted(peer for peer, _ in fetches) == [rank for rank in range(4) if rank != comm.rank] and not pushes
        out.backward(np.ones_like(out.data))
        assert len(fetches) == (6 if mode == "sar" else 3) and len(pushes) == 3
        assert sum(n for _, n in fetches) == graph.profile.sent_bytes["forward_fetch"] + graph.profile.sent_bytes["backward_fetch"]

    threads.run(4, work)


# ---- memory kept for backward


def arrays_behind(value, found, seen):
    """Collect every array reachable from residuals, but not through the graph's own plan."""
    if id(value) in seen or isinstance(value, (sched.Schedule, str, int, float)):
        return
    seen.add(id(value))
    if isinstance(value, np.ndarray):
        found.append(value)
    elif isinstance(value, (tuple, list)):
        for item in value:
            arrays_behind(item, found, seen)
    elif isinstance(value, dict):
        arrays_behind(list(value.values()), found, seen)
    elif hasattr(value, "__dict__"):
        arrays_behind(list(vars(value).values()), found, seen)


@pytest.mark.parametrize("n_ranks", [1, 2])
def test_attend_keeps_nothing_per_edge(n_ranks):
    edges = random_edges(40, 4000, seed=9)

    def work(comm):
        graph = Graph.from_edges(*edges)
        graph = graph.shard(comm, "contiguous") if comm.size > 1 else graph
        z, src, dst = (Tensor(values(k, graph.n_src, *shape), True) for k, shape in enumerate([(2, 8), (2,), (2,)]))
        out = graph.aggregate(fn.attend(z, src, dst, 0.2, 0.5, 3), "sum")
        found = []
        arrays_behind((out.node.residuals, out.node.params), found, set())
        assert any(a is z.data for a in found) and any(a is out.data for a in found)
        assert all(len(a) <= graph.n_src for a in found)
        assert sum(a.nbytes for a in found) <= (2 * z.data.nbytes + 5 * src.data.nbytes) + 8 * graph.n_src
        operator = out.node.params["operator"]
        operator.begin_backward(np.ones_like(out.data))
        found = []
        arrays_behind(operator, found, set())
        assert sum(a.ndim == 3 for a in found) == 1  # the gradient: from here on nobody needs the output

    threads.run(n_ranks, work)


def test_without_values_of_edges_a_graph_holds_two_integers_an_edge():
    """Its columns and their transpose; which edge is which only where it is asked for."""
    indptr, indices = Graph.from_edges(*EDGES).in_edges()[:2]

    def work(comm):
        ids = np.arange(25) + 25 * comm.rank
        edges = slice(indptr[ids[0]], indptr[ids[-1] + 1])
        graph = Graph.from_part(comm, ids, indptr[ids[0] : ids[-1] + 2] - edges.start, indices[edges], np.arange(50) // 25)
        for name in ("attend", "copy_src"):
            out = HOLDERS[name](graph, Tensor(X[ids], requires_grad=True), None)
            out.backward(np.ones_like(out.data))
        for block in graph.plan.blocks:
            found = []
            arrays_behind(list(vars(block).values()), found, set())
            assert block.n_edges > 100 and sum(a.size for a in found if len(a) == block.n_edges) == 2 * block.n_edges
        assert not any(isinstance(a, np.ndarray) and len(a) == graph.n_edges for a in vars(graph).values())

    threads.run(2, work)


@pytest.mark.parametrize("name, keeps", [("copy_src", 0), ("case 1", 0), ("case 2", 1), ("max", 1)])
def test_nothing_remote_is_kept(name, keeps):
    """In mode sar the residuals are local rows at most: x itself in case 2, the arguments of max."""

    def work(comm):
        graph = shard(comm)
        x = Tensor(X[graph.node_ids], requires_grad=True)
        out = HOLDERS[name](graph, x, lambda graph, message: message)
        found = []
        arrays_behind((out.node.residuals, {k: v for k, v in out.node.params.items() if k != "operator"}), found, set())
        rows = [a for a in found if a.ndim == 2 and a.shape[1] == 4]
        assert all(len(a) <= graph.n_src for a in rows), [a.shape for a in found]
        assert any(a is x.data for a in rows) == (name == "case 2")
        assert len(rows) >= keeps

    threads.run(3, work)


# ---- failures: every rank raises, nobody hangs


def _all_fail(work, n_ranks=4):
    """Run; return the cause, and what each rank saw."""
    seen = {}

    def watched(comm):
        try:
            work(comm)
        except BaseException as error:
            seen[comm.rank] = error
            raise

    with pytest.raises(KeyError) as found:
        threads.run(n_ranks, watched)
    assert len(seen) == n_ranks
    return found.value


@pytest.mark.timeout(20)
@pytest.mark.parametrize("prefetch", [0, 1, 2])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("when", ["forward", "backward"])
def test_an_exception_in_a_message(when, mode, prefetch):
    def work(comm):
        graph, calls = shard(comm, mode=mode, prefetch=prefetch), []
        x = Tensor(X[graph.node_ids], requires_grad=True)

        def message(src, dst, edge):
            calls.append(len(edge.ids))
            if comm.rank == 1 and len(calls) == (2 if when == "forward" else 4) + (mode == "sar"):
                raise KeyError("the cause")
            return src["x"].tanh()

        for _ in range(3):  # the calls add up differently in each mode, but the one that fails is among them
            out = graph.aggregate(message, "sum", src={"x": x})
            out.backward(np.ones_like(out.data))

    assert "the cause" in str(_all_fail(work))


@pytest.mark.timeout(20)
@pytest.mark.parametrize("fail_at", [1, 2, 4])
@pytest.mark.parametrize("prefetch", [0, 1, 2])
@pytest.mark.parametrize("which", ["fetch_comm", "push_comm"])
def test_an_exception_in_a_transfer(which, prefetch, fail_at):
    """With prefetch, a fetch fails in the prefetch thread, whose exception must come out of the computing one."""

    def work(comm):
        graph = shard(comm, prefetch=prefetch)
        if comm.rank == 2:
            broken = Recorder(getattr(graph.schedule, which), [], fail_at)
            graph.schedule = graph.schedule._replace(**{which: broken})
        x = Tensor(X[graph.node_ids], requires_grad=True)
        for _ in range(2):
            out = attend(graph, x)
            out.backward(np.ones_like(out.data))

    assert "the network is gone" in str(_all_fail(work))
