"""Edge weights of an archive belong to the data set; training without the right option refuses them by name."""

import numpy as np
import pytest

from sarlite.comm import Solo
from sarlite.data import divided, load
from sarlite.errors import ConfigError, DataError
from sarlite.structure.edges import destinations
from sarlite.train.edge_values import NONE, used

EMPTY = {"allow_empty": ("val", "test")}
TOY = "train=1,val=0"


def archive(path, **changes):
    """Write the edges 0 -> 2, 0 -> 1 twice and 3 -> 0, with weights 5, 2, 3 and 0."""
    content = {"adj_indptr": np.array([0, 3, 3, 3, 4]), "adj_indices": np.array([2, 1, 1, 0]), "adj_shape": np.array([4, 4]),
               "adj_data": np.array([5, 2, 3, 0.0]), "attr_matrix": np.ones((4, 2), np.float32), "labels": np.array([0, 1, 0, 1])}
    np.savez(path, **{name: value for name, value in {**content, **changes}.items() if value is not None})
    return f"npz:{path},{TOY}"


def edges(dataset):
    return sorted(zip(dataset.indices.tolist(), destinations(dataset.indptr).tolist(), dataset.edge_weight.tolist()))


@pytest.mark.parametrize("dtype, expected_dtype", [(np.float32, np.float32), (np.float64, np.float64), (np.int64, np.float64)])
def test_the_weights_of_an_archive(tmp_path, dtype, expected_dtype):
    toy = load(archive(tmp_path / "a.npz", adj_data=np.array([5, 2, 3, 0], dtype)), **EMPTY)
    assert edges(toy) == [(0, 1, 2), (0, 1, 3), (0, 2, 5), (3, 0, 0)] and toy.edge_weight.dtype == expected_dtype
    dropped = load(archive(tmp_path / "a.npz") + ",drop_edge_values,undirected", **EMPTY)
    assert dropped.edge_weight is None and dropped.n_edges == 6


def test_ones_are_no_weights(tmp_path):
    for ones in (np.ones(4), np.ones(4, bool), None):
        assert load(archive(tmp_path / "a.npz", adj_data=ones) + ",self_loops", **EMPTY).edge_weight is None


@pytest.mark.parametrize("values, word", [
    (np.ones(3), r"adj_data: expected 4 numbers, one an edge, found shape \(3,\)"),
    (np.array([1, 1, np.nan, 1]), "adj_data: entry 2 is nan"),
    (np.array(list("abcd")), "adj_data: .* dtype is <U1, expected numbers"),
])  # fmt: skip
def test_weights_that_are_none(tmp_path, values, word):
    with pytest.raises(DataError, match="a.npz: " + word):
        load(archive(tmp_path / "a.npz", adj_data=values), **EMPTY)


@pytest.mark.parametrize("change", ["undirected", "self_loops", "deduplicate"])
def test_edges_with_weights_are_neither_added_nor_merged(tmp_path, change):
    match = "weight: edges that carry values cannot be added or merged|rows 1 and 2 are one edge with different values.*drop_edge_values"
    with pytest.raises(ConfigError, match=match):
        load(archive(tmp_path / "a.npz") + "," + change, **EMPTY)


def test_training_refuses_weights_by_name_where_nobody_said_what_becomes_of_them(tmp_path):
    labels, dropped = np.zeros(4, int), ",drop_edge_values"
    spec = archive(tmp_path / "a.npz", labels=labels).replace(TOY, "train=1,val=1")
    for wrong in (spec, spec + ",normalize"):
        with divided(Solo(), wrong) as dataset, pytest.raises(ConfigError, match="a.npz.*: edge_weight: .*edge_weights=False"):
            used(Solo(), dataset, NONE, wrong)
    with divided(Solo(), spec + dropped) as dataset:
        assert used(Solo(), dataset, NONE, spec) == []
