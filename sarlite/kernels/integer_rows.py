"""Conversion between float32 rows and rows of 8-bit integers with one exponent for each row."""

import numpy as np

from sarlite.kernels.native import call, check, check_rows
from sarlite.kernels.rows import Rows
from sarlite.types import Array

LARGEST_EXPONENT = 121
"""Largest exponent of a row: 127 * 2^121 is a float32, and the next exponent could round to infinity."""
NOT_FINITE = 127
"""Exponent of a row of NaN."""
PIECE_ROWS = 4096
"""Number of rows that `round_rows` rounds at a time, so that the integers stay in the processor's cache."""


def quantize(x: Array) -> Array:
    """Return float32 rows as int8, (n, ..., 1 + n_feat). A row is an exponent followed by integers q, so that ``x[r, f] ~ q[r, f] *
    2 ** exponent[r]``.

    The exponent is the smallest one, at least -126, with which no integer exceeds 127. Values are rounded to the
    nearest integer, ties to even. A row with a value that is infinite, NaN or beyond 127 * 2^121, which is 0.99 of the
    largest float32, becomes a row of NaN.

    Parameters
    ----------
    x : (n, ..., n_feat) float32 array
        Rows along the last axis: an array (n, n_heads, n_feat) has an exponent for each node and head.

    Returns
    -------
    (n, ..., 1 + n_feat) int8
        The exponent, then the integers.

    Notes
    -----
    O(x.size) time.

    Examples
    --------
    >>> import numpy as np
    >>> quantize(np.float32([[1.0, -0.5, 0.26]]))
    array([[ -6,  64, -32,  17]], dtype=int8)
    """
    check_rows("x", x, dtype=np.float32)
    n_feat = _n_feat(x)
    out = np.empty((*x.shape[: max(1, x.ndim - 1)], 1 + n_feat), np.int8)
    call("sar_quantize_forward", out, x, x.size // max(n_feat, 1), n_feat)
    exponents = out[..., 0]
    exponents[exponents > LARGEST_EXPONENT] = NOT_FINITE
    return out


def dequantize(q: Array, shape: tuple[int, ...]) -> Array:
    """Return the float32 rows that the result `q` of `quantize` stands for; `shape` is the shape of one row. The conversion is exact.

    Parameters
    ----------
    q : (n, ..., 1 + n_feat) int8
    shape : tuple of int
        Shape of one row of the array that was quantized, (..., n_feat).

    Returns
    -------
    (n, ..., n_feat) float32

    Examples
    --------
    >>> import numpy as np
    >>> dequantize(np.int8([[-6, 64, -32, 17]]), (3,))
    array([[ 1.      , -0.5     ,  0.265625]], dtype=float32)
    """
    check("q", q, dtype=np.int8)
    out = np.empty((len(q), *shape), np.float32)
    n_feat = _n_feat(out)
    check("q", q, shape=(*out.shape[: max(1, out.ndim - 1)], 1 + n_feat))
    call("sar_dequantize_forward", out, q, out.size // max(n_feat, 1), n_feat)
    return out


def round_rows(x: Array | Rows, overwrite: bool = False) -> Array:
    """Return float32 rows rounded to the values that `quantize` can represent, in a new array or, with `overwrite`, in x.

    Parameters
    ----------
    x : (n, ..., n_feat) float32 array, or Rows
    overwrite : bool
        True if the result is written over x.

    Returns
    -------
    (n, ..., n_feat) float32
        New, or `x` itself with `overwrite`.

    Examples
    --------
    >>> import numpy as np
    >>> round_rows(np.float32([[1.0, -0.5, 0.26]]))
    array([[ 1.      , -0.5     ,  0.265625]], dtype=float32)
    """
    if isinstance(x, Rows):
        x, overwrite = x.array(), False
    check_rows("x", x, dtype=np.float32, out=overwrite)
    out = x if overwrite else np.empty_like(x)
    for start in range(0, len(x), PIECE_ROWS):
        piece = x[start : start + PIECE_ROWS]
        out[start : start + PIECE_ROWS] = dequantize(quantize(piece), x.shape[1:])
    return out


def _n_feat(x):
    return x.shape[-1] if x.ndim > 1 else 1
