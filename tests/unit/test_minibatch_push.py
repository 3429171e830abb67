"""Rows pushed to peers: which are theirs, which are chosen, and that what arrives is right, on time or late, and nothing hangs."""

import gc
import sys
import threading
import time
import warnings
from itertools import permutations
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))

from pushing import CHECKS, Delayed, messages, training

from sarlite import Solo, kernels
from sarlite.comm import threads
from sarlite.errors import ConfigError, DataError, PeerError, SarliteError, ShapeError
from sarlite.keys import key
from sarlite.minibatch import beside, push
from sarlite.minibatch.borders import Borders, choose
from sarlite.minibatch.newest import Newest
from sarlite.minibatch.push import Pusher
from sarlite.profile import Counted, Profile, Trace

pytestmark = pytest.mark.timeout(60)
N_KEYS = 10_000


def random_asked(seed, n_ranks, n_rows, rank=0):
    rng = np.random.default_rng(seed)
    return [np.flatnonzero(rng.random(n_rows) < (q != rank) * rng.choice([0.1, 0.4, 0.9])) for q in range(n_ranks)]


@pytest.mark.parametrize("n_ranks", [1, 2, 3, 4, 9])
@pytest.mark.parametrize("seed", range(4))
def test_borders_against_a_dict(n_ranks, seed):
    n_rows, rng = 60, np.random.default_rng(100 + seed)
    asked = random_asked(seed, n_ranks, n_rows, rank=seed % n_ranks)
    if n_ranks > 2:
        asked[(seed + 1) % n_ranks] = asked[0][:0]  # a peer that has none of these rows
    entries = {row: [(q, list(theirs).index(row)) for q, theirs in enumerate(asked) if row in theirs] for row in range(n_rows + 20)}
    borders = Borders(asked)
    for n in (0, 1, 7, n_rows + 20):
        rows = rng.permutation(n_rows + 20)[:n].astype(rng.choice([np.int32, np.int64]))
        found = borders.of(rows)
        assert len(found) == n_ranks
        for q, (places, slots) in enumerate(found):
            expected = sorted((s, row) for row in rows.tolist() for peer, s in entries[row] if peer == q)
            assert list(zip(slots.tolist(), rows[places].tolist())) == expected and slots.dtype == np.int32
            assert borders.rows[borders.asked(q, slots)].tolist() == [row for _, row in expected]
        assert borders.cut_degree(rows).tolist() == [len(entries[row]) for row in rows.tolist()]
        numbers = borders.numbers(rows)
        assert [borders.rows[k] if k >= 0 else None for k in numbers] == [row if entries[row] else None for row in rows.tolist()]


def test_borders_take_no_memory_by_rank_and_row():
    n_rows, n_ranks = 10_000, 64
    borders = Borders([np.arange(q, n_rows, n_ranks) for q in range(n_ranks)])
    arrays = [array for value in vars(borders).values() for array in (value if isinstance(value, list) else [value])]
    assert sum(array.nbytes for array in arrays if isinstance(array, np.ndarray)) <= 40 * n_rows


@pytest.mark.parametrize("rows", [[3, 2], [1, 1], [-1, 4]])
def test_borders_refuse_rows_that_do_not_ascend(rows):
    with pytest.raises(DataError, match="rank 1 asks for are negative or do not ascend"):
        Borders([np.arange(0), np.array(rows)])


def test_weights():
    borders, degrees = Borders([np.arange(0), np.array([1, 3]), np.array([3])]), np.array([5, 0, 2, 7])
    rows = np.array([3, 1])
    assert borders.weights("degree", rows, degrees).tolist() == [8, 1]
    assert borders.weights("cut-degree", rows, degrees).tolist() == [2, 1]
    assert borders.weights("uniform", rows, degrees).tolist() == [1, 1]
    with pytest.raises(ConfigError, match="push_by 'cut' is not one of degree, cut-degree, uniform"):
        borders.weights("cut", rows, degrees)


def chosen_slots(n, limit, weights, number, ids=None, order=None):
    ids, order = np.arange(n) if ids is None else ids, np.arange(n) if order is None else order
    found = key(7, "push", "1", number, 2)
    places, slots = choose(order, order.astype(np.int32), limit, np.asarray(weights, float)[order], found, ids[order])
    assert (places == slots).all() and (np.diff(slots) > 0).all()
    return slots.tolist()


@pytest.mark.parametrize("limit", [None, 0, 1, 30, 59, 60, 61])
def test_choose_takes_as_many_as_may_travel(limit):
    weights = np.random.default_rng(0).uniform(0.1, 9, 60)
    for number in range(20):
        assert len(chosen_slots(60, limit, weights, number)) == (60 if limit is None else min(limit, 60))


def test_choose_depends_on_the_entries_and_not_on_their_order():
    rng = np.random.default_rng(1)
    weights, ids = rng.uniform(0.1, 9, 80), rng.permutation(1000)[:80]
    for number in range(20):
        right = chosen_slots(80, 25, weights, number, ids)
        assert chosen_slots(80, 25, weights, number, ids, rng.permutation(80)) == right
        assert right != chosen_slots(80, 25, weights, number + 100, ids)
        fewer = np.setdiff1d(np.arange(80), rng.choice(np.setdiff1d(np.arange(80), right), 30, replace=False))
        assert chosen_slots(80, 25, weights, number, ids, fewer) == right  # other entries, that are not taken, change nothing


def test_choose_takes_the_lowest_ids_of_like_scores(monkeypatch):
    from sarlite.minibatch import borders

    monkeypatch.setattr(borders, "_scores", lambda weights, key, ids: np.where(ids == 4, 0.5, 1.0))
    assert chosen_slots(9, 3, np.ones(9), 0, ids=np.array([8, 3, 7, 4, 1, 0, 2, 5, 6])) == [3, 4, 5]


def exact_sets(weights, limit):
    """The probability of each set that draws one after the other, in proportion to the weights left, may take."""
    found = {}
    for draws in permutations(range(len(weights)), limit):
        left, p = sum(weights), 1.0
        for k in draws:
            p, left = p * weights[k] / left, left - weights[k]
        found[tuple(sorted(draws))] = found.get(tuple(sorted(draws)), 0.0) + p
    return found


@pytest.mark.parametrize("weights, limit", [([1, 2, 3, 10, 4], 2), ([1, 1, 1, 1, 1, 1], 3), ([5, 1, 1, 40], 3), ([1, 2, 4], 1)])
def test_choose_has_the_right_probabilities(weights, limit):
    exact, seen = exact_sets(weights, limit), {}
    for number in range(N_KEYS):
        found = tuple(chosen_slots(len(weights), limit, weights, number))
        seen[found] = seen.get(found, 0) + 1
    assert seen.keys() <= exact.keys()
    chi_square = sum((seen.get(k, 0) - N_KEYS * p) ** 2 / (N_KEYS * p) for k, p in exact.items())
    freedom = len(exact) - 1
    assert chi_square < freedom + 6 * np.sqrt(2 * freedom) + 10


def test_choose_prefers_no_ids():
    """Neighbouring and far ids in tenths, over many keys."""
    n, limit, counts = 1000, 100, np.zeros(10)
    ids = np.concatenate([np.arange(500), 2**40 + 7 * np.arange(500)])
    for number in range(400):
        counts += np.bincount(np.array(chosen_slots(n, limit, np.ones(n), number, ids)) // 100, minlength=10)
    expected = 400 * limit / 10
    assert ((counts - expected) ** 2 / expected).sum() < 9 + 6 * np.sqrt(18)


@pytest.mark.parametrize("n_ranks", [1, 2, 3, 4])
@pytest.mark.parametrize("name", CHECKS)
def test_pusher(name, n_ranks):
    threads.run(n_ranks, CHECKS[name])
    assert not push_threads()


@pytest.mark.parametrize("name", CHECKS)
def test_pusher_alone(name):
    CHECKS[name](Solo())


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
            found = pusher.take(0, 0)
            assert buffers.n_bytes == 0
        pusher.close()
        assert all((rows == 1).all() for _, _, rows in found)

    threads.run(2, work)


class Slow:
    """Two ranks' communicator whose transfers are done at the third look, and never wait before."""

    rank, size = 0, 2

    def __init__(self):
        self.started, self.under_way = [], []

    def start_recv(self, array, peer, kind="recv"):
        assert peer == 1 and kind not in self.under_way and 0 < len(array) <= beside.PIECE_BYTES
        self.started.append((kind, len(array)))
        self.under_way.append(kind)
        looks = iter([False, False, True])
        return SimpleNamespace(test=lambda: next(looks), wait=lambda: self.under_way.remove(kind) if next(looks, None) is None else None)

    def start_send(self, array, peer):
        return self.start_recv(array, peer, "send")


def test_one_piece_at_a_time_and_a_pause_where_nothing_has_come(monkeypatch):
    comm, pauses, hurry = Slow(), [], iter([False, False, True])
    monkeypatch.setattr(beside, "PIECE_BYTES", 10)
    monkeypatch.setattr(beside, "time", SimpleNamespace(sleep=pauses.append))
    arrays = [np.zeros(n, np.uint8) for n in (99, 25, 99, 10)]
    beside.exchange(comm, arrays[:2], arrays[2:], lambda: next(hurry, True))
    assert comm.started == [("recv", 10), ("send", 10), ("send", 10), ("send", 5)] and not comm.under_way
    assert pauses == [beside.PAUSE, beside.PAUSE, 0, 0]  # but none after a look at which a piece had come
    comm = Slow()
    beside.exchange(comm, [arrays[0], arrays[0][:0]], [arrays[0], arrays[0][:0]], lambda: True)
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
    with pytest.warns(RuntimeWarning, match="without MPI_THREAD_MULTIPLE: rows are pushed without overlap") as told:
        threads.run(2, unthreaded)
    assert len(told.list) == 1  # of rank 0


def unthreaded(comm):
    pusher = Pusher(Plain(comm.channel("embeddings")), Profile())
    pusher.submit(0, 0, messages(comm, 0, 0))
    assert pusher._thread is None and pusher._jobs.results[0, 0] is not None  # it is here when `submit` returns
    assert len(pusher.take(0, 0)) == comm.size
    pusher.close()


EARLIER: list[threading.Thread] = []  # threads that other tests have left


@pytest.fixture(autouse=True)
def earlier():
    EARLIER[:] = threading.enumerate()


def push_threads():
    return [thread for thread in threading.enumerate() if thread.name == "sarlite-push-rows" and thread not in EARLIER]


def test_the_thread_ends_with_close_and_with_the_object():
    def work(comm):
        pusher = Pusher(comm.channel("embeddings"), Profile())
        mine = pusher._thread
        assert mine.is_alive() and mine.name == "sarlite-push-rows" and mine.daemon
        pusher.submit(0, 0, messages(comm, 0, 0))
        pusher.close()
        pusher.close()
        assert not mine.is_alive() and len(pusher.take(0, 0)) == comm.size
        with pytest.raises(SarliteError, match="the push thread is closed"):
            pusher.submit(1, 0, messages(comm, 1, 0))
        other = Pusher(comm.channel("embeddings"), Profile())
        mine = other._thread
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
        assert not pusher._thread.is_alive()

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
        self._left -= len(array) == 8 * push.N_WORDS
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
            with pytest.raises(Fault, match="the cause") as found:
                action()
            causes.append(found.value)
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


def test_newest_against_a_dict():
    rng = np.random.default_rng(5)
    asked = random_asked(6, 3, 40)
    borders = Borders(asked)
    newest, kept = Newest(borders), {}
    for step in range(60):
        rows = rng.permutation(45)[: rng.integers(0, 8)]
        values = rng.standard_normal((len(rows), 2, 3)).astype(np.float32)
        newest.update(rows, step, values)
        values_then = values.copy()
        values[:] = np.nan
        kept |= {row: (step, value) for row, value in zip(rows.tolist(), values_then)}
        life, slots = int(rng.integers(0, 12)), [np.sort(rng.permutation(len(theirs))[:9]).astype(np.int32) for theirs in asked]
        for q, (found, made, values) in enumerate(newest.answers(slots, step, life)):
            expected = [(s, *kept[asked[q][s]]) for s in slots[q].tolist() if step - kept.get(asked[q][s], (-99,))[0] <= life]
            assert found.tolist() == [s for s, _, _ in expected] and found.dtype == np.int32
            assert made.tolist() == [m for _, m, _ in expected] and made.dtype == np.int64
            np.testing.assert_array_equal(values, np.array([v for _, _, v in expected], np.float32).reshape(-1, 2, 3))
    assert newest.nbytes == len(borders.rows) * (8 + 24)
    other = Newest(borders)
    other.load(newest.state())
    for (a, b, c), (d, e, f) in zip(newest.answers(slots, 60, 99), other.answers(slots, 60, 99)):
        assert a.tolist() == d.tolist() and b.tolist() == e.tolist() and c.tobytes() == f.tobytes()


def test_newest_answers_a_peer_once_with_a_row():
    """Again once it was made anew, to each peer by itself, and after a load."""
    newest = Newest(Borders([np.array([3, 5]), np.array([5]), np.arange(0)]), once=True)
    slots, value = [np.array([0, 1]), np.array([0]), np.arange(0)], np.ones((1, 2))

    def answered(now, slots=slots):
        return [found.tolist() for found, _, _ in newest.answers(slots, now, 2)]

    newest.update(np.array([5]), 0, value)
    assert answered(0, [slots[0], slots[2], slots[2]]) == [[1], [], []] and answered(1) == [[], [0], []] and answered(1) == [[], [], []]
    newest.update(np.array([3]), 1, value)
    assert answered(1) == [[0], [], []]
    newest.update(np.array([5]), 2, value)
    assert answered(2) == [[1], [0], []]
    newest.load(newest.state())
    assert answered(2) == [[0, 1], [0], []] and newest.nbytes == 2 * (8 + 16) + 3 * 8


def test_newest_without_rows():
    borders = Borders([np.arange(0), np.arange(4)])
    newest = Newest(borders)
    with pytest.raises(SarliteError, match="before any was made"):
        newest.answers([np.arange(0), np.arange(2)], 0, 5)
    Newest(borders).load(newest.state())
    newest.update(np.arange(0), 0, np.empty((0, 7)))
    (_, _, none), (slots, made, rows) = newest.answers([np.arange(0), np.arange(2)], 10**6, 10**9)  # a life-span longer than the run
    assert len(slots) == len(made) == 0 and rows.shape == none.shape == (0, 7)
    for values in (np.empty((0, 6)), np.empty((1, 7)), np.empty((0, 7), np.float32)):
        with pytest.raises(ShapeError, match="are not 0 rows of float64"):
            newest.update(np.arange(0), 1, values)
    with pytest.raises(ShapeError, match="newest rows of 2 border rows do not fit the 4"):
        newest.load({"made": np.zeros(2, int), "rows": np.zeros((2, 7))})
    with pytest.raises(ShapeError, match="do not fit"):
        newest.load({"made": np.zeros(4, int), "rows": np.zeros((2, 7))})
