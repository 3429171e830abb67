"""Selection of the numerics of a thread: how reductions and elementary functions are computed.

In numerics "fast", a function that `by_numerics` decorates computes its result itself. Any other numerics is an object,
such as `Exact`, and the decorated function calls the object's method with the same name.
"""

import functools
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import ParamSpec, Protocol, TypeVar

import numpy as np

from sarlite.numerics.placement import Placement

NUMERICS = ("fast", "exact")
"""Names of all numerics."""

T = TypeVar("T")
P = ParamSpec("P")


class Numerics(Protocol):
    """Protocol for a numerics other than "fast", which is a way to compute sums and elementary functions. A numerics also has
    methods for functions that are decorated by `by_numerics`, with the same names.
    """

    name: str

    def check_supported(self, name: str) -> None:
        """Raise a ConfigError if this numerics, fast or exact, has no implementation of the tape's primitive (differentiable operation)
        `name`.
        """

    def check_rows(self, name: str, inputs: Sequence[object], placements: Sequence[Placement | None],
                   wants_grad: Sequence[bool], result: Placement, params: dict[str, object]) -> None:
        """Raise a ConfigError if the result or a gradient of the primitive `name` depends on the division of rows among ranks."""

    def backward(self, node: "Placed") -> AbstractContextManager[None]:
        """Return the context manager inside which the tape computes the gradients of the inputs of `node`."""


class Placed(Protocol):
    """Protocol for a tape node with a placement, which says if each rank has other rows or the same values."""

    placement: Placement


class _State(threading.local):
    numerics: Numerics | None = None


_state = _State()


def current() -> Numerics | None:
    """Return the numerics of this thread; None stands for "fast"."""
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
    """Return a context inside which this thread uses `numerics`; None stands for "fast".

    Operations that are recorded on the tape inside the context also use `numerics` in the backward pass, even if
    `backward` is called outside of the context.

    Examples
    --------
    >>> from sarlite import Solo, numerics
    >>> from sarlite.numerics.exact_sum import Exact
    >>> with numerics.using(Exact(Solo())):
    ...     numerics.name()
    'exact'
    """
    before, _state.numerics = _state.numerics, numerics
    try:
        yield
    finally:
        _state.numerics = before


def by_numerics(function: Callable[P, T]) -> Callable[P, T]:
    """Decorate a function so that it runs only in numerics "fast". In another numerics, the numerics' method of the same name is
    called with the same arguments.
    """
    name = function.__name__

    @functools.wraps(function)
    def dispatched(*args: P.args, **options: P.kwargs) -> T:
        numerics = _state.numerics
        chosen: Callable[P, T] = function if numerics is None else getattr(numerics, name)
        return chosen(*args, **options)

    return dispatched


@by_numerics
def sums_follow() -> bool:
    """Return True if the gradient of a replicated parameter (the same on every rank) is only this rank's summand, which must be
    summed over ranks, as in fast numerics. Return False in exact numerics, because the vjp has already summed the gradient over
    ranks.
    """
    return True


@by_numerics
def rank_invariant(local: T, shared: T) -> T:
    """Return `local` in fast numerics and `shared` in exact numerics: two values for a choice between computations that round
    differently. `local` may depend on this rank's rows. `shared` must be the same for any number of ranks, so that exact
    results do not depend on it.
    """
    return local


# ---- elementary functions. NumPy's results differ in the last bit between versions and processors, so exact numerics
# ---- replaces these functions


@by_numerics
def exp(x: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
    """Return e**x elementwise, written to `out` unless it is None.

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
    """Return the natural logarithm of x elementwise."""
    return np.log(x)


@by_numerics
def log1p(x: np.ndarray) -> np.ndarray:
    """Return log(1 + x) elementwise for 0 <= x <= 1."""
    return np.log1p(x)


@by_numerics
def expm1(x: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
    """Return exp(x) - 1 elementwise for x <= 0, the range that exact numerics supports. The result is written to `out` unless
    it is None.
    """
    return np.expm1(x, out=out)


@by_numerics
def power(base: float, n: int) -> float:
    """Return base**n for an integer n >= 0."""
    return base**n
