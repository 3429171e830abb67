"""The guard around work that ends well, or fails on all ranks together; tests/failure has the rest."""

import faulthandler
import signal
import threading
import time

import numpy as np
import pytest

from sarlite.comm.guard import guard
from sarlite.errors import DataError, raise_together

pytestmark = [pytest.mark.mpi, pytest.mark.timeout(30, method="thread")]


@pytest.fixture(scope="module")
def comm():
    from sarlite.comm import mpi

    return mpi.world()


def _hooks():
    signal.set_wakeup_fd(wakeup := signal.set_wakeup_fd(-1))
    return threading.excepthook, signal.getsignal(signal.SIGTERM), wakeup, threading.active_count()


def test_leaving_waits_for_every_rank(comm):
    before, left = _hooks(), comm.channel("left")
    with guard(comm) as watch:
        watch.tick()
        if comm.rank == comm.size - 1:
            time.sleep(0.5)
            late = [left.start_recv(np.empty(1), rank) for rank in range(comm.size - 1)]
            assert not any(request.test() for request in late)
    if comm.rank < comm.size - 1:
        left.start_send(np.empty(1), comm.size - 1).wait()
    else:
        [request.wait() for request in late]
    assert _hooks() == before


def test_only_a_tick_somewhere_is_needed(comm, capfd):
    with guard(comm, stall_seconds=2) as watch:
        for _ in range(25):
            time.sleep(0.1)
            if comm.rank == 0:
                watch.tick()
    assert capfd.readouterr().err == ""


def test_work_beside_the_watchdog(comm):
    with guard(comm, stall_seconds=5) as watch:
        for step in range(200):
            watch.tick()
            assert comm.allreduce(np.array([step]))[0] == step * comm.size


def test_a_refusal_is_told_once(comm, capfd):
    before = _hooks()
    with pytest.raises(SystemExit) as caught, guard(comm):
        raise_together(comm, DataError("file x") if comm.rank == comm.size - 1 else None)
    faulthandler.cancel_dump_traceback_later()  # pytest goes on
    assert caught.value.code == 2 and _hooks() == before
    errors = comm.allgather(capfd.readouterr().err)
    assert errors[0].endswith("file x\n") and errors[0].startswith("error: ") and not any(errors[1:])


def test_all_ranks_exit(comm, capfd):
    with pytest.raises(SystemExit) as caught, guard(comm):
        raise SystemExit(comm.rank)
    faulthandler.cancel_dump_traceback_later()
    assert caught.value.code == comm.rank and capfd.readouterr().err == ""
