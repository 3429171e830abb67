"""Checks that every communicator must pass. Each is one rank's part, for any number of ranks."""

import gc
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from sarlite.comm import agree, together
from sarlite.errors import ConfigError, DataError, PeerError, SarliteError, ShapeError, raise_together
from sarlite.profile import Counted, Profile

DTYPES = ["?", "i1", "u1", "i2", "i4", "i8", "u8", "f2", "f4", "f8", "c16", "M8[s]", [("node", "i8"), ("weight", "f4")]]
SHAPES = [(), (1,), (5,), (3, 4), (0,), (0, 3), (3, 0)]


def _filled(dtype, shape, seed):
    raw = np.random.default_rng(seed).integers(0, 2, int(np.prod(shape, dtype=int)) * np.dtype(dtype).itemsize, np.uint8)
    return raw.view(dtype).reshape(shape)


def _exchange(comm, outgoing, tag=0):
    """Send `outgoing[peer]` to every rank, this one included, and return what came from each."""
    incoming = [np.empty_like(outgoing[comm.rank]) for _ in range(comm.size)]
    receives = [comm.start_recv(incoming[peer], peer, tag) for peer in range(comm.size)]
    sends = [comm.start_send(outgoing[peer], peer, tag) for peer in range(comm.size)]
    for request in sends + receives:
        request.wait()
    return incoming


def check_dtypes_and_shapes(comm):
    for dtype in DTYPES:
        for shape in SHAPES:
            incoming = _exchange(comm, [_filled(dtype, shape, 100 * comm.rank + peer) for peer in range(comm.size)])
            for peer, array in enumerate(incoming):
                assert array.tobytes() == _filled(dtype, shape, 100 * peer + comm.rank).tobytes(), (dtype, shape, peer)


def check_tags_out_of_order(comm):
    here, there = (comm.rank - 1) % comm.size, (comm.rank + 1) % comm.size
    sends = [comm.start_send(np.full(4, 10 * comm.rank + tag), there, tag) for tag in (1, 2, 3)]
    for tag in (3, 1, 2):
        array = np.zeros(4, int)
        comm.start_recv(array, here, tag).wait()
        assert (array == 10 * here + tag).all()
    for request in sends:
        request.wait()


def check_order_within_a_tag(comm):
    here, there = (comm.rank - 1) % comm.size, (comm.rank + 1) % comm.size
    arrays = [np.zeros(1000, int) for _ in range(5)]
    receives = [comm.start_recv(array, here) for array in arrays[:2]]
    sends = [comm.start_send(np.full(1000, i), there) for i in range(5)]
    receives += [comm.start_recv(array, here) for array in arrays[2:]]
    for request in reversed(receives + sends):
        request.wait()
    assert [array[0] for array in arrays] == [array[-1] for array in arrays] == list(range(5))


def check_large_message(comm):
    rows = np.arange(comm.rank, comm.rank + 300_000, dtype=np.float64)
    for peer, array in enumerate(_exchange(comm, [rows] * comm.size)):
        assert np.array_equal(array, np.arange(peer, peer + 300_000))


def check_buffer_is_kept_alive(comm):
    here, there = (comm.rank - 1) % comm.size, (comm.rank + 1) % comm.size
    request = comm.start_send(np.full(100_000, comm.rank), there)
    gc.collect()
    junk = [np.full(100_000, -1) for _ in range(5)]
    array = np.empty(100_000, int)
    comm.start_recv(array, here).wait()
    request.wait()
    request.wait()  # a finished request stays finished
    assert (array == here).all() and len(junk) == 5


def check_two_threads_at_once(comm):
    if not comm.threaded:
        pytest.skip("no MPI_THREAD_MULTIPLE")
    found = {}

    def work(tag):
        outgoing = [np.full(2000, 100 * tag + 10 * comm.rank + peer) for peer in range(comm.size)]
        rounds = [enumerate(_exchange(comm, outgoing, tag)) for _ in range(20)]
        found[tag] = [[a[0] == a[-1] == 100 * tag + 10 * p + comm.rank for p, a in one] for one in rounds]

    workers = [threading.Thread(target=work, args=(tag,), daemon=True) for tag in (1, 2)]
    for worker in workers:
        worker.start()
    work(3)
    for worker in workers:
        worker.join(20)
    assert sorted(found) == [1, 2, 3] and all(np.all(oks) for oks in found.values())


def check_thread_beside_collectives(comm):
    if not comm.threaded:
        pytest.skip("no MPI_THREAD_MULTIPLE")
    other, found = comm.dup(), []

    def work():
        found.extend(other.allreduce(np.array([i + other.rank]))[0] for i in range(20))

    worker = threading.Thread(target=work, daemon=True)
    worker.start()
    mine = [comm.allreduce(np.array([comm.rank * i]))[0] for i in range(20)]
    worker.join(20)
    total = sum(range(comm.size))
    assert mine == [total * i for i in range(20)]
    assert found == [comm.size * i + total for i in range(20)]


def check_channels_are_kept_apart(comm):
    assert comm.channel("a") is comm.channel("a") and comm.channel("a").size == comm.size
    mine, others = np.full(3, comm.rank), [comm, comm.channel("a"), comm.channel("b")]
    found = [np.empty(3, int) for _ in others]
    peer, source = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    receives = [other.start_recv(into, source) for other, into in zip(others, found)] if comm.size > 1 else []
    sends = [other.start_send(mine * 10 + k, peer) for k, other in reversed(list(enumerate(others)))] if comm.size > 1 else []
    for request in receives + sends:
        request.wait()
    for k, into in enumerate(found if comm.size > 1 else []):
        assert (into == source * 10 + k).all()


def check_dups_are_apart(comm):
    others = [comm.dup(), comm.dup()]
    others.append(others[0].dup())
    here, there = (comm.rank - 1) % comm.size, (comm.rank + 1) % comm.size
    assert all((other.rank, other.size, other.threaded) == (comm.rank, comm.size, comm.threaded) for other in others)
    sends = [other.start_send(np.full(3, i), there) for i, other in enumerate([*others, comm])]
    for i, other in reversed(list(enumerate([*others, comm]))):
        array = np.empty(3, int)
        other.start_recv(array, here).wait()
        assert (array == i).all()
    for request in sends:
        request.wait()


def check_gather(comm):
    for root in range(comm.size):
        own = np.full((comm.rank, 3), comm.rank, np.float32)
        found = comm.gather(own, root)
        assert (found is None) == (comm.rank != root)
        for rank, part in enumerate(found or ()):
            assert part.shape == (rank, 3) and part.dtype == np.float32 and (part == rank).all() and part is not own
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
    found = comm.allgather(mine)
    assert found == [{"rank": rank, "list": [rank]} for rank in range(comm.size)]
    comm.barrier()
    found[0]["list"].append("changed")  # what one rank does to its copy no other rank sees
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
    here, there = (comm.rank - 1) % comm.size, (comm.rank + 1) % comm.size
    for n_receive in (3, 5):
        receive = comm.start_recv(np.empty(n_receive), here, n_receive)
        send = comm.start_send(np.zeros(4), there, n_receive)
        with pytest.raises(ShapeError):
            receive.wait()
        try:
            send.wait()
        except ShapeError:
            pass  # only some communicators tell the sender too


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


def _rows(dtype, rest, sender, receiver):
    """What one rank sends another: 0 to 6 rows."""
    return _filled(dtype, ((3 * sender + 2 * receiver) % 7, *rest), 100 * sender + receiver)


def check_alltoall(comm):
    for dtype in DTYPES:
        for rest in [(), (3,), (2, 2), (0,)]:
            outgoing = [_rows(dtype, rest, comm.rank, peer) for peer in range(comm.size)]
            incoming = comm.alltoall(outgoing)
            for array in outgoing:
                array.reshape(-1).view(np.uint8)[...] = 9  # what came is no view of it
            comm.barrier()
            assert len(incoming) == comm.size
            for peer, array in enumerate(incoming):
                expected = _rows(dtype, rest, peer, comm.rank)
                assert (array.dtype, array.shape, array.tobytes()) == (expected.dtype, expected.shape, expected.tobytes())


def check_alltoall_of_much_and_nothing(comm):
    incoming = comm.alltoall([np.full(5000 * (peer == 0), 7.0 + comm.rank) for peer in range(comm.size)])
    for peer, array in enumerate(incoming):
        assert array.size == 5000 * (comm.rank == 0) and (array == 7 + peer).all()


def _refuses_together(comm, call, good, bad):
    """Every rank gets ShapeError when the last one calls with `bad`, and the next call is right."""
    with pytest.raises(ShapeError):
        call(bad if comm.rank == comm.size - 1 else good)
    call(good)
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
                sent = _filled(dtype, shape, root)
                array = sent.copy() if comm.rank == root else np.zeros_like(sent)
                array.flags.writeable = comm.rank != root  # a mapped file may be sent
                assert comm.broadcast(array, root) is array and array.tobytes() == sent.tobytes()


def check_started_broadcasts(comm):
    """Several are under way, each from its root, of as many bytes as it has."""
    roots = [k % comm.size for k in range(4)]
    sent = [_filled("f4", (1000 * k, 3), k) for k in range(4)]
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


def _in_thread(work):
    """Start `work` in a thread; what is returned waits for it, raises what it raised and returns what it returned."""
    pool = ThreadPoolExecutor(1)
    future = pool.submit(work)
    pool.shutdown(wait=False)
    return lambda: future.result(20)


def check_thread_waits_for_a_reduction(comm):
    if not comm.threaded:
        pytest.skip("no MPI_THREAD_MULTIPLE")
    channel = comm.channel("reductions")
    for i in range(10):
        request = channel.start_allreduce(total := np.full(5000, i + channel.rank))
        done = _in_thread(request.wait)
        for tag in range(3):
            for peer, array in enumerate(_exchange(comm, [np.full(500, comm.rank)] * comm.size, tag)):
                assert (array == peer).all()
        done()
        assert (total == i * comm.size + sum(range(comm.size))).all()


def check_thread_inside_broadcast(comm):
    if not comm.threaded:
        pytest.skip("no MPI_THREAD_MULTIPLE")
    channel, array = comm.channel("broadcast"), np.full(100, comm.rank)
    done = _in_thread(lambda: channel.broadcast(array, 0)) if comm.rank else None
    comm.barrier()
    if comm.rank == 0:
        time.sleep(0.05)  # the threads of the others are in the broadcast, which waits for this rank
        channel.broadcast(array, 0)
    else:
        done()
    assert (array == 0).all()


def _ring(comm):
    return comm.channel("ring"), (comm.rank - 1) % comm.size, (comm.rank + 1) % comm.size


def _pass_on(channel, here, there, tag, n=300):
    """Send an array to the next rank; what came from the one before must be its own."""
    receive = channel.start_recv(array := np.zeros(n), here, tag)
    send = channel.start_send(np.full(n, 1.0 + channel.rank), there, tag)
    receive.wait()
    send.wait()
    assert (array == 1 + here).all()


def check_cancelled_receive_is_left_alone(comm):
    channel, here, there = _ring(comm)
    for n in (300, 30_000):  # an eager message and one by rendezvous
        request = channel.start_recv(array := np.full(n, 7.0), here, 1)
        request.cancel()
        request.cancel()
        assert request.test()
        with pytest.raises(PeerError, match="cancelled"):
            request.wait()
        channel.barrier()
        late = channel.start_send(np.zeros(n), there, 1)
        _pass_on(channel, here, there, 2, n)
        late.cancel()
        channel.drain()
        _pass_on(channel, here, there, 1, n)  # the late message with this tag has been dropped
        assert (array == 7).all()


def check_cancelled_sends_are_dropped(comm):
    channel, here, there = _ring(comm)
    sent = [np.full(n, -1.0) for n in (3, 300, 30_000) * 5]
    requests = [channel.start_send(array, there, 1) for array in sent]
    for request in requests:
        request.cancel()
    del sent, requests
    gc.collect()
    _pass_on(channel, here, there, 2)
    channel.drain()
    _pass_on(channel, here, there, 1)


def check_drain_cancels_what_is_open(comm):
    channel, here, there = _ring(comm)
    receive = channel.start_recv(array := np.full(300, 7.0), here, 1)
    sends = [channel.start_send(np.zeros(n), there, 2) for n in (300, 30_000)]
    channel.drain()
    with pytest.raises(PeerError, match="cancelled"):
        receive.wait()
    for tag in (2, 1):
        _pass_on(channel, here, there, tag)
    assert (array == 7).all() and len(sends) == 2


def check_cancel_wakes_a_thread(comm):
    if not comm.threaded:
        pytest.skip("no MPI_THREAD_MULTIPLE")
    channel, here, there = _ring(comm)
    for _ in range(3):
        request = channel.start_recv(array := np.full(300, 7.0), here, 1)
        done = _in_thread(request.wait)
        time.sleep(0.01)
        assert not request.test()
        request.cancel()
        with pytest.raises(PeerError, match="cancelled"):
            done()
        channel.barrier()
        _pass_on(channel, here, there, 1)
        assert (array == 7).all()


def check_cancel_while_it_arrives(comm):
    """Whatever of the two comes first, nothing is written afterwards and the next tag is right."""
    if not comm.threaded:
        pytest.skip("no MPI_THREAD_MULTIPLE")
    channel, here, there = _ring(comm)
    for tag in range(1, 60):
        receive = channel.start_recv(array := np.full(300, 7.0), here, tag)
        done = _in_thread(receive.wait)
        send = channel.start_send(np.full(300, 1.0 + channel.rank), there, tag)
        receive.cancel()
        found = array.copy()
        assert ((found == 7) | (found == 1 + here)).all()
        try:
            done()
            assert (found == 1 + here).all()
        except PeerError:
            pass
        send.cancel()
        _pass_on(channel, here, there, 0)
        assert (array == found).all()
    channel.drain()


def check_cancel_of_what_is_done(comm):
    channel, here, there = _ring(comm)
    receive = channel.start_recv(array := np.zeros(4), here)
    send = channel.start_send(np.full(4, 1.0 + comm.rank), there)
    receive.wait()
    send.wait()
    for request in (receive, send):
        request.cancel()
        request.wait()
        assert request.test()
    assert (array == 1 + here).all()


def check_test_says_when(comm):
    channel, here, there = _ring(comm)
    for n in (4, 3):  # as many as are sent, and too few
        receive = channel.start_recv(array := np.zeros(n), here)
        assert not receive.test()
        channel.barrier()
        send = channel.start_send(np.full(4, 1.0 + comm.rank), there)
        while not receive.test():
            time.sleep(0)
        if n == 4:
            receive.wait()
            send.wait()
            assert (array == 1 + here).all()
        else:
            with pytest.raises(ShapeError):
                receive.wait()
    channel.drain()


def check_a_reduction_is_not_cancelled(comm):
    request = comm.start_allreduce(array := np.ones(3))
    with pytest.raises(SarliteError, match="cannot be cancelled"):
        request.cancel()
    request.wait()
    assert (array == comm.size).all()


def check_largest_tag(comm):
    channel, here, there = _ring(comm)
    assert channel.max_tag >= 32766
    _pass_on(channel, here, there, channel.max_tag)


def check_freed_duplicates(comm):
    for _ in range(3):
        other = comm.dup()
        other.channel("a").barrier()
        other.free()
    comm.barrier()


def check_split(comm):
    """The parts of a communicator number their ranks anew; what they exchange meets neither each other's nor the whole's."""
    part, members = comm.split(comm.rank % 2), list(range(comm.rank % 2, comm.size, 2))
    assert (part.size, members[part.rank]) == (len(members), comm.rank)
    assert part.allgather(comm.rank) == members and comm.allgather(part.rank) == [rank // 2 for rank in range(comm.size)]
    assert part.allreduce(np.array([1, comm.rank])).tolist() == [len(members), sum(members)]
    assert [found.tolist() for found in part.alltoall([np.full(part.rank, 10 * to + comm.rank) for to in members])] == [
        [10 * comm.rank + source] * place for place, source in enumerate(members)]
    assert part.broadcast(np.full(3, comm.rank), part.size - 1).tolist() == [members[-1]] * 3
    inner = part.dup().split(0)  # of all its ranks
    both, found = (part, inner), [np.empty(3, int), np.empty(3, int)]
    peer, source = (part.rank + 1) % part.size, (part.rank - 1) % part.size
    receives = [one.start_recv(into, source) for one, into in zip(both, found)] if part.size > 1 else []
    sends = [one.start_send(np.full(3, 10 * comm.rank + k), peer) for k, one in reversed(list(enumerate(both)))] if part.size > 1 else []
    for request in receives + sends:
        request.wait()
    for k, into in enumerate(found if part.size > 1 else []):
        assert (into == 10 * members[source] + k).all()


def check_groups_are_kept_and_drained(comm):
    part = comm.group("halves", comm.rank % 2)
    assert comm.group("halves", comm.rank % 2) is part and comm.group("all", 0) is not part or comm.size == 1
    late = part.channel("ring").start_recv(np.empty(1), (part.rank - 1) % part.size) if part.size > 1 else None
    comm.drain_channels()
    if late is not None:
        with pytest.raises(PeerError, match="cancelled"):
            late.wait()


def check_together(comm):
    assert together(comm, lambda: comm.rank) == comm.rank
    last = comm.size - 1
    for error in (DataError("edges"), ZeroDivisionError("edges"), _Own("edges", 3)):

        def fail(error=error):
            if comm.rank == last:
                raise error
            return comm.rank

        mine, kind = comm.rank == last, type(error) if isinstance(error, SarliteError) else PeerError
        with pytest.raises(type(error) if mine else DataError if kind is _Own else kind, match="edges") as caught:
            together(comm, fail)
        assert (caught.value is error) == mine and (mine or f"rank {last}" in str(caught.value))
    comm.barrier()


class _Own(DataError):
    """An error that cannot be made from its text alone."""

    def __init__(self, text, number):
        super().__init__(text + str(number))


def check_agree(comm):
    def values(rank):
        other, array = rank == 1, np.arange(100).reshape(10, 10)
        arrays = [array + other, array.reshape(5, 20) if other else array, array.astype("i4") if other else array]
        return [*arrays, b"ac" if other else b"ab", ("sar", [1, other]), {"mode": "sa" if other else "sar"}, 1 + other]

    for same, mine in zip(values(0), values(comm.rank)):
        assert agree(comm, same, "thing") == agree(comm, same, "thing")
        if comm.size > 1:
            with pytest.raises(DataError, match="thing is not the same on every rank: rank 1 and rank 0 differ"):
                agree(comm, mine, "thing")
    assert agree(comm, np.array([None]), "objects") != agree(comm, np.array([1], object), "objects")
    assert agree(comm, {"a": 1, "b": 2}, "dict") == agree(comm, {"b": 2, "a": 1}, "dict")
    assert agree(comm, (b"a", b"b"), "sequence") != agree(comm, (b"ab",), "sequence")


CHECKS = {name: value for name, value in globals().items() if name.startswith("check_")}
NEED_A_PEER = {  # they send to the next rank, which `Solo` has not
    name
    for name in CHECKS
    if name
    not in {
        "check_gather",
        "check_gathers_that_cannot_be_are_refused_everywhere",
        "check_allreduce",
        "check_allreduce_is_the_same_everywhere",
        "check_allreduce_is_refused_together",
        "check_objects",
        "check_values_are_copies",
        "check_errors_are_raised_together",
        "check_thread_beside_collectives",
        "check_alltoall",
        "check_alltoall_of_much_and_nothing",
        "check_alltoall_is_refused_together",
        "check_broadcast",
        "check_broadcast_is_refused_together",
        "check_started_reduction",
        "check_started_reduction_is_the_same_everywhere",
        "check_started_reduction_is_refused_together",
        "check_thread_inside_broadcast",
        "check_a_reduction_is_not_cancelled",
        "check_freed_duplicates",
        "check_split",
        "check_groups_are_kept_and_drained",
        "check_together",
        "check_agree",
    }
}
