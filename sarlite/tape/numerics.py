"""Numerics: how reductions are done, and the functions whose bits a library chooses.

A numerics is one object. Where this thread has one, a function that `by_numerics` marks is done by the object's method
of the same name; where it has none, which is "fast", by the function itself.
"""

import functools
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, TypeVar

import numpy as np

from sarlite.tape.recording import _set, state

NUMERICS = ("fast", "exact")
T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])


def current() -> Any:
    """Return this thread's numerics; None is "fast"."""
    return state.numerics


def name() -> str:
    """Return the name of this thread's numerics."""
    return "fast" if state.numerics is None else state.numerics.name


def using(numerics: Any) -> AbstractContextManager[None]:
    """Return a context in which this thread's reductions are done by a numerics; None is "fast".

    What is recorded on the tape there is also carried back by it, wherever `backward` is called.
    """
    return _set("numerics", numerics)


def by_numerics(function: F) -> F:
    """Mark a function that a numerics does by its method of this name."""
    name = function.__name__

    @functools.wraps(function)
    def done(*args: Any, **options: Any) -> Any:
        numerics = state.numerics
        return (function if numerics is None else getattr(numerics, name))(*args, **options)

    return done  # type: ignore[return-value]


@by_numerics
def sums_follow() -> bool:
    """Tell whether gradients of replicated parameters are a rank's own, which are summed over ranks after backward."""
    return True


@by_numerics
def known(alone: T, anywhere: T) -> T:
    """Return what a choice goes by: on one rank alone more may be known than anywhere."""
    return alone


# ---- functions of single values


@by_numerics
def exp(x, out=None):
    return np.exp(x, out=out)


@by_numerics
def log(x):
    return np.log(x)


@by_numerics
def log1p(x):
    """log(1 + x) of 0 <= x <= 1."""
    return np.log1p(x)


@by_numerics
def expm1(x, out=None):
    """exp(x) - 1 of x <= 0."""
    return np.expm1(x, out=out)


@by_numerics
def power(base, n):
    """A float to a whole number."""
    return base**n
