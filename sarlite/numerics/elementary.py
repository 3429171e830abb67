"""Elementary functions whose last bits depend on the library: exact numerics replaces each of them by its own."""

import numpy as np

from sarlite.numerics.selection import by_numerics


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
