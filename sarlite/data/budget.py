"""Memory that `--memory` leaves for arrays that grow with the data."""

from sarlite.command import readable
from sarlite.errors import ConfigError
from sarlite.profile import Memory

RESERVE = 192 << 20
"""Bytes for the pieces in which data are read, checked, hashed and written; the size of the data does not matter."""
LEAST = 160 << 20
"""Least bytes for arrays that grow with the data; a smaller limit is refused."""


def left(n_bytes):
    """Return the bytes that may still be used for arrays that grow with the data: `n_bytes`, the value of --memory, minus the
    memory in use and a reserve.

    Parameters
    ----------
    n_bytes : int
        Limit of this process's resident memory in bytes: Python and its libraries, arrays, and used pages of mapped files,
        but not the system's file cache.

    Raises
    ------
    ConfigError
        If the limit is too small.
    """
    base = Memory().base
    n_left = n_bytes - base - RESERVE
    if n_left < LEAST:
        least = (base + RESERVE + LEAST) >> 20
        raise ConfigError(f"--memory: {readable(n_bytes)} is too little: {least} MiB are the least")
    return n_left


def check(n_bytes, available, what):
    """Raise a ConfigError if a computation needs `n_bytes` of memory, but only `available` bytes are left (None: no limit). `what` names
    the computation in the message.
    """
    if available is not None and n_bytes > available:
        needed, available_mib = -(-n_bytes >> 20), available >> 20
        raise ConfigError(f"--memory: {what} takes {needed:,} MiB, but {available_mib:,} MiB are left")


def at_once(n_bytes, most=1 << 20, each=128):
    """Return how many rows, of `each` bytes, to process at a time so that they fit into `n_bytes`: at least 1, at most `most`.
    `n_bytes` None, no limit, gives `most`.
    """
    return most if n_bytes is None else max(1, min(most, n_bytes // each))
