"""Functions that keep ranks in agreement: an action that fails on all ranks or on none, and a check that all ranks pass equal values."""

from collections.abc import Callable
from typing import TypeVar

from sarlite.comm.protocol import Communicator
from sarlite.comm.wire_arrays import digest
from sarlite.errors import DataError, raise_together

R = TypeVar("R")


def together(comm: Communicator, action: Callable[[], R]) -> R:
    """Call the function `action` on every rank and return this rank's result; if the call raises on any rank, raise an error on every rank.
    Collective.

    Parameters
    ----------
    comm : Communicator
    action : callable () -> result
        If it calls collective functions, these must raise on every rank or on none.

    Returns
    -------
    object
        This rank's result of `action`.

    Raises
    ------
    Exception
        This rank's exception; on a rank without exception, the exception of the lowest failing rank, as
        `errors.raise_together` makes it.

    Examples
    --------
    >>> from sarlite.comm import threads, together
    >>> threads.run(2, lambda comm: together(comm, lambda: comm.rank * 10))
    [0, 10]
    """
    error: BaseException | None = None
    try:
        result = action()
    except BaseException as raised:  # any exception, because the other ranks wait in `raise_together`
        error = raised
    raise_together(comm, error)
    return result


def agree(comm: Communicator, value: object, what: str) -> bytes:
    """Check that all ranks pass equal values `value`; return a 16-byte hash of the value. If ranks differ, raise a DataError on every rank,
    with `what` as the name of the value. Collective.

    Parameters
    ----------
    comm : Communicator
    value : object
        Arrays and bytes, and tuples, lists and dicts of them, are compared by value; other objects by their `repr`.
    what : str
        Name of the value in the error message.

    Returns
    -------
    bytes
        16-byte hash of the value.

    Examples
    --------
    >>> from sarlite.comm import agree, threads
    >>> threads.run(2, lambda comm: len(agree(comm, ["same", 1], "the list")))
    [16, 16]
    """
    digests = comm.allgather(digest(value))
    differing = [rank for rank, other in enumerate(digests) if other != digests[0]]
    if differing:
        plural = "ranks" if len(differing) > 1 else "rank"
        ranks = f"{plural} {', '.join(map(str, differing))} and rank 0 differ"
        raise DataError(f"{what} is not the same on every rank: {ranks}")
    return digests[0]
