"""Which communicator a program runs on, and how many threads a rank may use."""

import os
import socket
from collections.abc import Mapping
from fractions import Fraction

from sarlite.comm import Communicator, Solo
from sarlite.errors import ConfigError, install, needs

_SIZE_VARIABLES = ("OMPI_COMM_WORLD_SIZE", "MV2_COMM_WORLD_SIZE", "PMI_SIZE")  # Open MPI, MVAPICH, MPICH and Intel MPI


def _launch(environ):
    """The variable that tells of a launcher, its number, and whether that is every rank or only those on this node."""
    for name in _SIZE_VARIABLES:
        if environ.get(name, "").isdecimal():
            return name, int(environ[name]), True
    in_step = all(environ.get(name) for name in ("SLURM_STEP_ID", "SLURM_PROCID"))  # a batch script is in no step
    for name in ("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"):
        if in_step and environ.get(name, "").isdecimal():
            return name, int(environ[name]), True
    if environ.get("MPI_LOCALNRANKS", "").isdecimal():
        return "MPI_LOCALNRANKS", int(environ["MPI_LOCALNRANKS"]), False
    return None, None, True


def launched_ranks(environ: Mapping[str, str] = os.environ) -> int | None:
    """Return how many ranks the MPI launcher says it started, or None without a launcher. Not collective.

    Parameters
    ----------
    environ : mapping of str
        Read for the variables of Open MPI, MVAPICH, MPICH, Intel MPI and Slurm's srun. When MPI_LOCALNRANKS alone is
        set, the answer is the number of ranks on this node.
    """
    return _launch(environ)[1]


def connect(environ: Mapping[str, str] = os.environ) -> Communicator:
    """Return the communicator that this process was started for. Collective.

    Parameters
    ----------
    environ : mapping of str

    Returns
    -------
    Communicator
        `Solo` without an MPI launcher or for one rank, which imports no MPI; else `MpiCommunicator`.

    Raises
    ------
    ConfigError
        mpi4py is not there, or the launcher started another number of ranks than MPI sees.
    """
    name, n_ranks, everywhere = _launch(environ)
    if n_ranks is None or (n_ranks == 1 and everywhere):
        return Solo()
    needs("mpi4py", f"a run of {n_ranks} ranks ({name}={n_ranks})")
    comm = _world()
    if comm.size < n_ranks or (everywhere and comm.size != n_ranks):
        raise ConfigError(_mismatch(name, n_ranks, comm.size))
    return comm


def _world():
    try:
        from sarlite.comm import mpi
    except (ImportError, RuntimeError) as error:  # mpi4py raises RuntimeError when it finds no MPI library
        reason = str(error).partition("\n")[0]  # then it lists what it tried
        raise ConfigError(f"mpi4py cannot load MPI ({reason}): {install('mpich')} brings one") from error
    return mpi.world()


def _mismatch(name, n_ranks, size):
    return (
        f"the launcher started {n_ranks} ranks ({name}={n_ranks}), but MPI sees {size}: every process would train alone. "
        "Start with the mpiexec of the MPI that mpi4py uses (`python -c 'from mpi4py import MPI; "
        f"print(MPI.Get_library_version())'`; after {install('mpich')} it is the mpiexec beside python), "
        f"or unset {name} to run one rank alone."
    )


def _host():
    """What names this machine: containers may share a host name, and machines an image."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return socket.gethostname(), file.read().strip()
    except OSError:
        return socket.gethostname(), ""


def _cores():
    """The cores that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return os.sched_getaffinity(0)
    return set(range(os.cpu_count() or 1))


def default_threads(comm: Communicator) -> int:
    """Return how many threads this rank may use without oversubscribing its cores, at least 1. Collective.

    A core that k ranks may run on counts 1/k: ranks that share all cores share them evenly, and a rank bound to cores of
    its own uses them all.
    """
    found = comm.allgather((_host(), _cores()))
    neighbours = [cores for host, cores in found if host == _host()]
    return max(1, int(sum(Fraction(1, sum(core in cores for cores in neighbours)) for core in _cores())))


def default_prefetch(comm: Communicator, n_threads: int) -> int:
    """Return how many peers' rows to fetch ahead: 1 where that can hide something, else 0. Collective.

    A transfer hides behind computing on a network, and on one host where each rank has a core to spare; where all cores compute, the
    thread that fetches takes their time.

    Parameters
    ----------
    comm : Communicator
    n_threads : int
        Threads of this rank's kernels.
    """
    found = comm.allgather((_host(), _cores(), n_threads))
    if len({host for host, _, _ in found}) > 1:
        return 1
    free = len(set().union(*(cores for _, cores, _ in found))) - sum(threads for _, _, threads in found)
    return int(free >= comm.size > 1)
