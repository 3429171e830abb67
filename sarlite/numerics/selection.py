"""Selection of a thread's numerics, and the elementary functions that it may replace.

A numerics is one object. Where a thread uses a numerics, a function that is marked by `by_numerics` calls the object's
method of the same name. Where a thread uses none, which is called "fast", the function itself computes the result.
"""

import functools
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, ParamSpec, Protocol, TypeVar

import numpy as np

from sarlite.numerics.placement import Placement

NUMERICS = ("fast", "exact")
T = TypeVar("T")
P = ParamSpec("P")


class Numerics(Protocol):
    """A way of computing reductions, other than "fast".

    A numerics has a method for each function that is marked by `by_numerics` and that it supports.
    """

    name: str

    def check_supported(self, name: str) -> None:
        """Raise a ConfigError if this numerics does not have the primitive `name`."""

    def check_rows(self, name: str, inputs: Sequence[Any], placements: Sequence[Placement | None],
                   wants_grad: Sequence[bool], result: Placement, params: dict[str, Any]) -> None:
        """Raise a ConfigError if the result or a gradient would depend on how rows are divided among ranks."""

    def backward(self, node: Any) -> AbstractContextManager[None]:
        """Return a context for computing the vjp of a tape node."""


class _State(threading.local):
    numerics: Numerics | None = None


_state = _State()


def current() -> Any:
    """Return the numerics of this thread, or None for "fast"."""
    return _state.numerics


def name() -> str:
    """Return the name of this thread's numerics.

    Examples
    --------
    >>> from sarlite import numerics
    >>> numerics.name()
    'fast'
    """
    return "fast" if _state.numerics is None else _state.numerics.name


@contextmanager
def using(numerics: Numerics | None) -> Iterator[None]:
    """Compute reductions in this thread by `numerics` while the context is active; None is "fast".

    Operations that are recorded on the tape inside the context also use `numerics` in the backward pass, wherever
    `backward` is called.
    """
    before, _state.numerics = _state.numerics, numerics
    try:
        yield
    finally:
        _state.numerics = before


def by_numerics(function: Callable[P, T]) -> Callable[P, T]:
    """Decorate a function so that the thread's numerics, if any, replaces it by its method of the same name."""
    name = function.__name__

    @functools.wraps(function)
    def dispatched(*args: P.args, **options: P.kwargs) -> T:
        numerics = _state.numerics
        chosen: Callable[P, T] = function if numerics is None else getattr(numerics, name)
        return chosen(*args, **options)

    return dispatched


@by_numerics
def sums_follow() -> bool:
    """Return True if the gradients of replicated parameters are this rank's share, to be summed over ranks later."""
    return True


@by_numerics
def rank_invariant(local: T, shared: T) -> T:
    """Return `local` in fast numerics. In exact numerics return `shared`, which every rank knows.

    A choice between two evaluations that round differently must be the same on any number of ranks in exact numerics.
    """
    return local


# ---- elementary functions, whose last bits libraries choose: exact numerics replaces each of them by its own


@by_numerics
def exp(x: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
    """Return e**x elementwise, written to `out` if given.

    Examples
    --------
    >>> import numpy as np
    >>> from sarlite import numerics
    >>> numerics.exp(np.zeros(2))
    array([1., 1.])
    """
    return np.exp(x, out=out)


@by_numerics
def log(x: np.ndarray) -> np.ndarray:
    """Return the natural logarithm elementwise."""
    return np.log(x)


@by_numerics
def log1p(x: np.ndarray) -> np.ndarray:
    """Return log(1 + x) elementwise for 0 <= x <= 1."""
    return np.log1p(x)


@by_numerics
def expm1(x: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
    """Return exp(x) - 1 elementwise for x <= 0, written to `out` if given."""
    return np.expm1(x, out=out)


@by_numerics
def power(base: float, n: int) -> float:
    """Return base**n for a whole number n >= 0."""
    return base**n
