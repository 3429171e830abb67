"""Checks that every communicator must pass. Each is one rank's part, for any number of ranks."""

import gc
import threading

import numpy as np
import pytest

from sarlite.errors import ConfigError, DataError, ShapeError, raise_together

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


CHECKS = {name: value for name, value in globals().items() if name.startswith("check_")}
NEED_A_PEER = {  # they send to the next rank, which `Solo` has not
    name
    for name in CHECKS
    if name
    not in {
        "check_allreduce",
        "check_allreduce_is_the_same_everywhere",
        "check_objects",
        "check_values_are_copies",
        "check_errors_are_raised_together",
        "check_thread_beside_collectives",
    }
}
