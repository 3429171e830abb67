"""Communication between ranks.

The rest of sarlite is written against `protocol`. `mpi` implements it over mpi4py, `threads` for N ranks as threads of
one process, `solo` for one rank.
"""


from sarlite.comm.agreement import agree, together
from sarlite.comm.protocol import CommLike, Communicator, MpiComm, Request
from sarlite.comm.solo import Solo
from sarlite.errors import ConfigError

__all__ = ["CommLike", "Communicator", "Request", "Solo", "agree", "together", "wrap"]


def wrap(comm: CommLike) -> Communicator:
    """Return `comm` itself, or the Communicator that belongs to an mpi4py communicator.

    Raises
    ------
    ConfigError
        It is neither.

    Notes
    -----
    Collective for an mpi4py communicator that is wrapped for the first time: its duplicate is made. The mpi4py
    communicator keeps the duplicate, also where it is wrapped again, and frees it at its own end.
    """
    if isinstance(comm, MpiComm):
        from sarlite.comm.mpi import wrapped

        return wrapped(comm)
    if not hasattr(comm, "allgather"):
        raise ConfigError(f"comm is a {type(comm).__name__}, but must be a communicator: one of sarlite.comm, or "
                          "mpi4py's, as MPI.COMM_WORLD")
    return comm
