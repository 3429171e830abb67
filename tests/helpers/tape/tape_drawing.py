"""`Step`, one operation of a random tape program, and small random choices that the modules of steps share."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np


class Step(NamedTuple):
    name: str
    taken: tuple
    run: Callable
    formula: Callable


def one(rng, values):
    values = list(values)
    return values[int(rng.integers(len(values)))]


def number(rng, value_shapes):
    """Return the random number of a program's value, an index into the values' shapes; later values are more likely."""
    return (
        max(int(rng.integers(len(value_shapes))), int(rng.integers(len(value_shapes))))
        if rng.random() < 0.6
        else int(rng.integers(len(value_shapes)))
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
