"""Rows pushed to peers, where something fails: the thread ends, every rank is told, and nothing hangs."""

import gc
import threading
import time

import numpy as np
import pytest

from sarlite.comm import threads
from sarlite.errors import PeerError, SarliteError, ShapeError
from sarlite.minibatch.hec.push import N_WORDS, Pusher
from sarlite.profile import Profile
from tests.helpers.comm.pushing import EARLIER, messages, push_threads

pytestmark = pytest.mark.timeout(60)


@pytest.fixture(autouse=True)
def earlier():
    EARLIER[:] = threading.enumerate()


def test_the_thread_ends_with_close_and_with_the_object():
    def work(comm):
        pusher = Pusher(comm.channel("embeddings"), Profile())
        mine = pusher._thread._thread
        assert mine.is_alive() and mine.name == "sarlite-push-rows" and mine.daemon
        pusher.submit(0, 0, messages(comm, 0, 0))
        pusher.close()
        pusher.close()
        assert not mine.is_alive() and len(pusher.take(0, 0)) == comm.size
        with pytest.raises(SarliteError, match="the push thread is closed"):
            pusher.submit(1, 0, messages(comm, 1, 0))
        other = Pusher(comm.channel("embeddings"), Profile())
        mine = other._thread._thread
        del other
        gc.collect()
        mine.join(60)
        assert not mine.is_alive()

    threads.run(2, work)


@pytest.mark.parametrize("change, words", [
    (lambda m: m[:-1], "1 messages are not one for each of 2 ranks"),
    (lambda m: [m[0], (m[1][0][:-1], None, m[1][2])], "message to rank 1: .* do not fit together"),
    (lambda m: [m[0], (m[1][0], np.zeros(1, int), m[1][2])], "message to rank 1: .* do not fit together"),
    (lambda m: [m[0], (m[1][0], None, m[1][2].astype(np.float64))], "not rows of float32"),
    (lambda m: [m[0], (m[1][0], None, m[1][2][:, :1])], "not rows of float32"),
    (lambda m: [m[0], (m[1][0][None], None, m[1][2][None])], "message to rank 1: .* do not fit together"),
])  # fmt: skip
def test_messages_that_do_not_fit_are_refused(change, words):
    """Before anything travels: the job may be submitted again."""

    def work(comm):
        pusher = Pusher(comm.channel("embeddings"), Profile())
        right = [(np.arange(3), None, np.zeros((3, 4), np.float32))] * 2
        with pytest.raises(ShapeError, match=words):
            pusher.submit(0, 0, change(right))
        pusher.submit(0, 0, right)
        assert [len(slots) for slots, _, _ in pusher.take(0, 0)] == [3, 3]
        pusher.close()

    threads.run(2, work)


@pytest.mark.parametrize("what, words", [
    ("step", "rank 0 step 3, layer 2; rank 1 step 4, layer 2$"), ("layer", "rank 0 step 3, layer 2; rank 1 step 3, layer 3$"),
    ("dtype", "rank 1 step 3, layer 2, rows of another dtype or shape$"),
    ("width", "rank 1 step 3, layer 2, rows of another dtype or shape$"),
    ("one more", "rank 0 step 3, layer 2; rank 1 step 2, layer 2$"),
])  # fmt: skip
def test_ranks_that_push_different_jobs_fail_together(what, words):
    def work(comm):
        pusher, odd = Pusher(comm.channel("embeddings"), Profile()), comm.rank == 1
        rows = np.zeros((2, 5 if odd and what == "width" else 4), np.float64 if odd and what == "dtype" else np.float32)
        job = 3 + (odd and what == "step"), 2 + (odd and what == "layer")
        if what == "one more" and odd:
            pusher.submit(2, 2, [(np.arange(2), None, rows)] * comm.size)
        pusher.submit(*job, [(np.arange(2), None, rows)] * comm.size)
        with pytest.raises(ShapeError, match=words):
            pusher.take(*job)
        pusher.close()
        assert not pusher._thread._thread.is_alive()

    threads.run(3, work)


class Fault(Exception):
    pass


class Failing:
    """A communicator on which some ranks fail to send the head of the n-th job, and all that follows."""

    def __init__(self, comm, at, ranks):
        self._comm, self._left, self._ranks = comm, at * (comm.size - 1), ranks

    def __getattr__(self, name):
        return getattr(self._comm, name)

    def start_send(self, array, peer):
        self._left -= len(array) == 8 * N_WORDS
        if self._left < 0 and self.rank in self._ranks:
            raise Fault("the cause")
        return self._comm.start_send(array, peer)


@pytest.mark.parametrize("n_ranks", [2, 3])
def test_a_failure_in_the_thread_is_raised_by_all_that_follows(n_ranks):
    def work(comm):
        pusher = Pusher(Failing(comm.channel("embeddings"), 1, range(n_ranks)), Profile())
        pusher.submit(0, 0, messages(comm, 0, 0))
        pusher.take(0, 0)
        causes = []
        pusher.submit(1, 0, messages(comm, 1, 0))
        for action in (lambda: pusher.take(1, 0), pusher.drain, lambda: pusher.submit(2, 0, messages(comm, 2, 0)),
                       lambda: pusher.take(0, 0)):  # fmt: skip
            with pytest.raises(Fault, match="the cause") as caught:
                action()
            causes.append(caught.value)
        assert all(cause is causes[0] for cause in causes)
        pusher.close()
        comm.barrier()  # a rank that has ended would be the others' failure

    threads.run(n_ranks, work)
    assert not push_threads()


@pytest.mark.parametrize("waits", ["take", "submit", "drain", "barrier"])
@pytest.mark.parametrize("n_ranks", [2, 4])
def test_a_failure_in_one_rank_s_thread_ends_all(n_ranks, waits):
    """Whatever the ranks are at; all call the same, in the same order."""

    def work(comm):
        pusher = Pusher(Failing(comm.channel("embeddings"), 2, [n_ranks - 1]), Profile())
        try:
            for step in range(1000):
                pusher.submit(step, 0, messages(comm, step, 0))
                if waits == "barrier":
                    comm.barrier()
                if waits == "drain":
                    pusher.drain()
                elif waits != "submit" and step > 2:
                    pusher.take(step - 3, 0)
                time.sleep(0.001 if waits == "submit" else 0)
        finally:
            pusher.close()

    with pytest.raises(Fault, match="the cause"):
        threads.run(n_ranks, work)
    assert not push_threads()


@pytest.mark.parametrize("end", ["raise", "return"])
@pytest.mark.parametrize("waits", ["take", "drain", "close"])
def test_a_rank_that_ends_while_others_wait(end, waits):
    def work(comm):
        pusher = Pusher(comm.channel("embeddings"), Profile())
        comm.barrier()
        if comm.rank == 1:
            if end == "raise":
                raise Fault("the cause")
            pusher.close()
            return
        pusher.submit(0, 0, messages(comm, 0, 0))
        {"take": lambda: pusher.take(0, 0), "drain": pusher.drain, "close": pusher.close}[waits]()
        assert waits == "close"
        pusher.drain()

    with pytest.raises(Fault if end == "raise" else PeerError):
        threads.run(3, work)
    for thread in push_threads():  # of the rank that raised: its pusher goes with the traceback
        gc.collect()
        thread.join(60)
    assert not push_threads()
