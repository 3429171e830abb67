"""Memory that arrays give back and get again; a training step takes no fresh memory."""

import contextvars
import ctypes
import gc
import resource
import subprocess
import sys
import threading

import numpy as np
import pytest

from sarlite import Graph, Trainer, kernels, models, nn, optim
from sarlite.comm import threads
from sarlite.errors import SarliteError
from sarlite.kernels import Buffers
from sarlite.schedule import messages, transport

LARGE = 1 << 18


def test_arrays_inside_start_at_a_cache_line():
    with Buffers():
        arrays = [np.empty(n, np.float32) for n in (1, 7, 1000, LARGE, 3 * LARGE + 1)] + [np.zeros((3, 5)), np.arange(10)]
    assert [a.ctypes.data % 64 for a in arrays] == [0] * len(arrays)


def address(array):
    return array.ctypes.data


def test_a_freed_block_is_used_again():
    buffers = Buffers()
    with buffers:
        a = np.empty(4 * LARGE, np.uint8)
        place = address(a)
        del a
        assert address(np.empty(4 * LARGE, np.uint8)) == place
        b, c = np.empty(2 * LARGE, np.uint8), np.empty(LARGE, np.uint8)  # parts of the freed memory
        assert place == address(b) < address(c) < place + 4 * LARGE and buffers.n_fresh == 1
        d = np.empty(2 * LARGE, np.uint8)  # the rest of that memory and some more
        assert address(d) < place + 4 * LARGE < address(d) + len(d) and buffers.n_fresh == 2


def test_freed_neighbours_join():
    buffers = Buffers()
    with buffers:
        for order in ((0, 1, 2), (2, 1, 0), (0, 2, 1), (1, 0, 2)):
            arrays = [np.empty(2 * LARGE, np.uint8) for _ in range(3)] + [np.empty(LARGE, np.uint8)]  # the last keeps them from the top
            place = address(arrays[0])
            for k in order:
                arrays[k] = None
            assert address(np.empty(6 * LARGE, np.uint8)) == place
            del arrays
    assert buffers.n_fresh == 4 and buffers.n_bytes < 8 * LARGE


def test_the_first_fit_is_taken():
    with Buffers():
        large, wall, small = np.empty(6 * LARGE, np.uint8), np.empty(LARGE, np.uint8), np.empty(4 * LARGE, np.uint8)
        place = address(large)
        del large, small
        assert address(np.empty(4 * LARGE, np.uint8)) == place < address(wall)


def test_the_same_requests_again_take_nothing_fresh():
    """Like training steps, the test requests many sizes and frees them in another order."""
    buffers, rng = Buffers(), np.random.default_rng(0)
    sizes, order = rng.integers(LARGE, 20 * LARGE, 60), rng.permutation(60)
    fresh, most = [], 0
    with buffers:
        for _ in range(4):
            held = {}
            for k, size in enumerate(sizes):
                held[k] = np.empty(size, np.uint8)
                most = max(most, sum(map(len, held.values())))
                if k % 3:
                    held.pop(min(held, key=order.__getitem__))
            held.clear()
            fresh.append(buffers.n_fresh)
    assert fresh[0] == fresh[-1] and most <= buffers.n_bytes < 1.3 * most


def test_without_a_range_of_addresses():
    """If the system refuses to reserve a range of addresses, memory comes from malloc."""
    code = f"""if True:
        import resource
        import numpy as np
        from sarlite.kernels import Buffers
        size = int(next(line for line in open("/proc/self/status") if line.startswith("VmSize")).split()[1]) * 1024
        resource.setrlimit(resource.RLIMIT_AS, (size + 2**28,) * 2)
        buffers = Buffers()
        with buffers:
            a, b = np.zeros({4 * LARGE}, np.uint8), np.full({LARGE}, 7, np.uint8)
            a.resize({8 * LARGE}, refcheck=False)
        assert not a.any() and (b == 7).all() and a.ctypes.data % 64 == b.ctypes.data % 64 == 0
        assert buffers.n_bytes == buffers.n_fresh == 0, buffers.n_bytes
        """
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("n", [LARGE, 40 * LARGE])
def test_zeros_are_zeros_in_used_memory(n):
    with Buffers():
        a = np.full(n, 255, np.uint8)
        place = address(a)
        del a
        b = np.zeros(n, np.uint8)
    assert address(b) == place and not b.any()


def test_two_arrays_never_share():
    rng = np.random.default_rng(0)
    with Buffers():
        held = {}
        for i in range(300):
            if held and rng.random() < 0.5:
                key = rng.choice(list(held))
                assert (held.pop(key) == key).all()
            held[i] = np.full(int(rng.integers(1, 4 * LARGE)), i, np.int32)
        for key, array in held.items():
            assert (array == key).all()


def test_growing_and_shrinking_keep_the_values():
    with Buffers():
        for start, end in ((10, 1000), (1000, LARGE), (LARGE, 3 * LARGE), (3 * LARGE, 100)):
            a = np.arange(start)
            a.resize(end, refcheck=False)
            n = min(start, end)
            assert (a[:n] == np.arange(n)).all() and not a[n:].any()


def test_arrays_outlive_the_buffers():
    buffers = Buffers()
    with buffers:
        a, b = np.arange(LARGE), np.arange(10)
    del buffers
    gc.collect()
    assert a.sum() == LARGE * (LARGE - 1) // 2 and b.sum() == 45
    del a, b


def test_a_copied_context_may_outlive_the_buffers():
    """The copied context still allocates from the buffers: at first fresh memory, later memory of the system."""
    buffers = Buffers()
    with buffers:
        context = contextvars.copy_context()
    del buffers
    gc.collect()
    for _ in range(3):
        a = context.run(np.ones, 4 * LARGE, np.uint8)
        b = context.run(np.zeros, 10)
        assert address(a) % 64 == address(b) % 64 == 0 and a.all() and not b.any()
    a = context.run(np.full, 4 * LARGE, 3, np.uint8)
    del context
    gc.collect()
    assert (a == 3).all()


def test_what_is_still_in_use_at_the_end_is_given_back():
    buffers = Buffers()
    with buffers:
        a, b = np.full(64 * LARGE, 1, np.uint8), np.full(64 * LARGE, 2, np.uint8)
    place = address(a)
    del buffers
    gc.collect()
    del a
    assert resident(place, 64 * LARGE) < LARGE and (b == 2).all()
    end = address(b) + len(b)
    del b
    assert not mapped(place) and not mapped(end - 1)


def test_no_buffers_live_on_in_a_thread_that_has_left_them():
    buffers = Buffers()
    with buffers:
        held = np.ones(LARGE, np.uint8)
    place = address(held)

    def work(shared):
        with shared:
            np.ones(4 * LARGE)

    thread = threading.Thread(target=work, args=(buffers,))
    thread.start()
    thread.join()
    del buffers, held
    gc.collect()
    assert not mapped(place)


def test_two_threads_inside_at_once_leave_each_in_its_own_order():
    """Each thread gets back the handler that was set before."""
    shared, local, steps, failed = Buffers(), Buffers(), [threading.Barrier(2, timeout=60) for _ in range(4)], []

    def enters_inside_of_its_own():
        with local:
            with shared:
                steps[0].wait()
                steps[1].wait()
            steps[2].wait()
            before = local.n_fresh
            a = np.empty(40 * LARGE, np.uint8)
            if local.n_fresh != before + 1:
                failed.append("not its own any more")
            del a
        steps[3].wait()

    def enters_alone():
        steps[0].wait()
        with shared:
            steps[1].wait()
            steps[2].wait()
        steps[3].wait()  # the other thread counts in `local` up to here
        before = local.n_fresh, shared.n_fresh
        a = np.empty(40 * LARGE, np.uint8)
        if (local.n_fresh, shared.n_fresh) != before:
            failed.append("in buffers outside of them")
        del a

    both = [threading.Thread(target=work) for work in (enters_inside_of_its_own, enters_alone)]
    for thread in both:
        thread.start()
    for thread in both:
        thread.join()
    assert not failed


def test_leaving_where_nobody_entered_is_refused():
    buffers, other = Buffers(), Buffers()
    with pytest.raises(SarliteError, match="Buffers: leave .* in the context that entered"):
        buffers.__exit__()
    with buffers, other:
        with pytest.raises(SarliteError, match="the last entered first"):
            buffers.__exit__()
        with pytest.raises(SarliteError, match="Buffers: leave .* in the context that entered"):
            contextvars.Context().run(other.__exit__)


def test_arrays_that_stay_are_made_outside_of_a_steps_memory():
    buffers = Buffers()
    with buffers:
        outside = kernels.outside_buffers(np.empty, LARGE, np.float32)
        assert len(outside) == LARGE and buffers.n_bytes == 0
        step = np.empty(LARGE, np.float32)
    assert buffers.n_bytes >= step.nbytes


def test_outside_nothing_changes():
    buffers = Buffers()
    with buffers:
        with pytest.raises(MemoryError):
            np.empty(1 << 60, np.uint8)
    before = buffers.n_fresh
    a = np.empty(LARGE, np.float64)
    thread = threading.Thread(target=lambda: np.empty(LARGE, np.float64))
    with buffers:
        thread.start()
        thread.join()
    assert buffers.n_fresh == before and len(a) == LARGE


def test_trim_gives_idle_blocks_back():
    buffers = Buffers()
    with buffers:
        a, b = np.full(LARGE, 1, np.uint8), np.full(64 * LARGE, 2, np.uint8)
        total, place = buffers.n_bytes, address(b)
        assert resident(place, len(b)) > 60 * LARGE
        del b
        assert buffers.n_bytes == total > 65 * LARGE and resident(place, 64 * LARGE) > 60 * LARGE
        buffers.trim()
        assert LARGE <= buffers.n_bytes < 2 * LARGE and resident(place, 64 * LARGE) < LARGE
        assert (a == 1).all()  # afterwards: its array of bools brings up to a huge page back
        assert not np.zeros(64 * LARGE, np.uint8).any()


def test_trim_gives_back_what_lies_between():
    buffers = Buffers()
    with buffers:
        a, b = np.full(64 * LARGE, 1, np.uint8), np.full(LARGE, 2, np.uint8)
        place = address(a)
        del a
        assert resident(place, 64 * LARGE) > 60 * LARGE
        buffers.trim()
        assert resident(place, 64 * LARGE) < LARGE
        assert (b == 2).all()
        c = np.zeros(64 * LARGE, np.uint8)
    assert address(c) == place and not c.any() and (b == 2).all()


def resident(address, n_bytes):
    """Return the bytes in memory of the whole pages between `address` and `address + n_bytes`, which are mapped."""
    page = resource.getpagesize()
    first, end = -(-address // page), (address + n_bytes) // page
    states = (ctypes.c_ubyte * (end - first))()
    if ctypes.CDLL(None, use_errno=True).mincore(ctypes.c_void_p(first * page), ctypes.c_size_t((end - first) * page), states):
        raise OSError(ctypes.get_errno(), "mincore")
    return sum(state & 1 for state in states) * page


def mapped(address):
    """Return True if the page at `address` is mapped."""
    page, state = resource.getpagesize(), ctypes.c_ubyte()
    return ctypes.CDLL(None).mincore(ctypes.c_void_p(address // page * page), ctypes.c_size_t(page), ctypes.byref(state)) == 0


def test_transposes_stay_outside():
    """Transposes live as long as the graph; between the arrays of a step they would leave gaps."""
    rng, buffers = np.random.default_rng(0), Buffers()
    graph = Graph.from_edges(*rng.integers(0, 1000, (2, LARGE)), 1000)
    with buffers:
        graph.plan.local.transpose, graph.plan.local.transpose_position  # noqa: B018 (made at the first use)
        assert buffers.n_bytes == 0
        dst = graph.plan.local.dst
    assert buffers.n_bytes > dst.nbytes == 4 * LARGE


def trained(comm, name, mode="sar", prefetch=1, steps=4):
    """Return the number of fresh allocations in each training step."""
    n, n_edges = 4000, 40_000
    rng = np.random.default_rng(0)
    graph = Graph.from_edges(*rng.integers(0, n, (2, n_edges)), n)
    if comm is not None:
        graph = graph.shard(comm, "contiguous", mode=mode, prefetch=prefetch)
    x, labels = rng.standard_normal((n, 48), dtype=np.float32)[graph.node_ids], rng.integers(0, 8, n)[graph.node_ids]
    random = nn.Random(0)
    model = models.MODELS[name](48, 8, rng=random, **({"hidden": 64} if name != "gat" else {"hidden": 16, "heads": 4}))
    trainer = Trainer(graph, model, x, labels, np.arange(0, len(x), 3), optimizer=lambda flat: optim.Adam(flat, 0.01), rng=random)
    fresh = []
    for epoch in range(steps):
        before = trainer.buffers.n_fresh
        trainer.step(epoch)
        fresh.append(trainer.buffers.n_fresh - before)
    return fresh


@pytest.mark.parametrize("name", ["gcn", "sage", "gat"])
def test_after_the_first_step_no_large_array_takes_fresh_memory(name):
    fresh = trained(None, name)
    assert fresh[0] > 3 and sum(fresh[2:]) == 0


@pytest.mark.parametrize("prefetch", [0, 1])
def test_nor_do_buffers_of_peers_rows(prefetch, monkeypatch):
    allocate, places = messages.allocate, []

    def recorded(*args, **options):
        buffer, views = allocate(*args, **options)
        if len(buffer) >= LARGE:
            places.append(buffer.ctypes.data % 64)
        return buffer, views

    for module in (messages, transport):
        monkeypatch.setattr(module, "allocate", recorded)
    for fresh in threads.run(2, lambda comm: trained(comm, "gat", prefetch=prefetch, steps=8)):
        assert fresh[0] > 3 and min(fresh[2:]) == 0  # the prefetch thread may run ahead by a different distance in each step
        assert prefetch or fresh[-1] == 0
    assert len(places) > 10 and set(places) == {0}  # includes allocations of the prefetch thread
