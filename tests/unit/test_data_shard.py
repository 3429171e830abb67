"""A rank's own rows and edges, from memory and from memory maps."""

import subprocess
import sys
import textwrap

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sarlite.data import format, load, shard
from sarlite.errors import DataError


@pytest.fixture(scope="module", params=["memory", "mapped"])
def dataset(request, tmp_path_factory):
    made = load("sbm:nodes=80,degree=6,features=5,classes=3,seed=1")
    made.edge_features = np.arange(2.0 * made.n_edges).reshape(-1, 2)
    if request.param == "memory":
        return made
    directory = tmp_path_factory.mktemp("shard") / "d"
    format.write(directory, made)
    return format.open(directory)


@settings(max_examples=80, deadline=None)
@given(ids=st.lists(st.integers(0, 79), unique=True), ascending=st.booleans(), chunk=st.sampled_from([1, 100, 1000, 1 << 25]))
def test_rows_and_edges_are_the_data_sets(dataset, ids, ascending, chunk):
    ids = np.array(sorted(ids) if ascending else ids, np.int64)
    before, shard.CHUNK_BYTES = shard.CHUNK_BYTES, chunk
    try:
        rows = shard.local_rows(dataset, ids)
        indptr, indices = shard.local_edges(dataset, ids)
        values = shard.local_edge_values(dataset, ids, dataset.edge_features)[1]
    finally:
        shard.CHUNK_BYTES = before
    for name in rows._fields:
        found, whole = getattr(rows, name), getattr(dataset, name)
        assert found.dtype == whole.dtype and found.flags.c_contiguous and found.flags.owndata and type(found) is np.ndarray
        assert np.array_equal(found, whole[ids])
    assert indptr.dtype == np.int64 and indices.dtype == dataset.indices.dtype and indptr.size == ids.size + 1
    for row, node in enumerate(ids):
        own = slice(int(dataset.indptr[node]), int(dataset.indptr[node + 1]))
        assert np.array_equal(indices[indptr[row] : indptr[row + 1]], dataset.indices[own])
        assert np.array_equal(values[indptr[row] : indptr[row + 1]], dataset.edge_features[own])
    assert indptr[-1] == indices.size


def test_dtype(dataset):
    rows = shard.local_rows(dataset, np.array([3, 9]), np.float64)
    assert rows.features.dtype == np.float64 and np.array_equal(rows.features, dataset.features[[3, 9]])


@pytest.mark.parametrize(
    "ids, message",
    [
        ([1, 80], "node_ids: 80 is outside"),
        ([-1, 3], "node_ids: -1 is"),
        ([2, 3, 2], "node_ids: 2 appears twice"),
        ([0.5], "integers"),
    ],
)
def test_bad_ids_are_named(dataset, ids, message):
    for read in (shard.local_rows, shard.local_edges):
        with pytest.raises(DataError, match=message):
            read(dataset, np.array(ids))


def test_reading_a_part_leaves_the_rest_on_disk(tmp_path):
    """A quarter of 256 MiB of features takes about 64 MiB, whatever was mapped on the way."""
    code = """
        import resource, sys
        import numpy as np
        from sarlite.data import format, load
        from sarlite.data.shard import local_rows
        made = load("sbm:nodes=2000,degree=4,features=2")
        directory = sys.argv[1]
        if sys.argv[2] == "write":
            made.features = np.ones((2000, 32768), np.float32)
            format.write(directory, made)
        else:
            dataset = format.open(directory)
            before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            ids = np.arange(0, 2000, 4) if sys.argv[2] == "spread" else np.arange(500, 1000)
            if sys.argv[2] == "shuffled":
                ids = np.random.default_rng(0).permutation(ids)
            rows = local_rows(dataset, ids)
            assert rows.features.nbytes == 500 * 32768 * 4
            print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024)
    """

    def run(what):
        call = [sys.executable, "-c", textwrap.dedent(code), str(tmp_path / "d"), what]
        return subprocess.run(call, capture_output=True, text=True, timeout=120, check=True).stdout

    run("write")
    assert float(run("range")) < 64 + 32 + 40
    assert float(run("shuffled")) < 64 + 32 + 32 + 40
    assert float(run("spread")) < 64 + 32 + 32 + 40  # a mapped chunk and its copy
