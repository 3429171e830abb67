"""Random programs of tensors of any shape against central differences; operations without rows or columns."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sarlite.errors import ShapeError
from sarlite.tape import Tensor, gradcheck, ops

SETTINGS = settings(derandomize=True, deadline=None, max_examples=120, database=None)
SHAPES = [(), (1,), (4,), (3, 4), (3, 1), (1, 4), (1, 1), (2, 3, 4), (2, 1, 4), (0, 4), (3, 0), (0,), (2, 0, 4)]

UNARY = (
    ops.tanh, ops.neg, ops.sigmoid, ops.softplus, ops.silu, ops.gelu, lambda x: ops.gelu(x, True), ops.expm1, lambda x: (x * 0.5).exp(),
    lambda x: (x * x + 0.7).log(), lambda x: ops.log1p(x * x), lambda x: (x * x + 0.5).sqrt(), lambda x: x**2, lambda x: x**3,
    lambda x: 2**x,
    lambda x: (x * x + 1) ** -0.5, lambda x: x.elu(0.6), lambda x: x.leaky_relu(0.3), ops.relu, abs, lambda x: x.clip(-0.8, 0.9),
    lambda x: 1 / (x * x + 1), lambda x: x * x + x, lambda x: x * 0.3 + (1 - x) * x, lambda x: np.where(x.data > 0.1, x, 0),
)  # fmt: skip
BINARY = (
    ops.add, ops.sub, ops.mul, lambda a, b: a / (b * b + 1), ops.maximum, ops.minimum, lambda a, b: a * b + (1 - a) * b,
    lambda a, b: (a - b) / (b * b + 0.5), lambda a, b: np.multiply(a, b), lambda a, b: ops.mse(a + 0 * b, b + 0 * a) + a * b,
    lambda a, b: ops.mse(np.ones(a.shape), np.zeros(a.shape)) + a * b,
)  # fmt: skip
SHAPING = (
    lambda x: x.reshape(math.prod(x.shape)), lambda x: x.T, lambda x: ops.expand_dims(x, 0), lambda x: x.squeeze(),
    lambda x: ops.expand_dims(x, -1),
    lambda x: ops.stack([x, x * 2]),
)  # fmt: skip
INDEXING = (
    lambda x: x[::-1], lambda x: x[..., ::-2], lambda x: x[1:], lambda x: ops.concat([x, x * 2], -1),
    lambda x: x[np.arange(len(x)) % 2 == 0],
    lambda x: x[np.arange(2 * len(x)) // 2 - len(x)], lambda x: ops.scatter_add(x, np.arange(len(x)) % 3, 3),
    lambda x: x[-1] if len(x) else x,
    lambda x: x[[True, *[False] * (len(x) - 1)]] if len(x) else x,
)  # fmt: skip
OVER_AXES = ("sum", "mean", "max", "min", "logsumexp", "var", "std", "cumsum", "softmax", "log_softmax")


def over_axis(name, x, axis, keepdims):
    n = x.size if axis is None else x.shape[axis]
    if name in ("cumsum", "softmax", "log_softmax"):
        return ops.cumsum(x, axis) if name == "cumsum" or axis is None else getattr(ops, name)(x, axis)
    if n < (2 if name in ("var", "std") else 1):  # these operations have no result without values
        name = "sum"
    if name == "std":
        x = x + np.arange(x.size).reshape(x.shape)  # away from 0
    return getattr(ops, name)(x, axis, keepdims=keepdims)


@st.composite
def programs(draw):
    """Draw (input shapes, steps); a step is (function, numbers of the values that it takes)."""
    shapes = draw(st.lists(st.sampled_from(SHAPES), min_size=1, max_size=3))
    values, steps = [Tensor(np.zeros(shape)) for shape in shapes], []
    for _ in range(draw(st.integers(1, 7))):
        i = draw(st.integers(0, len(values) - 1))
        x, kind = values[i], draw(st.sampled_from(("unary", "binary", "axis", "shape", "index")))
        taken = (i,)
        if kind == "unary":
            f = draw(st.sampled_from(UNARY))
        elif kind == "binary":
            taken = (i, draw(st.sampled_from([j for j, y in enumerate(values) if _fit(x.shape, y.shape)])))
            f = draw(st.sampled_from(BINARY))
        elif kind == "axis":
            name, keepdims = draw(st.sampled_from(OVER_AXES)), draw(st.booleans())
            axis = draw(st.sampled_from([None, *range(-x.ndim, x.ndim)]))
            f = lambda x, name=name, axis=axis, keepdims=keepdims: over_axis(name, x, axis, keepdims)  # noqa: E731
        else:
            f = draw(st.sampled_from(INDEXING if kind == "index" and x.ndim else SHAPING))
        with np.errstate(all="ignore"):
            value = f(*(values[j] for j in taken))
        if value.size <= 100:
            values.append(value)
            steps.append((f, taken))
    return shapes, steps


def _fit(a, b):
    try:
        return bool(np.broadcast_shapes(a, b)) or True
    except ValueError:
        return False


def run(steps, *inputs):
    """Return the sum over all values of all steps, so that each value has several uses."""
    values, total = list(inputs), 0.0
    for f, taken in steps:
        values.append(f(*(values[j] for j in taken)))
    for value in values:
        total = total + (value.tanh() * 0.7 + value.tanh() * value.tanh()).sum()
    return total


@SETTINGS
@given(program=programs(), seed=st.integers(0, 9))
def test_gradients_of_random_programs_equal_finite_differences(program, seed):
    shapes, steps = program
    inputs = [np.random.default_rng([seed, k]).standard_normal(shape) for k, shape in enumerate(shapes)]
    with np.errstate(all="ignore"):
        gradcheck(lambda *x: run(steps, *x), inputs, rtol=1e-4, atol=1e-4, directions=1, entries=0)
        tensors = [Tensor(x, requires_grad=True) for x in inputs]
        run(steps, *tensors).backward()
    assert all(t.grad.shape == t.shape and t.grad.dtype == np.float64 and isinstance(t.grad, np.ndarray) for t in tensors)


# ---- no rows, no columns

EMPTY = [(0,), (0, 3), (3, 0), (0, 0), (0, 2, 3), (2, 0, 3), (2, 3, 0)]
ALL_SHAPES = {f"unary {k}": f for k, f in enumerate(UNARY)} | {f"shaping {k}": f for k, f in enumerate(SHAPING)}
ALL_SHAPES |= {f"indexing {k}": f for k, f in enumerate(INDEXING)}
ALL_SHAPES |= {f"{name}": lambda x, f=f: f(x, x) for name, f in (("add", ops.add), ("mul", ops.mul), ("div", lambda a, b: a / (b + 1)),
                                                                   ("maximum", ops.maximum),
                                                                   ("where", lambda a, b: ops.where(a > b, a, b)))}  # fmt: skip
ALL_SHAPES |= {
    "a learnable row": lambda x: x * Tensor(np.ones(x.shape[-1:], x.dtype), requires_grad=True),
    "softmax": lambda x: x.softmax(-1), "softmax 0": lambda x: x.softmax(0), "log_softmax": lambda x: x.log_softmax(-1),
    "log_softmax 0": lambda x: x.log_softmax(0), "logsumexp": lambda x: x.logsumexp(), "logsumexp 0": lambda x: x.logsumexp(0),
    "sum": lambda x: x.sum(), "sum 0": lambda x: x.sum(0), "sum -1": lambda x: x.sum(-1, keepdims=True), "cumsum": lambda x: x.cumsum(-1),
    "layer_norm": lambda x: ops.layer_norm(x, *(Tensor(np.ones(x.shape[-1], x.dtype), requires_grad=True) for _ in range(2))),
    "dropout": lambda x: ops.dropout(x, np.arange(len(x)), 5, 0.5), "matmul": lambda x: x @ np.ones((x.shape[-1], 2), x.dtype),
    "matmul to nothing": lambda x: x @ Tensor(np.ones((x.shape[-1], 0), x.dtype), requires_grad=True),
    "astype": lambda x: x.astype(np.float32 if x.dtype == np.float64 else np.float64), "mse": lambda x: ops.mse(x, np.zeros(x.shape)),
    "bce": lambda x: ops.bce_with_logits(x, np.zeros(x.shape)), "rows of no rows": lambda x: x[np.zeros(0, int)],
    "flatten": lambda x: x.flatten(), "iterated": lambda x: ops.stack([*x, *x]) if len(x) else x * 1,
}  # fmt: skip
TABLES = {
    "cross_entropy": lambda x: ops.cross_entropy(x, np.zeros(len(x), int), [] if not x.shape[1] else None),
    "nll": lambda x: ops.nll(x, np.zeros(len(x), int), [] if not x.shape[1] else None, reduction="sum"),
    "gram": lambda x: x @ x.T, "einsum": lambda x: ops.einsum("ij,kj->ik", x, x), "einsum to 0-d": lambda x: ops.einsum("ij->", x),
    "rmatmul": lambda x: np.ones((2, len(x)), x.dtype) @ x,
}  # fmt: skip


def backward_of(f, shape, dtype):
    x = Tensor(np.zeros(shape, dtype), requires_grad=True)
    out = f(x)
    out.backward(np.ones(out.shape, out.dtype))
    return out, x.grad


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("shape", EMPTY)
def test_operations_of_nothing(shape, dtype):
    with np.errstate(all="raise"):
        for name, f in (ALL_SHAPES | (TABLES if len(shape) == 2 else {})).items():
            out, grad = backward_of(f, shape, dtype)
            assert grad is None or (grad.shape == shape and grad.dtype == dtype), name
            assert np.isfinite(out.data).all() or name.startswith("logsumexp"), name


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_moments_and_extrema_of_nothing(dtype):
    """An axis with values works as usual. Without values a mean is NaN, as in NumPy, and an extremum is refused."""
    for name in ("mean", "var", "std", "max", "min"):
        f = getattr(ops, name)
        with np.errstate(all="raise"):
            for shape, axis in (((0, 3), 1), ((3, 0), 0), ((2, 0, 3), (0, 2))):
                out, grad = backward_of(lambda x: f(x, axis), shape, dtype)  # noqa: B023
                assert out.size == 0 and grad.shape == shape
        for shape, axis in (((0, 3), 0), ((3, 0), None), ((2, 0, 3), (1, 2))):
            x = Tensor(np.zeros(shape, dtype), requires_grad=True)
            if name in ("max", "min"):
                with pytest.raises(ShapeError, match=rf"{name}: axis .* of shape .* has no values"):
                    f(x, axis)
            else:
                with np.errstate(all="ignore"):
                    out = f(x, axis)
                    assert np.isnan(out.data).all()
                    out.backward(np.ones(out.shape, dtype))
                    assert x.grad.shape == shape
