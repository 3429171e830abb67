"""Extreme values: infinities, denormals, scores of 1e4, gradients of infinity; the references are float64."""

import numpy as np
import pytest
from scipy import special

from sarlite import kernels
from sarlite.tape import Tensor, ops

INF = np.inf
ENDS = [-INF, -1e30, -1e4, -800.0, -90.0, -20.0, -1.0, -1e-3, -1e-40, -5e-324, -0.0, 0.0, 5e-324, 1e-40, 1e-3, 1.0, 20.0, 90.0, 800.0, 1e4,
    1e30, INF]
BOTH = pytest.mark.parametrize("dtype", [np.float32, np.float64])


def run(f, values, dtype, g=1.0):
    """Return the output and the gradient, as float64."""
    with np.errstate(all="ignore"):
        x = Tensor(np.array(values).astype(dtype), requires_grad=True)
        out = f(x)
        out.backward(np.broadcast_to(np.asarray(g, dtype), out.shape).copy())
    assert out.dtype == x.grad.dtype == dtype
    return out.data.astype(np.float64), x.grad.astype(np.float64)


def limits(f, low, high):
    """Return f of float64 with its limits at -inf and inf, where the formula has inf * 0."""

    def reference(x):
        return np.where(x == -INF, low, np.where(x == INF, high, f(x)))

    return reference


def density(x):
    return np.exp(-0.5 * x * x) / np.sqrt(2 * np.pi)


def inner(x):
    return np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)


def gelu_tanh_slope(x):
    return special.expit(2 * inner(x)) + 0.5 * x / np.cosh(np.clip(inner(x), -300,
        300)) ** 2 * np.sqrt(2 / np.pi) * (1 + 3 * 0.044715 * x * x)


# name: (operation, value, derivative)
REFERENCES = {
    "exp": (ops.exp, np.exp, np.exp),
    "expm1": (ops.expm1, np.expm1, np.exp),
    "log": (lambda x: ops.log(abs(x)), lambda x: np.log(np.abs(x)), None),
    "log1p": (lambda x: ops.log1p(abs(x)), lambda x: np.log1p(np.abs(x)), lambda x: np.sign(x) / (1 + np.abs(x))),
    "abs": (abs, np.abs, np.sign),
    "tanh": (ops.tanh, np.tanh, lambda x: 1 / np.cosh(np.clip(x, -300, 300)) ** 2),
    "sigmoid": (ops.sigmoid, special.expit, lambda x: special.expit(x) * special.expit(-x)),
    "softplus": (ops.softplus, lambda x: np.logaddexp(0, x), special.expit),
    "silu": (ops.silu, limits(lambda x: x * special.expit(x), 0, INF),
             limits(lambda x: special.expit(x) * (1 + x * special.expit(-x)), 0, 1)),
    "gelu": (ops.gelu, limits(lambda x: x * special.ndtr(x), 0, INF), limits(lambda x: special.ndtr(x) + x * density(x), 0, 1)),
    "gelu_tanh": (lambda x: ops.gelu(x, True), limits(lambda x: x * special.expit(2 * inner(x)), 0, INF), limits(gelu_tanh_slope, 0, 1)),
    "relu": (ops.relu, lambda x: np.maximum(x, 0), lambda x: (x > 0) * 1.0),
    "leaky_relu": (lambda x: ops.leaky_relu(x, 0.2), lambda x: np.where(x > 0, x, 0.2 * x), lambda x: np.where(x > 0, 1, 0.2)),
    "leaky_relu_0": (lambda x: ops.leaky_relu(x, 0), lambda x: np.maximum(x, 0), lambda x: (x > 0) * 1.0),
    "elu": (lambda x: ops.elu(x, 0.5), lambda x: np.where(x > 0, x, 0.5 * np.expm1(np.minimum(x, 0))),
            lambda x: np.where(x > 0, 1, 0.5 * np.exp(np.minimum(x, 0)))),
    "elu_0": (lambda x: ops.elu(x, 0), lambda x: np.maximum(x, 0), lambda x: (x > 0) * 1.0),
    "power_0": (lambda x: x**0, np.ones_like, np.zeros_like),
    "power_1": (lambda x: x**1, lambda x: x, np.ones_like),
    "power_2": (lambda x: x**2, np.square, lambda x: 2 * x),
    "power_3": (lambda x: x**3, lambda x: x**3, lambda x: 3 * x**2),
    "power_-1": (lambda x: x**-1, lambda x: 1 / x, lambda x: -1 / x**2),
    "clip": (lambda x: x.clip(-1, 20), lambda x: np.clip(x, -1, 20), lambda x: ((x >= -1) & (x <= 20)) * 1.0),
    "bce_0": (lambda x: ops.bce_with_logits(x, np.zeros(len(ENDS)), reduction="none"), lambda x: np.logaddexp(0, x), special.expit),
    "bce_1": (lambda x: ops.bce_with_logits(x, np.ones(len(ENDS)), reduction="none"), lambda x: np.logaddexp(0, -x),
              lambda x: special.expit(x) - 1),
}  # fmt: skip


@BOTH
@pytest.mark.parametrize("name", REFERENCES)
def test_ends_of_one_operand(name, dtype):
    """Value and derivative are right to a few units in the last place of 1 or of themselves.

    They are infinite and zero where the reference is, in dtype.
    """
    f, value, slope = REFERENCES[name]
    results = run(f, ENDS, dtype)
    eps = np.finfo(dtype).eps
    with np.errstate(all="ignore"):
        x = np.array(ENDS).astype(dtype).astype(np.float64)
        for got, reference in zip(results, (value, slope)):
            if reference is not None:
                expected = np.asarray(reference(x)).astype(dtype).astype(np.float64)
                np.testing.assert_allclose(got, expected, rtol=16 * eps, atol=4 * eps,
                    err_msg=str(x[~np.isclose(got, expected, equal_nan=True)]))


def test_derivative_of_log_at_the_ends():
    _, dx = run(ops.log, [0.0, 1e-40, 1e30, INF], np.float64)
    assert dx[0] == INF and dx[3] == 0
    np.testing.assert_allclose(dx[1:3], [1e40, 1e-30], rtol=1e-15)


@BOTH
def test_powers_at_0_and_below(dtype):
    with np.errstate(all="ignore"):
        for exponent, values, slopes in (
            (0.5, [0.0, 4.0, INF], [INF, 0.25, 0]), (1.5, [0.0, 4.0], [0, 3]), (2, [0.0, -3.0, -INF], [0, -6, -INF]),
            (3, [0.0, -2.0], [0, 12]), (-1, [0.0, -2.0], [-INF, -0.25]), (0, [0.0, -2.0, INF, -INF, np.nan], [0, 0, 0, 0, 0]),
            (1, [0.0, -2.0, INF], [1, 1, 1]),
        ):  # fmt: skip
            out, dx = run(lambda x: x**exponent, values, dtype)  # noqa: B023
            np.testing.assert_array_equal(dx, slopes)
            np.testing.assert_allclose(out, np.power(values, exponent), rtol=1e-6)
        assert np.isnan(run(lambda x: x**0.5, [-1.0], dtype)).all()
        assert run(lambda x: ops.rpow(x, 0), [0.0, 2.0], dtype)[0].tolist() == [1, 0]


# A gradient of infinity passes where the mask lets it, and is 0 elsewhere: it is chosen, not multiplied.
MASKS = {
    "abs": (abs, [-2.0, 0.0, -0.0, 3.0], [-INF, 0, 0, INF]),
    "relu": (ops.relu, [-2.0, 0.0, -0.0, 3.0, -INF], [0, 0, 0, INF, 0]),
    "leaky_relu_0": (lambda x: ops.leaky_relu(x, 0), [-2.0, 0.0, 3.0, -INF], [0, 0, INF, 0]),
    "leaky_relu": (lambda x: ops.leaky_relu(x, 0.1), [-2.0, 3.0], [INF, INF]),
    "elu_0": (lambda x: ops.elu(x, 0), [-2.0, 3.0, -INF], [0, INF, 0]),
    "elu": (lambda x: ops.elu(x, 0.7), [-2.0, 3.0, INF], [INF, INF, INF]),
    "clip": (lambda x: x.clip(-1, 1), [-2.0, 0.5, 3.0, INF], [0, INF, 0, 0]),
    "maximum": (lambda x: ops.maximum(x, 1), [-2.0, 3.0, 1.0], [0, INF, INF]),
    "minimum": (lambda x: ops.minimum(x, 1), [-2.0, 3.0, -INF], [INF, 0, INF]),
    "where": (lambda x: ops.where([True, False], x, 0), [5.0, 5.0], [INF, 0]),
    "where_else": (lambda x: ops.where([True, False], 0, x), [5.0, 5.0], [0, INF]),
    "max": (lambda x: x.max(), [1.0, 3.0, 3.0], [0, INF, 0]),
    "min": (lambda x: x.min(), [1.0, 3.0, 1.0], [INF, 0, 0]),
    "getitem": (lambda x: x[::-2], [1.0, 2.0, 3.0], [INF, 0, INF]),
    "take": (lambda x: x[[1]], [1.0, 2.0], [0, INF]),
    "power_0": (lambda x: x**0, [0.0, INF], [0, 0]),
}


@BOTH
@pytest.mark.parametrize("name", MASKS)
def test_infinite_gradients_are_chosen(name, dtype):
    f, values, expected = MASKS[name]
    x = Tensor(np.array(values, dtype), requires_grad=True)
    with np.errstate(all="raise"):
        out = f(x)
        out.backward(np.full(out.shape, INF, dtype))
    np.testing.assert_array_equal(x.grad, np.array(expected, dtype))


@BOTH
def test_relu_has_no_negative_zero(dtype):
    for n in (1, 3, 8, 33):
        x = np.full((n, n), -0.0, dtype)
        for out in (ops.relu(Tensor(x)), ops.relu(Tensor(x[0])), ops.relu(Tensor(x[0, 0])), ops.leaky_relu(Tensor(x), 0),
            ops.elu(Tensor(x))):
            assert not np.signbit(out.data).any() and not np.signbit(np.maximum(x, 0)).any()


# ---- softmax and its kin

ROWS = [
    [0.0, 1e4, -1e4], [-1e4, -1e4 - 1, -1e4 - 3], [1e4, 1e4 - 1e-2, 0.0], [-INF, 2.0, 1.0], [-INF, -INF, 5.0], [5e-324, 0.0, -1e-40],
    [1e30, -1e30, 0.0],
]  # fmt: skip


def mapped(f):
    return lambda x: np.stack([f(row) for row in x])


@BOTH
@pytest.mark.parametrize(("f", "value"), [
    (ops.softmax, mapped(special.softmax)), (ops.log_softmax, mapped(special.log_softmax)),
    (lambda x: x.logsumexp(1), lambda x: special.logsumexp(x, axis=1)),
])  # fmt: skip
def test_ends_of_softmax(f, value, dtype):
    x = np.array(ROWS).astype(dtype)
    out, dx = run(f, x, dtype, g=1.0)
    eps = np.finfo(dtype).eps
    np.testing.assert_allclose(out, value(x.astype(np.float64)), rtol=8 * eps, atol=eps)
    p = mapped(special.softmax)(x.astype(np.float64))
    expected = {ops.softmax: 0 * p, ops.log_softmax: 1 - 3 * p}.get(f, p)  # of g = 1
    np.testing.assert_allclose(dx, expected, atol=8 * eps)


def test_logsumexp_of_infinity():
    out, _ = run(lambda x: x.logsumexp(1), [[INF, 0.0], [INF, INF], [-INF, -INF], [INF, -INF]], np.float64)
    assert out.tolist() == [INF, INF, -INF, INF]


@BOTH
def test_quotients_of_tiny_numbers(dtype):
    a, b = (Tensor(np.array([v, 1.0], dtype), requires_grad=True) for v in (3e-23, 1e-23))
    with np.errstate(over="raise", invalid="raise", divide="raise"):
        (a / b).backward(np.array([1e-5, 1], dtype))
        (1 / b).sum().backward() if dtype == np.float64 else None
    np.testing.assert_allclose(a.grad[0], 1e18, rtol=1e-6)
    np.testing.assert_allclose(b.grad[0], -3e18 if dtype == np.float32 else -3e18 - 1e46, rtol=1e-6)


@BOTH
def test_infinite_values_that_are_dropped_are_0(dtype):
    ids = np.arange(60)
    x = Tensor(np.full((60, 9), INF, dtype), requires_grad=True)
    with np.errstate(all="raise"):
        out = ops.dropout(x, ids, 5, 0.5)
        out.backward(np.full((60, 9), -INF, dtype))
    is_kept = ops.dropout(Tensor(np.ones((60, 9), dtype)), ids, 5, 0.5).data > 0
    np.testing.assert_array_equal(out.data, np.where(is_kept, dtype(INF), 0))
    np.testing.assert_array_equal(x.grad, np.where(is_kept, dtype(-INF), 0))


@BOTH
@pytest.mark.parametrize("kind", ["identity", "relu", "elu"])
def test_infinite_values_that_an_activation_drops_are_0(kind, dtype):
    """The fused kernel is tested both ways; `identity` and ELU draw the mask again in backward."""
    mask, x = kernels.Mask(np.arange(60), 5, 0.5), np.full((60, 9), INF, dtype)
    out, dx, ones = np.empty_like(x), np.empty_like(x), np.empty_like(x)
    kernels.activate(np.ones_like(x), ones, kind=kind, mask=mask)
    kernels.activate(x, out, kind=kind, mask=mask)
    np.testing.assert_array_equal(out, np.where(ones > 0, x, 0))
    kernels.activate_backward(x, kind=kind, mask=mask, x=np.ones_like(x), out=ones, dx=dx)
    np.testing.assert_array_equal(dx, np.where(ones > 0, x, 0))
