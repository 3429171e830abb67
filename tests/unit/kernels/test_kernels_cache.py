"""Lines of a cache: many rows on every number of threads against plain Python, and refused arguments."""

from collections import OrderedDict

import numpy as np
import pytest

from sarlite import kernels
from sarlite.errors import ShapeError
from tests.helpers.kernels.kernel_references import every_float, normal

pytestmark = pytest.mark.timeout(60)


@pytest.fixture(autouse=True)
def put_back():
    before = kernels.threads()
    yield
    kernels.set_threads(before)


def rows_of(lines, out):
    """Return (numbers, steps, rows) of the lines, oldest first."""
    order = lines.order()
    return lines.lines["halo"][order], lines.lines["made"][order], out[order]


@every_float
@pytest.mark.parametrize("shape", [(), (3,), (2, 8), (129,)])
@pytest.mark.parametrize("n_lines", [3000, 5])
def test_many_rows_are_stored_and_looked_up_as_in_a_dict(dtype, shape, n_lines):
    """There are more rows than lines, and some numbers come twice.

    Each store is newer than the previous one, so the oldest row is the first in a dict.
    """
    rng, n_halo, n = np.random.default_rng(0), 5000, 6000
    stores = [(rng.integers(0, n_halo, n).astype(np.int32), normal(rng, dtype, n, *shape)) for _ in range(3)]
    wanted = rng.integers(0, n_halo, 9000).astype(np.int32)
    expected = OrderedDict()
    for step_stored, (halo, rows) in enumerate(stores):
        for number, row in zip(halo.tolist(), rows, strict=True):
            if expected.pop(number, None) is None and len(expected) == n_lines:
                expected.popitem(last=False)
            expected[number] = step_stored, row
    for threads in (1, 2, 4):
        kernels.set_threads(threads)
        lines, out = kernels.Lines(n_lines, n_halo), np.empty((n_lines, *shape), dtype)
        for step_stored, (halo, rows) in enumerate(stores):
            lines.store(halo, np.full(n, step_stored), rows, out)
        halo, step_stored, rows = rows_of(lines, out)
        assert halo.tolist() == list(expected) and step_stored.tolist() == [step for step, _ in expected.values()]
        assert np.array_equal(rows, np.stack([row for _, row in expected.values()]))
        for now, life in ((2, None), (4, 2), (9, 6)):
            slots = lines.lookup(wanted, now, life)
            hit = [number in expected and (life is None or now - expected[number][0] <= life) for number in wanted.tolist()]
            assert ((slots >= 0) == hit).all()
            assert np.array_equal(lines.lines["halo"][slots[hit]], wanted[hit])


@pytest.mark.parametrize("steps", [1, 2, 7, 1000])
def test_rows_of_any_age_in_any_order(steps):
    """The ring is in order after each store, and the oldest rows are the ones that were dropped."""
    rng, n_lines, n_halo, expected, count = np.random.default_rng(steps), 60, 100, {}, 0
    lines, out = kernels.Lines(n_lines, n_halo), np.empty(n_lines)
    for _ in range(60):
        halo, steps_stored = rng.integers(0, n_halo, 25).astype(np.int32), rng.integers(0, steps, 25)
        lines.store(halo, steps_stored, np.arange(count, count + 25.0), out)
        for number, step in zip(halo.tolist(), steps_stored.tolist(), strict=True):
            if number not in expected and len(expected) == n_lines:
                del expected[min(expected, key=expected.get)]
            expected[number] = step, count
            count += 1
        order = sorted(expected, key=expected.get)
        stored = rows_of(lines, out)
        assert [a.tolist() for a in stored] == [order, *map(list, zip(*map(expected.get, order), strict=True))]
        places = np.full(n_halo, -1)
        places[stored[0]] = lines.order()
        assert np.array_equal(places, lines.place)


def test_an_empty_cache():
    for n_lines, n_halo in ((0, 0), (0, 5), (5, 0), (1, 1)):
        lines = kernels.Lines(n_lines, n_halo)
        assert (lines.lookup(np.arange(n_halo, dtype=np.int32), 0) == -1).all() and lines.order().shape == (0,)
        lines.store(np.zeros(0, np.int32), np.zeros(0, np.int64), np.zeros((0, 3)), np.zeros((n_lines, 3)))
        assert lines.order().shape == (0,) and lines.nbytes == 24 * (n_lines + 1) + 4 * n_halo


def wrong_arguments():
    i32, halo, row_steps, rows, out = np.int32, np.array([1, 4], np.int32), np.array([6, 7]), np.ones((2, 3)), np.zeros((4, 3))
    read_only, twice = np.zeros((4, 3)), np.ones((6, 3))
    read_only.flags.writeable = False

    def store(*args, n_lines=4):
        return lambda: kernels.Lines(n_lines, 5).store(*args)

    def lookup(*args):
        return lambda: kernels.Lines(4, 5).lookup(*args)

    yield "n_lines must", lambda: kernels.Lines(2**31, 5)
    yield "n_lines must", lambda: kernels.Lines(-1, 5)
    yield "n_halo must", lambda: kernels.Lines(5, 2**31)
    yield "halo must", store([1, 4], row_steps, rows, out)
    yield "halo must", store(halo.astype(np.int64), row_steps, rows, out)
    yield "halo must", store(halo[None], row_steps, rows, out)
    yield r"halo must lie in 0 \.\. 5; got 1 \.\. 5", store(np.array([1, 5], i32), row_steps, rows, out)
    yield r"halo must lie in 0 \.\. 5; got -1 \.\. 4", store(np.array([4, -1], i32), row_steps, rows, out)
    yield "halo must be empty", store(halo, row_steps, rows, out[:0], n_lines=0)
    yield "made must", store(halo, 6, rows, out)
    yield "made must", store(halo, row_steps.astype(i32), rows, out)
    yield "made must", store(halo, row_steps[:1], rows, out)
    yield "made must be at least 0, got -6", store(halo, -row_steps[:1].repeat(2), rows, out)
    yield "rows must", store(halo, row_steps, rows[:1], out)
    yield "rows must", store(halo, row_steps, rows.astype(np.float16), out.astype(np.float16))
    yield "rows must", store(halo, row_steps, rows[:, ::2], out[:, ::2])
    yield "rows must", store(halo, row_steps, twice[:2], twice[1:5])
    yield "out must", store(halo, row_steps, rows, out.astype(np.float32))
    yield "out must", store(halo, row_steps, rows, out[:3])
    yield "out must", store(halo, row_steps, rows, np.zeros((4, 4)))
    yield "out must", store(halo, row_steps, rows, read_only)
    yield "halo must", lookup(halo.astype(np.int64), 3)
    yield "halo must", lookup(np.array([5], i32), 3)
    yield "halo must", lookup(np.array([-1], i32), 3)
    yield "now must", lookup(halo, -1)
    yield "now must", lookup(halo, 2**63)


@pytest.mark.parametrize("message, call", list(wrong_arguments()))
def test_wrong_arguments_are_refused_by_name(message, call):
    with pytest.raises(ShapeError, match=f"^{message}"):
        call()
