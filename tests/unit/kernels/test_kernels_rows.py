"""Gathering and adding rows, dropout, column moments: every value and index type, against NumPy."""


import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sarlite import kernels
from sarlite.errors import ShapeError
from tests.helpers.kernels.kernel_references import (
    close,
    every_float,
    every_type,
    keep_reference,
    normal,
    over_threads,
    philox4x32,
    philox_reference,
)


@every_type
@pytest.mark.parametrize("shape", [(), (1,), (7,), (33,), (2, 5), (257,)])
def test_gather_and_scatter(dtype, itype, shape):
    rng = np.random.default_rng(17)
    x, index = normal(rng, dtype, 300, *shape), rng.permutation(300)[:200].astype(itype)
    out = normal(rng, dtype, 200, *shape)
    kernels.gather_rows(x, index, out)
    np.testing.assert_array_equal(out, x[index])
    expected, target = x.copy(), x.copy()
    expected[index] += out
    kernels.scatter_add_rows(out, index, target)
    np.testing.assert_array_equal(target, expected)
    kernels.gather_rows(x, index[:0], out[:0])


@every_type
@pytest.mark.parametrize("bad", [-1, 10, 2**31 - 1])
def test_rows_check_their_index(dtype, itype, bad):
    x, index, out = np.zeros((10, 3), dtype), np.array([0, bad], itype), np.zeros((2, 3), dtype)
    with pytest.raises(ShapeError, match="index"):
        kernels.gather_rows(x, index, out)
    with pytest.raises(ShapeError, match="index"):
        kernels.scatter_add_rows(out, index, x)


# ---- dropout


@pytest.mark.parametrize(("counter", "key", "expected"), [
    ([0] * 4, [0] * 2, [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]),
    ([0xFFFFFFFF] * 4, [0xFFFFFFFF] * 2, [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]),
    ([0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344], [0xA4093822, 0x299F31D0], [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1]),
])
def test_philox_known_answers(counter, key, expected):
    """The answers are Random123's kat_vectors."""
    assert philox_reference(counter, key) == expected
    assert philox4x32(counter, key) == expected


@settings(deadline=None, max_examples=50)
@given(st.lists(st.integers(0, 2**32 - 1), min_size=6, max_size=6))
def test_philox_equals_the_reference(words):
    assert philox4x32(words[:4], words[4:]) == philox_reference(words[:4], words[4:])


@every_float
@pytest.mark.parametrize("width", [1, 3, 7, 17, 66])
def test_dropout_is_the_reference(dtype, width):
    rng = np.random.default_rng(19)
    x, ids = normal(rng, dtype, 6, width), np.array([0, 5, 2**33 + 1, 2**62, -1, 5])
    key, out = 2**64 - 3, normal(rng, dtype, 6, width)
    kernels.dropout(x, ids, key, 0.3, out)
    factor = np.array([[keep_reference(r, c, key, 0.3) for c in range(width)] for r in ids])
    close(out, x * factor)
    kernels.dropout(x, ids, key, 0.0, out)
    np.testing.assert_array_equal(out, x)


@every_float
def test_dropout_rate_and_replay(dtype):
    x, ids = np.ones((2000, 50), dtype), np.arange(2000)
    for p in (0.1, 0.5, 0.9):
        def run(rows=slice(None), key=7, p=p):
            out = np.empty_like(x[rows])
            kernels.dropout(x[rows], ids[rows], key, p, out)
            return out

        first, *others = over_threads(run)
        for other in [*others, np.concatenate([run(slice(0, 7)), run(slice(7, 1500)), run(slice(1500, 2000))])]:
            np.testing.assert_array_equal(first, other)
        sigma = np.sqrt(p * (1 - p) / x.size)
        assert abs((first == 0).mean() - p) < 5 * sigma
        assert (np.abs((first == 0).mean(0) - p) < 6 * sigma * np.sqrt(50)).all()
        assert ((run(key=8) == 0) != (first == 0)).mean() == pytest.approx(2 * p * (1 - p), abs=0.02)


# ---- column moments


@every_float
@pytest.mark.parametrize("n", [0, 1, 2, 1000, 5000])
@pytest.mark.parametrize("width", [1, 7, 33])
def test_column_moments_are_numpys(dtype, n, width):
    rng = np.random.default_rng(20)
    x = (1e4 + rng.standard_normal((n, width))).astype(dtype)            # E[x^2] - mean^2 would cancel

    def run():
        mean, m2 = rng.standard_normal(width), rng.standard_normal(width)
        kernels.column_moments(x, mean, m2)
        return mean, m2

    wide = x.astype(np.float64)
    expected = wide.mean(0) if n else np.zeros(width)
    for mean, m2 in over_threads(run):
        np.testing.assert_allclose(mean, expected, rtol=1e-14)
        np.testing.assert_allclose(m2, ((wide - expected) ** 2).sum(0), rtol=1e-9)


@every_float
@pytest.mark.parametrize("n", [1, 3, 63, 1000, 5003])
def test_moments_of_constant_columns_are_not_rounded(dtype, n):
    row = np.random.default_rng(21).standard_normal(33).astype(dtype)
    for mean, m2 in over_threads(lambda: _moments(np.tile(row, (n, 1)))):
        np.testing.assert_array_equal(mean, row)
        np.testing.assert_array_equal(m2, 0)


def _moments(x):
    mean, m2 = np.empty(x.shape[1]), np.empty(x.shape[1])
    kernels.column_moments(x, mean, m2)
    return mean, m2


@pytest.mark.parametrize("of, by", [(np.int32, np.int32), (np.int64, np.int64), (np.int64, np.int32), (np.int32, np.int64)])
def test_numbers_of_rows_of_rows(of, by):
    rng = np.random.default_rng(5)
    numbers, index = rng.integers(0, 1000, 90_000).astype(of)[::2], rng.integers(0, 45_000, 70_001).astype(by)
    before = index.copy()
    row_numbers = kernels.Rows(np.zeros((1000, 1), np.float32), numbers).numbers_at(index)
    assert row_numbers.dtype == by and np.array_equal(row_numbers, numbers[index]) and np.array_equal(index, before)
