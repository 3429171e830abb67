"""Mean and squared deviations of columns."""

import numpy as np

from sarlite.kernels.native import FLOATS, call, check, team


def columns(x, name="x"):
    """Check a matrix; return its shape."""
    check(name, x, dtype=FLOATS, shape=(None, None))
    return x.shape


def column_moments(x, mean, m2):
    """Overwrite the mean and the sum of squared deviations of each column; zeros when there are no rows.

    Parameters
    ----------
    x : (n, F) float32 or float64
    mean, m2 : (F,) float64

    Notes
    -----
    O(n * F) time, 16 * threads * F bytes. Welford's update; ranges of rows are merged in thread order (Chan, Golub,
    LeVeque 1979), so the result is the same for the same number of threads. """
    n, n_feat = columns(x)
    check("mean", mean, dtype=np.float64, shape=(n_feat,), out=True)
    check("m2", m2, dtype=np.float64, shape=(n_feat,), out=True)
    n_threads = team(x.size)
    workspace = np.empty((n_threads, 2, n_feat))
    call(f"sar_column_moments_forward_{FLOATS[x.dtype]}", mean, m2, workspace, x, n_threads, n, n_feat)
