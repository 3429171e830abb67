"""What a process takes beside a step's arrays: huge pages, what counting leaves, rows that are moved, MPI's own memory."""

import mmap
import tracemalloc

import numpy as np
import pytest

from sarlite import profile
from sarlite.comm import threads
from sarlite.kernels import Buffers, Places, allocations
from sarlite.sar import program, stages
from sarlite.train import load
from sarlite.train.config import resolve
from sarlite.train.settings import graph_of, source_of

HUGE = 1 << 21


def test_the_range_of_buffers_takes_whole_huge_pages(monkeypatch):
    with Buffers():
        first = np.empty(HUGE, np.uint8)
    assert (first.ctypes.data - 64) % HUGE == 0
    monkeypatch.setattr(allocations, "huge_page", lambda: HUGE)
    places = Places()
    assert places.peak == 0
    places.new(0, 1000)
    assert places.peak == places.peak_small
    for key, n_bytes, n_pages in ((1, HUGE // 2, 1), (2, HUGE, 2), (3, HUGE // 4, 2)):
        places.new(key, n_bytes)
        assert places.peak == n_pages * HUGE + places.peak_small


@pytest.mark.parametrize("enabled, size", [("always [madvise] never", 1 << 21), ("[always] madvise never", 1 << 21),
                                           ("always madvise [never]", 4096), (None, 4096)])
def test_huge_pages_are_those_of_the_system(enabled, size, tmp_path, monkeypatch):
    monkeypatch.setattr(profile, "_HUGE_PAGES", f"{tmp_path}/")
    if enabled:
        (tmp_path / "enabled").write_text(enabled + "\n")
        (tmp_path / "hpage_pmd_size").write_text("2097152\n")
    assert profile.huge_page() == size


def test_what_stays_of_the_recording_is_told():
    kept, size = [], 16 << 20

    def run(n):
        tape = program.Tape(profile.Profile())
        with tape.recorder, tape.segment("step"):
            np.zeros(1000 * n)
        kept.append(mmap.mmap(-1, size))  # which no memory that the process has already can be
        kept[-1].write(bytes(size))
        return tape

    found = program.record(run, [{"n": n} for n in (5, 6, 7)])
    assert len(kept) == 4 and found.warm_bytes > 3 * size  # of all four; the process may have given some of its own back


def test_rows_are_brought_to_the_front_with_little_memory():
    rows = np.repeat(np.arange(1 << 15), 32).reshape(-1, 32)
    tracemalloc.start()
    try:
        found = stages._columns(rows, np.arange(1, len(rows), 2))
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert most < 0.1 * rows.nbytes and np.array_equal(found[:, 7], np.arange(1, 1 << 15, 2))


@pytest.mark.parametrize("data, model", [("sbm:nodes=300,features=4", "gcn"), ("relational:nodes=300,edges=600,features=4", "rgcn")])
def test_each_peer_is_sent_messages_before_memory_is_counted(data, model, tmp_path, monkeypatch):
    """With them MPI takes what it needs for itself."""
    events = []

    def memory():
        events.append("counting begins")
        return profile.Memory()

    def work(comm):
        alltoall = comm.alltoall

        def listening(arrays):
            events.append([array.nbytes for array in arrays])
            return alltoall(arrays)

        comm.alltoall = listening
        options = resolve({"data": data, "model": model, "ranks": comm.size, "progress": "none", "prefetch": 0})
        load.load(comm, source_of(options, None), graph_of(options), tmp_path)

    monkeypatch.setattr(load, "Memory", memory)
    threads.run(3, work)
    before = events[: events.index("counting begins")]
    assert [before.count([n] * 3) for n in load.FIRST_BYTES] == [6, 6, 6]
