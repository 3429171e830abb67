"""The MPI communicator: run by `mpiexec -n N python -m pytest --with-mpi -m mpi tests/mpi`."""

import os

import numpy as np
import pytest

from sarlite.comm import launch
from sarlite.errors import PeerError, ShapeError
from tests.helpers.comm.comm_checks import CHECKS

pytestmark = [pytest.mark.mpi, pytest.mark.timeout(60, method="thread")]  # a rank that hangs ends all


LONG = {
    "check_large_message",
    "check_buffer_is_kept_alive",
    "check_order_within_a_tag",
    "check_two_threads_at_once",
    "check_alltoall_of_much_and_nothing",
    "check_thread_waits_for_a_reduction",
    "check_cancelled_receive_is_left_alone",
    "check_cancelled_sends_are_dropped",
    "check_drain_cancels_what_is_open",
}


@pytest.fixture(scope="module")
def comm():
    from sarlite.comm import mpi

    return mpi.world()


@pytest.mark.parametrize("name", CHECKS)
def test_mpi_passes_the_checks_of_every_communicator(name, comm):
    CHECKS[name](comm)


def in_pieces(n_bytes):
    """Return a duplicate of the world whose arrays travel in pieces."""
    from mpi4py import MPI

    from sarlite.comm import mpi

    return mpi.MpiCommunicator(MPI.COMM_WORLD, piece_bytes=n_bytes)


@pytest.mark.parametrize("name", CHECKS)
def test_mpi_in_pieces(name):
    comm = in_pieces(8000 if name in LONG else 24)
    CHECKS[name](comm)
    comm.free()


def test_pieces_are_cut_by_their_bytes():
    from sarlite.comm import mpi_transfers

    assert mpi_transfers.PIECE_BYTES < 2**31
    for n, sizes in [(10, [4, 4, 2]), (8, [4, 4, 0]), (0, [0])]:
        assert [piece.size for piece in mpi_transfers.pieces(np.zeros(n, np.float32), 16)] == sizes


@pytest.mark.parametrize("n_sent", [0, 1, 2, 3, 4, 5, 6, 7])
@pytest.mark.parametrize("n_expected", [0, 2, 3, 4, 6, 7])
def test_wrong_sizes_in_pieces(comm, n_sent, n_expected):
    piecewise = in_pieces(24)
    receive = piecewise.start_recv(np.empty(n_expected), (comm.rank - 1) % comm.size)
    send = piecewise.start_send(np.zeros(n_sent), (comm.rank + 1) % comm.size)
    if n_sent == n_expected:
        receive.wait()
    else:
        with pytest.raises(ShapeError):
            receive.wait()
    if n_sent == n_expected:
        send.wait()


@pytest.mark.skipif("SARLITE_TEST_BIG" not in os.environ, reason="takes 2.1 GB a rank: set SARLITE_TEST_BIG")
def test_more_than_two_gib(comm):
    n = (1 << 31) + 100
    if comm.rank < 2 <= comm.size:
        array = np.full(n, 7 if comm.rank == 0 else 0, np.uint8)
        (comm.start_recv(array, 0) if comm.rank else comm.start_send(array, 1)).wait()
        assert array[0] == array[-1] == 7 and (array[::1000] == 7).all()
    comm.barrier()


@pytest.mark.skipif("SARLITE_TEST_BIG" not in os.environ, reason="takes 4.3 GB a rank: set SARLITE_TEST_BIG")
def test_collectives_of_more_than_two_gib(comm):
    n = (1 << 31) + 100
    array = np.full(n, 7 if comm.rank == 0 else 0, np.uint8)
    comm.broadcast(array, 0)
    assert array[0] == array[-1] == 7 and (array[::1000] == 7).all()
    incoming = comm.alltoall([array if comm.rank == 0 and peer == comm.size - 1 else array[:peer] for peer in range(comm.size)])
    assert [len(rows) for rows in incoming] == [n if comm.rank == comm.size - 1 else comm.rank] + [comm.rank] * (comm.size - 1)
    assert all((rows[-1000:] == 7).all() for rows in incoming)


def test_a_wrapper_is_kept_with_its_communicator(comm):
    from mpi4py import MPI

    from sarlite.comm import wrap

    assert wrap(MPI.COMM_WORLD) is comm and wrap(comm) is comm
    raw = MPI.COMM_WORLD.Dup()
    wrapper = wrap(raw)
    for _ in range(700):  # MPICH has 2048 communicators
        assert wrap(raw) is wrapper is not comm
        assert wrapper.channel("fetch") is not wrapper.channel("push")
    raw.Free()
    with pytest.raises(PeerError):
        wrapper.barrier()


def test_a_wrapper_is_freed_with_its_communicator(comm):
    from mpi4py import MPI

    from sarlite.comm import wrap

    for _ in range(700 if comm.size < 3 else 50):  # making communicators takes long where ranks share cores
        raw = MPI.COMM_WORLD.Dup()
        wrap(raw).channel("fetch").barrier()
        wrap(raw).channel("push")
        raw.Free()


def test_connect_gives_every_rank(comm):
    connected = launch.connect()
    assert (connected.rank, connected.size) == (comm.rank, comm.size)
    assert launch.launched_ranks() in (comm.size, None)


def test_threads_on_this_node(comm, monkeypatch):
    monkeypatch.setattr(launch, "_quota", lambda: None)
    cores = len(os.sched_getaffinity(0))
    assert comm.size > 1 or launch.default_threads(comm) == cores
    assert 1 <= launch.default_threads(comm) <= cores


def test_many_graphs_of_one_communicator(comm):
    """MPICH has 2048 communicators, and a graph needs several channels."""
    from mpi4py import MPI

    from sarlite import Graph

    ring = Graph.from_edges(np.arange(4), (np.arange(4) + 1) % 4, 4)
    raw = MPI.COMM_WORLD.Dup()
    for _ in range(700 if comm.size < 3 else 20):
        part = ring.shard(raw, "contiguous")
    assert part.comm.size == comm.size
    raw.Free()
