"""Kernel for the mean and the sum of squared deviations of each column of a matrix, for batch norm."""

import numpy as np

from sarlite.kernels.native import FLOATS, call, check, team
from sarlite.types import Array


def columns(x: Array, name: str = "x") -> tuple[int, ...]:
    """Check that x is a matrix of floats, and return its shape; error messages call the matrix `name`."""
    check(name, x, dtype=FLOATS, shape=(None, None))
    return x.shape


def column_moments(x: Array, mean: Array, m2: Array) -> None:
    """Overwrite `mean` with the mean of each column of x, and `m2` with the column's sum of squared deviations from the mean.

    Parameters
    ----------
    x : (n, F) float32 or float64
        Without rows the results are zeros.
    mean, m2 : (F,) float64

    Notes
    -----
    O(n * F) time, 16 * threads * F bytes. Each thread applies Welford's update to a range of rows, and the ranges are
    merged in thread order, so the result is the same for the same number of threads.

    References
    ----------
    Chan, Golub and LeVeque 1979.

    Examples
    --------
    >>> mean, m2 = np.empty(1), np.empty(1)
    >>> column_moments(np.array([[1.0], [3.0]]), mean, m2)
    >>> mean, m2
    (array([2.]), array([2.]))
    """
    n, n_feat = columns(x)
    check("mean", mean, dtype=np.float64, shape=(n_feat,), out=True)
    check("m2", m2, dtype=np.float64, shape=(n_feat,), out=True)
    n_threads = team(x.size)
    workspace = np.empty((n_threads, 2, n_feat))
    call(f"sar_column_moments_forward_{FLOATS[x.dtype]}", mean, m2, workspace, x, n_threads, n, n_feat)
