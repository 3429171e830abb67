"""A rank's own rows and edges, from memory and from memory maps; other rows of a part's files stay on disk."""

import subprocess
import sys
import textwrap

import numpy as np
import pytest

from sarlite.data import format, load
from sarlite.data.divide import InMemory, divide
from sarlite.data.part import Part
from sarlite.errors import ConfigError

SIZES = [0, 9, 31, 0, 24, 16]  # of six parts, two of them empty


def weighted(spec="sbm:nodes=80,degree=6,features=5,classes=3,seed=1"):
    data = load(spec)
    data.edge_weight = np.arange(data.n_edges, dtype=np.float32)
    data.edge_features = np.arange(2.0 * data.n_edges).reshape(-1, 2)
    return data


@pytest.fixture(scope="module", params=["memory", "mapped"])
def dataset(request, tmp_path_factory):
    sink = InMemory()
    divide(weighted(), np.repeat(np.arange(6), SIZES)[np.random.default_rng(0).permutation(80)], 6, sink)
    if request.param == "memory":
        return sink.dataset
    directory = tmp_path_factory.mktemp("part") / "d"
    format.write(directory, sink.dataset)
    return format.open(directory)


@pytest.mark.parametrize("size", [1, 2, 3, 6])
def test_parts_put_together_are_the_data_set(dataset, size):
    parts = [Part(dataset, rank, size) for rank in range(size)]
    bounds = np.concatenate(([0], np.cumsum(SIZES)))[:: 6 // size]
    assert [part.offsets.tolist() for part in parts] == [bounds.tolist()] * size
    assert [(part.first_row, part.n_rows) for part in parts] == list(zip(bounds[:-1].tolist(), np.diff(bounds).tolist()))
    for name in ("features", "labels", "train", "val", "test"):
        pieces = [getattr(part.rows(), name) for part in parts]
        whole = getattr(dataset, name)
        assert all(one.dtype == whole.dtype and one.flags.c_contiguous and type(one) is np.ndarray for one in pieces)
        assert np.array_equal(np.concatenate(pieces), whole)
    assert np.array_equal(np.concatenate([part.node_ids() for part in parts]), dataset.ids)
    assert np.array_equal(np.concatenate([part.edge_ids() for part in parts]), dataset.edge_ids)
    assert all(ids.dtype == np.int64 for part in parts for ids in (part.node_ids(), part.edge_ids()))
    indptrs, indices = zip(*(part.edges() for part in parts))
    assert all(indptr.dtype == np.int64 and indptr[0] == 0 for indptr in indptrs)
    assert np.array_equal(np.concatenate([np.diff(indptr) for indptr in indptrs]), np.diff(dataset.indptr))
    assert np.array_equal(np.concatenate(indices), dataset.indices)
    for name in ("edge_weight", "edge_features"):
        assert np.array_equal(np.concatenate([part.edge_values(name) for part in parts]), getattr(dataset, name))


def test_what_is_not_there():
    data = load("sbm:nodes=20,degree=2")
    part = Part(data, 0, 1)
    assert part.edge_values("edge_weight") is None and part.node_ids().tolist() == list(range(20))
    assert part.edge_ids().tolist() == list(range(data.n_edges))
    assert np.shares_memory(part.rows().features, data.features)  # in memory nothing is copied


def test_features_are_read_in_the_wanted_dtype(dataset):
    rows = Part(dataset, 1, 3).rows(np.float64)
    assert rows.features.dtype == np.float64 and np.array_equal(rows.features, dataset.features[9:40])


@pytest.mark.parametrize("size", [4, 5, 12])
def test_numbers_of_ranks_that_do_not_go(dataset, size):
    with pytest.raises(ConfigError, match=f"6 parts cannot be joined into {size}"):
        Part(dataset, 0, size)


def test_reading_a_part_leaves_the_rest_on_disk(tmp_path):
    """Reading a quarter of 256 MiB of features takes about 64 MiB."""
    code = """
        import sys
        import numpy as np
        from sarlite.data import format, load
        from sarlite.data.part import Part
        from sarlite.profile import Memory
        made = load("sbm:nodes=2000,degree=4,features=2")
        if sys.argv[2] == "write":
            made.features, made.offsets = np.ones((2000, 32768), np.float32), np.arange(5) * 500
            format.write(sys.argv[1], made)
        else:
            dataset = format.open(sys.argv[1])
            memory = Memory()
            rows = Part(dataset, 1, 4).rows()
            assert rows.features.nbytes == 500 * 32768 * 4
            print(memory.peak() / 2**20)
    """

    def run(what):
        call = [sys.executable, "-c", textwrap.dedent(code), str(tmp_path / "d"), what]
        return subprocess.run(call, capture_output=True, text=True, timeout=120, check=True).stdout

    run("write")
    assert 60 < float(run("read")) < 62.5 + 32 + 10
