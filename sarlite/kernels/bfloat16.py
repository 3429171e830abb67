"""Rows of bfloat16: uint16 arrays of the upper halves of float32 numbers."""

import numpy as np

from sarlite.kernels.native import BFLOAT16, call, check, check_rows, row_width
from sarlite.kernels.rows import Rows
from sarlite.types import Array

SOME = 4096
"""Number of rows that are converted at a time if the result is written over x."""


def narrow(x: Array | Rows, scale: Array | None = None, overwrite: bool = False) -> Array:
    """Return float32 rows as bfloat16, row r multiplied by scale[r] before (None: by 1). The result is a new array or, with
    `overwrite`, the first half of x's memory.

    Values are rounded to nearest, ties to even. Values that are too large become infinite, and NaN stays NaN.

    Parameters
    ----------
    x : (n, ...) float32 array, or Rows
    scale : (n,) float32, optional
        Factor of each row, by default 1. The product is computed in float32 and then rounded.
    overwrite : bool
        True to write the result over x, into the first half of x's memory. The values of x are then lost.

    Returns
    -------
    (n, ...) uint16
        A new array, or with `overwrite` a view of x's memory.

    Notes
    -----
    O(n * F) time.

    Examples
    --------
    >>> widen(narrow(np.array([[1.0, 1 / 3]], np.float32)))
    array([[1.        , 0.33398438]], dtype=float32)
    """
    if isinstance(x, Rows):
        x = x.array()
    check_rows("x", x, dtype=np.float32, out=overwrite)
    check("scale", scale, dtype=np.float32, shape=(len(x),), optional=True)
    if not overwrite:
        return _narrow(x, scale)
    out = x.reshape(-1).view(BFLOAT16)[: x.size].reshape(x.shape)
    for a in range(0, len(x), SOME):  # each piece is written over rows of x that were converted before
        some = slice(a, a + SOME)
        out[some] = _narrow(x[some], None if scale is None else scale[some])
    return out


def _narrow(x, scale):
    out = np.empty(x.shape, BFLOAT16)
    call("sar_narrow_forward", out, x, scale, len(x), row_width(x))
    return out


def widen(x: Array) -> Array:
    """Return bfloat16 rows as float32, which is exact; return rows of another dtype unchanged.

    Parameters
    ----------
    x : (n, ...) uint16, or array of another dtype

    Returns
    -------
    (n, ...) float32
        A new array; or `x` itself if it is not uint16.
    """
    if getattr(x, "dtype", None) != BFLOAT16:
        return x
    check("x", x, dtype=BFLOAT16)
    out = np.empty(x.shape, np.float32)
    call("sar_widen_forward", out, x, x.size)
    return out
