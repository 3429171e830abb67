"""Tensors behave like arrays: comparisons, keys, conversions, numbers."""

import gc
import operator

import numpy as np
import pytest

from sarlite.errors import ShapeError
from sarlite.tape import Tensor, ops
from sarlite.tape.tensor_map import TensorMap


def leaf(*values, dtype=np.float64):
    return Tensor(np.array(values, dtype), requires_grad=True)


def test_equality_is_elementwise():
    x = leaf(1, 0, 3)
    for equality, expected in (
        (x == 0, [False, True, False]), (x != 0, [True, False, True]), (0 == x, [False, True, False]),
        (x == [1, 0, 0], [True, True, False]), (np.ones(3) == x, [True, False, False]), (np.ones(3) != x, [False, True, True]),
        (x == x, [True] * 3), (x == np.nan, [False] * 3),
    ):  # fmt: skip
        assert isinstance(equality, Tensor) and equality.dtype == bool and not equality.requires_grad and equality.tolist() == expected
    assert (x == Tensor(np.array(1.0))).tolist() == [True, False, False]
    assert (Tensor(np.array([1, 2])) == np.array([1, 5])).tolist() == [True, False]
    assert (x == None) is False and (x != None) is True and (x == "x") is False and x != object()  # noqa: E711
    with pytest.raises(ShapeError, match="float32"):
        _ = x == np.ones(3, np.float32)
    assert ((x > 0) & (x < 2)).tolist() == [True, False, False] and ((x > 2) | ~(x > 0)).tolist() == [False, True, True]
    assert (x == 0).mean().item() == pytest.approx(1 / 3) and (x == 0).sum().item() == 1


def test_keys_are_compared_by_identity():
    a, b = leaf(1, 2), leaf(1, 2)
    assert hash(a) != hash(b) and len({a, b, a}) == 2
    assert {a: "a", b: "b"}[a] == "a" and a in [b, a][1:]
    with pytest.raises(ValueError):
        _ = a in [b]  # arrays give the same


def test_a_tensor_map_forgets_dead_tensors():
    a, b, numbers = leaf(1, 2), leaf(1, 2), TensorMap()
    numbers[a] = 1
    assert numbers.setdefault(b, 2) == 2 and numbers.setdefault(a, 3) == numbers[a] == 1 and len(numbers) == 2 and a in numbers
    numbers[a] = 4
    assert numbers[a] == 4
    del a
    gc.collect()
    assert len(numbers) == 1 and b in numbers and leaf(1) not in numbers
    for _ in range(100):  # Python reuses ids
        numbers[leaf(1)] = 0
        assert len(numbers) <= 2


def test_truth_and_numbers():
    for kind in (bool, float, int):
        assert kind(leaf(2)) == kind(2) and kind(Tensor(np.array([[0.0]]))) == kind(0)
        for shape in ((2,), (0,), (1, 2)):
            with pytest.raises(ValueError, match=rf"{kind.__name__}\(\) of a tensor of shape"):
                kind(Tensor(np.zeros(shape)))
    assert not (Tensor(np.array(3.0)) > 1e9) and (1 if Tensor(np.array(1)) == 1 else 0)
    assert operator.index(Tensor(np.array(2))) == 2 and [5, 6, 7][Tensor(np.array(2, np.int32))] == 7
    for other in (leaf(2), Tensor(np.array(2.0)), Tensor(np.array([2]))):
        with pytest.raises(TypeError):
            operator.index(other)
    assert leaf(2.5).item() == 2.5 and leaf(1, 2).tolist() == [1, 2] and Tensor(np.array(2)).tolist() == 2
    assert leaf(1, 2).size == 2 and Tensor(np.zeros((3, 0))).size == 0


def test_numpy_gets_the_values():
    x = leaf(1, 2)
    assert np.asarray(x) is not None and np.asarray(x).dtype == np.float64 and np.shares_memory(np.asarray(x), x.data)
    assert np.array(x).tolist() == [1, 2] and not np.shares_memory(np.array(x), x.data)
    assert np.asarray(x, np.float32).dtype == np.float32 and np.asarray(leaf(1, dtype=np.float32)).dtype == np.float32
    with pytest.raises(ValueError):
        np.array(x, np.float32, copy=False)
    np.testing.assert_array_equal(x, [1, 2])


def test_tensors_are_exported_by_dlpack():
    x = leaf(1, 2)
    assert x.__dlpack_device__() == x.data.__dlpack_device__()
    assert np.shares_memory(np.from_dlpack(x), x.data)
    constant = Tensor(np.ones(2), constant=True)
    shared = np.from_dlpack(constant)
    assert np.shares_memory(shared, constant.data) and not shared.flags.writeable


def test_iteration_gives_rows_with_gradients():
    x = Tensor(np.arange(6.0).reshape(3, 2), requires_grad=True)
    a, b, c = x
    assert a.tolist() == [0, 1] and [float(v) for v in c] == [4, 5] and len(x) == 3
    (a * 2 + c).sum().backward()
    assert x.grad.tolist() == [[2, 2], [0, 0], [1, 1]]
    assert list(Tensor(np.zeros((0, 2)))) == [] and dict(zip("ab", leaf(1, 2)))["b"].item() == 2
    with pytest.raises(TypeError, match="0-d"):
        iter(Tensor(np.array(1.0)))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_0d_tensors_train(dtype):
    a, x, y = (Tensor(np.array(value, dtype), requires_grad=True) for value in (0.25, 3, 5))
    for expression, expected in (
        (lambda: x * x, [None, 6, None]),
        (lambda: a * x + (1 - a) * y, [-2, 0.25, 0.75]),
        (lambda: (x - a) / y, [-0.2, 0.2, -0.11]),
        (lambda: (x - a) * (x - a) / (y * y), [-0.22, 0.22, -2 * 2.75**2 / 125]),
        (lambda: ops.elu(-x) + ops.elu(x), [None, np.exp(-3) * -1 + 1, None]),
        (lambda: x + x + x.sum() + x.max() + x.reshape(1)[0], [None, 5, None]),
    ):
        for t in (a, x, y):
            t.grad = None
        out = expression()
        assert out.shape == () and out.dtype == dtype
        out.backward()
        for t, g in zip((a, x, y), expected):
            assert (t.grad is None) == (g is None)
            if g is not None:
                assert isinstance(t.grad, np.ndarray) and t.grad.dtype == dtype and t.grad.shape == ()
                np.testing.assert_allclose(t.grad, g, rtol=1e-5)
    (x * x).backward()  # into an existing array
    assert isinstance(x.grad, np.ndarray) and x.grad == 11


@pytest.mark.parametrize("order", "<>")
def test_values_in_either_byte_order_are_the_same(order):
    """Kernels read only the processor's own order; files of other machines, such as FITS, have the other one."""
    values, g = np.array([[1.5, -2.0, 3.0]]), np.array([[1.0, 10.0, 100.0]])
    for dtype in ("f4", "f8"):
        x = Tensor(values.astype(order + dtype), requires_grad=True)
        (x @ Tensor(np.eye(3, dtype=dtype))).relu().backward(g.astype(order + dtype))
        assert x.dtype.isnative and x.dtype == np.dtype(dtype) and x.tolist() == values.tolist() and x.grad.tolist() == [[1.0, 0.0, 100.0]]
        x.data = values.astype(order + dtype) + 1
        assert x.dtype == np.dtype(dtype) and x.tolist() == (values + 1).tolist()
    assert (leaf(1, 2) + np.array([1, 2], order + "i4")).tolist() == [2, 4]
