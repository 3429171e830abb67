"""Steps of random tape programs: each is an operation on tensors with random options, and the same formula in NumPy.

A family takes (dice, shapes of the values so far) and returns a `Step`, or None if no step fits these shapes.
Formulas take (frozen, *arrays); see `slopes.Frozen`.
"""

import math

import numpy as np

from sarlite.tape import no_grad, ops
from tests.helpers.tape.slopes import LONG
from tests.helpers.tape.tape_drawing import Step, multiply, number, one, together
from tests.helpers.tape.tape_moves import (
    dropout,
    indexing,
    iterating,
    layer_norm,
    of_classes,
    of_values,
    scattering,
    shaping,
)


def _relu(frozen, x):
    return np.where(frozen(x > 0, x), x, 0)


def _either(frozen, a, b, first):
    a, b = np.broadcast_arrays(a, b)
    return np.where(frozen(first, a - b), a, b)


def _other(frozen_choices, a, b):
    """Return a where a > b, else b * b; `frozen_choices` repeats the first evaluation's choices, as the result jumps at a = b."""
    a, b = np.broadcast_arrays(a, b)
    return np.where(frozen_choices(a > b, np.where(a == b, frozen_choices.near / 2, a - b)), a, b * b)


def _maximum(frozen, a, b):
    return _either(frozen, a, b, np.greater_equal(a, b))


def _minimum(frozen, a, b):
    return _either(frozen, a, b, np.less_equal(a, b))


def _clip(frozen, x, low, high):
    inside = frozen((x >= low) & (x <= high), np.minimum(np.abs(x - low), np.abs(x - high)))
    return np.where(inside, x, frozen(np.clip(x, low, high)))


def _elu(frozen, x, alpha):
    positive = frozen(x > 0, x)
    return np.where(positive, x, alpha * np.expm1(np.where(positive, 0, x)))


def _sigmoid(x):
    return 1 / (1 + np.exp(-x))


def _gelu(x):
    return x * (1 + np.tanh(np.sqrt(2 / LONG(np.pi)) * (x + LONG(0.044715) * x**3))) / 2


def _normal_cdf(x):
    """Return the normal distribution function in long doubles: 1/2 + the density times x + x^3/3 + x^5/(3 5) + ..."""
    total = term = x
    for k in range(1, 120):
        term = term * x * x / (2 * k + 1)
        total = total + term
    return LONG(0.5) + total * np.exp(-x * x / 2) / np.sqrt(8 * np.arctan(LONG(1)))


UNARY = {
    "neg": (lambda x: -x, lambda fr, x: -x),
    "tanh": (ops.tanh, lambda fr, x: np.tanh(x)),
    "np.tanh": (np.tanh, lambda fr, x: np.tanh(x)),
    "sigmoid": (lambda x: x.sigmoid(), lambda fr, x: _sigmoid(x)),
    "softplus": (ops.softplus, lambda fr, x: np.log1p(np.exp(x))),
    "silu": (ops.silu, lambda fr, x: x * _sigmoid(x)),
    "gelu": (lambda x: ops.gelu(x.tanh() * 4), lambda fr, x: 4 * np.tanh(x) * _normal_cdf(4 * np.tanh(x))),
    "gelu tanh": (lambda x: ops.gelu(x, True), lambda fr, x: _gelu(x)),
    "exp": (lambda x: np.exp(x * 0.25), lambda fr, x: np.exp(x / 4)),
    "expm1": (lambda x: np.expm1(x * 0.25), lambda fr, x: np.expm1(x / 4)),
    "log": (lambda x: (x * x + 0.75).log(), lambda fr, x: np.log(x * x + 0.75)),
    "log1p": (lambda x: ops.log1p(x * x), lambda fr, x: np.log1p(x * x)),
    "sqrt": (lambda x: (x * x + 0.5).sqrt(), lambda fr, x: np.sqrt(x * x + 0.5)),
    "square": (lambda x: x**2, lambda fr, x: x * x),
    "cube": (lambda x: np.power(x, 3), lambda fr, x: x * x * x),
    "power 0": (lambda x: x**0, lambda fr, x: np.ones_like(x)),
    "rpow": (lambda x: 2**x, lambda fr, x: np.exp2(x)),
    "rsqrt": (lambda x: (x * x + 1) ** -0.5, lambda fr, x: 1 / np.sqrt(x * x + 1)),
    "inverse": (lambda x: 1 / (x * x + 1), lambda fr, x: 1 / (x * x + 1)),
    "elu": (lambda x: x.elu(0.5), lambda fr, x: _elu(fr, x, LONG(0.5))),
    "leaky_relu": (lambda x: x.leaky_relu(0.25), lambda fr, x: np.where(fr(x > 0, x), x, x / 4)),
    "relu": (lambda x: x.relu(), _relu),
    "abs": (abs, lambda fr, x: x * fr(np.sign(x), x)),
    "clip": (lambda x: x.clip(-0.75, 1.0), lambda fr, x: _clip(fr, x, -0.75, 1.0)),
    "clip low": (lambda x: np.clip(x, -0.5, None), lambda fr, x: _clip(fr, x, -0.5, np.inf)),
    "scalars": (
        lambda x: np.float64(0.5) * x + (1 - x) * x / 2 - np.int64(3), lambda fr, x: x / 2 + (1 - x) * x / 2 - 3),
    "itself": (lambda x: x + x * x - x, lambda fr, x: x * x),
    "copy": (lambda x: x.astype(np.float64).astype(x.dtype), lambda fr, x: x),
    "detach": (lambda x: x.detach() * x, lambda fr, x: fr(x) * x),
    "array": (lambda x: np.asarray(x) * x, lambda fr, x: fr(x) * x),
    "where": (lambda x: np.where(x > 0.25, x, 0.5), lambda fr, x: np.where(fr(x > 0.25, x - 0.25), x, 0.5)),
}  # fmt: skip
BINARY = {
    "add": (ops.add, lambda fr, a, b: a + b), "sub": (np.subtract, lambda fr, a, b: a - b),
    "mul": (ops.mul, lambda fr, a, b: a * b), "np.multiply": (np.multiply, lambda fr, a, b: a * b),
    "div": (lambda a, b: a / (b * b + 1), lambda fr, a, b: a / (b * b + 1)),
    "maximum": (np.maximum, _maximum), "minimum": (ops.minimum, _minimum),
    "gate": (lambda a, b: a * b + (1 - a) * b, lambda fr, a, b: a * b + (1 - a) * b),
    "where": (lambda a, b: ops.where(a > b, a, b * b), lambda fr, a, b: _other(fr, a, b)),
    "no_grad": (lambda a, b: _without(a, b) + b, lambda fr, a, b: fr(a * b) + b),
}  # fmt: skip


def _without(a, b):
    with no_grad():
        return a * b


def unary(rng, shapes):
    name = one(rng, UNARY)
    return Step(name, (number(rng, shapes),), *UNARY[name])


def binary(rng, shapes):
    i = number(rng, shapes)
    j = one(rng, [j for j, shape in enumerate(shapes) if together(shapes[i], shape)])
    name = one(rng, BINARY)
    return Step(name, (i, j), *BINARY[name])


def with_array(rng, value_shapes):
    """Return a step that combines a random value of the program and an array by +, -, *, / or a maximum; `value_shapes`: its values."""
    i = number(rng, value_shapes)
    shape = tuple(int(rng.choice([n, 1, n if n != 1 else 3])) for n in value_shapes[i])[int(rng.integers(3)) // 2 :]
    array = np.round(rng.standard_normal(shape) * 4) / 4 if rng.random() < 0.7 else rng.integers(-2, 3, shape)
    name, left = one(rng, ("add", "sub", "mul", "div", "maximum")), rng.random() < 0.5
    run, formula = BINARY[name]
    cast = lambda x: array.astype(x.dtype) if array.dtype.kind == "f" else array  # noqa: E731
    if left:
        return Step(f"array {name}", (i,), lambda x: run(cast(x), x), lambda fr, x: formula(fr, array, x))
    return Step(f"{name} array", (i,), lambda x: run(x, cast(x)), lambda fr, x: formula(fr, x, array))


def product(rng, value_shapes):
    """Return a step that multiplies a random value by another value, or by an array, as matrices; None if the value is a scalar."""
    i = number(rng, value_shapes)
    if not value_shapes[i]:
        return None
    fits = [j for j, s in enumerate(value_shapes) if multiply(value_shapes[i], s)]
    if fits and rng.random() < 0.7:
        j = one(rng, fits)
        run = one(rng, (ops.matmul, np.matmul, lambda a, b: a @ b))
        return Step("matmul", (i, j), run, lambda fr, a, b: a @ b)
    w = np.round(rng.standard_normal((value_shapes[i][-1], *((2,) if rng.random() < 0.8 else ()))) * 4) / 4
    return Step("matmul array", (i,), lambda x: x @ w.astype(x.dtype), lambda fr, x: x @ w)


def added_product(rng, value_shapes):
    """Return a step that computes c + a @ b from random values of a program and writes it over c; None if no shapes fit."""
    i, j = number(rng, value_shapes), number(rng, value_shapes)
    fits = [
        k
        for k, s in enumerate(value_shapes)
        if len(value_shapes[i]) > 1
        and len(value_shapes[j]) == 2
        and multiply(value_shapes[i], value_shapes[j])
        and s == (*value_shapes[i][:-1], value_shapes[j][1])
    ]
    if not fits:
        return None
    return Step(
        "add_to",
        (one(rng, fits), i, j),
        lambda c, a, b: ops.matmul(a, b, add_to=c + 0.5),
        lambda fr, c, a, b: c + LONG(0.5) + a @ b,
    )


EINSUM = (
    "ij,jk->ik",
    "ij,kj->ik",
    "ij,ij->i",
    "ij,ij",
    "ij->j",
    "ijk->ki",
    "ijk,jk->ij",
    "i,j->ij",
    "i,ij->j",
    "ij,j,i->",
    ",ij->ji",
    "ijk,ilk->ijl",
    "ij,k->i",
)


def einsum(rng, shapes):
    subscripts = one(rng, EINSUM)
    terms, sizes, taken = subscripts.partition("->")[0].split(","), {}, []
    for term in terms:
        fits = [
            k
            for k, s in enumerate(shapes)
            if len(s) == len(term) and all(sizes.get(a, n) == n for a, n in zip(term, s))
        ]
        if not fits:
            return None
        taken.append(one(rng, fits))
        sizes |= dict(zip(term, shapes[taken[-1]]))
    run = np.einsum if rng.random() < 0.5 else ops.einsum
    return Step(
        f"einsum {subscripts}", tuple(taken), lambda *x: run(subscripts, *x), lambda fr, *x: np.einsum(subscripts, *x)
    )


def by_head(rng, shapes):
    fits = [
        (i, j) for i, a in enumerate(shapes) for j, b in enumerate(shapes) if len(a) == len(b) == 3 and a[1:] == b[:2]
    ]
    if not fits:
        return None
    return Step("matmul_by_head", one(rng, fits), ops.matmul_by_head, lambda fr, x, w: np.einsum("nhi,hio->nho", x, w))


# ---- over axes


def _extremum(frozen, x, axes, keepdims, sign):
    rest = [a for a in range(x.ndim) if a not in axes]
    n = math.prod(x.shape[a] for a in axes)
    flat = x.transpose(*rest, *sorted(axes)).reshape(*(x.shape[a] for a in rest), n) * sign
    best = flat.max(-1, keepdims=True)
    at = frozen(flat.argmax(-1)[..., None], flat - best)
    out = np.take_along_axis(flat, at, -1)[..., 0] * sign
    return np.expand_dims(out, tuple(axes)) if keepdims else out


def _logsumexp(fr, x, axes, keepdims):
    top = fr(x.max(axes, keepdims=True, initial=-100))
    out = np.log(np.exp(x - top).sum(axes, keepdims=True)) + top
    return out if keepdims else out.squeeze(axes)


OVER_AXES = {
    "sum": lambda fr, x, axes, keepdims: x.sum(axes, keepdims=keepdims),
    "mean": lambda fr, x, axes, keepdims: x.sum(axes, keepdims=keepdims) / math.prod(x.shape[a] for a in axes),
    "max": lambda fr, x, axes, keepdims: _extremum(fr, x, axes, keepdims, 1),
    "min": lambda fr, x, axes, keepdims: _extremum(fr, x, axes, keepdims, -1),
    "logsumexp": _logsumexp,
    "var": lambda fr, x, axes, keepdims: _var(x, axes, keepdims),
    "std": lambda fr, x, axes, keepdims: np.sqrt(_var(x + _ramp(x), axes, keepdims)),
}


def _var(x, axes, keepdims):
    mean = x.sum(axes, keepdims=True) / math.prod(x.shape[a] for a in axes)
    return ((x - mean) ** 2).sum(axes, keepdims=keepdims) / math.prod(x.shape[a] for a in axes)


def _ramp(x):
    return np.arange(x.size, dtype=np.float64).reshape(x.shape).astype(x.dtype)


def over_axes(rng, shapes):
    i = number(rng, shapes)
    ndim, name, keepdims = len(shapes[i]), one(rng, OVER_AXES), bool(rng.integers(2))
    if ndim and rng.random() < 0.75:
        chosen = rng.permutation(ndim)[: rng.integers(1, ndim + 1)]
        axis = tuple(int(a) - ndim * int(rng.integers(2)) for a in chosen)
        axis = axis[0] if len(axis) == 1 and rng.random() < 0.7 else axis
    else:
        axis = None
    axes = tuple(range(ndim)) if axis is None else tuple(a % ndim for a in np.atleast_1d(axis))
    n = math.prod(shapes[i][a] for a in axes)
    if n < (1 if name in ("mean", "max", "min", "logsumexp") else 2 if name in ("var", "std") else 0):
        name = "sum"
    if name == "std":
        run = lambda x: (x + _ramp(x)).std(axis, keepdims=keepdims)  # noqa: E731
    elif name == "logsumexp" or rng.random() < 0.5:
        run = lambda x: getattr(ops, name)(x, axis, keepdims=keepdims)  # noqa: E731
    else:
        run = lambda x: getattr(np, name)(x, axis=axis, keepdims=keepdims)  # noqa: E731
    return Step(f"{name} {axis} {keepdims}", (i,), run, lambda fr, x: OVER_AXES[name](fr, x, axes, keepdims))


def along_axis(rng, shapes):
    i = number(rng, shapes)
    ndim, name = len(shapes[i]), one(rng, ("cumsum", "softmax", "log_softmax"))
    if name == "cumsum" and (not ndim or rng.random() < 0.3):
        return Step("cumsum", (i,), lambda x: x.cumsum(), lambda fr, x: np.cumsum(x))
    if not ndim:
        return None
    axis = int(rng.integers(-ndim, ndim))
    if name == "cumsum":
        return Step(f"cumsum {axis}", (i,), lambda x: np.cumsum(x, axis=axis), lambda fr, x: np.cumsum(x, axis))

    def formula(fr, x):
        z = x - fr(x.max(axis, keepdims=True, initial=-100))
        total = np.exp(z).sum(axis, keepdims=True)
        return np.exp(z) / total if name == "softmax" else z - np.log(total)

    return Step(f"{name} {axis}", (i,), lambda x: getattr(x, name)(axis), formula)


FAMILIES = {  # family -> relative frequency
    unary: 6, binary: 6, with_array: 3, product: 4, added_product: 1, einsum: 3, by_head: 2, over_axes: 5, along_axis: 2,
    shaping: 6, indexing: 4, scattering: 1, iterating: 1, of_classes: 1, of_values: 2, layer_norm: 3, dropout: 1,
}  # fmt: skip
NAMES, ODDS = list(FAMILIES), np.array(list(FAMILIES.values())) / sum(FAMILIES.values())


def draw(rng, value_shapes):
    """Return a random step for a program whose values so far have the shapes `value_shapes`."""
    while True:
        step = NAMES[int(rng.choice(len(NAMES), p=ODDS))](rng, value_shapes)
        if step is not None:
            return step
