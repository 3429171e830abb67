"""Lists of the rows that are peers' halo rows, and the choice of rows to send."""

from itertools import permutations

import numpy as np
import pytest

from sarlite.errors import ConfigError, DataError, ShapeError
from sarlite.keys import key
from sarlite.minibatch.hec.sending import DemandPush, SendLists, choose, smallest

pytestmark = pytest.mark.timeout(60)
N_KEYS = 10_000


def random_asked(seed, n_ranks, n_rows, rank=0):
    rng = np.random.default_rng(seed)
    return [np.flatnonzero(rng.random(n_rows) < (q != rank) * rng.choice([0.1, 0.4, 0.9])) for q in range(n_ranks)]


@pytest.mark.parametrize("n_ranks", [1, 2, 3, 4, 9])
@pytest.mark.parametrize("seed", range(4))
def test_lists_against_a_dict(n_ranks, seed):
    n_rows, rng = 60, np.random.default_rng(100 + seed)
    asked = random_asked(seed, n_ranks, n_rows, rank=seed % n_ranks)
    if n_ranks > 2:
        asked[(seed + 1) % n_ranks] = asked[0][:0]  # a peer that has none of these rows
    entries = {row: [(q, list(theirs).index(row)) for q, theirs in enumerate(asked) if row in theirs] for row in range(n_rows + 20)}
    lists = SendLists(asked)
    for n in (0, 1, 7, n_rows + 20):
        rows = rng.permutation(n_rows + 20)[:n].astype(rng.choice([np.int32, np.int64]))
        result = lists.of(rows)
        assert len(result) == n_ranks
        for q, (places, slots) in enumerate(result):
            expected = sorted((s, row) for row in rows.tolist() for peer, s in entries[row] if peer == q)
            assert list(zip(slots.tolist(), rows[places].tolist())) == expected and slots.dtype == np.int32
            assert lists.rows[lists.numbers_at(q, slots)].tolist() == [row for _, row in expected]
        assert lists.cut_degree(rows).tolist() == [len(entries[row]) for row in rows.tolist()]
        numbers = lists.numbers(rows)
        assert [lists.rows[k] if k >= 0 else None for k in numbers] == [row if entries[row] else None for row in rows.tolist()]


def test_lists_take_no_memory_by_rank_and_row():
    n_rows, n_ranks = 10_000, 64
    lists = SendLists([np.arange(q, n_rows, n_ranks) for q in range(n_ranks)])
    arrays = [array for value in vars(lists).values() for array in (value if isinstance(value, list) else [value])]
    assert sum(array.nbytes for array in arrays if isinstance(array, np.ndarray)) <= 40 * n_rows


@pytest.mark.parametrize("rows", [[3, 2], [1, 1], [-1, 4]])
def test_lists_refuse_rows_that_do_not_ascend(rows):
    with pytest.raises(DataError, match="rank 1 asks for .*negative or .*ascend"):
        SendLists([np.arange(0), np.array(rows)])


def test_weights_of_rows_follow_degree_cut_degree_or_are_equal():
    lists, degrees = SendLists([np.arange(0), np.array([1, 3]), np.array([3])]), np.array([5, 0, 2, 7])
    rows = np.array([3, 1])
    assert lists.weights("degree", rows, degrees).tolist() == [8, 1]
    assert lists.weights("cut-degree", rows, degrees).tolist() == [2, 1]
    assert lists.weights("uniform", rows, degrees).tolist() == [1, 1]
    with pytest.raises(ConfigError, match="push_by 'cut' .*degree, cut-degree, uniform"):
        lists.weights("cut", rows, degrees)


def chosen_slots(n, limit, weights, number, ids=None, order=None):
    ids, order = np.arange(n) if ids is None else ids, np.arange(n) if order is None else order
    result = key(7, "push", "1", number, 2)
    places, slots = choose(order, order.astype(np.int32), limit, np.asarray(weights, float)[order], result, ids[order])
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


def test_choose_takes_the_lowest_ids_of_like_scores():
    ids = np.array([8, 3, 7, 4, 1, 0, 2, 5, 6])
    assert sorted(smallest(np.where(ids == 4, 0.5, 1.0), 3, ids)) == [3, 4, 5]


def exact_sets(weights, limit):
    """Return the probability of each set of rows that are drawn one after another, in proportion to their weights."""
    collected = {}
    for draws in permutations(range(len(weights)), limit):
        left, p = sum(weights), 1.0
        for k in draws:
            p, left = p * weights[k] / left, left - weights[k]
        collected[tuple(sorted(draws))] = collected.get(tuple(sorted(draws)), 0.0) + p
    return collected


@pytest.mark.parametrize("weights, limit", [([1, 2, 3, 10, 4], 2), ([1, 1, 1, 1, 1, 1], 3), ([5, 1, 1, 40], 3), ([1, 2, 4], 1)])
def test_choose_has_the_right_probabilities(weights, limit):
    exact, seen = exact_sets(weights, limit), {}
    for number in range(N_KEYS):
        result = tuple(chosen_slots(len(weights), limit, weights, number))
        seen[result] = seen.get(result, 0) + 1
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


def test_on_demand_against_a_dict():
    rng = np.random.default_rng(5)
    asked = random_asked(6, 3, 40)
    life, lists = 4, SendLists(asked)
    sender, saved = DemandPush(lists, life), {}
    for step in range(60):
        rows = rng.permutation(45)[: rng.integers(0, 8)]
        h = rng.standard_normal((len(rows), 2, 3)).astype(np.float32)
        saved |= {row: (step, value) for row, value in zip(rows.tolist(), h.copy())}
        slots = [np.sort(rng.permutation(len(theirs))[:9]).astype(np.int32) for theirs in asked]
        answers = sender.messages(step, rows, h, slots)
        h[:] = np.nan
        for q, (result, built, values) in enumerate(answers):
            expected = [(s, *saved[asked[q][s]]) for s in slots[q].tolist() if step - saved.get(asked[q][s], (-99,))[0] <= life]
            assert result.tolist() == [s for s, _, _ in expected] and result.dtype == np.int32
            assert built.tolist() == [m for _, m, _ in expected] and built.dtype == np.int64
            np.testing.assert_array_equal(values, np.array([v for _, _, v in expected], np.float32).reshape(-1, 2, 3))
    assert sender.table.nbytes == len(lists.rows) * (24 + 24 + 4) + 24
    check_state_of(sender, lists, slots, life)


def check_state_of(sender, lists, slots, life):
    """Check that a sender with a restored state answers alike, and so does one with the state of an older checkpoint."""
    none, state = np.empty((0, 2, 3), np.float32), sender.table.state()
    made_steps, order = np.full(len(lists.rows), -1), np.argsort(state["halo"])
    made_steps[state["halo"]] = state["made"]
    others = [DemandPush(lists, life) for _ in range(2)]
    others[0].load(state)
    others[1].load({"made": made_steps, "rows": state["rows"][order]})
    expected = sender.messages(60, np.arange(0), none, slots)
    assert any(len(actual) for actual, _, _ in expected) and (made_steps < 0).sum() + len(order) == len(made_steps)
    for other in others:
        for (a, b, c), (d, e, f) in zip(expected, other.messages(60, np.arange(0), none, slots), strict=True):
            assert a.tolist() == d.tolist() and b.tolist() == e.tolist() and c.tobytes() == f.tobytes()


def test_on_demand_answers_a_peer_once_with_a_row():
    """Again once it was made anew, to each peer by itself, and after a load."""
    sender = DemandPush(SendLists([np.array([3, 5]), np.array([5]), np.arange(0)]), 2, once=True)
    slots = [np.array([0, 1]), np.array([0]), np.arange(0)]

    def answered(now, slots=slots, made_steps=()):
        return [result.tolist() for result, _, _ in sender.messages(now, np.array(made_steps, int), np.ones((len(made_steps), 2)), slots)]

    assert answered(0, [slots[0], slots[2], slots[2]], [5]) == [[1], [], []]
    assert answered(1) == [[], [0], []] and answered(1) == [[], [], []]
    assert answered(1, made_steps=[3]) == [[0], [], []]
    assert answered(2, made_steps=[5]) == [[1], [0], []]
    sender.load(sender.table.state())
    assert answered(2) == [[0, 1], [0], []]


def test_on_demand_without_rows():
    lists = SendLists([np.arange(0), np.arange(4)])
    sender, slots = DemandPush(lists), [np.arange(0), np.arange(2)]
    DemandPush(lists).load(sender.table.state())
    (_, _, none), (result, made_steps, rows) = sender.messages(10**6, np.arange(0), np.empty((0, 7)), slots)
    assert len(result) == len(made_steps) == 0 and rows.shape == none.shape == (0, 7)
    sender.messages(1, np.arange(4), np.ones((4, 7)), slots)
    for values in (np.empty((4, 6)), np.empty((3, 7)), np.empty((4, 7), np.float32)):
        with pytest.raises(ShapeError):
            sender.messages(2, np.arange(4), values, slots)
    with pytest.raises(ShapeError, match="newest rows of 2 .*fit the 4"):
        sender.load({"made": np.zeros(2, int), "rows": np.zeros((2, 7))})
    with pytest.raises(ShapeError, match="do not fit"):
        sender.load({"made": np.zeros(4, int), "rows": np.zeros((2, 7))})
    with pytest.raises(ShapeError, match="halo must lie in 0 .. 4"):
        sender.load({"halo": np.array([5], np.int32), "made": np.zeros(1, int), "rows": np.zeros((1, 7))})


def test_rows_that_never_change_are_there_from_the_start():
    features = np.arange(12.0).reshape(6, 2)
    sender = DemandPush(SendLists([np.arange(0), np.array([1, 4])]), features=features)
    (_, (result, made_steps, rows)) = sender.messages(99, np.array([1]), np.full((1, 2), -1.0), [np.arange(0), np.array([0, 1])])
    assert result.tolist() == [0, 1] and made_steps.tolist() == [0, 0] and rows.tolist() == features[[1, 4]].tolist()
