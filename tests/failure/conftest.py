"""Fixtures that several files of failures use."""

import sys
import textwrap
import time

import pytest

from tests.helpers.train.jobs import MPIEXEC, PRELUDE, SECONDS, Job


@pytest.fixture
def job(tmp_path):
    """Return a function that runs a script on n ranks to its end and checks that no process is left."""
    pids, script = tmp_path / "pids", tmp_path / "script.py"
    pids.mkdir()

    def start(n_ranks, body, command=(), slow_end=False, module=None, **options):
        script.write_text(textwrap.dedent(PRELUDE) + textwrap.dedent(body))
        launcher = [MPIEXEC, "-n", str(n_ranks)] if n_ranks else []
        python = [sys.executable, *(["-m", module] if module else [])]
        job = Job(pids, [*launcher, *command, *python, str(script), str(pids)], **options)
        end = time.monotonic() + SECONDS * slow_end  # a launcher that is killed waits for nobody
        while job.running() and time.monotonic() < end:
            time.sleep(0.05)
        assert not job.running()
        assert len(list(pids.iterdir())) == (n_ranks or 1), job.err
        return job

    return start
