"""Rows of bfloat16: uint16 arrays of the upper halves of float32 numbers."""

import numpy as np

from sarlite.kernels.native import BFLOAT16, call, check, check_rows, row_width
from sarlite.kernels.rows import Rows

SOME = 4096
"""Rows that are narrowed at a time where the result stands in x's memory."""


def narrow(x, scale=None, over=False):
    """Return rows as bfloat16, rounded to nearest, ties to even; too large values become infinite, NaN stays NaN.

    ``out[r] = bfloat16(scale[r] * x[r])``

    Parameters
    ----------
    x : (n, ...) float32 array, or Rows
    scale : (n,) float32, optional
        Default 1. A product is a float32 first.
    over : bool
        Write the result over x, which is lost: into the first half of its memory.

    Returns
    -------
    (n, ...) uint16
        New, or with `over` a view of x's memory.

    Notes
    -----
    O(n * F) time.
    """
    if isinstance(x, Rows):
        x = x.array()
    check_rows("x", x, dtype=np.float32, out=over)
    check("scale", scale, dtype=np.float32, shape=(len(x),), optional=True)
    if not over:
        return _narrow(x, scale)
    out = x.reshape(-1).view(BFLOAT16)[: x.size].reshape(x.shape)
    for a in range(0, len(x), SOME):  # what is written was read before: the rows below a / 2, or this piece
        some = slice(a, a + SOME)
        out[some] = _narrow(x[some], None if scale is None else scale[some])
    return out


def _narrow(x, scale):
    out = np.empty(x.shape, BFLOAT16)
    call("sar_narrow_forward", out, x, scale, len(x), row_width(x))
    return out


def widen(x):
    """Return bfloat16 rows as float32, without error; return rows of another dtype unchanged.

    Parameters
    ----------
    x : (n, ...) uint16, or array of another dtype

    Returns
    -------
    (n, ...) float32, new; or `x`
    """
    if getattr(x, "dtype", None) != BFLOAT16:
        return x
    check("x", x, dtype=BFLOAT16)
    out = np.empty(x.shape, np.float32)
    call("sar_widen_forward", out, x, x.size)
    return out
