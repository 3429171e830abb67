"""Gradients checked against numerical derivatives in long double; an argmax or a dropout mask stays as in the first call."""

import numpy as np

LONG = np.longdouble
STEP = LONG(1e-4)
WEIGHTS = ((1, LONG(2) / 3), (2, LONG(-1) / 12))  # central differences of fourth order


class Unclear(Exception):
    """Exception for a random program whose gradient cannot be checked: values are too large, or a choice depends on rounding."""


class Frozen:
    """Record of the choices (argmax, dropout, constants) of a formula's first call; calls for numerical derivatives repeat them."""

    def __init__(self, near):
        self.near, self._values, self._next = near, [], None

    def __call__(self, value, gap=None):
        """Return the choice of the formula's first evaluation, which is `value` there; raise Unclear if `gap` to another choice is tiny.

        A choice is an argmax, for example. A gap of exactly 0 is a choice, too.
        """
        if self._next is None:
            if gap is not None and ((0 < np.abs(gap)) & (np.abs(gap) < self.near)).any():
                raise Unclear
            self._values.append(np.copy(value))
            return value
        self._next += 1
        return self._values[self._next - 1]

    def again(self):
        self._next = 0
        return self


def slope(formula, frozen, leaves, directions, weights):
    """Return d/dt of sum(weights * formula(leaves + t * directions)) at t = 0, by central differences with the choices `frozen`."""

    def loss(t):
        moved = [x + t * v for x, v in zip(leaves, directions)]
        return sum(((w * out).sum() for w, out in zip(weights, formula(frozen.again(), moved))), LONG(0))

    return sum(c * (loss(k * STEP) - loss(-k * STEP)) for k, c in WEIGHTS) / STEP


def check(formula, frozen, leaves, grads, weights, dice, rtol, names=None):
    """Check each leaf's gradient (None: zeros) against the formula's derivative along a random direction; leaves are long doubles."""
    for k, (x, grad) in enumerate(zip(leaves, grads)):
        v = dice.standard_normal(x.shape)
        directions = [v if j == k else np.zeros(y.shape) for j, y in enumerate(leaves)]
        expected = slope(formula, frozen, leaves, directions, weights)
        terms = np.zeros(1) if grad is None else grad.astype(LONG) * v
        slope_on_tape, size = terms.sum(), max(np.abs(terms).sum(), abs(expected), 1)
        if not abs(slope_on_tape - expected) <= rtol * size:
            name = k if names is None else names[k]
            raise AssertionError(
                f"gradient of leaf {name} {x.shape}: {slope_on_tape} along a direction, where differences give {expected}"
            )


def close(actual, expected, rtol, what):
    """Check that |actual - expected| <= `rtol` times the largest value or 1, whichever is more; `what` begins the error message."""
    assert actual.shape == expected.shape, f"{what}: shape {actual.shape}, not {expected.shape}"
    size = max(np.abs(expected).max(initial=0), 1)
    difference = np.abs(actual.astype(LONG) - expected).max(initial=0)
    assert difference <= rtol * size, f"{what} is off by {difference}"
