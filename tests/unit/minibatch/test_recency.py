"""Recency as the last column of edge features: its values against plain NumPy on 1 to 3 ranks, and refusals."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sarlite import Graph, HeteroGraph, Tensor, nn
from sarlite.comm import Solo, threads
from sarlite.errors import ConfigError
from sarlite.minibatch import NeighborLoader, Temporal
from sarlite.models import GAT

pytestmark = pytest.mark.timeout(120)
N, UNIT = 12, 2.5


def random_graph(seed, n_features, comm=None):
    """Return a graph with times, with missing self loops added, and the table of its edges by edge id."""
    rng = np.random.default_rng(seed)
    src, dst, times = rng.integers(0, N, 60), rng.integers(0, N, 60), rng.integers(-5, 20, 60)
    graph = Graph.from_edges(src, dst, N, self_loops=True)
    ids = graph.edge_ids
    n_loops = graph.n_edges - 60  # the times of added loops are later than any seed, and must not count
    times = np.concatenate([times, np.full(n_loops, 10**6)])
    features = rng.standard_normal((len(times), n_features)).astype(np.float32)
    graph = graph.with_edge_values(features=features[ids] if n_features else None, time=times[ids])
    is_loop = np.arange(len(times)) >= 60
    return (graph if comm is None else graph.shard(comm, "random")), times, features, is_loop


def loader_of(graph, seed_times, pick, remote="exact", recency=UNIT):
    ids = graph.dst_ids
    return NeighborLoader(graph, np.eye(N, dtype=np.float32)[ids], None, slice(None), fanouts=(3, 2), batch_size=5, remote=remote,
                          temporal=Temporal(pick, seeds=seed_times[ids], recency=recency))


def check_batches(comm, seed, pick, n_features, remote):
    """Compare the edge features of each layer of each batch with plain NumPy; return the number of picks with an age."""
    graph, times, features, is_loop = random_graph(seed, n_features, comm)
    seed_times = np.random.default_rng(seed + 1).integers(0, 20, N)
    n_aged = 0
    for batch in loader_of(graph, seed_times, pick, remote):
        for layer in batch.graphs:
            at = np.repeat(layer.picked.times, np.diff(layer.picked.indptr))
            picked = layer.edge_ids
            ages = np.where(is_loop[picked], 0, at - times[picked])
            assert (ages >= 0).all()
            expected = np.column_stack([features[picked], np.log1p(ages / UNIT)])
            assert layer.edge_features.dtype == np.float32
            np.testing.assert_allclose(layer.edge_features, expected, rtol=1e-6)
            n_aged += int((ages > 0).sum())
    return n_aged


@pytest.mark.parametrize("pick", ["uniform", "latest"])
@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 10**6), n_features=st.sampled_from([0, 2]))
def test_the_last_edge_feature_is_the_recency_of_each_pick(pick, seed, n_features):
    assert check_batches(Solo(), seed, pick, n_features, "exact") > 0


@pytest.mark.parametrize("n_ranks", [2, 3])
@pytest.mark.parametrize("remote", ["exact", "local"])
@pytest.mark.parametrize("n_features", [0, 2])
def test_recency_on_several_ranks_is_that_of_plain_numpy(n_ranks, remote, n_features):
    assert sum(threads.run(n_ranks, lambda comm: check_batches(comm, 3, "uniform", n_features, remote))) > 0


@pytest.mark.parametrize("n_ranks", [2, 3])
def test_outputs_with_recency_are_one_ranks_on_several_ranks(n_ranks):
    def outputs(comm):
        graph = random_graph(5, 2, comm)[0]
        model = GAT(N, 3, edge_features=3, rng=nn.Random(0)).eval()
        loader = loader_of(graph, np.arange(N), "uniform")
        batch = loader.batch(np.arange(graph.n_dst))
        return graph.dst_ids, model(batch, batch.x).data[batch.rows]

    (ids, expected), = threads.run(1, outputs)
    expected = expected[np.argsort(ids)]
    for ids, rows in threads.run(n_ranks, outputs):
        np.testing.assert_allclose(rows, expected[ids], rtol=1e-5, atol=1e-6)


def test_an_age_of_more_than_63_bits_is_exact():
    first = np.iinfo(np.int64).min + 1
    graph = Graph.from_edges([0], [1], 2).with_edge_values(time=np.array([first]))
    loader = NeighborLoader(graph, np.eye(2), None, slice(None), fanouts=(1,), batch_size=2,
                            temporal=Temporal(seeds=np.full(2, np.iinfo(np.int64).max), recency=1))
    features = loader.batch(np.array([1])).graphs[0].edge_features
    assert features.dtype == np.float64
    np.testing.assert_allclose(features, [[np.log(2.0**64)]], rtol=1e-12)


def test_without_recency_edge_features_are_the_graphs_alone():
    graph = random_graph(5, 2)[0]
    assert loader_of(graph, np.arange(N), "uniform", recency=None).batch(np.arange(3)).graphs[0].edge_features.shape[1] == 2
    graph = random_graph(5, 0)[0]
    assert loader_of(graph, np.arange(N), "uniform", recency=None).batch(np.arange(3)).graphs[0].edge_features is None


def test_a_model_without_room_for_recency_is_refused():
    loader = loader_of(random_graph(5, 2)[0], np.arange(N), "uniform")
    batch = loader.batch(np.arange(3))
    with pytest.raises(Exception, match="attn_edge"):
        GAT(N, 3, edge_features=2, rng=nn.Random(0)).eval()(batch, Tensor(batch.x))


@pytest.mark.parametrize("recency", [0, -1.0, np.inf, np.nan, True, "day"])
def test_a_unit_that_is_no_number_above_0_is_refused(recency):
    with pytest.raises(ConfigError, match="is not a number above 0"):
        loader_of(random_graph(5, 0)[0], np.arange(N), "uniform", recency=recency)


def test_edges_without_times_and_relational_graphs_are_refused():
    timeless = Graph.from_edges([0, 1], [1, 0], N)
    with pytest.raises(ConfigError, match="recency: the edges have no times"):
        loader_of(timeless, np.arange(N), "uniform")
    relation = ("node", "edge", "node")
    typed = HeteroGraph.from_edges({relation: ([0, 1], [1, 0])}, {"node": 2}).with_edge_values(times={relation: [1, 2]})
    with pytest.raises(ConfigError, match="recency .*edge feature of a Graph"):
        NeighborLoader(typed.of("node"), {"node": np.eye(2)}, None, slice(None), fanouts=(2,), batch_size=2,
                       temporal=Temporal(seeds=[3, 3], recency=1))
