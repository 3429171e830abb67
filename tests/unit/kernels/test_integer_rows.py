"""Rows of 8-bit integers: rounded to multiples of a power of two that each row has, and read back without error."""

import doctest

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from sarlite import kernels
from sarlite.errors import ShapeError
from sarlite.kernels import integer_rows

FLOATS = st.floats(-(2.0**127), 2.0**127, width=32)


def reference(x):
    """Round rows in float64 with the smallest power of two that is at least 2^-126."""
    x = x.astype(np.float64)
    largest = np.abs(x).max(-1, keepdims=True, initial=0)
    exponent = np.full(largest.shape, -126)
    while (too_small := largest > 127 * np.exp2(exponent.astype(float))).any():
        exponent[too_small] += 1
    unit = np.exp2(exponent.astype(float))
    return np.rint(x / unit) * unit


@given(x=arrays.arrays(np.float32, arrays.array_shapes(min_dims=2, max_dims=3, min_side=0, max_side=9), elements=FLOATS))
@settings(max_examples=60, deadline=None)
def test_rows_are_rounded_to_multiples_of_a_power_of_two(x):
    q = kernels.quantize(x)
    assert q.shape == (*x.shape[:-1], 1 + x.shape[-1])
    rounded = kernels.dequantize(q, x.shape[1:])
    np.testing.assert_array_equal(rounded, reference(x).astype(np.float32))
    np.testing.assert_array_equal(kernels.round_rows(x), rounded)
    np.testing.assert_array_equal(kernels.round_rows(rounded), rounded, "a second rounding changes nothing")


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_row_that_is_not_finite_becomes_nan_and_no_other_row(value):
    x = np.ones((3, 5), np.float32)
    x[1, 2] = value
    rounded = kernels.round_rows(x)
    assert np.isnan(rounded[1]).all() and (rounded[[0, 2]] == 1).all()


def test_the_largest_rows_are_the_same_after_a_second_rounding():
    """A row that a rank computes with is rounded once, and a row that it sends twice."""
    largest = np.finfo(np.float32).max
    x = np.float32([[largest, 1], [largest * 0.99, -largest], [127 * 2.0**121, 0], [-126.6 * 2.0**121, 2.0**120]])
    rounded = kernels.round_rows(x)
    np.testing.assert_array_equal(kernels.round_rows(rounded), rounded)
    assert np.isnan(rounded[:2]).all() and rounded[2:].tolist() == [[127 * 2.0**121, 0], [-127 * 2.0**121, 0]]


def test_each_head_has_an_exponent_of_its_own():
    x = np.float32([[[1000, 1], [1, 0.5]]])
    assert kernels.quantize(x).shape == (1, 2, 3)
    np.testing.assert_array_equal(kernels.round_rows(x)[0, 1], x[0, 1])


def test_many_rows_are_rounded_in_pieces_and_over_themselves(monkeypatch):
    x = np.random.default_rng(0).standard_normal((100, 7)).astype(np.float32)
    whole = kernels.round_rows(x)
    monkeypatch.setattr(integer_rows, "PIECE_ROWS", 9)
    np.testing.assert_array_equal(kernels.round_rows(x), whole)
    copy = x.copy()
    assert kernels.round_rows(copy, overwrite=True) is copy
    np.testing.assert_array_equal(copy, whole)


def test_arrays_of_another_type_or_shape_are_refused():
    with pytest.raises(ShapeError, match="x must have dtype float32"):
        kernels.quantize(np.ones((2, 3)))
    with pytest.raises(ShapeError, match="q must have shape"):
        kernels.dequantize(np.zeros((2, 3), np.int8), (3,))


def test_examples_in_docstrings_run():
    assert doctest.testmod(integer_rows).failed == 0
