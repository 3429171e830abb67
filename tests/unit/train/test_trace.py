"""The timeline of `--trace`, with ranks as threads and through the command line."""

import errno
import json
import os
import threading
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sarlite import Graph, Tensor, tape
from sarlite.comm import Solo, threads
from sarlite.errors import ConfigError, SarliteError
from sarlite.minibatch import NeighborLoader
from sarlite.profile import Profile, Trace
from sarlite.train import trace
from tests.helpers.graph.references import EDGES, FEATURES
from tests.helpers.graph.strategies import SETTINGS
from tests.helpers.train.trace_checks import assert_apart, check, of_track, read
from tests.helpers.train.trace_checks import train as train_recorded
from tests.helpers.train.training_runs import command, train

pytestmark = pytest.mark.timeout(60)


@pytest.mark.sampled(10)
@pytest.mark.parametrize("prefetch", [0, 1, 2])
@pytest.mark.parametrize("mode", ["sar", "sa", "oneshot"])
@pytest.mark.parametrize("case", ["sage", "gat", "edges"])
def test_the_timeline_against_the_plan(case, mode, prefetch, tmp_path):
    threads.run(3, check, case, tmp_path / "t.json", mode=mode, prefetch=prefetch)
    assert [path.name for path in tmp_path.iterdir()] == ["t.json"]


@pytest.mark.parametrize("n_ranks", [1, 2, 5])
def test_other_numbers_of_ranks(n_ranks, tmp_path):
    threads.run(n_ranks, check, "gat", tmp_path / "t.json")


def test_names_of_what_is_computed(tmp_path):
    _, recorded = train_recorded(Solo(), "sage", epochs=1)
    names = [name for name, *_ in recorded.spans]
    assert {"matmul", "matmul backward", "aggregate (Sum)", "aggregate (Sum) backward", "allreduce", "optimizer"} < set(names)
    assert names[-1] == "epoch 1" and names.count("cross_entropy backward") == 1
    assert names.count("matmul") == 2 * names.count("matmul backward")  # as many in evaluation


class Late:
    """A communicator that sends nothing before `begun`."""

    def __init__(self, comm, begun):
        self._comm, self._begun = comm, begun

    def __getattr__(self, name):
        return getattr(self._comm, name)

    def start_send(self, *message):
        assert self._begun.wait(60), "nothing is computed meanwhile"
        return self._comm.start_send(*message)


@pytest.mark.parametrize("prefetch", [0, 1])
def test_rows_travel_while_a_block_is_computed(prefetch, tmp_path):
    """With a prefetch thread the first rows come while the local block is computed; without one no fetch overlaps a block."""

    def work(comm):
        graph, begun, calls = Graph.from_edges(*EDGES).shard(comm, "random", prefetch=prefetch), threading.Event(), []
        transport = graph.schedule.transport
        transport.fetch_comm = Late(transport.fetch_comm, begun)

        def message(src, dst, edge):
            calls.extend([1] * (len(set(edge.ids)) > 1))  # edges of the probe have one id
            if len(calls) == 1:  # the first is the local block's
                begun.set()
                end = time.monotonic() + 60
                while prefetch and not any(track == "fetch" for _, track, *_ in graph.profile.trace.spans):
                    assert time.monotonic() < end, "no rows came"
                    time.sleep(0.001)
            return src["x"] * 2.0

        with trace.recording(comm, graph.profile) as recorded:
            graph.aggregate(message, "sum", src={"x": FEATURES[graph.node_ids]})
        trace.write(comm, tmp_path / "t.json", recorded)

    threads.run(3, work)
    events, _ = read(tmp_path / "t.json")
    for rank in range(3):
        blocks = [event for event in of_track(events, rank, "compute") if event["name"] == "block"]
        both = [(block["args"]["source"], fetch["args"]["peer"]) for block in blocks for fetch in of_track(events, rank, "fetch")
                if block["begin"] < fetch["end"] and fetch["begin"] < block["end"]]
        assert ((rank, (rank + 1) % 3) in both) if prefetch else not both


def test_waiting_is_seen(tmp_path):
    """The thread that computes waits for each step's rows, for the last rows sent to leave, and for each step's gradients."""

    def work(comm):
        graph = Graph.from_edges(*EDGES).shard(comm, "random", prefetch=1)
        with trace.recording(comm, graph.profile) as recorded:
            x = Tensor(FEATURES[graph.node_ids], requires_grad=True)
            graph.aggregate(lambda s, d, e: s["x"].tanh(), "sum", src={"x": x}).sum().backward()
        return sorted((args["phase"], args.get("peer", -1)) for name, *_, args in recorded.spans if name == "wait")

    for rank, of_rank in enumerate(threads.run(3, work)):
        peers = [peer for peer in range(3) if peer != rank]
        assert of_rank == [(phase, peer) for phase in ("backward", "forward") for peer in (-1, *peers)] + [("push", peer) for peer in peers]


# ---- when nothing is recorded


def test_nothing_is_recorded_by_default():
    before = dict(tape.PRIMITIVES)
    profile = Profile()
    assert profile.trace is None and profile.span("one") is profile.span("other", "fetch", peer=1)
    with profile.span("one") as span:
        span.end()
    graph, recorded = train_recorded(Solo(), "gcn", epochs=1)
    assert recorded.spans and graph.profile.trace is None
    assert tape.PRIMITIVES == before and all(tape.PRIMITIVES[name] is before[name] for name in before)
    n_before = len(recorded.spans)
    graph.aggregate(lambda s, d, e: s["x"] * 2.0, "sum", src={"x": FEATURES})
    assert len(recorded.spans) == n_before


def test_a_rank_records_what_its_own_thread_does():
    """Observers are of one thread: a rank that does not record is not seen in another's timeline."""

    def work(comm):
        profile = Profile()
        if comm.rank:
            comm.barrier()  # that of the other's recording
            comm.barrier()
            tape.ops.exp(Tensor(np.ones(3)))
            comm.barrier()
            return None
        with trace.recording(comm, profile) as recorded:
            comm.barrier()
            comm.barrier()
            tape.ops.log(Tensor(np.ones(3)))
        return [name for name, *_ in recorded.spans]

    assert threads.run(2, work)[0] == ["log"]


def test_what_the_thread_that_samples_does_is_not_among_what_is_computed():
    def work(comm):
        graph = Graph.from_edges(*EDGES).shard(comm)
        n = graph.n_src
        loader = NeighborLoader(graph, np.ones((n, 1), np.float32), np.zeros(n, int), np.arange(n), fanouts=[2], batch_size=4)
        with trace.recording(comm, graph.profile) as recorded:
            for _ in loader:
                pass
        return {(name, track) for name, track, *_ in recorded.spans}

    for of_rank in threads.run(2, work):
        assert ("alltoall", "sample") in of_rank and not [name for name, track in of_rank if track == "compute"]


def test_a_phase_of_the_thread_that_samples_is_not_that_of_the_step():
    profile, begun, counted = Profile(), threading.Event(), threading.Event()

    def sample():
        with profile.phase("setup"):
            profile.count("alltoall", sent=1)
            begun.set()
            counted.wait(10)
        profile.count("alltoall", sent=2)

    thread = threading.Thread(target=sample)
    thread.start()
    begun.wait(10)
    profile.count("backward_push", sent=4)
    counted.set()
    thread.join()
    with profile.phase("evaluation"):  # holds for threads that fetch, too
        fetching = threading.Thread(target=profile.count, args=("forward_fetch", 8))
        fetching.start()
        fetching.join()
    assert profile.sent_bytes == {"setup": 1, "alltoall": 2, "backward_push": 4, "evaluation": 8}


def test_a_rank_that_ends_first_leaves_the_others_recording():
    before = dict(tape.PRIMITIVES)

    def work(comm):
        profile = Profile()
        with trace.recording(comm, profile) as recorded:
            if comm.rank:
                comm.barrier()
                tape.ops.log(Tensor(np.ones(3)))
        if not comm.rank:
            comm.barrier()
        return [name for name, *_ in recorded.spans]

    assert threads.run(2, work) == [[], ["log"]]
    assert tape.PRIMITIVES == before


def test_a_failure_ends_the_recording():
    before, profile = dict(tape.PRIMITIVES), Profile()
    with pytest.raises(KeyError), trace.recording(Solo(), profile) as recorded:
        with profile.span("epoch 1"):
            raise KeyError("the cause")
    assert tape.PRIMITIVES == before and profile.trace is None and [name for name, *_ in recorded.spans] == ["epoch 1"]


def test_time_starts_as_the_barrier_is_left():
    class Slow(Solo):
        def barrier(self):
            time.sleep(0.01)
            self.left = time.perf_counter_ns()

    comm = Slow()
    with trace.recording(comm, Profile()) as recorded:
        assert time.perf_counter_ns() - recorded.now() >= comm.left


# ---- the file


@SETTINGS
@given(st.lists(st.tuples(st.integers(0, 20), st.integers(1, 6)), max_size=20))
def test_spans_that_overlap_get_lanes(drawn):
    spans = [("push", "push", begin, begin + length, {"k": k}) for k, (begin, length) in enumerate(drawn)]
    events = [event for event in trace._events(7, spans) if event["ph"] == "X"]
    assert sorted(event["args"]["k"] for event in events) == list(range(len(drawn)))
    lanes = {}
    for event in events:
        _, _, begin, end, _ = spans[event["args"]["k"]]
        assert (event["pid"], event["ts"], event["dur"]) == (8, begin / 1000, (end - begin) / 1000)
        lanes.setdefault(event["tid"], []).append({"begin": begin, "end": end})
    for lane in lanes.values():
        assert_apart(lane)
    at_once = max((sum(b <= moment < e for _, _, b, e, _ in spans) for moment in range(27)), default=0)
    assert len(lanes) <= max(at_once, min(1, len(drawn)))


def test_writing_that_fails_is_told_on_every_rank(tmp_path):
    def work(comm):
        with pytest.raises(SarliteError, match=rf"trace {tmp_path}/no/t.json: cannot be written"):
            trace.write(comm, tmp_path / "no" / "t.json", Trace())

    threads.run(3, work)
    (tmp_path / "t.json").mkdir()
    with pytest.raises(SarliteError, match="cannot be written"):
        trace.write(Solo(), tmp_path / "t.json", Trace())
    assert [path.name for path in tmp_path.iterdir()] == ["t.json"]


def test_a_full_disk_leaves_the_old_file(monkeypatch, tmp_path):
    def full(descriptor):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    path = tmp_path / "t.json"
    path.write_text("old")
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(SarliteError, match=f"trace {path}: cannot be written: No space left on device"):
        trace.write(Solo(), path, Trace())
    assert path.read_text() == "old" and len(list(tmp_path.iterdir())) == 1


# ---- the command


def test_the_command_records_the_first_epochs(tmp_path):
    train(tmp_path / "run", "--epochs", 4, "--eval-every", 2, "--ranks", 2, "--trace", tmp_path / "t.json", "--trace-epochs", 2)
    events, names = read(tmp_path / "t.json")
    assert json.loads((tmp_path / "t.json").read_text()).keys() == {"traceEvents", "displayTimeUnit"}
    for rank in range(2):
        assert names[rank,] == f"rank {rank}"
        compute = [event["name"] for event in of_track(events, rank, "compute")]
        assert [name for name in compute if name.startswith("epoch")] == ["epoch 1", "epoch 2"] and compute.count("evaluation") == 1
        assert of_track(events, rank, "fetch") and of_track(events, rank, "push")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run", "t.json"]


def test_three_epochs_by_default_and_a_resumed_run(here, tmp_path):
    resume = ["--resume", tmp_path / "run" / "checkpoint.safetensors"]
    for epochs, flags, result in ((5, [], [1, 2, 3]), (9, resume, [6, 7, 8])):
        here(tmp_path / "run", "--epochs", epochs, "--trace", tmp_path / "run" / "t.json", *flags)
        compute = of_track(read(tmp_path / "run" / "t.json")[0], 0, "compute")
        assert [event["name"] for event in compute if event["name"].startswith("epoch")] == [f"epoch {k}" for k in result]


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("file, words", [
    ("none/t.json", "No such file or directory"), ("file/t.json", "Not a directory"), ("folder", "Is a directory"),
    ("x" * 300, "File name too long"),
])  # fmt: skip
def test_a_file_that_cannot_be_written_is_refused_first(here, file, words, ranks, tmp_path):
    (tmp_path / "file").write_text("")
    (tmp_path / "folder").mkdir()
    with pytest.raises(ConfigError) as caught:
        here(tmp_path / "run", "--epochs", 1, "--ranks", ranks, "--trace", tmp_path / file)
    assert str(caught.value) == f"--trace {tmp_path / file}: cannot be written: {words}"
    assert not (tmp_path / "run" / "metrics.jsonl").exists() and not list(tmp_path.glob("*.tmp"))


def test_a_number_of_epochs_that_cannot_be(tmp_path):
    done = command("--trace", tmp_path / "t.json", "--trace-epochs", 0)
    assert done.returncode == 2 and "--trace-epochs 0 is less than 1" in done.stderr
