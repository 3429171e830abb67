"""Start of a program: its communicator, a guard for the start-up time, and the number of threads per rank."""

import atexit
import ctypes
import faulthandler
import os
import signal
import socket
import stat
import sys
from collections.abc import Mapping
from fractions import Fraction
from pathlib import Path

from sarlite.comm.ending import end_within
from sarlite.comm.protocol import Communicator
from sarlite.comm.solo import Solo
from sarlite.errors import ConfigError, install, lacks_memory, needs
from sarlite.kernels.native import MAX_THREADS, most_threads

START_SECONDS = 300.0
"""How long a rank may take from its first line until the guard watches it, where nothing else is said."""
_PREFIXES = ("PMI_", "PMIX_", "OMPI_", "MV2_", "MPI_LOCAL", "HYDI_", "HYDRA_", "SLURM_STEP", "SLURM_PROCID")
_SIZE_VARIABLES = ("OMPI_COMM_WORLD_SIZE", "MV2_COMM_WORLD_SIZE", "PMI_SIZE")  # Open MPI, MVAPICH, MPICH and Intel MPI


def _launch(environ):
    """Return the launcher's variable, its number, and a flag; (None, None, True) without a launcher.

    The flag is True if the number counts all ranks, False if it counts only the ranks of this node.
    """
    for name in _SIZE_VARIABLES:
        if _is_number(environ.get(name)):
            return name, int(environ[name]), True
    in_step = all(environ.get(name) for name in ("SLURM_STEP_ID", "SLURM_PROCID"))  # a batch script is in no step
    for name in ("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"):
        if in_step and _is_number(environ.get(name)):
            return name, int(environ[name]), True
    if _is_number(environ.get("MPI_LOCALNRANKS")):
        return "MPI_LOCALNRANKS", int(environ["MPI_LOCALNRANKS"]), False
    return None, None, True


def _is_number(text):
    """Return True if `text` is a number as launchers write it: one to nine of the digits 0 to 9."""
    return text is not None and len(text) <= 9 and text.isascii() and text.isdecimal()


def launched_ranks(environ: Mapping[str, str] = os.environ) -> int | None:
    """Return how many ranks the MPI launcher says it started, or None without a launcher. Not collective.

    Parameters
    ----------
    environ : mapping of str
        Read for the variables of Open MPI, MVAPICH, MPICH, Intel MPI and Slurm's srun. When MPI_LOCALNRANKS alone is
        set, the answer is the number of ranks on this node.
    """
    return _launch(environ)[1]


def begin(seconds: float = START_SECONDS, environ: Mapping[str, str] = os.environ) -> None:
    """Guard a command from its first line until `guard` takes over. Not collective; may be called again.

    A crash in C prints its stack. Under a launcher of several ranks moreover:

    - A rank that is not guarded after `seconds` prints the stacks of its threads and ends. It waits in MPI for a rank
      that was stopped, or that ended before it had connected.
    - A rank that leaves Python before it has connected ends by SIGTERM, so that the launcher ends the other ranks.
      MPICH's launcher leaves them waiting otherwise.
    - A rank whose launcher dies is killed (Linux).

    When Python ends, MPI's own end gets as many seconds.

    Parameters
    ----------
    seconds : float
        Infinite for no limit.
    """
    faulthandler.enable(2)
    if not _is_one_of_several(environ) or _is_inherited(environ):
        return
    if not _Start.begun:
        _Start.begun = True
        _die_with_the_launcher()
        atexit.register(_leave)
    _Start.seconds = seconds
    end_within(seconds)


class _Start:
    begun, connected, seconds = False, False, START_SECONDS


def _leave():
    """At Python's end finalize MPI, which waits for every rank, while `end_within` works: mpi4py finalizes later."""
    if _Start.connected:
        from sarlite.comm import mpi

        end_within(_Start.seconds)
        mpi.finalize()
        return
    sys.stdout.flush()
    sys.stderr.flush()
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.kill(os.getpid(), signal.SIGTERM)


def _die_with_the_launcher():
    """Let the kernel kill this process when its parent dies: the ranks of a killed launcher would live on."""
    parent, pr_set_pdeathsig = os.getppid(), 1
    try:
        ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)
    except (AttributeError, OSError, TypeError):
        return  # another system
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)


def _is_one_of_several(environ):
    _, n_ranks, everywhere = _launch(environ)
    return n_ranks is not None and not (n_ranks == 1 and everywhere)


_RANK = "SARLITE_RANK_PROCESS"
"""Variable of a rank and of the processes that it starts: the rank's process number."""


def _is_inherited(environ):
    """Return True if a rank started this process, which has the launcher's variables but is no rank itself."""
    if environ.get(_RANK) not in (None, str(os.getpid())):
        return True
    try:  # MPICH's connection to the launcher, which a rank's child does not have
        return not stat.S_ISSOCK(os.fstat(int(environ["PMI_FD"])).st_mode)
    except (KeyError, ValueError):
        return False
    except OSError:
        return True


def connect(environ: Mapping[str, str] = os.environ) -> Communicator:
    """Return the communicator that this process was started for. Collective.

    Returns
    -------
    Communicator
        `Solo` without an MPI launcher or for one rank, which imports no MPI; else `MpiCommunicator`.

    Raises
    ------
    ConfigError
        mpi4py is not there, or the launcher started another number of ranks than MPI sees.
    """
    if not _is_one_of_several(environ):
        return Solo()
    name, n_ranks, everywhere = _launch(environ)
    if _is_inherited(environ):
        names = " -u ".join(sorted(name for name in environ if name.startswith((*_PREFIXES, _RANK))))
        raise ConfigError(f"a rank of an MPI job started this process, which has inherited the launcher's variables and "
                          f"is no rank: start it as `env -u {names} ...`, in Python with an env= that has none of these")
    needs("mpi4py", f"a run of {n_ranks} ranks ({name}={n_ranks})")
    comm = _world()
    if comm.size < n_ranks or (everywhere and comm.size != n_ranks):
        raise ConfigError(_mismatch(name, n_ranks, comm.size))
    _Start.connected = True
    if environ is os.environ:
        os.environ[_RANK] = str(os.getpid())
    if _Start.begun:  # `_leave` comes before what the modules of MPI have registered
        atexit.unregister(_leave)
        atexit.register(_leave)
    return comm


def _world():
    try:
        from sarlite.comm import mpi
    except (ImportError, RuntimeError, MemoryError) as error:  # mpi4py raises RuntimeError when it finds no MPI library
        reason, remedy = _why_not_loaded(error)
        raise ConfigError(f"mpi4py cannot load MPI ({reason}): {remedy}") from error
    return mpi.world()


def _why_not_loaded(error):
    """Return why MPI cannot be loaded, and the remedy."""
    if lacks_memory(error):
        return "too little memory or address space", "free some, or raise the limit (ulimit -v)"
    return str(error).partition("\n")[0], f"{install('mpich')} brings one"  # the rest lists what mpi4py tried


def _mismatch(name, n_ranks, size):
    return (
        f"the launcher started {n_ranks} ranks ({name}={n_ranks}), but MPI sees {size}: every process would train "
        "alone. Start with the mpiexec of the MPI that mpi4py uses (`python -c 'from mpi4py import MPI; "
        f"print(MPI.Get_library_version())'`; after {install('mpich')} it is the mpiexec beside python), "
        f"or unset {name} to run one rank alone."
    )


def host():
    """Return a name for this machine and its boot, because containers may share a host name, and machines an image."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return socket.gethostname(), file.read().strip()
    except OSError:
        return socket.gethostname(), ""


def _cores():
    """Return the set of cores that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return os.sched_getaffinity(0)
    return set(range(os.cpu_count() or 1))


def _quota(files: Path = Path("/sys/fs/cgroup"), own: Path = Path("/proc/self/cgroup")) -> tuple[str, Fraction] | None:
    """Return the tightest CPU quota of this process's control groups: the group's folder and its number of cores."""
    try:
        groups = [line.split(":", 2)[1:] for line in own.read_text().splitlines()]
    except OSError:
        return None
    found = []
    for controllers, path in groups:  # version 2 has one line, without controllers
        if controllers and "cpu" not in controllers.split(","):
            continue
        for root in (files / controllers, files / "cpu") if controllers else (files, files / "unified"):
            group = root / path.lstrip("/")
            for folder in (group, *group.parents):
                if not folder.is_relative_to(root):
                    break
                quota = _read_quota(folder)
                if quota is not None:
                    found.append((quota, str(folder)))
    return min(found)[::-1] if found else None


def _read_quota(folder):
    """Return the CPU quota of a control group (version 2 or 1) in cores; None if it has no limit."""
    for names in (("cpu.max",), ("cpu.cfs_quota_us", "cpu.cfs_period_us")):
        try:
            quota, period = " ".join((folder / name).read_text() for name in names).split()
        except (OSError, ValueError):
            continue
        if quota.isdecimal() and int(quota) and int(period):  # not "max" or -1
            return Fraction(int(quota), int(period))
    return None


def default_threads(comm: Communicator) -> int:
    """Return the number of threads, at least 1, that this rank may use without oversubscribing its cores. Collective.

    A core that k ranks may run on counts 1/k: ranks that share all cores share them evenly, and a rank that is bound to
    cores of its own uses all of these. The ranks in a control group, such as a container, share its CPU quota evenly.
    """
    quota = _quota()
    found = comm.allgather((host(), _cores(), quota))
    neighbours = [(cores, theirs) for where, cores, theirs in found if where == host()]
    share = sum(Fraction(1, sum(core in cores for cores, _ in neighbours)) for core in _cores())
    if quota is not None:
        share = min(share, quota[1] / sum(theirs == quota for _, theirs in neighbours))
    return max(1, int(share))


def openmp_threads(environ: Mapping[str, str] = os.environ) -> int:
    """Return the first number in OMP_NUM_THREADS; 0 if the variable is not set or is not a list of numbers.

    OpenMP itself tells the user of a variable that it cannot read.

    Raises
    ------
    ConfigError
        The number is above `MAX_THREADS`.
    """
    first = environ.get("OMP_NUM_THREADS", "").partition(",")[0].strip()
    n_threads = int(first) if _is_number(first) else 0
    if n_threads > MAX_THREADS:
        raise ConfigError(f"OMP_NUM_THREADS={n_threads}: at most {MAX_THREADS} threads; unset it, or give --threads")
    return n_threads


def rank_threads(comm: Communicator, chosen: int = 0, environ: Mapping[str, str] = os.environ) -> int:
    """Return the number of threads of this rank's kernels. Collective.

    Parameters
    ----------
    comm : Communicator
    chosen : int
        Number that `--threads` says, which may differ between ranks; 0 for the first of OMP_NUM_THREADS, where the user
        set it, or else `default_threads`.
    environ : mapping of str
    """
    share = default_threads(comm)  # on every rank, as it is collective
    return chosen or min(openmp_threads(environ) or share, most_threads())


def default_prefetch(comm: Communicator, n_threads: int) -> int:
    """Return how many peers' rows to fetch ahead: 1 where that can hide something, else 0. Collective.

    A transfer hides behind computing on a network, and on one host where each rank has a core to spare. Where all cores
    compute, the thread that fetches takes their time.

    Parameters
    ----------
    comm : Communicator
    n_threads : int
        Threads of this rank's kernels.
    """
    found = comm.allgather((host(), _cores(), n_threads))
    if len({where for where, _, _ in found}) > 1:
        return 1
    free = len(set().union(*(cores for _, cores, _ in found))) - sum(threads for _, _, threads in found)
    return int(free >= comm.size > 1)
