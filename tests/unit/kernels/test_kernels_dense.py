"""Dense products and sums on the kernels' threads."""

import numpy as np
import pytest

from sarlite import Tensor, kernels
from sarlite.comm import threads
from sarlite.errors import ShapeError
from sarlite.tape import ops

SHAPES = [(1, 1, 1), (3, 5, 4), (0, 4, 3), (4, 0, 3), (4, 3, 0), (1500, 7, 33), (1024, 40, 40), (5000, 64, 17), (2049, 3, 100),
          (30, 700, 200), (900, 300, 5)]
RTOL = {"float32": 2e-5, "float64": 1e-13}


@pytest.fixture(params=[1, 2])
def n_threads(request):
    before = kernels.threads()
    kernels.set_threads(request.param)
    yield request.param
    kernels.set_threads(before)


def matrices(m, k, n, dtype):
    rng = np.random.default_rng(m + k + n)
    return rng.standard_normal((m, k)).astype(dtype), rng.standard_normal((k, n)).astype(dtype)


def assert_near(got, a, b):
    """Check that `got` is a @ b within rounding of the sum of magnitudes."""
    want, scale = a.astype(np.float64) @ b.astype(np.float64), np.abs(a).astype(np.float64) @ np.abs(b).astype(np.float64)
    assert (np.abs(got - want) <= RTOL[str(got.dtype)] * scale).all()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("m, k, n", SHAPES)
def test_gemm_is_numpys_product(m, k, n, dtype, n_threads):
    a, b = matrices(m, k, n, dtype)
    out = np.full((m, n), 7, dtype)
    kernels.gemm(a, b, out)
    assert_near(out, a, b)
    turned = np.full((m, n), np.nan, dtype)
    kernels.gemm(a, np.ascontiguousarray(b.T), turned, trans_b=True)
    assert_near(turned, a, b)
    kernels.gemm(a, b, out, accumulate=True)
    assert_near(out, 2 * a, b)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("k, m, n", SHAPES)
def test_gemm_backward_is_the_transposed_product(k, m, n, dtype, n_threads):
    a, g = matrices(k, m, n, dtype)[0], matrices(n, k, n, dtype)[1]
    out, again = np.full((m, n), np.nan, dtype), np.empty((m, n), dtype)
    kernels.gemm_backward(a, g, out)
    assert_near(out, a.T, g)
    kernels.gemm_backward(a, g, again)
    assert np.array_equal(out, again)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("itype", ["int32", "int64"])
@pytest.mark.parametrize("m, k, n", SHAPES)
def test_products_of_rows_by_number_have_the_bits_of_those_of_a_copy(m, k, n, itype, dtype, n_threads):
    table, b = matrices(m + 3, k, n, dtype)
    rows = np.random.default_rng(0).integers(0, m + 3, m).astype(itype)
    actual, copied = np.full((m, n), np.nan, dtype), np.empty((m, n), dtype)
    kernels.gemm(table, b, actual, rows=rows)
    kernels.gemm(table[rows], b, copied)
    assert np.array_equal(actual, copied)
    g, actual, copied = copied, np.full((k, n), np.nan, dtype), np.empty((k, n), dtype)
    kernels.gemm_backward(table, g, actual, rows=rows)
    kernels.gemm_backward(table[rows], g, copied)
    assert np.array_equal(actual, copied)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("m, k, n", SHAPES)
def test_products_of_rows_that_are_apart_have_the_bits_of_those_of_copies(m, k, n, dtype, n_threads):
    """The operands are slices of larger arrays, whose other elements stay as they are."""
    rng = np.random.default_rng(0)
    x, g, (_, b) = rng.standard_normal((m, 3, k)).astype(dtype), rng.standard_normal((m, 2, n)).astype(dtype), matrices(m, k, n, dtype)
    out, copied, rows = np.full((m, 3, n), 7, dtype), np.empty((m, n), dtype), rng.integers(0, max(m, 1), m)
    kernels.gemm(np.ascontiguousarray(x[:, 1]), b, copied)
    kernels.gemm(x[:, 1], b, out[:, 1])
    assert np.array_equal(out[:, 1], copied) and (out[:, ::2] == 7).all()
    kernels.gemm(x[:, 2], np.ascontiguousarray(b.T), out[:, 1], trans_b=True, rows=rows)
    kernels.gemm(x[:, 2][rows], b, copied)
    assert np.array_equal(out[:, 1], copied) and (out[:, ::2] == 7).all()
    for options in ({}, {"rows": rows}):
        actual, copied = np.empty((k, n), dtype), np.empty((k, n), dtype)
        kernels.gemm_backward(x[:, 1], g[:, 1], actual, **options)
        kernels.gemm_backward(np.ascontiguousarray(x[:, 1]), np.ascontiguousarray(g[:, 1]), copied, **options)
        assert np.array_equal(actual, copied)


def refused():
    a, out = np.ones((4, 3), np.float32), np.empty((4, 5), np.float32)
    b = np.ones((3, 5), np.float32)
    yield "a", lambda: kernels.gemm(a.astype(int), b, out)
    yield "a", lambda: kernels.gemm(a[:, 0], b, out)
    yield "b", lambda: kernels.gemm(a, b.astype(np.float64), out)
    yield "b", lambda: kernels.gemm(a, b, out, trans_b=True)
    yield "b", lambda: kernels.gemm(a, b[:2], out)
    yield "out", lambda: kernels.gemm(a, b, out[:3])
    yield "b must not share", lambda: kernels.gemm(a, out[:3], out)
    yield "g", lambda: kernels.gemm_backward(a, b, out)
    yield "out", lambda: kernels.gemm_backward(a, out, out)
    yield "b", lambda: kernels.add(a, b, a)
    yield "out", lambda: kernels.add(a, a, out)
    yield "rows", lambda: kernels.gemm(a, b, out, rows=np.array([0, 4, 1, 1]))
    yield "rows", lambda: kernels.gemm_backward(a, out, b.copy(), rows=np.array([0, 0, 1, -1]))
    yield "out", lambda: kernels.gemm(a, b, out, rows=np.array([0, 1, 1]))
    yield "a", lambda: kernels.gemm(np.ones((4, 6), np.float32)[:, ::2], b, out)
    yield "a", lambda: kernels.gemm(np.lib.stride_tricks.as_strided(np.ones(99, np.float32), (4, 3), (8, 4)), b, out)
    yield "b", lambda: kernels.gemm(a, np.ones((3, 6), np.float32)[:, :5], out)


@pytest.mark.parametrize("case", range(17))
def test_bad_arguments_are_named(case):
    name, action = list(refused())[case]
    with pytest.raises(ShapeError, match=f"^{name} "):
        action()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("trans_b", [False, True])
def test_a_row_of_a_product_does_not_depend_on_the_others(dtype, trans_b, n_threads):
    """A row does not depend on the number of threads either, bit for bit."""
    a, b = matrices(300, 600, 47, dtype)
    b = np.ascontiguousarray(b.T) if trans_b else b
    whole = np.empty((300, 47), dtype)
    kernels.gemm(a, b, whole, trans_b=trans_b)
    for first, last in ((0, 1), (3, 20), (250, 300)):
        part = np.empty((last - first, 47), dtype)
        kernels.gemm(a[first:last], b, part, trans_b=trans_b)
        assert np.array_equal(part, whole[first:last])


def test_products_do_not_touch_memory_beside_the_output():
    """The widths are around the widths of registers, panels and tiles."""
    for n in (1, 7, 8, 9, 15, 16, 17, 31, 32, 33, 47):
        for m in (1, 5, 6, 7, 13, 14, 15, 29):
            a, b = matrices(m, 9, n, "float32")
            memory = np.full(m * n + 128, 7, np.float32)
            out = memory[64 : 64 + m * n].reshape(m, n)
            kernels.gemm(a, b, out)
            assert_near(out, a, b)
            kernels.gemm_backward(np.ascontiguousarray(a.T), np.ascontiguousarray(b), out)
            assert_near(out, a, b)
            assert (memory[:64] == 7).all() and (memory[64 + m * n :] == 7).all()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("n", [0, 1, 15, 100_001])
def test_add_is_numpys_sum_and_may_write_over_an_operand(n, dtype, n_threads):
    a, b = np.random.default_rng(0).standard_normal((2, n)).astype(dtype)
    out, want = np.empty(n, dtype), a + b
    kernels.add(a, b, out)
    assert np.array_equal(out, want)
    kernels.add(a, b, a)
    assert np.array_equal(a, want)


def test_ranks_that_are_threads_have_the_callers_number_of_threads(n_threads):
    assert threads.run(3, lambda comm: kernels.threads()) == [n_threads] * 3


def test_gradients_that_share_an_array_stay_apart():
    """The vjp of add hands one gradient to both operands; a later sum into one must not change the other."""
    x, y = Tensor(np.ones((300, 200)), True), Tensor(np.ones((300, 200)), True)
    (x * 2.0 + ops.add(x, y)).backward(np.ones((300, 200)))
    assert (x.grad == 3).all() and (y.grad == 1).all()


def test_gradients_that_are_new_are_added_in_place_and_right():
    rng = np.random.default_rng(0)
    x, ws = Tensor(rng.standard_normal((50, 8)), True), [rng.standard_normal((8, 4)) for _ in range(3)]
    h = x * 1.0
    g = rng.standard_normal((50, 4))
    (h @ ws[0] + h @ ws[1] + h @ ws[2]).backward(g)
    np.testing.assert_allclose(x.grad, g @ (ws[0] + ws[1] + ws[2]).T, rtol=1e-12)


def test_heads_of_one_value_whose_stride_is_another():
    """An axis with one value may have any stride, and NumPy still calls the array contiguous."""
    x, w = np.asfortranarray(np.arange(8.0).reshape(2, 1, 4)).transpose(2, 0, 1), np.arange(6.0).reshape(2, 1, 3)
    assert x.flags.c_contiguous and x[:, 0].strides[1] != x.itemsize
    out = ops.matmul_by_head(Tensor(x, requires_grad=True), w)
    np.testing.assert_array_equal(out.data, np.einsum("nhi,hio->nho", x, w))
    out.backward(np.ones(out.shape))
