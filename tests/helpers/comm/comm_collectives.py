"""Checks of collective calls that every communicator must pass."""

import time

import numpy as np
import pytest

from sarlite.errors import ConfigError, DataError, SarliteError, ShapeError, raise_together
from sarlite.profile import Counted, Profile
from tests.helpers.comm.comm_messages import DTYPES, SHAPES, exchange, filled, in_thread


def check_gather(comm):
    for root in range(comm.size):
        local = np.full((comm.rank, 3), comm.rank, np.float32)
        gathered = comm.gather(local, root)
        assert (gathered is None) == (comm.rank != root)
        for rank, part in enumerate(gathered or ()):
            assert part.shape == (rank, 3) and part.dtype == np.float32 and (part == rank).all() and part is not local
    counted = Counted(comm, Profile())
    counted.gather(np.zeros((2, 4)), 0)
    sent, received = counted._profile.sent_bytes["gather"], counted._profile.received_bytes["gather"]
    assert (sent, received) == ((64, 0) if comm.rank else (0, 64 * (comm.size - 1)))


def check_gathers_that_cannot_be_are_refused_everywhere(comm):
    last = comm.size - 1
    calls = [(np.zeros(2), comm.size), (np.zeros(2), -1), (np.array(3.0), 0), ([1.0], 0), (np.zeros(2), "a")]
    if comm.size > 1:
        calls += [(np.zeros(2), comm.rank % 2), (np.zeros((2, 3 if comm.rank == last else 4)), 0)]
        calls += [(np.zeros(2, "f4" if comm.rank else "f8"), 0)]
    for array, root in calls:
        with pytest.raises(ShapeError):
            comm.gather(array, root)
    assert comm.allgather(comm.rank) == list(range(comm.size))


def check_allreduce(comm):
    for dtype in ("f4", "f8", "i8"):
        for shape in [(), (1,), (7,), (40, 5), (0,), (0, 2)]:
            every = [_numbers(shape, rank).astype(dtype) for rank in range(comm.size)]
            for op, expected in [("sum", sum(every)), ("max", np.maximum.reduce(every)), ("min", np.minimum.reduce(every))]:
                array = every[comm.rank].copy()
                assert comm.allreduce(array, op) is array
                assert array.dtype == dtype and np.array_equal(array, expected), (dtype, shape, op)


def _numbers(shape, rank):
    return np.random.default_rng(rank).integers(-1000, 1000, shape)


def check_allreduce_is_the_same_everywhere(comm):
    for dtype in ("f4", "f8"):
        array = np.random.default_rng(comm.rank).standard_normal(1001).astype(dtype)
        bits = comm.allgather(comm.allreduce(array).tobytes())
        assert len(set(bits)) == 1


def check_objects(comm):
    mine = {"rank": comm.rank, "list": [comm.rank]}
    gathered = comm.allgather(mine)
    assert gathered == [{"rank": rank, "list": [rank]} for rank in range(comm.size)]
    comm.barrier()
    gathered[0]["list"].append("changed")  # a change of one rank's copy is invisible to other ranks
    comm.barrier()
    assert comm.size == 1 or comm.rank == 0 or mine["list"] == [comm.rank]
    for root in range(comm.size):
        assert comm.bcast(("value", comm.rank), root) == ("value", root)
    assert comm.bcast(None if comm.rank else "zero") == "zero"


def check_values_are_copies(comm):
    shared = comm.bcast([], comm.size - 1)
    shared.append(comm.rank)
    comm.barrier()
    assert shared == [comm.rank]


def check_wrong_sizes_are_refused(comm):
    here, next_rank = (comm.rank - 1) % comm.size, (comm.rank + 1) % comm.size
    for n_receive in (3, 5):
        receive = comm.start_recv(np.empty(n_receive), here, n_receive)
        send = comm.start_send(np.zeros(4), next_rank, n_receive)
        with pytest.raises(ShapeError):
            receive.wait()
        try:
            send.wait()
        except ShapeError:
            pass  # only some communicators report the error to the sender, too


def check_unfit_arrays_are_refused(comm):
    frozen = np.zeros(3)
    frozen.flags.writeable = False
    for bad in (np.zeros((4, 4))[:, :2], np.array([None]), [1.0]):
        with pytest.raises(ShapeError):
            comm.start_send(bad, 0)
        with pytest.raises(ShapeError):
            comm.start_recv(bad, 0)
    with pytest.raises(ShapeError):
        comm.start_recv(frozen, 0)
    for bad, op in [(np.zeros((4, 4)).T[:2], "sum"), (frozen, "sum"), (np.zeros(3), "mean")]:
        with pytest.raises(ShapeError):
            comm.allreduce(bad, op)
    send = comm.start_send(frozen, (comm.rank + 1) % comm.size)  # read-only memory, such as a mapped file, may be sent
    comm.start_recv(np.empty(3), (comm.rank - 1) % comm.size).wait()
    send.wait()


def check_errors_are_raised_together(comm):
    raise_together(comm, None)
    last = comm.size - 1
    with pytest.raises(DataError, match="edges"):
        raise_together(comm, DataError("file x, field edges: 7") if comm.rank == last else None)
    with pytest.raises(ConfigError if comm.rank == 0 else DataError):
        raise_together(comm, ConfigError("a") if comm.rank == 0 else DataError("b") if comm.rank == last else DataError("c"))


def _rows(dtype, row_shape, sender, receiver):
    """Return the rows, 0 to 6 of shape `row_shape`, that rank `sender` sends to rank `receiver` in checks of alltoall."""
    return filled(dtype, ((3 * sender + 2 * receiver) % 7, *row_shape), 100 * sender + receiver)


def check_alltoall(comm):
    for dtype in DTYPES:
        for rest in [(), (3,), (2, 2), (0,)]:
            outgoing = [_rows(dtype, rest, comm.rank, peer) for peer in range(comm.size)]
            incoming = comm.alltoall(outgoing)
            for array in outgoing:
                array.reshape(-1).view(np.uint8)[...] = 9  # the received arrays are no views of the sent one
            comm.barrier()
            assert len(incoming) == comm.size
            for peer, array in enumerate(incoming):
                expected = _rows(dtype, rest, peer, comm.rank)
                assert (array.dtype, array.shape, array.tobytes()) == (expected.dtype, expected.shape, expected.tobytes())


def check_alltoall_of_much_and_nothing(comm):
    incoming = comm.alltoall([np.full(5000 * (peer == 0), 7.0 + comm.rank) for peer in range(comm.size)])
    for peer, array in enumerate(incoming):
        assert array.size == 5000 * (comm.rank == 0) and (array == 7 + peer).all()


def _refuses_together(comm, call, good_argument, bad_argument):
    """Check that all ranks get a ShapeError if one calls `call(bad_argument)`, and that `call(good_argument)` works afterwards."""
    with pytest.raises(ShapeError):
        call(bad_argument if comm.rank == comm.size - 1 else good_argument)
    call(good_argument)
    assert comm.allgather(comm.rank) == list(range(comm.size))


def check_alltoall_is_refused_together(comm):
    n, good = comm.size, [np.zeros((2, 4))] * comm.size
    bads = [good * 2, [np.zeros(())] * n, [np.zeros((4, 4)).T[:, :2]] * n, [[1.0]] * n, [np.array([None])] * n]
    if n > 1:
        bads += [[np.zeros((2, 4), "f4")] * n, [np.zeros((2, 5))] * n, [np.zeros(8)] * n, [*good[1:], np.zeros((2, 3))]]
    for bad in bads:
        _refuses_together(comm, comm.alltoall, good, bad)


def check_broadcast(comm):
    for root in range(comm.size):
        for dtype in DTYPES:
            for shape in SHAPES:
                sent = filled(dtype, shape, root)
                array = sent.copy() if comm.rank == root else np.zeros_like(sent)
                array.flags.writeable = comm.rank != root  # a mapped file may be sent
                assert comm.broadcast(array, root) is array and array.tobytes() == sent.tobytes()


def check_started_broadcasts(comm):
    """Check several started broadcasts at once, each with a root and a size of its own."""
    roots = [k % comm.size for k in range(4)]
    sent = [filled("f4", (1000 * k, 3), k) for k in range(4)]
    arrays = [array.copy() if comm.rank == root else np.zeros_like(array) for array, root in zip(sent, roots)]
    requests = [comm.start_broadcast(array, root) for array, root in zip(arrays, roots)]
    while not requests[0].test():
        pass
    for request, array, whole in zip(requests, arrays, sent):
        request.wait()
        assert array.tobytes() == whole.tobytes()
    with pytest.raises(SarliteError, match="cannot be cancelled"):
        requests[0].cancel()


def check_broadcast_is_refused_together(comm):
    good = np.zeros((2, 4))
    bads = [np.zeros((4, 4)).T[:, :2], [1.0], np.array([None])]
    if comm.size > 1:
        frozen = good.copy()
        frozen.flags.writeable = False
        bads += [frozen, np.zeros((2, 4), "f4"), np.zeros((4, 2)), np.zeros((2, 5))]
    for bad in bads:
        _refuses_together(comm, lambda array: comm.broadcast(array, 0), good, bad)
    _refuses_together(comm, lambda root: comm.broadcast(good, root), 0, comm.size)


def check_started_reduction(comm):
    for dtype in ("f4", "f8", "i8"):
        for shape in [(), (1,), (40, 5), (0,), (0, 2)]:
            every = [_numbers(shape, rank).astype(dtype) for rank in range(comm.size)]
            for op, expected in [("sum", sum(every)), ("max", np.maximum.reduce(every)), ("min", np.minimum.reduce(every))]:
                request = comm.start_allreduce(array := every[comm.rank].copy(), op)
                while op == "max" and not request.test():
                    time.sleep(0)
                request.wait()
                request.wait()
                assert request.test() and array.dtype == dtype and np.array_equal(array, expected), (dtype, shape, op)


def check_started_reduction_is_the_same_everywhere(comm):
    for dtype in ("f4", "f8"):
        array = np.random.default_rng(comm.rank).standard_normal(1001).astype(dtype)
        comm.start_allreduce(array).wait()
        assert len(set(comm.allgather(array.tobytes()))) == 1


def check_started_reduction_is_refused_together(comm):
    good = np.zeros((2, 4))
    if comm.size > 1:
        for bad in [np.zeros((4, 4)).T[:, :2], np.array([None]), np.zeros((2, 4), "f4"), np.zeros((2, 5)), np.zeros(8)]:
            _refuses_together(comm, lambda array: comm.start_allreduce(array).wait(), good, bad)
    for op in ("mean", "max")[: comm.size]:
        _refuses_together(comm, lambda op: comm.start_allreduce(good, op).wait(), "sum", op)


def check_allreduce_is_refused_together(comm):
    good = np.zeros((2, 4))
    for bad in [np.zeros((2, 4), "f4"), np.zeros((2, 5)), np.zeros(8), np.zeros((4, 4)).T[:, :2]][: None if comm.size > 1 else 0]:
        _refuses_together(comm, comm.allreduce, good, bad)
        assert comm.allreduce(np.ones(3)).tolist() == [comm.size] * 3


def check_thread_waits_for_a_reduction(comm):
    if not comm.threaded:
        pytest.skip("no MPI_THREAD_MULTIPLE")
    channel = comm.channel("reductions")
    for i in range(10):
        request = channel.start_allreduce(total := np.full(5000, i + channel.rank))
        done = in_thread(request.wait)
        for tag in range(3):
            for peer, array in enumerate(exchange(comm, [np.full(500, comm.rank)] * comm.size, tag)):
                assert (array == peer).all()
        done()
        assert (total == i * comm.size + sum(range(comm.size))).all()


def check_thread_inside_broadcast(comm):
    if not comm.threaded:
        pytest.skip("no MPI_THREAD_MULTIPLE")
    channel, array = comm.channel("broadcast"), np.full(100, comm.rank)
    done = in_thread(lambda: channel.broadcast(array, 0)) if comm.rank else None
    comm.barrier()
    if comm.rank == 0:
        time.sleep(0.05)  # the threads of the others are in the broadcast, which waits for this rank
        channel.broadcast(array, 0)
    else:
        done()
    assert (array == 0).all()


def check_a_reduction_is_not_cancelled(comm):
    request = comm.start_allreduce(array := np.ones(3))
    with pytest.raises(SarliteError, match="cannot be cancelled"):
        request.cancel()
    request.wait()
    assert (array == comm.size).all()
