"""Runs of sarlite as processes, on MPI or alone; a test waits for their end, and checks that no process remains."""

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
SECONDS = 15.0 * max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))
"""A job that has gone wrong must have ended by then, start of Python included; longer where the machine is busy."""
STALL_SECONDS = SECONDS / 5
"""A time-out of a stall that a job's start keeps, where the machine is busy, too."""
MPIEXEC = shutil.which("mpiexec", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}")
LAUNCHER_VARIABLES = ("PMI_", "PMIX_", "OMPI_", "MPI_LOCAL", "MV2_", "SLURM_", "HYDRA_", "HYDI_")
STARTS_JOBS = [
    pytest.mark.timeout(60 + 5 * SECONDS),
    pytest.mark.skipif(MPIEXEC is None, reason="no mpiexec beside python or on PATH"),
    pytest.mark.skipif("PMI_SIZE" in os.environ, reason="starts MPI jobs of its own, which cannot run inside one"),
]
"""The marks of tests that start jobs."""
PRELUDE = """
    import os, signal, sys, threading, time
    from pathlib import Path
    import numpy as np
    from sarlite import errors
    from sarlite.comm import launch
    from sarlite.comm.guard import guard

    (Path(sys.argv[1]) / str(os.getpid())).touch()
    comm = launch.connect()
    rank, last = comm.rank, comm.size - 1

    def receive():
        "Wait for a message that never comes."
        comm.start_recv(np.empty(1), (rank + 1) % comm.size, 9).wait()

"""


class Job:
    """Process that has ended: its output and status. The constructor runs it, and kills it with an error after `seconds`."""

    def __init__(self, folder, command, environ=None, seconds=SECONDS, during=None):
        env = {name: value for name, value in os.environ.items() if not name.startswith(LAUNCHER_VARIABLES)}
        env |= {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", **(environ or {})}
        self.pids = folder
        process = subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True)
        try:
            if during:
                during(self)
            self.out, self.err = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            self._kill(process)
            raise
        self.status = process.returncode

    def running(self):
        return [int(file.name) for file in self.pids.iterdir() if _runs(int(file.name))]

    def _kill(self, process):
        for pid in [process.pid, *self.running()]:
            os.kill(pid, signal.SIGKILL)
        print("\n".join(process.communicate()))


def _runs(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


class Failed(Job):
    """Training process with an injected failure, which must end within `seconds`; `failed` is True if the failure took place."""

    def __init__(self, folder, n_ranks, flags, environ=None, moment=None, seconds=30 + SECONDS):
        launcher = [MPIEXEC, "-n", str(n_ranks)] if n_ranks else []
        command = [*launcher, sys.executable, "-m", "sarlite.train", "--threads", "1", "--progress", "none", *map(str, flags)]
        before = signal.signal(signal.SIGINT, signal.SIG_DFL)  # a background process would ignore the signal
        try:
            super().__init__(folder, command, environ, seconds)
        finally:
            signal.signal(signal.SIGINT, before)
        assert not self.running()
        self.failed = bool(moment and moment.exists())


def assert_ended(job, *words):
    assert job.status not in (0, None)
    assert job.failed, "the failure did not happen"
    for word in words:
        assert word in job.err, job.err
