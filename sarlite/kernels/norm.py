"""Column moments and batch norm."""

import numpy as np

from sarlite.kernels.native import (
    FLOATS,
    call,
    check,
    check_apart,
    threads,
)


def _columns(x, name="x"):
    check(name, x, dtype=FLOATS, shape=(None, None))
    return x.shape


def _team(x):
    """Threads for kernels with a private sum for each thread."""
    return threads() if x.size > 32768 else 1


def column_moments(x, mean, m2):
    """Overwrite the mean and the sum of squared deviations of each column; zeros when there are no rows.

    Parameters
    ----------
    x : (n, F) float32 or float64
    mean, m2 : (F,) float64

    Raises
    ------
    ShapeError
        Naming the argument.

    Notes
    -----
    O(n * F) time, 16 * threads * F bytes. Welford's update, ranges of rows merged in thread order (Chan, Golub, LeVeque 1979):
    the same result for the same number of threads.
    """
    n, n_feat = _columns(x)
    check("mean", mean, dtype=np.float64, shape=(n_feat,), out=True)
    check("m2", m2, dtype=np.float64, shape=(n_feat,), out=True)
    n_threads = _team(x)
    workspace = np.empty((n_threads, 2, n_feat))
    call(f"sar_column_moments_forward_{FLOATS[x.dtype]}", mean, m2, workspace, x, n_threads, n, n_feat)


def batch_norm_apply(x, mean, inv_std, gamma, beta, out):
    """Overwrite ``out = (x - mean) * inv_std * gamma + beta``.

    Parameters
    ----------
    x : (n, F) float32 or float64
    mean, inv_std : (F,) float64
    gamma, beta : (F,), x's dtype
    out : (n, F), x's dtype

    Raises
    ------
    ShapeError
        Naming the argument.

    Notes
    -----
    O(n * F) time. Ioffe and Szegedy 2015; SAR sec. 3.4.
    """
    n, n_feat = _columns(x)
    check("mean", mean, dtype=np.float64, shape=(n_feat,))
    check("inv_std", inv_std, dtype=np.float64, shape=(n_feat,))
    check("gamma", gamma, dtype=x.dtype, shape=(n_feat,))
    check("beta", beta, dtype=x.dtype, shape=(n_feat,))
    check("out", out, dtype=x.dtype, shape=x.shape, out=True)
    check_apart(out, x=x)
    call(f"sar_batch_norm_forward_{FLOATS[x.dtype]}", out, x, mean, inv_std, gamma, beta, n, n_feat)


def batch_norm_sums(g, x, mean, inv_std, sum_g, sum_gx):
    """Overwrite the column sums of g and of ``g * xhat``, ``xhat = (x - mean) * inv_std``: gradients of beta and gamma.

    Parameters
    ----------
    g : (n, F), x's dtype
    x : (n, F) float32 or float64
    mean, inv_std, sum_g, sum_gx : (F,) float64

    Raises
    ------
    ShapeError
        Naming the argument.

    Notes
    -----
    O(n * F) time, 16 * threads * F bytes; the same result for the same number of threads.
    """
    n, n_feat = _columns(x)
    check("g", g, dtype=x.dtype, shape=x.shape)
    check("mean", mean, dtype=np.float64, shape=(n_feat,))
    check("inv_std", inv_std, dtype=np.float64, shape=(n_feat,))
    check("sum_g", sum_g, dtype=np.float64, shape=(n_feat,), out=True)
    check("sum_gx", sum_gx, dtype=np.float64, shape=(n_feat,), out=True)
    n_threads = _team(x)
    workspace = np.empty((n_threads, 2, n_feat))
    call(f"sar_batch_norm_sums_backward_{FLOATS[x.dtype]}", sum_g, sum_gx, workspace, g, x, mean, inv_std, n_threads, n, n_feat)


def batch_norm_backward(g, x, mean, inv_std, gamma, mean_g, mean_gx, dx):
    """Overwrite ``dx = gamma * inv_std * (g - mean_g - xhat * mean_gx)``, ``xhat = (x - mean) * inv_std``.

    Parameters
    ----------
    g : (n, F), x's dtype
    x : (n, F) float32 or float64
    mean, inv_std : (F,) float64
    gamma : (F,), x's dtype
    mean_g, mean_gx : (F,) float64
        The sums of `batch_norm_sums` over all ranks, divided by the number of all rows.
    dx : (n, F), x's dtype

    Raises
    ------
    ShapeError
        Naming the argument.

    Notes
    -----
    O(n * F) time. Ioffe and Szegedy 2015; SAR sec. 3.4.
    """
    n, n_feat = _columns(x)
    check("g", g, dtype=x.dtype, shape=x.shape)
    check("gamma", gamma, dtype=x.dtype, shape=(n_feat,))
    for name, a in {"mean": mean, "inv_std": inv_std, "mean_g": mean_g, "mean_gx": mean_gx}.items():
        check(name, a, dtype=np.float64, shape=(n_feat,))
    check("dx", dx, dtype=x.dtype, shape=x.shape, out=True)
    check_apart(dx, g=g, x=x)
    call(f"sar_batch_norm_backward_{FLOATS[x.dtype]}", dx, g, x, mean, inv_std, gamma, mean_g, mean_gx, n, n_feat)
