"""`Step`, a step of random tape programs, and small random choices that the modules of steps share."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np


class Step(NamedTuple):
    name: str
    taken: tuple
    run: Callable
    formula: Callable


def one(dice, values):
    values = list(values)
    return values[int(dice.integers(len(values)))]


def number(dice, shapes):
    """Return a random index into `shapes`, the shapes of a program's values so far; later values are more likely."""
    return (
        max(int(dice.integers(len(shapes))), int(dice.integers(len(shapes))))
        if dice.random() < 0.6
        else int(dice.integers(len(shapes)))
    )


def together(a, b):
    try:
        np.broadcast_shapes(a, b)
    except ValueError:
        return False
    return True


def multiply(a, b):
    if not a or not b or a[-1] != b[max(len(b) - 2, 0)]:
        return False
    return len(a) < 3 or len(b) < 3 or together(a[:-2], b[:-2])
