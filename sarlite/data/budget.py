"""How much of `--memory` is left for what grows with the data."""

from sarlite.command import readable
from sarlite.errors import ConfigError
from sarlite.profile import Memory

RESERVE = 192 << 20
"""Bytes for the pieces in which data are read, checked, hashed and written, whatever their size."""
LEAST = 160 << 20
"""Bytes for what grows with the data, below which a limit is refused."""


def left(n_bytes):
    """Return the bytes that arrays which grow with the data may take.

    Parameters
    ----------
    n_bytes : int
        The resident memory of this process: Python and its libraries, arrays, and the pages of mapped files in use.
        What the system keeps of files in its cache is not in it.

    Raises
    ------
    ConfigError
        Too little.
    """
    base = Memory().base
    found = n_bytes - base - RESERVE
    if found < LEAST:
        least = (base + RESERVE + LEAST) >> 20
        raise ConfigError(f"--memory: {readable(n_bytes)} is too little: {least} MiB are the least")
    return found


def check(n_bytes, available, what):
    """Raise a ConfigError where `what` takes more than is available; None is no limit."""
    if available is not None and n_bytes > available:
        needed, there = -(-n_bytes >> 20), available >> 20
        raise ConfigError(f"--memory: {what} takes {needed:,} MiB, but {there:,} MiB are left")


def at_once(n_bytes, most=1 << 20, each=128):
    """Return how many rows are worked on at a time, `most` at most, where `n_bytes` may be taken; None is no limit."""
    return most if n_bytes is None else max(1, min(most, n_bytes // each))
