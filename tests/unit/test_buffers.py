"""Memory that arrays give back and get again, and a training step that takes no fresh one."""

import gc
import threading

import numpy as np
import pytest

from sarlite import Graph, Trainer, models, nn, optim
from sarlite.comm import threads
from sarlite.kernels import Buffers
from sarlite.sar import schedule

LARGE = 1 << 18


def test_arrays_inside_start_at_a_cache_line():
    with Buffers():
        arrays = [np.empty(n, np.float32) for n in (1, 7, 1000, LARGE, 3 * LARGE + 1)] + [np.zeros((3, 5)), np.arange(10)]
    assert [a.ctypes.data % 64 for a in arrays] == [0] * len(arrays)


def test_a_freed_block_is_used_again_for_half_its_size_or_more():
    buffers = Buffers()
    with buffers:
        a = np.empty(4 * LARGE, np.uint8)
        address = a.ctypes.data
        del a
        b = np.empty(4 * LARGE, np.uint8)
        assert b.ctypes.data == address and buffers.n_fresh == 1
        del b
        c = np.empty(3 * LARGE, np.uint8)
        assert c.ctypes.data == address and buffers.n_fresh == 1
        del c
        d = np.empty(LARGE + 1, np.uint8)
        assert d.ctypes.data != address and buffers.n_fresh == 2


def test_the_best_fit_is_taken():
    buffers = Buffers()
    with buffers:
        large, small = np.empty(6 * LARGE, np.uint8), np.empty(4 * LARGE, np.uint8)
        address = small.ctypes.data
        del large, small
        assert np.empty(4 * LARGE, np.uint8).ctypes.data == address


@pytest.mark.parametrize("n", [LARGE, 40 * LARGE])
def test_zeros_are_zeros_in_used_memory(n):
    with Buffers():
        a = np.full(n, 255, np.uint8)
        address = a.ctypes.data
        del a
        b = np.zeros(n, np.uint8)
    assert b.ctypes.data == address and not b.any()


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
        a, b = np.empty(LARGE, np.uint8), np.empty(8 * LARGE, np.uint8)
        a[:] = 1
    total = buffers.n_bytes
    del b
    assert buffers.n_bytes == total > 9 * LARGE
    buffers.trim()
    assert LARGE <= buffers.n_bytes < 2 * LARGE and (a == 1).all()


def trained(comm, name, mode="sar", prefetch=1, steps=4):
    """Return how often each step took fresh memory."""
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
    allocate, places = schedule._allocate, []

    def noted(*args, **options):
        buffer, views = allocate(*args, **options)
        if len(buffer) >= LARGE:
            places.append(buffer.ctypes.data % 64)
        return buffer, views

    monkeypatch.setattr(schedule, "_allocate", noted)
    for fresh in threads.run(2, lambda comm: trained(comm, "gat", prefetch=prefetch, steps=6)):
        assert fresh[0] > 3 and fresh[-1] == 0
    assert len(places) > 10 and set(places) == {0}  # those of the prefetch thread too
