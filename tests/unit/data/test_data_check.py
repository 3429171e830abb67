"""`Dataset.check` refuses data that would make training wrong, and names the fault."""

import numpy as np
import pytest

from sarlite.data import Dataset, format, load
from sarlite.data.mapped import CHUNK_BYTES
from sarlite.errors import DataError


@pytest.fixture
def dataset():
    return load("sbm:nodes=60,degree=4,features=5,classes=3,seed=1")


def change(array, at, value):
    array = array.copy()
    array[at] = value
    return array


CASES = [
    ("indices", lambda d: change(d.indices, 70, 60), "indices: edge 70 comes from node 60, outside 0 <= id < 60"),
    ("indices", lambda d: change(d.indices, 7, -1), "indices: edge 7 comes from node -1"),
    ("indices", lambda d: d.indices[:-1], "indptr: ends with 240, expected the number of edges, 239"),
    ("indices", lambda d: d.indices.astype(np.int16), "indices: expected dtype int32 or int64, found int16"),
    ("indptr", lambda d: change(d.indptr, 23, 10**6), "indptr: entry 24 is .*, less than the entry before"),
    ("indptr", lambda d: change(d.indptr, 0, 1), "indptr: starts with 1, expected 0"),
    ("indptr", lambda d: d.indptr[:0], "indptr: expected at least one entry"),
    ("indptr", lambda d: d.indptr[:-1], "59 destinations, but node has 60 nodes"),
    ("features", lambda d: change(d.features, (3, 2), np.nan), "features: row 3, column 2 is nan, expected a finite number"),
    ("features", lambda d: change(d.features, (59, 4), -np.inf), "features: row 59, column 4 is -inf"),
    ("features", lambda d: d.features[:, 0], "features: expected 2 dimension"),
    ("features", lambda d: d.features.astype(np.float16), "features: expected dtype float32 or float64 or bfloat16, found float16"),
    ("labels", lambda d: change(d.labels, 4, 3), "labels: node 4 has label 3, outside 0 <= label < 3"),
    ("labels", lambda d: change(d.labels, 4, -1), r"labels: node 4 is in a split but has no label \(-1\)"),
    ("labels", lambda d: change(d.labels, 4, -2), "labels: node 4 has label -2"),
    ("labels", lambda d: d.labels[1:], "labels: expected 60 rows, found 59"),
    ("train", lambda d: np.zeros(60, bool), "train: the train split is empty, 0 of 60 nodes"),
    ("val", lambda d: np.zeros(60, bool), "val: the val split is empty"),
    ("test", lambda d: np.zeros(60, bool), "test: the test split is empty"),
    ("test", lambda d: d.test | d.val, r"val: node \d+ is in val and in test \(12 nodes are in both\)"),
    ("train", lambda d: d.train | d.test, r"train: node \d+ is in train and in test"),
    ("train", lambda d: d.train.astype(np.int8), "train: expected dtype bool, found int8"),
    ("edge_weight", lambda d: change(np.ones(240), 9, np.inf), "edge_weight: row 9 is inf"),
    ("edge_weight", lambda d: np.ones(239), "edge_weight: expected 240 rows, found 239"),
    ("edge_features", lambda d: np.full((240, 2), np.nan), "edge_features: row 0, column 0 is nan"),
]


@pytest.mark.parametrize("field, make, message", CASES)
def test_bad_values_are_named(dataset, field, make, message):
    setattr(dataset, field, make(dataset))
    with pytest.raises(DataError, match="^sbm:nodes=60.*: " + message):
        dataset.check()


def test_messages_name_the_file_of_a_native_data_set(dataset, tmp_path):
    dataset.features = change(dataset.features, (3, 2), np.nan)
    format.write(tmp_path / "d", dataset)
    with pytest.raises(DataError, match=f"^{tmp_path}/d/nodes/node/features.npy: features: row 3, column 2 is nan"):
        load(str(tmp_path / "d"))


def test_empty_splits_where_allowed(dataset):
    dataset.val = np.zeros(60, bool)
    assert dataset.check(allow_empty=("val",)) is dataset


def test_unlabelled_nodes_outside_the_splits(dataset):
    dataset.labels = np.where(dataset.test, -1, dataset.labels)
    dataset.test = np.zeros(60, bool)
    dataset.check(allow_empty=("test",))


def test_the_position_is_right_beyond_the_first_chunk():
    """The graph is a ring, each of whose arrays is read in two chunks."""
    n = CHUNK_BYTES // 8 + 1000
    at, splits = n - 10, np.arange(n) % 3
    ring = Dataset(np.arange(n + 1), np.roll(np.arange(n), 1), np.zeros((n, 2), np.float32), np.zeros(n, np.int64),
                   *(splits == split for split in range(3)), 3)
    ring.check()
    for field, place, value, message in [
        ("indices", at, n, f"indices: edge {at} comes from node {n}"),
        ("indptr", at, 10**9, f"indptr: entry {at + 1} is .*, less than the entry before"),
        ("features", (at, 1), np.nan, f"features: row {at}, column 1 is nan"),
        ("labels", at, -2, f"labels: node {at} has label -2"),
    ]:
        array = getattr(ring, field)
        array[place], before = value, array[place]
        with pytest.raises(DataError, match=message):
            ring.check()
        array[place] = before
