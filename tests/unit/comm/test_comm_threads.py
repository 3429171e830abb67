"""The communicator of threads, and the communicator of one rank."""

import os
import signal
import threading
import time

import numpy as np
import pytest

from sarlite import kernels
from sarlite.comm import Solo, threads
from sarlite.errors import DataError, PeerError, SarliteError, ShapeError
from sarlite.profile import Counted, Profile
from tests.helpers.comm.comm_checks import CHECKS, NEED_A_PEER

pytestmark = pytest.mark.timeout(60)


@pytest.fixture
def _ranks_make_the_same_collectives():
    """Do not count collective calls: some checks call from another thread on one rank alone."""


@pytest.mark.parametrize("n_ranks", [1, 2, 3, 4])
@pytest.mark.parametrize("name", CHECKS)
def test_threads_pass_the_checks_of_every_communicator(name, n_ranks):
    threads.run(n_ranks, CHECKS[name])


@pytest.mark.parametrize("name", [name for name in CHECKS if name not in NEED_A_PEER])
def test_solo_passes_the_checks_of_every_communicator(name):
    CHECKS[name](Solo())


def test_solo_has_no_peer():
    with pytest.raises(ValueError, match="peer"):
        Solo().start_send(np.zeros(1), 0)


def test_sixteen_ranks_send_to_each_other():
    def work(comm):
        array = np.full(5, comm.rank)
        requests = [comm.start_send(array, peer) for peer in range(comm.size)]
        received = [np.empty(5, int) for _ in range(comm.size)]
        requests += [comm.start_recv(received[peer], peer) for peer in range(comm.size)]
        for request in requests:
            request.wait()
        return int(sum(item[0] for item in received)), int(comm.allreduce(array.copy())[0])

    assert threads.run(16, work) == [(120, 120)] * 16


def test_results_come_in_rank_order_with_arguments():
    assert threads.run(3, lambda comm, a, b: (comm.rank, a, b), 7, b=8) == [(0, 7, 8), (1, 7, 8), (2, 7, 8)]


def test_reductions_add_in_rank_order():
    values = [np.float32(1e8), np.float32(1), np.float32(-1e8), np.float32(2)]
    sums = threads.run(4, lambda comm: comm.allreduce(np.array([values[comm.rank]]))[0])
    assert sums == [((values[0] + values[1]) + values[2]) + values[3]] * 4


def _wait_somehow(comm, how):
    if how == "receive":
        comm.start_recv(np.empty(3), 0).wait()
    elif how == "send":
        comm.start_send(np.empty(3), 0).wait()
    elif how == "thread":
        failures = []
        thread = threading.Thread(target=lambda: failures.append(pytest.raises(PeerError, comm.dup)), daemon=True)
        thread.start()
        thread.join()
        assert len(failures) == 1
        comm.barrier()
    else:
        getattr(comm, how)(*{"allreduce": [np.zeros(3)], "allgather": [1], "bcast": [1]}.get(how, []))


@pytest.mark.parametrize("how", ["receive", "send", "thread", "barrier", "allreduce", "allgather", "bcast", "dup"])
def test_a_failing_rank_wakes_the_others(how):
    woken = []

    def work(comm):
        if comm.rank == 0:
            time.sleep(0.05)
            raise KeyError("cause")
        try:
            _wait_somehow(comm, how)
        except PeerError as error:
            woken.append(str(error))
            raise ShapeError("a consequence") from error

    with pytest.raises(KeyError, match="cause") as caught:
        threads.run(3, work)
    assert caught.traceback[-1].name == "work"
    assert len(woken) == 2 and all("rank 0 failed: KeyError" in text for text in woken)


def test_the_lowest_rank_with_a_cause_is_raised():
    together = threading.Barrier(2)

    def work(comm):
        if comm.rank:
            together.wait()
            raise DataError(f"from {comm.rank}") from OSError("disk")
        comm.barrier()

    with pytest.raises(DataError, match="from 1") as caught:
        threads.run(3, work)
    assert isinstance(caught.value.__cause__, OSError)


def test_a_failed_group_starts_nothing_more():
    def work(comm):
        if comm.rank == 0:
            raise KeyError("cause")
        while True:  # never waits for rank 0, and must still end
            comm.start_send(np.zeros(1), 2 - comm.rank // 2)
            time.sleep(0.001)

    with pytest.raises(KeyError):
        threads.run(3, work)


def test_waiting_for_a_rank_that_returned():
    for wait in (lambda comm: comm.barrier(), lambda comm: comm.start_recv(np.empty(1), 0).wait()):
        with pytest.raises(PeerError, match="rank 1 waits for rank 0, .*returned"):
            threads.run(2, lambda comm, wait=wait: comm.rank and wait(comm))


def test_a_rank_may_return_before_its_message_is_read():
    def work(comm):
        array = np.arange(3)
        if comm.rank:
            time.sleep(0.05)
            comm.start_recv(array := np.empty(3, int), 0).wait()
        else:
            comm.start_send(array, 1)
        return array.tolist()

    assert threads.run(2, work) == [[0, 1, 2]] * 2


def test_different_collectives_are_refused():
    with pytest.raises(ShapeError, match="rank 0 barrier, rank 1 allgather"):
        threads.run(2, lambda comm: comm.allgather(1) if comm.rank else comm.barrier())
    with pytest.raises(ShapeError, match=r"float32 \(3,\), rank 1 allreduce of sum over float64"):
        threads.run(2, lambda comm: comm.allreduce(np.zeros(3, "f8" if comm.rank else "f4")))


def test_abort_ends_all():
    with pytest.raises(PeerError, match="enough"):
        threads.run(3, lambda comm: comm.abort("enough") if comm.rank == 1 else comm.barrier())


def test_no_ranks_and_no_such_peer():
    with pytest.raises(SarliteError):
        threads.run(0, len)
    with pytest.raises(ValueError, match="rank 2 is not one of 2"):
        threads.run(2, lambda comm: comm.start_send(np.zeros(1), 2))


def test_keyboard_interrupt_ends_the_ranks():
    def work(comm):
        if comm.rank == 0:
            time.sleep(0.1)
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.1)
        try:
            comm.start_recv(np.empty(1), (comm.rank + 1) % comm.size).wait()
        except PeerError as error:
            woken.append(str(error))

    woken, before = [], signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job ignores the signal
    try:
        with pytest.raises(KeyboardInterrupt):
            threads.run(3, work)
    finally:
        signal.signal(signal.SIGINT, before)
    assert woken == ["interrupted: KeyboardInterrupt"] * 3


def test_collectives_of_arrays_are_counted():
    def work(comm):
        counted = Counted(comm, profile := Profile())
        counted.alltoall([np.zeros(peer + 1) for peer in range(comm.size)])
        counted.broadcast(np.zeros(5), 1)
        counted.channel("reductions").start_allreduce(np.zeros(2)).wait()
        return profile.sent_bytes, profile.received_bytes

    for rank, (sent, received) in enumerate(threads.run(3, work)):
        assert sent == {"alltoall": 8 * (6 - (rank + 1)), "broadcast": 40 * (rank == 1), "allreduce": 16}
        assert received == {"alltoall": 16 * (rank + 1), "broadcast": 40 * (rank != 1), "allreduce": 0}


def test_errstate_holds_in_the_ranks():
    with np.errstate(divide="raise"):
        states = threads.run(2, lambda comm: np.geterr()["divide"])
    assert states == ["raise"] * 2


def test_ranks_use_as_many_threads_as_the_caller():
    before = kernels.threads()
    kernels.set_threads(3)
    try:
        assert threads.run(2, lambda comm: kernels.threads()) == [3, 3]
    finally:
        kernels.set_threads(before)


def test_nothing_stays_behind():
    def work(comm):
        for tag in range(10):
            send = comm.start_send(np.zeros(2), (comm.rank + 1) % comm.size, tag)
            comm.start_recv(np.zeros(2), (comm.rank - 1) % comm.size, tag).wait()
            send.wait()
            comm.barrier()
        return comm._world

    world = threads.run(3, work)[0]
    assert not world.mailboxes and not world.meetings
