"""Checks of gradients against numerical derivatives in long double, where choices (argmax, dropout mask) stay the same."""

import numpy as np

LONG = np.longdouble
STEP = LONG(1e-4)
WEIGHTS = ((1, LONG(2) / 3), (2, LONG(-1) / 12))  # central differences of fourth order


class Unclear(Exception):
    """Exception for a random program whose gradient cannot be checked: values are too large, or a choice depends on rounding."""


class Frozen:
    """Record of the choices (argmax, dropout, constants) in a formula's first evaluation, which all later evaluations repeat."""

    def __init__(self, near):
        self.near, self._values, self._next = near, [], None

    def __call__(self, value, gap=None):
        """Return the choice `value`, recorded, in a first evaluation, and the recorded one later; raise Unclear if `gap` shows a near tie.

        A choice is an argmax, for example. `gap` is the distance to another choice; a gap of exactly 0 is a choice,
        too.
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


def slope(formula, frozen_choices, leaves, directions, weights):
    """Return d/dt of sum(weights * formula(frozen_choices, leaves + t * directions)) at t = 0, by central differences."""

    def loss(t):
        moved = [x + t * v for x, v in zip(leaves, directions)]
        return sum(((w * out).sum() for w, out in zip(weights, formula(frozen_choices.again(), moved))), LONG(0))

    return sum(c * (loss(k * STEP) - loss(-k * STEP)) for k, c in WEIGHTS) / STEP


def check(formula, frozen_choices: Frozen, leaves, gradients: list, weights: list, rng, rtol: float, names=None):
    """Check each leaf's gradient (None: zeros) against the numerical derivative of sum(weights * formula) in a random direction.

    The leaves are long doubles.
    """
    for k, (x, grad) in enumerate(zip(leaves, gradients)):
        v = rng.standard_normal(x.shape)
        directions = [v if j == k else np.zeros(y.shape) for j, y in enumerate(leaves)]
        expected = slope(formula, frozen_choices, leaves, directions, weights)
        terms = np.zeros(1) if grad is None else grad.astype(LONG) * v
        slope_on_tape, size = terms.sum(), max(np.abs(terms).sum(), abs(expected), 1)
        if not abs(slope_on_tape - expected) <= rtol * size:
            name = k if names is None else names[k]
            raise AssertionError(
                f"gradient of leaf {name} {x.shape}: {slope_on_tape} along a direction, where differences give {expected}"
            )


def close(actual, expected, rtol, error_prefix):
    """Check that |actual - expected| <= rtol * max(1, largest expected value); an error's message begins with `error_prefix`."""
    assert actual.shape == expected.shape, f"{error_prefix}: shape {actual.shape}, not {expected.shape}"
    size = max(np.abs(expected).max(initial=0), 1)
    difference = np.abs(actual.astype(LONG) - expected).max(initial=0)
    assert difference <= rtol * size, f"{error_prefix} is off by {difference}"
