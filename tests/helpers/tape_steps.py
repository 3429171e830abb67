"""The steps of random tape programs: each an operation of tensors and its formula in NumPy, with the options drawn for it.

A family takes (dice, shapes of the values that are there) and returns a `Step`, or None where it has none for these shapes.
Formulas take (frozen, *arrays); see `slopes.Frozen`.
"""

import math
from typing import Any, NamedTuple

import numpy as np

from sarlite.tape import Tensor, no_grad, ops
from tests.helpers.slopes import LONG


class Step(NamedTuple):
    name: str
    taken: tuple
    run: Any
    formula: Any


def _relu(frozen, x):
    return np.where(frozen(x > 0, x), x, 0)


def _either(frozen, a, b, first):
    a, b = np.broadcast_arrays(a, b)
    return np.where(frozen(first, a - b), a, b)


def _other(frozen, a, b):
    """A jump where a and b are equal, so equal ones are too near."""
    a, b = np.broadcast_arrays(a, b)
    return np.where(frozen(a > b, np.where(a == b, frozen.near / 2, a - b)), a, b * b)


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
    """1/2 + the density times x + x^3/3 + x^5/(3 5) + ..., which has long doubles."""
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
    "scalars": (lambda x: np.float64(0.5) * x + (1 - x) * x / 2 - np.int64(3), lambda fr, x: x / 2 + (1 - x) * x / 2 - 3),
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


def unary(dice, shapes):
    name = _one(dice, UNARY)
    return Step(name, (_number(dice, shapes),), *UNARY[name])


def binary(dice, shapes):
    i = _number(dice, shapes)
    j = _one(dice, [j for j, shape in enumerate(shapes) if _fit(shapes[i], shape)])
    name = _one(dice, BINARY)
    return Step(name, (i, j), *BINARY[name])


def with_array(dice, shapes):
    """One operand is an array, whose shape may broadcast either way, of numbers or of integers."""
    i = _number(dice, shapes)
    shape = tuple(int(dice.choice([n, 1, n if n != 1 else 3])) for n in shapes[i])[int(dice.integers(3)) // 2 :]
    array = np.round(dice.standard_normal(shape) * 4) / 4 if dice.random() < 0.7 else dice.integers(-2, 3, shape)
    name, left = _one(dice, ("add", "sub", "mul", "div", "maximum")), dice.random() < 0.5
    run, formula = BINARY[name]
    cast = lambda x: array.astype(x.dtype) if array.dtype.kind == "f" else array  # noqa: E731
    if left:
        return Step(f"array {name}", (i,), lambda x: run(cast(x), x), lambda fr, x: formula(fr, array, x))
    return Step(f"{name} array", (i,), lambda x: run(x, cast(x)), lambda fr, x: formula(fr, x, array))


def product(dice, shapes):
    """A matrix product with another value or with an array; 1-D and batched operands too."""
    i = _number(dice, shapes)
    if not shapes[i]:
        return None
    fits = [j for j, s in enumerate(shapes) if _multiply(shapes[i], s)]
    if fits and dice.random() < 0.7:
        j = _one(dice, fits)
        run = _one(dice, (ops.matmul, np.matmul, lambda a, b: a @ b))
        return Step("matmul", (i, j), run, lambda fr, a, b: a @ b)
    w = np.round(dice.standard_normal((shapes[i][-1], *((2,) if dice.random() < 0.8 else ()))) * 4) / 4
    return Step("matmul array", (i,), lambda x: x @ w.astype(x.dtype), lambda fr, x: x @ w)


def added_product(dice, shapes):
    """c + a @ b written over c."""
    i, j = _number(dice, shapes), _number(dice, shapes)
    fits = [k for k, s in enumerate(shapes) if len(shapes[i]) > 1 and len(shapes[j]) == 2 and _multiply(shapes[i], shapes[j])
            and s == (*shapes[i][:-1], shapes[j][1])]
    if not fits:
        return None
    return Step("add_to", (_one(dice, fits), i, j),
                lambda c, a, b: ops.matmul(a, b, add_to=c + 0.5), lambda fr, c, a, b: c + LONG(0.5) + a @ b)


EINSUM = ("ij,jk->ik", "ij,kj->ik", "ij,ij->i", "ij,ij", "ij->j", "ijk->ki", "ijk,jk->ij", "i,j->ij", "i,ij->j", "ij,j,i->", ",ij->ji",
          "ijk,ilk->ijl", "ij,k->i")


def einsum(dice, shapes):
    subscripts = _one(dice, EINSUM)
    terms, sizes, taken = subscripts.partition("->")[0].split(","), {}, []
    for term in terms:
        fits = [k for k, s in enumerate(shapes) if len(s) == len(term) and all(sizes.get(a, n) == n for a, n in zip(term, s))]
        if not fits:
            return None
        taken.append(_one(dice, fits))
        sizes |= dict(zip(term, shapes[taken[-1]]))
    run = np.einsum if dice.random() < 0.5 else ops.einsum
    return Step(f"einsum {subscripts}", tuple(taken), lambda *x: run(subscripts, *x), lambda fr, *x: np.einsum(subscripts, *x))


def by_head(dice, shapes):
    fits = [(i, j) for i, a in enumerate(shapes) for j, b in enumerate(shapes) if len(a) == len(b) == 3 and a[1:] == b[:2]]
    if not fits:
        return None
    return Step("matmul_by_head", _one(dice, fits), ops.matmul_by_head, lambda fr, x, w: np.einsum("nhi,hio->nho", x, w))


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


def over_axes(dice, shapes):
    i = _number(dice, shapes)
    ndim, name, keepdims = len(shapes[i]), _one(dice, OVER_AXES), bool(dice.integers(2))
    if ndim and dice.random() < 0.75:
        chosen = dice.permutation(ndim)[: dice.integers(1, ndim + 1)]
        axis = tuple(int(a) - ndim * int(dice.integers(2)) for a in chosen)
        axis = axis[0] if len(axis) == 1 and dice.random() < 0.7 else axis
    else:
        axis = None
    axes = tuple(range(ndim)) if axis is None else tuple(a % ndim for a in np.atleast_1d(axis))
    n = math.prod(shapes[i][a] for a in axes)
    if n < (1 if name in ("mean", "max", "min", "logsumexp") else 2 if name in ("var", "std") else 0):
        name = "sum"
    if name == "std":
        run = lambda x: (x + _ramp(x)).std(axis, keepdims=keepdims)  # noqa: E731
    elif name == "logsumexp" or dice.random() < 0.5:
        run = lambda x: getattr(ops, name)(x, axis, keepdims=keepdims)  # noqa: E731
    else:
        run = lambda x: getattr(np, name)(x, axis=axis, keepdims=keepdims)  # noqa: E731
    return Step(f"{name} {axis} {keepdims}", (i,), run, lambda fr, x: OVER_AXES[name](fr, x, axes, keepdims))


def along_axis(dice, shapes):
    i = _number(dice, shapes)
    ndim, name = len(shapes[i]), _one(dice, ("cumsum", "softmax", "log_softmax"))
    if name == "cumsum" and (not ndim or dice.random() < 0.3):
        return Step("cumsum", (i,), lambda x: x.cumsum(), lambda fr, x: np.cumsum(x))
    if not ndim:
        return None
    axis = int(dice.integers(-ndim, ndim))
    if name == "cumsum":
        return Step(f"cumsum {axis}", (i,), lambda x: np.cumsum(x, axis=axis), lambda fr, x: np.cumsum(x, axis))

    def formula(fr, x):
        z = x - fr(x.max(axis, keepdims=True, initial=-100))
        total = np.exp(z).sum(axis, keepdims=True)
        return np.exp(z) / total if name == "softmax" else z - np.log(total)

    return Step(f"{name} {axis}", (i,), lambda x: getattr(x, name)(axis), formula)


# ---- shapes, slices, rows


def shaping(dice, shapes):
    i = _number(dice, shapes)
    shape, ndim, kind = shapes[i], len(shapes[i]), int(dice.integers(7))
    if kind == 0:
        new = _factors(dice, math.prod(shape))
        return Step(f"reshape {new}", (i,), lambda x: x.reshape(*new) if new else x.reshape(()), lambda fr, x: x.reshape(new))
    if kind == 1:
        axes = tuple(int(a) for a in dice.permutation(ndim))
        if dice.random() < 0.5 or not ndim:
            return Step("T", (i,), lambda x: x.T, lambda fr, x: x.T)
        return Step(f"transpose {axes}", (i,), lambda x: x.transpose(*axes), lambda fr, x: x.transpose(axes))
    if kind == 2:
        return Step("squeeze", (i,), np.squeeze, lambda fr, x: np.squeeze(x))
    if kind == 3:
        axis = int(dice.integers(-ndim - 1, ndim + 1))
        return Step(f"expand_dims {axis}", (i,), lambda x: np.expand_dims(x, axis), lambda fr, x: np.expand_dims(x, axis))
    if kind == 4:
        j, axis = _one(dice, [j for j, s in enumerate(shapes) if s == shape]), int(dice.integers(-ndim - 1, ndim + 1))
        return Step(f"stack {axis}", (i, j), lambda a, b: ops.stack([a, b, a], axis), lambda fr, a, b: np.stack([a, b, a], axis))
    if kind == 5 and ndim:
        axis = int(dice.integers(ndim))
        j = _one(dice, [j for j, s in enumerate(shapes) if len(s) == ndim and s[:axis] + s[axis + 1 :] == shape[:axis] + shape[axis + 1 :]])
        return Step(f"concat {axis}", (i, j), lambda a, b: np.concatenate([a, b, a], axis), lambda fr, a, b: np.concatenate([a, b, a], axis))
    if kind == 6 and ndim:
        return Step("flatten", (i,), lambda x: x.flatten(), lambda fr, x: x.reshape(len(x), math.prod(shape[1:])))
    return None


def indexing(dice, shapes):
    i = _number(dice, shapes)
    shape = shapes[i]
    if not shape:
        return None
    kind, n = int(dice.integers(6)), shape[0]
    if kind < 2:
        index = _slices(dice, shape)
        return Step(f"getitem {index}", (i,), lambda x: x[index], lambda fr, x: x[index])
    index = dice.integers(0, max(n, 1), (0,) if not n else _one(dice, [(4,), (2, 3), (0,), (1,)])).astype(_one(dice, (np.int32, np.int64)))
    if kind == 2:
        return Step("take", (i,), lambda x: ops.take(x, index), lambda fr, x: x[index])
    if kind == 3:
        signed = index - n * dice.integers(0, 2, index.shape)
        return Step("rows", (i,), lambda x: x[signed], lambda fr, x: x[signed])
    if kind == 4:
        mask = dice.random(n) < 0.5
        return Step("mask", (i,), lambda x: x[mask], lambda fr, x: x[mask])
    axis = _one(dice, [None, *range(-len(shape), len(shape))])
    most = math.prod(shape) if axis is None else shape[axis]
    picks = dice.integers(-most, most, _one(dice, [(3,), (2, 2), ()])) if most else np.zeros(0, int)
    if picks.ndim == 0:
        picks = picks.reshape(1)
    return Step(f"np.take {axis}", (i,), lambda x: np.take(x, picks, axis=axis), lambda fr, x: np.take(x, picks, axis))


def scattering(dice, shapes):
    i = _number(dice, shapes)
    if not shapes[i]:
        return None
    dims = int(dice.integers(1, min(len(shapes[i]), 2) + 1))
    index = dice.integers(0, 3, shapes[i][:dims])

    def formula(fr, x):
        out = np.zeros((3, *shapes[i][dims:]), x.dtype)
        for at, row in zip(index.reshape(-1), x.reshape(index.size, *shapes[i][dims:])):
            out[at] += row
        return out

    return Step("scatter_add", (i,), lambda x: ops.scatter_add(x, index, 3), formula)


def iterating(dice, shapes):
    i = _number(dice, shapes)
    if not shapes[i] or not shapes[i][0]:
        return None
    return Step("iterate", (i,), lambda x: sum((row * (k + 1) for k, row in enumerate(x)), 0.0),
                lambda fr, x: sum(x[k] * (k + 1) for k in range(len(x))))


# ---- losses, norm, dropout


def _reduce(losses, reduction, divisor):
    return losses if reduction == "none" else losses.sum() / (divisor if reduction == "mean" else 1)


def of_classes(dice, shapes):
    fits = [i for i, s in enumerate(shapes) if len(s) == 2 and s[1]]
    if not fits:
        return None
    i = _one(dice, fits)
    n, c = shapes[i]
    labels, reduction = dice.integers(0, c, n), _one(dice, ("mean", "sum", "none"))
    picked, rows = _picked_rows(dice, n)
    weight, row_weight = (dice.random(m) + 0.5 if dice.random() < 0.4 else None for m in (c, n))
    factor = (1 if weight is None else weight[labels[rows]]) * (np.ones(len(rows)) if row_weight is None else row_weight[rows])
    count = float(dice.integers(1, 9)) if reduction == "mean" and dice.random() < 0.4 else None
    divisor = count or (factor.sum() if len(rows) else 1)
    name = _one(dice, ("cross_entropy", "nll"))

    def formula(fr, x):
        z = x[rows]
        if name == "cross_entropy":
            z = z - np.log(np.exp(z).sum(1, keepdims=True))
        return _reduce(-z[np.arange(len(z)), labels[rows]] * factor, reduction, divisor)

    def run(x):
        cast = [None if a is None else a.astype(x.dtype) for a in (weight, row_weight)]
        return getattr(ops, name)(x, labels, picked, count, weight=cast[0], row_weight=cast[1], reduction=reduction)

    return Step(f"{name} {reduction}", (i,), run, formula)


def of_values(dice, shapes):
    i = _number(dice, shapes)
    shape, name, reduction = shapes[i], _one(dice, ("bce_with_logits", "mse", "mae")), _one(dice, ("mean", "sum", "none"))
    n = shape[0] if shape else 0
    picked, rows = _picked_rows(dice, n) if shape else (None, Ellipsis)
    weight = np.round(dice.random(shape[-1:]) * 8) / 8 if dice.random() < 0.4 and shape else None
    taken, targets = (i,), np.round(dice.random(shape) * 8) / 8
    if name != "bce_with_logits" and dice.random() < 0.5:
        taken = (i, _one(dice, [j for j, s in enumerate(shapes) if s == shape]))

    def formula(fr, x, t=targets):
        x, t = x[rows], t[rows]
        losses = {"bce_with_logits": lambda: np.log1p(np.exp(x)) - x * t, "mse": lambda: (x - t) ** 2,
                  "mae": lambda: (x - t) * fr(np.sign(x - t), x - t)}[name]()
        losses = losses * (1 if weight is None else np.broadcast_to(weight, shape)[rows])
        return _reduce(losses, reduction, max(losses.size, 1))

    def run(x, t=targets):
        t = t if isinstance(t, Tensor) else t.astype(x.dtype)
        return getattr(ops, name)(x, t, picked, weight=None if weight is None else weight.astype(x.dtype), reduction=reduction)

    return Step(f"{name} {reduction}", taken, run, formula)


def _picked_rows(dice, n):
    """(what picks rows, their numbers)"""
    kind = int(dice.integers(4))
    if kind == 0:
        return None, np.arange(n)
    if kind == 1:
        mask = dice.random(n) < 0.6
        return mask, np.flatnonzero(mask)
    if kind == 2:
        return slice(1, None, 2), np.arange(n)[1::2]
    numbers = dice.integers(0, n, n + 1 + int(dice.integers(2))) if n else np.zeros(0, int)
    return numbers, numbers


def layer_norm(dice, shapes):
    i = _number(dice, shapes)
    fits = [j for j, s in enumerate(shapes) if shapes[i] and s == shapes[i][-1:] and s[0] > 1]
    if not fits:
        return None

    def formula(fr, x, gamma, beta):
        mean = x.sum(-1, keepdims=True) / x.shape[-1]
        variance = ((x - mean) ** 2).sum(-1, keepdims=True) / x.shape[-1]
        return (x - mean) / np.sqrt(variance + LONG(0.1)) * gamma + beta

    return Step("layer_norm", (i, _one(dice, fits), _one(dice, fits)), lambda x, g, b: ops.layer_norm(x, g, b, 0.1), formula)


def dropout(dice, shapes):
    i = _number(dice, shapes)
    if not shapes[i]:
        return None
    ids, key = dice.integers(0, 1000, shapes[i][0]), int(dice.integers(1 << 40))
    mask = ops.dropout(Tensor(np.ones(shapes[i])), ids, key, 0.5).data
    return Step("dropout", (i,), lambda x: ops.dropout(x, ids, key, 0.5), lambda fr, x: x * mask)


FAMILIES = {  # family -> how often
    unary: 6, binary: 6, with_array: 3, product: 4, added_product: 1, einsum: 3, by_head: 2, over_axes: 5, along_axis: 2, shaping: 6,
    indexing: 4, scattering: 1, iterating: 1, of_classes: 1, of_values: 2, layer_norm: 3, dropout: 1,
}  # fmt: skip
NAMES, ODDS = list(FAMILIES), np.array(list(FAMILIES.values())) / sum(FAMILIES.values())


def draw(dice, shapes):
    """A step for values of these shapes."""
    while True:
        step = NAMES[int(dice.choice(len(NAMES), p=ODDS))](dice, shapes)
        if step is not None:
            return step


# ---- small things that are drawn


def _one(dice, values):
    values = list(values)
    return values[int(dice.integers(len(values)))]


def _number(dice, shapes):
    """A value's number; later ones more often."""
    return max(int(dice.integers(len(shapes))), int(dice.integers(len(shapes)))) if dice.random() < 0.6 else int(dice.integers(len(shapes)))


def _fit(a, b):
    try:
        np.broadcast_shapes(a, b)
    except ValueError:
        return False
    return True


def _multiply(a, b):
    if not a or not b or a[-1] != b[max(len(b) - 2, 0)]:
        return False
    return len(a) < 3 or len(b) < 3 or _fit(a[:-2], b[:-2])


def _factors(dice, size):
    if size == 0:
        return _one(dice, [(0,), (2, 0), (0, 3), (1, 0, 2)])
    found = [(size,), (1, size), (size, 1), *[(k, size // k) for k in (2, 3, 4) if size % k == 0]]
    return _one(dice, found + [(2, size // 4, 2)] * (size % 4 == 0) + [()] * (size == 1))


def _slices(dice, shape):
    if dice.random() < 0.2:
        return Ellipsis, slice(None, None, -2)
    parts = []
    for n in shape[: dice.integers(1, len(shape) + 1)]:
        kind = int(dice.integers(6))
        parts += {0: [slice(None, None, -1)], 1: [slice(1, None)], 2: [slice(None, -1, 2)], 3: [None, slice(None)],
                  4: [int(dice.integers(-n, n)) if n else slice(None)], 5: [slice(None)]}[kind]
    return tuple(parts) if len(parts) != 1 or dice.random() < 0.3 else parts[0]
