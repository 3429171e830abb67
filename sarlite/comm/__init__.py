"""Communication between ranks.

`protocol` is what the rest of sarlite is written against. `mpi` implements it over mpi4py, `threads` for N ranks as threads of one
process, `solo` for one rank.
"""

from typing import Any

from sarlite.comm.agreement import agree, together
from sarlite.comm.protocol import Communicator, Request
from sarlite.comm.solo import Solo

__all__ = ["Communicator", "Request", "Solo", "agree", "together", "wrap"]


def wrap(comm: Any) -> Communicator:
    """Return `comm` as a Communicator: itself, or the one that belongs to an mpi4py communicator.

    Notes
    -----
    Collective for an mpi4py communicator when it is wrapped for the first time: its duplicate is made. It is kept with
    the communicator, whatever is wrapped again later, and freed with it.
    """
    if hasattr(comm, "Get_rank"):
        from sarlite.comm.mpi import wrapped

        return wrapped(comm)
    return comm
