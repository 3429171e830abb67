"""Rows pushed to peers: what arrives is right, on time or late, whatever the network does."""

import threading
import warnings
from types import SimpleNamespace

import numpy as np
import pytest

from sarlite import Solo, kernels
from sarlite.comm import threads
from sarlite.minibatch.hec.push import PAUSE, PIECE_BYTES, Pusher, exchange
from sarlite.profile import Counted, Profile, Trace
from tests.helpers.comm.pushing import CHECKS, EARLIER, Delayed, messages, push_threads, training

pytestmark = pytest.mark.timeout(60)


@pytest.fixture(autouse=True)
def earlier():
    EARLIER[:] = threading.enumerate()


@pytest.mark.parametrize("n_ranks", [1, 2, 3, 4])
@pytest.mark.parametrize("name", CHECKS)
def test_the_pusher_passes_each_check_on_ranks_and_ends_its_threads(name, n_ranks):
    threads.run(n_ranks, CHECKS[name])
    assert not push_threads()


@pytest.mark.parametrize("name", CHECKS)
def test_the_pusher_passes_each_check_on_one_rank(name):
    CHECKS[name](Solo())


@pytest.mark.sampled(4)
@pytest.mark.parametrize("n_ranks", [2, 3, 4])
@pytest.mark.parametrize("delay", [0, 1, 2])
def test_a_run_is_the_same_whatever_the_network_does(n_ranks, delay):
    right = threads.run(n_ranks, training, delay)
    assert len(set(right)) == n_ranks
    for seed in range(3):
        assert threads.run(n_ranks, lambda comm, seed=seed: training(Delayed(comm, seed), delay)) == right


@pytest.mark.parametrize("counted", [False, True])
def test_bytes_and_spans(counted):
    """Under one phase alone, also where the communicator counts for itself."""

    def work(comm):
        profile = Profile()
        profile.trace = Trace()
        pusher = Pusher((Counted(comm, profile) if counted else comm).channel("embeddings"), profile)
        n_bytes = sum(pusher.submit(step, 0, messages(comm, step, 0)) for step in range(4))
        pusher.drain()
        pusher.close()
        spans = [(name, track, args) for name, track, _, _, args in profile.trace.spans if track != "compute"]
        assert sum(args["bytes"] for _, _, args in spans) == n_bytes and len(spans) == 4
        assert [(name, track, args["step"]) for name, track, args in spans] == [("push rows", "push", step) for step in range(4)]
        assert profile.sent_bytes.keys() == profile.received_bytes.keys() == {"push_rows"}
        assert profile.sent_bytes["push_rows"] == n_bytes
        return n_bytes, profile.received_bytes["push_rows"]

    sent, received = zip(*threads.run(3, work))
    assert sum(sent) == sum(received) > 0


def test_rows_are_not_kept_among_the_buffers_of_a_step():
    def work(comm):
        pusher, rows, buffers = Pusher(comm.channel("embeddings"), Profile()), np.ones((1000, 300)), kernels.Buffers()
        with buffers:
            pusher.submit(0, 0, [(np.arange(1000), None, rows)] * comm.size)
            result = pusher.take(0, 0)
            assert buffers.n_bytes == 0
        pusher.close()
        assert all((rows == 1).all() for _, _, rows in result)

    threads.run(2, work)


class Slow:
    """Two ranks' communicator whose transfers are done at the third look, and never wait before."""

    rank, size = 0, 2

    def __init__(self):
        self.started, self.under_way = [], []

    def start_recv(self, array, peer, kind="recv"):
        assert peer == 1 and kind not in self.under_way and 0 < len(array) <= PIECE_BYTES
        self.started.append((kind, len(array)))
        self.under_way.append(kind)
        looks = iter([False, False, True])
        return SimpleNamespace(test=lambda: next(looks), wait=lambda: self.under_way.remove(kind) if next(looks, None) is None else None)

    def start_send(self, array, peer):
        return self.start_recv(array, peer, "send")


def test_one_piece_at_a_time_and_a_pause_where_nothing_has_come():
    comm, pauses, hurry = Slow(), [], iter([False, False, True])
    arrays = [np.zeros(n, np.uint8) for n in (99, 25, 99, 10)]
    exchange(comm, arrays[:2], arrays[2:], lambda: next(hurry, True), piece_bytes=10, sleep=pauses.append)
    assert comm.started == [("recv", 10), ("send", 10), ("send", 10), ("send", 5)] and not comm.under_way
    assert pauses == [PAUSE, PAUSE, 0, 0]  # but none after a look at which a piece had come
    comm = Slow()
    exchange(comm, [arrays[0], arrays[0][:0]], [arrays[0], arrays[0][:0]], lambda: True)
    assert comm.started == []


class Plain:
    """A communicator of MPI without THREAD_MULTIPLE."""

    threaded = False

    def __init__(self, comm):
        self._comm = comm

    def __getattr__(self, name):
        return getattr(self._comm, name)


def test_without_threads_submit_exchanges():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        threads.run(1, unthreaded)  # one rank has nothing to overlap
    with pytest.warns(RuntimeWarning, match="MPI_THREAD_MULTIPLE, so rows are pushed") as reported:
        threads.run(2, unthreaded)
    assert len(reported.list) == 1  # of rank 0


def unthreaded(comm):
    pusher = Pusher(Plain(comm.channel("embeddings")), Profile())
    pusher.submit(0, 0, messages(comm, 0, 0))
    assert pusher._thread is None and pusher._results[0, 0] is not None  # it is here when `submit` returns
    assert len(pusher.take(0, 0)) == comm.size
    pusher.close()
