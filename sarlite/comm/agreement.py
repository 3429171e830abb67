"""Functions that keep ranks in agreement: actions that fail on all ranks together, and checks of equal values."""

from collections.abc import Callable
from typing import Any, TypeVar

from sarlite.comm.protocol import Communicator
from sarlite.comm.wire_arrays import digest
from sarlite.errors import DataError, raise_together

R = TypeVar("R")


def together(comm: Communicator, action: Callable[[], R]) -> R:
    """Run `action` on every rank; raise on every rank when it fails on one. Collective.

    Parameters
    ----------
    comm : Communicator
    action : callable
        Takes nothing. It may call collectives only where these fail on every rank or on none.

    Returns
    -------
    object
        This rank's result of `action`.

    Raises
    ------
    Exception
        This rank's own exception; on other ranks what `raise_together` makes of the lowest failing rank's.
    """
    result: Any = None
    error: BaseException | None = None
    try:
        result = action()
    except BaseException as found:  # whatever it is: the others wait for the word of this rank
        error = found
    raise_together(comm, error)
    return result


def agree(comm: Communicator, value: object, what: str) -> bytes:
    """Raise DataError on every rank unless all ranks hold equal values. Collective; sends 16 bytes per rank.

    Parameters
    ----------
    comm : Communicator
    value : array, bytes, or a tuple, list or dict of such, or anything that `repr` tells
    what : str
        Names it in the message.

    Returns
    -------
    bytes
        The digest that all ranks have.
    """
    digests = comm.allgather(digest(value))
    others = [rank for rank, found in enumerate(digests) if found != digests[0]]
    if others:
        plural = "ranks" if len(others) > 1 else "rank"
        told = f"{plural} {', '.join(map(str, others))} and rank 0 differ"
        raise DataError(f"{what} is not the same on every rank: {told}")
    return digests[0]
