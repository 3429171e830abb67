"""Detection of the launcher and the ranks from environment variables."""

import os
import socket
import subprocess
import sys
from fractions import Fraction

import pytest

from sarlite.comm import Solo, launch, threads
from sarlite.errors import ConfigError

STEP = {"SLURM_STEP_ID": "0", "SLURM_PROCID": "1"}


@pytest.mark.parametrize(
    ("environ", "n_ranks"),
    [
        ({}, None),
        ({"PMI_SIZE": "3", "PMI_RANK": "0"}, 3),
        ({"OMPI_COMM_WORLD_SIZE": "4"}, 4),
        ({"MV2_COMM_WORLD_SIZE": "2"}, 2),
        ({"MPI_LOCALNRANKS": "2"}, 2),
        ({"MPI_LOCALNRANKS": "2", "PMI_SIZE": "6"}, 6),
        ({"SLURM_NTASKS": "8"}, None),  # salloc
        ({"SLURM_NTASKS": "8", "SLURM_PROCID": "0"}, None),  # the batch script
        ({"SLURM_NTASKS": "8", **STEP}, 8),
        ({"SLURM_NTASKS": "8", "SLURM_STEP_NUM_TASKS": "4", **STEP}, 4),  # srun -n 4 within a job of 8
        ({"SLURM_STEP_NUM_TASKS": "2", "PMI_SIZE": "8", **STEP}, 8),  # mpiexec starts its two proxies by srun
        ({"PMI_SIZE": ""}, None),
        ({"PMI_SIZE": "many"}, None),
        ({"PMI_SIZE": "9" * 5000}, None),
        ({"PMI_SIZE": "٣"}, None),
    ],
)
def test_launched_ranks_are_read_from_the_environment(environ, n_ranks):
    assert launch.launched_ranks(environ) == n_ranks


@pytest.mark.parametrize("environ", [{}, {"PMI_SIZE": "1"}, {"SLURM_STEP_NUM_TASKS": "1", **STEP}])
def test_one_rank_needs_no_mpi(environ):
    assert isinstance(launch.connect(environ), Solo)


def test_a_missing_mpi4py_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "mpi4py", None)
    with pytest.raises(ConfigError, match=r"PMI_SIZE=2.*pip install 'sarlite\[mpi\]'"):
        launch.connect({"PMI_SIZE": "2"})


class _Seen(Solo):
    def __init__(self, size):
        self.size = size


@pytest.mark.parametrize(
    ("environ", "size"),
    [({"PMI_SIZE": "4"}, 1), ({"PMI_SIZE": "4"}, 8), ({"OMPI_COMM_WORLD_SIZE": "2"}, 1), ({"MPI_LOCALNRANKS": "2"}, 1)],
)
def test_another_number_of_ranks_is_refused(monkeypatch, environ, size):
    pytest.importorskip("mpi4py")
    monkeypatch.setattr(launch, "_world", lambda: _Seen(size))
    (name, n_ranks) = next(iter(environ.items()))
    with pytest.raises(ConfigError, match=rf"{n_ranks} ranks \({name}={n_ranks}\), .*MPI sees {size}"):
        launch.connect(environ)


@pytest.mark.parametrize(("environ", "size"), [({"PMI_SIZE": "4"}, 4), ({"MPI_LOCALNRANKS": "2"}, 6), ({"MPI_LOCALNRANKS": "1"}, 2)])
def test_the_right_number_of_ranks(monkeypatch, environ, size):
    pytest.importorskip("mpi4py")
    monkeypatch.setattr(launch, "_world", lambda: _Seen(size))
    assert launch.connect(environ).size == size


def test_mpi4py_without_an_mpi_library(monkeypatch):
    pytest.importorskip("mpi4py")
    monkeypatch.delitem(sys.modules, "sarlite.comm.mpi", raising=False)
    monkeypatch.delattr("sarlite.comm.mpi", raising=False)
    monkeypatch.setitem(sys.modules, "mpi4py.MPI", None)
    monkeypatch.delattr("mpi4py.MPI", raising=False)
    with pytest.raises(ConfigError, match="cannot load MPI"):
        launch.connect({"PMI_SIZE": "2"})


@pytest.mark.parametrize("reason, words", [
    ("cannot load MPI library\nlibmpi.so: cannot open shared object file", r"\(cannot load MPI library\): pip install 'sarlite\[mpich\]'"),
    ("cannot load MPI library\nlibmpi.so.12: failed to map segment from shared object", r"too little memory or address space"),
])  # fmt: skip
def test_why_mpi_cannot_be_loaded(monkeypatch, reason, words):
    class Fails:
        def find_spec(self, name, *more):
            if name == "sarlite.comm.mpi":
                raise RuntimeError(reason)

    monkeypatch.delitem(sys.modules, "sarlite.comm.mpi", raising=False)
    monkeypatch.delattr("sarlite.comm.mpi", raising=False)
    monkeypatch.setattr(sys, "meta_path", [Fails(), *sys.meta_path])
    with pytest.raises(ConfigError, match=words):
        launch._world()


def _threads_with(monkeypatch, cores, hosts=None, quotas=None):
    """Return default_threads of each rank.

    Rank r runs on host `hosts[r]` and may use `cores[r]`; `quotas[r]` is its quota of time: a control group and cores.
    """
    hosts, quotas = hosts or ["here"] * len(cores), quotas or [None] * len(cores)

    class Machine(Solo):
        def allgather(self, value):
            return list(zip(hosts, cores, quotas, strict=True))

    n_threads = []
    for rank, mine in enumerate(cores):
        monkeypatch.setattr(launch, "host", lambda rank=rank: hosts[rank])
        monkeypatch.setattr(launch, "_cores", lambda mine=mine: mine)
        monkeypatch.setattr(launch, "_quota", lambda rank=rank: quotas[rank])
        n_threads.append(launch.default_threads(Machine()))
    return n_threads


def test_default_threads_share_the_cores(monkeypatch):
    eight = set(range(8))
    assert _threads_with(monkeypatch, [eight] * 3) == [2, 2, 2]
    assert _threads_with(monkeypatch, [eight] * 16) == [1] * 16
    assert _threads_with(monkeypatch, [{0, 1}, {2, 3}, {4, 5, 6}]) == [2, 2, 3]  # bound by the launcher
    assert _threads_with(monkeypatch, [eight] * 4, ["a", "a", "a", "b"]) == [2, 2, 2, 8]
    assert _threads_with(monkeypatch, [{0, 1}, {1, 2, 3}]) == [1, 2]


def test_default_threads_of_a_quota(monkeypatch):
    eight, quota = set(range(8)), ("/a", Fraction(5, 2))
    assert _threads_with(monkeypatch, [eight], quotas=[quota]) == [2]
    assert _threads_with(monkeypatch, [eight], quotas=[("/a", Fraction(1, 2))]) == [1]
    assert _threads_with(monkeypatch, [{0}], quotas=[quota]) == [1]
    assert _threads_with(monkeypatch, [eight] * 2, quotas=[("/a", Fraction(6))] * 2) == [3, 3]
    assert _threads_with(monkeypatch, [eight] * 2, quotas=[("/a", Fraction(3)), ("/b", Fraction(3))]) == [3, 3]


@pytest.mark.parametrize("groups, files, limit", [
    ("0::/", {"cpu.max": "150000 100000\n"}, ("", Fraction(3, 2))),
    ("0::/", {"cpu.max": "max 100000\n"}, None),
    ("0::/a/b", {"a/b/cpu.max": "max 100000", "a/cpu.max": "200000 100000", "cpu.max": "300000 100000"}, ("a", Fraction(2))),
    ("0::/not/here", {"cpu.max": "100000 100000"}, ("", Fraction(1))),  # a container that sees the host's path
    ("3:cpu,cpuacct:/a\n2:memory:/a", {"cpu,cpuacct/a/cpu.cfs_quota_us": "50000", "cpu,cpuacct/a/cpu.cfs_period_us": "100000"},
     ("cpu,cpuacct/a", Fraction(1, 2))),
    ("3:cpu:/a", {"cpu/a/cpu.cfs_quota_us": "-1", "cpu/a/cpu.cfs_period_us": "100000"}, None),
    ("0::/", {}, None),
    ("0::/", {"cpu.max": "nonsense"}, None),
])  # fmt: skip
def test_the_quota_of_a_control_group(tmp_path, groups, files, limit):
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    (tmp_path / "own").write_text(groups)
    assert launch._quota(tmp_path, tmp_path / "own") == (limit and (str(tmp_path / limit[0]), limit[1]))
    assert launch._quota(tmp_path, tmp_path / "none") is None


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="no core affinity on this system")
def test_default_threads_of_this_process(monkeypatch):
    monkeypatch.setattr(launch, "_quota", lambda: None)
    assert launch.default_threads(Solo()) == len(os.sched_getaffinity(0))


@pytest.mark.parametrize("chosen, variable, expected", [
    (3, "5", 3), (0, "5", 5), (0, " 5 , 2", 5), (0, "", 2), (0, "two", 2), (0, "0", 2), (0, None, 2),
])  # fmt: skip
def test_threads_of_a_rank(monkeypatch, chosen, variable, expected):
    """--threads comes first, then OMP_NUM_THREADS, then the rank's share of the cores."""
    monkeypatch.setattr(launch, "_cores", lambda: {0, 1})
    monkeypatch.setattr(launch, "_quota", lambda: None)
    environ = {} if variable is None else {"OMP_NUM_THREADS": variable}
    assert launch.rank_threads(Solo(), chosen, environ) == expected


def test_ranks_may_choose_their_threads_differently():
    """The cores are divided among all ranks, even if only one rank needs its share."""

    def work(comm):
        return launch.rank_threads(comm, 3 * comm.rank, {})

    assert threads.run(2, work)[1] == 3


def test_too_many_threads_are_refused_by_the_name_of_the_variable():
    with pytest.raises(ConfigError, match="OMP_NUM_THREADS=5000: at most 1024"):
        launch.rank_threads(Solo(), environ={"OMP_NUM_THREADS": "5000"})
    assert launch.rank_threads(Solo(), 2, {"OMP_NUM_THREADS": "5000"}) == 2


def test_importing_loads_no_mpi():
    code = (
        "import sys, faulthandler, sarlite.comm, sarlite.comm.launch, sarlite.comm.guard, sarlite.comm.threads, threading\n"
        "assert not [name for name in sys.modules if name.startswith('mpi4py')]\n"
        "assert threading.active_count() == 1 and threading.excepthook is threading.__excepthook__\n"
        "assert not faulthandler.is_enabled()"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


@pytest.mark.parametrize("hosts, cores, quotas, n_threads, expected", [
    ("aa", 2, (None, None), 1, 0), ("aa", 4, (None, None), 1, 1), ("aa", 3, (None, None), 1, 0), ("ab", 1, (None, None), 1, 1),
    ("a", 3, (None,), 1, 0), ("aa", 8, (None, None), 4, 0), ("aa", 8, (("/job", 2), ("/job", 2)), 1, 0),
    ("aa", 8, (("/job", 4), ("/job", 4)), 1, 1), ("aa", 8, (("/0", 2), ("/1", 2)), 1, 1), ("aa", 8, (("/job", 2), None), 1, 1),
])  # fmt: skip
def test_prefetch_where_it_can_hide_something(hosts, cores, quotas, n_threads, expected, monkeypatch):
    """Each rank on one machine needs a core that does not compute, and that the control groups' quotas pay for."""
    class Ranks:
        size = len(hosts)

        def allgather(self, value):
            return [((host, ""), value[1], quota, value[3]) for host, quota in zip(hosts, quotas, strict=True)]

    monkeypatch.setattr(launch, "_cores", lambda: set(range(cores)))
    assert launch.default_prefetch(Ranks(), n_threads) == expected


@pytest.mark.parametrize("environ", [{"PMI_FD": "closed"}, {"PMI_FD": "a file"}, {launch._RANK: "1"}])
def test_a_process_that_a_rank_started_is_no_rank(environ, tmp_path, monkeypatch):
    """MPICH's connection to the launcher is closed in the child; a rank of sarlite remembers its process."""
    handle = os.open(tmp_path, os.O_RDONLY)
    if environ.get("PMI_FD") == "closed":
        os.close(handle)
    environ = {"PMI_SIZE": "2", "PMI_RANK": "1", "PATH": "x", **environ, **({"PMI_FD": str(handle)} if "PMI_FD" in environ else {})}
    monkeypatch.setattr(launch.atexit, "register", None)  # the child registers no end of a rank
    launch.begin(float("inf"), environ)
    with pytest.raises(ConfigError, match="inherited the launcher's variables .*`env -u ") as caught:
        launch.connect(environ)
    assert all(name in str(caught.value) for name in environ if name != "PATH") and " PATH" not in str(caught.value)


def test_a_rank_is_a_rank(monkeypatch):
    here, child = socket.socketpair()
    for environ in ({"PMI_FD": str(here.fileno())}, {launch._RANK: str(os.getpid())}, {"PMI_FD": "x"}, {}):
        assert not launch._is_inherited(environ)
    here.close(), child.close()
