"""Steps of random tape programs that move values (reshape, index ...) or compute losses; `tape_steps` draws them."""

import math

import numpy as np

from sarlite.tape import Tensor, ops
from tests.helpers.tape.slopes import LONG
from tests.helpers.tape.tape_drawing import Step, number, one

# ---- shapes, slices, rows


def shaping(rng, shapes):
    i = number(rng, shapes)
    shape, ndim, kind = shapes[i], len(shapes[i]), int(rng.integers(7))
    if kind == 0:
        new = _factors(rng, math.prod(shape))
        return Step(
            f"reshape {new}", (i,), lambda x: x.reshape(*new) if new else x.reshape(()), lambda fr, x: x.reshape(new)
        )
    if kind == 1:
        axes = tuple(int(a) for a in rng.permutation(ndim))
        if rng.random() < 0.5 or not ndim:
            return Step("T", (i,), lambda x: x.T, lambda fr, x: x.T)
        return Step(f"transpose {axes}", (i,), lambda x: x.transpose(*axes), lambda fr, x: x.transpose(axes))
    if kind == 2:
        return Step("squeeze", (i,), np.squeeze, lambda fr, x: np.squeeze(x))
    if kind == 3:
        axis = int(rng.integers(-ndim - 1, ndim + 1))
        return Step(
            f"expand_dims {axis}", (i,), lambda x: np.expand_dims(x, axis), lambda fr, x: np.expand_dims(x, axis)
        )
    if kind == 4:
        j, axis = one(rng, [j for j, s in enumerate(shapes) if s == shape]), int(rng.integers(-ndim - 1, ndim + 1))
        return Step(
            f"stack {axis}", (i, j), lambda a, b: ops.stack([a, b, a], axis), lambda fr, a, b: np.stack([a, b, a], axis)
        )
    if kind == 5 and ndim:
        axis = int(rng.integers(ndim))
        j = one(
            rng,
            [
                j
                for j, s in enumerate(shapes)
                if len(s) == ndim and s[:axis] + s[axis + 1 :] == shape[:axis] + shape[axis + 1 :]
            ],
        )
        return Step(
            f"concat {axis}",
            (i, j),
            lambda a, b: np.concatenate([a, b, a], axis),
            lambda fr, a, b: np.concatenate([a, b, a], axis),
        )
    if kind == 6 and ndim:
        return Step("flatten", (i,), lambda x: x.flatten(), lambda fr, x: x.reshape(len(x), math.prod(shape[1:])))
    return None


def indexing(rng, shapes):
    i = number(rng, shapes)
    shape = shapes[i]
    if not shape:
        return None
    kind, n = int(rng.integers(6)), shape[0]
    if kind < 2:
        index = _slices(rng, shape)
        return Step(f"getitem {index}", (i,), lambda x: x[index], lambda fr, x: x[index])
    index = rng.integers(0, max(n, 1), (0,) if not n else one(rng, [(4,), (2, 3), (0,), (1,)])).astype(
        one(rng, (np.int32, np.int64))
    )
    if kind == 2:
        return Step("take", (i,), lambda x: ops.take(x, index), lambda fr, x: x[index])
    if kind == 3:
        signed = index - n * rng.integers(0, 2, index.shape)
        return Step("rows", (i,), lambda x: x[signed], lambda fr, x: x[signed])
    if kind == 4:
        mask = rng.random(n) < 0.5
        return Step("mask", (i,), lambda x: x[mask], lambda fr, x: x[mask])
    axis = one(rng, [None, *range(-len(shape), len(shape))])
    most = math.prod(shape) if axis is None else shape[axis]
    picks = rng.integers(-most, most, one(rng, [(3,), (2, 2), ()])) if most else np.zeros(0, int)
    if picks.ndim == 0:
        picks = picks.reshape(1)
    return Step(f"np.take {axis}", (i,), lambda x: np.take(x, picks, axis=axis), lambda fr, x: np.take(x, picks, axis))


def scattering(rng, shapes):
    i = number(rng, shapes)
    if not shapes[i]:
        return None
    dims = int(rng.integers(1, min(len(shapes[i]), 2) + 1))
    index = rng.integers(0, 3, shapes[i][:dims])

    def formula(fr, x):
        out = np.zeros((3, *shapes[i][dims:]), x.dtype)
        for at, row in zip(index.reshape(-1), x.reshape(index.size, *shapes[i][dims:])):
            out[at] += row
        return out

    return Step("scatter_add", (i,), lambda x: ops.scatter_add(x, index, 3), formula)


def iterating(rng, shapes):
    i = number(rng, shapes)
    if not shapes[i] or not shapes[i][0]:
        return None
    return Step(
        "iterate",
        (i,),
        lambda x: sum((row * (k + 1) for k, row in enumerate(x)), 0.0),
        lambda fr, x: sum(x[k] * (k + 1) for k in range(len(x))),
    )


def _factors(rng, size):
    if size == 0:
        return one(rng, [(0,), (2, 0), (0, 3), (1, 0, 2)])
    shapes = [(size,), (1, size), (size, 1), *[(k, size // k) for k in (2, 3, 4) if size % k == 0]]
    return one(rng, shapes + [(2, size // 4, 2)] * (size % 4 == 0) + [()] * (size == 1))


def _slices(rng, shape):
    if rng.random() < 0.2:
        return Ellipsis, slice(None, None, -2)
    parts = []
    for n in shape[: rng.integers(1, len(shape) + 1)]:
        kind = int(rng.integers(6))
        parts += {
            0: [slice(None, None, -1)],
            1: [slice(1, None)],
            2: [slice(None, -1, 2)],
            3: [None, slice(None)],
            4: [int(rng.integers(-n, n)) if n else slice(None)],
            5: [slice(None)],
        }[kind]
    return tuple(parts) if len(parts) != 1 or rng.random() < 0.3 else parts[0]


# ---- losses, norm, dropout


def _reduce(losses, reduction, divisor):
    return losses if reduction == "none" else losses.sum() / (divisor if reduction == "mean" else 1)


def of_classes(rng, shapes):
    fits = [i for i, s in enumerate(shapes) if len(s) == 2 and s[1]]
    if not fits:
        return None
    i = one(rng, fits)
    n, c = shapes[i]
    labels, reduction = rng.integers(0, c, n), one(rng, ("mean", "sum", "none"))
    picked, rows = _picked_rows(rng, n)
    weight, row_weight = (rng.random(m) + 0.5 if rng.random() < 0.4 else None for m in (c, n))
    factor = (1 if weight is None else weight[labels[rows]]) * (
        np.ones(len(rows)) if row_weight is None else row_weight[rows]
    )
    count = float(rng.integers(1, 9)) if reduction == "mean" and rng.random() < 0.4 else None
    divisor = count or (factor.sum() if len(rows) else 1)
    name = one(rng, ("cross_entropy", "nll"))

    def formula(fr, x):
        z = x[rows]
        if name == "cross_entropy":
            z = z - np.log(np.exp(z).sum(1, keepdims=True))
        return _reduce(-z[np.arange(len(z)), labels[rows]] * factor, reduction, divisor)

    def run(x):
        cast = [None if a is None else a.astype(x.dtype) for a in (weight, row_weight)]
        return getattr(ops, name)(x, labels, picked, count, weight=cast[0], row_weight=cast[1], reduction=reduction)

    return Step(f"{name} {reduction}", (i,), run, formula)


def of_values(rng, shapes):
    i = number(rng, shapes)
    shape, name, reduction = shapes[i], one(rng, ("bce_with_logits", "mse", "mae")), one(rng, ("mean", "sum", "none"))
    n = shape[0] if shape else 0
    picked, rows = _picked_rows(rng, n) if shape else (None, Ellipsis)
    weight = np.round(rng.random(shape[-1:]) * 8) / 8 if rng.random() < 0.4 and shape else None
    taken, targets = (i,), np.round(rng.random(shape) * 8) / 8
    if name != "bce_with_logits" and rng.random() < 0.5:
        taken = (i, one(rng, [j for j, s in enumerate(shapes) if s == shape]))

    def formula(fr, x, t=targets):
        x, t = x[rows], t[rows]
        losses = {
            "bce_with_logits": lambda: np.log1p(np.exp(x)) - x * t,
            "mse": lambda: (x - t) ** 2,
            "mae": lambda: (x - t) * fr(np.sign(x - t), x - t),
        }[name]()
        losses = losses * (1 if weight is None else np.broadcast_to(weight, shape)[rows])
        return _reduce(losses, reduction, max(losses.size, 1))

    def run(x, t=targets):
        t = t if isinstance(t, Tensor) else t.astype(x.dtype)
        return getattr(ops, name)(
            x, t, picked, weight=None if weight is None else weight.astype(x.dtype), reduction=reduction
        )

    return Step(f"{name} {reduction}", taken, run, formula)


def _picked_rows(rng, n):
    """Return a random (index of rows: None, a mask, a slice or numbers; the row numbers that it selects among `n` rows)."""
    kind = int(rng.integers(4))
    if kind == 0:
        return None, np.arange(n)
    if kind == 1:
        mask = rng.random(n) < 0.6
        return mask, np.flatnonzero(mask)
    if kind == 2:
        return slice(1, None, 2), np.arange(n)[1::2]
    numbers = rng.integers(0, n, n + 1 + int(rng.integers(2))) if n else np.zeros(0, int)
    return numbers, numbers


def layer_norm(rng, shapes):
    i = number(rng, shapes)
    fits = [j for j, s in enumerate(shapes) if shapes[i] and s == shapes[i][-1:] and s[0] > 1]
    if not fits:
        return None

    def formula(fr, x, gamma, beta):
        mean = x.sum(-1, keepdims=True) / x.shape[-1]
        variance = ((x - mean) ** 2).sum(-1, keepdims=True) / x.shape[-1]
        return (x - mean) / np.sqrt(variance + LONG(0.1)) * gamma + beta

    return Step(
        "layer_norm", (i, one(rng, fits), one(rng, fits)), lambda x, g, b: ops.layer_norm(x, g, b, 0.1), formula
    )


def dropout(rng, shapes):
    i = number(rng, shapes)
    if not shapes[i]:
        return None
    ids, key = rng.integers(0, 1000, shapes[i][0]), int(rng.integers(1 << 40))
    mask = ops.dropout(Tensor(np.ones(shapes[i])), ids, key, 0.5).data
    return Step("dropout", (i,), lambda x: ops.dropout(x, ids, key, 0.5), lambda fr, x: x * mask)
