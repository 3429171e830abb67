"""The historical embedding cache against a plain dict, with bugs planted in it, and over many steps."""

import copy
import itertools

import numpy as np
import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from sarlite import kernels
from sarlite.errors import CheckpointError, ConfigError, SarliteError, ShapeError
from sarlite.minibatch.hec.row_table import RowTable

pytestmark = pytest.mark.timeout(60)

SETTINGS = settings(derandomize=True, deadline=None, database=None, max_examples=100, stateful_step_count=30, phases=[Phase.generate],
                    report_multiple_bugs=False)
"""Not shrunk: that takes minutes, and 30 steps are read in one."""


class Plain:
    """Model of a cache: a dict from row number to (step that made the row, number of rows before, value)."""

    def __init__(self, n_lines, life):
        self.n_lines, self.life, self.rows, self.before = n_lines, life, {}, itertools.count()

    def store(self, halo, made_steps, values):
        for number, step, value in zip(halo, made_steps, values, strict=True):
            if number not in self.rows and len(self.rows) == self.n_lines:
                del self.rows[self.by_age()[0]]
            self.rows[number] = step, next(self.before), value

    def by_age(self):
        return sorted(self.rows, key=lambda number: self.rows[number][:2])

    def hit(self, number, now):
        return number in self.rows and (self.life is None or now - self.rows[number][0] <= self.life)


class CacheMachine(RuleBasedStateMachine):
    """Stores, lookups and reloads as they come; after each the cache is what the dict is."""

    make = RowTable

    @initialize(n_lines=st.integers(1, 5), n_halo=st.integers(0, 9), life=st.none() | st.integers(0, 4),
                dtype=st.sampled_from([np.float32, np.float64]), shape=st.sampled_from([(), (1,), (3,), (2, 5), (0,)]))
    def begin(self, n_lines, n_halo, life, dtype, shape):
        self.arguments, self.dtype, self.shape = (n_lines, n_halo, life), dtype, shape
        self.cache, self.plain = self.make(*self.arguments), Plain(min(n_lines, n_halo), life)
        self.now, self.n_halo, self.values = 0, n_halo, itertools.count(1)

    def rows(self, values):
        """Rows of which no element is like another's."""
        size = int(np.prod(self.shape))
        return (np.reshape(values, (-1, 1)) * 16.0 + np.arange(size)).reshape(len(values), *self.shape).astype(self.dtype)

    def numbers(self, data, most):
        return data.draw(st.lists(st.integers(0, self.n_halo - 1), max_size=most) if self.n_halo else st.just([]))

    @rule(steps=st.integers(1, 3))
    def time_passes(self, steps):
        self.now += steps

    @rule(data=st.data())
    def store(self, data):
        halo = self.numbers(data, 8)
        values = [next(self.values) for _ in halo]
        if data.draw(st.booleans()):
            arguments = data.draw(st.integers(max(0, self.now - 2), self.now))
            made_steps = [arguments] * len(halo)
        else:
            made_steps = data.draw(st.lists(st.integers(max(0, self.now - 6), self.now), min_size=len(halo), max_size=len(halo)))
            arguments = np.array(made_steps, np.int64)
        self.cache.put(np.array(halo, np.int32), arguments, self.rows(values))
        self.plain.store(halo, made_steps, values)

    @rule(data=st.data())
    def look_up(self, data):
        """Any numbers, some of them twice, and their rows."""
        halo = self.numbers(data, 12)
        lines = self.cache.find(np.array(halo, np.int32), self.now)
        hits = [self.plain.hit(number, self.now) for number in halo]
        assert (lines >= 0).tolist() == hits
        out = self.rows(np.zeros(sum(hits)))
        self.cache.take(lines[hits], out)
        assert np.array_equal(out, self.rows([self.plain.rows[number][2] for number, hit in zip(halo, hits, strict=True) if hit]))

    @precondition(lambda self: self.plain.rows)
    @rule(data=st.data(), used=st.booleans())
    def reload(self, data, used):
        """Into a new cache, or one that has had other rows."""
        state, self.cache = self.cache.state(), self.make(*self.arguments)
        if used:
            halo = self.numbers(data, 8)
            self.cache.put(np.array(halo, np.int32), self.now, np.zeros((len(halo), 7)))
        self.cache.load(state)

    @invariant()
    def holds_the_same(self):
        state, order = self.cache.state(), self.plain.by_age()
        made_steps, _, values = zip(*(self.plain.rows[number] for number in order), strict=True) if order else ((), (), ())
        assert state["halo"].tolist() == order and state["made"].tolist() == list(made_steps)
        assert not order or np.array_equal(state["rows"], self.rows(values))
        assert [a.dtype for a in state.values()] == [np.int32, np.int64, self.dtype if order else np.float32]

    @invariant()
    def hits_are_those_of_the_dict(self):
        lines = self.cache.find(np.arange(self.n_halo, dtype=np.int32), self.now)
        assert (lines >= 0).tolist() == [self.plain.hit(number, self.now) for number in range(self.n_halo)]

    @invariant()
    def takes_no_more_memory_than_it_says(self):
        n_lines, n_halo, _ = self.arguments
        row = self.rows([0]).nbytes if self.plain.rows else 0
        assert self.cache.nbytes == min(n_lines, n_halo) * (24 + row) + 24 + 4 * n_halo


def test_cache_against_a_dict():
    run_state_machine_as_test(CacheMachine, settings=SETTINGS)


# ---- that the machine finds what is wrong


class WrongTag(RowTable):
    """Fault: a forgotten row clears the entry of its position in the batch, not of its number."""

    def put(self, halo, made_steps, rows):
        place, before = self._lines.place, self._lines.place.copy()
        super().put(halo, made_steps, rows)
        forgotten = np.flatnonzero((before >= 0) & (place < 0))
        place[forgotten] = before[forgotten]
        place[: len(forgotten)] = -1


class FromReceipt(RowTable):
    """The age counts from when a row came."""

    now = 0

    def put(self, halo, made_steps, rows):
        self.now = max(self.now, int(np.max(made_steps, initial=0)))
        super().put(halo, self.now, rows)

    def find(self, halo, now):
        self.now = now
        return super().find(halo, now)


class FirstWins(RowTable):
    """Fault: of several rows with one number in one call, the first one stays."""

    def put(self, halo, made_steps, rows):
        first = np.sort(np.unique(halo, return_index=True)[1])
        super().put(halo[first], made_steps[first] if np.ndim(made_steps) else made_steps, rows[first])


class LongerLife(RowTable):
    def find(self, halo, now):
        return self._lines.lookup(halo, now, None if self.life is None else self.life + 1)


class ShorterLife(RowTable):
    def find(self, halo, now):
        return self._lines.lookup(halo, now, None if self.life is None else self.life - 1)


class AsStored(RowTable):
    """The oldest is the one that came first, not the one that was made first."""

    def put(self, halo, made_steps, rows):
        made_steps = np.broadcast_to(made_steps, len(halo)).astype(np.int64)
        super().put(halo, np.maximum(made_steps, self._lines.lines["made"][:-1].max(initial=0)), rows)
        self._lines.lines["made"][self._lines.place[halo]] = made_steps


class NewerStays(RowTable):
    """A row that is older than the one that is there is not taken."""

    def put(self, halo, made_steps, rows):
        made_steps = np.broadcast_to(made_steps, len(halo)).astype(np.int64)
        line = self._lines.place[halo]
        new = (line < 0) | (self._lines.lines["made"][line] <= made_steps)
        super().put(halo[new], made_steps[new], rows[new])


@pytest.mark.parametrize("planted", [WrongTag, FromReceipt, FirstWins, LongerLife, ShorterLife, AsStored, NewerStays])
def test_the_machine_finds_planted_bugs(planted):
    machine = type("Planted", (CacheMachine,), {"make": planted})
    with pytest.raises(AssertionError):
        run_state_machine_as_test(machine, settings=SETTINGS)


# ---- many steps


def test_no_row_is_older_than_its_life():
    """Every row is filled with the step that made the row, so the value of a looked-up row is its step."""
    rng, n_halo = np.random.default_rng(3), 200
    life, oldest, n_found, n_asked = 3, 0, 0, 0
    cache = RowTable(150, n_halo, life)
    out = np.empty((60, 2), np.float32)
    for now in range(10_000):
        halo = rng.integers(0, n_halo, rng.integers(0, 40)).astype(np.int32)
        made_steps = np.maximum(now - rng.integers(0, 9, len(halo)), 0)
        cache.put(halo, made_steps, np.repeat(made_steps, 2).reshape(-1, 2).astype(np.float32))
        lines = cache.find(rng.integers(0, n_halo, len(out)).astype(np.int32), now)
        result = lines[lines >= 0]
        cache.take(result, out[: len(result)])
        age = now - out[: len(result)]
        assert (age >= 0).all() and (age <= life).all()
        oldest, n_found, n_asked = max(oldest, age.max(initial=0)), n_found + len(result), n_asked + len(lines)
    assert oldest == life and 0.05 < n_found / n_asked < 0.5


# ---- what else it promises


def some(*numbers):
    return np.array(numbers, np.int32)


def test_rows_stand_outside_of_a_steps_buffers():
    buffers = kernels.Buffers()
    with buffers:
        cache = RowTable(100_000, 100_000, 2)
        cache.put(some(1, 2), 0, np.ones((2, 100), np.float32))
        cache.load(cache.state())
    assert buffers.n_fresh == 0 or buffers.n_bytes < cache.nbytes / 8
    assert cache.nbytes == 100_000 * (24 + 400 + 4) + 24


def test_values_are_copied_by_their_bits():
    bits = np.random.default_rng(0).integers(-(2**63), 2**63, (50, 9))  # NaN of all kinds among them
    bits[0], bits[1] = 0x7FF0000000000001, -(2**63)
    cache, out = RowTable(50, 50), np.empty((50, 9))
    cache.put(np.arange(50, dtype=np.int32), 0, bits.view(np.float64))
    cache.take(cache.find(np.arange(50, dtype=np.int32), 7), out)
    assert np.array_equal(out.view(np.int64), bits)


def test_a_part_without_halo():
    cache = RowTable(5, 0, 1)
    cache.put(some(), 3, np.zeros((0, 4)))
    assert cache.find(some(), 3).shape == (0,) and cache.nbytes == 24
    cache.take(some(), np.zeros((0, 4)))
    cache.load(cache.state())
    with pytest.raises(ShapeError, match="halo must lie in 0 .. 0"):
        cache.put(some(0), 3, np.zeros((1, 4)))


def test_a_cache_is_empty_at_first():
    cache = RowTable(5, 9)
    assert (cache.find(np.arange(9, dtype=np.int32), 0) == -1).all()
    with pytest.raises(ShapeError, match="index"):
        cache.take(some(0), np.zeros((1, 4)))


def filled():
    cache = RowTable(3, 9, 2)
    cache.put(some(4, 7, 1), np.array([5, 3, 4]), np.arange(6.0).reshape(3, 2))
    return cache


@pytest.mark.parametrize("name, call", [
    ("halo", lambda c: c.put(np.array([1, 2]), 6, np.zeros((2, 2)))),
    ("halo", lambda c: c.put(some(1, 9), 6, np.zeros((2, 2)))),
    ("halo", lambda c: c.put(some(-1, 2), 6, np.zeros((2, 2)))),
    ("made", lambda c: c.put(some(1, 2), -1, np.zeros((2, 2)))),
    ("made", lambda c: c.put(some(1, 2), np.array([6]), np.zeros((2, 2)))),
    ("made", lambda c: c.put(some(1, 2), some(6, 6), np.zeros((2, 2)))),
    ("rows", lambda c: c.put(some(1, 2), 6, np.zeros((3, 2)))),
    ("rows", lambda c: c.put(some(1, 2), 6, np.zeros((2, 2), int))),
    ("rows", lambda c: c.put(some(1, 2), 6, np.zeros((2, 4))[:, ::2])),
    ("out", lambda c: c.put(some(1, 2), 6, np.zeros((2, 3)))),
    ("out", lambda c: c.put(some(1, 2), 6, np.zeros((2, 2), np.float32))),
    ("halo", lambda c: c.find(some(9), 6)),
    ("halo", lambda c: c.find(np.zeros(1), 6)),
    ("now", lambda c: c.find(some(1), -1)),
    ("index", lambda c: c.take(some(-1), np.zeros((1, 2)))),
    ("index", lambda c: c.take(some(3), np.zeros((1, 2)))),
    ("out", lambda c: c.take(some(1), np.zeros((1, 3)))),
    ("made", lambda c: c.load({**c.state(), "made": np.zeros(3)})),
    ("rows", lambda c: c.load({**c.state(), "rows": np.zeros((3, 2), np.int64)})),
    ("cache: 'rows' is missing", lambda c: c.load({"halo": some(), "made": np.zeros(0, np.int64)})),
    ("cache: 4 rows, but 3 lines", lambda c: c.load({"halo": some(1, 2, 3, 4), "made": np.zeros(4, int), "rows": np.zeros((4, 2))})),
    ("cache: .* twice", lambda c: c.load({"halo": some(1, 2, 1), "made": np.zeros(3, int), "rows": np.zeros((3, 2))})),
    ("cache: .* order of age", lambda c: c.load({"halo": some(1, 2), "made": np.array([3, 2]), "rows": np.zeros((2, 2))})),
])
def test_what_is_refused_changes_nothing(name, call):
    cache, before = filled(), filled().state()
    with pytest.raises(SarliteError, match=f"^(sar_gather.*)?{name}") as raised:
        call(cache)
    assert isinstance(raised.value, CheckpointError if "cache" in name else ShapeError)
    after = cache.state()
    assert before.keys() == after.keys() and all(np.array_equal(before[key], after[key]) for key in before)
    cache.put(some(2), 9, np.ones((1, 2)))  # and it goes on as it would have
    assert cache.state()["halo"].tolist() == [1, 4, 2]


@pytest.mark.parametrize("arguments", [(0, 5), (-1, 5), (5, -1), (2.0, 5), (True, 5), (5, 5, -1), (5, 5, 1.5)])
def test_wrong_sizes_of_a_row_table_are_refused(arguments):
    with pytest.raises(ConfigError, match="but must be"):
        RowTable(*arguments)


def test_a_state_is_a_copy():
    cache = filled()
    state = cache.state()
    saved = copy.deepcopy(state)
    cache.put(some(4, 7, 1), 8, np.full((3, 2), -1.0))
    assert all(np.array_equal(state[key], saved[key]) for key in state)
