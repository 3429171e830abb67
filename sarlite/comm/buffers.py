"""Arrays as the bytes that travel, and the reductions."""

import numpy as np

from sarlite.errors import ShapeError

REDUCTIONS = {"sum": np.add, "max": np.maximum, "min": np.minimum}


def as_bytes(array, writable=False):
    """View a C-contiguous array of any shape, zero rows included, as flat bytes.

    Parameters
    ----------
    array : ndarray
        Borrowed.
    writable : bool
        Whether the bytes will be written.

    Returns
    -------
    ndarray of uint8

    Raises
    ------
    ShapeError
        The array is not contiguous, holds Python objects, or is read-only and must be written.
    """
    if not isinstance(array, np.ndarray) or array.dtype.hasobject:
        raise ShapeError(f"only arrays of plain numbers travel, not {getattr(array, 'dtype', type(array).__name__)}")
    if not array.flags.c_contiguous:
        raise ShapeError(f"array of shape {array.shape} and strides {array.strides} is not C-contiguous")
    if writable and not array.flags.writeable:
        raise ShapeError(f"array of shape {array.shape} is read-only")
    return array.reshape(-1).view(np.uint8)


def check_reduction(array, op):
    """Raise ShapeError unless `array` can be reduced in place by `op`."""
    as_bytes(array, writable=True)
    if op not in REDUCTIONS:
        raise ShapeError(f"op is {op!r}, not one of {', '.join(REDUCTIONS)}")


def check_received(n_bytes, expected, peer, tag):
    """Raise ShapeError unless a message has the size of the buffer that was posted for it."""
    if n_bytes != expected:
        raise ShapeError(f"rank {peer} sent {n_bytes} bytes with tag {tag} where {expected} were expected")
