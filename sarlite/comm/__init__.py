"""Communication between MPI ranks, or between threads that act as ranks.

Other packages use the protocol `Communicator`. It has three implementations: `mpi` over mpi4py, `threads` for N ranks
as threads of one process, and `solo` for one rank.
"""


from sarlite.comm.agreement import agree, together
from sarlite.comm.protocol import CommLike, Communicator, MpiComm, Request
from sarlite.comm.solo import Solo
from sarlite.errors import ConfigError

__all__ = ["CommLike", "Communicator", "Request", "Solo", "agree", "together", "wrap"]


def wrap(comm: CommLike) -> Communicator:
    """Return the Communicator for `comm`: `comm` itself, or a wrapper of an mpi4py communicator.

    Parameters
    ----------
    comm : Communicator or mpi4py.MPI.Intracomm

    Returns
    -------
    Communicator

    Raises
    ------
    ConfigError
        `comm` is neither.

    Notes
    -----
    Collective if an mpi4py communicator is wrapped for the first time, because the wrapper duplicates the communicator.
    Later calls return the same wrapper. The wrapper is freed together with the mpi4py communicator.

    Examples
    --------
    >>> from sarlite.comm import Solo, wrap
    >>> wrap(Solo()).size
    1
    """
    if isinstance(comm, MpiComm):
        from sarlite.comm.mpi import wrapped

        return wrapped(comm)
    if not hasattr(comm, "allgather"):
        raise ConfigError(f"comm is a {type(comm).__name__}, but must be a communicator: one of sarlite.comm, or "
                          "mpi4py's, as MPI.COMM_WORLD")
    return comm
