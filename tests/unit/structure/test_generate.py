"""Generated graphs: reproducible, of the size asked for, and worth a graph network."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sarlite.errors import ConfigError
from sarlite.structure.edges import destinations, is_symmetric
from sarlite.structure.generate import power_law, random_split, rmat, sbm


def assert_simple(indptr, indices):
    dst = destinations(indptr)
    keys = dst * (indptr.size - 1) + indices
    assert is_symmetric(indptr, indices)
    assert not (dst == indices).any()
    assert (np.diff(keys) > 0).all()  # sorted and without duplicates


def same(one, two):
    return all(np.array_equal(a, b) for a, b in zip(one, two))


def ridge_accuracy(graph, x):
    """Train a linear model by least squares on the training nodes; return its accuracy on the test nodes."""
    x = np.concatenate((x, np.ones((x.shape[0], 1))), axis=1).astype(np.float64)
    target = np.eye(graph.n_classes)[graph.labels[graph.train]]
    a = x[graph.train]
    w = np.linalg.solve(a.T @ a + 10 * np.eye(x.shape[1]), a.T @ target)
    return ((x @ w).argmax(axis=1) == graph.labels)[graph.test].mean()


def neighbour_mean(graph):
    total = np.zeros(graph.features.shape)
    np.add.at(total, destinations(graph.indptr), graph.features[graph.indices])
    return total / np.maximum(np.diff(graph.indptr), 1)[:, None]


@pytest.mark.parametrize("make", [lambda seed: sbm(nodes=500, seed=seed), lambda seed: rmat(nodes=300, edges=2000, seed=seed)])
def test_the_seed_decides(make):
    assert same(make(3), make(3))
    assert not np.array_equal(make(3).indices, make(4).indices)


def test_sbm_has_the_size_asked_for():
    graph = sbm(nodes=3000, classes=5, degree=12, features=20, seed=1)
    assert_simple(graph.indptr, graph.indices)
    assert graph.indices.size == 3000 * 12
    assert graph.features.shape == (3000, 20) and graph.features.dtype == np.float32
    assert sorted(set(graph.labels.tolist())) == [0, 1, 2, 3, 4] and graph.n_classes == 5
    masks = np.stack((graph.train, graph.val, graph.test))
    assert (masks.sum(axis=0) == 1).all() and masks.sum(axis=1).tolist() == [300, 600, 2100]
    degrees = np.diff(graph.indptr)
    assert degrees.max() > 5 * degrees.mean()  # a heavy tail


def test_sbm_has_the_homophily_asked_for():
    for wanted in (0.0, 0.5, 1.0):
        graph = sbm(nodes=3000, homophily=wanted, seed=1)
        homophily = (graph.labels[graph.indices] == graph.labels[destinations(graph.indptr)]).mean()
        assert abs(homophily - wanted) < 0.03


@pytest.mark.parametrize("seed", [0, 1])
def test_sbm_rewards_a_graph_network(seed):
    graph = sbm(seed=seed)
    features_accuracy = ridge_accuracy(graph, graph.features)
    together = ridge_accuracy(graph, np.concatenate((graph.features, neighbour_mean(graph)), axis=1))
    assert 0.5 < features_accuracy < 0.7
    assert together > 0.85


def test_node_ids_tell_nothing_about_classes():
    graph = sbm(nodes=4000, seed=0)
    first_half = np.bincount(graph.labels[:2000], minlength=8)
    assert (np.abs(first_half - 250) < 60).all()


@pytest.mark.parametrize("nodes, edges", [(2, 2), (300, 2000), (1000, 30000)])
def test_rmat_has_exactly_the_edges_asked_for(nodes, edges):
    graph = rmat(nodes=nodes, edges=edges, features=3, classes=2, seed=1)
    assert_simple(graph.indptr, graph.indices)
    assert graph.indices.size == edges and graph.indptr.size == nodes + 1


def test_rmat_prefers_low_ids():
    degrees = np.diff(rmat(scale=10, seed=0).indptr)
    assert degrees[:512].sum() > 2 * degrees[512:].sum()
    uniform = np.diff(rmat(scale=10, a=0.25, b=0.25, c=0.25, seed=0).indptr)
    assert uniform[:512].sum() < 1.1 * uniform[512:].sum()


def test_power_law_small():
    indptr, indices = power_law(nodes=5000, edges=100_000, seed=2)
    assert_simple(indptr, indices)
    assert indices.size == 100_000
    assert same((indptr, indices), power_law(nodes=5000, edges=100_000, seed=2))


def test_power_law_has_the_degrees_and_communities_of_the_benchmarks():
    """The benchmarks' graph has five times as many nodes and edges, and communities of up to 4,000 nodes."""
    indptr, indices = power_law(nodes=20_000, edges=1_000_000, largest=800)
    degrees = np.diff(indptr)
    low, middle, high, top = np.percentile(degrees, [0, 50, 99, 100])
    assert indices.size == 1_000_000
    assert 3 <= low <= 10 and 27 <= middle <= 37 and 300 <= high <= 400 and 1300 <= top <= 2600
    near = np.abs(destinations(indptr) - indices) < 800
    assert 0.70 <= near.mean() <= 0.84  # 70 % within a community, and some across lie as near


@settings(max_examples=80, deadline=None)
@given(
    st.lists(st.integers(-1, 4), max_size=40),
    st.one_of(st.integers(0, 9), st.floats(0, 0.5)),
    st.one_of(st.integers(0, 9), st.floats(0, 0.5)),
)
def test_random_split_is_disjoint_and_complete(labels, train, val):
    labels = np.array(labels, np.int64)
    masks = np.stack(random_split(labels, train, val, 7))
    assert np.array_equal(masks.sum(axis=0), labels >= 0)
    for label in set(labels[labels >= 0].tolist()):
        of_class = masks[:, labels == label].sum(axis=1)
        size = of_class.sum()
        if isinstance(train, int):
            assert of_class[0] == min(train, size)
        else:
            assert of_class[0] == max(round(train * size), 1 if train else 0)


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: sbm(nodes=1), "nodes: 1"),
        (lambda: sbm(nodes=5, classes=6), "classes: 6"),
        (lambda: sbm(homophily=1.5), "homophily: 1.5"),
        (lambda: sbm(classes=1, homophily=0.5), "homophily: 0.5"),
        (lambda: sbm(nodes=10, degree=20), "edges: 200"),
        (lambda: sbm(exponent=2), "exponent: 2"),
        (lambda: sbm(seed=-1), "seed: -1"),
        (lambda: sbm(train=0.8, val=0.4), r"train and val: \(0.8, 0.4\)"),
        (lambda: sbm(train=-1), "train: -1"),
        (lambda: rmat(), "nodes and scale"),
        (lambda: rmat(scale=3, edges=5), "edges: 5"),
        (lambda: rmat(scale=3, a=0.9, b=0.2), "a, b, c, d"),
        (lambda: power_law(nodes=10, edges=100), "edges: 100"),
        (lambda: power_law(nodes=50, edges=50 * 40, inside=1.0, smallest=5, largest=5), "edges"),
    ],
)
def test_impossible_options_are_named(make, message):
    with pytest.raises(ConfigError, match=message):
        make()
