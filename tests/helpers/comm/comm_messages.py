"""Checks of messages between two ranks that every communicator must pass: order, tags, channels, cancelling, draining."""

import gc
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from sarlite.errors import PeerError, ShapeError

DTYPES = ["?", "i1", "u1", "i2", "i4", "i8", "u8", "f2", "f4", "f8", "c16", "M8[s]", [("node", "i8"), ("weight", "f4")]]
SHAPES = [(), (1,), (5,), (3, 4), (0,), (0, 3), (3, 0)]


def filled(dtype, shape, seed):
    raw = np.random.default_rng(seed).integers(0, 2, int(np.prod(shape, dtype=int)) * np.dtype(dtype).itemsize, np.uint8)
    return raw.view(dtype).reshape(shape)


def exchange(comm, outgoing, tag=0):
    """Send `outgoing[peer]` to every rank, this one included; return the arrays that the ranks sent to this rank."""
    incoming = [np.empty_like(outgoing[comm.rank]) for _ in range(comm.size)]
    receives = [comm.start_recv(incoming[peer], peer, tag) for peer in range(comm.size)]
    sends = [comm.start_send(outgoing[peer], peer, tag) for peer in range(comm.size)]
    for request in sends + receives:
        request.wait()
    return incoming


def check_dtypes_and_shapes(comm):
    for dtype in DTYPES:
        for shape in SHAPES:
            incoming = exchange(comm, [filled(dtype, shape, 100 * comm.rank + peer) for peer in range(comm.size)])
            for peer, array in enumerate(incoming):
                assert array.tobytes() == filled(dtype, shape, 100 * peer + comm.rank).tobytes(), (dtype, shape, peer)


def check_tags_out_of_order(comm):
    previous, next_rank = (comm.rank - 1) % comm.size, (comm.rank + 1) % comm.size
    sends = [comm.start_send(np.full(4, 10 * comm.rank + tag), next_rank, tag) for tag in (1, 2, 3)]
    for tag in (3, 1, 2):
        array = np.zeros(4, int)
        comm.start_recv(array, previous, tag).wait()
        assert (array == 10 * previous + tag).all()
    for request in sends:
        request.wait()


def check_order_within_a_tag(comm):
    previous, next_rank = (comm.rank - 1) % comm.size, (comm.rank + 1) % comm.size
    arrays = [np.zeros(1000, int) for _ in range(5)]
    receives = [comm.start_recv(array, previous) for array in arrays[:2]]
    sends = [comm.start_send(np.full(1000, i), next_rank) for i in range(5)]
    receives += [comm.start_recv(array, previous) for array in arrays[2:]]
    for request in reversed(receives + sends):
        request.wait()
    assert [array[0] for array in arrays] == [array[-1] for array in arrays] == list(range(5))


def check_large_message(comm):
    rows = np.arange(comm.rank, comm.rank + 300_000, dtype=np.float64)
    for peer, array in enumerate(exchange(comm, [rows] * comm.size)):
        assert np.array_equal(array, np.arange(peer, peer + 300_000))


def check_buffer_is_kept_alive(comm):
    previous, next_rank = (comm.rank - 1) % comm.size, (comm.rank + 1) % comm.size
    request = comm.start_send(np.full(100_000, comm.rank), next_rank)
    gc.collect()
    junk = [np.full(100_000, -1) for _ in range(5)]
    array = np.empty(100_000, int)
    comm.start_recv(array, previous).wait()
    request.wait()
    request.wait()  # a finished request stays finished
    assert (array == previous).all() and len(junk) == 5


def check_two_threads_at_once(comm):
    if not comm.threaded:
        pytest.skip("no MPI_THREAD_MULTIPLE")
    rounds_by_tag = {}

    def work(tag):
        outgoing = [np.full(2000, 100 * tag + 10 * comm.rank + peer) for peer in range(comm.size)]
        rounds = [enumerate(exchange(comm, outgoing, tag)) for _ in range(20)]
        rounds_by_tag[tag] = [[a[0] == a[-1] == 100 * tag + 10 * p + comm.rank for p, a in one] for one in rounds]

    workers = [threading.Thread(target=work, args=(tag,), daemon=True) for tag in (1, 2)]
    for worker in workers:
        worker.start()
    work(3)
    for worker in workers:
        worker.join(20)
    assert sorted(rounds_by_tag) == [1, 2, 3] and all(np.all(oks) for oks in rounds_by_tag.values())


def check_thread_beside_collectives(comm):
    if not comm.threaded:
        pytest.skip("no MPI_THREAD_MULTIPLE")
    other, sums = comm.dup(), []

    def work():
        sums.extend(other.allreduce(np.array([i + other.rank]))[0] for i in range(20))

    worker = threading.Thread(target=work, daemon=True)
    worker.start()
    mine = [comm.allreduce(np.array([comm.rank * i]))[0] for i in range(20)]
    worker.join(20)
    total = sum(range(comm.size))
    assert mine == [total * i for i in range(20)]
    assert sums == [comm.size * i + total for i in range(20)]


def check_channels_are_kept_apart(comm):
    assert comm.channel("a") is comm.channel("a") and comm.channel("a").size == comm.size
    mine, others = np.full(3, comm.rank), [comm, comm.channel("a"), comm.channel("b")]
    received = [np.empty(3, int) for _ in others]
    peer, source = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    receives = [other.start_recv(into, source) for other, into in zip(others, received)] if comm.size > 1 else []
    sends = [other.start_send(mine * 10 + k, peer) for k, other in reversed(list(enumerate(others)))] if comm.size > 1 else []
    for request in receives + sends:
        request.wait()
    for k, into in enumerate(received if comm.size > 1 else []):
        assert (into == source * 10 + k).all()


def check_dups_are_apart(comm):
    others = [comm.dup(), comm.dup()]
    others.append(others[0].dup())
    previous, next_rank = (comm.rank - 1) % comm.size, (comm.rank + 1) % comm.size
    assert all((other.rank, other.size, other.threaded) == (comm.rank, comm.size, comm.threaded) for other in others)
    sends = [other.start_send(np.full(3, i), next_rank) for i, other in enumerate([*others, comm])]
    for i, other in reversed(list(enumerate([*others, comm]))):
        array = np.empty(3, int)
        other.start_recv(array, previous).wait()
        assert (array == i).all()
    for request in sends:
        request.wait()


def in_thread(work):
    """Start `work` in a thread; return a function that waits for the thread and returns its result or raises its error."""
    pool = ThreadPoolExecutor(1)
    future = pool.submit(work)
    pool.shutdown(wait=False)
    return lambda: future.result(20)


def _ring(comm):
    return comm.channel("ring"), (comm.rank - 1) % comm.size, (comm.rank + 1) % comm.size


def _pass_on(channel, previous, next_rank, tag, n=300):
    """Send `n` numbers on `channel` to rank `next_rank`, and check the numbers that rank `previous` sends to this rank."""
    receive = channel.start_recv(array := np.zeros(n), previous, tag)
    send = channel.start_send(np.full(n, 1.0 + channel.rank), next_rank, tag)
    receive.wait()
    send.wait()
    assert (array == 1 + previous).all()


def check_cancelled_receive_is_left_alone(comm):
    channel, previous, next_rank = _ring(comm)
    for n in (300, 30_000):  # an eager message and one by rendezvous
        request = channel.start_recv(array := np.full(n, 7.0), previous, 1)
        request.cancel()
        request.cancel()
        assert request.test()
        with pytest.raises(PeerError, match="cancelled"):
            request.wait()
        channel.barrier()
        late = channel.start_send(np.zeros(n), next_rank, 1)
        _pass_on(channel, previous, next_rank, 2, n)
        late.cancel()
        channel.drain()
        _pass_on(channel, previous, next_rank, 1, n)  # the late message with this tag was dropped
        assert (array == 7).all()


def check_cancelled_sends_are_dropped(comm):
    channel, previous, next_rank = _ring(comm)
    sent = [np.full(n, -1.0) for n in (3, 300, 30_000) * 5]
    requests = [channel.start_send(array, next_rank, 1) for array in sent]
    for request in requests:
        request.cancel()
    del sent, requests
    gc.collect()
    _pass_on(channel, previous, next_rank, 2)
    channel.drain()
    _pass_on(channel, previous, next_rank, 1)


def check_drain_cancels_what_is_open(comm):
    channel, previous, next_rank = _ring(comm)
    receive = channel.start_recv(array := np.full(300, 7.0), previous, 1)
    sends = [channel.start_send(np.zeros(n), next_rank, 2) for n in (300, 30_000)]
    channel.drain()
    with pytest.raises(PeerError, match="cancelled"):
        receive.wait()
    for tag in (2, 1):
        _pass_on(channel, previous, next_rank, tag)
    assert (array == 7).all() and len(sends) == 2


def check_cancel_wakes_a_thread(comm):
    if not comm.threaded:
        pytest.skip("no MPI_THREAD_MULTIPLE")
    channel, previous, next_rank = _ring(comm)
    for _ in range(3):
        request = channel.start_recv(array := np.full(300, 7.0), previous, 1)
        done = in_thread(request.wait)
        time.sleep(0.01)
        assert not request.test()
        request.cancel()
        with pytest.raises(PeerError, match="cancelled"):
            done()
        channel.barrier()
        _pass_on(channel, previous, next_rank, 1)
        assert (array == 7).all()


def check_cancel_while_it_arrives(comm):
    """Check that a cancelled receive writes nothing later, whether the message or the cancel comes first.

    The next message of the tag must be right.
    """
    if not comm.threaded:
        pytest.skip("no MPI_THREAD_MULTIPLE")
    channel, previous, next_rank = _ring(comm)
    for tag in range(1, 60):
        receive = channel.start_recv(array := np.full(300, 7.0), previous, tag)
        done = in_thread(receive.wait)
        send = channel.start_send(np.full(300, 1.0 + channel.rank), next_rank, tag)
        receive.cancel()
        snapshot = array.copy()
        assert ((snapshot == 7) | (snapshot == 1 + previous)).all()
        try:
            done()
            assert (snapshot == 1 + previous).all()
        except PeerError:
            pass
        send.cancel()
        _pass_on(channel, previous, next_rank, 0)
        assert (array == snapshot).all()
    channel.drain()


def check_cancel_of_what_is_done(comm):
    channel, previous, next_rank = _ring(comm)
    receive = channel.start_recv(array := np.zeros(4), previous)
    send = channel.start_send(np.full(4, 1.0 + comm.rank), next_rank)
    receive.wait()
    send.wait()
    for request in (receive, send):
        request.cancel()
        request.wait()
        assert request.test()
    assert (array == 1 + previous).all()


def check_test_says_when(comm):
    channel, previous, next_rank = _ring(comm)
    for n in (4, 3):  # the right number of elements, and too few
        receive = channel.start_recv(array := np.zeros(n), previous)
        assert not receive.test()
        channel.barrier()
        send = channel.start_send(np.full(4, 1.0 + comm.rank), next_rank)
        while not receive.test():
            time.sleep(0)
        if n == 4:
            receive.wait()
            send.wait()
            assert (array == 1 + previous).all()
        else:
            with pytest.raises(ShapeError):
                receive.wait()
    channel.drain()


def check_largest_tag(comm):
    channel, previous, next_rank = _ring(comm)
    assert channel.max_tag >= 32766
    _pass_on(channel, previous, next_rank, channel.max_tag)
