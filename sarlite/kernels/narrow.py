"""Rows of bfloat16: uint16 arrays of the upper halves of float32 numbers."""

import numpy as np

from sarlite.kernels.native import BFLOAT16, call, check, check_rows, row_width


def narrow(x, scale=None):
    """Return rows as bfloat16, rounded to nearest, ties to even; what is too large becomes infinite, a NaN stays one.

    ``out[r] = bfloat16(scale[r] * x[r])``

    Parameters
    ----------
    x : (n, ...) float32
    scale : (n,) float32, optional
        Default 1. A product is a float32 first.

    Returns
    -------
    (n, ...) uint16

    Raises
    ------
    ShapeError
        Naming the argument.

    Notes
    -----
    O(n * F) time.
    """
    check_rows("x", x, dtype=np.float32)
    if scale is not None:
        check("scale", scale, dtype=np.float32, shape=(len(x),))
    out = np.empty(x.shape, BFLOAT16)
    call("sar_narrow_forward", out, x, scale, len(x), row_width(x))
    return out


def widen(x):
    """Return bfloat16 rows as float32, which is exact.

    Parameters
    ----------
    x : (n, ...) uint16

    Returns
    -------
    (n, ...) float32

    Raises
    ------
    ShapeError
        Naming the argument.
    """
    check("x", x, dtype=BFLOAT16)
    out = np.empty(x.shape, np.float32)
    call("sar_widen_forward", out, x, x.size)
    return out
