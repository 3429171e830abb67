"""gradcheck finds wrong vjps."""

import numpy as np
import pytest

from sarlite.nn import Linear, Random
from sarlite.tape import PRIMITIVES, Tensor, apply, gradcheck, ops, primitive

X = np.linspace(0.5, 2.0, 6).reshape(2, 3)


@pytest.fixture
def square():
    """Make a primitive x * x with the given vjp, for one test."""

    def define(vjp):
        primitive("square of test_tape_gradcheck", lambda needs, x: (x * x, (x,)), vjp)
        return lambda x: apply("square of test_tape_gradcheck", x)

    yield define
    PRIMITIVES.pop("square of test_tape_gradcheck", None)


def test_right_vjp_passes(square):
    gradcheck(square(lambda g, needs, residuals: (2 * g * residuals[0],)), [X])


def test_wrong_factor_is_found(square):
    f = square(lambda g, needs, residuals: (2.00001 * g * residuals[0],))
    with pytest.raises(AssertionError, match="input 0, direction 0: .*vjp .*finite differences"):
        gradcheck(f, [X])


def test_one_wrong_entry_is_named(square):
    def vjp(g, needs, residuals):
        dx = 2 * g * residuals[0]
        dx[1, 2] += 1e-3
        return (dx,)

    with pytest.raises(AssertionError, match=r"input 1, entry \(1, 2\): the vjp gives"):
        f = square(vjp)
        gradcheck(lambda a, b: a + f(b), [X, X], directions=0)


def test_nan_shape_and_dtype_are_found(square):
    f = square(lambda g, needs, residuals: (np.full(g.shape, np.nan),))
    with pytest.raises(AssertionError, match="nan"):
        gradcheck(f, [X])
    PRIMITIVES.pop("square of test_tape_gradcheck")
    f = square(lambda g, needs, residuals: ((2 * g * residuals[0])[0],))
    with pytest.raises(AssertionError, match="shape"):
        gradcheck(f, [X])
    PRIMITIVES.pop("square of test_tape_gradcheck")
    f = square(lambda g, needs, residuals: ((2 * g * residuals[0]).astype(np.float32),))
    with pytest.raises(AssertionError, match="float32"):
        gradcheck(f, [X])


def test_missing_gradient_is_found():
    with pytest.raises(AssertionError, match="the vjp gives 0,"):
        gradcheck(lambda x: x.detach() * x.detach(), [X])
    with pytest.raises(AssertionError, match="input 0"):
        gradcheck(lambda x: x * x.detach(), [X])


def test_inputs_are_put_back():
    linear = Linear(3, 2, rng=Random(0), dtype=np.float64)
    before = {name: array.copy() for name, array in linear.state_dict().items()}
    gradcheck(lambda x, *_: linear(x).tanh(), [X, *linear.parameters()])
    for name, array in linear.state_dict().items():
        np.testing.assert_array_equal(array, before[name])
    assert linear.weight.grad is None


def test_gradcheck_takes_only_float64():
    with pytest.raises(TypeError, match="input 1 is float32"):
        gradcheck(ops.add, [X, X.astype(np.float32)])


def test_constants_are_left_out():
    gradcheck(lambda a, b: a * b, [X, Tensor(X)])


def test_a_name_is_defined_once():
    with pytest.raises(ValueError, match="'add' is defined twice"):
        primitive("add", None, None)
