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
from sarlite.errors import ConfigError, import_optional, install, lacks_memory
from sarlite.kernels.native import MAX_THREADS, most_threads

START_SECONDS = 300.0
"""Default time in seconds that a rank may take from the start of the program until `guard` is entered."""
_PREFIXES = ("PMI_", "PMIX_", "OMPI_", "MV2_", "MPI_LOCAL", "HYDI_", "HYDRA_", "SLURM_STEP", "SLURM_PROCID")
_SIZE_VARIABLES = ("OMPI_COMM_WORLD_SIZE", "MV2_COMM_WORLD_SIZE", "PMI_SIZE")  # Open MPI, MVAPICH, MPICH and Intel MPI


def _launch(environ):
    """Return (variable, n_ranks, is_total): first the name of the environment variable with the number of ranks; then that number;
    then True if it counts the ranks of all machines. Without an MPI launcher return (None, None, True).
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
    """Return True if `text` consists of one to nine digits, as launchers write numbers."""
    return text is not None and len(text) <= 9 and text.isascii() and text.isdecimal()


def launched_ranks(environ: Mapping[str, str] = os.environ) -> int | None:
    """Return the number of ranks that the MPI launcher started, as its variables in `environ` say, or None without a launcher. Not
    collective.

    Parameters
    ----------
    environ : mapping of str
        Environment variables. Those of Open MPI, MVAPICH, MPICH, Intel MPI and Slurm's srun are recognized. If only
        MPI_LOCALNRANKS is set, the result is the number of ranks on this node.

    Examples
    --------
    >>> launched_ranks({"PMI_SIZE": "4"})
    4
    """
    return _launch(environ)[1]


def begin(seconds: float = START_SECONDS, environ: Mapping[str, str] = os.environ) -> None:
    """Protect the start of a command that an MPI launcher started, by its variables in `environ`: end this rank if it has not entered
    `guard` within `seconds`, because it then waits for a rank that will not come. May be called again.

    A crash in C code prints its stack. If an MPI launcher started several ranks:

    - A rank that has not entered `guard` after `seconds` prints the stacks of its threads and ends. Such a rank waits
      in MPI for another rank, which was stopped or ended before it connected.
    - A rank that leaves Python before it has connected ends by SIGTERM, so that the launcher ends the other ranks.
      Otherwise MPICH's launcher would let them wait.
    - A rank whose launcher dies is killed (Linux only).
    - At the end of Python, MPI's finalization may also take at most `seconds`.

    Parameters
    ----------
    seconds : float
        Time limit; infinite for no limit.
    environ : mapping of str
        Environment variables, in which the launcher is recognized.
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
    """State of this process's start: whether `begin` was called, whether MPI is connected, and the time limit."""

    begun, connected, seconds = False, False, START_SECONDS


def _leave():
    """Finalize MPI within a time limit, as Python exits. A rank that has not joined the other ranks in MPI ends by SIGTERM instead. mpi4py
    would finalize MPI later, when the thread that enforces the limit has ended.
    """
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
    """Ask the kernel to kill this process when its parent dies, because ranks survive a killed launcher otherwise."""
    parent, pr_set_pdeathsig = os.getppid(), 1
    try:
        ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)
    except (AttributeError, OSError, TypeError):
        return  # another system
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)


def _is_one_of_several(environ):
    """Return True if, by the environment variables `environ`, an MPI launcher started this process as one of several ranks."""
    _, n_ranks, everywhere = _launch(environ)
    return n_ranks is not None and not (n_ranks == 1 and everywhere)


_RANK = "SARLITE_RANK_PROCESS"
"""Environment variable with a rank's process id, which processes that the rank starts inherit."""


def _is_inherited(environ):
    """Return True if this process is a child of a rank, which inherited the launcher's variables `environ` but is not a rank."""
    if environ.get(_RANK) not in (None, str(os.getpid())):
        return True
    try:  # the file descriptor of MPICH's connection to the launcher, which a child of a rank does not have
        return not stat.S_ISSOCK(os.fstat(int(environ["PMI_FD"])).st_mode)
    except (KeyError, ValueError):
        return False
    except OSError:
        return True


def connect(environ: Mapping[str, str] = os.environ) -> Communicator:
    """Return the communicator of all ranks of this job, or a communicator of one rank without MPI if the environment variables `environ`
    show no MPI launcher or one rank. Collective.

    Parameters
    ----------
    environ : mapping of str
        Environment variables, in which the launcher is recognized.

    Returns
    -------
    Communicator
        `Solo`, without importing MPI, if there is no MPI launcher or one rank; else an `MpiCommunicator`.

    Raises
    ------
    ConfigError
        mpi4py is not installed or cannot load MPI, MPI sees another number of ranks than the launcher started, or a
        rank started this process.

    Examples
    --------
    >>> connect({}).size
    1
    """
    if not _is_one_of_several(environ):
        return Solo()
    name, n_ranks, everywhere = _launch(environ)
    if _is_inherited(environ):
        names = " -u ".join(sorted(name for name in environ if name.startswith((*_PREFIXES, _RANK))))
        raise ConfigError("a rank of an MPI job started this process, which inherited the launcher's variables but is not "
                          f"a rank: start it as `env -u {names} ...`, or in Python with an env= that lacks these variables")
    import_optional("mpi4py", f"a run of {n_ranks} ranks ({name}={n_ranks})")
    comm = _world()
    if comm.size < n_ranks or (everywhere and comm.size != n_ranks):
        raise ConfigError(_mismatch(name, n_ranks, comm.size))
    _Start.connected = True
    if environ is os.environ:
        os.environ[_RANK] = str(os.getpid())
    if _Start.begun:  # registered again, because the function registered last runs first, before those of mpi4py
        atexit.unregister(_leave)
        atexit.register(_leave)
    return comm


def _world():
    """Return the MPI communicator of all ranks; raise a ConfigError if MPI cannot be loaded."""
    try:
        from sarlite.comm import mpi
    except (ImportError, RuntimeError, MemoryError) as error:  # mpi4py raises RuntimeError when it finds no MPI library
        reason, remedy = _why_not_loaded(error)
        raise ConfigError(f"mpi4py cannot load MPI ({reason}): {remedy}") from error
    return mpi.world()


def _why_not_loaded(error):
    """Return (reason, remedy) for an exception that mpi4py raised when it loaded MPI."""
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
    """Return (host name, id of the boot), which identify this machine.

    Containers may have the same host name, and machines may be copies of one image.
    """
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


def _quota(mount_folder: Path = Path("/sys/fs/cgroup"),
           membership_file: Path = Path("/proc/self/cgroup")) -> tuple[str, Fraction] | None:
    """Return (folder, number of cores as a Fraction) of the control group that limits this process to the fewest cores; None without a
    limit. Control groups are folders in `mount_folder`, and `membership_file` names the groups of this process.

    Parameters
    ----------
    mount_folder : Path
        Folder where the control groups are mounted.
    membership_file : Path
        File that lists the control groups of this process.
    """
    try:
        groups = [line.split(":", 2)[1:] for line in membership_file.read_text().splitlines()]
    except OSError:
        return None
    quotas = []
    for controllers, path in groups:  # version 2 has one line, without controllers
        if controllers and "cpu" not in controllers.split(","):
            continue
        for root in (mount_folder / controllers, mount_folder / "cpu") if controllers else (mount_folder, mount_folder / "unified"):
            group = root / path.lstrip("/")
            for folder in (group, *group.parents):
                if not folder.is_relative_to(root):
                    break
                quota = _read_quota(folder)
                if quota is not None:
                    quotas.append((quota, str(folder)))
    return min(quotas)[::-1] if quotas else None


def _read_quota(folder):
    """Return the CPU quota of a control group (version 2 or 1) as a number of cores; None without a limit."""
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

    A core that k ranks may run on counts 1/k. So ranks that share all cores share them evenly, and a rank that is bound
    to cores of its own uses all these cores. The ranks in a control group, such as a container, share its CPU quota
    evenly.
    """
    quota = _quota()
    ranks = comm.allgather((host(), _cores(), quota))
    neighbours = [(cores, other_quota) for machine, cores, other_quota in ranks if machine == host()]
    share = sum(Fraction(1, sum(core in cores for cores, _ in neighbours)) for core in _cores())
    if quota is not None:
        share = min(share, quota[1] / sum(other_quota == quota for _, other_quota in neighbours))
    return max(1, int(share))


def openmp_threads(environ: Mapping[str, str] = os.environ) -> int:
    """Return the first number in OMP_NUM_THREADS; 0 if the variable is not set or does not start with a number.

    OpenMP itself warns about a value that it cannot read.

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
    """Return the number of threads of this rank's kernels: `chosen`, or if that is 0, the number in OMP_NUM_THREADS, or without that
    this rank's share of the machine's cores. Collective.

    Parameters
    ----------
    comm : Communicator
    chosen : int
        Value of the option `--threads`, which may differ between ranks. 0 stands for the first number in
        OMP_NUM_THREADS, or if that is not set for `default_threads`.
    environ : mapping of str
        Environment variables.
    """
    share = default_threads(comm)  # called on every rank, because it is collective
    return chosen or min(openmp_threads(environ) or share, most_threads())


def default_prefetch(comm: Communicator, n_threads: int) -> int:
    """Return 1 if rows should be fetched from one peer ahead of the computation, else 0. It is 1 if the ranks are on several machines,
    or if each rank has a core that its `n_threads` threads leave idle.

    Collective.

    Transfers are hidden behind the computation if the ranks are on several machines, or if each rank on one machine has
    a core that does not compute. If all cores compute, the prefetch thread would take time from them. A core that the
    job's CPU quota does not pay for counts as no core.

    Parameters
    ----------
    comm : Communicator
    n_threads : int
        Number of threads of this rank's kernels.
    """
    machines, cores, quotas, threads = zip(*comm.allgather((host(), _cores(), _quota(), n_threads)))
    if len(set(machines)) > 1:
        return 1
    n_cores = Fraction(len(set().union(*cores)))
    if None not in quotas:
        n_cores = min(n_cores, sum(n for _, n in set(quotas)))
    return int(n_cores - sum(threads) >= comm.size > 1)
